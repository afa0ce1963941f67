"""The messages between the nodes of a round, over the agents' store: all-gathers before the ranks start, then one broadcast of each node.

In an all-gather each node gives a text and gets the texts of all, in the order of the nodes. Reading a large checkpoint takes minutes, so a
node has time as long as its agent counts up its own key once a second. A node whose agent is gone is noticed after SILENT_S.

Raises AttemptCancelled where the attempt was stopped meanwhile, TimeoutError where a node is silent, and torch's errors where the store is
lost.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # exported where the build has them

from supervisor.agent.round_agreement import AttemptCancelled, own_client

if TYPE_CHECKING:
    from collections.abc import Callable

BEAT_S = 1.0
SILENT_S = 30.0
POLL_S = 0.02
BROADCAST_POLL_S = 1.0
BROADCAST_POLL_SELDOM_S = 10.0


class NodeAllGathers:
    """The all-gathers of one round. `token` is the round's own. For one thread."""

    def __init__(self, store: Store, token: str, node: int, nodes: int, cancelled: Callable[[], bool]) -> None:
        """Nothing is written before the first `gather` or `beat`."""
        self._store = PrefixStore(f"supervise/{token}/exchange", store)
        self._node = node
        self._nodes = nodes
        self._cancelled = cancelled
        self._next_beat = 0.0

    def beat(self) -> None:
        """Show that this node's agent lives, at most once in BEAT_S."""
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + BEAT_S
            self._store.add(f"alive/{self._node}", 1)

    def gather(self, number: int, text: str) -> list[str]:
        """Give `text` to all-gather `number`, and return the texts of all nodes."""
        self._store.set(f"{number}/{self._node}", text)
        missing = list(range(self._nodes))
        seen: dict[int, tuple[int, float]] = {}
        while True:
            if self._cancelled():
                raise AttemptCancelled
            missing = [node for node in missing if not self._store.check([f"{number}/{node}"])]
            if not missing:
                return [self._store.get(f"{number}/{node}").decode() for node in range(self._nodes)]
            self.beat()
            self._check_silence(missing, seen)
            time.sleep(min(BEAT_S, POLL_S * self._nodes))

    def _check_silence(self, missing: list[int], seen: dict[int, tuple[int, float]]) -> None:
        now = time.monotonic()
        for node in missing:
            count = self._store.add(f"alive/{node}", 0)
            if seen.get(node, (-1, 0.0))[0] != count:
                seen[node] = count, now
            elif now - seen[node][1] > SILENT_S:
                msg = f"node {node} of this rendezvous has been silent for {SILENT_S:.0f} s, while the nodes agreed on a checkpoint"
                raise TimeoutError(msg)


class NodeBroadcasts:
    """One text of each node for all others, while the ranks run: how they began. `received` is called with each, from a thread.

    The thread polls one count, and reads only when that grew; after a minute it polls seldom: some nodes have nothing to send.
    """

    def __init__(self, store: Store, token: str, node: int, nodes: int, received: Callable[[str], None]) -> None:
        """Begin to listen."""
        self._node, self._nodes, self._received = node, nodes, received
        self._text: str | None = None
        self._changed = threading.Event()
        self._left = False
        threading.Thread(target=self._quietly, args=(store, f"supervise/{token}/broadcasts"), name="broadcasts", daemon=True).start()

    def send(self, text: str) -> None:
        """Send this node's text to the others. Returns at once."""
        self._text = text
        self._changed.set()

    def leave(self) -> None:
        """Send and receive nothing any more."""
        self._left = True
        self._changed.set()

    def _quietly(self, store: Store, prefix: str) -> None:
        with suppress(RuntimeError, OSError):  # torch's errors of a lost store are RuntimeErrors: the ranks' own collectives report it
            self._run(PrefixStore(prefix, own_client(store)))

    def _run(self, store: Store) -> None:
        missing = [node for node in range(self._nodes) if node != self._node]
        known, is_sent, began = 0, False, time.monotonic()
        while missing or not is_sent:
            self._changed.wait(BROADCAST_POLL_S if time.monotonic() - began < 60 * BROADCAST_POLL_S else BROADCAST_POLL_SELDOM_S)
            if self._left:
                return
            self._changed.clear()
            if self._text is not None and not is_sent:
                is_sent = True
                store.set(str(self._node), self._text)
                store.add("count", 1)
            count = store.add("count", 0)
            if count == known:
                continue
            known = count
            for node in [node for node in missing if store.check([str(node)])]:
                missing.remove(node)
                self._received(store.get(str(node)).decode())
