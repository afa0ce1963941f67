"""Reports the mirror to people: few lines, one alert when trouble begins and one when it is over.

Trouble of the mirror is never the job's: nothing in here reaches the core. Loop's thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from supervisor.core import actions as act
from supervisor.report.log_events import LogEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisor.report.event_log import EventLog
    from supervisor.report.reporter import Reporter

#: Only logged: they are many.
_QUIET = frozenset({"ready", "spooled", "progress", "idle", "stopped", "pruned", "swept", "uploaded"})
#: A checkpoint that waits longer while nothing moves is alerted, unless the reason was reported already.
STALLED_S: Final = 600.0
_HOLDS_UP: Final = frozenset({"stalled", "away", "damaged", "expired", "clock", "denied", "disk", "held", "process"})


class MirrorReport:
    """The news of one run."""

    def __init__(self, reporter: Reporter, log: EventLog, attempt: Callable[[], int]) -> None:
        """`attempt` gives the number of the current one."""
        self._reporter = reporter
        self._log = log
        self._attempt = attempt
        self._troubled: set[tuple[str, str]] = set()
        self._deaths = 0

    def took(self, row: Mapping[str, Any]) -> None:
        """Take a line."""
        event = str(row.get("ev", ""))
        if event not in {"progress", "idle"}:
            fields = {key: value for key, value in row.items() if key not in {"ev", "bytes"}}
            self._log.write(LogEvent.MIRROR_REPORTED, None if event in {"alert", "died"} else "info", what=event, **_renamed(fields))
        if event in _QUIET:
            return
        what, mirror = str(row.get("what", "")), str(row.get("mirror", ""))
        if event == "alert" and (what, mirror) not in self._troubled:
            self._troubled.add((what, mirror))
            hint = f" ({row['hint']})" if row.get("hint") else ""
            self._alert("mirror_failing", f"{row['message']}{hint}; the training goes on")
        elif event == "recovered":
            self._troubled.discard((what, mirror))
            whose = f"the mirror {mirror} gets" if mirror else "the mirrors get"
            again = f"old checkpoints in the mirror {mirror} are removed again" if what == "tidy" else f"{whose} checkpoints again"
            self._alert("mirror_recovered", again)
        elif event == "died":
            self._deaths += 1
            if self._deaths == 1:
                last_line = f" ({row['last_line']})" if row.get("last_line") else ""
                again = "and is started again; the training goes on"
                self._alert("mirror_failing", f"the mirror's process ended with {row['code']}{last_line} {again}")

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

    def _alert(self, kind: str, text: str) -> None:
        self._reporter.alerted(act.Alert(kind, self._attempt(), text))


def _renamed(fields: dict[str, Any]) -> dict[str, Any]:
    """What the log's own fields are called by stays theirs."""
    return {f"mirror_{key}" if key in {"what", "event", "level", "t"} else key: value for key, value in fields.items()}
