"""Who is instrumented, who is not, and that nothing of ours is left where it is not wanted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.checkpointing import mounts
from tests.support.few import few

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Attempt

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[2]

SHOW = """
import json, os, sys
env = {k: v for k, v in os.environ.items() if k == 'PYTHONPATH' or k == 'SUPERVISE_JOB_SHIM'}
print(json.dumps([env, sys.path, [m for m in sorted(sys.modules)]]))
"""
INSTRUMENTED = "import sys; print('_supervise_shim' in sys.modules)"


@pytest.mark.parametrize("users", few([":/c", "/a b:/c", None, "", "/c:"], 2))
def test_a_rank_sees_the_environment_and_the_path_that_it_would_have_without_us(
    attempt: Attempt, users: str | None, tmp_path: Path
) -> None:
    with_us = attempt.run("-c", SHOW, env=attempt.env(pythonpath=users), cwd=tmp_path)
    without = attempt.run("-c", SHOW, env=attempt.bare if users is None else attempt.bare | {"PYTHONPATH": users}, cwd=tmp_path)
    assert (with_us.returncode, with_us.stderr) == (0, "")
    mine, theirs = json.loads(with_us.stdout), json.loads(without.stdout)
    assert mine[:2] == theirs[:2]
    assert len(attempt.beats()) == 1


def test_a_rank_holds_no_module_of_ours_but_the_shim_and_nothing_heavy(attempt: Attempt) -> None:
    mine = set(json.loads(attempt.run("-c", SHOW).stdout)[2])
    theirs = set(json.loads(attempt.run("-c", SHOW, env=attempt.bare).stdout)[2])
    others = {name for name in mine - theirs if name.split(".")[0] != "_supervise_shim"}
    assert others <= {"__future__", "atexit", "faulthandler", "fcntl", "mmap"}
    assert "_supervise_shim" in mine


def test_the_shim_directory_is_removed_from_the_path_wherever_a_launcher_moved_it(attempt: Attempt) -> None:
    moved = attempt.env() | {"PYTHONPATH": f"/first:{attempt.env()['PYTHONPATH']}:/last"}
    assert json.loads(attempt.run("-c", SHOW, env=moved).stdout)[0] == {"PYTHONPATH": "/first:/last"}


@pytest.mark.parametrize("asked", [True, False])
def test_a_rank_beside_the_one_on_the_terminal_prints_by_the_line(attempt: Attempt, asked: bool) -> None:  # noqa: FBT001 - a parameter
    code = "import os, sys; print(sys.stdout.line_buffering, 'SUPERVISE_JOB_LINEBUF' in os.environ)"
    more = {"SUPERVISE_JOB_LINEBUF": "1"} if asked else {}
    assert attempt.run("-c", code, env=attempt.env(**more)).stdout == f"{asked} False\n"


@pytest.mark.parametrize("trains", [False, True], ids=["numbered by a launcher", "a command that trains"])
def test_a_child_of_a_rank_is_not_instrumented(attempt: Attempt, trains: bool) -> None:  # noqa: FBT001 - a parameter
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {INSTRUMENTED!r}])"
    if trains:
        code = "from supervisor import worker\nworker.heartbeat(1)\n" + code
    numbers = {} if trains else {"RANK": "0", "LOCAL_RANK": "0"}
    assert attempt.run("-c", code, env=attempt.env(pythonpath=str(ROOT), **numbers)).stdout == "False\n"


#: How a command may start another Python, given its words as `words`; the first three are all that the fast tests try.
STARTS = {
    "an environment of its own": "subprocess.run(words, env={**os.environ, 'MINE': '1'})",
    "a shell": "os.system(shlex.join(words))",
    "exec with an environment": "os.execvpe(words[0], words, os.environ)",
    "subprocess": "subprocess.run(words)",
    "an environment by position": "subprocess.Popen(words, -1, None, None, None, None, None, True, False, None, dict(os.environ)).wait()",
    "a changed PYTHONPATH": "os.environ['PYTHONPATH'] = '/elsewhere'\nsubprocess.run(words)",
    "exec": "os.execvp(words[0], words)",
    "fork and exec": "os.fork() or os.execvp(words[0], words)\nos.wait()",
}


@pytest.mark.parametrize("start", few(STARTS.values(), 3), ids=STARTS)
def test_a_process_started_by_the_command_before_the_training_may_be_the_rank(attempt: Attempt, start: str) -> None:
    rank = "import os; from supervisor import worker; worker.heartbeat(5); print(os.getpid())"
    code = f"import os, shlex, subprocess, sys\nwords = [sys.executable, '-c', {rank!r}]\n{start}"
    done = attempt.run("-c", code, env=attempt.env(), cwd=ROOT)
    assert [(str(beat.pid), beat.step) for beat in attempt.beats()] == [(done.stdout.strip(), 5)], done.stderr


def test_an_environment_that_owes_nothing_to_the_commands_stays_as_it_is(attempt: Attempt) -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SHOW!r}], env={{'MINE': '1'}})"
    assert json.loads(attempt.run("-c", code).stdout)[0] == {}


NUMBERED = (
    "import os, subprocess, sys\n"
    "def start(rank, code):\n"
    "    env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank))\n"
    "    child = subprocess.Popen([sys.executable, '-c', code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\n"
    "    print(child.stdout.readline().strip())\n"
    "    return child\n"
)
WAITS = "'import os; print(os.getpid(), flush=True); input()'"


def test_numbered_children_have_the_slots_and_the_command_leaves_its_own(attempt: Attempt) -> None:
    code = (
        f"{NUMBERED}"
        f"children = [start(rank, {WAITS}) for rank in (0, 1)]\n"
        "import _supervise_shim as shim\n"
        "shim.instrument._beat.flag(256)\n"  # what the command does meanwhile, here an optimizer that it makes
        "for child in children:\n    child.communicate('\\n')\n"
        "raise ValueError('the command, after them')\n"
    )
    done = attempt.run("-c", code)
    beats = attempt.beats()
    assert [str(beat.pid) for beat in beats] == done.stdout.split(), done.stderr
    assert not any(beat.optimizer_made for beat in beats)
    assert [error.rank for error in attempt.errors().unclaimed] == [None]


def test_a_command_that_trains_has_its_slot_back_from_a_numbered_server_that_does_not(attempt: Attempt) -> None:
    code = (
        f"{NUMBERED}"
        f"server = start(0, {WAITS})\n"
        "from supervisor import worker\nworker.heartbeat(3)\n"
        "server.communicate('\\n')\n"
        "print(os.getpid())\n"
    )
    done = attempt.run("-c", code, env=attempt.env(pythonpath=str(ROOT)))
    assert [(str(beat.pid), beat.step) for beat in attempt.beats()] == [(done.stdout.split()[1], 3)], done.stderr


def test_trainings_one_after_the_other_have_the_slot_in_turn_and_then_the_command(attempt: Attempt) -> None:
    child = "import os; from supervisor import worker; worker.heartbeat(int(os.environ['STEP'])); print(os.getpid())"
    code = (
        "import os, subprocess, sys\n"
        "for step in (7, 8):\n"
        f"    subprocess.run([sys.executable, '-c', {child!r}], env=dict(os.environ, STEP=str(step)))\n"
        "from supervisor import worker\nworker.heartbeat(int(sys.argv[1]))\n"
    )
    attempt.run("-c", code, "9", cwd=ROOT)
    assert [beat.step for beat in attempt.beats()] == [9]


def test_helpers_that_a_command_starts_before_it_trains_claim_nothing(attempt: Attempt) -> None:
    code = (
        "import os, subprocess, sys, multiprocessing\n"
        "helper = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "from supervisor import worker\nworker.heartbeat(3)\n"
        "helper.communicate(b'\\n')\n"
        "print(os.getpid())\n"
    )
    done = attempt.run("-c", code, env=attempt.env(pythonpath=str(ROOT)))
    assert [(str(beat.pid), beat.step) for beat in attempt.beats()] == [(done.stdout.strip(), 3)]


@pytest.mark.parametrize("end", few(["check=True)", ").returncode and sys.exit(1)"]))
def test_a_child_that_failed_before_it_trained_was_the_program_and_not_the_command(attempt: Attempt, end: str) -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', 'raise ValueError(5)'], {end}"
    assert attempt.run("-c", code).returncode == 1
    assert attempt.beats() == ()
    assert attempt.errors().unclaimed[0].exc_type == "builtins.ValueError"


def test_a_command_whose_helper_failed_is_the_rank_of_its_own_exception(attempt: Attempt) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import absent']); raise ValueError(5)"
    attempt.run("-c", code)
    assert [(error.rank, error.message) for error in attempt.errors().errors] == [(0, "5")]


def test_a_launcher_stays_unclaimed_and_hands_us_on_to_its_ranks(attempt: Attempt) -> None:
    code = (
        "import os, subprocess, sys\n"
        "for rank in (0, 1):\n"
        "    env = dict(os.environ, RANK=str(rank + 4), LOCAL_RANK=str(rank))\n"
        "    subprocess.run([sys.executable, '-c', 'import os; print(os.getpid())'], env=env, check=True)\n"
    )
    done = attempt.run("-c", code, env=attempt.env("launcher"))
    beats = attempt.beats()
    assert [(beat.local_rank, beat.rank) for beat in beats] == [(0, 4), (1, 5)]
    assert [str(beat.pid) for beat in beats] == done.stdout.split()
    assert not [name for name in attempt.names() if "unclaimed" in name]


@pytest.mark.parametrize(
    ("numbers", "claimed"),
    [
        pytest.param({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, [(1, 1)], marks=pytest.mark.slow),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2", "NODE_RANK": "0"}, [(1, 1)]),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "4", "NODE_RANK": "1"}, []),  # its rank is not known before it trains
    ],
)
def test_lightnings_children_have_a_local_rank_and_a_world(
    attempt: Attempt, numbers: dict[str, str], claimed: list[tuple[int, int]]
) -> None:
    attempt.run("-c", "pass", env=attempt.env("launcher", **numbers))
    assert [(beat.local_rank, beat.rank) for beat in attempt.beats()] == claimed


def test_rank_without_local_rank_is_a_pod_not_a_rank(attempt: Attempt) -> None:
    attempt.run("-c", "pass", env=attempt.env("launcher", RANK="3"))
    assert attempt.beats() == ()


@pytest.mark.parametrize("parent_too", [False, True])
def test_mpiruns_rank_is_a_rank_unless_it_has_its_number_from_its_parent(attempt: Attempt, parent_too: bool) -> None:  # noqa: FBT001 - a parameter
    names = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    env = attempt.env("launcher", **names)
    if parent_too:
        attempt.run("-S", "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {INSTRUMENTED!r}])", env=env)
    else:
        attempt.run("-c", INSTRUMENTED, env=env)
    assert [beat.rank for beat in attempt.beats()] == ([] if parent_too else [1])


def test_a_training_without_rank_claims_when_it_reports_a_step(attempt: Attempt) -> None:
    code = "from supervisor import worker\nworker.heartbeat(7)\n" + SHOW
    done = attempt.run("-c", code, env=attempt.env("launcher", pythonpath=str(ROOT)))
    assert json.loads(done.stdout)[0] == {"PYTHONPATH": str(ROOT)}
    assert [(beat.step, beat.step_source) for beat in attempt.beats()] == [(7, "worker")]
    assert [name for name in attempt.names() if name.startswith("stacks-0-")]


def test_a_slot_belongs_to_the_first_until_it_dies(attempt: Attempt) -> None:
    code = "import os; print(os.getpid(), flush=True); input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=attempt.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:  # noqa: S603 - our own interpreter
        assert first.stdin is not None
        assert first.stdout is not None
        pid = int(first.stdout.readline())
        attempt.run("-c", "pass")
        assert [beat.pid for beat in attempt.beats()] == [pid]
        first.stdin.write("\n")
    second = attempt.run("-c", "import os; print(os.getpid())")
    assert [beat.pid for beat in attempt.beats()] == [int(second.stdout)]


def test_a_slot_is_claimed_on_a_file_system_without_locks(make_attempt: Callable[[Path], Attempt], tmp_path: Path) -> None:
    with mounts.served(tmp_path / "state", tmp_path / "behind", "--no-locks"):
        attempt = make_attempt(tmp_path / "state")
        done = attempt.run("-c", "import os; print(os.getpid())")
        assert [beat.pid for beat in attempt.beats()] == [int(done.stdout)]


def test_a_forked_child_does_not_beat_or_report_for_its_parent(attempt: Attempt) -> None:
    code = (
        "import os, sys\n"
        "from supervisor import worker\n"
        "worker.heartbeat(1)\n"
        "if os.fork() == 0:\n"
        "    worker.heartbeat(99)\n"
        "    raise ValueError('the child')\n"
        "os.wait()\n"
    )
    done = attempt.run("-c", code, env=attempt.env(pythonpath=str(ROOT)))
    assert "the child" in done.stderr
    assert [beat.step for beat in attempt.beats()] == [1]
    assert attempt.errors().errors == ()


@pytest.mark.parametrize("options", [["-I"], ["-E"], ["-S"]])
def test_an_isolated_python_is_simply_not_instrumented(attempt: Attempt, options: list[str]) -> None:
    assert attempt.run("-c", INSTRUMENTED, python=options).stdout == "False\n"


def test_safe_path_is_instrumented(attempt: Attempt) -> None:
    assert attempt.run("-c", INSTRUMENTED, python=["-P"]).stdout == "True\n"


@pytest.mark.parametrize(
    "broken",
    few(
        [
            {"SUPERVISE_JOB_DIR": "/nonexistent"},
            {"LOCAL_RANK": "many"},
            {"SUPERVISE_JOB_SHIM": "off"},
            {"SUPERVISE_JOB_ATTEMPT": "x"},
            {"SUPERVISE_JOB_ATTEMPT": "2"},
            {"LOCAL_RANK": "400"},
            {"RANK": "x", "LOCAL_RANK": "0"},
            {"SUPERVISE_JOB_SHIM": "?"},
        ],
        3,
    ),
)
def test_a_broken_shim_leaves_the_script_unchanged(attempt: Attempt, broken: dict[str, str]) -> None:
    done = attempt.run("-c", "import sys; print('ran'); sys.exit(3)", env=attempt.env() | broken)
    assert (done.returncode, done.stdout, done.stderr) == (3, "ran\n", "")


@pytest.mark.parametrize("content", few([os.urandom(1024), b"", b"\0" * 1024]))
def test_a_heartbeat_file_that_is_none_is_left_alone(attempt: Attempt, content: bytes) -> None:
    path = attempt.directory / "heartbeat"
    path.write_bytes(content)
    assert attempt.run("-c", "raise ValueError(1)").returncode == 1
    assert path.read_bytes() == content
    assert attempt.beats() == ()
