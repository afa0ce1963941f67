"""What an attempt does until its first step is shown: at a terminal each phase, elsewhere what lasts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from supervisor.core import events
from supervisor.core.actions import BeginAttempt, OpenIncident
from supervisor.core.model import CheckpointRef, Launcher, Phase, Policy
from supervisor.report.start_lines import StartLines


@dataclass
class Screen:
    """What is printed, at a terminal or elsewhere, and the clock on the wall."""

    is_a_tty: bool
    t: float = 0.0
    lines: list[str] = field(default_factory=list)

    def now(self) -> float:
        """Return the time of the clock."""
        return self.t

    def message(self, text: str) -> None:
        """See TerminalWriter."""
        self.lines.append(text)

    def waiting(self, text: str) -> None:
        """See TerminalWriter."""
        if self.is_a_tty:
            self.lines.append(text)

    def printed(self) -> list[str]:
        """Return the lines since the last call."""
        lines, self.lines = self.lines, []
        return lines


def start(screen: Screen, launcher: Launcher = Launcher.ELASTIC, resume: CheckpointRef | None = None) -> StartLines:
    """Return the lines of a run whose second attempt is ordered."""
    both: Any = screen
    lines = StartLines(both, both)
    lines.took(events.SupervisorStarted(0.0, "run", Policy(launcher=launcher), continues=False, command_digest=""))
    lines.ordered(BeginAttempt(2, "failure", resume))
    return lines


def at(phase: Phase, steps: int = 0, attempt: int = 2) -> events.ProgressObserved:
    return events.ProgressObserved(1.0, attempt, None, steps, phase)


def test_at_a_terminal_each_phase_of_the_start_is_a_line() -> None:
    screen = Screen(is_a_tty=True)
    lines = start(screen, resume=CheckpointRef("/data/ckpt/step-40.pt", 40, ""))
    assert screen.printed() == ["starting attempt 2: importing torch …"]
    lines.took(at(Phase.IMPORT))
    assert screen.printed() == []  # it was said
    screen.t = 4.2
    for phase in (Phase.INIT, Phase.INIT, Phase.LOAD, Phase.INIT):
        lines.took(at(phase))
        screen.t += 2
    assert screen.printed() == [
        "starting attempt 2: setting up the process group, the model and the data … (4 s)",
        "starting attempt 2: loading step-40.pt … (8 s)",
        "starting attempt 2: making the first step … (10 s)",
    ]
    lines.took(at(Phase.TRAIN, steps=1))
    screen.t = 1000.0
    lines.tick()
    assert screen.printed() == []  # how it began is another line


def test_a_lasting_phase_is_reported_in_a_pipe_too_at_growing_intervals() -> None:
    screen = Screen(is_a_tty=False)
    lines = start(screen)
    lines.took(at(Phase.IMPORT))
    lines.took(at(Phase.INIT))
    for screen.t in range(601):
        lines.tick()
    assert screen.printed() == [
        f"starting attempt 2: setting up the process group, the model and the data … ({took_s} s)" for took_s in (30, 90, 210, 450)
    ]


@pytest.mark.parametrize(("decided_s", "lines"), [(0.9, 0), (1.5, 1)])
def test_a_slow_end_is_reported_until_the_decision(decided_s: float, lines: int) -> None:
    screen = Screen(is_a_tty=True)
    start_lines = start(screen)
    screen.printed()
    start_lines.failed(OpenIncident(1, 2, 1, "rank 1 exited with code 1"))
    for screen.t in (0.5, decided_s):
        start_lines.tick()
    start_lines.decided()
    screen.t = 5.0
    start_lines.tick()
    text = "attempt 2: rank 1 exited with code 1; ending its ranks and collecting the evidence …"
    assert screen.printed() == [text] * lines


@pytest.mark.parametrize(
    "over",
    [
        at(Phase.TRAIN, steps=1),
        at(Phase.UNKNOWN),  # no hook shows whether it trains by now
        events.AttemptEnded(1.0, 2, "failed"),
        events.StopRequested(1.0, 15, None),
    ],
    ids=["it trains", "unknown", "it ended", "it is stopped"],
)
def test_a_start_that_is_over_is_not_reported(over: events.Event) -> None:
    screen = Screen(is_a_tty=True)
    lines = start(screen)
    screen.printed()
    lines.took(over)
    lines.took(at(Phase.INIT))
    screen.t = 1000.0
    lines.tick()
    assert screen.printed() == []


def test_the_start_of_a_plain_command_shows_only_what_its_ranks_report() -> None:
    screen = Screen(is_a_tty=True)
    lines = start(screen, Launcher.PLAIN)
    screen.t = 100.0
    lines.tick()
    assert screen.printed() == []
    lines.took(at(Phase.IMPORT, attempt=1))
    assert screen.printed() == []  # of the attempt before
    lines.took(at(Phase.IMPORT))
    lines.took(at(Phase.LOAD))
    assert screen.printed() == [f"starting attempt 2: {doing} … (100 s)" for doing in ("importing its modules", "loading the checkpoint")]
