"""Makes the card of the newest decision, and keeps it with the evidence in the incident's files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

from supervisor.job import identity
from supervisor.observe.host import left_locks
from supervisor.observe.processes import core_dumps
from supervisor.report.card import card
from supervisor.report.command_line import NextStart, own_invocation, start_again
from supervisor.report.incident_files import IncidentFiles
from supervisor.report.log_events import LogEvent
from supervisor.report.memory_section import OF_MEMORY
from supervisor.strategies.after_training import NAME as AFTER_TRAINING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from supervisor.core.actions import KeepLook, ReportDecision, ReportResume
    from supervisor.core.events import CheckpointSelected
    from supervisor.core.model import Evidence
    from supervisor.job.job import Job
    from supervisor.report.event_log import EventLog
    from supervisor.report.layout import FactPage


class IncidentCards:
    """The cards of one run. `last`: that of the newest decision, None where its incident is over.

    Its methods are called on the loop's thread, and write nothing themselves: the files have a thread of their own.
    """

    def __init__(self, job: Job, log: EventLog) -> None:
        self.last: FactPage | None = None
        self._job, self._log = job, log
        self._decision: ReportDecision | None = None
        self._failed_t: float | None = None  # the failure time of the last decided attempt
        self._left: tuple[int, tuple[Evidence, ...]] = 0, ()  # the attempt, and its core dumps, locks and holders of memory
        self._stacks: tuple[int, str] = 0, ""  # the attempt, and the file of its newest look
        self._repaired: dict[int, tuple[tuple[str, str], ...]] = {}  # after the last attempt
        self._files = IncidentFiles(lambda file, cause: log.write(LogEvent.LOG_LOST, file=file, error=cause))

    def selected(self, event: CheckpointSelected) -> None:
        """Note the repairs of the job's own checkpoints before the next attempt."""
        self._repaired = {event.attempt: (*self._repaired.get(event.attempt, ()), *event.repaired)}

    def evidence(self, incident: int, attempt: int, facts: Sequence[Evidence]) -> None:
        """Keep all evidence, and for the card the leftovers of the attempt."""
        left = (fact for fact in facts if fact.name in {core_dumps.NAME, left_locks.NAME} or (fact.source, fact.name) in OF_MEMORY)
        self._left = attempt, tuple(left)
        # to_builtins, because asdict leaves a claim as it is
        fields = (msgspec.to_builtins(fact) for fact in facts)
        rows = [{key: value for key, value in row.items() if key == "rank" or value not in (None, 0.0, False)} for row in fields]
        self._log.write(LogEvent.EVIDENCE_COLLECTED, incident=incident, attempt=attempt, facts=len(rows))
        self._write(incident, "evidence.json", json.dumps(rows, indent=1))

    def decided(self, decision: ReportDecision, failed_t: float) -> None:
        """Make the card of a decision. failed_t: when its attempt failed, Unix seconds."""
        self._decision, self._failed_t = decision, failed_t
        self.last = self._card(decision)
        self._write(decision.incident, "card.txt", self.last)

    def resumed(self, decision: ReportDecision, resumed: ReportResume) -> None:
        """Add to the card of a decision how the next attempt began."""
        self._write(resumed.incident, "card.txt", self._card(decision, resumed))

    def ending(self, result: str, begins: str) -> None:
        """Complete the card of a run that ends: with the verified checkpoints once no rank is left, and how the job is started again.

        result: the newest checkpoint in words, "" for none. begins: the checkpoint of the next start. A training that was over is not
        started again: its card names the result.
        """
        decision = self._decision
        if self.last is None or decision is None:
            return
        is_done = decision.plan.strategy == AFTER_TRAINING
        command = start_again(own_invocation(), str(self._job.cwd), decision.plan.options)
        start = None if is_done else NextStart(command, begins)
        self.last = self._card(decision, next_start=start, result=result if is_done else "")
        self._write(decision.incident, "card.txt", self.last)

    def look(self, action: KeepLook, text: str) -> None:
        """Keep the text of a look at the ranks: beside the incident's card, with the attempt's logs where there is none."""
        path = identity.look_path(self._job.state, action.attempt, action.incident)
        self._stacks = action.attempt, str(path)
        if action.incident:
            self._write(action.incident, path.name, text)
        else:
            self._files.write_soon(lambda: _with_directory(path.parent), path.name, text)

    def close(self, deadline_s: float) -> None:
        """Wait a moment for the files before the supervisor ends."""
        self._files.close(deadline_s)

    def _card(
        self, decision: ReportDecision, resumed: ReportResume | None = None, next_start: NextStart | None = None, result: str = ""
    ) -> FactPage:
        job = self._job
        of_attempt, left = self._left
        looked_at, stacks = self._stacks
        return card(
            job.name,
            decision,
            resumed,
            address=job.settings.address(job.name),
            failed_t=self._failed_t,
            next_start=next_start,
            result=result,
            node=job.node,
            state_dir=str(job.state),
            left=left if of_attempt == decision.attempt else (),
            repaired=self._repaired.get(decision.attempt, ()),
            stacks=stacks if looked_at == decision.attempt else "",
        )

    def _write(self, incident: int, name: str, content: str | FactPage) -> None:
        self._files.write_soon(lambda: self._job.incident_dir(incident), name, content)


def _with_directory(directory: Path) -> Path:
    """Make and return the directory. Raises OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory
