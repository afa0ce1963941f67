"""Runs a probe in both ways, as a rank that starts cold and out of a standby, and compares what was observed.

The parent's part is done as the agent does it (supervisor/agent/spawn.py): a session of its own, pipes or a terminal, and death
with its parent. What two cold starts see differently (pids, times, random numbers) is left out.
"""

from __future__ import annotations

import json
import os
import pty
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from supervisor.guardian.libc import die_with_parent
from supervisor.guardian.standby import REFUSED, Standby, StartFacts, environment, pair
from supervisor.observe.ranks import heartbeats
from tests.standby.differences import DIFFERENCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
PROBES = Path(__file__).with_name("probes")
FOLDER = str(ROOT / "supervisor" / "instrument")
OURS = ("SUPERVISE_", "RANK", "LOCAL_RANK", "PYTHON", "TORCHELASTIC_", "COLUMNS", "LINES", "PYTEST_")
PATIENCE_S = 300.0  # a first torch.compile takes 100 s where ten others want the two cores
MOST_SHOWN = 12


@dataclass(frozen=True)
class Case:
    """One command of a rank. `args`: what follows the interpreter; `terminal`: its output is one; `stdin`: the text of its input."""

    args: tuple[str, ...]
    cwd: Path = PROBES
    python: str = sys.executable
    env: Mapping[str, str] = field(default_factory=dict)
    terminal: bool = False
    stdin: str = ""


@dataclass(frozen=True)
class Outcome:
    """What is observed of one run.

    `cold`: why it was started cold although a standby had been there; `note`: why the standby imported a part only.
    """

    code: int
    out: bytes
    err: bytes
    files: dict[str, Any]
    cold: str = ""
    note: str = ""

    @property
    def observed(self) -> dict[str, Any]:
        """Everything, flat: dotted name -> value."""
        lines = self.out.decode(errors="backslashreplace").splitlines()
        facts = [json.loads(line) for line in lines if line.startswith("{")]
        rest = [line for line in lines if not line.startswith("{")]
        whole = {"code": self.code, "err": self.err.decode(errors="backslashreplace"), "out": rest, "files": self.files}
        return dict(_flat(whole)) | {name: value for fact in facts for name, value in _flat(fact)}


class Job:
    """The directory of one job, in which one local rank runs again and again: attempt 1 is recorded, attempt 2 is what is compared."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def directory(self, attempt: int) -> Path:
        """Return where an attempt's rank and the supervisor meet."""
        return self.place / f"attempt-{attempt:04d}"

    @property
    def record(self) -> Path:
        """What the rank of attempt 1 was seen to import."""
        return self.directory(1) / "imports-0.json"

    def variables(self, case: Case, attempt: int) -> dict[str, str]:
        """Return the environment of the only rank of an attempt, as torchrun and the supervisor make it."""
        bare = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        rank = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"), "0")
        rank |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"), "1")
        rank |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29400 + attempt), "OMP_NUM_THREADS": "1"}
        rank |= {
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": str(attempt - 1),
            "TORCHELASTIC_MAX_RESTARTS": str(3 - attempt),
        }
        shim_variables = {"SUPERVISE_JOB_DIR": str(self.place), "SUPERVISE_JOB_ATTEMPT": str(attempt), "SUPERVISE_JOB_SHIM": "rank"}
        given = dict(case.env)
        path = given.pop("PYTHONPATH", None)
        return bare | rank | shim_variables | given | {"PYTHONPATH": FOLDER if path is None else f"{FOLDER}{os.pathsep}{path}"}

    def prepare(self, attempt: int) -> None:
        """Begin an attempt."""
        shutil.rmtree(self.directory(attempt), ignore_errors=True)
        heartbeats.create(self.directory(attempt) / "heartbeat", 1)

    def cold(self, case: Case, attempt: int = 2) -> Outcome:
        """Run it as a cold start does."""
        self.prepare(attempt)
        with _Streams(case) as streams:
            child = _start(case, self.variables(case, attempt), streams)
            return self._collect(child.wait, child.pid, streams, attempt)

    def recorded(self, case: Case) -> Outcome:
        """Run attempt 1, which leaves the record; what it prints is of no interest."""
        outcome = self.cold(case, 1)
        assert self.record.exists(), f"nothing was recorded: code {outcome.code}\n{outcome.out.decode()}\n{outcome.err.decode()}"
        return outcome

    def standby(self, case: Case) -> Standby:
        """Start a standby in attempt 1, and await that it is ready or refuses."""
        mine, its = pair()
        variables = self.variables(case, 1)
        with its, _Streams(case) as streams:
            facts = StartFacts([case.python, *case.args], variables, str(case.cwd))
            child = _start(case, environment(variables, its.fileno(), str(self.record)), streams, its.fileno())
            child.returncode = 0  # whoever has the standby reaps it
        standby = Standby(child.pid, mine, facts)
        with selectors.DefaultSelector() as selector:
            selector.register(standby.fileno(), selectors.EVENT_READ)
            if not selector.select(PATIENCE_S):
                standby.drop()
                raise TimeoutError("the standby is neither ready nor does it refuse")
        standby.poll()
        return standby

    def warm(
        self, case: Case, standby: Standby | None = None, then: Case | None = None, before: Callable[[], None] = lambda: None
    ) -> Outcome:
        """Run attempt 2 out of a standby. `then`: the command of attempt 2, if it is another; `before`: done while the standby waits."""
        standby = standby or self.standby(case)
        before()
        first, case = case, then or case
        self.prepare(2)
        why = f"refused: {standby.why}" if standby.poll() == REFUSED else ""
        with _Streams(case) as streams:
            taken = standby.hand_over(
                [case.python, *case.args], self.variables(case, 2), "" if first.cwd == case.cwd else str(case.cwd),
                fds={1: streams.out, 2: streams.err}, deadline_s=PATIENCE_S,
            )  # fmt: skip
            if taken:
                outcome = self._collect(lambda: os.waitstatus_to_exitcode(os.waitpid(standby.pid, 0)[1]), standby.pid, streams, 2)
                return replace(outcome, note=standby.note)
        cold = self.cold(case)
        return Outcome(cold.code, cold.out, cold.err, cold.files, why or standby.why)

    def _collect(self, wait: Callable[[], int], pid: int, streams: _Streams, attempt: int) -> Outcome:
        try:
            out, err = streams.read()
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            wait()
            raise
        code = wait()
        return Outcome(code, out, err, dict(_left(self.directory(attempt), pid)))


class _Streams:
    """Both ends of a rank's outputs, and its input."""

    def __init__(self, case: Case) -> None:
        if case.terminal:
            master, self.out = pty.openpty()
            self.err = os.dup(self.out)
            self._reading = {master: bytearray()}
        else:
            (out, self.out), (err, self.err) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
            self._reading = {out: bytearray(), err: bytearray()}
        self.stdin = os.memfd_create("stdin")
        os.write(self.stdin, case.stdin.encode())
        os.lseek(self.stdin, 0, os.SEEK_SET)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in {self.out, self.err, self.stdin, *self._reading} - {-1}:
            os.close(fd)

    def read(self) -> tuple[bytes, bytes]:
        """Read all until nobody can write any more."""
        os.close(self.out)
        os.close(self.err)
        self.out = self.err = -1
        until = time.monotonic() + PATIENCE_S
        with selectors.DefaultSelector() as selector:
            for fd in self._reading:
                selector.register(fd, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(max(0.0, until - time.monotonic()))
                if not ready:
                    raise TimeoutError("the probe does not end; it wrote " + repr([bytes(text[-2000:]) for text in self._reading.values()]))
                for key, _ in ready:
                    self._read(selector, key.fd)
        out, *err = (bytes(text) for text in self._reading.values())
        return out, err[0] if err else b""

    def _read(self, selector: selectors.BaseSelector, fd: int) -> None:
        try:
            chunk = os.read(fd, 1 << 16)
        except OSError:  # EIO: the other side of a terminal is closed
            chunk = b""
        self._reading[fd] += chunk
        if not chunk:
            selector.unregister(fd)


def _start(case: Case, env: dict[str, str], streams: _Streams, link: int | None = None) -> subprocess.Popen[bytes]:
    """Start it as supervisor/agent/spawn.py does; `link`: a standby's socket, and then it gets no outputs yet."""
    return subprocess.Popen(  # noqa: S603 - a probe of ours
        [case.python, *case.args],
        env=env,
        cwd=case.cwd,
        stdin=streams.stdin,
        stdout=streams.out if link is None else subprocess.DEVNULL,
        stderr=streams.err if link is None else subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=() if link is None else (link,),
        preexec_fn=die_with_parent,  # noqa: PLW1509 - as the agent
    )


def _left(directory: Path, pid: int) -> Iterator[tuple[str, Any]]:
    """Give the files that a rank left for the supervisor, the empty ones too."""
    for path in sorted(directory.iterdir()):
        name = path.name.replace(str(pid), "PID")
        if not path.is_file() or name.startswith(("claim-", "heartbeat")):  # a pipe, or not for reading
            yield name, True
        elif path.suffix == ".json":
            yield name, json.loads(path.read_text())
        else:
            yield name, path.read_text(errors="backslashreplace")
    beats = heartbeats.read(directory / "heartbeat", now_ns=0)
    yield "beats", {str(beat.local_rank): {name: getattr(beat, name) for name in beat.__slots__} for beat in beats}


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - JSON
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def differences(colds: list[Outcome], warm: Outcome, also: tuple[str, ...] = ()) -> list[str]:
    """Return what differs from the cold starts without being allowed to, each as a line; `also`: names that this probe may differ in."""
    first, *others = [cold.observed for cold in colds]
    seen = warm.observed
    allowed = (*(name for row in DIFFERENCES for name in row.names), *also)
    deviations = []
    for name in sorted({*first, *seen}):
        missing = object()
        value = first.get(name, missing)
        if value == seen.get(name, missing) or any(other.get(name, missing) != value for other in others):
            continue
        if not any(fnmatchcase(name, pattern) for pattern in allowed):
            deviations.append(f"{name}: cold {_short(first, name)}, out of a standby {_short(seen, name)}")
    return deviations if len(deviations) <= MOST_SHOWN else [*deviations[:MOST_SHOWN], f"and {len(deviations) - MOST_SHOWN} more"]


def _short(observed: dict[str, Any], name: str) -> str:
    return repr(observed[name])[:300] if name in observed else "nothing"


def assert_equal(job: Job, case: Case, also: tuple[str, ...] = ()) -> Outcome:
    """Run a probe once to record it, twice cold and once out of a standby, and hold that nothing can be told apart."""
    job.recorded(case)
    colds = [job.cold(case), job.cold(case)]
    warm = job.warm(case)
    assert not warm.cold, f"the standby was of no use: {warm.cold}"
    deviations = differences(colds, warm, also)
    assert not deviations, "\n".join(deviations)
    return warm
