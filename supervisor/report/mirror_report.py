"""Reports the mirror to people: few lines, one alert when trouble begins and one when it is over.

Trouble of the mirror is never the job's: nothing in here reaches the core. Loop's thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from checkpointing.reader.messages import CheckpointUploaded, MirrorAlert, MirrorRecovered, ReaderDied, UploadProgress
from supervisor.core import actions as act
from supervisor.journal.records import MIRRORED, Note
from supervisor.report.log_events import LogEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkpointing.reader.messages import ReaderEvent
    from supervisor.report.event_log import EventLog
    from supervisor.report.reporter import Reporter

#: A checkpoint that waits longer while nothing moves is alerted, unless the reason was reported already.
STALLED_S: Final = 600.0
_HOLDS_UP: Final = frozenset({"stalled", "away", "damaged", "expired", "clock", "denied", "disk", "internal", "held", "process"})


class MirrorReport:
    """The news of one run."""

    def __init__(self, reporter: Reporter, log: EventLog, attempt: Callable[[], int], record: Callable[[Note], None]) -> None:
        """`attempt` gives the number of the current one. `record` takes what `status` shows, for the journal."""
        self._record = record
        self._reporter = reporter
        self._log = log
        self._attempt = attempt
        self._troubled: set[tuple[str, str]] = set()
        self._deaths = 0

    @property
    def is_failing(self) -> bool:
        """Whether a trouble was reported that is not over."""
        return bool(self._troubled)

    def took(self, event: ReaderEvent) -> None:
        """Take an event."""
        if not isinstance(event, UploadProgress):
            row = msgspec.to_builtins(event)
            fields = {name: value for name, value in row.items() if name not in {"ev", "bytes"} and value not in {"", None}}
            is_trouble = isinstance(event, MirrorAlert | ReaderDied)
            self._log.write(LogEvent.MIRROR_REPORTED, None if is_trouble else "info", what=row["ev"], **_renamed(fields))
        match event:
            case CheckpointUploaded() if event.key:
                self._record(Note(MIRRORED, event.mirror, {"path": event.path, "step": event.step}))
            case MirrorAlert() if (event.what, event.mirror) not in self._troubled:
                self._troubled.add((event.what, event.mirror))
                hint = f" ({event.hint})" if event.hint else ""
                self._alert("mirror_failing", f"{event.message}{hint}; the training continues")
            case MirrorRecovered():
                self._troubled.discard((event.what, event.mirror))
                whose = f"the mirror {event.mirror} gets" if event.mirror else "the mirrors get"
                tidied = f"old checkpoints in the mirror {event.mirror} are removed again"
                self._alert("mirror_recovered", tidied if event.what == "tidy" else f"{whose} checkpoints again")
            case ReaderDied():
                self._deaths += 1
                if self._deaths == 1:
                    self._alert("mirror_failing", f"{death_text(event)}; the training continues")
            case _:
                pass

    def waited(self, seconds: float) -> None:
        """Take how long a checkpoint has waited while no upload moved. Whatever the reason is, somebody must hear of it."""
        stalled = ("stalled", "")
        if seconds < STALLED_S:
            if stalled in self._troubled:
                self.took(MirrorRecovered("", "stalled"))
        elif not any(trouble in _HOLDS_UP for trouble, _ in self._troubled):
            message = f"a verified checkpoint has waited for {seconds / 60:.0f} minutes to be uploaded, and no byte is sent"
            self.took(MirrorAlert("stalled", "", message, "see the events mirror.reported in supervise.log"))

    def ended(self, path: str, more: str, node: str) -> None:
        """Take that the run is done, and which of its saves no mirror has. more: " and 2 more" or ""."""
        text = f"the run is done, and no mirror has {path}{more}, only {node}: the job's next start sends it"
        self._alert("only_here", text, path.rpartition("/")[2])

    def _alert(self, kind: str, text: str, subject: str = "") -> None:
        self._reporter.alerted(act.Alert(kind, self._attempt(), text, subject))


def death_text(death: ReaderDied) -> str:
    """Say how the reader process ended, and what comes of it."""
    last_line = f" ({death.last_line})" if death.last_line else ""
    return f"the process that reads and uploads checkpoints ended with {death.code}{last_line} and is started again"


def _renamed(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with other names where the log has its own fields of that name."""
    return {f"mirror_{key}" if key in {"what", "event", "level", "t"} else key: value for key, value in fields.items()}
