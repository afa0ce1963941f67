"""`pytest --workers N`: runs the tests in N forks of the process that read their files.

To read the files of all tests costs 25 CPU seconds. Workers that are processes of their own would each spend them, before the first test.

A group of tests, which is a file or one long test, is run by one worker: its fixtures are built once. Each worker takes the next group
from a pipe. The fixtures of the session live until the worker has run its last group.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import tempfile
import warnings
from collections import deque
from itertools import pairwise
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Items = list[pytest.Item]
#: The number of a group in the pipe. A pipe holds 64 KiB: the numbers of 16,384 groups.
_NUMBER_BYTES = 4


class _Reports:
    """A worker's plugin: tells the first process what happens."""

    def __init__(self, config: pytest.Config, link: Connection) -> None:
        """Send over the link."""
        self._config, self._link = config, link

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        """A test begins."""
        self._link.send(("start", (nodeid, location)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test is over."""
        self._link.send(("report", self._config.hook.pytest_report_to_serializable(config=self._config, report=report)))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        """A test is over."""
        self._link.send(("finish", (nodeid, location)))

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str, nodeid: str) -> None:
        """A warning was given that is no error."""
        self._link.send(("warning", (str(warning_message.message), warning_message.filename, warning_message.lineno, when, nodeid)))


class _Worker:
    """A fork, as the first process sees it. left: the tests that it took and did not finish, the one that runs first."""

    def __init__(self, name: str, session: pytest.Session, groups: Sequence[Items], numbers: int, left: Items) -> None:
        """Fork. `left` is what a worker before this one took."""
        self.name, self.left, self.is_done = name, deque(left), False
        self.link, theirs = Pipe(duplex=False)
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                self.link.close()
                _work(session, _taken(left, groups, numbers, theirs), name, theirs)
                session._setupstate.teardown_exact(None)  # noqa: SLF001  what pytest itself does at the end
                theirs.send(("done", None))
                code = 0
            except (KeyboardInterrupt, BrokenPipeError):  # the first process ends, or has ended
                session._setupstate.teardown_exact(None)  # noqa: SLF001  as above
            except BaseException:  # noqa: BLE001  there is nobody above who could tell
                sys.excepthook(*sys.exc_info())
            finally:
                atexit._run_exitfuncs()  # noqa: SLF001  os._exit does not
                os._exit(code)
        theirs.close()

    def end(self) -> int:
        """Await its end; return its exit code."""
        self.link.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _taken(left: Items, groups: Sequence[Items], numbers: int, link: Connection) -> Iterator[Items]:
    """Give the tests that are left of a group, then each group that is next."""
    yield left
    while number := os.read(numbers, _NUMBER_BYTES):
        group = int.from_bytes(number, sys.byteorder)
        link.send(("took", group))
        yield groups[group]


def _work(session: pytest.Session, groups: Iterator[Items], name: str, link: Connection) -> None:
    """Run the tests in this process, with a capture, a place for files and a reporter of its own."""
    config = session.config
    atexit._clear()  # noqa: SLF001  what the first process has to do at its end is not ours
    _capture_apart(config)
    terminal: Any = config.pluginmanager.getplugin("terminalreporter")
    terminal._tw._file = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SLF001, SIM115  until the process ends
    factory: Any = config._tmp_path_factory  # type: ignore[attr-defined]  # noqa: SLF001
    factory._basetemp = factory.getbasetemp() / name  # noqa: SLF001
    factory._basetemp.mkdir(mode=0o700, exist_ok=True)  # noqa: SLF001
    config.pluginmanager.register(_Reports(config, link), "reports of a worker")
    for group in groups:
        for item, after in pairwise([*group, session]):
            config.hook.pytest_runtest_protocol(item=item, nextitem=after)  # after the last test only the session's fixtures are kept
            if session.shouldfail or session.shouldstop:
                return


def _capture_apart(config: pytest.Config) -> None:
    """Capture into files that are not shared with the first process. Loggers that were made at an import keep their streams."""
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    if config.getoption("capture") == "fd":
        for stream in (capture._global_capturing.out, capture._global_capturing.err):  # noqa: SLF001  there is no public way
            with tempfile.TemporaryFile() as file:
                os.dup2(file.fileno(), stream.tmpfile.fileno(), inheritable=False)


def _heard(session: pytest.Session, worker: _Worker, groups: Sequence[Items], kind: str, content: Any) -> None:  # noqa: ANN401  of each kind another
    """Show what a worker tells as if it had happened here."""
    hook = session.config.hook
    if kind == "took":
        worker.left.extend(groups[content])
    elif kind == "start":
        hook.pytest_runtest_logstart(nodeid=content[0], location=content[1])
    elif kind == "report":
        report = hook.pytest_report_from_serializable(config=session.config, data=content)
        gateway = SimpleNamespace(id=worker.name)  # by these names pytest's reporter knows of workers
        report.node = SimpleNamespace(gateway=gateway, _workerinfocache=f"[{worker.name}]")
        hook.pytest_runtest_logreport(report=report)
    elif kind == "finish":
        worker.left.popleft()
        hook.pytest_runtest_logfinish(nodeid=content[0], location=content[1])
    elif kind == "warning":
        text, filename, lineno, when, nodeid = content
        message = warnings.WarningMessage(pytest.PytestWarning(text), pytest.PytestWarning, filename, lineno)
        known = {"warning_message": message, "when": when, "nodeid": nodeid, "location": None}
        hook.pytest_warning_recorded.call_historic(kwargs=known)
    else:
        worker.is_done = True


def _report_crash(session: pytest.Session, worker: _Worker, code: int) -> None:
    """Report the test that ran when its worker ended."""
    if not worker.left:
        raise session.Interrupted(f"worker {worker.name} ended with {code} between two tests")
    item = worker.left.popleft()
    text = f"the worker {worker.name} ended with {code} while it ran {item.nodeid}"
    report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
    session.config.hook.pytest_runtest_logreport(report=report)


def run_in_workers(session: pytest.Session, groups: Sequence[Items], count: int) -> None:
    """Run each group in one of so many forks; a worker that ends in the middle of a test is replaced."""
    if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208  only their number
        raise session.Interrupted("a thread was started while the tests' files were read: the workers are forks, and would wait for it")
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # noqa: SLF001  it is the first process's to remove
    terminal: Any = session.config.pluginmanager.getplugin("terminalreporter")
    terminal._show_progress_info, terminal.showfspath = "progress", False  # noqa: SLF001  files take turns
    numbers, tickets = os.pipe()
    os.write(tickets, b"".join(number.to_bytes(_NUMBER_BYTES, sys.byteorder) for number in range(len(groups))))
    os.close(tickets)
    workers = {worker.link: worker for worker in (_Worker(f"gw{n}", session, groups, numbers, []) for n in range(min(count, len(groups))))}
    try:
        while workers:
            for link in wait(list(workers)):
                assert isinstance(link, Connection)
                worker = workers[link]
                try:
                    _heard(session, worker, groups, *link.recv())
                except EOFError:
                    del workers[link]
                    code = worker.end()
                    if not worker.is_done:
                        _report_crash(session, worker, code)
                        fresh = _Worker(worker.name, session, groups, numbers, list(worker.left))
                        workers[fresh.link] = fresh
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
    finally:
        os.close(numbers)
        for worker in workers.values():
            os.kill(worker.pid, signal.SIGINT)
        for worker in workers.values():
            worker.end()
