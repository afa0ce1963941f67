"""The host and port where the ranks of a command meet, read from its words and environment, for the health checks before a start.

The rendezvous itself is in agent/rendezvous.py.

A check asks whether the host answers and the port is free. So a port is named only where a process of this command binds it by itself: the
static rendezvous of torchrun on the node of rank 0, and rank 0 of ranks that find MASTER_PORT in their environment. The c10d rendezvous
uses whatever already serves there, perhaps another agent on this host; `--standalone` takes any free port.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from health.probes.network.names import split
from supervisor.core.values import dataclass
from supervisor.knobs import torchrun

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: torch.distributed.run: --master-addr, --master-port; torch.distributed.elastic's c10d and etcd: the port where the endpoint has none.
_STATIC: Final = ("127.0.0.1", "29500")
_PORTS: Final = {"c10d": 29400, "etcd": 2379, "etcd-v2": 2379}
#: A launcher of ranks gives them their numbers in these variables.
_RANKS: Final = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_LOCAL: Final = ("localhost", "::1", "")
_LAST_PORT: Final = 65535


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """hosts: `host:port` of another node (an IPv6 address in brackets). ports: that this node will listen on."""

    hosts: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()


NOWHERE: Final = Rendezvous()


def of(command: Sequence[str], environ: Mapping[str, str], hostname: str = "") -> Rendezvous:
    """Return where the ranks of a command meet. hostname: this host's, by default its own."""
    here = hostname or socket.gethostname()
    found = torchrun.recognise(command, path=environ.get("PATH"))
    return _of_ranks(environ, here) if found is None else _of_torchrun(found, environ, here)


def _of_ranks(environ: Mapping[str, str], here: str) -> Rendezvous:
    """Return where ranks meet that find all in their environment (torch's `env://`)."""
    host, port = environ.get("MASTER_ADDR", ""), _number(environ.get("MASTER_PORT", ""))
    if not host or not port or "TORCHELASTIC_RUN_ID" in environ:  # ranks of an agent, which serves already
        return NOWHERE
    # which rank of several on this host serves, and has perhaps begun to, cannot be known without its number
    if next((environ[name] for name in _RANKS if name in environ), "") == "0":
        return Rendezvous((), (port,))
    return _elsewhere(host, port, here)


def _of_torchrun(command: torchrun.Torchrun, environ: Mapping[str, str], here: str) -> Rendezvous:
    def option_or(option: str, default: str) -> str:
        return torchrun.option_value(command, environ, option, default)

    if torchrun.is_standalone(command, environ) or "," in option_or(
        "rdzv-endpoint", ""
    ):  # of a list, one serves, perhaps another than before
        return NOWHERE
    backend, endpoint = option_or("rdzv-backend", "static"), option_or("rdzv-endpoint", "")
    alone = torchrun.size(command, environ)[1] == 1
    if backend == "static":
        host, port = split(endpoint) if endpoint else (option_or("master-addr", _STATIC[0]), _number(option_or("master-port", _STATIC[1])))
        if option_or("node-rank", "0") == "0":
            return Rendezvous((), (port,)) if port else NOWHERE
        return NOWHERE if alone else _elsewhere(host, port, here)
    if backend not in _PORTS or not endpoint or (alone and backend == "c10d"):
        return NOWHERE
    host, port = split(endpoint)
    return _elsewhere(host, port if port is not None else _PORTS[backend], here)


def _elsewhere(host: str, port: int | None, here: str) -> Rendezvous:
    if host in _LOCAL or host.startswith("127.") or host.partition(".")[0] == here.partition(".")[0] or not port:
        return NOWHERE
    return Rendezvous((f"[{host}]:{port}" if ":" in host else f"{host}:{port}",))


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and int(text[:6]) <= _LAST_PORT else None
