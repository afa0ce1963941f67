"""The agents' rendezvous: which nodes take part in a round, and the store in which the ranks of its attempt meet.

torch lets the ranks of every attempt use the agents' store, without a prefix per attempt, so restarted ranks read the addresses of the
dead (pytorch #135712, #167302). Here the agent on the node of rank 0 serves a new store for each attempt, on a fresh port, before any rank
starts; the other nodes get the port through the agents' store. The static rendezvous has no rounds: every attempt gets the same keys and
no node waits for another. `enter_round` counts rounds for it.

Raises TimeoutError if a peer does not come within PEER_TIMEOUT_S, AttemptCancelled if the attempt was stopped meanwhile, and torch's own
errors if the store is lost.
"""

from __future__ import annotations

import errno
import functools
import json
import logging
import os
import random
import socket
import threading
import time
import uuid
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # exported where the build has them
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousInfo

from supervisor.agent.dynamic_rounds import MissingNodes, RoundOps

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.agent.dynamic_rounds import RoundListener

_log = logging.getLogger(__name__)
PEER_TIMEOUT_S = 600.0  # torch's own join timeout
POLL_S = 0.05
COUNT_S = 1.0  # how often the nodes that are missing in a static round are counted
DEAF_S = 10.0  # until a lost store is asked again: torch writes a dozen lines of C++ frames for each question that fails
SHUTDOWN_S = 2.0  # seconds that leaving may take: torch's client waits much longer for a store that is lost, and the job is over
LAST_S = 1.5  # of them, seconds that the node which serves the store waits for the others to leave it; the rest is for closing it
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
CLIENT_TIMEOUT_S = 30.0
CLAIM_S = (
    10.0  # seconds until a node claims the coordinator's part where torch shows on no node who serves its store: that one takes some ms
)
COORDINATOR = "supervise/coordinator"
HANDOVER = "supervise/handover"
LEFT = "supervise/left"
LOWEST_PORT = 10_000
PORT_TRIES = 200


class AttemptCancelled(Exception):  # noqa: N818  not a failure: the attempt was stopped while its nodes were still gathering
    """The attempt was stopped before its ranks were started."""


@dataclass(frozen=True, slots=True)
class CoordinatorLocation:
    """Where the coordinator of the nodes listens, and what lets a node in."""

    host: str
    port: int
    key: str


@dataclass(frozen=True, slots=True)
class MetNode:
    """This node among those that met: `index` of `count`, at `address`, with `world_size` ranks in all."""

    index: int
    count: int
    address: str
    world_size: int = 0


@dataclass(frozen=True, slots=True)
class Handover:
    """The message of rank 0's node to the others of a round. `token` makes its keys unlike those of any other round."""

    round: int
    port: int
    token: str


class RoundRendezvous(RendezvousHandler):
    """The user's rendezvous, whatever its backend, with rounds for the static one and nodes admitted only when that was decided."""

    def __init__(self, inner: RendezvousHandler, controller: RoundListener, *, nodes: int, master_addr: str = "") -> None:
        """Wrap `inner`; `nodes` is the greatest number of nodes, `master_addr` the address of rank 0's node where the user gave one."""
        self._inner = inner
        self._master_addr = master_addr
        self._attempt_store: TCPStore | None = None
        self._met: RendezvousInfo | None = None
        self._controller = controller
        self._several = nodes > 1
        self._missing = MissingNodes(controller)
        self._ops = RoundOps.of(inner, self._missing) if nodes > 1 else None
        self._me = uuid.uuid4().hex
        self._last = 0
        self._waiting = 0
        self._asks_t = 0.0  # not before this are they asked for
        self._is_deaf = False  # the rendezvous could not be asked for them last, and that is reported
        self._others = 0
        self.returning = 0  # nodes of the last attempt that come to the next round, 0: not known
        self.least_nodes = 0  # the next round waits for so many, 0: for as many as torchrun's arguments say
        self.node_group = 1  # nodes take part in groups of so many
        self.handover = Handover(0, 0, "")
        self.store: Store | None = None

    def get_backend(self) -> str:
        """See torch."""
        return self._inner.get_backend()

    def get_run_id(self) -> str:
        """See torch."""
        return self._inner.get_run_id()

    def is_closed(self) -> bool:
        """See torch."""
        return self._inner.is_closed()

    def set_closed(self) -> None:
        """See torch."""
        self._inner.set_closed()  # type: ignore[no-untyped-call]  # torch is typed in part

    @property
    def use_agent_store(self) -> bool:
        """Yes: the ranks are clients of the store that an agent serves for their attempt (TORCHELASTIC_USE_AGENT_STORE)."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Gather the nodes, then agree on the attempt's port. On the node of rank 0, serve the attempt's store there."""
        self.drop_attempt_store()
        self._missing.begin()
        if self._several or self._met is None:
            self._met = self._meet()
        met = self._met  # a node alone has met all others
        if met.rank == 0:
            self._attempt_store = serve_store(self._master_addr or str(met.bootstrap_store_info.master_addr))  # type: ignore[union-attr]  # None only from handlers that torch itself could not use
        self.handover = hand_over(met.store, self._attempt_store, self._controller.cancelled)
        self.store = met.store
        self._waiting = 0
        self._others = met.world_size - 1
        return met

    def _meet(self) -> RendezvousInfo:
        if self._ops is not None:
            self._ops.returning, self._ops.joining = self.returning, self._waiting
            self._ops.least_nodes, self._ops.node_group = self.least_nodes, self.node_group
        info = self._inner.next_rendezvous()
        store = info.store
        if self._inner.get_backend() == "static":  # the one that gives every attempt the same keys
            waits = functools.partial(wait_nodes, missing=self._missing, cancelled=self._controller.cancelled)
            self._last = enter_round(store, info.rank, info.world_size, last=self._last, me=self._me, waits=waits)
            store = static_store(store, self._last)
        return RendezvousInfo(store, info.rank, info.world_size, info.bootstrap_store_info)  # type: ignore[arg-type]

    def drop_attempt_store(self) -> None:
        """Stop serving the store of the last attempt, whose ranks here are gone: nothing of it may reach the ranks of another."""
        self._attempt_store = None

    def num_nodes_waiting(self) -> int:
        """Report nodes that want to join, and answer 0: torch would restart the ranks without asking."""
        if not self._several or time.monotonic() < self._asks_t:
            return 0
        try:
            count = self._inner.num_nodes_waiting()
        except Exception as error:  # noqa: BLE001  whatever it is, no reason to end healthy ranks: nobody needs an answer before they end
            self._asks_t = time.monotonic() + DEAF_S
            if not self._is_deaf:
                self._is_deaf = True
                _log.warning("supervise: the rendezvous does not say whether nodes want to join: %s: %s", type(error).__name__, error)
            return 0
        self._is_deaf = False
        if count != self._waiting:
            self._waiting = count
            self._controller.nodes_waiting(count)
        return 0

    def shutdown(self) -> bool:
        """Write the last notes to the other nodes and close the rendezvous, if the job is over for all; for at most SHUTDOWN_S."""
        closer = threading.Thread(target=self._shutdown_quietly, name="shutdown", daemon=True)
        closer.start()
        closer.join(SHUTDOWN_S)
        return True

    def _shutdown_quietly(self) -> None:
        if not self._controller.over_for_all and self._several:
            return  # as torch does when a signal ends it: the other nodes may continue
        shared = self.store if self._others else None
        try:
            serves = shared is not None and served_here(shared)
            if shared is not None and serves:
                await_left(shared, self._others, LAST_S)
            self._inner.shutdown()
            if shared is not None and not serves:
                mark_left(shared)
        except Exception as error:  # noqa: BLE001  mostly the store has gone with its host, which left first
            _log.info("supervise: the rendezvous was not closed: %s: %s", type(error).__name__, error)


def meet_at_once() -> None:
    """For a node alone: torch sleeps up to 0.3 s before its first two rendezvous, lest many nodes ask at once."""
    delay = getattr(dynamic_rendezvous, "_delay", None)
    if delay is not None:
        vars(dynamic_rendezvous)["_delay"] = lambda seconds: None if isinstance(seconds, tuple) else delay(seconds)


def wait_keys(store: Store, keys: list[str], cancelled: Callable[[], bool], subject: str, timeout_s: float | None = None) -> None:
    """Poll for keys, so that a stop ends the wait and torch prints no timeout. Raises AttemptCancelled or TimeoutError."""
    limit_s = PEER_TIMEOUT_S if timeout_s is None else timeout_s
    until = time.monotonic() + limit_s
    while not store.check(keys):
        if cancelled():
            raise AttemptCancelled
        if time.monotonic() > until:
            msg = f"waiting for {subject}: nothing came within {limit_s:.0f} s"
            raise TimeoutError(msg)
        time.sleep(POLL_S)


def serve_store(address: str) -> TCPStore:
    """Serve an empty store on a fresh port for as long as the result lives. Its `port` is bound from here on.

    Our own client takes the ranks' address: what does not lead here fails before any rank starts. Raises torch's RuntimeError then.
    """
    use_libuv = os.environ.get("USE_LIBUV", "1") == "1"  # as rank 0 would read it
    timeout = timedelta(seconds=CLIENT_TIMEOUT_S)
    return TCPStore(address, free_port(), None, True, timeout=timeout, wait_for_workers=False, use_libuv=use_libuv)  # noqa: FBT003  positional in every version


def hand_over(store: Store, serves: TCPStore | None, cancelled: Callable[[], bool]) -> Handover:
    """Agree on the attempt's port through the round's own `store`: written by the node that `serves` it, that of rank 0."""
    if serves is not None:
        mine = Handover(int(unprefixed(store).add("supervise/handovers", 1)), serves.port, uuid.uuid4().hex)
        store.set(HANDOVER, json.dumps({"port": mine.port, "token": mine.token, "round": mine.round}))
        return mine
    wait_keys(store, [HANDOVER], cancelled, "the port from the node of rank 0")
    return _load_handover(store)


def _load_handover(store: Store) -> Handover:
    raw = json.loads(store.get(HANDOVER))
    return Handover(int(raw["round"]), int(raw["port"]), str(raw["token"]))


def wait_nodes(store: Store, keys: list[str], subject: str, *, missing: MissingNodes, cancelled: Callable[[], bool]) -> None:
    """Poll for the key of each node, for as long as the supervisor lets it. Raises AttemptCancelled."""
    while not store.check(keys):
        try:
            wait_keys(store, keys, cancelled, subject, COUNT_S)
        except TimeoutError:
            missing.counted(sum(not store.check([key]) for key in keys), PEER_TIMEOUT_S)
    missing.counted(0, PEER_TIMEOUT_S)


def enter_round(  # noqa: PLR0913  who we are among whom
    store: Store, rank: int, world_size: int, *, last: int, me: str, waits: Callable[[Store, list[str], str], None]
) -> int:
    """Return the number of the next static round in which every node takes part. Blocks until all are in it, by `waits`.

    Node 0 opens a round; the others wait for one that is newer than their `last` and in which the nodes have not met yet. If another agent
    already joined as this node (its `me` differs), that agent died and we take its place. Where its round has met, its end is a matter of
    the supervisors, and this waits for the next.
    """
    number = int(store.add("supervise/opened", int(rank == 0)))
    if rank == 0:
        static_store(store, number).set("open", "1")
    else:
        number = max(last + 1, number)
    while True:
        here = static_store(store, number)
        waits(here, ["open"], "node 0 to begin a round")
        if rank == 0 or not here.check([HANDOVER]):
            here.set(f"joined/{rank}", me)
            break
        number += 1
    waits(here, [f"joined/{r}" for r in range(world_size)], "the other nodes to join the round")
    return number


def static_store(store: Store, number: int) -> Store:
    """The agents' store as round `number` of a static rendezvous sees it."""
    return PrefixStore(f"supervise/round/{number}", store)


def unprefixed(store: Store) -> Store:
    """The agents' store itself, which every round shares."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def find_coordinator(
    store: Store, node: MetNode, cancelled: Callable[[], bool], known: CoordinatorLocation | None = None
) -> CoordinatorLocation | None:
    """Return where the coordinator is, once that is known; None where this node's supervisor is to be it.

    It is on the node whose agent serves torch's rendezvous store: a job depends on one host, and not on two. Where that does not show who
    serves it, the first node claims the part. known: what the agent learned in an earlier round. Raises AttemptCancelled, TimeoutError,
    and torch's errors if the store is lost.
    """
    base = unprefixed(store)
    if not isinstance(base, TCPStore):
        return _find_in_round(store, node, cancelled, known)
    if not base.check([COORDINATOR]):
        if served_here(base):
            return None
        until = time.monotonic() + CLAIM_S
        while not base.check([COORDINATOR]) and time.monotonic() < until:
            if cancelled():
                raise AttemptCancelled
            time.sleep(POLL_S)
        if not base.check([COORDINATOR]) and base.add(f"{COORDINATOR}/claims", 1) == 1:
            return None
        wait_keys(base, [COORDINATOR], cancelled, "the coordinator's address")
    return _load_coordinator(base, str(base.host))


def _find_in_round(
    store: Store, node: MetNode, cancelled: Callable[[], bool], known: CoordinatorLocation | None
) -> CoordinatorLocation | None:
    """Find the coordinator beside a store that no agent serves (etcd): node 0 of the first round is it, for as long as the job lasts.

    Such a store may hold other jobs too, so only the part of the round is read. Nodes that know the coordinator from an earlier round show
    it there to those that are new.
    """
    mine = "" if known is None else json.dumps({"host": known.host, "port": known.port, "key": known.key})
    store.set(f"{COORDINATOR}/known/{node.index}", mine)
    if node.index == 0:
        keys = [f"{COORDINATOR}/known/{index}" for index in range(node.count)]
        wait_keys(store, keys, cancelled, "what each node knows of the coordinator")
        shown = next((text for text in (store.get(key) for key in keys) if text), None)
        if shown is None:
            return None
        store.set(COORDINATOR, shown.decode())
    else:
        wait_keys(store, [COORDINATOR], cancelled, "the coordinator's address")
    return _load_coordinator(store, "")


def _load_coordinator(store: Store, host: str) -> CoordinatorLocation:
    row = json.loads(store.get(COORDINATOR))
    return CoordinatorLocation(str(row["host"]) or host, int(row["port"]), str(row["key"]))


def publish_coordinator(store: Store, place: CoordinatorLocation) -> None:
    """Show the other nodes where the coordinator is. Beside torch's store it is reached as that is, else at the host of `place`."""
    base = unprefixed(store)
    shared = base if isinstance(base, TCPStore) else store
    shared.set(COORDINATOR, json.dumps({"host": "" if served_here(base) else place.host, "port": place.port, "key": place.key}))


def free_port(ephemeral: Path = EPHEMERAL) -> int:
    """Return a free TCP port outside the kernel's ephemeral range, if there is one.

    It is tested, not held: if another process takes it before the store is bound, this attempt fails, and the next has another port.
    """
    try:
        low, high = (int(n) for n in ephemeral.read_text().split())
    except (OSError, ValueError):
        low, high = 32768, 60999
    ports: list[int] = [*range(LOWEST_PORT, low), *range(max(high + 1, LOWEST_PORT), 65536)]
    for port in random.SystemRandom().sample(ports, min(PORT_TRIES, len(ports))):
        if _bindable(port):
            return port
    with socket.socket() as s:  # every port is ephemeral here
        s.bind(("", 0))
        return int(s.getsockname()[1])


def _bindable(port: int) -> bool:
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104  as TCPStore binds it
        try:
            with socket.socket(family) as s:
                if family == socket.AF_INET6:
                    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                s.bind((address, port))
        except OSError as e:
            if e.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # no IPv6 here
                continue
            return False
    return True


def served_here(store: Store) -> bool:
    """Whether this process serves the agents' store. torch shows it in the store's text only; a wrong No costs noise at the end."""
    return "server=TCPServer" in repr(unprefixed(store))


def await_left(store: Store, others: int, timeout_s: float) -> None:
    """Wait until the `others` have left: the process that serves the store leaves last, or torch prints their lost connections."""
    until = time.monotonic() + timeout_s
    while store.add(LEFT, 0) < others and time.monotonic() < until:
        time.sleep(POLL_S)


def mark_left(store: Store) -> None:
    """This node will not use the store again."""
    store.add(LEFT, 1)
