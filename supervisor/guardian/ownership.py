"""Whose process is it, and how is it ended: the one place that signals the processes of a job.

A process is signalled only if it is *proven* to be the job's. There are three proofs:

- *Descent from the guardian*, while it lives: as a subreaper it is the parent of every orphan below it. So a daemon with its own session
  and an empty environment is found too, and a stranger that merely copied our environment is not.
- *Descent from the supervisor*, where the guardian died (`Orphans`). It proves nothing where other processes can be among our children: we
  had children before we were `supervise` (a shell that execs us), or we are the first process of a pid namespace, which inherits every
  orphan. There a child counts if it was seen below the guardian, or started after us with the job's cookie in its environment.
- *The record*, where guardian and supervisor were killed in the same instant (`end_recorded`): pid, start ticks, boot and the job's
  cookie in the environment all agree. The cookie alone proves nothing: terminal multiplexers, uploaders and submitted jobs inherit it.

Everything below a proven process is the job's too. A pid is signalled only through a pidfd whose process still has the start time that was
seen. Two kinds are spared: a process with SUPERVISE_JOB_DETACH=1 in its environment with all that descends from it, and zombies.

KILL ends a process once it is back from the kernel. In uninterruptible sleep (state D) it comes back when the disk, the network file system
or the driver answers, which may be never. Until then it keeps its GPU, its files and its memory: `await_end` waits for such processes.

Known weak spot: a scan of /proc is not atomic. So "nothing is left" needs either no child but the spared ones (exact: every chain of
descent begins with a child of the root) or two empty scans in a row.

The guardian imports this, so the standard library alone is allowed here.
"""

from __future__ import annotations

import collections
import errno
import json
import os
import select
import signal
import stat
import threading
import time

from . import process_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Collection, Iterable
    from typing import Any, AnyStr

    from .messages import RemainingProcess
    from .process_tree import ProcessStat

    Select = Callable[[dict[int, ProcessStat]], Collection[int]]

COOKIE = "SUPERVISE_JOB_COOKIE"
DETACH = b"SUPERVISE_JOB_DETACH=1"
#: Time that a process gets to vanish after KILL before it is reported as left (uninterruptible sleep, a fork bomb).
AFTER_KILL_S = 3.0
#: An environment is read under its process's own memory lock. A process that holds it in uninterruptible sleep does not answer.
#: The wait for one answer before others are asked too, and the wait for all answers of one round.
SLOW_ANSWER_S = 0.2
ANSWERS_S = 0.5
#: The wait for a process that was recorded: on a machine under load a late answer is not a sign of uninterruptible sleep.
RECORDED_ANSWER_S = 5.0
#: The role of a recorded process that KILL was sent to and did not end: it is proven already, and waited for.
UNKILLED = "unkilled"
#: A pidfd reports an end at once; where none can be had, the end is seen after so long.
_LOOK_S = 1.0
_PAUSE_S = 0.02


class LeftProcess:
    """A process that was not ended, and why. unkilled: KILL was sent and did not end it."""

    __slots__ = ("pid", "start_ticks", "unkilled", "why")

    def __init__(self, pid: int, start_ticks: int, why: str, *, unkilled: bool = False) -> None:
        self.pid, self.start_ticks, self.why, self.unkilled = pid, start_ticks, why, unkilled

    @property
    def key(self) -> tuple[int, int]:
        """Its identity."""
        return self.pid, self.start_ticks

    def row(self) -> RemainingProcess:
        """Return it as a message has it."""
        return {"pid": self.pid, "start_ticks": self.start_ticks, "why": self.why, "unkilled": self.unkilled}

    def is_there(self) -> bool:
        """Whether it has not ended."""
        process = process_tree.read(self.pid)
        return process is not None and process.key == self.key and process.alive


# --- ending what descends from a root ---


def send(process: ProcessStat, signum: int) -> bool:
    """Send a signal to exactly this process; False if it is gone or the guardian has no right to signal it."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError:
        pidfd = -1  # forbidden by an old sandbox: the start time alone has to do
    try:
        now = process_tree.read(process.pid)
        if now is None or now.start_ticks != process.start_ticks:
            return False
        if pidfd >= 0:
            signal.pidfd_send_signal(pidfd, signum)
        else:
            os.kill(process.pid, signum)
    except OSError:
        return False
    finally:
        if pidfd >= 0:
            os.close(pidfd)
    return True


class TreeTermination:
    """One request to end everything below `root` but `spare`; call `tick` until it answers True.

    signum: the first signal; KILL follows `grace_s` after the first tick, at once to stopped processes. hard_s: when to give up,
    counted from the first tick. top: the root itself, where that is to be ended too. After that, `signalled` holds the processes
    that were, `left` those that remain, `detached` those of them that asked to be left alone, and `stuck` names the others of them.
    given_up: processes that were stuck before: they get KILL again, but are not waited for. detach_requests: shared by all endings
    of one owner.
    """

    def __init__(  # noqa: PLR0913 - four facts of the request, and those of earlier ones
        self,
        root: int,
        signum: int,
        grace_s: float,
        hard_s: float | None = None,
        *,
        top: ProcessStat | None = None,
        given_up: Collection[tuple[int, int]] = (),
        detach_requests: DetachRequests | None = None,
    ) -> None:
        self.root = root
        self.top = top
        self.signum = signum if grace_s > 0 else int(signal.SIGKILL)
        self.grace_s = grace_s
        self.hard_s = grace_s + AFTER_KILL_S if hard_s is None else hard_s
        self.left: list[LeftProcess] = []
        self.detached: frozenset[int] = frozenset()
        self.stuck: frozenset[tuple[int, int]] = frozenset()
        self._given_up = given_up
        self._detach_requests = detach_requests or DetachRequests()
        self._began: float | None = None
        self._sent: dict[tuple[int, int], int] = {}
        self._seen: dict[tuple[int, int], ProcessStat] = {}
        self._empty_scans = 0

    @property
    def signalled(self) -> frozenset[int]:
        """The pids of the processes that were signalled."""
        return frozenset(pid for pid, _ in self._sent)

    def hurry(self, now: float, signum: int, grace_s: float) -> None:
        """Take a second request into this one: the earlier KILL of both, and the earlier deadline."""
        elapsed_s = 0.0 if self._began is None else now - self._began
        self.signum = signum if grace_s > 0 else int(signal.SIGKILL)
        self.grace_s = min(self.grace_s, elapsed_s + grace_s)
        self.hard_s = min(self.hard_s, elapsed_s + grace_s + AFTER_KILL_S)

    def tick(self, now: float, spare: Collection[int] | Select = (), *, childless: bool = False) -> bool:
        """Scan once and send the signals that are due.

        spare: these pids and their descendants, or a function that selects them from this scan. childless: the root is known to have no
        other child, which saves the scan.
        """
        if self._began is None:
            self._began = now
        if childless:
            return True
        processes = process_tree.snapshot()
        spare = spare(processes) if callable(spare) else spare
        asked = self._detach_requests.detached(process_tree.below(self.root, processes, spare))
        targets = process_tree.below(self.root, processes, asked.union(spare))
        if self.top:
            targets = self._with_top(self.top, targets, processes)
        awaited = [process for process in targets if process.key not in self._given_up]
        self._empty_scans = 0 if awaited else self._empty_scans + 1
        over = now >= self._began + self.hard_s
        if self._empty_scans > 1 or over:
            self.detached = frozenset(asked)
            self.left = [LeftProcess(pid, processes[pid].start_ticks, f"{DETACH.decode()} is in its environment") for pid in sorted(asked)]
            self.stuck = frozenset(process.key for process in targets)
            self.left += [self._left(process) for process in targets]
            return True
        for process in targets:
            self._signal(process, late=now >= self._began + self.grace_s or process.key in self._given_up)
        return False

    def _left(self, process: ProcessStat) -> LeftProcess:
        is_killed = self._sent.get(process.key) == signal.SIGKILL  # else it may not be signalled
        why = f"{'still there after KILL' if is_killed else 'it may not be signalled'}, state {process.state}"
        return LeftProcess(process.pid, process.start_ticks, why, unkilled=is_killed)

    def _with_top(self, top: ProcessStat, targets: list[ProcessStat], processes: dict[int, ProcessStat]) -> list[ProcessStat]:
        """Add the root, and the processes seen below it before it died: they have another parent now."""
        self._seen.update({process.key: process for process in (top, *targets)})
        alive = (processes.get(pid) for pid, _ in self._seen)
        return [process for process in alive if process and process.key in self._seen and process.alive]

    def _signal(self, process: ProcessStat, *, late: bool) -> None:
        signum = int(signal.SIGKILL) if late or process.stopped else self.signum
        if self._sent.get(process.key) in (signum, int(signal.SIGKILL)):
            return
        if send(process, signum):
            self._sent[process.key] = signum
            if process.stopped:
                send(process, signal.SIGCONT)


class DetachRequests:
    """The processes that ask to be left alone, by their own environment. An unreadable environment asks for nothing.

    Threads read, because a read can hang: a process that does not answer asks for nothing either, and is not asked twice.
    """

    def __init__(self) -> None:
        self._asked_for_it: set[tuple[int, int]] = set()
        self._silent: set[tuple[int, int]] = set()

    def detached(self, processes: Collection[ProcessStat]) -> set[int]:
        """Select them; blocks at most ANSWERS_S. A process that was not asked in that time counts among them until the next round."""
        waiting = collections.deque(process for process in processes if process.key not in self._silent)
        until = time.monotonic() + ANSWERS_S
        while waiting and time.monotonic() < until:
            thread = threading.Thread(target=self._ask, args=(waiting,), daemon=True)
            thread.start()
            before = -1
            while thread.is_alive() and before != len(waiting):
                before = len(waiting)
                thread.join(min(SLOW_ANSWER_S, max(0.0, until - time.monotonic())))
        unasked = {process.key for process in waiting}
        waiting.clear()
        return {process.pid for process in processes if process.key in self._asked_for_it or process.key in unasked}

    def _ask(self, waiting: collections.deque[ProcessStat]) -> None:
        while True:
            try:
                process = waiting.popleft()
            except IndexError:
                return
            self._silent.add(process.key)
            if DETACH in process_tree.environment(process.pid):
                self._asked_for_it.add(process.key)
            self._silent.discard(process.key)


def _end_all(endings: Iterable[TreeTermination], spare: Collection[int] | Select = ()) -> None:
    """Carry out these endings, and return when all are over."""
    running = list(endings)
    while running := [ending for ending in running if not ending.tick(time.monotonic(), spare)]:
        time.sleep(_PAUSE_S)


def await_end(processes: Collection[LeftProcess], deadline_s: float) -> tuple[LeftProcess, ...]:
    """Wait until all of these have ended, at most `deadline_s`; return those that are left."""
    until = time.monotonic() + deadline_s
    while (left := tuple(process for process in processes if process.is_there())) and (now := time.monotonic()) < until:
        _await_any_end(left, min(until - now, _LOOK_S))
    return left


def _await_any_end(processes: Iterable[LeftProcess], deadline_s: float) -> None:
    poller = select.poll()
    pidfds = [pidfd for process in processes if (pidfd := _pidfd_of(process)) >= 0]
    for pidfd in pidfds:
        poller.register(pidfd, select.POLLIN)
    poller.poll(deadline_s * 1000)
    for pidfd in pidfds:
        os.close(pidfd)


def _pidfd_of(process: LeftProcess) -> int:
    """Return a pidfd; -1 where it is gone, or in an old sandbox: the time alone has to do."""
    try:
        return os.pidfd_open(process.pid)
    except OSError:
        return -1


# --- environments, as proof ---


def answered_environment(pid: int, within_s: float = ANSWERS_S) -> list[bytes] | OSError | None:
    """Return the NAME=value pairs of a process, or why they cannot be read; None if it does not answer in time."""
    answer: list[list[bytes] | OSError] = []

    def ask() -> None:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - pathlib is too big for the guardian
                answer.append(file.read().split(b"\0"))
        except OSError as error:
            answer.append(error)

    thread = threading.Thread(target=ask, name="environment", daemon=True)
    thread.start()
    thread.join(within_s)
    return answer[0] if answer else None


def _doubt(environment: list[bytes] | OSError | None, cookie: str) -> str:
    """Return why an environment does not prove that its process is the job's; "" if it does."""
    if environment is None:
        return "its environment cannot be read: it does not answer"
    if isinstance(environment, OSError):
        return f"its environment cannot be read: {environment.strerror}"
    return "" if f"{COOKIE}={cookie}".encode() in environment else "the job's cookie is not in its environment"


# --- the children of the supervisor ---

# one list for the process, as the kernel keeps one of its children: a waiter for any of them must know those that have an owner
_started: list[subprocess.Popen[Any]] = []
_starting = threading.Lock()


def started(start: Callable[[], subprocess.Popen[AnyStr]]) -> subprocess.Popen[AnyStr]:
    """Start a child whose end its owner waits for.

    Every start of a child in the supervisor must go through this. Every other ended child is treated as adopted and is reaped here, so that
    its starter would read exit status 0.
    """
    with _starting:
        process = start()
        _started.append(process)
    return process


def collect_zombies(processes: dict[int, ProcessStat] | None = None) -> None:
    """Collect the ended children that were adopted. The owner of a process that we started collects it.

    processes: as a snapshot just showed them; None: they are read here.
    """
    processes = process_tree.snapshot() if processes is None else processes
    with _starting:
        _started[:] = [process for process in _started if process.poll() is None]
        owned = {process.pid for process in _started}
        for process in processes.values():
            if process.ppid == os.getpid() and process.pid not in owned and not process.alive:
                _reap(process.pid)


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


class Orphans:
    """The job's processes that fall to us when a guardian dies. Make it before the first child. `seen` may be called from any thread."""

    def __init__(self, cookie: str, *, first_process: bool | None = None) -> None:
        """Remember the children that are there already. first_process: whether we are process 1; None: as the kernel reports."""
        self._me = os.getpid()
        self._cookie = cookie
        self._before = {child.key for child in self._children(process_tree.snapshot())}
        self._tree_is_proof = not self._before and not (self._me == 1 if first_process is None else first_process)
        own = process_tree.read(self._me)
        self._since = own.start_ticks if own else 0
        self._seen: set[tuple[int, int]] = set()

    def seen(self, processes: Iterable[ProcessStat]) -> None:
        """These descended from a living guardian, or from what did."""
        self._seen.update(process.key for process in processes)

    def end(self, grace_s: float) -> tuple[LeftProcess, ...]:
        """End the job's processes among the descendants of this process; return those that it could not or should not end.

        Blocks at most grace_s + AFTER_KILL_S.
        """
        ending = TreeTermination(self._me, signal.SIGTERM, grace_s)
        _end_all([ending], self._strangers)
        collect_zombies()
        return tuple(ending.left)

    def _strangers(self, processes: dict[int, ProcessStat]) -> set[int]:
        """Select, among our children, those that are not proven to be the job's; what descends from the others is remembered.

        A process that the supervisor itself started, such as the reader, has its own owner.
        """
        with _starting:
            owned = {process.pid for process in _started if process.poll() is None}
        if self._tree_is_proof:
            return owned
        strangers = {child.pid for child in self._children(processes) if child.pid in owned or not self._is_ours(child)}
        self.seen(process_tree.below(self._me, processes, strangers))
        return strangers

    def _children(self, processes: dict[int, ProcessStat]) -> list[ProcessStat]:
        return [process for process in processes.values() if process.ppid == self._me]

    def _is_ours(self, child: ProcessStat) -> bool:
        if child.key in self._before or child.start_ticks < self._since:
            return False
        return child.key in self._seen or not _doubt(answered_environment(child.pid), self._cookie)


# --- the processes of an earlier supervisor ---


class ProcessRecord:
    """A process of the job, as it was recorded. `role` is a word for people: which process of supervise it was."""

    __slots__ = ("boot_id", "cookie", "pid", "role", "start_ticks")

    def __init__(self, pid: int, start_ticks: int, boot_id: str, cookie: str, role: str) -> None:
        self.pid, self.start_ticks, self.boot_id, self.cookie, self.role = pid, start_ticks, boot_id, cookie, role

    def line(self) -> bytes:
        """Return it as a line of the file."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__}).encode() + b"\n"


class RecordedEnd:
    """`ended`: processes that were proven to be the job's and are gone now. `left`: those without proof, or that KILL did not end.

    A process whose environment does not answer is treated as one that KILL did not end: that happens in uninterruptible sleep only.
    """

    __slots__ = ("ended", "left")

    def __init__(self, ended: tuple[int, ...], left: tuple[LeftProcess, ...]) -> None:
        self.ended, self.left = ended, left


def record_process(file: str, pid: int, boot_id: str, cookie: str, role: str) -> None:
    """Add a living process to the file of records; one that is gone already needs none. Raises OSError.

    The file is append-only, one JSON line for each process; a torn last line is ignored.
    """
    process = process_tree.read(pid)
    if process is None:
        return
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, ProcessRecord(pid, process.start_ticks, boot_id, cookie, role).line())
    finally:
        os.close(fd)


def read_records(file: str) -> tuple[ProcessRecord, ...]:
    """Read the records; a missing file is an empty one, a line that is torn or of another version is skipped. Raises OSError."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO would be waited for
    except FileNotFoundError:
        return ()
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", file)
    with os.fdopen(fd, "rb") as lines:
        return tuple(record for line in lines if (record := _record_of(line)) is not None)


def _record_of(line: bytes) -> ProcessRecord | None:
    try:
        return ProcessRecord(**json.loads(line))
    except (ValueError, TypeError):
        return None


def end_recorded(records: Iterable[ProcessRecord], boot_id: str, grace_s: float = 1.0) -> RecordedEnd:
    """End the processes that their record proves to be the job's, and their descendants; name and leave the rest. boot_id: of this boot.

    Blocks at most grace_s + AFTER_KILL_S, and RECORDED_ANSWER_S for each process that does not answer.
    """
    endings: list[TreeTermination] = []
    left: list[LeftProcess] = []
    for record in {(record.pid, record.start_ticks): record for record in records}.values():
        process = process_tree.read(record.pid)
        if record.boot_id != boot_id or process is None or process.start_ticks != record.start_ticks or not process.alive:
            continue  # it has ended; the process with this pid now is a stranger
        unproven = _unproven(record, process)
        if unproven is not None:
            left.append(unproven)
        elif process.pid != os.getpid():
            endings.append(TreeTermination(process.pid, signal.SIGTERM, grace_s, top=process))
    _end_all(endings)
    for ending in endings:
        left += ending.left
    ended = {pid for ending in endings for pid in ending.signalled}
    return RecordedEnd(tuple(sorted(ended - {process.pid for process in left})), tuple(left))


def _unproven(record: ProcessRecord, process: ProcessStat) -> LeftProcess | None:
    """Return a recorded process that is not to be ended, with the reason; None where it is proven to be the job's."""
    if record.role == UNKILLED:
        return LeftProcess(record.pid, record.start_ticks, f"still there after KILL, state {process.state}", unkilled=True)
    environment = answered_environment(record.pid, RECORDED_ANSWER_S)
    if isinstance(environment, list) and DETACH in environment:
        return LeftProcess(record.pid, record.start_ticks, f"{DETACH.decode()} is in its environment")
    doubt = _doubt(environment, record.cookie)
    if not doubt:
        return None
    why = f"pid and start time are those of our {record.role}, but {doubt}"
    return LeftProcess(record.pid, record.start_ticks, why, unkilled=environment is None)
