"""The main thread's event loop: descriptors, tasks from other threads, and the clock.

It blocks on nothing but epoll. A handler must not block, because that would delay the answer to the supervisor's death.
"""

from __future__ import annotations

import collections
import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Reactor:
    """Watches descriptors for reading, runs posted tasks, and calls what is due."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._timers: dict[str, tuple[float, Callable[[], None]]] = {}
        self._posted: collections.deque[Callable[[], None]] = collections.deque()
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.watch(self._wakeup, self._run_posted)

    def watch(self, fd: int, handler: Callable[[], None]) -> None:
        """Call `handler` whenever `fd` is readable or at its end."""
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """Stop watching; does nothing where it is not watched. To be called before the descriptor is closed."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def also_writable(self, fd: int, *, wanted: bool) -> None:
        """Call the handler of `fd` for writability too."""
        if fd in self._handlers:
            self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT if wanted else select.EPOLLIN)

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
            timeout = -1 if due is None else max(0.0, due - time.monotonic())
            for fd, _ in self._epoll.poll(timeout):
                if fd in self._handlers:
                    self._handlers[fd]()
            self._run_timers()

    def _run_timers(self) -> None:
        now = time.monotonic()
        for name in [name for name, (when, _) in self._timers.items() if when <= now]:
            self._timers.pop(name)[1]()

    def _run_posted(self) -> None:
        os.eventfd_read(self._wakeup)
        while self._posted:
            self._posted.popleft()()
