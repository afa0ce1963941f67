"""The job in hand: its names, its command, and where its files are. One frozen value, made once at start (supervisor/run/main.py)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from supervisor.config.settings import Settings
from supervisor.core.values import Struct, field
from supervisor.job import identity
from supervisor.knobs.knob_set import KnobSet


class Job(Struct, frozen=True):
    """One run of one job on this node.

    state: the directory of kept files. scratch: the directory of files that may be lost (in memory): heartbeats, error files, stacks.
    environ: the user's, as it was at our start, with what completes torchrun's options. completed: the names of the latter, which ranks do
    not get. cookie: marks this run's processes; it is not proof by itself. knobs: those a plan may set.
    """

    name: str
    run_id: str
    node: str
    command: tuple[str, ...]
    cwd: Path
    environ: Mapping[str, str]
    settings: Settings
    state: Path
    scratch: Path
    cookie: str
    knobs: KnobSet = field(default_factory=KnobSet)
    completed: tuple[str, ...] = ()

    def attempt_dir(self, attempt: int) -> Path:
        """Return where the attempt's ranks write what we read: heartbeat, error files, stacks."""
        return identity.attempt_dir(self.scratch, attempt)

    def log_dir(self, attempt: int) -> str:
        """Return where the attempt's output is kept. The guardian makes it, and continues without it if the disk fails."""
        return str(self.state / "attempts" / f"{attempt:04d}")

    def incident_dir(self, number: int) -> Path:
        """Return (and make) where an incident's card and evidence are kept. Raises OSError."""
        path = identity.incident_dir(self.state, number)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path
