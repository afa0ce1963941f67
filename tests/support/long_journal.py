"""A journal as the supervisor's writer makes it of a job that trains for months: progress a minute, saves, incidents, eight nodes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.machine import decide
from supervisor.core.model import CheckpointRef, Evidence, Phase, Policy, RankExit, RankInfo
from supervisor.core.values import replace
from supervisor.job import identity
from supervisor.journal import writer
from supervisor.journal.records import MIRRORED, START_TIMES, Note, RunBegan, RunEnded
from supervisor.view.keeping import EVERY_S
from supervisor.view.opening import open_journal

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from supervisor.core.events import Event

T0 = 1_790_000_000.0
DAY_S = 86_400.0
_PENDING_BYTES = 4 << 20
_NODES = tuple(f"gpu-node-{number:02d}.cluster.example/{number:016x}" for number in range(8))
_RANKS = tuple(RankInfo(rank, rank, 4_000 + rank, 700 + rank) for rank in range(8))
_TRACEBACK = 'Traceback (most recent call last):\n  File "/home/user/train.py", line 412, in <module>\n    main()\n' + "".join(
    f'  File "/home/user/model/layer_{number}.py", line {100 + number}, in forward\n    return self.inner(x)\n' for number in range(10)
)


class NobodyListens:
    """A listener that needs the disk to work."""

    def journal_synced(self, seq: int) -> None:
        """Do nothing."""

    def journal_degraded(self, text: str) -> None:
        """Fail: a test's disk has to work."""
        raise AssertionError(text)

    def journal_recovered(self) -> None:
        """Do nothing."""


class LongJob:
    """A job that is recorded. Its time is that of its events. supervisor: pid and start of the process that runs it."""

    def __init__(
        self,
        path: Path,
        node: str,
        monkeypatch: pytest.MonkeyPatch,
        *,
        view_every_s: float = EVERY_S,
        supervisor: tuple[int, int] = (1, 1),
    ) -> None:
        self.path, self.t, self.step = path, T0, 0
        monkeypatch.setattr(writer, "wall_clock", lambda: self.t)  # as a supervisor's own, which runs with it
        self.journal, past = open_journal(path, job="months", node=node, listener=NobodyListens(), view_every_s=view_every_s)
        self.state = past.state
        self.timers: list[act.SetTimer] = []
        pid, start_ticks = supervisor
        owner = {"pid": pid, "start_ticks": start_ticks, "boot_id": identity.boot_id()}
        self.journal.append(RunBegan("run-1", ("python", "train.py"), "digest", **owner), t=self.t, durable=True)  # type: ignore[arg-type]
        self.feed(events.SupervisorStarted(self.t, "run-1", Policy(checkpoints_declared=True), continues=False))
        self.feed(events.CheckpointSelected(self.t, self.state.attempt.number, None, 0))
        self._start()

    def feed(self, event: Event) -> None:
        """Decide and record as the supervisor does."""
        self.state, actions = decide(self.state, event)
        self.timers += [action for action in actions if isinstance(action, act.SetTimer)]
        with_nodes = replace(self.state, attempt=replace(self.state.attempt, members=_NODES, me=_NODES[0]))  # they met
        self.journal.record(event, actions, with_nodes, durable=bool(actions))
        while self.journal.health().pending_bytes > _PENDING_BYTES:
            time.sleep(0.001)

    def _start(self) -> None:
        self.t += 60.0
        self.feed(events.AttemptStarted(self.t, self.state.attempt.number, _RANKS, 64))
        self.t += 90.0
        self.begun_at = self.step
        self._report(1)

    def _report(self, steps: int) -> None:
        self.step += steps
        at = self.state.attempt.number
        loss = round(2.0 + 1.0 / (1 + self.step / 3e5), 6)  # as many digits as the sampler posts
        seen, total = self.step - self.begun_at, 20_000_000
        self.feed(events.ProgressObserved(self.t, at, self.step, seen, Phase.TRAIN, first_step=self.begun_at, loss=loss, total=total))

    def train(self, minutes: int) -> None:
        """Let it make 138 steps a minute, with a report each, and a save every hour."""
        for _ in range(minutes):
            self.t += 60.000123
            self._report(138)
            if int((self.t - T0) / 3600) > int((self.t - 60.000123 - T0) / 3600):
                reference = CheckpointRef(f"/data/checkpoints/run-1/step_{self.step:09d}", self.step, "full")
                self.feed(events.CheckpointVerified(self.t, self.state.attempt.number, reference, self.state.attempt.number))
                note = Note(MIRRORED, "s3://bucket/jobs", {"path": reference.path, "step": self.step})
                self.journal.append(note, t=self.t)

    def fail(self) -> None:
        """Let a rank die, the others be stopped, and the job resume from its newest checkpoint; the fifth minute after is as before."""
        at, verified = self.state.attempt.number, self.state.run.newest
        for place, rank in enumerate((3, 0, 1, 2, 4, 5, 6, 7)):
            self.feed(events.RankExited(self.t + place / 10, at, RankExit(rank, 4_000 + rank, 10, signal=9 if rank == 3 else 15)))
        self.t += 3.0
        self.feed(events.AttemptEnded(self.t, at, "failed"))
        facts = [Evidence("exit", "signal", "9", 3, self.t), Evidence("log", "traceback", _TRACEBACK, 3, self.t, free_text=True)]
        facts += [Evidence("heartbeat", "phase", "train", rank) for rank in range(8)]
        incident = self.state.run.incident.number if self.state.run.incident else 0
        self.feed(events.EvidenceCollected(self.t, at, incident, tuple(facts), 0.5))
        for timer in [timer for timer in self.timers if timer.name == "backoff"][-1:]:
            self.t += 5.0
            self.feed(events.TimerFired(self.t, timer.name, timer.token))
        self.timers.clear()
        self.feed(events.CheckpointSelected(self.t, self.state.attempt.number, verified, 20))
        self.step = verified.step if verified is not None and verified.step is not None else 0
        self._start()
        parts = {"detect": 0.2, "teardown": 3.0, "evidence": 1.5, "backoff": 5.0, "import": 20.0, "load": 60.0}
        data = {"attempt": self.state.attempt.number, "after": "failure", "total_s": sum(parts.values()), "parts": parts, "trained": True}
        self.journal.append(Note(START_TIMES, data=data), t=self.t)

    def close(self) -> int:
        """Write all; return the bytes of the file."""
        assert self.journal.close(600)
        return self.path.stat().st_size

    def end(self) -> None:
        """Let the run end well."""
        self.feed(events.AttemptEnded(self.t, self.state.attempt.number, "succeeded"))
        self.journal.append(RunEnded(0, "done"), t=self.t, durable=True)


def write_months(  # noqa: PLR0913  as LongJob
    path: Path,
    node: str,
    monkeypatch: pytest.MonkeyPatch,
    days: float,
    *,
    view_every_s: float = EVERY_S,
    supervisor: tuple[int, int] | None = None,
) -> int:
    """Write the journal of a job of so many days, three incidents in each; return its bytes. supervisor: it runs on; None: it ends well."""
    job = LongJob(path, node, monkeypatch, view_every_s=view_every_s, supervisor=supervisor or (1, 1))
    until = T0 + days * DAY_S
    while job.t < until:
        job.train(min(480, max(1, int((until - job.t) / 60))))
        if job.t < until:
            job.fail()
    if supervisor is None:
        job.end()
    return job.close()
