"""Keeps a guardian alive for each attempt. A worker thread awaits the start of a new one: its hello may take seconds."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from supervisor.run.threads import RETRY_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.launch.guardian_client import GuardianClient, OnEvent
    from supervisor.run.factory import JobFactory
    from supervisor.run.loop import Loop


class LivingGuardian:
    """The guardian of one run, and the next one where it died. Its methods are called on the loop's thread, but for `wait_living`.

    on_event, on_died: called on the loop's thread; `on_died` with the exit code and the signal, once for each guardian that an attempt had.
    """

    def __init__(self, factory: JobFactory, loop: Loop, on_event: OnEvent, on_died: Callable[[int | None, int | None], None]) -> None:
        self._factory, self._loop, self._on_event, self._on_died = factory, loop, on_event, on_died
        self._newest: GuardianClient | None = None
        self._starting = threading.Lock()  # the workers of two attempts must not start two
        self.living: GuardianClient | None = None
        self._last_word: tuple[str, int, str] | None = None

    def wait_living(self, is_wanted: Callable[[], bool]) -> None:
        """Start a guardian where none lives, and wait for its hello, if it `is_wanted`. In a worker thread. Raises SuperviseError."""
        with self._starting:
            while not self._factory.has_early_guardian and (self._newest is None or self._newest.has_ended) and is_wanted():
                try:
                    self._newest = self._start()
                except RuntimeError:  # no thread can be started: loaders may use up the limit on processes for a moment
                    time.sleep(RETRY_S)

    def take(self) -> None:
        """Use the newest from now on. If it has ended since its hello, `on_died` is called a moment later."""
        if self.living is not self._newest and self._newest is not None and self._last_word is not None:
            self._newest.last_word(*self._last_word)
        self.living = self._newest
        if self.living is not None and self.living.has_ended:
            self._loop.call_soon(self._ended)

    def get(self) -> GuardianClient:
        """Return the newest. One that has died takes no request: its end is answered, and the next attempt gets another."""
        if self._newest is None:  # that of the early agent, which lives
            self.living = self._newest = self._start()
        return self._newest

    def prepare_last_word(self, host: str, port: int, message: str) -> None:
        """Have the guardian, and each that follows it, send a message to the coordinator of the nodes if this supervisor dies."""
        self._last_word = host, port, message
        if self.living is not None:
            self.living.last_word(host, port, message)

    def _start(self) -> GuardianClient:
        return self._factory.start_guardian(
            lambda message: self._loop.call_soon(lambda: self._on_event(message)), lambda: self._loop.call_soon(self._ended)
        )

    def _ended(self) -> None:
        guardian = self.living
        if guardian is not None and guardian.has_ended:  # else its end was answered, or it died before its first attempt
            self.living = None
            self._on_died(*guardian.exit_status())
