"""A rendezvous store as an agent serves it, and clients of other nodes."""

from __future__ import annotations

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # exported where the build has them

from supervisor.agent.rendezvous import unprefixed


def served_store() -> Store:
    """Return a store that is served here for as long as the result lives."""
    return PrefixStore("run", TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False))  # noqa: FBT003  positional in every version


def another_client(store: Store) -> Store:
    """Return a client of another node."""
    base = unprefixed(store)
    return PrefixStore("run", TCPStore(base.host, base.port, None, False, wait_for_workers=False))  # type: ignore[attr-defined]  # noqa: FBT003  a TCPStore; as above
