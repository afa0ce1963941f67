"""Runs a script as a rank, cold or from a standby. The parent's part is that of the agent: `subprocess`, with a session of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.guardian.standby import PREPARING, Standby, StartFacts, environment, pair
from supervisor.observe.ranks import heartbeats
from tests.support.waiting import patience_s, wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
FOLDER = str(ROOT / "supervisor" / "instrument")
OURS = ("SUPERVISE_", "RANK", "LOCAL_RANK", "PYTHON", "TORCHELASTIC_", "COVERAGE_")
#: At the end of a script that does not train: writes the record that a rank writes at its first step. A standby needs these modules.
RECORD = "\nimport _socket, ctypes, json, sys\nsys.modules['_supervise_shim'].instrument._imports.write(final=True)\n"


class Ranks:
    """The attempts of one job; each may be run cold or from a standby. `processes`: all that were started."""

    def __init__(self, folder: Path, executable: str = sys.executable, **variables: str) -> None:
        self.folder = folder
        self.executable = executable
        self.variables = variables
        self.processes: list[subprocess.Popen[bytes]] = []
        self.standby: Standby | None = None

    def env(self, attempt: int, **more: str) -> dict[str, str]:
        """Return the environment of an attempt's rank."""
        directory = self.directory(attempt)
        if not directory.exists():
            heartbeats.create(directory / "heartbeat", 2)
        bare = {name: value for name, value in os.environ.items() if not name.startswith(OURS)} | {"OMP_NUM_THREADS": "1"}
        job_variables = {
            "SUPERVISE_JOB_DIR": str(self.folder / "job"),
            "SUPERVISE_JOB_ATTEMPT": str(attempt),
            "SUPERVISE_JOB_SHIM": "rank",
            "PYTHONPATH": FOLDER,
        }
        return bare | job_variables | self.variables | more

    def directory(self, attempt: int) -> Path:
        """Return the attempt's directory."""
        return self.folder / "job" / f"attempt-{attempt:04d}"

    def record(self, attempt: int = 1) -> Path:
        """Return the path of the record of local rank 0."""
        return self.directory(attempt) / "imports-0.json"

    def content(self, attempt: int = 1) -> dict[str, Any]:
        """Read the record."""
        return dict(json.loads(self.record(attempt).read_text()))

    def cold(self, *args: str, attempt: int = 1, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        """Run a rank cold; returns exit code, output, errors."""
        with self._files(attempt) as (out, err):
            process = subprocess.Popen(  # noqa: S603 - as below
                [self.executable, *args],
                env=env or self.env(attempt),
                stdout=out,
                stderr=err,
                cwd=cwd or self.folder,
                start_new_session=True,
            )
            self.processes.append(process)
        return process.wait(100), *self.outputs(attempt)

    def start(self, *args: str, attempt: int = 1, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Standby:
        """Start a standby for the command and the environment of an attempt, by the record of that attempt."""
        argv, given = [self.executable, *args], dict(env or self.env(attempt))
        our_end, their_end = pair()
        with their_end:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter
                argv,
                env=environment(given, their_end.fileno(), str(self.record(attempt))),
                pass_fds=[their_end.fileno()],
                cwd=cwd or self.folder,
                start_new_session=True,
            )
        self.processes.append(process)
        self.standby = Standby(process.pid, our_end, StartFacts(argv, given, str(cwd or self.folder)))
        return self.standby

    def ready(self, *args: str, **how: Any) -> Standby:  # noqa: ANN401 - as `start` takes them
        """Start a standby, and wait until it is not preparing any more."""
        standby = self.start(*args, **how)
        wait_for(lambda: standby.poll() != PREPARING, "the standby", 100)
        return standby

    def hand_over(self, *args: str, attempt: int = 2, env: Mapping[str, str] | None = None, deadline_s: float = 60.0) -> bool:
        """Have the standby run as the attempt's rank."""
        assert self.standby is not None
        with self._files(attempt) as (out, err):
            return self.standby.hand_over(
                [self.executable, *args],
                env or self.env(attempt),
                fds={1: out.fileno(), 2: err.fileno()},
                deadline_s=patience_s(deadline_s),
            )

    def warm(self, *args: str, attempt: int = 2) -> tuple[int, str, str]:
        """Run the rank from the standby; returns exit code, output, errors."""
        assert self.standby is not None
        assert self.hand_over(*args, attempt=attempt), self.standby.why
        return self.processes[-1].wait(100), *self.outputs(attempt)

    def both(self, *args: str, again: Sequence[str] | None = None) -> tuple[tuple[int, str, str], tuple[int, str, str]]:
        """Run the script cold, and from a standby; returns both results. again: the arguments of the second attempt."""
        cold = self.cold(*args)
        standby = self.ready(*args)
        assert standby.poll() == "ready", standby.why
        return cold, self.warm(*(args if again is None else again))

    def outputs(self, attempt: int) -> tuple[str, str]:
        """Return what the attempt's rank wrote to stdout and stderr."""
        return (self.folder / f"out-{attempt}").read_text(), (self.folder / f"err-{attempt}").read_text()

    def _files(self, attempt: int) -> _Files:
        return _Files(self.folder / f"out-{attempt}", self.folder / f"err-{attempt}")

    def close(self) -> None:
        """End all that was started."""
        if self.standby is not None:
            self.standby.drop()
        for process in self.processes:
            with suppress(OSError):
                process.kill()
            process.wait()


class _Files:
    """The two outputs of a rank, open while it is started."""

    def __init__(self, *paths: Path) -> None:
        self._files = [path.open("wb") for path in paths]

    def __enter__(self) -> tuple[Any, Any]:
        return self._files[0], self._files[1]

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()
