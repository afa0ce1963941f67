"""What holds for every test: the signals of a process that a person started at a terminal, and which files are run first.

Whoever runs the tests in the background of a script has INT and QUIT ignored for them (POSIX: asynchronous lists of a shell without job
control), and an ignored signal is handed down to everything that a test starts. What is to be ignored, a test says itself.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

#: SIGPIPE is not among them: the interpreter itself ignores it, and gives it back to its children.
_ORDINARY = {
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
}


def pytest_configure() -> None:
    """In each process that runs tests, before the first."""
    for signum, handler in _ORDINARY.items():
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, handler)


#: Files here take minutes, the others seconds: begun last, one of them would keep a single worker busy while the others are done.
_LONG = frozenset({"agent", "e2e", "examples", "mirror", "nodecheck", "simulate", "trainside"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes long first; within that the order stays."""
    items.sort(key=lambda item: _LONG.isdisjoint(item.path.parts))
