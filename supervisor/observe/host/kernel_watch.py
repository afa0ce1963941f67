"""Watches what the kernel logs while an attempt runs: Xids, the OOM killer's choice, failing disks.

It reads /dev/kmsg from the attempt's start, else the journal (`journalctl -k`), else a file that syslog writes. If none can be read the
evidence says so, with the reasons: a log that nobody read proves no health. A record is examined when it comes, because the process that
it names can still be found then. Reading takes a fifth of one processor at most, also in a flood; what the kernel overwrites meanwhile is
counted.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from typing import TYPE_CHECKING

from health.kernellog import kmsg_reader, sources
from health.kernellog.kmsg_reader import Device, Joiner
from supervisor.core.model import Evidence
from supervisor.observe.host.kernel_records import BoundedFacts, KernelRecord, evidence

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from health.kernellog.kmsg_reader import Kmsg
    from supervisor.job.clock import Clock
    from supervisor.observe.log_watch import Signatures
    from supervisor.observe.processes.job_processes import JobProcesses

AT_ONCE = 512  # records between two checks whether anybody waits
PAUSE_PER_READ = 4  # as a multiple of the time that it took
LAST_S = 0.5  # the longest read once somebody waits


class KernelWatch:
    """Follows the kernel's log during one attempt, in a thread of its own."""

    def __init__(self, signatures: Signatures, processes: JobProcesses, clock: Clock, open_kmsg: Callable[[], Kmsg] = Device) -> None:
        """Prepare; `processes` knows whose a pid is."""
        self._signatures, self._processes, self._clock, self._open = signatures, processes, clock, open_kmsg
        self._since = clock.now()
        self._answered = threading.Event()
        self._lock = threading.Lock()  # guards all below: `finish` does not wait for the thread's end
        self._wake = -1
        self._found = BoundedFacts()
        self._facts: list[Evidence] = []
        self._lost = 0
        self._joiner = Joiner()  # the thread's own
        self._fallbacks: Mapping[str, tuple[int, int]] = {}
        self._abandoned = False

    def start(self) -> None:
        """Begin. Raises OSError or RuntimeError where no descriptor or no thread can be had."""
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            threading.Thread(target=self._run, name="kernel", daemon=True).start()
        except RuntimeError:
            self._close()
            raise

    def stop(self) -> None:
        """Have it end; nobody waits for its facts."""
        self._abandoned = True
        self._wake_thread()

    def finish(self, deadline_s: float) -> tuple[Evidence, ...]:
        """Read the rest, and return the facts found by the deadline."""
        self._wake_thread()
        whole = self._answered.wait(deadline_s)
        with self._lock:
            facts = [*self._found.facts(), *self._facts]
            if self._lost:
                facts.append(Evidence("kernel", "overrun", f"the kernel's log was overwritten {self._lost} times before it was read"))
        if not whole:
            facts.append(Evidence("observer", "overdue", "kernel: the log could not be read to its end in time"))
        return tuple(facts)

    def _wake_thread(self) -> None:
        with self._lock:  # a descriptor that is closed meanwhile may be another file's when it is written to
            if self._wake >= 0:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_write(self._wake, 1)

    def _close(self) -> None:
        with self._lock:
            wake, self._wake = self._wake, -1
            os.close(wake)

    def _run(self) -> None:
        try:
            self._fallbacks = sources.remember()
            try:
                self._follow()
            except OSError as error:
                self._elsewhere(f"{kmsg_reader.KMSG}: {error.strerror}")
            for record in self._joiner.rest():
                self._judge(KernelRecord(record.text, self._clock.now()))
        except Exception as error:  # noqa: BLE001 (it becomes evidence; a thread that dies in silence would be waited for)
            self._add(Evidence("observer", "failed", f"kernel: {error}"))
        finally:
            self._answered.set()
            self._close()

    def _follow(self) -> None:
        kmsg = self._open()
        try:
            poll, waiting = select.poll(), select.poll()
            poll.register(kmsg.fileno(), select.POLLIN)
            for poller in (poll, waiting):
                poller.register(self._wake, select.POLLIN)
            over = False
            while not over:
                over = self._wake in {fd for fd, _ in poll.poll()}
                if not over:
                    began = time.monotonic()
                    self._read(kmsg)
                    over = bool(waiting.poll(1000 * PAUSE_PER_READ * (time.monotonic() - began)))
            until = time.monotonic() + LAST_S
            while not self._abandoned and self._read(kmsg):
                if time.monotonic() >= until:
                    self._add(Evidence("kernel", "unread", "more came than could be read in time"))
                    break
        finally:
            kmsg.close()

    def _read(self, kmsg: Kmsg) -> bool:
        """Take in the waiting records, up to a number; return whether there may be more."""
        for _ in range(AT_ONCE):
            try:
                data = kmsg.read()
            except BlockingIOError:
                return False
            except BrokenPipeError:
                with self._lock:
                    self._lost += 1
                continue
            if not data:
                raise OSError(0, "it is at its end, which the kernel's never is")
            parsed = kmsg_reader.parse(data)
            for record in self._joiner.take(parsed) if parsed is not None else ():
                # not the record's own time: the kernel's clock for it is not disciplined, and is seconds off after some weeks
                self._judge(KernelRecord(record.text, self._clock.now()))
        return True

    def _judge(self, record: KernelRecord) -> None:
        facts = evidence(record, self._signatures, self._processes)
        with self._lock:
            for fact in facts:
                self._found.add(fact)

    def _add(self, fact: Evidence) -> None:
        with self._lock:
            self._facts.append(fact)

    def _elsewhere(self, why: str) -> None:
        """Ask those who keep a copy of the kernel's log, when the attempt is over."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.poll()
        if self._abandoned:
            return
        reasons = [why]
        for source in (sources.journal, sources.syslog):
            records = source(self._since, self._clock, self._fallbacks)
            if isinstance(records, str):
                reasons.append(records)
                continue
            for text, t, sure in records:
                self._judge(KernelRecord(text, t, sure))
            return
        self._add(Evidence("kernel", "not_observed", f"none to read, so the kernel's kills are unknown: {'; '.join(reasons)}"))
