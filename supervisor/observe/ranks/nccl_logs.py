"""Reads NCCL's own logs of a traced attempt: its warnings as evidence, and which transports and interface it used.

launch/tracing.py has NCCL write them to files, so its warnings do not come by a rank's output. A log is long where a job makes many
communicators: the beginning, which names the interface and the first channels, and the end, which has the failure, are read. What is
between them in a log of a job of weeks gives its disk back.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

from supervisor.classify.logs.match import Reader
from supervisor.core.model import Evidence
from supervisor.core.values import replace
from supervisor.guardian import libc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from supervisor.classify.logs.catalogue import Catalogue
    from supervisor.classify.logs.scanner import Scanner

#: So much is read of each end of a log, and so many logs.
END_BYTES = 256 * 1024
MOST_LOGS = 64
#: So much of the disk a log takes; half of it is its end.
MOST_DISK_BYTES = 16 * 1024 * 1024
#: Lines as of NCCL 2.4 to 2.27: "Bootstrap : Using [0]eth0:10.0.0.1<0>", "NET/Socket : Using [0]eth0:10.0.0.1<0>".
_INTERFACE = re.compile(rb"NCCL INFO (?:Bootstrap|NET/Socket) ?: Using (?:\[0\])?([^\s:]{1,32}):")
#: "Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM", "... [send] via NET/IB/0/GDRDMA": the kind, and of the network which.
_TRANSPORT = re.compile(rb"NCCL INFO Channel [^\n]{1,80}? via (P2P|SHM|NET/[A-Za-z]+)")
_PID = re.compile(r"-(\d+)\.log$")
_WARNING = b"NCCL WARN"


def evidence(directory: Path, ranks: Mapping[int, int], signatures: Callable[[], tuple[Catalogue, Scanner]]) -> tuple[Evidence, ...]:
    """Return what NCCL's logs below `directory` show. ranks: by pid. Raises OSError if the directory cannot be read."""
    facts: list[Evidence] = []
    transports: set[str] = set()
    interface = ""
    for path in sorted(directory.glob("nccl-*.log"))[:MOST_LOGS]:
        data = _ends(path)
        pid = _PID.search(path.name)
        rank = ranks.get(int(pid[1])) if pid else None
        transports.update(match.decode() for match in _TRANSPORT.findall(data))
        if not interface and (match := _INTERFACE.search(data)):
            interface = match[1].decode("ascii", "replace")
        facts += _warnings(data, rank, signatures)
    if transports:
        facts.append(Evidence("nccl", "transports", " ".join(sorted(transports))))
    if interface:
        facts.append(Evidence("nccl", "interface", interface))
    return tuple(facts)


def bound(directory: Path) -> None:
    """Give the disk of the middle of each long log back; NCCL writes on at its end. Does nothing where the file system cannot."""
    for path in sorted(directory.glob("nccl-*.log"))[:MOST_LOGS]:
        with contextlib.suppress(OSError), path.open("r+b") as file:
            about = os.fstat(file.fileno())
            if about.st_blocks * 512 > MOST_DISK_BYTES:
                libc.punch_hole(file.fileno(), END_BYTES, about.st_size - MOST_DISK_BYTES // 2 - END_BYTES)


def _ends(path: Path) -> bytes:
    with path.open("rb") as file:
        head = file.read(END_BYTES)
        size = file.seek(0, 2)
        if size <= END_BYTES:
            return head
        file.seek(max(END_BYTES, size - END_BYTES))
        return head + b"\n" + file.read(END_BYTES)


def _warnings(data: bytes, rank: int | None, signatures: Callable[[], tuple[Catalogue, Scanner]]) -> list[Evidence]:
    """Return the claims about warnings. Their time is not known: NCCL writes none."""
    lines = [line for line in data.splitlines() if _WARNING in line]
    if not lines:
        return []
    reader = Reader(*signatures(), rank=rank)
    reader.feed(b"\n".join(lines) + b"\n")
    return [replace(fact, t=0.0, line=0) for fact in reader.finish() if fact.claim is not None]
