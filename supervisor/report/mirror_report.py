"""Reports the mirror to people: few lines, one alert when trouble begins and one when it is over.

Trouble of the mirror is never the job's: nothing in here reaches the core. Loop's thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from supervisor.core import actions as act
from supervisor.journal.records import MIRRORED, Note
from supervisor.report.log_events import LogEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkpointing.mirror.messages import MirrorEvent
    from supervisor.report.event_log import EventLog
    from supervisor.report.reporter import Reporter

#: A checkpoint that waits longer while nothing moves is alerted, unless the reason was reported already.
STALLED_S: Final = 600.0
_HOLDS_UP: Final = frozenset({"stalled", "away", "damaged", "expired", "clock", "denied", "disk", "held", "process"})


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

    def took(self, event: MirrorEvent) -> None:
        """Take an event."""
        name = event["ev"]
        if name not in {"progress", "idle"}:
            fields = {key: value for key, value in event.items() if key not in {"ev", "bytes"}}
            self._log.write(LogEvent.MIRROR_REPORTED, None if name in {"alert", "died"} else "info", what=name, **_renamed(fields))
        if event["ev"] == "uploaded" and event["key"]:
            self._record(Note(MIRRORED, event["mirror"], {"path": event["path"], "step": event["step"]}))
        if event["ev"] == "alert" and (event["what"], event["mirror"]) not in self._troubled:
            self._troubled.add((event["what"], event["mirror"]))
            hint = f" ({event['hint']})" if event["hint"] else ""
            self._alert("mirror_failing", f"{event['message']}{hint}; the training goes on")
        elif event["ev"] == "recovered":
            what, mirror = event["what"], event["mirror"]
            self._troubled.discard((what, mirror))
            whose = f"the mirror {mirror} gets" if mirror else "the mirrors get"
            again = f"old checkpoints in the mirror {mirror} are removed again" if what == "tidy" else f"{whose} checkpoints again"
            self._alert("mirror_recovered", again)
        elif event["ev"] == "died":
            self._deaths += 1
            if self._deaths == 1:
                last_line = f" ({event['last_line']})" if event["last_line"] else ""
                again = "and is started again; the training goes on"
                self._alert("mirror_failing", f"the mirror's process ended with {event['code']}{last_line} {again}")

    def waited(self, seconds: float) -> None:
        """Take how long a checkpoint has waited while no upload moved. Whatever the reason is, somebody must hear of it."""
        stalled = ("stalled", "")
        if seconds < STALLED_S:
            if stalled in self._troubled:
                self.took({"ev": "recovered", "what": "stalled", "mirror": ""})
        elif not any(what in _HOLDS_UP for what, _ in self._troubled):
            message = f"a verified checkpoint has waited for {seconds / 60:.0f} minutes to be uploaded, and no byte is sent"
            self.took(
                {
                    "ev": "alert",
                    "what": "stalled",
                    "mirror": "",
                    "message": message,
                    "hint": "see the events mirror.reported in supervise.log",
                }
            )

    def ended(self, path: str, more: str, node: str) -> None:
        """Take that the run is done, and which of its saves no mirror has. more: " and 2 more" or ""."""
        text = f"the run is done, and no mirror has {path}{more}, only {node}: the job's next start sends it"
        self._alert("only_here", text, path.rpartition("/")[2])

    def _alert(self, kind: str, text: str, subject: str = "") -> None:
        self._reporter.alerted(act.Alert(kind, self._attempt(), text, subject))


def _renamed(fields: dict[str, Any]) -> dict[str, Any]:
    """What the log's own fields are called by stays theirs."""
    return {f"mirror_{key}" if key in {"what", "event", "level", "t"} else key: value for key, value in fields.items()}
