"""Fixtures of runs of `supervise`. A test that fails shows output, journal and rank logs of its runs.

What a test's runs leave behind is ended after it. The time ledger of every journal below the test's directory must add up to the wall
clock, whoever wrote it: a drill, a test's own `supervise`, an earlier run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.config.intervals import FACTOR_VARIABLE
from tests.checkpointing.mirror import servers
from tests.support.frameworks import variables
from tests.support.ledgers import check_ledgers_below
from tests.support.network import Network
from tests.support.supervised import EAGER, Bucket, Supervised, Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

RUNS: pytest.StashKey[list[Supervised]] = pytest.StashKey()


@pytest.fixture
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each run look for checkpoints every 0.2 s, and restart at once."""
    monkeypatch.setenv(FACTOR_VARIABLE, "0.04")


@pytest.fixture
def supervise(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Supervised]]:
    """Give a function that starts a `supervise` run; what its runs leave behind is ended after the test.

    Standbys are off unless a test asks for them: most tests end an attempt before one is ready, and it would take processor time from them.
    """
    runs: list[Supervised] = request.node.stash.setdefault(RUNS, [])
    defaults = {"SUPERVISE_STANDBY_MODE": "on" if request.config.getoption("--standbys") else "off"}
    is_eager = request.config.getoption("--eager-hangs") or request.node.get_closest_marker("eager_hangs") is not None

    def start(
        *command: str | Path,
        options: Sequence[str] = (),
        place: Path | None = None,
        around: Surroundings | None = None,
        **environment: str,
    ) -> Supervised:
        where = place or tmp_path
        where.mkdir(parents=True, exist_ok=True)
        given = {**defaults, **(EAGER if is_eager else {}), **environment}
        runs.append(Supervised(where, command, options, given, around or Surroundings()))
        return runs[-1]

    yield start
    for run in runs:
        run.clear()
    for run in runs:
        run.check_journals()
        run.check_ledgers()
        if is_eager and EAGER.items() <= run.environment.items():
            assert '"event":"HangConfirmed"' not in run.journal(), "a job that does not hang was called hung"


@pytest.fixture(autouse=True)
def ledgers_add_up(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """Check the time ledger of every journal that lies below the test's directory after it, whoever wrote it."""
    yield
    runs = request.node.stash.get(RUNS, [])
    check_ledgers_below(tmp_path, is_damaged=any(run.journal_is_damaged for run in runs))


@pytest.fixture
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    """Give a network of three nodes, or of so many as the test asks for; skip the test where none can be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs network namespaces: run as root, with `ip` (Debian: apt-get install iproute2)")
    try:
        lan = Network(getattr(request, "param", 3))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"needs network namespaces, which cannot be made here (in a container: --privileged): {error.stderr[-200:]}")
    yield lan
    lan.close()


@pytest.fixture
def bucket(for_all_workers: Path) -> Iterator[Bucket]:
    with servers.shared("swift", for_all_workers / "swift") as server:
        name = f"b{uuid.uuid4().hex[:16]}"
        server.client().create_bucket(Bucket=name)
        reach = {"AWS_ACCESS_KEY_ID": servers.KEY, "AWS_SECRET_ACCESS_KEY": servers.SECRET, "AWS_DEFAULT_REGION": "us-east-1"}
        reach |= {"AWS_ENDPOINT_URL_S3": server.endpoint}
        yield Bucket(name, reach, server.client())


@pytest.fixture(scope="session")
def frameworks() -> dict[str, str]:
    """Give the variables with which a script finds the frameworks that are no dependencies of ours."""
    return variables("huggingface", "lightning")


@pytest.fixture
def surroundings() -> type[Surroundings]:
    """Give the class that says what a run is started with."""
    return Surroundings


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the output and files of its runs to the report of a test that failed."""
    report = yield
    if report.failed and report.when == "call":  # type: ignore[attr-defined]  # what a wrapper is sent has no type
        for number, run in enumerate(item.stash.get(RUNS, [])):
            report.sections.append((f"supervise run {number}", run.account()))  # type: ignore[attr-defined]
    return report  # type: ignore[return-value]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A working directory for drills, with a script, what it imports, and a checkpoint of an earlier training."""
    for name in ("ddp_small.py", "job_parts.py", "light.py"):
        shutil.copy(Path(__file__).parents[1] / "jobs" / name, tmp_path)
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "step-000099.pt").write_bytes(b"the result of a week")
    return tmp_path
