"""Asks a rank for its collectives, and reads what torch's flight recorder wrote as JSON; pickles are never read.

The rank's own thread answers (`_supervise_shim/background.py`). It needs the GIL, so a rank that holds it in C does not answer in time. A
collective of gloo is `scheduled` for ever, and `retired` once it is over; NCCL's continues to `started` and `completed`. Sequence numbers
count the collectives of one process group, from 1; point-to-point operations have numbers of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

from supervisor.core.values import Struct
from supervisor.observe.ranks import questions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

POLL_S = 0.02
MOST_BYTES = 64 * 1024 * 1024
#: So many of each group's last collectives are kept.
MOST_KEPT = 8


class Collective(Struct, frozen=True):
    """One collective. operation: without its backend (`all_reduce`). sequence: 0 where no recorder has it. done: it is over.

    sizes: of the input tensors.
    """

    operation: str
    sequence: int
    done: bool
    sizes: tuple[tuple[int, ...], ...] = ()
    is_p2p: bool = False
    timeout_s: float | None = None

    @property
    def text(self) -> str:
        """As people are shown it: `all_reduce (seq 1841)`."""
        return f"{self.operation} (seq {self.sequence})" if self.sequence else self.operation


class ProcessGroup(Struct, frozen=True):
    """One process group as one of its ranks sees it. `last`: its newest collectives, the oldest first.

    name: torch's, equal on all ranks of the group. ranks: its members, empty where unknown.
    """

    name: str
    ranks: tuple[int, ...] = ()
    backend: str = ""
    timeout_s: float | None = None
    last: tuple[Collective, ...] = ()

    @property
    def pending(self) -> Collective | None:
        """The first collective that is not over: what the rank waits in, if it waits. None: all are over.

        NCCL's run in their order, so the entries before one that is over are over too: the parts of a coalesced one are never marked.
        """
        over = [at for at, entry in enumerate(self.last) if entry.done]
        last = self.last[over[-1] + 1 :] if over and self.backend == "nccl" else self.last
        begun = next((collective for collective in last if not collective.done and not collective.is_p2p), None)
        return begun or next((collective for collective in last if not collective.done), None)


class RecordedCollectives(Struct, frozen=True):
    """The process groups of one rank, or why they are not known ("": they are)."""

    groups: tuple[ProcessGroup, ...] = ()
    unreadable: str = ""


def request(directory: Path, pid: int, *, deadline_s: float = 2.0) -> RecordedCollectives:
    """Ask the process for its collectives, and wait at most `deadline_s` for the answer."""
    token = os.urandom(8).hex()
    try:
        answer = questions.ask(directory, pid, token).with_suffix(".json")
    except questions.NotAskedError as error:
        return RecordedCollectives(unreadable=f"it {error}")
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        with contextlib.suppress(OSError), answer.open("rb") as file:
            head = file.readline(4096)
            if token.encode() in head.split():
                return read(file.read(MOST_BYTES))
        time.sleep(POLL_S)
    return RecordedCollectives(unreadable=f"it did not answer within {deadline_s:g} s: its GIL may be held")


def read(answer: bytes) -> RecordedCollectives:
    """Return what an answer says: a line with the groups as Python knows them, then one for each of torch's recorders."""
    from_python, *from_torch = answer.splitlines() or [b""]
    try:
        known: dict[str, dict[str, Any]] = json.loads(from_python)["groups"]
        recorders: list[dict[str, Any]] = [json.loads(line) for line in from_torch if line.strip()]
        groups = [group for recorded in recorders for group in _recorded(known, recorded)]
        silent = [_group(name, known, "", ()) for name in known if not any(group.name == name for group in groups)]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return RecordedCollectives(unreadable=f"its answer is not as expected: {type(error).__name__}: {error}")
    if not groups and not silent:
        return RecordedCollectives(unreadable="it has no process group")
    return RecordedCollectives((*groups, *silent), "" if recorders else "its torch has no recorder that writes JSON")


def _recorded(known: dict[str, dict[str, Any]], recorded: dict[str, Any]) -> list[ProcessGroup]:
    """Return the groups of one recorder: each of its entries has the name and the number of its group."""
    entries: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in recorded.get("entries") or ():
        entries.setdefault((str(entry["process_group"][0]), str(entry["pg_id"])), []).append(entry)
    return [
        _group(name, known, _backend(of_group[-1]), [_collective(entry) for entry in of_group]) for (name, _), of_group in entries.items()
    ]


def _group(name: str, known: dict[str, dict[str, Any]], backend: str, collectives: Sequence[Collective]) -> ProcessGroup:
    of_python = known.get(name) or {}
    last = tuple(collectives[-MOST_KEPT:])
    timeouts = [of_python.get("timeout_s"), *(collective.timeout_s for collective in reversed(last))]
    return ProcessGroup(
        name,
        tuple(int(rank) for rank in of_python.get("ranks") or ()),
        backend=backend or str(of_python.get("backend") or ""),
        timeout_s=next((float(value) for value in timeouts if value is not None), None),
        last=last,
    )


def _backend(entry: dict[str, Any]) -> str:
    """Return the backend of an entry: its name is `gloo:all_reduce`."""
    return str(entry.get("profiling_name") or "").rpartition(":")[0]


def _collective(entry: dict[str, Any]) -> Collective:
    is_p2p = bool(entry.get("is_p2p"))
    timeout_ms = entry.get("timeout_ms")
    return Collective(
        str(entry.get("profiling_name") or "?").rpartition(":")[2],
        int(entry["p2p_seq_id"] if is_p2p else entry["collective_seq_id"]),
        bool(entry.get("retired")) or entry.get("state") == "completed",
        sizes=tuple(tuple(int(size) for size in shape) for shape in entry.get("input_sizes") or ()),
        is_p2p=is_p2p,
        timeout_s=None if timeout_ms is None else float(timeout_ms) / 1000,
    )
