"""Repeats calls to a mirror: one rule for uploads, listings and downloads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

import tenacity

from checkpointing.mirror.backends import TransferDamaged, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

_TRIES: Final = 5

T = TypeVar("T")


def retried(call: Callable[[], T], pause: Callable[[float], None] = time.sleep) -> T:
    """Make an idempotent call, again after a failure that may pass, with longer and longer pauses. `pause` waits so many seconds."""
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(_TRIES),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=10),
        retry=tenacity.retry_if_exception_type((Unavailable, TransferDamaged)),
        sleep=pause,
        reraise=True,
    )
    return retrying(call)
