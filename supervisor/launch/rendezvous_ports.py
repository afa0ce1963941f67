"""The host and port where the ranks of a command meet, read from its words and environment, for the health checks before a start.

The rendezvous itself is in agent/rendezvous.py.

A check asks whether the host answers and the port is free. So a port is named only where a process of this command binds it by itself: the
static rendezvous of torchrun on the node of rank 0, and rank 0 of ranks that find MASTER_PORT in their environment. The c10d rendezvous
uses whatever already serves there, perhaps another agent on this host; `--standalone` takes any free port.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from health.probes.network.names import joined, split
from supervisor.core.values import Struct
from supervisor.errors import SuperviseError
from supervisor.knobs import torchrun
from supervisor.knobs.python_command import shim_mode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: torch.distributed.run: --master-addr, --master-port; torch.distributed.elastic's c10d and etcd: the port where the endpoint has none.
_STATIC: Final = ("127.0.0.1", "29500")
_PORTS: Final = {"c10d": 29400, "etcd": 2379, "etcd-v2": 2379}
#: A launcher of ranks gives them their numbers in these variables.
_RANKS: Final = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_LOCAL: Final = ("localhost", "::1", "")
_LAST_PORT: Final = 65535


class Rendezvous(Struct, frozen=True):
    """hosts: `host:port` of another node (an IPv6 address in brackets). ports: that this node will listen on."""

    hosts: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()


NOWHERE: Final = Rendezvous()


def of(command: Sequence[str], environ: Mapping[str, str], hostname: str = "") -> Rendezvous:
    """Return where the ranks of a command meet. hostname: this host's, by default its own."""
    here = hostname or socket.gethostname()
    arguments = torchrun.recognise(command, path=environ.get("PATH"))
    return _of_ranks(environ, here) if arguments is None else _of_torchrun(arguments, environ, here)


def is_of_several_nodes(command: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Return whether ranks of other nodes are to find this one, as torchrun's options, the ranks' variables or Slurm's say."""
    arguments = torchrun.recognise(command, path=environ.get("PATH"))
    if arguments is not None:
        return torchrun.most_nodes(arguments, environ) > 1 and not torchrun.is_standalone(arguments, environ)
    ranks, local_ranks = _number(environ.get("WORLD_SIZE", "")), _number(environ.get("LOCAL_WORLD_SIZE", ""))
    if ranks and local_ranks:
        return ranks > local_ranks
    return bool(environ.get("MASTER_ADDR")) and (_number(environ.get("SLURM_NNODES", "")) or 1) > 1


def require_usable(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Raise SuperviseError (78) where ranks find an address in their environment that can never be one.

    torch asks for it as it is until its time-out, and all that it reports then is that nobody answered. torchrun's own options may
    have blanks and brackets, and a shell's script may take them away.
    """
    if shim_mode(command) != "rank" or not ({"RANK", "WORLD_SIZE"} & environ.keys()) or torchrun.recognise(command) is not None:
        return
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if any(map(str.isspace, host)):
        why, hint = f"MASTER_ADDR={host!r} has a blank in it", f"Set MASTER_ADDR={''.join(host.split())}."
    elif host.startswith("[") or host.endswith("]"):
        why, hint = f"MASTER_ADDR={host!r} has brackets, which no resolver takes", f"Set MASTER_ADDR={host.strip('[]')}."
    elif port and _number(port.strip()) is None:
        why, hint = f"MASTER_PORT={port!r} is not a port", f"Set MASTER_PORT to a number up to {_LAST_PORT}."
    else:
        return
    raise SuperviseError(f"the ranks cannot meet: {why}", hint=hint)


def endpoint(command: Sequence[str], environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Return host and port where ranks or agents look for each other; None where the command leaves that open."""
    arguments = torchrun.recognise(command, path=environ.get("PATH"))
    if arguments is None:
        host, port = environ.get("MASTER_ADDR", ""), _number(environ.get("MASTER_PORT", ""))
    else:
        place = _endpoint_of_torchrun(arguments, environ)
        if place is None:
            return None
        host, port = place
    return (host, port) if host and port else None


def _endpoint_of_torchrun(command: torchrun.Torchrun, environ: Mapping[str, str]) -> tuple[str, int | None] | None:
    """Return where the agents meet; None for `--standalone`, a backend of others', or c10d without an endpoint."""
    text = torchrun.option_value(command, environ, "rdzv-endpoint")
    if torchrun.is_standalone(command, environ):
        return None
    backend = torchrun.option_value(command, environ, "rdzv-backend", "static")
    if backend == "static":
        if text:
            return split(text)
        address = torchrun.option_value(command, environ, "master-addr", _STATIC[0])
        return address, _number(torchrun.option_value(command, environ, "master-port", _STATIC[1]))
    if backend not in _PORTS or not text:
        return None
    host, port = split(text)
    return host, port if port is not None else _PORTS[backend]


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
    place = _endpoint_of_torchrun(command, environ)
    if place is None:
        return NOWHERE
    host, port = place
    backend = torchrun.option_value(command, environ, "rdzv-backend", "static")
    alone = torchrun.size(command, environ)[1] == 1
    if backend == "static" and torchrun.option_value(command, environ, "node-rank", "0") == "0":
        return Rendezvous((), (port,)) if port else NOWHERE
    if alone and backend in {"static", "c10d"}:
        return NOWHERE
    return _elsewhere(host, port, here)


def _elsewhere(host: str, port: int | None, here: str) -> Rendezvous:
    if host in _LOCAL or host.startswith("127.") or host.partition(".")[0] == here.partition(".")[0] or not port:
        return NOWHERE
    return Rendezvous((joined(host, port),))


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and int(text[:6]) <= _LAST_PORT else None
