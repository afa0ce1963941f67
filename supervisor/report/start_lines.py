"""Prints each phase of a start, from the launch or the failure to the first step: a person sees where the 6 to 25 s go.

At a terminal each phase has a line, and so has the end of an attempt if it takes more than a moment. Elsewhere, and in a phase that lasts,
a line comes after 30 s, and then after twice as long each time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from supervisor.core import events
from supervisor.core.model import BEFORE_FIRST_STEP, Launcher, Phase
from supervisor.report.text import clean

if TYPE_CHECKING:
    from supervisor.core.actions import BeginAttempt, OpenIncident
    from supervisor.core.events import Event
    from supervisor.job.clock import Clock
    from supervisor.report.terminal import TerminalWriter

#: After so long without news a line says that a phase continues.
REMINDER_S: Final = 30.0
#: If an attempt ends within this time, its end has no line.
MOMENT_S: Final = 1.0
_PHASES: Final = {
    Phase.INIT: "setting up the process group, the model and the data",
    Phase.LOAD: "loading the checkpoint",
}
_IMPORTS_TORCH = "importing torch"
_FIRST_STEP = "making the first step"


class StartLines:
    """Follows one attempt at a time, from its order to its first step. Its methods are called on the loop's thread."""

    def __init__(self, clock: Clock, terminal: TerminalWriter) -> None:
        self._clock, self._terminal = clock, terminal
        self._imports = "importing its modules"
        self._attempt, self._begun_t, self._checkpoint = 0, 0.0, ""
        self._is_followed, self._has_loaded = False, False
        self._activity = ""  # as it was last printed
        self._reminder_t, self._pause_s = 0.0, REMINDER_S
        self._failure, self._failed_t = "", 0.0  # of an incident on which nothing is decided yet

    def failed(self, action: OpenIncident) -> None:
        """Note that an incident is open: a decision on it follows."""
        self._failure, self._failed_t = f"attempt {action.attempt}: {clean(action.summary)}", self._clock.now()

    def decided(self) -> None:
        """Note that the decision is there. It has a line of its own."""
        self._failure = ""

    def ordered(self, action: BeginAttempt) -> None:
        """Begin with a new attempt. torchrun imports torch before the ranks do; what else a command imports is not known yet."""
        self._attempt, self._begun_t = action.attempt, self._clock.now()
        self._checkpoint = "" if action.resume is None else action.resume.path.rpartition("/")[2]
        self._is_followed, self._has_loaded, self._activity = True, False, ""
        if self._imports == _IMPORTS_TORCH:
            self._show(self._imports)

    def took(self, event: Event) -> None:
        """Note what an event shows of the attempt."""
        if isinstance(event, events.SupervisorStarted) and event.policy.launcher is not Launcher.PLAIN:
            self._imports = _IMPORTS_TORCH
        elif isinstance(event, events.AttemptEnded | events.StopRequested | events.RankExited):
            self._is_followed = False
        elif isinstance(event, events.ProgressObserved) and self._is_followed and event.attempt == self._attempt:
            self._is_followed = not event.trains and event.phase in BEFORE_FIRST_STEP
            if self._is_followed:
                self._observe(event.phase)

    def tick(self) -> None:
        """Say that an attempt is being ended, or that a phase continues."""
        now = self._clock.now()
        if self._failure and now >= self._failed_t + MOMENT_S:
            self._terminal.waiting(f"{self._failure}; ending its ranks and collecting the evidence …")
            self._failure = ""
        if self._is_followed and self._activity and now >= self._reminder_t:
            self._pause_s *= 2
            self._reminder_t = now + self._pause_s
            self._terminal.message(self._line(now))

    def _observe(self, phase: Phase) -> None:
        self._has_loaded = self._has_loaded or phase is Phase.LOAD
        if phase is Phase.LOAD and self._checkpoint:
            self._show(f"loading {self._checkpoint}")
        elif phase is Phase.INIT and self._has_loaded:
            self._show(_FIRST_STEP)
        else:
            self._show(_PHASES.get(phase, self._imports))

    def _show(self, activity: str) -> None:
        if activity == self._activity:
            return
        self._activity, now = activity, self._clock.now()
        self._reminder_t, self._pause_s = now + REMINDER_S, REMINDER_S
        self._terminal.waiting(self._line(now))

    def _line(self, now: float) -> str:
        took_s = now - self._begun_t
        return f"starting attempt {self._attempt}: {self._activity} …" + (f" ({took_s:.0f} s)" if took_s >= 1 else "")
