"""The ledger of a node: which of its GPUs are out of use, or that it is excluded as a whole, why, and since when.

It outlives runs, restarts of the supervisor, and requeues. Each state directory has one ledger for each host, which all jobs of that
directory share. The file is the only state:

    <state_dir>/.gpus/<hostname>.jsonl         (a job's name never begins with a dot)
    {"v": 1, "uuid", "pci", "reason", "evidence", "t", "job", "run", "boot", "errors"}    a GPU is out of use from t (wall seconds) on
    {"v": 1, "cleared": UUID | "all", "t", "by"}                                          and is not any more (by: person, health)
    {"v": 1, "excluded": REASON, "t", "by"}         no job of this directory begins on the node from t on
    {"v": 1, "allowed": true, "t", "by"}            and they may again

`boot` (the node's boot id) and `errors` (uncorrectable memory errors since the GPU's last reset, -1: unknown) show whether the GPU was
reset since: either differs then. A row without them ends when it expires (QUARANTINE_DAYS), or when a person clears it.
An exclusion ends when a person allows the node.

Lines are only appended, each in one write, and are durable before `quarantine` and `clear` return: several supervisors of one host may
write at once. Readers skip a torn line and one of another form. A ledger that cannot be read quarantines no GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any, Final

import msgspec

from checkpointing.io import durable, typed
from supervisor.classify import redact
from supervisor.core.values import Struct, asdict
from supervisor.job import identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from health.model import Readings

ALL: Final = "all"
_VERSION: Final = 1
#: How long a GPU stays out of use after a fault of its own: a repair takes days, and `supervise nodes clear` ends it at once.
QUARANTINE_DAYS: Final = 7
QUARANTINE_S: Final = QUARANTINE_DAYS * 86_400.0
#: The newest part of the file that is read: tens of thousands of rows.
_MOST_BYTES: Final = 8 << 20
_MOST_CHARACTERS: Final = 1000


class QuarantinedGpu(Struct, frozen=True):
    """One GPU that is out of use. uuid or pci may be "" where nobody knew it; t: wall seconds."""

    uuid: str
    pci: str
    reason: str
    evidence: str
    t: float
    job: str
    run: str
    boot: str = ""
    errors: int = -1

    @property
    def name(self) -> str:
        """Its UUID, else its PCI address."""
        return self.uuid or self.pci


class NodeExclusion(Struct, frozen=True):
    """No job of the state directory begins on this node. t: since when, wall seconds. by: person."""

    node: str
    reason: str
    t: float
    by: str


class GpuQuarantine:
    """The GPUs of `node` that are out of use, as the ledger below the state directory `root` lists them."""

    def __init__(self, root: Path, node: str) -> None:
        self.node = node
        self.path = identity.node_ledger(root, node)

    def held(self, now: float) -> tuple[QuarantinedGpu, ...]:
        """Return the GPUs out of use at `now` (wall seconds), the newest row of each, oldest first. Raises OSError but for no file."""
        held: dict[str, QuarantinedGpu] = {}
        for row in self._rows():
            cleared = row.get("cleared")
            if cleared is not None:
                held = {name: entry for name, entry in held.items() if cleared not in (ALL, entry.uuid, entry.pci)}
            elif (entry := _entry(row)) is not None:
                held.pop(entry.name, None)
                held[entry.name] = entry
        return tuple(entry for entry in held.values() if now < entry.t + QUARANTINE_S)

    def quarantine(self, entry: QuarantinedGpu) -> None:
        """Take a GPU out of use, durably. Raises OSError."""
        row = {key: redact.text(value)[:_MOST_CHARACTERS] if isinstance(value, str) else value for key, value in asdict(entry).items()}
        self._append({"v": _VERSION, **row})

    def clear(self, which: str, now: float, by: str = "person") -> tuple[QuarantinedGpu, ...]:
        """Put a GPU (its UUID or PCI address), or `all`, back into use; return those that were out of use. Raises OSError."""
        freed = tuple(entry for entry in self.held(now) if which in (ALL, entry.uuid, entry.pci))
        if freed:
            self._append({"v": _VERSION, "cleared": which, "t": now, "by": by})
        return freed

    def exclusion(self) -> NodeExclusion | None:
        """Return why no job begins on this node, None where it may. Raises OSError but for no file."""
        exclusion: NodeExclusion | None = None
        for row in self._rows():
            if "excluded" in row:
                t = row.get("t")
                exclusion = NodeExclusion(self.node, str(row["excluded"]), t if isinstance(t, int | float) else 0.0, str(row.get("by", "")))
            elif "allowed" in row:
                exclusion = None
        return exclusion

    def exclude(self, reason: str, now: float, by: str = "person") -> None:
        """Exclude the node, durably. Raises OSError."""
        self._append({"v": _VERSION, "excluded": redact.text(reason)[:_MOST_CHARACTERS], "t": now, "by": by})

    def allow(self, now: float, by: str = "person") -> NodeExclusion | None:
        """Allow the node again; return its exclusion, None where there was none. Raises OSError."""
        node_exclusion = self.exclusion()
        if node_exclusion is not None:
            self._append({"v": _VERSION, "allowed": True, "t": now, "by": by})
        return node_exclusion

    def _rows(self) -> Iterator[dict[str, Any]]:
        with contextlib.suppress(FileNotFoundError), os.fdopen(durable.open_regular(str(self.path)), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MOST_BYTES))
            for line in file.read(_MOST_BYTES).splitlines():
                with contextlib.suppress(ValueError, RecursionError):
                    row = json.loads(line)
                    if isinstance(row, dict) and row.get("v") == _VERSION:
                        yield row

    def _append(self, row: dict[str, Any]) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        durable.append(str(self.path), json.dumps(row).encode("ascii"))


def ledgers(root: Path) -> list[GpuQuarantine]:
    """Return the ledgers of all nodes that have one below a state directory, by name."""
    return [GpuQuarantine(root, path.stem) for path in sorted(identity.node_ledger(root, "").parent.glob("*.jsonl"))]


def why(entries: Iterable[QuarantinedGpu], uuid: str, pci: str) -> str:
    """Return why a GPU is out of use, "" where it is not."""
    return next((entry.reason for entry in entries if entry.uuid == uuid or (entry.pci and entry.pci == pci and not entry.uuid)), "")


def is_well_again(entry: QuarantinedGpu, now: Readings, boot: str) -> bool:
    """Return whether NVML shows that a quarantined GPU was reset since, and that nothing is wrong with it any more.

    All of it must be known: the GPU answers, the driver asks for no recovery, no row and no page waits or failed, no error since the
    reset; and there was a reset: another boot of the node, or errors that were counted then and are not any more.
    """
    subject = f"gpu:{entry.uuid}"
    if not entry.uuid or not entry.boot or now.one("gpu.identity", subject) is None or now.rows("gpu.errors", subject):
        return False
    if now.count("gpu.recovery_action", subject) != 0 or now.count("gpu.ecc_uncorrected_volatile", subject) != 0:
        return False
    rows = now.value("gpu.remapped_rows", subject)
    if isinstance(rows, list) and any(rows[2:]):
        return False
    if now.value("gpu.retired_pending", subject) or now.table("gpu.sram", subject).get("threshold_exceeded"):
        return False
    return boot != entry.boot or entry.errors > 0


def _entry(row: dict[str, Any]) -> QuarantinedGpu | None:
    try:
        entry = typed.converted(row, QuarantinedGpu)
    except msgspec.ValidationError:
        return None
    return entry if entry.name else None
