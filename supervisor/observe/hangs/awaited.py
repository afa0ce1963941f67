"""Finds what a process waits for: a file, the peer of a socket, a pipe, another process.

The system call of its main thread shows it (`recvfrom` of a descriptor, `wait4` of a pid); of a loop that polls, its source (polled.py). A
file is read only where the process itself asks for it all the time, so its file system answers.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import struct
import threading
import time
from enum import StrEnum
from typing import TYPE_CHECKING

from supervisor.core.units import span_text
from supervisor.core.values import Struct, replace
from supervisor.observe.hangs import polled, procfs
from supervisor.observe.hangs.sockets import Connections

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from supervisor.observe.hangs.polled import Held
    from supervisor.observe.hangs.procfs import ThreadWait

#: Calls whose first argument is the descriptor that they wait for.
_OF_FD = frozenset({"read", "readv", "write", "writev", "recvfrom", "recvmsg", "sendto", "sendmsg", "connect", "accept"})
#: So many objects are named; so many descriptors are read; so deep it goes from a process to the one that it waits for.
MOST, _MOST_FDS, _DEEPEST = 3, 64, 2
_MOST_BYTES = 256


class AwaitedKind(StrEnum):
    """The subject of a process's wait."""

    FILE = "file"
    SOCKET = "socket"
    PIPE = "pipe"
    PROCESS = "process"


class Awaited(Struct, frozen=True):
    """One object that is waited for. text: as people are shown it, after "waits for".

    name: the path, `host:port`, the pid. is_left: a file whose end is waited for, of this user, older than this attempt, that no living
    process has open, has locked or is named in. lives: a living process is at the other end, holds it, or is it. moved_bytes: that went
    over a connection so far; -1 elsewhere. pids: the processes of this node at the other end; ranks: those of which they are, or below
    which. of_store: a connection to torch's store: it waits for a key, which any rank may set.
    """

    kind: AwaitedKind
    name: str
    text: str
    is_left: bool = False
    lives: bool = False
    moved_bytes: int = -1
    pids: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    of_store: bool = False


class Surroundings:
    """Facts that all ranks of one look share: connections, the holders of open files, and the files that were examined. From any thread.

    begun: when each attempt began, in Unix seconds, as far as that is known.
    """

    def __init__(self, begun: Mapping[int, float] | None = None) -> None:
        self.connections = Connections()
        self._begun = dict(begun or {})
        self._lock = threading.Lock()
        self._open: dict[str, list[int]] | None = None
        self._files: dict[str, Awaited] = {}

    def holders(self, link: str, *, but: int = 0) -> list[int]:
        """Return who has a pipe, a connection or a file open, by the links of /proc/PID/fd. They are read once."""
        with self._lock:
            if self._open is None:
                self._open = _open_files()
            return [pid for pid in self._open.get(link, ()) if pid != but]

    def file(self, path: str) -> Awaited:
        """Return a file that is waited for, with all that is known of who left it there."""
        with self._lock:
            known = self._files.get(path)
        if known is None:
            # a descriptor shows the file itself, and a cache often lies behind a link
            known = _file(path, self.holders(os.path.realpath(path)), self._begun)
            with self._lock:
                known = self._files.setdefault(path, known)
        return known


def of_call(pid: int, waits: ThreadWait, around: Surroundings, *, depth: int = 0) -> tuple[Awaited, ...]:
    """Return what the system call of a process waits for; none where it shows nothing, or may not be read."""
    if waits.state in {"", "R", "Z", "X"}:
        return ()
    if waits.file is not None:
        holder = _blocks(pid) if waits.file.call in {"flock", "fcntl"} else 0
        text = f"{shown_process(holder)}, which holds the lock" if holder else ""
        return (Awaited(AwaitedKind.FILE, waits.file.path, text, lives=True, pids=(holder,)),) if holder else ()
    if waits.call in {"wait4", "waitid"}:
        return _children(pid, waits, around, depth)
    if waits.call in {"open", "openat"} and (path := procfs.opened_path(pid, waits.call, waits.arguments)):
        text = f"a process that opens the other end of the pipe {path}"
        return (Awaited(AwaitedKind.PIPE, path, text),) if "partner" in waits.wchan or "fifo" in waits.wchan else ()
    objects = [object_ for fd in _descriptors(pid, waits) if (object_ := _of_fd(pid, fd, around)) is not None]
    return tuple(dict.fromkeys(objects))[:MOST]


def of_polled(pid: int, held: Sequence[Held], around: Surroundings) -> tuple[Awaited, ...]:
    """Return what a loop of a process polls."""
    objects = []
    for kind, value in held[:MOST]:
        if kind == "process" and isinstance(value, int):
            objects.append(_process(value, around, depth=1))
        elif kind != "process":
            path = os.path.join(procfs.link(f"/proc/{pid}/cwd"), str(value))  # noqa: PTH118 - text
            file = around.file(path)
            if file.pids == (pid,) and _locked_by(path) == pid:
                continue  # it holds that lock itself
            objects.append(file if kind == polled.PRESENCE else replace(file, is_left=False))
    return tuple(objects)


def shown_process(pid: int) -> str:
    """Return a process as people are shown it: `process 123 (python)`."""
    name = procfs.command_name(pid)
    return f"process {pid} ({name})" if name else f"process {pid}"


# descriptors


def _descriptors(pid: int, waits: ThreadWait) -> Iterator[int]:
    arguments = waits.arguments
    if not arguments:
        return
    if waits.call in _OF_FD:
        yield arguments[0]
    elif waits.call in {"poll", "ppoll"}:
        data = procfs.memory(pid, arguments[0], 8 * min(arguments[1], _MOST_FDS))
        for at in range(0, len(data) - 7, 8):
            fd, events = struct.unpack_from("=ih", data, at)
            if fd >= 0 and events:
                yield fd
    elif waits.call in {"select", "pselect6"}:
        size = (min(arguments[0], 1024) + 7) // 8
        for address in arguments[1:3]:
            bits = int.from_bytes(procfs.memory(pid, address, size) if address else b"", "little")
            yield from [fd for fd in range(8 * size) if bits >> fd & 1][:_MOST_FDS]
    elif waits.call == "epoll_wait":
        rows = re.findall(r"^tfd:\s+(\d+)", procfs.text(f"/proc/{pid}/fdinfo/{arguments[0]}"), re.MULTILINE)
        yield from [int(fd) for fd in rows][:_MOST_FDS]


def _of_fd(pid: int, fd: int, around: Surroundings) -> Awaited | None:
    """Return the other end of a descriptor; None where it has none, or none with a name."""
    link = procfs.link(f"/proc/{pid}/fd/{fd}")
    inode = re.fullmatch(r"(socket|pipe):\[(\d+)\]", link)
    if inode is None:
        is_fifo = link.startswith("/") and "pipe" in procfs.waits(pid).wchan
        return _pipe(pid, link, around, f"the pipe {link}") if is_fifo else None
    if inode[1] == "pipe":
        return _pipe(pid, link, around, "a pipe")
    peer = around.connections.of(int(inode[2]))
    if peer is None:
        return None
    other = around.connections.other_end(peer)
    pids = tuple(around.holders(f"socket:[{other}]")) if other else ()
    of_store = peer.peer.rpartition(":")[2] == procfs.environment(pid).get("MASTER_PORT")
    text = f"a key of torch's store at {peer.peer}" if of_store else peer.peer
    return Awaited(AwaitedKind.SOCKET, peer.peer, text, lives=True, moved_bytes=peer.moved_bytes, pids=pids, of_store=of_store)


def _pipe(pid: int, link: str, around: Surroundings, text: str) -> Awaited:
    others = around.holders(link, but=pid)
    if others:
        holders = ", ".join(map(shown_process, others[:MOST]))
        return Awaited(
            AwaitedKind.PIPE, link, f"{text} that {holders} {'has' if len(others) == 1 else 'have'} open", lives=True, pids=tuple(others)
        )
    own = [fd for fd in procfs.descriptors(pid) if procfs.link(f"/proc/{pid}/fd/{fd}") == link]
    if len(own) > 1:
        return Awaited(AwaitedKind.PIPE, link, f"{text} to a thread of its own", lives=True)
    return Awaited(AwaitedKind.PIPE, link, f"{text} that no other process has open")


def _open_files() -> dict[str, list[int]]:
    """Return who has each pipe and socket, and each file with a path, open; asks no file system."""
    holders_of: dict[str, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - names
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{name}/fd"):  # noqa: PTH208 - as above
                link = procfs.link(f"/proc/{name}/fd/{fd}")
                if link.startswith(("pipe:", "socket:", "/")) and not link.startswith("/dev/"):
                    holders = holders_of.setdefault(link, [])
                    if int(name) not in holders:
                        holders.append(int(name))
    return holders_of


# processes


def _children(pid: int, waits: ThreadWait, around: Surroundings, depth: int) -> tuple[Awaited, ...]:
    asked = waits.arguments[0] if waits.arguments else 0
    asked = asked - (1 << 64) if asked >> 63 else asked - (1 << 32) if asked >> 31 else asked
    if waits.call == "waitid":  # P_PID is 1; its second argument is the pid
        asked = waits.arguments[1] if waits.arguments and waits.arguments[0] == 1 else 0
    if asked > 0:
        return (_process(asked, around, depth=depth + 1),)
    known = procfs.text(f"/proc/{pid}/task/{pid}/children").split()
    return tuple(_process(int(child), around, depth=depth + 1) for child in known[:MOST])


def _process(pid: int, around: Surroundings, *, depth: int) -> Awaited:
    """Return a process that others wait for, and what this process waits for."""
    waits = procfs.waits(pid)
    lives = waits.state not in {"", "Z", "X"}
    text = shown_process(pid) if waits.state else f"process {pid}"
    text += "" if lives else ", which is gone"
    if waits.state in {"T", "t"}:
        text += ", which is stopped"
    further = of_call(pid, waits, around, depth=depth) if depth < _DEEPEST else ()
    if further:
        text += f", which waits for {' and '.join(awaited.text for awaited in further)}"
    return Awaited(AwaitedKind.PROCESS, str(pid), text, lives=lives)


# files


def _file(path: str, holders: Sequence[int], begun: Mapping[int, float]) -> Awaited:
    awaited = Awaited(AwaitedKind.FILE, path, f"the file {path}")
    try:
        status = os.stat(path)  # noqa: PTH116 - text
    except FileNotFoundError:
        return replace(awaited, text=f"the file {path}, which is not there")
    except OSError as error:
        return replace(awaited, text=f"the file {path} ({error.strerror})")
    age = f"{span_text(time.time() - status.st_mtime)} old"
    if not stat.S_ISREG(status.st_mode):
        return replace(awaited, text=f"{path} ({age})")
    locked_by = _locked_by(path)
    writer = _pid_in(path, status.st_size)
    if locked_by or holders:
        access = f"locked by {shown_process(locked_by)}" if locked_by else f"{' and '.join(map(shown_process, holders[:MOST]))} opened it"
        return replace(awaited, text=f"the file {path} ({age}; {access})", lives=True, pids=(locked_by,) if locked_by else tuple(holders))
    if writer and procfs.waits(writer).state not in {"", "Z", "X"}:
        return replace(awaited, text=f"the file {path} ({age}; it names {shown_process(writer)})", lives=True)
    is_seen = os.geteuid() in {0, status.st_uid}
    left = _left_by(status.st_mtime, begun) if is_seen else ""
    held = "no process has it open" if is_seen else "of another user, whose processes are hidden"
    parts = (age, held, f"it names process {writer}, which is gone" if writer else "", left)
    return replace(awaited, text=f"the file {path} ({'; '.join(filter(None, parts))})", is_left=bool(left))


def _left_by(changed_t: float, begun: Mapping[int, float]) -> str:
    """Return in which attempt a file was written last, if that is over; "" where it is not, or where nothing is known of attempts."""
    attempt = max((number for number, t in begun.items() if t <= changed_t), default=None)
    if not begun or attempt == max(begun):
        return ""
    return "older than this run" if attempt is None else f"left by attempt {attempt}, which is over"


def _locked_by(path: str) -> int:
    """Return who holds a lock on a file, by /proc/locks; 0 where nobody does, or where that is not known."""
    try:
        status = os.stat(path)  # noqa: PTH116 - text
    except OSError:
        return 0
    key = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    rows = (line.split() for line in procfs.text("/proc/locks").splitlines())
    return next((int(row[4]) for row in rows if len(row) > 5 and row[1] != "->" and row[5] == key and int(row[4]) > 0), 0)  # noqa: PLR2004 - proc(5)


def _blocks(pid: int) -> int:
    """Return who holds the lock that a process waits for, by /proc/locks; 0 unknown. Asks no file system: it may not answer."""
    rows = [line.split() for line in procfs.text("/proc/locks").splitlines()]
    waited = next((row[0] for row in rows if len(row) > 6 and row[1] == "->" and row[5] == str(pid)), "")  # noqa: PLR2004 - proc(5)
    return next((int(row[4]) for row in rows if waited and row[0] == waited and row[1] != "->"), 0)


def _pid_in(path: str, size: int) -> int:
    """Return the pid that a small file holds, and nothing else; 0 without."""
    if not 0 < size <= _MOST_BYTES:
        return 0
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        data = os.read(fd, _MOST_BYTES).strip()
    except OSError:
        return 0
    finally:
        os.close(fd)
    return int(data) if data.isdigit() and len(data) < 8 else 0  # noqa: PLR2004 - the greatest pid has seven digits
