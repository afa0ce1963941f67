# ruff: noqa: ANN401  the events are whatever a test feeds
"""The state directory of a job as the supervisor writes it, with a real journal, out of the events that a test feeds."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from supervisor.config.settings import JobSection, Settings
from supervisor.core import actions as act
from supervisor.core import events as core_events
from supervisor.core.machine import decide
from supervisor.core.model import CheckpointRef, Evidence, Phase, Policy, RankExit, RankInfo
from supervisor.job import identity
from supervisor.journal.records import START_TIMES, Note, RunBegan, RunEnded
from supervisor.view.opening import open_journal

if TYPE_CHECKING:
    from pathlib import Path


class SilentListener:
    """A listener that does nothing."""

    def journal_synced(self, seq: int) -> None:
        """Do nothing."""

    def journal_degraded(self, text: str) -> None:
        """Do nothing."""

    def journal_recovered(self) -> None:
        """Do nothing."""


class RecordedJob:
    """A job that was (or is being) supervised: feed it events, look at its files."""

    T0 = 1_790_000_000.0
    RANKS = tuple(RankInfo(rank, rank, 100 + rank, 7) for rank in range(2))

    def __init__(self, root: Path, job: str = "train", node: str = "", *, anew: bool = False) -> None:
        self.job, self.node = job, node or identity.node_name()
        self.settings = replace(Settings(), job=JobSection(state_dir=str(root)))
        self.directory = root / job / "nodes" / self.node
        path = self.directory / "journal.jsonl"
        self.journal, past = open_journal(path, job=job, node=self.node, listener=SilentListener(), continues=lambda _: not anew)
        self.state, self.before = past.state, past.incidents_before
        self.actions: list[act.Action] = []

    def begin(  # noqa: PLR0913 (a run's record)
        self,
        *,
        pid: int = 1,
        start_ticks: int = 1,
        continues: bool = False,
        scratch: str = "",
        checkpoints: bool = True,
        run_id: str = "run-1",
    ) -> None:
        """Begin a run. The default pid is that of a process which never was its supervisor: it is gone."""
        boot = identity.this_process().boot_id
        run = RunBegan(
            run_id,
            ("train.py",),
            "d",
            "0",
            pid,
            start_ticks,
            boot,
            scratch,
            continues,
            self.before,
            ("supervise", "--", "train.py"),
            "/data",
        )
        self.journal.append(run, t=self.T0, durable=True)
        self.feed(core_events.SupervisorStarted(self.T0, run_id, Policy(checkpoints_declared=checkpoints), continues))
        if checkpoints and not continues:
            self.feed(core_events.CheckpointSelected(self.T0, self.state.attempt.number, None, 0))

    def feed(self, *events: Any) -> None:
        """Decide and record."""
        for event in events:
            self.state, taken = decide(self.state, event)
            self.actions += taken
            self.journal.record(event, taken, self.state, durable=False)

    def start(self, at: float) -> None:
        """Start the ranks of the attempt that was ordered."""
        self.feed(core_events.AttemptStarted(self.T0 + at, self.state.attempt.number, self.RANKS, 2))

    def progress(self, at: float, steps: int, *, step: int | None = None) -> None:
        """Let the ranks make steps."""
        self.feed(core_events.ProgressObserved(self.T0 + at, self.state.attempt.number, step, steps, Phase.TRAIN))

    def verify(self, path: str, step: int, at: float) -> None:
        """Let a checkpoint of this attempt be verified."""
        number = self.state.attempt.number
        self.feed(core_events.CheckpointVerified(self.T0 + at, number, CheckpointRef(path, step, "structure"), made_in=number))

    def fail(self, at: float, *facts: Evidence) -> None:
        """Let rank 1 die of signal 9, its peer be stopped, and the evidence be collected."""
        n = self.state.attempt.number
        self.feed(
            core_events.RankExited(self.T0 + at, n, RankExit(1, 101, 10, signal=9)),
            core_events.RankExited(self.T0 + at + 0.5, n, RankExit(0, 100, 20, signal=15)),
            core_events.AttemptEnded(self.T0 + at + 2, n, "failed"),
        )
        evidence = (Evidence("exit", "signal", "9", 1, self.T0 + at), Evidence("heartbeat", "phase", "train", 1), *facts)
        incident = self.state.run.incident.number if self.state.run.incident else 0
        self.feed(core_events.EvidenceCollected(self.T0 + at + 2, n, incident, evidence, 0.5))

    def give_up(self, at: float) -> None:
        """Let rank 1 fail at an import, which no restart would help, and the run end."""
        n = self.state.attempt.number
        self.feed(
            core_events.RankExited(self.T0 + at, n, RankExit(1, 101, 10, code=1)), core_events.AttemptEnded(self.T0 + at + 1, n, "failed")
        )
        beats = (
            Evidence("heartbeat", "phase", "import", 1),
            Evidence("heartbeat", "torch", "loaded", 1),
            Evidence("heartbeat", "steps", "0", 1),
        )
        facts = (Evidence("error_file", "exception", "ImportError: no luck", 1), Evidence("exit", "exit_code", "1", 1), *beats)
        self.feed(core_events.EvidenceCollected(self.T0 + at + 1, n, self.state.incidents, facts, 0.1))
        assert self.state.run.exit_code is not None
        self.end(self.state.run.exit_code)

    def restart(self, at: float, path: str = "ckpt/3.pt", torn: tuple[tuple[str, str], ...] = ()) -> None:
        """Begin again, and make the first step."""
        self.again(at, path, torn)
        self.feed(core_events.ProgressObserved(self.T0 + at + 4, self.state.attempt.number, 4, 1, Phase.TRAIN, path))
        self.time_start({"detect": 0.004, "teardown": 2.0, "import": 1.25})

    def time_start(self, parts: dict[str, float], after: str = "failure") -> None:
        """Note where the time of the newest start of the ranks went."""
        data = {"attempt": self.state.attempt.number, "after": after, "total_s": sum(parts.values()), "parts": parts}
        self.journal.append(Note(START_TIMES, data=data), t=self.T0)

    def again(
        self, at: float, path: str = "ckpt/3.pt", torn: tuple[tuple[str, str], ...] = (), repaired: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Let the backoff pass, choose a checkpoint and start."""
        for timer in [a for a in self.actions if isinstance(a, act.SetTimer) and a.name == "backoff"][-1:]:
            self.feed(core_events.TimerFired(self.T0 + at, timer.name, timer.token))
        self.feed(
            core_events.CheckpointSelected(
                self.T0 + at, self.state.attempt.number, CheckpointRef(path, 3, "structure"), 2, torn, repaired=repaired
            )
        )
        self.start(at + 1)

    def succeed(self, at: float) -> None:
        """Let the attempt end well, and the run with it."""
        self.feed(core_events.AttemptEnded(self.T0 + at, self.state.attempt.number, "succeeded"))
        self.end(0)

    def end(self, code: int, at: float | None = None) -> None:
        """Write the end record, now or so many seconds after T0."""
        self.journal.append(RunEnded(code), t=time.time() if at is None else self.T0 + at, durable=True)
        self.close()

    def close(self) -> None:
        """Bring it to the disk, as a supervisor's death would leave it."""
        assert self.journal.close(10)

    def log(self, attempt: int, name: str, data: bytes) -> Path:
        """Add to a captured file."""
        path = self.directory / "attempts" / f"{attempt:04d}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
        return path
