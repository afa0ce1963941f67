"""Shows the nodes of a round which node failed first, and the decision of its supervisor.

The agents' store holds two keys per round. The end names the node whose rank failed first (one compare_set). The decision is published by
the supervisor of that node, for all nodes. A thread reads the end with its own store client in one long wait, because TCPStore prints a
warning for each wait that times out and locks the client meanwhile. Leaving the round sets the end too, so that these waits return on every
node. The decision is polled, since it comes within seconds. The node that owes it counts up a key meanwhile; if that count stands still for
SILENT_S, the first node to notice decides `restart` in its place.

The functions raise torch's own errors if the store is lost. The threads end quietly then, because the ranks' collectives fail as well.
"""

from __future__ import annotations

import json
import queue
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # exported where the build has them

from supervisor.core.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_S = 0.05
CLIENT_TIMEOUT_S = 30.0
READ_BY_ALL_S = 1.0
BEAT_S = 1.0
SILENT_S = 15.0  # a machine under load may keep an agent from its beat for some seconds
DECISION_POLL_MAX_S = 0.5  # with many nodes, each asks less often
LONG_WAIT = timedelta(days=10)  # one wait of the many that an attempt may take; less than 2**31 ms, which poll(2) takes
ABANDONED = "abandoned"
DONE = "done"
FAILURE = "failure"


class AttemptCancelled(Exception):  # noqa: N818  not a failure: the attempt was stopped while its nodes were still gathering
    """The attempt was stopped before its ranks were started."""


def unprefixed(store: Store) -> Store:
    """The agents' store itself, which every round shares."""
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
    """A note in the store. kind is failure or membership (an end), restart or stop (a decision), or done (every node ended well).

    changes: of a supervisor's decision; None if an agent that left made the decision, which changes nothing.
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


def end_round_of(store: Store, token: str, node: str, text: str, *, restart: bool = False) -> None:
    """End a round in which this process takes no part.

    restart: also write the restart as the decision, because the node that would decide is gone.
    """
    here = _of_round(store, token)
    end_round(here, _RoundNote(FAILURE, node, text))
    if restart:
        here.compare_set("decision", "", _RoundNote("restart", node, text).dump())


def is_ended(store: Store, token: str) -> bool:
    """Return whether any node ended the round."""
    return bool(_of_round(store, token).check(["end"]))


def is_abandoned(store: Store, token: str) -> bool:
    """Return whether a node of the round lost its supervisor while its ranks lived."""
    return bool(_of_round(store, token).check([ABANDONED]))


def end_abandoned(store: Store, token: str) -> bool:
    """End the round in the name of the node that lost its supervisor, with the decision `restart`. An earlier end stays.

    Returns False if the round already ended well: a node was done and left.
    """
    here = _of_round(store, token)
    note = _RoundNote.load(here.get(ABANDONED))
    end = end_round(here, replace(note, kind=FAILURE))
    if end.node == note.node:
        here.compare_set("decision", "", note.dump())
    return end.kind != DONE


def _of_round(store: Store, token: str) -> Store:
    return PrefixStore(f"supervise/{token}", unprefixed(store))


def own_client(store: Store) -> Store:
    """Return a client in which another thread may block. It has no prefix. If the store is not a TCPStore, return the store itself."""
    base = unprefixed(store)
    if isinstance(base, TCPStore):
        return TCPStore(base.host, base.port, None, False, timeout=timedelta(seconds=CLIENT_TIMEOUT_S), wait_for_workers=False)  # noqa: FBT003  positional in every version
    return base


class RoundAgreement:
    """The end and the decision of one round on several nodes.

    `on_round_ended(kind, node, text)` when another node ended it; `on_decision(kind, exit_code, text, changes)` when another node decided.
    Each ending has a method; all but `finish` return at once, and a thread writes their notes:

        fail      a rank of this node failed
        admit     this node stops its ranks so that others can join
        publish   this node's supervisor decided for all nodes
        abandon   this node lost its supervisor; its ranks go on
        lose      the store is lost
        leave     the round is over for this node
        finish    leave, and wait until all nodes have read the notes
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
        self._done = False  # a node ended well and left
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
        """This node lost its supervisor. If the round ends because of this node, now or later, all nodes begin another round.

        This node's ranks go on. The round cannot succeed: a node that waits for that ends it in this node's name (`end_abandoned`).
        """
        note = _RoundNote("restart", self._me, f"supervise of node {self._node} ended before it decided")
        self._notes.put((ABANDONED, note))
        self._notes.put(("default", note))

    def lose(self, text: str) -> None:
        """The store is lost: end this node's attempt and begin another round.

        Does nothing if a node reported done: then it is the store's server that ended well.
        """
        if not self._done:
            self._on_round_ended(FAILURE, self._node, text)
            self._on_decision("restart", 0, text, None)

    def leave(self, *, done: bool = False) -> None:
        """The round is over for this node: it reports nothing more, and the waits for the end return.

        Unless every node is `done`, this ends the round if it is still running, with the decision `restart`.
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
        # default: the decision that is written if the end is ours and no supervisor decided; else a living node decides
        mine, default = False, None
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
        """Return the decision of the node that ended the round, or the one in its place; None if this node left before.

        Without the beats: a node's rank is killed, the node sets the end and loses its power. The others would wait for it until their
        supervisors give up.
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
        """Wait for a key in repeated waits, because torch bounds a single wait. Raises torch's error if the store is lost."""
        while True:
            began = time.monotonic()
            try:
                store.wait([key], LONG_WAIT)
            except RuntimeError:
                if time.monotonic() - began < LONG_WAIT.total_seconds() / 2:
                    raise
                store.check([key])  # raises if the lost store ended the wait
            else:
                return

    def _concerns_us(self, note: _RoundNote) -> bool:
        return note.node != self._me and note.kind != DONE and not self._left.is_set()
