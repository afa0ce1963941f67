"""Worker threads for what may wait for a disk, a driver or a tool: the loop's own thread never does.

An exception of a worker is never silent. If the loop waits for the worker's answer, the exception ends the run: without the answer the
run would wait for ever. If nobody waits, it is a warning and the job continues. If no thread can be had, the start is tried again later.
"""

from __future__ import annotations

import contextlib
import resource
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from supervisor.run.loop import Loop

#: Where no thread can be had (a limit on processes that loaders use up for a moment), the next try.
RETRY_S = 1.0
#: So many tries fail in silence: loaders that use the limit up end soon.
TRIES_IN_SILENCE = 5


@contextlib.contextmanager
def reported_wait(report: Callable[[str], None], text: str, after_s: float) -> Iterator[Callable[[], None]]:
    """Report `text` once, if after `after_s` the caller's thread still waits in here for a disk, and not for a processor.

    Gives a function by which the caller reports earlier that it waits for no disk any more.
    """
    thread, is_over = threading.get_native_id(), threading.Event()

    def watch() -> None:
        while not is_over.wait(after_s):
            if not _runs(thread):
                report(text)
                return

    with contextlib.suppress(RuntimeError):  # no thread can be started: nothing is reported
        threading.Thread(target=watch, name="reported-wait", daemon=True).start()
    try:
        yield is_over.set
    finally:
        is_over.set()


def _runs(thread: int) -> bool:
    """Return whether a thread of this process has work for a processor (proc(5): its state is R), on a machine under load without one."""
    try:
        stat = Path(f"/proc/self/task/{thread}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] == ["R"]


def attempted(work: Callable[[], None], deadline_s: float) -> str:
    """Do `work` in a thread and wait for its end until the deadline; return why it is not done by then, "" if it is."""
    problem = f"not done within {deadline_s:g} s"

    def run() -> None:
        nonlocal problem
        try:
            work()
        except OSError as error:
            problem = str(error)
        else:
            problem = ""

    thread = threading.Thread(target=run, name="attempted", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        return str(error)
    thread.join(deadline_s)
    return problem


def start_soon(loop: Loop, name: str, work: Callable[[], object], warn: Callable[[str], None], *, tries: int = 1) -> None:
    """Do `work` in a thread, which is started later where none can be had now. On the loop's thread.

    warn: called once if that lasts.
    """
    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError:
        if tries == TRIES_IN_SILENCE:
            warn(f"no thread can be started: {limits_text()}; supervise waits until it has one")
        loop.call_later(RETRY_S, lambda: start_soon(loop, name, work, warn, tries=tries + 1))


def limits_text() -> str:
    """Return the limits of this process that may keep a thread from being started, as a shell shows them."""
    kinds = {"-v": (resource.RLIMIT_AS, 1024), "-u": (resource.RLIMIT_NPROC, 1)}
    limits = {option: (resource.getrlimit(kind)[0], unit) for option, (kind, unit) in kinds.items()}
    shown = {option: "unlimited" if limit == resource.RLIM_INFINITY else limit // unit for option, (limit, unit) in limits.items()}
    return ", ".join(f"ulimit {option} is {limit}" for option, limit in shown.items())


class Threads:
    """The worker threads of a run. Its methods are called on the loop's thread. `warn` prints a warning; it runs on the loop's thread."""

    def __init__(self, loop: Loop, warn: Callable[[str], None]) -> None:
        self._loop = loop
        self._warn = warn
        self._under_way: set[str] = set()
        self._failed_observers: set[str] = set()
        self._lacked = False

    def start(self, name: str, work: Callable[[], None], *, awaited: bool = True) -> None:
        """Run `work` in a thread. `awaited`: the loop waits for its post, so that its exception ends the run."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  (whatever it is, the loop must hear of it)
                self._failed(name, error, awaited=awaited)

        start_soon(self._loop, name, run, self._lacks_threads)

    def _lacks_threads(self, text: str) -> None:
        """Warn once in a run: more than one of them waits."""
        if not self._lacked:
            self._lacked = True
            self._warn(text)

    def recur(self, name: str, work: Callable[[], None], *, wait_s: float = 0.0) -> None:
        """Run `work` in a thread, unless the last one of that name is still under way: a disk that hangs must not gather threads.

        wait_s: how long the caller waits for its end.
        """
        if name in self._under_way:
            return
        self._under_way.add(name)
        done = threading.Event()

        def once() -> None:
            try:
                work()
            finally:
                self._under_way.discard(name)
                done.set()

        self.start(name, once, awaited=False)
        done.wait(wait_s)

    def observe(self, name: str, work: Callable[[], None]) -> None:
        """Run `work` here, in any thread: what only watches the job must not end it. Its exception is a warning, once for each name."""
        try:
            work()
        except Exception as error:  # noqa: BLE001  (a bug in it, whatever it is)
            if name not in self._failed_observers:
                self._failed_observers.add(name)
                self._failed(name, error, awaited=False)

    def _failed(self, name: str, error: BaseException, *, awaited: bool) -> None:
        if awaited:
            self._loop.fail(error)
        else:
            text = f"a part of supervise failed ({name}): {type(error).__name__}: {error}; the job continues"
            self._loop.call_soon(lambda: self._warn(text))
