"""Reports our condition to systemd: ready, alive, stopping, and one line of status (sd_notify(3)).

A datagram that cannot be sent is dropped, because a manager that does not read must not cost the job anything. No thread pings the
watchdog: the deciding loop calls `ping` at least every `watchdog_interval_s()`, so that systemd sees when that loop hangs.

Only we use the variables. `strip` takes them out of the job's environment; else a script that speaks sd_notify (or a nested service)
would report for us.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLES = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})

#: systemd cuts nothing itself, but `systemctl status` shows one line.
STATUS_LIMIT = 200
#: sd_watchdog_enabled(3): "It is recommended that a daemon sends a keep-alive notification message to the service manager every half
#: of the time returned here."
PINGS_PER_WATCHDOG = 2
_US = 1_000_000


class Notifier:
    """The way to the service manager that started us, if one did."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """Read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID; values that cannot be used count as not set."""
        self._address = _address(env.get("NOTIFY_SOCKET", ""))
        self._interval_s = None if self._address is None else _interval_s(env)
        self._socket: socket.socket | None = None
        #: Whether `ready` was called: from then on the start cannot time out.
        self.is_ready = False
        if self._address is not None:
            with contextlib.suppress(OSError):  # kept open: a ping must not fail because the process has run out of descriptors
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)

    @property
    def enabled(self) -> bool:
        """Whether a service manager asked for reports."""
        return self._socket is not None

    def watchdog_interval_s(self) -> float | None:
        """Return the seconds within which `ping` must be called again, None without a watchdog."""
        return self._interval_s

    def ready(self, status: str) -> None:
        """Report that the job has started: `systemctl start` returns. Later calls change the status line only."""
        self._send(*([] if self.is_ready else ["READY=1"]), _status(status))
        self.is_ready = True

    def status(self, status: str) -> None:
        """Show one line in `systemctl status`."""
        self._send(_status(status))

    def ping(self) -> None:
        """Report that the deciding loop is alive."""
        if self._interval_s is not None:
            self._send("WATCHDOG=1")

    def stopping(self, status: str) -> None:
        """Report that we are stopping."""
        self._send("STOPPING=1", _status(status))

    def extend_timeout(self, seconds: float) -> None:
        """Ask for this long from now before the present start or stop is treated as hung; to be repeated before it is over."""
        self._send(f"EXTEND_TIMEOUT_USEC={max(1, int(seconds * _US))}")

    def close(self) -> None:
        """Close the socket; later reports are dropped."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *assignments: str) -> None:
        if self._socket is not None and self._address is not None:
            # EAGAIN if systemd does not read, ENOENT if it is gone: the job continues
            with contextlib.suppress(OSError):
                self._socket.sendto("\n".join(assignments).encode("utf-8", "replace"), self._address)


def strip(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for the processes that we start: without these variables."""
    return {name: value for name, value in env.items() if name not in VARIABLES}


def _address(value: str) -> str | None:
    """Return the address for the socket module: a path, or with @ a name in the abstract namespace. Others (vsock) are not supported."""
    if value.startswith("/"):
        return value
    return "\0" + value[1:] if value.startswith("@") and len(value) > 1 else None


def _interval_s(env: Mapping[str, str]) -> float | None:
    pid, usec = env.get("WATCHDOG_PID", ""), env.get("WATCHDOG_USEC", "")
    if pid and pid != str(os.getpid()):  # meant for the process that started us
        return None
    return int(usec) / _US / PINGS_PER_WATCHDOG if usec.isascii() and usec.isdecimal() and int(usec) > 0 else None


def _status(text: str) -> str:
    """Return one line: a newline would begin a second assignment, such as MAINPID=."""
    return "STATUS=" + "".join(char if char.isprintable() else " " for char in text)[:STATUS_LIMIT]
