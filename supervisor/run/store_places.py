"""Where the nodes of a command find their control store, if not beside torch's rendezvous store."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from supervisor.cluster.follower import StorePlace, WatchedRegister
from supervisor.knobs import host_list, torchrun

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


_ETCD = ("etcd", "etcd-v2")


def of(command: torchrun.Torchrun | None, environ: Mapping[str, str], directory: Path, warn: Callable[[str], None]) -> StorePlace | None:
    """Return the place, None where the store is served beside torch's. environ: the user's. directory, warn: see StoreHosts.

    Raises SuperviseError where a list of hosts cannot be used.
    """
    if command is None or torchrun.most_nodes(command, environ) == 1:
        return None
    listed = host_list.of(command, environ)
    if listed is not None:
        from supervisor.run.store_hosts import StoreHosts  # noqa: PLC0415  few jobs have one

        hosts = StoreHosts(listed, directory, warn)
        return StorePlace(hosts, hosts.host, hosts)

    def option_or(name: str, default: str) -> str:
        return torchrun.option_value(command, environ, name, default)

    if option_or("rdzv-backend", "static") not in _ETCD:
        return None
    from supervisor.cluster.etcd import EtcdRegister  # noqa: PLC0415  http.client and ssl cost memory

    pairs = (pair.partition("=") for pair in option_or("rdzv-conf", "").split(",") if pair)
    conf = {name.strip(): value.strip() for name, _, value in pairs}
    register = EtcdRegister(option_or("rdzv-endpoint", "localhost"), torchrun.rendezvous_id(command, environ), conf)
    return StorePlace(WatchedRegister(register, warn), option_or("local-addr", "") or socket.getfqdn())
