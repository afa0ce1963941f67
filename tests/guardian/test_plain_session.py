"""A stop before the guardian has reported that the command runs: it gets the signal of the person, and its time to save."""

# ruff: noqa: D102  the stand-in's methods say it by their names

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from supervisor.config.settings import Settings
from supervisor.core.actions import BeginAttempt, StopRanks
from supervisor.core.events import AttemptEnded
from supervisor.core.state import Attempt, JobState, Run, Stage, StopRequest
from supervisor.guardian.messages import EVENTS
from supervisor.knobs.knob_set import AttemptCommand
from supervisor.launch.plain_session import PlainSession
from supervisor.launch.session import SessionContext
from tests.guardian.conftest import Side, until
from tests.support.few import few
from tests.support.idle_job import make_job

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process

SAVES = """
import signal, sys, time
from pathlib import Path
def save(signum, frame):
    time.sleep(0.3)  # longer than it takes to kill it
    Path("saved").write_text(str(signum))
    sys.exit(1)
for signum in (signal.SIGINT, signal.SIGTERM):
    signal.signal(signum, save)
Path("ready").touch()
time.sleep(60)
"""


class Loop:
    """A session and a real guardian, whose messages arrive when the test delivers them. The loop is the test."""

    def __init__(self, directory: Path, guardian: Side) -> None:
        self.events: list[Any] = []
        self.state = JobState(stage=Stage.STARTING, attempt=Attempt(number=1))
        self.clock, self._guardian = self, guardian
        nothing = cast("Any", self)
        context = SessionContext(
            loop=nothing,
            guardian=lambda: nothing,
            job=make_job(directory, Settings(), sys.executable, "train.py"),
            last_sample=lambda: None,
            ended=lambda: None,
            fall_back=self.events.append,
            note=lambda *_: None,
            left=lambda *_: None,
            standbys=nothing,
            nodes=nothing,
        )
        self.session = PlainSession(context, lambda argv, _nproc: argv, "off")

    def now(self) -> float:
        return 0.0

    def at_monotonic_ns(self, _ns: int) -> float:
        return 0.0

    def post(self, event: object) -> None:
        self.events.append(event)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        """The grace does not end in these tests."""

    def spawn(self, **command: object) -> None:
        self._guardian.call("spawn", **command)

    def signal(self, signum: int, to: str) -> None:
        self._guardian.call("signal", signum, to=to)

    def end(self, scope: str, *, grace_s: float, signum: int) -> None:
        self._guardian.call("end", scope, grace_s=grace_s, signum=signum)

    def stop(self, signum: int) -> None:
        self.state = JobState(stage=Stage.STOPPING, attempt=Attempt(number=1), run=Run(stop=StopRequest(signum, 1, 0.0)))
        self.session.stop(StopRanks(1, signum, 30.0, "stop"))

    def deliver_until(self, kind: str) -> None:
        """Deliver what the guardian reports of a command, in its order, up to this."""
        message: dict[str, Any] = {}
        while message.get("ev") != kind:
            message = self._guardian.wait(f"spawned spawn_failed exited {kind}")
            self.session.on_guardian(msgspec.convert(message, EVENTS[message["ev"]]))

    def deliver(self, *kinds: str) -> None:
        for kind in kinds:
            self.session.on_guardian(msgspec.convert(self._guardian.wait(kind), EVENTS[kind]))


@pytest.mark.parametrize("signum", few([2, 15]))
def test_a_stop_before_the_start_was_reported_is_the_persons_signal_and_lets_the_command_save(
    side: Callable[..., Side], tmp_path: Path, signum: int
) -> None:
    loop = Loop(tmp_path, side())
    (tmp_path / "train.py").write_text(SAVES)
    loop.session.begin(BeginAttempt(1, "start", None), AttemptCommand((sys.executable, "train.py"), {}))
    until((tmp_path / "ready").exists)
    loop.stop(signum)
    until((tmp_path / "saved").exists)
    loop.deliver("spawned", "exited", "ended")
    assert (tmp_path / "saved").read_text() == str(signum)
    assert [event.outcome for event in loop.events if isinstance(event, AttemptEnded)] == ["stopped"]


def test_a_stop_while_a_command_fails_to_start_ends_the_attempt(side: Callable[..., Side], tmp_path: Path) -> None:
    loop = Loop(tmp_path, side())
    loop.session.begin(BeginAttempt(1, "start", None), AttemptCommand((str(tmp_path / "not there"),), {}))
    loop.stop(15)
    loop.deliver_until("ended")  # spawn_failed before it; or spawned and exited, where the signal came before the exec failed
    assert [event.outcome for event in loop.events if isinstance(event, AttemptEnded)] == ["stopped"]
