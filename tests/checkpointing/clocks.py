"""A clock for what has a budget of time."""

from __future__ import annotations


class Clock:
    """A clock that continues by one second each time that it is asked."""

    def __init__(self) -> None:
        """Begin at zero."""
        self.now = 0.0

    def __call__(self) -> float:
        """Tell the time."""
        self.now += 1.0
        return self.now
