"""Keeps a node's memory of the protocol over the end of its supervisor, in two small files beside its journal.

    cluster/node.json           what this node took part in (NodeMemory), and where the coordinator was
    cluster/coordinator.json    on its host: the newest attempt, its end and the decision about it, its port and its key

Both belong to one run that meets under one id (torch's --rdzv-id). Under another id this is another node: it remembers nothing, and nobody
takes it for the one before. So a job that Slurm requeued waits for no node of the step that is over.
"""

from __future__ import annotations

import json
import queue
import threading
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from checkpointing.io import staging, typed
from supervisor.cluster.client import CoordinatorAddress
from supervisor.cluster.model import CoordinatorMemory, NodeMemory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: A disk that does not answer in this time is not waited for: a job that continues is worth more than what this file is for.
WRITE_S = 2.0


@dataclass(frozen=True, slots=True)
class KeptFor:
    """Whose the files are: the id of the run, and of torch's rendezvous."""

    run: str
    rdzv_id: str


@dataclass(frozen=True, slots=True)
class KeptNode:
    """The content of node.json. address: where the coordinator was found last, None: it was not found yet."""

    owner: KeptFor
    memory: NodeMemory
    address: CoordinatorAddress | None = None


@dataclass(frozen=True, slots=True)
class KeptCoordinator:
    """The content of coordinator.json. port: where it was served. key: what lets a node in."""

    owner: KeptFor
    port: int
    key: str
    memory: CoordinatorMemory


class KeptFile:
    """One of the files. Reads on the caller's thread, before the loop runs; writes on a thread of its own."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self._path = path
        self._warn = warn
        self._is_reported = False
        self._orders: queue.SimpleQueue[tuple[bytes, threading.Event]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def read(self, kind: type[Any]) -> Any | None:  # noqa: ANN401 (of the kind)
        """Return its content, None where nothing can be read."""
        try:
            return typed.converted(json.loads(self._path.read_bytes()), kind)
        except (OSError, ValueError, msgspec.ValidationError):
            return None

    def write(self, content: KeptNode | KeptCoordinator) -> None:
        """Return when it is on disk, or after WRITE_S: that is reported once."""
        if self._thread is None:
            thread = threading.Thread(target=self._write_all, name="kept-file", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no thread can be started
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
                written.set()  # a newer one is in for it
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


def remembered(content: KeptNode | None, owner: KeptFor, new_name: str) -> tuple[NodeMemory, CoordinatorAddress | None]:
    """Return what this node remembers, and where it found the coordinator.

    Nothing of another owner, nor of a life of the job that a decision ended: the node then has a new name. The coordinator of that life may
    still be served, and would end this node as it ended the others.
    """
    if content is None or content.owner != owner:
        return NodeMemory(new_name), None
    memory = content.memory
    is_over = memory.over or (memory.acted is not None and memory.acted.is_final)
    return (NodeMemory(new_name), None) if is_over else (memory, content.address)


def memory_of_the_last(content: KeptCoordinator) -> CoordinatorMemory:
    """Return what the next coordinator begins with: nothing of a life of the job that a decision ended."""
    decision = content.memory.decision
    return CoordinatorMemory() if decision is not None and decision.is_final else content.memory
