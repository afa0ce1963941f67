"""The list of hosts in torchrun's `--rdzv-endpoint`, which torch does not know: one of them serves the rendezvous, and then another.

    --rdzv-backend=c10d --rdzv-endpoint=a:29500,b:29500,c:29500      or one port for all: a,b,c:29500

Each host of the list also serves a part of the register that names who serves (supervisor/cluster/quorum), at the port after its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.values import Struct
from supervisor.errors import ExitCode, SuperviseError
from supervisor.knobs import torchrun

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The port of torch's c10d rendezvous where the endpoint has none.
_PORT = 29400
_LAST_PORT = 65535
#: With fewer, no host can be lost: two are no majority of two when one is gone.
LEAST_HOSTS = 3


class HostList(Struct, frozen=True):
    """hosts: host and port of the rendezvous of each. job, address, conf: of --rdzv-id, --local-addr and --rdzv-conf, "" for none."""

    job: str
    hosts: tuple[tuple[str, int], ...]
    address: str = ""
    conf: str = ""

    @property
    def acceptors(self) -> tuple[tuple[str, int], ...]:
        """Where each host serves its part of the register."""
        return tuple((host, port + 1) for host, port in self.hosts)

    def options(self, host: str, *, is_here: bool) -> tuple[str, ...]:
        """Return torchrun's options for a rendezvous that is served on `host`, by this node or another."""
        port = dict(self.hosts).get(host, self.hosts[0][1])
        conf = [pair for pair in self.conf.split(",") if pair and pair.partition("=")[0].strip() != "is_host"]
        name = f"[{host}]" if ":" in host else host
        return f"--rdzv-endpoint={name}:{port}", f"--rdzv-conf={','.join([*conf, f'is_host={int(is_here)}'])}"


def of(command: torchrun.Torchrun | None, environ: Mapping[str, str]) -> HostList | None:
    """Return the list of a command, None where it has none. Raises SuperviseError (64) for one that cannot be used."""

    def value(option: str, default: str = "") -> str:
        return "" if command is None else torchrun.option_value(command, environ, option, default)

    endpoint, backend = value("rdzv-endpoint"), value("rdzv-backend", "static")
    if "," not in endpoint or backend not in {"static", "c10d"}:  # another backend may know lists of its own
        return None
    if backend == "static":
        raise _unusable(endpoint, "the static rendezvous is served by the node of rank 0", "Give --rdzv-backend=c10d, too.")
    if command is not None and command.interpreter is None:
        raise _unusable(endpoint, f"the interpreter of {command.head[0]} is not known, so stock torchrun is run", "Give one host.")
    hosts = _read(endpoint)
    if len(hosts) < LEAST_HOSTS or len(dict(hosts)) < len(hosts):
        text = f"{len(hosts)} hosts, some twice" if len(dict(hosts)) < len(hosts) else f"{len(hosts)} hosts, and it takes {LEAST_HOSTS}"
        raise _unusable(endpoint, text, "Give three different hosts: the job goes on as long as two of them are there. Or give one.")
    return HostList(torchrun.rendezvous_id(command, environ), hosts, value("local-addr"), value("rdzv-conf"))


def _read(endpoint: str) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int | None]] = []
    for word in endpoint.split(","):
        host, colon, port = word.strip().rpartition(":")
        if not colon or (":" in host and not host.startswith("[")):
            host, port = word.strip(), ""
        if not host or (port and not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < _LAST_PORT)):
            raise _unusable(endpoint, f"{word.strip()!r} is no HOST:PORT", "Write --rdzv-endpoint=HOST:PORT,HOST:PORT,HOST:PORT.")
        found.append((host.strip("[]"), int(port) if port else None))
    common = next((port for _, port in reversed(found) if port is not None), _PORT)
    return tuple((host, port or common) for host, port in found)


def _unusable(endpoint: str, why: str, hint: str) -> SuperviseError:
    return SuperviseError(f"cannot use the list of hosts: --rdzv-endpoint={endpoint}: {why}", hint=hint, exit_code=ExitCode.USAGE)
