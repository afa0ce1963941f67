"""A standby runs the rank as a cold start would; where it cannot, a cold start is all that it costs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.guardian.standby import GONE, PREPARING, READY, REFUSED, StartFacts, refusal
from tests.support.figures import within
from tests.support.standbys import RECORD, Ranks
from tests.support.waiting import is_running, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

SHOW = """
import _socket, ctypes, decimal, json, os, sys
print(json.dumps({
    'argv': sys.argv, 'orig': sys.orig_argv, 'file': __file__, 'path': sys.path, 'name': __name__,
    'fds': sorted(os.listdir('/proc/self/fd')), 'cmdline': open('/proc/self/cmdline').read(),
    'environ': open('/proc/self/environ').read().replace('ATTEMPT=2', 'ATTEMPT=1'),
    'env': {k: v for k, v in os.environ.items() if k != 'SUPERVISE_JOB_ATTEMPT'}, 'order': list(os.environ),
    'nice': os.getpriority(os.PRIO_PROCESS, 0), 'oom': open('/proc/self/oom_score_adj').read(), 'policy': os.sched_getscheduler(0),
    'main': sorted(vars(sys.modules['__main__'])), 'meta': [str(type(one)) for one in sys.meta_path],
    'status': [l for l in open('/proc/self/status') if l.startswith(('SigB', 'SigI', 'SigC', 'Umask', 'Cap'))],
    'modules': sorted(sys.modules),
}))
"""


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    ranks = Ranks(tmp_path)
    yield ranks
    ranks.close()


def script(ranks: Ranks, text: str, name: str = "train.py") -> str:
    (ranks.folder / name).write_text(text)
    return name


def test_a_warm_rank_equals_a_cold_start(ranks: Ranks) -> None:
    cold, warm = ranks.both(script(ranks, SHOW + RECORD), "--resume", "ä b")
    assert cold == warm
    assert cold[0] == 0
    assert '"argv": ["train.py", "--resume"' in cold[1]


def test_the_arguments_after_the_script_may_change(ranks: Ranks) -> None:
    cold, warm = ranks.both("-u", script(ranks, SHOW + RECORD), "1", again=["-u", "train.py", "much", "longer"])
    assert warm[1] == cold[1].replace('"1"]', '"much", "longer"]').replace("train.py\\u00001", "train.py\\u0000much\\u0000longer")


def test_a_module_is_run_as_the_interpreter_runs_it(ranks: Ranks) -> None:
    (ranks.folder / "pkg").mkdir()
    script(ranks, SHOW + RECORD, "pkg/__main__.py")
    script(ranks, "", "pkg/__init__.py")
    cold, warm = ranks.both("-m", "pkg", "x")
    assert cold == warm
    assert cold[0] == 0


def test_a_standby_waits_under_another_name_and_is_killed_first(ranks: Ranks) -> None:
    ranks.cold(script(ranks, SHOW + RECORD))
    standby = ranks.ready("train.py")
    assert (standby.poll(), standby.why, standby.note) == (READY, "", "")
    line = Path(f"/proc/{standby.pid}/cmdline").read_text()
    assert line.startswith(f"supervise-standby:\0{sys.executable}\0train.py\0")
    assert Path(f"/proc/{standby.pid}/oom_score_adj").read_text().strip() == "1000"
    assert os.getpriority(os.PRIO_PROCESS, standby.pid) == os.getpriority(os.PRIO_PROCESS, 0)
    standby.drop()
    assert standby.poll() == GONE
    assert not is_running(standby.pid)


def test_a_standby_ends_when_its_parent_is_gone(ranks: Ranks) -> None:
    ranks.cold(script(ranks, "open('ran', 'a').write('x')" + RECORD))
    standby = ranks.ready("train.py")
    with socket.socket(fileno=os.dup(standby.fileno())) as link:
        link.shutdown(socket.SHUT_RDWR)
    wait_for(lambda: not is_running(standby.pid), "its end")
    assert (ranks.folder / "ran").read_text() == "x"


@pytest.mark.parametrize(
    ("before", "why"),
    [
        (lambda pid: os.kill(pid, signal.SIGKILL), "gone"),
        (lambda pid: os.kill(pid, signal.SIGSTOP), "it does not run (state T)"),
        (lambda pid: os.kill(pid, signal.SIGINT), "gone"),
    ],
)
def test_a_dead_or_stopped_standby_costs_a_cold_start(ranks: Ranks, before: object, why: str) -> None:
    ranks.cold(script(ranks, "open('ran', 'a').write('x')" + RECORD))
    standby = ranks.ready("train.py")
    assert callable(before)
    before(standby.pid)
    if why == "gone":
        wait_for(lambda: standby.poll() == GONE, "the end of the link")
    else:
        wait_for(lambda: "(stopped)" in Path(f"/proc/{standby.pid}/status").read_text(), "the stop")
    assert not ranks.hand_over("train.py")
    assert why in standby.why
    assert not is_running(standby.pid)
    assert (ranks.folder / "ran").read_text() == "x"


def test_a_standby_that_answers_too_late_is_killed_before_another_start(ranks: Ranks) -> None:
    ranks.cold(script(ranks, "import this; open('ran', 'a').write('x')" + RECORD))
    standby = ranks.ready("train.py")
    read, full = os.pipe()  # what `this` prints goes first, and has no room
    os.set_blocking(full, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full, bytes(65536))
    os.set_blocking(full, True)
    began = time.monotonic()
    assert not standby.hand_over([sys.executable, "train.py"], ranks.env(2), fds={1: full, 2: full}, deadline_s=0.1)
    os.close(read)
    os.close(full)
    assert "does not answer" in standby.why
    assert within(5, since=began)
    assert not is_running(standby.pid)
    assert (ranks.folder / "ran").read_text() == "x"


def test_an_unready_standby_is_not_waited_for(ranks: Ranks) -> None:
    ranks.cold(script(ranks, "import json" + RECORD))
    ranks.record().unlink()
    os.mkfifo(ranks.record())  # it never comes to the end of what it reads first
    standby = ranks.start("train.py")
    assert standby.poll() == PREPARING
    assert not ranks.hand_over("train.py")
    assert standby.why == "it is preparing"


def test_a_changed_script_is_refused_at_the_hand_over(ranks: Ranks) -> None:
    ranks.cold(script(ranks, "import json" + RECORD))
    standby = ranks.ready("train.py")
    script(ranks, "import json, decimal" + RECORD)
    assert not ranks.hand_over("train.py")
    assert standby.why == f"{ranks.folder / 'train.py'} was changed"


def test_a_changed_limit_of_the_parent_is_refused(ranks: Ranks) -> None:
    ranks.cold(script(ranks, "import json" + RECORD))
    standby = ranks.ready("train.py")
    old = os.umask(0o077)
    try:
        assert not ranks.hand_over("train.py")
    finally:
        os.umask(old)
    assert standby.why == "Umask of its parent changed"


def test_a_standby_without_a_record_ends_without_the_script(ranks: Ranks) -> None:
    script(ranks, "open('ran', 'a').write('x')")
    standby = ranks.ready("train.py")
    assert standby.poll() == GONE
    assert not (ranks.folder / "ran").exists()


def test_a_start_with_other_facts_is_refused_before_the_standby_is_asked() -> None:
    facts = StartFacts(["python", "-u", "train.py", "--a"], {"A": "1", "MASTER_PORT": "1"}, "/here")
    facts.fixed = 3
    same = {"A": "1", "MASTER_PORT": "2", "TORCHELASTIC_RESTART_COUNT": "3"}
    assert refusal(facts, ["python", "-u", "train.py", "--b", "--c"], same, "/here") == ""
    assert refusal(facts, ["python", "train.py"], same, "/here") == "the command is another"
    assert refusal(facts, facts.argv, {**same, "A": "2"}, "/here") == "A is another"
    assert refusal(facts, facts.argv, {**same, "B": ""}, "/here") == "B is another"
    assert refusal(facts, facts.argv, {**same, "WORLD_SIZE": "3"}, "/here") == "WORLD_SIZE is another", "its imports may have read it"
    assert refusal(facts, facts.argv, same, "/there") == "the working directory is another"


def test_a_sitecustomize_of_the_users_is_refused(ranks: Ranks) -> None:
    (ranks.folder / "mine").mkdir()
    script(ranks, "import os", "mine/sitecustomize.py")
    ranks.variables["PYTHONPATH"] = f"{ranks.env(1)['PYTHONPATH']}:{ranks.folder / 'mine'}"
    ranks.cold(script(ranks, "import json" + RECORD))
    standby = ranks.ready("train.py")
    assert (standby.poll(), standby.why) == (REFUSED, "your own sitecustomize runs before the script")
