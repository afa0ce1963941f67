"""Reads the address on which supervise listens: a port alone is loopback, an address opens it."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, replace
from ipaddress import ip_address

from supervisor.errors import ExitCode, SuperviseError

LOOPBACK = "127.0.0.1"
_HINT = "Write an address of this machine."
#: Ports that examples name.
_PORTS = {"ui.listen": 9410, "metrics.listen": 9409}
_FORM = re.compile(r"(?:(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<host>[^:\[\]\s]+)):)?(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address (IPv4 or IPv6, as text) and a port; 0 is any free one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether nothing outside of this machine can reach it."""
        return ip_address(self.host.partition("%")[0]).is_loopback

    def with_port(self, port: int) -> ListenAddress:
        """Return the same address with the port that the system gave."""
        return replace(self, port=port)

    def __str__(self) -> str:
        """Return it as a URL has it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def listen_address(text: str, key: str, exit_code: int = ExitCode.CONFIG) -> ListenAddress:
    """Return what PORT, ADDRESS:PORT, NAME:PORT or [ADDRESS]:PORT means. key: the setting. Raises SuperviseError with `exit_code`."""
    match = _FORM.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65535:  # noqa: PLR2004  the highest port
        raise SuperviseError(
            f"no address to listen at: {key} = {text!r}",
            hint="Write a port such as {0} (loopback), or ADDRESS:PORT such as 0.0.0.0:{0} or [::1]:{0}.".format(_PORTS.get(key, 9410)),
            exit_code=exit_code,
        )
    host = match["six"] or match["host"] or LOOPBACK
    try:
        rows = socket.getaddrinfo(host, int(match["port"]), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        message = f"no address to listen at: {key} = {text!r}: {error.strerror}"
        raise SuperviseError(message, hint=_HINT, exit_code=exit_code) from error
    return ListenAddress(str(rows[0][4][0]), int(match["port"]))


def listen_at(at: ListenAddress) -> socket.socket:
    """Return a socket that listens there; at `::` to IPv4 too. Raises OSError."""
    if ":" not in at.host:
        return socket.create_server((at.host, at.port))
    return socket.create_server((at.host, at.port), family=socket.AF_INET6, dualstack_ipv6=at.host == "::" and socket.has_dualstack_ipv6())


def listening_socket(at: ListenAddress, key: str) -> socket.socket:
    """Return a socket that listens there. Raises SuperviseError where that is not possible."""
    try:
        return listen_at(at)
    except OSError as error:
        hint = f"Name another port in {key}, or 0 for any free one." if at.port else _HINT
        raise SuperviseError(f"cannot listen: {at}: {error.strerror}", hint=hint) from error
