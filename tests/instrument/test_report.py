"""A rank's last words."""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING

import pytest

from supervisor.config.settings import Settings
from supervisor.core.actions import BeginAttempt
from supervisor.core.model import Phase
from supervisor.job.job import Job
from supervisor.knobs.knob_set import AttemptCommand
from supervisor.launch.environment import attempt_variables
from tests.support.few import few

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Attempt

pytestmark = pytest.mark.process


def test_an_uncaught_exception_is_written_down_with_who_and_where(attempt: Attempt, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "class Bad(RuntimeError): pass\n"
        "def inner():\n    raise Bad('what \\ud800 \\u00e9')\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    inner()\n"
    )
    done = attempt.run(str(script), env=attempt.env(RANK="5", LOCAL_RANK="1"))
    plain = attempt.run(str(script), env=attempt.bare)
    assert (done.stdout, done.stderr, done.returncode) == (plain.stdout, plain.stderr, plain.returncode)
    (error,) = attempt.errors().errors
    (beat,) = attempt.beats()
    assert (error.pid, error.start_ticks, error.rank, error.local_rank) == (beat.pid, beat.start_ticks, 5, 1)
    assert (error.exc_type, error.message, error.phase, error.step) == ("__main__.Bad", "what \ud800 \u00e9", Phase.IMPORT, None)
    assert "ZeroDivisionError" in error.traceback
    assert "in inner" in error.traceback


@pytest.mark.parametrize("ending", few(["raise ValueError", "sys.exit(3)"]))
@pytest.mark.parametrize(("after_s", "phase"), [(3.2, Phase.UNKNOWN), (0.2, Phase.IMPORT)], ids=["ran on", "at once"])
def test_a_script_that_ends_seconds_after_its_last_import_was_not_importing(
    attempt: Attempt, ending: str, after_s: float, phase: Phase
) -> None:
    """It may train by numpy, or play: three seconds are more than lie between two imports."""
    script = f"import sys, time\ntime.sleep({3.2 - after_s})\nimport html\ntime.sleep({after_s})\n{ending}"
    attempt.run("-c", script, env=attempt.env(RANK="0"))
    (beat,) = attempt.beats()
    assert beat.phase == phase
    assert [error.phase for error in attempt.errors().errors] == [phase] * ending.startswith("raise")


def test_messages_and_tracebacks_are_bounded_and_keep_the_frames(attempt: Attempt) -> None:
    attempt.run("-c", "def place(): raise ValueError('x' * 10_000_000)\nplace()")
    (error,) = attempt.errors().errors
    assert len(error.message) == 2048
    assert len(error.traceback) <= 16384
    assert "in place" in error.traceback


@pytest.mark.parametrize(
    ("code", "exc_type", "message"),
    [
        ("def f(): f()\nf()", "builtins.RecursionError", "maximum recursion depth exceeded"),
        ("class E(Exception):\n  def __str__(self): raise OSError\nraise E", "__main__.E", "(its message could not be made)"),
        ("raise ExceptionGroup('many', [ValueError(1)])", "builtins.ExceptionGroup", "many (1 sub-exception)"),
    ],
)
def test_odd_exceptions_are_reported_too(attempt: Attempt, code: str, exc_type: str, message: str) -> None:
    attempt.run("-c", code)
    (error,) = attempt.errors().errors
    assert (error.exc_type, error.message) == (exc_type, message)


@pytest.mark.parametrize(
    ("code", "status"), [("import sys; sys.exit(3)", 3), ("raise KeyboardInterrupt", -signal.SIGINT), ("raise SystemExit('no')", 1)]
)
def test_leaving_and_being_interrupted_is_no_error(attempt: Attempt, code: str, status: int) -> None:
    assert attempt.run("-c", code).returncode == status
    assert attempt.errors().errors == ()


def test_a_thread_s_exception_is_not_the_rank_s(attempt: Attempt) -> None:
    code = (
        "import sys, threading\nthreading.excepthook = lambda a: sys.excepthook(*a[:3])\n"
        "t = threading.Thread(target=lambda: 1 / 0)\nt.start(); t.join()"
    )
    assert attempt.run("-c", code).returncode == 0
    assert attempt.errors().errors == ()


def test_a_hook_of_the_script_that_calls_nobody_does_not_hide_the_error(attempt: Attempt) -> None:
    attempt.run("-c", "import sys; sys.excepthook = lambda *a: None\nraise ValueError('hidden')")
    assert [error.message for error in attempt.errors().errors] == ["hidden"]


def test_a_process_that_is_no_rank_reports_as_unclaimed(attempt: Attempt) -> None:
    attempt.run("-c", "import nothing_of_this_name", env=attempt.env("launcher"))
    scan = attempt.errors()
    assert [(error.exc_type, error.rank) for error in scan.unclaimed] == [("builtins.ModuleNotFoundError", None)]
    assert scan.errors == scan.unclaimed


def test_a_fatal_signal_leaves_the_stacks_and_nothing_on_stderr(attempt: Attempt) -> None:
    done = attempt.run("-c", "import os\ndef crash(): os.abort()\ncrash()")
    assert (done.returncode, done.stderr) == (-signal.SIGABRT, "")
    (path,) = attempt.directory.glob("stacks-0-*.txt")
    assert "in crash" in path.read_text()


def test_the_users_own_faulthandler_is_kept(attempt: Attempt) -> None:
    done = attempt.run("-c", "import os; os.abort()", python=["-X", "faulthandler"])
    assert "Fatal Python error: Aborted" in done.stderr


@pytest.mark.parametrize(("mode", "ignored", "survives"), [("rank", False, True), ("rank", True, True), ("launcher", False, False)])
def test_sigquit_dumps_the_stacks_of_a_rank_unless_ignored(attempt: Attempt, mode: str, *, ignored: bool, survives: bool) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGQUIT); print('on')"
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        done = attempt.run("-c", code, env=attempt.env(mode))
    finally:
        signal.signal(signal.SIGQUIT, before)
    assert (done.stdout == "on\n") is survives
    dumps = [path.read_text() for path in attempt.directory.glob("stacks-0-*.txt")]
    assert any("most recent call first" in dump for dump in dumps) is (mode == "rank" and not ignored)


def test_a_forked_child_can_be_quit(attempt: Attempt) -> None:
    code = (
        "import os, signal\npid = os.fork()\n"
        "if not pid: os.kill(os.getpid(), signal.SIGQUIT); os._exit(0)\n"
        "print(os.waitpid(pid, 0)[1] & 127)"
    )
    assert attempt.run("-c", code).stdout == f"{int(signal.SIGQUIT)}\n"


def test_the_script_gets_the_descriptors_that_it_would_get(attempt: Attempt) -> None:
    code = "print(open('/dev/null').fileno())"
    assert attempt.run("-c", code).stdout == attempt.run("-c", code, env=attempt.bare).stdout


HYDRA = """
import os, sys, traceback

def run_and_report(func):
    # as hydra-core 1.3's hydra._internal.utils does it
    try:
        return func()
    except Exception as ex:
        if os.environ.get("HYDRA_FULL_ERROR", "0") == "1":
            raise
        sys.stderr.write(f"Error executing job with overrides: []\\n{type(ex).__name__}: {ex}\\n")
        sys.stderr.write("\\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\\n")
        sys.exit(1)
"""


@pytest.mark.parametrize(("theirs", "seen"), [({}, ["builtins.MemoryError"]), ({"HYDRA_FULL_ERROR": "0"}, [])], ids=["ours", "the user's"])
def test_an_exception_under_hydra_is_seen_unless_the_user_chose_otherwise(
    attempt: Attempt, tmp_path: Path, theirs: dict[str, str], seen: list[str]
) -> None:
    (tmp_path / "hydra_stand_in.py").write_text(HYDRA)
    script = tmp_path / "train.py"
    script.write_text("from hydra_stand_in import run_and_report\ndef job(): raise MemoryError('too much')\nrun_and_report(job)\n")
    job = Job("j", "run", "n", (), tmp_path, theirs, Settings(), tmp_path, attempt.job_dir, "c")
    given = attempt_variables(job, BeginAttempt(1, "start", None), AttemptCommand((), {}), "rank")
    done = attempt.run(str(script), env=attempt.bare | theirs | given)
    assert done.returncode == 1
    assert [error.exc_type for error in attempt.errors().errors] == seen


@pytest.mark.parametrize(
    ("code", "peer"),
    [
        ("import urllib.request\nurllib.request.urlopen('http://127.0.0.1:{port}/score?key=secret')", "127.0.0.1:{port}"),
        ("import socket\nsocket.create_connection(('127.0.0.1', {port}))", "127.0.0.1:{port}"),
        ("class E(Exception): url = 'https://me:secret@hub.example/api'\nraise E", "hub.example:443"),
        ("class R: url = 'http://10.0.0.7:8000/x'\nclass E(Exception): response = R\nraise E", "10.0.0.7:8000"),
        ("class E(Exception): url = 'http://a:1'\ntry:\n  raise E\nexcept E as error:\n  raise ValueError from error", "a:1"),
        ("raise ValueError('http://127.0.0.1:1/x')", ""),
    ],
)
def test_the_connection_that_an_exception_is_about_is_written_down_without_path_and_secrets(attempt: Attempt, code: str, peer: str) -> None:
    with socket.socket() as bound:  # and nobody listens there
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        attempt.run("-c", code.replace("{port}", str(port)))
    (error,) = attempt.errors().errors
    assert error.peer == peer.replace("{port}", str(port))
