"""What a node keeps of the protocol over the end of its supervisor, in two small files beside its journal.

    cluster/node.json     what this node took part in (NodeMemory), and where the store was
    cluster/store.json    on the host of the store: its rows that the next one begins with, its port and its key

Both belong to one run that meets under one id (torch's --rdzv-id). Under another id this is another node: it remembers nothing, and nobody
takes it for the one before. So a job that Slurm requeued waits for no node of the step that is over.
"""

from __future__ import annotations

import json
import queue
import threading
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from checkpointing.io import staging
from supervisor.cluster.client import StoreAddress
from supervisor.cluster.model import ClusterDecision
from supervisor.cluster.node import NodeMemory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: A disk that does not answer in this time is not waited for: a job that goes on is worth more than what this file is for.
WRITE_S = 2.0


@dataclass(frozen=True, slots=True)
class KeptFor:
    """Whose the files are: the id of the run, and of torch's rendezvous."""

    run: str
    rdzv_id: str


@dataclass(frozen=True, slots=True)
class KeptNode:
    """The content of node.json. address: where the store was found last, None where it was not found yet."""

    owner: KeptFor
    memory: NodeMemory
    address: StoreAddress | None = None


@dataclass(frozen=True, slots=True)
class KeptStore:
    """The content of store.json."""

    owner: KeptFor
    port: int
    key: str
    rows: tuple[tuple[str, str], ...] = ()


class KeptFile:
    """One of the files. Reads on the caller's thread, before the loop runs; writes on a thread of its own."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self._path = path
        self._warn = warn
        self._is_reported = False
        self._orders: queue.SimpleQueue[tuple[bytes, threading.Event]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def read(self, kind: type[Any]) -> Any | None:  # noqa: ANN401 (of the kind)
        """Return what is in it, None where there is nothing that can be read."""
        try:
            return msgspec.convert(json.loads(self._path.read_bytes()), kind)
        except (OSError, ValueError, msgspec.ValidationError):
            return None

    def write(self, content: KeptNode | KeptStore) -> None:
        """Return when it is on disk, or after WRITE_S: that is reported once."""
        if self._thread is None:
            thread = threading.Thread(target=self._write_all, name="kept-file", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # none to be had
                self._report(str(error))
                return
            self._thread = thread
        written = threading.Event()
        self._orders.put((json.dumps(asdict(content)).encode(), written))
        if not written.wait(WRITE_S):
            self._report("the disk does not answer")

    def _write_all(self) -> None:
        while True:
            content, written = self._orders.get()
            while not self._orders.empty():
                written.set()  # a newer one stands in for it
                content, written = self._orders.get()
            try:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                staging.write(str(self._path), content)
            except OSError as error:
                self._report(str(error))
            written.set()

    def _report(self, why: str) -> None:
        if not self._is_reported:
            self._is_reported = True
            self._warn(f"{self._path} is not written: {why}; if supervise of this node ends now, it forgets what the nodes decided last")


class RowsOnDisk:
    """What outlives a store, on its host alone: KeptStore in a file. kept: what the next store begins with."""

    def __init__(self, file: KeptFile, kept: KeptStore) -> None:
        self._file, self.kept = file, kept

    def keep(self, rows: tuple[tuple[str, str], ...]) -> None:
        """Write them; see KeptFile for a disk that fails: a job that goes on is worth more."""
        self.kept = replace(self.kept, rows=rows)
        self._file.write(self.kept)


def remembered(kept: KeptNode | None, owner: KeptFor, new_name: str) -> tuple[NodeMemory, StoreAddress | None]:
    """Return what this node remembers, and where it found the store.

    Nothing of another owner, nor of a life of the job that a decision ended: the node then has a new name. The store of that life may still
    be served, and would end this node as it ended the others.
    """
    if kept is None or kept.owner != owner:
        return NodeMemory(new_name), None
    memory = kept.memory
    is_over = memory.over or (memory.acted is not None and memory.acted.is_final)
    return (NodeMemory(new_name), None) if is_over else (memory, kept.address)


def rows_of_the_last(kept: KeptStore) -> tuple[tuple[str, str], ...]:
    """Return the rows with which the next store begins: none of a life of the job that a decision ended."""
    decisions = (ClusterDecision.read(value) for key, value in kept.rows if key.startswith("decision/"))
    return () if any(decision.is_final for decision in decisions) else kept.rows
