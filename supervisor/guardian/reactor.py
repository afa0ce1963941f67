"""The main thread's event loop: `selectors` for descriptors, with timers and tasks from other threads.

A handler must not block, because that would delay the answer to the supervisor's death.
"""

from __future__ import annotations

import collections
import os
import selectors
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Reactor:
    """Watches descriptors for reading, runs posted tasks, and calls timers that are due."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: dict[str, tuple[float, Callable[[], None]]] = {}
        self._posted: collections.deque[Callable[[], None]] = collections.deque()
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.watch(self._wakeup, self._run_posted)

    def watch(self, fd: int, handler: Callable[[], None]) -> None:
        """Call `handler` whenever `fd` is readable or at its end."""
        self._selector.register(fd, selectors.EVENT_READ, handler)

    def unwatch(self, fd: int) -> None:
        """Stop watching. Call it before the descriptor is closed."""
        self._selector.unregister(fd)

    def also_writable(self, fd: int, *, wanted: bool) -> None:
        """Call the handler of `fd` for writability too."""
        events = selectors.EVENT_READ | selectors.EVENT_WRITE if wanted else selectors.EVENT_READ
        self._selector.modify(fd, events, self._selector.get_key(fd).data)

    def call_at(self, name: str, when: float, task: Callable[[], None]) -> None:
        """Call `task` at a monotonic time; a timer of the same name is replaced."""
        self._timers[name] = (when, task)

    def post(self, task: Callable[[], None]) -> None:
        """Have the main thread run `task` soon; may be called from any thread."""
        self._posted.append(task)
        os.eventfd_write(self._wakeup, 1)

    def run(self) -> None:
        """Serve until the process ends."""
        while True:
            due = min((when for when, _ in self._timers.values()), default=None)
            for key, _ in self._selector.select(None if due is None else max(0.0, due - time.monotonic())):
                if key.fd in self._selector.get_map():  # not unwatched by an earlier handler of this round
                    key.data()
            self._run_timers()

    def _run_timers(self) -> None:
        now = time.monotonic()
        for name in [name for name, (when, _) in self._timers.items() if when <= now]:
            self._timers.pop(name)[1]()

    def _run_posted(self) -> None:
        os.eventfd_read(self._wakeup)
        while self._posted:
            self._posted.popleft()()
