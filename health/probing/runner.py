"""Runs probes under a deadline, in disposable processes; a probe that does not answer is a finding.

The deadline of each probe is in health/registry.py; `Ask.deadline_s` (health/model.py) limits them all.

The readings hold one `probe.outcome` of subject `probe:NAME` for each probe, a table:

    state       answered | failed (the probe raised) | hung (no end within its deadline) | not_started (no process, or it died)
    seconds, cpu_s, deadline_s
    why         words of the failure
    process     of one that hung: its state in /proc (D: in the kernel, deaf to signals), `wchan` where the kernel waits, `pid`
    after       the last thing that it read

Readings before a hang are kept. `Runner` owns its processes: a sweep has one for each
probe, in parallel; sampling has one that lasts. Each is killed at its end with its children, whichever of them ended first. While one
that hangs does not die no other is started for that probe: processes in D state would pile up, and each would take the driver's lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from health import registry
from health.model import Ask, Json, Reading, Readings, reading_from
from health.probing.process_groups import kill_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from health.probing.messages import ProberAnswer, ProbeRequest

    Start = Callable[[Callable[[], subprocess.Popen[bytes]]], subprocess.Popen[bytes]]

OUTCOME: Final = "probe.outcome"
#: A python that starts on a node that is busy; not counted against the probe.
_START_S: Final = 20.0
#: How long we wait for one that was killed to be gone: D state shows itself at once.
_KILLED_S: Final = 0.3
#: We waited longer than we asked to: we were stopped (a suspended job, a paused VM), and so may they have been.
_STOPPED_S: Final = 0.5
_SLICE_S: Final = 0.25
#: A process rests where so many samples in a row find it in one state. A process that waits for a
#: CPU to go to sleep on is running in one sample.
_SAMPLES: Final = 5
_BETWEEN_SAMPLES_S: Final = 0.02
#: A process that does not rest for this long is running.
_RESTLESS_S: Final = 0.5
#: No answer is as long as that: its writer is not a prober.
_LONGEST_ANSWER: Final = 64 << 20
_CHUNK: Final = 1 << 16
_PROBER: Final = Path(__file__).with_name("process.py")


@dataclass(slots=True)
class _Process:
    """One prober, and what of its output is not a whole line yet."""

    popen: subprocess.Popen[bytes]
    ready: bool = False
    rest: bytes = b""
    asked: int = 0

    def fd(self) -> int:
        assert self.popen.stdout is not None  # noqa: S101 -- a pipe was asked for
        return self.popen.stdout.fileno()

    def request(self, module: str, ask: Ask) -> bool:
        """Ask one thing. False where the process is gone, or does not read."""
        assert self.popen.stdin is not None  # noqa: S101 -- a pipe was asked for
        self.asked += 1
        row: ProbeRequest = {"id": self.asked, "module": module, "ask": ask.to_json()}
        fd, left = self.popen.stdin.fileno(), json.dumps(row).encode("ascii") + b"\n"
        until = time.monotonic() + (ask.deadline_s if self.ready else _START_S)
        try:
            room = select.poll()
            room.register(fd, select.POLLOUT)
            while left:
                if not room.poll(max(0.0, until - time.monotonic()) * 1000):
                    return False
                with contextlib.suppress(BlockingIOError):
                    left = left[os.write(fd, left) :]
        except OSError:
            return False
        return True

    def lines(self) -> list[ProberAnswer] | None:
        """Return the answers that are there, None where the process has closed its end."""
        try:
            got = os.read(self.fd(), _CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not got:
            return None
        *whole, self.rest = (self.rest + got).split(b"\n")
        self.rest = self.rest[-_LONGEST_ANSWER:]
        answers = [answer for line in whole if (answer := _answer(line)) is not None]
        self.ready = self.ready or any("ready" in answer for answer in answers)
        return answers

    def end(self) -> bool:
        """Kill it and its children. Returns whether it is gone."""
        kill_group(self.popen)
        for pipe in (self.popen.stdin, self.popen.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(_KILLED_S)
        return self.popen.poll() is not None


@dataclass(slots=True)
class _Job:
    """One probe that is being asked."""

    name: str
    ask: Ask
    module: str
    process: _Process
    started: float
    deadline: float
    readings: list[Reading] = field(default_factory=list)
    outcome: dict[str, Json] = field(default_factory=dict)

    def take(self, answers: Iterable[ProberAnswer]) -> None:
        for answer in answers:
            if answer.get("id") != self.process.asked:
                continue  # "ready"
            if "reading" in answer:
                self.readings.append(reading_from(answer["reading"]))
            elif "done" in answer:
                self.outcome = {"state": "answered", "cpu_s": answer["done"]}
            elif "failed" in answer:
                self.outcome = {"state": "failed", "why": answer["failed"]}


@dataclass(frozen=True, slots=True)
class _Stuck:
    process: _Process
    since: float
    outcome: dict[str, Json]


class Runner:
    """Asks probes. environ: the probers' own, by default this process's.

    start: calls what makes a process; for a caller that must know its own children from others. awaited: gets the names of the probes that
    did not answer yet, each time that there are fewer.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        start: Start = lambda make: make(),
        awaited: Callable[[Sequence[str]], None] = lambda _names: None,
    ) -> None:
        self._start = start
        self._awaited = awaited
        self._environ = None if environ is None else dict(environ)
        self._stuck: dict[str, _Stuck] = {}
        self._lasting: _Process | None = None

    def sweep(self, names: Iterable[str], ask: Ask) -> Readings:
        """Ask probes, each in a process of its own, all at once. Takes as long as the slowest, and no longer than its deadline."""
        readings: list[Reading] = []
        jobs: list[_Job] = []
        for name in names:
            process = self._started(name, readings)
            if process is not None:
                jobs.append(self._job(name, replace(ask, lasting=False), process))
        self._wait(jobs)
        for job in jobs:
            readings += self._finished(job)
            if job.outcome["state"] != "hung":
                job.process.end()
        return Readings(readings)

    def sample(self, names: Iterable[str], ask: Ask) -> Readings:
        """Ask probes one after another, in one process that lasts from one call to the next."""
        readings: list[Reading] = []
        for name in names:
            if self._lasting is not None and self._lasting.popen.poll() is not None:
                self.close()  # it died since the last call, and its children may live
            if self._lasting is None:
                self._lasting = self._started(name, readings)
            elif name in self._stuck and not self._freed(name, readings):
                continue
            if self._lasting is None:
                continue
            job = self._job(name, replace(ask, lasting=True), self._lasting)
            self._wait([job])
            readings += self._finished(job)
            if job.outcome["state"] in ("hung", "not_started"):
                if job.outcome["state"] == "not_started":
                    self._lasting.end()
                self._lasting = None
        return Readings(readings)

    def close(self) -> None:
        """End what runs. One that is in the kernel for ever is left behind: nothing can end it."""
        if self._lasting is not None:
            self._lasting.end()
            self._lasting = None

    def _started(self, name: str, readings: list[Reading]) -> _Process | None:
        if not self._freed(name, readings):
            return None
        try:
            popen = self._start(
                lambda: subprocess.Popen(  # noqa: S603 -- our own program
                    [sys.executable, "-P", str(_PROBER)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=self._environ,
                    start_new_session=True,  # a terminal's signals are for its foreground, and a probe is not in it
                )
            )
        except OSError as error:
            readings.append(_outcome(name, {"state": "not_started", "why": f"no process could be started: {error.strerror or error}"}))
            return None
        process = _Process(popen)
        for pipe in (popen.stdin, popen.stdout):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        return process

    def _freed(self, name: str, readings: list[Reading]) -> bool:
        """Tell whether a probe may be asked: not while its last process hangs in the kernel."""
        stuck = self._stuck.get(name)
        if stuck is None:
            return True
        if stuck.process.popen.poll() is not None:
            del self._stuck[name]
            return True
        since = time.monotonic() - stuck.since
        readings.append(_outcome(name, {**stuck.outcome, **_seen(stuck.process.popen.pid), "seconds": round(since, 3)}))
        return False

    def _job(self, name: str, ask: Ask, process: _Process) -> _Job:
        row = registry.PROBES[name]
        deadline_s = min(row.deadline_s, ask.deadline_s)
        started = time.monotonic()
        environ = _few(ask.environ) if name == "environment" else {}
        asked = replace(ask, deadline_s=deadline_s, environ=environ)
        job = _Job(name, asked, row.module, process, started, started + deadline_s)
        if not process.ready:
            job.deadline = started + _START_S
        if not process.request(job.module, job.ask):
            job.outcome = {"state": "not_started", "why": "the process is gone, or does not read"}
        return job

    def _wait(self, jobs: list[_Job]) -> None:
        """Wait until every job has an outcome."""
        with selectors.DefaultSelector() as selector:
            open_jobs = {job.process.fd(): job for job in jobs if not job.outcome}
            for fd in open_jobs:
                selector.register(fd, selectors.EVENT_READ)
            self._awaited([job.name for job in open_jobs.values()])
            while open_jobs:
                began = time.monotonic()
                left = min(_SLICE_S, max(0.0, min(job.deadline for job in open_jobs.values()) - began))
                readable = {key.fd for key, _ in selector.select(left)}  # also where the time is up: who answered in time is not late
                stopped_s = time.monotonic() - began - left
                for fd in readable:
                    _receive(open_jobs[fd])
                now = time.monotonic()
                for fd, job in open_jobs.items():
                    if stopped_s > _STOPPED_S:
                        job.deadline += stopped_s
                    if not job.outcome and job.deadline <= now and (fd not in readable or job.deadline + _STOPPED_S <= now):
                        job.outcome = _late(job)
                answered = [fd for fd, job in open_jobs.items() if job.outcome]
                for fd in answered:
                    selector.unregister(fd)
                    del open_jobs[fd]
                if answered:
                    self._awaited([job.name for job in open_jobs.values()])

    def _finished(self, job: _Job) -> list[Reading]:
        if job.outcome["state"] == "hung" and not job.process.end():
            self._stuck[job.name] = _Stuck(job.process, job.started, job.outcome)
        seconds = round(time.monotonic() - job.started, 3)
        return [*job.readings, _outcome(job.name, {"seconds": seconds, "deadline_s": job.ask.deadline_s, **job.outcome})]


def _few(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables for the only probe that reads them: those of a job may be many, and some are secrets."""
    from health.probes import environment  # noqa: PLC0415  it brings importlib.metadata, which takes time

    return environment.needed(environ)


def _answer(line: bytes) -> ProberAnswer | None:
    """Return the answer in one line; None where a library wrote into the prober's pipe, which costs that line only."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast("ProberAnswer", answer) if isinstance(answer, dict) else None


def asked(readings: Readings) -> frozenset[str]:
    """Return the probes that were asked."""
    return frozenset(reading.subject.removeprefix("probe:") for reading in readings.of(OUTCOME))


def _receive(job: _Job) -> None:
    was_ready = job.process.ready
    answers = job.process.lines()
    if answers is None:
        code = job.process.popen.poll()
        job.outcome = {"state": "not_started", "why": f"its process died{'' if code is None else f' ({code})'}{_after(job)}"}
        return
    if job.process.ready and not was_ready:
        job.deadline = time.monotonic() + job.ask.deadline_s
    job.take(answers)


def _late(job: _Job) -> dict[str, Json]:
    if not job.process.ready:
        return {"state": "not_started", "why": f"python did not start within {_START_S:.0f} s"}
    last = job.readings[-1] if job.readings else None
    return {"state": "hung", "after": f"{last.name} of {last.subject}" if last else "", **_at_rest(job.process.popen.pid)}


def _after(job: _Job) -> str:
    return f" after it had read {job.readings[-1].name} of {job.readings[-1].subject}" if job.readings else ""


def _outcome(name: str, table: dict[str, Json]) -> Reading:
    return Reading("runner", f"probe:{name}", OUTCOME, table, t=time.time())


def _at_rest(pid: int) -> dict[str, Json]:
    """Return where a process rests; state R if it does not rest."""
    samples = [_seen(pid)]
    until = time.monotonic() + _RESTLESS_S
    while time.monotonic() < until:
        states = {sample["process"] for sample in samples[-_SAMPLES:]}
        if len(samples) >= _SAMPLES and len(states) == 1 and "R" not in states:
            return samples[-1]
        time.sleep(_BETWEEN_SAMPLES_S)
        samples.append(_seen(pid))
    return {**samples[-1], "process": "R"}


def _seen(pid: int) -> dict[str, Json]:
    """Return where a process is: its worst thread's state, and where the kernel waits in it."""
    states: list[tuple[str, str]] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, IndexError):
                state = (task / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
                wchan = ""
                with contextlib.suppress(OSError):  # another user's, or a kernel that does not show it
                    wchan = (task / "wchan").read_text("ascii", "replace").strip("0\n")
                # the thread that listens for requests sleeps in a pipe, always
                if "pipe" not in wchan or task.name == str(pid):
                    states.append((state, wchan))
    state, wchan = min(states, key=lambda thread: "DRS".find(thread[0]) % 4, default=("", ""))
    return {"process": state, "wchan": wchan, "pid": pid}
