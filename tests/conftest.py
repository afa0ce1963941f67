"""What holds for every test: ordinary signals, how many examples hypothesis tries, which files come first, workers, and shards.

Whoever runs the tests in the background of a script has INT and QUIT ignored for them (POSIX: asynchronous lists of a shell without job
control), and an ignored signal is handed down to everything that a test starts. What is to be ignored, a test says itself.

`--workers 5` runs the tests in five forks of this process (tests/support/workers.py), `--shard 2/4` runs the second of four parts. A file
is never divided: its fixtures are built once.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.support.figures import Figures
from tests.support.shards import dealt
from tests.support.workers import run_in_workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# torch computes where modules are read, and waits in a fork for threads that only its parent has. Here: a conftest below imports it.
os.environ["OMP_NUM_THREADS"] = "1"

# `make test` tries the same examples at each run; `make test-all` looks for new ones. A deadline would measure the machine's other work; so
# would the check that examples are made quickly.
_UNTIMED = (hypothesis.HealthCheck.too_slow,)
# A test that needs more than the profile gives asks for a multiple of it: @settings(max_examples=4 * settings.default.max_examples).
hypothesis.settings.register_profile("fast", deadline=None, suppress_health_check=_UNTIMED, max_examples=20, derandomize=True)
hypothesis.settings.register_profile("all", deadline=None, suppress_health_check=_UNTIMED, max_examples=100, print_blob=True)
hypothesis.settings.load_profile("fast")

#: SIGPIPE is not among them: the interpreter itself ignores it, and gives it back to its children.
_ORDINARY = {
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
}
#: Tests here wait for whole jobs; what they cost beside a test of one process. A slow test counts as a part of a minute, and one with a
#: time limit of its own as a part of that.
_JOBS = frozenset({"agent", "e2e", "examples", "mirror", "nodecheck", "programs", "training"})
_JOB, _PROCESS, _PURE, _SLOW, _SLOW_PURE = 4.0, 1.0, 0.02, 20.0, 2.0
_PATIENCE = 6.0
#: A slow test that may take longer than this runs in any worker; the other tests of a file share one, and so their fixtures.
_APART_S = 1800.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take `--figures`, `--eager-hangs`, `--standbys`, `--workers` and `--shard`."""
    parser.addoption("--figures", action="store_true", help="assert what may be spent, too: for `-m bench` on an idle machine")
    parser.addoption(
        "--eager-hangs", action="store_true", help="each supervised run ends what hangs, by limits ten times shorter: none may"
    )
    parser.addoption("--standbys", action="store_true", help="each supervised run has standbys; else only those of tests that ask for them")
    parser.addoption("--workers", type=int, default=0, help="run the tests in so many forks of this process, the heaviest files first")
    parser.addoption("--shard", metavar="I/N", default="1/1", help="run the files of the I-th of N parts")


def pytest_configure(config: pytest.Config) -> None:
    """Before the first test is read."""
    for name in ("COLUMNS", "LINES"):  # a shell may export them: pages are laid out as for a pipe
        os.environ.pop(name, None)
    Figures.asserted = config.getoption("--figures")
    for signum, handler in _ORDINARY.items():
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, handler)


@pytest.fixture(autouse=True)
def the_machine_s_own_proc() -> Iterator[None]:
    """Have psutil read this machine again: a probe points it at the root that it is asked about, and its process ends with it."""
    yield
    psutil = sys.modules.get("psutil")
    if psutil is not None and getattr(psutil, "PROCFS_PATH", "/proc") != "/proc":  # without one: a thread is importing it just now
        psutil.PROCFS_PATH = "/proc"
        psutil.process_iter.cache_clear()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Leave what is collected, a million objects that stay, out of the garbage collections of the tests and of their forks."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _group(item: pytest.Item) -> str:
    """Return what the tests have in common that one worker must run together."""
    patience = item.get_closest_marker("timeout")
    apart = item.get_closest_marker("slow") and patience and patience.args[0] > _APART_S
    return item.nodeid if apart else item.nodeid.partition("::")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in workers, where there are to be any."""
    count = session.config.getoption("--workers")
    if not count or session.testsfailed or session.config.option.collectonly:
        return None  # pytest's own
    groups: dict[str, list[pytest.Item]] = {}
    for item in session.items:
        groups.setdefault(_group(item), []).append(item)
    run_in_workers(session, list(groups.values()), count)
    return True


def _weight(item: pytest.Item) -> float:
    """About how many seconds the test takes, as its marks and its folder tell."""
    job, process = not _JOBS.isdisjoint(item.path.parts), item.get_closest_marker("process")
    if item.get_closest_marker("slow"):
        patience = item.get_closest_marker("timeout")
        return max(_SLOW if job or process else _SLOW_PURE, patience.args[0] / _PATIENCE if patience else 0.0)
    if job:
        return _JOB
    return _PROCESS if process else _PURE


@pytest.hookimpl(trylast=True)  # what `-m` and `-k` leave away weighs nothing
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the heaviest files first, so that none keeps a single worker busy at the end; within a file the order stays."""
    weights: Counter[Path] = Counter()
    for item in items:
        weights[item.path] += _weight(item)  # type: ignore[assignment]  # counts may be fractions
    number, _, parts = config.getoption("--shard").partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise pytest.UsageError(f"--shard {number}/{parts}: expected I/N with I from 1 to N")
    # A test that does nothing but measure is run where figures are asserted.
    idle = [] if Figures.asserted else [item for item in items if (mark := item.get_closest_marker("bench")) and mark.args == ("only",)]
    unwanted = set(idle)
    items[:] = [item for item in items if item not in unwanted]
    mine = dealt(dict(weights), int(parts))[int(number) - 1]
    left = idle + [item for item in items if item.path not in mine]
    if left:
        config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item.path in mine]
    if config.getoption("--workers"):  # one process alone keeps the order of the command line
        items.sort(key=lambda item: (-weights[item.path], item.path))


@pytest.fixture(scope="session")
def for_all_workers(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """Give a directory that all workers of this run know; it stands beside their own."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if pytestconfig.getoption("--workers") else own


@pytest.fixture
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have local times in UTC: pages that are compared have the same clock everywhere."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
