"""Knows from the events for how long a run has had no checkpoint, and whether its training is healthy. Without IO.

Every method takes the time of the job's clock, and the state of the core where it needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisor.core import events
from supervisor.core.model import Phase
from supervisor.core.state import Stage

if TYPE_CHECKING:
    from supervisor.core.events import Event
    from supervisor.core.state import JobState


@dataclass(slots=True)
class Vitals:
    """The progress of one run, as this supervisor saw it. Seconds on the job's clock; None: not yet.

    expects_checkpoints: a location is declared, or a checkpoint was verified.
    """

    expects_checkpoints: bool
    steps: tuple[int, int | None, int] = (0, None, 0)  # attempt, step, steps seen
    step_t: float | None = None
    checkpoint_t: float | None = None  # of the newest one, else when the training began
    instrumented: bool = False
    training: bool = False

    def took(self, event: Event) -> None:
        """Note an event that the core took."""
        if isinstance(event, events.CheckpointVerified):
            self.checkpoint_t, self.expects_checkpoints = event.t, True
        elif isinstance(event, events.AttemptStarted):
            self.step_t, self.training = event.t, False
        elif isinstance(event, events.ProgressObserved):
            self._progressed(event)

    def _progressed(self, event: events.ProgressObserved) -> None:
        self.instrumented = event.steps_seen >= 0
        self.training = self.training or event.trains
        at = event.attempt, event.step, event.steps_seen
        if at != self.steps or event.phase is not Phase.TRAIN:  # a save or an evaluation takes as long as it takes
            self.steps, self.step_t = at, event.t
        if self.training and self.checkpoint_t is None:
            self.checkpoint_t = event.t

    def without_checkpoint_s(self, state: JobState, now: float) -> float:
        """Return for how long the training has run without a new checkpoint; 0 where none is expected or nothing trains."""
        if not self.expects_checkpoints or not self.training or self.checkpoint_t is None or state.stage is not Stage.RUNNING:
            return 0.0
        return now - self.checkpoint_t

    def is_healthy(self, state: JobState, now: float, stall_s: float) -> bool:
        """Whether the job runs, no incident is open, and it has made a step (if steps are seen) within `stall_s`."""
        if state.stage is not Stage.RUNNING or state.run.incident is not None:
            return False
        return not self.instrumented or self.step_t is None or now - self.step_t < stall_s
