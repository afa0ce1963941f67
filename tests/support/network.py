"""A network of namespaces, one for each node of a job, whose links are cut as a test likes. Root and iproute2 only."""

from __future__ import annotations

import contextlib
import subprocess
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: No interface has this address: what is sent to it gets lost.
_NOBODY = "02:00:00:00:de:ad"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)  # noqa: S603, S607  our own words


class Network:
    """A switch, and a namespace for each node with one link to it: node N is at 10.7.0.(N + 1)."""

    def __init__(self, count: int) -> None:
        mark = uuid.uuid4().hex[:6]
        self.switch = f"sv-{mark}-s"
        self.names = [f"sv-{mark}-{node}" for node in range(count)]
        for name in (self.switch, *self.names):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        for side in ("br0", "br1"):
            _ip("-n", self.switch, "link", "add", side, "type", "bridge")
            _ip("-n", self.switch, "link", "set", side, "up")
        for node, name in enumerate(self.names):
            _ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{node}", "netns", self.switch)
            _ip("-n", self.switch, "link", "set", f"p{node}", "master", "br0")
            _ip("-n", self.switch, "link", "set", f"p{node}", "up")
            _ip("-n", name, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")

    @staticmethod
    def address(node: int) -> str:
        """Return the address of a node."""
        return f"10.7.0.{node + 1}"

    def cut(self, node: int) -> None:
        """Let nothing through to a node or from it, without a word to either side."""
        _ip("-n", self.switch, "link", "set", f"p{node}", "down")

    def mend(self, node: int) -> None:
        """Undo it."""
        _ip("-n", self.switch, "link", "set", f"p{node}", "up")

    def split(self, nodes: Sequence[int]) -> None:
        """Let these nodes reach each other and no other node."""
        for node in nodes:
            _ip("-n", self.switch, "link", "set", f"p{node}", "master", "br1")

    def heal(self, nodes: Sequence[int]) -> None:
        """Undo it."""
        for node in nodes:
            _ip("-n", self.switch, "link", "set", f"p{node}", "master", "br0")

    def lose_way(self, sender: int, receiver: int) -> None:
        """Lose what one node sends to another; the other direction works."""
        _ip("-n", self.names[sender], "neigh", "replace", self.address(receiver), "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent")

    def find_way(self, sender: int, receiver: int) -> None:
        """Undo it."""
        _ip("-n", self.names[sender], "neigh", "del", self.address(receiver), "dev", "eth0")

    def close(self) -> None:
        """Remove all of it."""
        for name in (*self.names, self.switch):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", name)
