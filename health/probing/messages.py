"""The lines of JSON between the prober and its runner: one TypedDict for each, used at both ends.

The prober reads requests on stdin, one per line, and writes answers to stdout, one per line: `ready` once, then for each request its
readings as they are made, and at the end `done` or `failed`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, final

if TYPE_CHECKING:
    from health.model import Json


@final
class ProbeRequest(TypedDict):
    """Run one probe: its module, and `Ask.to_json`."""

    id: int
    module: str
    ask: dict[str, Json]


@final
class ProberReady(TypedDict):
    """The prober has started."""

    ready: bool


@final
class ProbeReading(TypedDict):
    """One reading, as `health.model.reading_from` takes it."""

    id: int
    reading: list[Json]


@final
class ProbeDone(TypedDict):
    """The probe has ended. done: CPU seconds."""

    id: int
    done: float


@final
class ProbeFailed(TypedDict):
    """The probe raised. failed: the exception."""

    id: int
    failed: str


ProberAnswer = ProberReady | ProbeReading | ProbeDone | ProbeFailed
