"""What is ended after a guardian's death where others' processes are among our children: the proven, and what descends from them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from health.model import Ask
from health.probing.runner import OUTCOME, Runner
from supervisor.guardian import ownership
from tests.support.waiting import is_running, wait_for

pytestmark = pytest.mark.process
COOKIE = "c" * 32

#: A guardian's death as process 1 of a container sees it: the job's processes fall to us, and a stranger's orphans do as well.
AS_FIRST = textwrap.dedent("""
    import os, signal, subprocess, sys, threading, time
    from supervisor.guardian import process_tree
    from supervisor.launch.guardian_client import GuardianClient
    from supervisor.guardian.ownership import Orphans, collect_zombies

    job = '''import os, signal, sys, time
    def orphan(name, environ):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execve("/bin/sh", ["sh", "-c", f"echo $$ > {name}; exec sleep 600"], environ)
            os._exit(0)
        os.wait()
    orphan("nameless", {})
    orphan("marked", {"SUPERVISE_JOB_COOKIE": sys.argv[1]})
    time.sleep(600)
    '''
    cookie = sys.argv[1]
    orphans = Orphans(cookie, first_process=True)
    died = threading.Event()
    guardian = GuardianClient.start(lambda event: None, died.set)
    here = os.getcwd()
    guardian.spawn(attempt=1, kind="plain", argv=[sys.executable, "-c", job, cookie], env=dict(os.environ), cwd=here, log_dir=here)
    def pid_in(name):
        while not os.path.exists(name) or not open(name).read().endswith("\\n"):
            time.sleep(0.01)
        return int(open(name).read())
    nameless, marked = pid_in("nameless"), pid_in("marked")
    if "seen" in sys.argv:
        orphans.seen(process_tree.below(guardian.pid, process_tree.snapshot()))
    subprocess.run(["sh", "-c", "exec sleep 600 >/dev/null & echo $! > stranger"], env={})
    stranger = pid_in("stranger")
    os.kill(guardian.pid, signal.SIGKILL)
    died.wait(30)
    orphans.end(0.5)
    zombies = [p.pid for p in process_tree.snapshot().values() if p.ppid == os.getpid() and not p.alive]
    print(nameless, marked, stranger, len(zombies))
""")


@pytest.mark.parametrize("seen", [True, False])
def test_as_process_1_only_proven_processes_are_ended(tmp_path: Path, *, seen: bool) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, "-c", AS_FIRST, COOKIE, *(["seen"] if seen else [])]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=120, check=True, cwd=tmp_path, env=env)  # noqa: S603 - our own script
    nameless, marked, stranger, zombies = map(int, done.stdout.split())
    try:
        assert not is_running(marked)
        assert is_running(nameless) is not seen
        assert is_running(stranger)
        assert zombies == 0
    finally:
        for pid in (nameless, stranger):
            if is_running(pid):
                os.kill(pid, 9)


#: Nobody else's processes can be among our children here: what was not started by us fell to us.
BESIDE = textwrap.dedent("""
    import os, subprocess
    from supervisor.guardian import ownership

    ours = ownership.Orphans("c" * 32, first_process=False)
    owned = ownership.started(lambda: subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE, text=True))
    fallen = subprocess.Popen(["sleep", "600"])
    ours.end(0.5)
    print(owned.poll(), os.path.exists(f"/proc/{fallen.pid}"))
    owned.kill()
    owned.wait()
""")


def test_a_process_of_our_own_outlives_a_guardians_death(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", BESIDE], stdout=subprocess.PIPE, text=True, timeout=120, check=True, cwd=tmp_path, env=env)  # noqa: S603 - our own script
    assert done.stdout.split() == ["None", "False"]


def test_the_exit_status_of_a_prober_is_its_owners_whenever_zombies_are_collected() -> None:
    """Whoever else waits for a child leaves its owner with 0."""
    runner = Runner(start=ownership.started)
    ended = ownership.started(lambda: subprocess.Popen([sys.executable, "-c", "raise SystemExit(78)"]))
    wait_for(lambda: Path(f"/proc/{ended.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z", "it is a zombie", 10)
    ownership.collect_zombies()
    assert ended.wait() == 78
    assert runner.sweep(("clock",), Ask(deadline_s=5.0)).of(OUTCOME)
