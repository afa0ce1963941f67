"""Whether the ports that the job will listen on are free, and who holds those that are not.

Reads ask.ports, /proc/net/tcp and tcp6, /proc/PID/fd. Yields, of `listen:PORT`: `listen.state` (free, error, holders: a list of tables pid,
command, user, state, ours, may_be_ours where the asker knows of no job). A port is tried as torch's store does, with SO_REUSEADDR, and
let go at once. Its holder is known for processes of this network namespace that we may look into; a connection that was made from the
port holds it too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from health.model import Json, Reading
from health.probes import psutil_root, system_files
from health.probes.gpu import memory_holders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import Ask

NAME: Final = "ports"
_STATES: Final = {"01": "connected", "0A": "listening", "06": "time-wait", "08": "close-wait"}
#: Variables that give ranks and agents the port on which they meet.
_PORT_VARIABLES: Final = ("MASTER_PORT", "PET_MASTER_PORT", "PET_RDZV_ENDPOINT")
_LOCAL, _STATE, _USER, _INODE = 1, 3, 7, 9


def read(ask: Ask) -> Iterator[Reading]:
    """Yield the state of each port."""
    ports = tuple(dict.fromkeys(port for port in ask.ports if port))  # 0 is any
    if not ports:
        return
    states = {port: _bind_error(port) for port in ports}
    taken = [port for port, error in states.items() if error == "EADDRINUSE"]
    held = _holders(ask, taken) if taken else {}
    for port, error in states.items():
        value: dict[str, Json] = {"free": not error, "error": error, "holders": held.get(port, [])}
        yield Reading(NAME, f"listen:{port}", "listen.state", value)


def _bind_error(port: int) -> str:
    """Return why a port cannot be had, "" where it can."""
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104 -- as the store does; never listened on
        try:
            with socket.socket(family, socket.SOCK_STREAM) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                tried.bind((address, port))
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # no IPv6 here
                return errno.errorcode.get(error.errno or 0, str(error))
        except OverflowError:
            return "EINVAL"
    return ""


def _holders(ask: Ask, ports: list[int]) -> dict[int, list[Json]]:
    """Return who holds each port.

    The kernel's tables and not psutil.net_connections: that names no user of a socket whose process we may not read.
    """
    psutil_root.use(ask)
    sockets: dict[str, tuple[int, str, str]] = {}
    for file in ("tcp", "tcp6"):
        for line in system_files.text(ask.at(f"/proc/net/{file}")).splitlines()[1:]:
            words = line.split()
            port = int(words[_LOCAL].rpartition(":")[2], 16)
            if port in ports:
                key = words[_INODE] if words[_INODE] != "0" else f"none {len(sockets)}"
                sockets[key] = (port, _STATES.get(words[_STATE], words[_STATE]), words[_USER])
    holders: dict[int, list[Json]] = {port: [] for port in ports}
    named: set[str] = set()
    for pid in [name for name in os.listdir(ask.at("/proc")) if name.isdecimal()]:  # noqa: PTH208 -- names
        for inode in _inodes(Path(ask.at(f"/proc/{pid}/fd"))) & sockets.keys():
            named.add(inode)
            port, state, user = sockets[inode]
            row: dict[str, Json] = {
                "pid": int(pid),
                "command": system_files.text(ask.at(f"/proc/{pid}/comm")),
                "state": state,
                "user": user,
            }
            row |= _whose(int(pid), port, ask)
            holders[port].append(row)
    for inode, (port, state, user) in sockets.items():
        if inode not in named:  # another user's process, or another namespace's
            holders[port].append({"pid": None, "command": "", "state": state, "user": user, "ours": False})
    return holders


def _whose(pid: int, port: int, ask: Ask) -> dict[str, Json]:
    """Return whether a process is the job's; and, where nobody knows which the job is, whether it may be: of a job, or given this port."""
    words = memory_holders.environment(pid)
    cookie = words.get(memory_holders.COOKIE, "")
    has_port = any(words.get(name, "").rpartition(":")[2] == str(port) for name in _PORT_VARIABLES)
    return {
        "ours": bool(cookie) and cookie == ask.cookie,
        "may_be_ours": not ask.cookie and (bool(cookie) or has_port),
    }


def _inodes(directory: Path) -> set[str]:
    inodes: set[str] = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):  # noqa: PTH208 -- names
            with contextlib.suppress(OSError):
                target = os.readlink(directory / name)  # noqa: PTH115 -- a word, not a path
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    return inodes
