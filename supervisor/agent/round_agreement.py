"""Gives every attempt a store of its own, and carries which node failed first and what its supervisor decided.

torch lets the ranks of every attempt use the agents' store, without a prefix per attempt, so restarted ranks read the addresses of the
dead (pytorch #135712, #167302). Here the node of rank 0 chooses a fresh port for each attempt, on which rank 0 hosts a store, and gives the
port to the other nodes through the agents' store. The static rendezvous has no rounds: every attempt gets the same keys and no node waits
for another. `enter_round` counts rounds for it.

The agents' store holds two keys per round. The end names the node whose rank failed first (one compare_set). The decision is what the
supervisor of that node published for all. A thread reads the end with its own store client in one long wait, because TCPStore prints a
warning for each wait that times out and locks the client meanwhile. Leaving the round sets the end too, so that these waits return on every
node. The decision is polled, since it comes within seconds. The node that owes it counts up a key meanwhile; when that count stands still
for SILENT_S, the first node to notice decides `restart` in its place.

Raises TimeoutError where a peer does not come within PEER_TIMEOUT_S, AttemptCancelled where the attempt was stopped meanwhile, and torch's
own errors where the store is lost. The threads here end quietly then, because the ranks' collectives fail as well.
"""

from __future__ import annotations

import errno
import json
import queue
import random
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # exported where the build has them

if TYPE_CHECKING:
    from collections.abc import Callable

PEER_TIMEOUT_S = 600.0  # torch's own join timeout
POLL_S = 0.05
CLIENT_TIMEOUT_S = 30.0
READ_BY_ALL_S = 1.0
BEAT_S = 1.0
SILENT_S = 15.0  # a machine under load may keep an agent from its beat for some seconds
DECISION_POLL_MAX_S = 0.5  # of many nodes each asks less often
LONG_WAIT = timedelta(days=10)  # one wait of the many that an attempt may take; less than 2**31 ms, which poll(2) takes
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
HANDOVER = "supervise/handover"
LEFT = "supervise/left"
ABANDONED = "abandoned"
DONE = "done"
FAILURE = "failure"
LOWEST_PORT = 10_000
PORT_TRIES = 200


class AttemptCancelled(Exception):  # noqa: N818  not a failure: the attempt was stopped while its nodes were still gathering
    """The attempt was stopped before its ranks were started."""


@dataclass(frozen=True, slots=True)
class Handover:
    """The message of rank 0's node to the others of a round. `token` makes its keys unlike those of any other round."""

    round: int
    port: int
    token: str


def free_port(ephemeral: Path = EPHEMERAL) -> int:
    """A TCP port that nothing is bound to and that no outgoing connection is given by the kernel.

    It is only tested, not held: rank 0 binds it seconds later. A collision fails one attempt; the next has another port.
    """
    try:
        low, high = (int(n) for n in ephemeral.read_text().split())
    except (OSError, ValueError):
        low, high = 32768, 60999
    ports = [p for p in range(LOWEST_PORT, 65536) if not low <= p <= high]
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


def wait_keys(store: Store, keys: list[str], cancelled: Callable[[], bool], what: str) -> None:
    """Poll for keys, so that a stop ends the wait and torch prints no timeout. Raises AttemptCancelled or TimeoutError."""
    until = time.monotonic() + PEER_TIMEOUT_S
    while not store.check(keys):
        if cancelled():
            raise AttemptCancelled
        if time.monotonic() > until:
            msg = f"waiting for {what}: nothing came within {PEER_TIMEOUT_S:.0f} s"
            raise TimeoutError(msg)
        time.sleep(POLL_S)


def hand_over(store: Store, rank: int, cancelled: Callable[[], bool]) -> Handover:
    """Agree on the attempt's port: chosen by the node of rank 0, read by the others, through the round's own `store`."""
    if rank == 0:
        mine = Handover(int(_base(store).add("supervise/handovers", 1)), free_port(), uuid.uuid4().hex)
        store.set(HANDOVER, json.dumps({"port": mine.port, "token": mine.token, "round": mine.round}))
        return mine
    wait_keys(store, [HANDOVER], cancelled, "the port from the node of rank 0")
    return _load_handover(store)


def _load_handover(store: Store) -> Handover:
    raw = json.loads(store.get(HANDOVER))
    return Handover(int(raw["round"]), int(raw["port"]), str(raw["token"]))


def enter_round(  # noqa: PLR0913  who we are among whom
    store: Store, rank: int, world_size: int, *, last: int, me: str, cancelled: Callable[[], bool]
) -> int:
    """The number of the next static round in which every node takes part. Blocks until all are in it.

    Node 0 opens a round and ends the one before; the others wait for one that is newer than their `last` and has not ended. An agent that
    finds its own place taken (`me` is another: it replaces a dead agent) takes it where no rank was started yet, and else ends that
    round for all and waits for the next.
    """
    number = int(store.add("supervise/opened", int(rank == 0)))
    if rank == 0:
        _end_running(store, number - 1, _RoundNote(FAILURE, "node 0", "node 0 began another round"))
        static_store(store, number).set("open", "1")
    else:
        number = max(last + 1, number)
    while True:
        here = static_store(store, number)
        wait_keys(here, ["open"], cancelled, "node 0 to begin a round")
        taken = here.compare_set(f"joined/{rank}", "", me).decode() != me
        replaced = _RoundNote("restart", f"node {rank}", f"the agent of node {rank} was replaced")
        if not _end_running(store, number, replaced if taken else None):
            here.set(f"joined/{rank}", me)
            break
        number += 1
    wait_keys(here, [f"joined/{r}" for r in range(world_size)], cancelled, "the other nodes to join the round")
    return number


def _end_running(store: Store, number: int, note: _RoundNote | None) -> bool:
    """End round `number` with `note` if its ranks were started. Return whether it has ended, by whichever node.

    A note that is a decision (restart) is published as one too: the node that would decide is the one that is gone.
    """
    here = static_store(store, number)
    if number < 1 or not here.check([HANDOVER]):
        return False
    keys = _of_round(store, _load_handover(here).token)
    if note is not None:
        end_round(keys, _RoundNote(FAILURE, note.node, note.text))
        if note.kind == "restart":
            keys.compare_set("decision", "", note.dump())
    return bool(keys.check(["end"]))


def static_store(store: Store, number: int) -> Store:
    """The agents' store as round `number` of a static rendezvous sees it."""
    return PrefixStore(f"supervise/round/{number}", store)


def _base(store: Store) -> Store:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


@dataclass(frozen=True, slots=True)
class DecisionChanges:
    """What a decision changes on all nodes: knobs' values, checkpoints from which no attempt resumes any more, and its cause.

    first: the cause (FirstCause in core/model.py), which no agent reads; its node is filled in here.
    """

    overrides: tuple[tuple[str, str], ...] = ()
    rejected: tuple[str, ...] = ()
    first: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _RoundNote:
    """The end of a round (kind: failure, membership, done) or a decision (kind: restart, stop). `done`: every node ended well.

    changes: of a decision that a supervisor made; None where an agent that left made it, so that all stays as it is.
    """

    kind: str
    node: str
    text: str
    exit_code: int = 0
    changes: DecisionChanges | None = None

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, raw: bytes) -> _RoundNote:
        r = json.loads(raw)
        changes = r.get("changes")
        if changes is not None:
            overrides = tuple((str(name), str(value)) for name, value in changes["overrides"])
            changes = DecisionChanges(overrides, tuple(str(path) for path in changes["rejected"]), changes.get("first"))
        return cls(str(r["kind"]), str(r["node"]), str(r["text"]), int(r["exit_code"]), changes)


def end_round(store: Store, note: _RoundNote) -> _RoundNote:
    """End the round. Return the end that holds: the first one set."""
    return _RoundNote.load(store.compare_set("end", "", note.dump()))


def is_abandoned(store: Store, token: str) -> bool:
    """Return whether a node of the round lost its supervisor while its ranks lived."""
    return bool(_of_round(store, token).check([ABANDONED]))


def end_abandoned(store: Store, token: str) -> bool:
    """End the round in the name of that node, with the decision to begin another. An end that a living node set stands.

    Returns False where the round cannot be ended so any more, since a node was done and left.
    """
    here = _of_round(store, token)
    note = _RoundNote.load(here.get(ABANDONED))
    end = end_round(here, replace(note, kind=FAILURE))
    if end.node == note.node:
        here.compare_set("decision", "", note.dump())
    return end.kind != DONE


def _of_round(store: Store, token: str) -> Store:
    return PrefixStore(f"supervise/{token}", _base(store))


def own_client(store: Store) -> Store:
    """A client of the same store that another thread may block in. Without prefix; where there can be none, the store itself."""
    base = _base(store)
    if isinstance(base, TCPStore):
        return TCPStore(base.host, base.port, None, False, timeout=timedelta(seconds=CLIENT_TIMEOUT_S), wait_for_workers=False)  # noqa: FBT003  positional in every version
    return base


class RoundAgreement:
    """The end and the decision of one round on several nodes.

    `on_round_ended(kind, node, text)` when another node ended it; `on_decision(kind, exit_code, text, changes)` when another node decided.
    `fail`, `admit`, `publish`, `abandon` and `leave` return at once; a thread writes their notes.
    """

    def __init__(  # noqa: PLR0913  two callbacks and the four facts of a round
        self,
        store: Store,
        token: str,
        *,
        node: str,
        nodes: int,
        on_round_ended: Callable[[str, str, str], None],
        on_decision: Callable[[str, int, str, DecisionChanges | None], None],
    ) -> None:
        """Start to watch at once."""
        self._node = node
        self._me = f"{node}/{uuid.uuid4().hex[:8]}"
        self._nodes = nodes
        self._on_round_ended = on_round_ended
        self._on_decision = on_decision
        self._notes: queue.SimpleQueue[tuple[str, _RoundNote] | None] = queue.SimpleQueue()
        self._left = threading.Event()
        self._published = False
        self._done = False  # a node was done, and left
        self._threads = [
            threading.Thread(target=self._quietly, args=(target, store, f"supervise/{token}"), name="round", daemon=True)
            for target in (self._write, self._read)
        ]
        for thread in self._threads:
            thread.start()

    def fail(self, text: str) -> None:
        """A rank of this node failed."""
        self._notes.put(("end", _RoundNote(FAILURE, self._me, text)))

    def admit(self) -> None:
        """This node stops its ranks so that others can join."""
        self._notes.put(("end", _RoundNote("membership", self._me, "nodes are admitted")))

    def publish(self, kind: str, exit_code: int, reason: str, changes: DecisionChanges) -> None:
        """This node's decision holds for all; a node whose ranks still run ends the round with it."""
        self._published = True
        self._notes.put(("end", _RoundNote(FAILURE, self._me, reason)))
        first = None if changes.first is None else {**changes.first, "node": self._node}
        self._notes.put(("decision", _RoundNote(kind, self._me, reason, exit_code, replace(changes, first=first))))

    def abandon(self) -> None:
        """Nobody decides here any more: where the round ends for a failure of this node, now or later, all begin another round.

        This node's ranks go on. The round cannot succeed: a node that waits for that ends it in this node's name (`end_abandoned`).
        """
        note = _RoundNote("restart", self._me, f"supervise of node {self._node} ended before it decided")
        self._notes.put((ABANDONED, note))
        self._notes.put(("default", note))

    def lose(self, text: str) -> None:
        """The store is lost: end this node's attempt and begin another round, unless a node reported that it is done: it left for good."""
        if not self._done:
            self._on_round_ended(FAILURE, self._node, text)
            self._on_decision("restart", 0, text, None)

    def leave(self, *, done: bool = False) -> None:
        """The round is over for this node: nothing is reported any more, and the waits for its end return.

        Unless every node is `done`, this ends a round that still runs, with the decision to begin another round, as we do.
        """
        self._left.set()
        text = f"node {self._node} left the round"
        self._notes.put(("end", _RoundNote(DONE if done else FAILURE, self._me, text)))
        self._notes.put(("default", _RoundNote(DONE if done else "restart", self._me, text)))
        self._notes.put(None)

    def finish(self, timeout_s: float, *, done: bool) -> None:
        """Leave, and wait until all notes are written and all nodes have read them: this process may serve the store."""
        self.leave(done=done)
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _quietly(self, target: Callable[[Store], None], store: Store, prefix: str) -> None:
        with suppress(RuntimeError, OSError):  # every torch.distributed error is a RuntimeError: the store is lost, the ranks will fail too
            target(PrefixStore(prefix, own_client(store)))

    def _write(self, store: Store) -> None:
        mine, default = False, None  # the default is written only where the end is ours: else a living node decides
        while (item := self._notes.get()) is not None:
            key, note = item
            if key == "default":
                default = note
            elif key == "end":
                mine = end_round(store, note).node == self._me
            else:
                store.compare_set(key, "", note.dump())
            if mine and default is not None:
                store.compare_set("decision", "", default.dump())
        until = time.monotonic() + READ_BY_ALL_S
        while self._published and store.add("read", 0) < self._nodes - 1 and time.monotonic() < until:
            time.sleep(POLL_S)

    def _read(self, store: Store) -> None:
        self._await(store, "end")
        end = _RoundNote.load(store.get("end"))
        self._done = end.kind == DONE
        if self._concerns_us(end):
            self._on_round_ended(end.kind, end.node.partition("/")[0], end.text)
        if end.kind != FAILURE:
            return  # nobody owes a decision
        try:
            note = self._await_decision(store, end)
        except (RuntimeError, OSError) as error:
            if end.node == self._me:
                raise
            note = _RoundNote("restart", "", f"the agents' store was lost before a decision came: {end.text}: {error}")
        if note is not None and self._concerns_us(note):
            self._on_decision(note.kind, note.exit_code, note.text, note.changes)

    def _await_decision(self, store: Store, end: _RoundNote) -> _RoundNote | None:
        """Return the decision of the node that ended the round, or the one in its place; None where this node left before.

        What happens otherwise: a node's rank is killed, the node sets the end and loses its power. The others would wait for it until
        their supervisors give up.
        """
        mine, beats = end.node == self._me, -1
        last_beat = time.monotonic()
        next_check = last_beat
        while not store.check(["decision"]):
            now = time.monotonic()
            if now >= next_check:
                next_check = now + BEAT_S
                before, beats = beats, store.add("beats", int(mine))
                if beats != before:
                    last_beat = now
                elif now - last_beat > SILENT_S:
                    reason = f"node {end.node.partition('/')[0]} was silent for {SILENT_S:.0f} s and did not decide: {end.text}"
                    store.compare_set("decision", "", _RoundNote("restart", self._node, reason).dump())
            if self._left.wait(min(DECISION_POLL_MAX_S, POLL_S * self._nodes)):
                return None
        note = _RoundNote.load(store.get("decision"))
        if note.node != self._me:
            store.add("read", 1)
        return note

    @staticmethod
    def _await(store: Store, key: str) -> None:
        """Wait for a key however long an attempt lasts: what one wait can last is bounded. Raises torch's error where the store is lost."""
        while True:
            began = time.monotonic()
            try:
                store.wait([key], LONG_WAIT)
            except RuntimeError:
                if time.monotonic() - began < LONG_WAIT.total_seconds() / 2:
                    raise
                store.check([key])  # raises where it was the store that ended the wait
            else:
                return

    def _concerns_us(self, note: _RoundNote) -> bool:
        return note.node != self._me and note.kind != DONE and not self._left.is_set()


def served_here(store: Store) -> bool:
    """Whether this process serves the agents' store. torch shows it in the store's text only; a wrong No costs noise at the end."""
    return "server=TCPServer" in repr(_base(store))


def await_left(store: Store, others: int, timeout_s: float) -> None:
    """Wait until the `others` have left: the process that serves the store leaves last, or torch prints their lost connections."""
    until = time.monotonic() + timeout_s
    while store.add(LEFT, 0) < others and time.monotonic() < until:
        time.sleep(POLL_S)


def mark_left(store: Store) -> None:
    """This node will not use the store again."""
    store.add(LEFT, 1)
