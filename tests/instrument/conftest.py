"""One attempt of a job, as the supervisor would have prepared it, and processes that run in it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.observe.ranks import error_files, heartbeats
from tests.instrument import forked
from tests.support import preloaded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parents[2]
FOLDER = str(ROOT / "supervisor" / "instrument")
OURS = ("SUPERVISE_", "RANK", "LOCAL_RANK", "PYTHON", "TORCHELASTIC_")


@dataclass(frozen=True)
class Attempt:
    """The job directory of one test."""

    job_dir: Path

    @property
    def directory(self) -> Path:
        """Where the attempt's processes and the supervisor meet."""
        return self.job_dir / "attempt-0001"

    @property
    def bare(self) -> dict[str, str]:
        """The environment that the job would have without us."""
        return {name: value for name, value in os.environ.items() if not name.startswith(OURS)} | {"OMP_NUM_THREADS": "1"}

    def env(self, mode: str = "rank", pythonpath: str | None = None, **more: str) -> dict[str, str]:
        """Give the environment that the supervisor gives; `pythonpath` is the user's own."""
        path = FOLDER if pythonpath is None else f"{FOLDER}{os.pathsep}{pythonpath}"
        job_variables = {
            "SUPERVISE_JOB_DIR": str(self.job_dir),
            "SUPERVISE_JOB_ATTEMPT": "1",
            "SUPERVISE_JOB_SHIM": mode,
            "PYTHONPATH": path,
        }
        return self.bare | job_variables | more

    def run(
        self,
        *args: str,
        env: dict[str, str] | None = None,
        python: Sequence[str] = (),
        cwd: Path | None = None,
        executable: str = sys.executable,
    ) -> subprocess.CompletedProcess[str]:
        """Run the interpreter to its end; `python` are its own options."""
        command = [executable, *python, *args]
        return subprocess.run(  # noqa: S603 - our own interpreter
            command, env=self.env() if env is None else env, cwd=cwd, capture_output=True, text=True, check=False
        )

    def run_forked(self, *args: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run the same to its end in a fork that has torch: tests/instrument/forked.py."""
        with preloaded.files_for(b"") as files:
            rank = forked.start(*args, environ=self.env() if env is None else env, cwd=cwd or Path.cwd(), descriptors=files)
            code = rank.wait()
            out, err = (os.pread(file, os.fstat(file).st_size, 0).decode() for file in files[1:])
            return subprocess.CompletedProcess(args, code, out, err)

    def beats(self) -> tuple[heartbeats.RankHeartbeat, ...]:
        """Read the heartbeats."""
        return heartbeats.read(self.directory / "heartbeat")

    def errors(self) -> error_files.ErrorScan:
        """Read the error files, not knowing any rank but those that claimed."""
        return error_files.read(self.directory, ())

    def names(self) -> set[str]:
        """List the files that the processes left."""
        return {path.name for path in self.directory.iterdir()}


@pytest.fixture(scope="session")
def make_attempt() -> Callable[[Path], Attempt]:
    """Return how an attempt is prepared below a directory."""

    def make(place: Path) -> Attempt:
        attempt = Attempt(place / "job")
        heartbeats.create(attempt.directory / "heartbeat", 4)
        return attempt

    return make


@pytest.fixture
def attempt(make_attempt: Callable[[Path], Attempt], tmp_path: Path) -> Attempt:
    return make_attempt(tmp_path)
