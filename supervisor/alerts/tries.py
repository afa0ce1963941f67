"""Runs a try to deliver in a thread, under a deadline: a resolver cannot be interrupted, and a server may drip its answer for ever."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from supervisor.alerts.sinks import DeliveryDeferred, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

#: Threads of one sink that may be left behind; while so many hang no other is started.
MAX_HANGING: Final = 4


class TryThreads:
    """Runs the tries of one sink, each in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._hanging: list[threading.Thread] = []

    def run(self, deliver: Callable[[], Outcome], deadline_s: float, give_up: Callable[[], None] = lambda: None) -> Outcome:
        """Return what `deliver` returned within `deadline_s`. After the deadline `give_up` is called, which ends it if it can."""
        outcomes: list[Outcome] = []

        def run() -> None:
            try:
                outcomes.append(deliver())
            except Exception as error:  # noqa: BLE001 - a bug here must not lose the alert: it is retried and reported
                outcomes.append(DeliveryDeferred(f"unexpected {type(error).__name__}"))

        self._hanging = [thread for thread in self._hanging if thread.is_alive()]
        if len(self._hanging) >= MAX_HANGING:
            return DeliveryDeferred(f"{len(self._hanging)} earlier requests still hang")
        thread = threading.Thread(target=run, name=self._name, daemon=True)
        thread.start()
        thread.join(deadline_s)
        outcome = outcomes[0] if outcomes else DeliveryDeferred(f"no answer within {deadline_s:g} s")
        if thread.is_alive():
            self._hanging.append(thread)
            give_up()
        return outcome
