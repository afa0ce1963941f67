"""A call in a thread of its own, for a caller that must not wait for its end: a call that hangs in the kernel cannot be interrupted."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """A call that runs from now on in a daemon thread. `done` is set at its end."""

    def __init__(self, call: Callable[[], T], name: str) -> None:
        """Begin it. `name`: the thread's."""
        self.done = threading.Event()
        self._call = call
        self._answers: list[T] = []
        self._errors: list[BaseException] = []
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def result(self) -> T:
        """Return or raise what the call did, after its end."""
        if self._errors:
            raise self._errors[0]
        return self._answers[0]

    def _run(self) -> None:
        try:
            self._answers.append(self._call())
        except BaseException as error:  # noqa: BLE001 -- `result` raises it
            self._errors.append(error)
        finally:
            self.done.set()
