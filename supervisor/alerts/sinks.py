"""What a place that alerts go to must be able to do, and the table of those there are.

A sink reports the outcome of one try. delivery.py decides when to try again, in which order, and what is kept. A sink that the table
names is imported only when it is configured.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Final, Protocol, cast


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver has it."""


@dataclass(frozen=True, slots=True)
class DeliveryDeferred:
    """Not now: `reason` in words that hold no secret, `after_s` what the receiver asked for (0: nothing)."""

    reason: str
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DeliveryRefused:
    """Never: another try of the same alert would be answered alike."""

    reason: str


Outcome = Delivered | DeliveryDeferred | DeliveryRefused


class AlertSink(Protocol):
    """A place that alerts go to. `host` may be logged; nothing else of its address may."""

    host: str

    def deliver(self, event_id: str, body: bytes, deadline_s: float) -> Outcome:
        """Try once, idempotent by `event_id`, and be back within `deadline_s`; never raises."""


class _SinkModule(Protocol):
    def make(self, url: str, secret: bytes | None) -> AlertSink: ...


#: Sink name (as in the settings) -> the module that has `make(url, secret)`.
SINKS: Final = {"webhook": "supervisor.alerts.webhook"}


def make(name: str, url: str, secret: bytes | None) -> AlertSink:
    """Import and make the sink `name`; raises SuperviseError for an address that it cannot use."""
    return cast("_SinkModule", import_module(SINKS[name])).make(url, secret)
