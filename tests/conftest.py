"""What holds for every test: ordinary signals, how many examples hypothesis tries, which files come first, and what is left out.

Whoever runs the tests in the background of a script has INT and QUIT ignored for them (POSIX: asynchronous lists of a shell without job
control), and an ignored signal is handed down to everything that a test starts. What is to be ignored, a test says itself.

`--resume` leaves out what passed at this commit.
"""

from __future__ import annotations

import gc
import inspect
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests.support import fake_nvml as fake_nvml_library
from tests.support.figures import Figures
from tests.support.passed_tests import PassedTests
from tests.support.tables import needs_only_rows, table_of, wants_items

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
    signal.SIGUSR1: signal.SIG_DFL,
    signal.SIGUSR2: signal.SIG_DFL,
}
#: Tests here wait for whole jobs; what they cost beside a test of one process. A slow test counts as a part of a minute, and one with a
#: time limit of its own as a part of that.
_JOBS = frozenset({"agent", "e2e", "examples", "mirror", "nodecheck", "programs", "training"})
_JOB, _PROCESS, _PURE, _SLOW, _SLOW_PURE = 4.0, 1.0, 0.02, 20.0, 2.0
_PATIENCE = 6.0
#: A slow test that may take longer than this runs in any worker; the other tests of a file share one, and so their fixtures.
_APART_S = 1800.0

_POPEN_EXIT = subprocess.Popen.__exit__


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take `--figures`, `--eager-hangs`, `--standbys`, `--rows` and `--resume`."""
    parser.addoption("--figures", action="store_true", help="assert what may be spent, too: for `-m bench` on an idle machine")
    parser.addoption(
        "--eager-hangs", action="store_true", help="each supervised run ends what hangs, by limits ten times shorter: none may"
    )
    parser.addoption("--standbys", action="store_true", help="each supervised run has standbys; else only those of tests that ask for them")
    parser.addoption("--rows", action="store_true", help="each row of a parametrised test is an item of its own, as with -k")
    parser.addoption("--resume", action="store_true", help="leave out what passed at this commit")


def _end_of_a_with(process: subprocess.Popen[Any], kind: type[BaseException] | None, *raised: Any) -> None:  # noqa: ANN401  as Popen's own
    """Kill the process where the test has failed: Popen awaits its end, and a program that waits for the test never ends."""
    if kind is not None:
        process.kill()
    _POPEN_EXIT(process, kind, *raised)


def pytest_configure(config: pytest.Config) -> None:
    """In each process that runs tests, before the first."""
    subprocess.Popen.__exit__ = _end_of_a_with  # type: ignore[method-assign]
    for name in ("COLUMNS", "LINES"):  # xdist gives them to its workers: pages are laid out as for a pipe
        os.environ.pop(name, None)
    Figures.asserted = config.getoption("--figures")
    if config.getoption("--resume"):
        config.pluginmanager.register(PassedTests(config))
    for signum, handler in _ORDINARY.items():
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, handler)
    if hasattr(config, "workerinput") and config.args == config.getini("testpaths"):
        config.args = _turned(config.rootpath, config.args, config.workerinput)


def _turned(root: Path, folders: list[str], worker: dict[str, Any]) -> list[str]:
    """Return what is below the folders, from another place on in each worker: in a new checkout each compiles a part of it for all.

    The order of the tests is not that of the files (`pytest_collection_modifyitems`).
    """
    below = sorted(str(path.relative_to(root)) for folder in folders for path in (root / folder).glob("[a-z]*/"))
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    first = len(below) * number // count
    return below[first:] + below[:first]


@pytest.fixture(autouse=True)
def the_signals_of_before() -> Iterator[None]:
    """Give back each signal that a test took in this process: a supervise of a later test would inherit what is ignored, and obey that."""
    before = {signum: signal.getsignal(signum) for signum in _ORDINARY}
    yield
    for signum, handler in before.items():
        if signal.getsignal(signum) is not handler:
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


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> pytest.Item | None:
    """Make one item of a parametrised test that takes nothing but its rows (`tests/support/tables.py`)."""
    if not isinstance(collector, pytest.Module) or not inspect.isfunction(obj) or not name.startswith("test"):
        return None
    if wants_items(collector.config) or any(collector.iter_markers()) or (table := table_of(obj)) is None:
        return None
    item = pytest.Function.from_parent(collector, name=name, callobj=table)
    return item if needs_only_rows(item) else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Name the tests that one worker must run together (`--dist loadgroup`)."""
    if getattr(item.config.option, "loadgroup", False):
        patience = item.get_closest_marker("timeout")
        apart = item.get_closest_marker("slow") and patience and patience.args[0] > _APART_S
        item.add_marker(pytest.mark.xdist_group(item.name if apart else item.nodeid.partition("::")[0]))


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
    # A test that does nothing but measure is run where figures are asserted.
    idle = {item for item in items if (mark := item.get_closest_marker("bench")) and mark.args == ("only",)}
    if idle and not Figures.asserted:
        config.hook.pytest_deselected(items=idle)
        items[:] = [item for item in items if item not in idle]
    if hasattr(config, "workerinput"):  # one process alone keeps the order of the command line
        items.sort(key=lambda item: (-weights[item.path], item.path))


@pytest.fixture(scope="session")
def for_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a directory that all workers of this run know; it is next to their own."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have local times in UTC: pages that are compared have the same clock everywhere."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the fake NVML, which is built once."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler for the fake NVML (Debian: apt-get install gcc)")
    return fake_nvml_library.build(compiler, tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def fake_nvml(fake_library: Path, tmp_path: Path) -> fake_nvml_library.FakeNvml:
    """Give two GPUs that a test changes."""
    fake = fake_nvml_library.FakeNvml(fake_library, tmp_path / "state")
    fake.set(gpus=2)
    return fake
