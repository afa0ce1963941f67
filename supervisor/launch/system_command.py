"""Asks a program of the machine's (nvidia-smi, scontrol, systemctl) under a deadline, and ends it with us.

A driver that is broken, or a controller that is down, holds such a program for minutes or for ever. It runs in a process group of its
own, which is killed at the deadline and at our own end. Only a program in uninterruptible sleep outlives that.
"""

from __future__ import annotations

import atexit
import subprocess
import threading
from typing import TYPE_CHECKING, Final

from health.probing.process_groups import kill_group
from supervisor.core.values import Struct
from supervisor.guardian import ownership

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST_BYTES: Final = 1 << 20
_START_S: Final = 0.5  # how long a caller that gives up waits for a start that is under way
_NOT_RUN: Final = 127  # as a shell reports it
#: For an answer of Slurm's controller.
SCONTROL_S: Final = 10.0


class SystemCommandResult(Struct, frozen=True):
    """The output of a program, and its exit code; 127 and nothing where it could not be run."""

    text: str
    code: int


def run_system_command(
    argv: Sequence[str], deadline_s: float, environ: Mapping[str, str] | None = None, *, with_errors: bool = False
) -> SystemCommandResult | None:
    """Return what a program answers, None where it does not end within the deadline.

    environ: its own, by default this process's; PATH counts. with_errors: its standard error is a part of its answer.
    """
    answers: list[SystemCommandResult] = []
    running: list[subprocess.Popen[bytes]] = []
    given_up = threading.Event()
    starting = threading.Lock()  # so that the end of all commands does not miss one that is just being started

    def run() -> None:
        with starting:
            if given_up.is_set():
                return
            try:
                process = ownership.started(
                    lambda: subprocess.Popen(  # noqa: S603 -- no shell, and nothing of a stranger's in it
                        argv,
                        env=None if environ is None else dict(environ),
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT if with_errors else subprocess.DEVNULL,
                        start_new_session=True,
                    )
                )
            except OSError:
                return
            running.append(process)
        assert process.stdout is not None  # noqa: S101 -- a pipe was asked for
        with process.stdout as out:
            text = out.read(_MOST_BYTES).decode("utf-8", "replace")
        answers.append(SystemCommandResult(text, process.wait()))

    def kill() -> None:
        given_up.set()
        started = starting.acquire(timeout=_START_S)
        for process in running:
            kill_group(process)  # it may be a wrapper's child that hangs
        if started:
            starting.release()

    thread = threading.Thread(target=run, name=argv[0], daemon=True)  # its wait may never end: a process in D state ignores KILL
    try:
        atexit.register(kill)  # we may end before the deadline is
        thread.start()
    except RuntimeError:  # no thread can be started, or the interpreter is ending
        atexit.unregister(kill)
        return SystemCommandResult("", _NOT_RUN)
    thread.join(deadline_s)
    answered = not thread.is_alive()
    if not answered:
        kill()
    atexit.unregister(kill)
    return (answers[0] if answers else SystemCommandResult("", _NOT_RUN)) if answered else None


def scontrol(*words: str, with_errors: bool = False) -> SystemCommandResult | None:
    """Return what Slurm's controller answers, None where it does not within SCONTROL_S. with_errors: as run_system_command has it."""
    return run_system_command(("scontrol", *words), SCONTROL_S, with_errors=with_errors)
