"""One value of the job that outlives each single host, and the record in it: who serves the control store, with which rows.

The value is changed by compare-and-set alone: whoever writes names the version that he replaces. So a store that was taken over can write
nothing any more, whatever it believes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Protocol

import msgspec

from supervisor.cluster.model import ClusterDecision, Epoch, newest_epoch


class RegisterUnreachable(Exception):  # noqa: N818  no failure of the job: it is tried again
    """The register does not answer. What was written may have been taken, or may still be."""


class RegisterChanged(Exception):  # noqa: N818  as above
    """The value has another version than the one that was to be replaced."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A value and its version; version 0: nothing was ever written."""

    version: int
    value: str


class Register(Protocol):
    """The value. A call ends within a second or two; both are linearizable."""

    def read(self) -> Registered:
        """Return the newest value. Raises RegisterUnreachable."""
        ...

    def write(self, value: str, version: int) -> int:
        """Replace the value of this version; return the new one's, which is greater. Raises RegisterChanged, RegisterUnreachable."""
        ...


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """Who serves the control store, and what the next store begins with.

    store: of this start of it. node, host, port, key: who serves it, and how it is reached. rows: those that a store keeps.
    """

    store: str
    node: str
    host: str
    port: int
    key: str
    rows: tuple[tuple[str, str], ...] = ()

    def value(self) -> str:
        """Return what is written."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, value: str) -> StoreRecord | None:
        """Return the record of a value, None where it is none."""
        try:
            return msgspec.convert(json.loads(value), cls)
        except (ValueError, msgspec.ValidationError):
            return None

    @property
    def is_bid(self) -> bool:
        """Whether no store is served yet: `host` serves one once the nodes have met there."""
        return self.port == 0

    @property
    def members(self) -> tuple[str, ...]:
        """The members of the newest epoch."""
        rows = dict(self.rows)
        number = newest_epoch(rows)
        return Epoch.read(number, rows[f"epoch/{number}"]).members if number else ()

    @property
    def is_final(self) -> bool:
        """Whether the job is over."""
        return any(key.startswith("decision/") and ClusterDecision.read(value).is_final for key, value in self.rows)
