"""Running `supervise` for real, as a user's shell would, and seeing what it leaves behind.

`Supervised` is a run with its own state directory, its output in files, and questions that await their answer under a deadline. A test
that fails shows output, journal and rank logs. Whatever carries the run's mark in its environment is ended after the test, by pid, after
its mark was read again. Then every journal that the test's runs wrote is folded: `decide` must give, record by record, the state that the
process had. And the time ledger of every journal below the test's directory must add up to the wall clock, whoever wrote it: a drill, a
test's own `supervise`, an earlier run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import termios
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.cli.jobs.job_files import find_job, state_root, with_a_run
from supervisor.cli.jobs.job_status import status_of
from supervisor.cli.stdio import json_text
from supervisor.config.intervals import FACTOR_VARIABLE
from supervisor.config.settings import JobSection, Settings
from supervisor.errors import SuperviseError
from supervisor.journal.records import Damage, scan
from tests.checkpointing.mirror import servers
from tests.support.figures import within
from tests.support.folding import check_fold
from tests.support.frameworks import variables
from tests.support.ledgers import check_ledgers_below
from tests.support.network import Network
from tests.support.waiting import is_running, patience_s, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MARK = "E2E_MARK"
#: The end of a line of `supervise` at the start, where the disk is slow, or the machine is under load.
WAITS = "which is slow or does not answer; --state-dir names another directory"
#: Limits ten times shorter than those of docs/explanation/hangs.md, for jobs that do not hang: `pytest --eager-hangs`, or the mark.
EAGER = {
    "SUPERVISE_HANG_ACTION": "restart",
    "SUPERVISE_HANG_TRAIN_S": "6",
    "SUPERVISE_HANG_PHASE_S": "60",
}
# What a developer's shell may have and a user's may not; it would change what is tested.
NOT_INHERITED = re.compile(
    r"PYTHON\w*|SUPERVISE_\w*|TORCH\w*|PYTEST\w*|RANK|WORLD_SIZE|LOCAL_\w*|MASTER_\w*|SLURM\w*|COLUMNS|LINES|NO_COLOR"
)


def clean_environment(**more: str) -> dict[str, str]:
    """Return the environment of a user's shell in which this interpreter's scripts are on PATH."""
    kept = {name: value for name, value in os.environ.items() if not NOT_INHERITED.fullmatch(name)}
    kept["PATH"] = f"{Path(sys.executable).parent}:{kept.get('PATH', '/usr/bin:/bin')}"
    kept["OMP_NUM_THREADS"] = "1"  # as torchrun would set it, without its warning of four lines
    return {**kept, **more}


def processes_with(mark: str) -> dict[int, str]:
    """Return pid → command line of every process, zombies apart, that has `mark` in its environment."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return found


@dataclass(frozen=True)
class Surroundings:
    """What a run is started with: words in front of `supervise`, and descriptors; None: a file in its place, for stdin nothing.

    terminal: the slave of a pseudo-terminal, which becomes its controlling terminal and those of its standard streams that are not given.
    without_us: the command alone is run, for comparison.
    """

    prefix: tuple[str, ...] = ()
    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None
    terminal: int | None = None
    without_us: bool = False


def _first(*descriptors: int | None) -> int:
    return next(descriptor for descriptor in descriptors if descriptor is not None)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Supervised:
    """One `supervise` process under test. `place` is its working directory; the state directory is `place`/state.

    `journal_is_damaged`: set by a test that damages it on purpose, or hides it; it is not folded then.
    """

    def __init__(
        self,
        place: Path,
        command: Sequence[str | Path],
        options: Sequence[str],
        environment: dict[str, str],
        around: Surroundings = Surroundings(),
    ) -> None:
        """Start it, with `environment` on top of a user's."""
        self.place, self.job, self.state = place, "e2e", place / "state"
        self.journal_is_damaged = False
        self.mark = uuid.uuid4().hex
        self.environment = clean_environment(**environment, **{MARK: self.mark})
        ours = [] if around.without_us else ["supervise", "--job", self.job, "--state-dir", str(self.state), *options, "--"]
        words = [*around.prefix, *ours, *map(str, command)]
        self._out, self._err = place / "stdout", place / "stderr"
        terminal = around.terminal
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(  # noqa: S603  # the program under test
                words,
                cwd=place,
                env=self.environment,
                stdin=_first(around.stdin, terminal, subprocess.DEVNULL),
                stdout=_first(around.stdout, terminal, out.fileno()),
                stderr=_first(around.stderr, terminal, err.fileno()),
                start_new_session=True,
                preexec_fn=None if terminal is None else _take_terminal,  # noqa: PLW1509  # one ioctl, no lock
            )

    # --- what it says

    @property
    def stdout(self) -> str:
        """What was shown on stdout so far."""
        return self._out.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """What was shown on stderr so far."""
        return self._err.read_text(errors="replace")

    def wait_for_line(self, pattern: str, deadline_s: float = 60.0) -> re.Match[str]:
        """Return the first match of `pattern` in either stream."""
        expression = re.compile(pattern, re.MULTILINE)
        return wait_for(
            lambda: expression.search(self.stderr) or expression.search(self.stdout), f"a line like {pattern}", deadline_s, alive=self.alive
        )

    def ask(self, command: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run a reading command about this job, from this run's directory."""
        return self._run("supervise", command, "--job", self.job, "--state-dir", str(self.state), *options)

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603  # the program under test
            words, cwd=self.place, env=clean_environment(), capture_output=True, text=True, check=False
        )

    def ask_again(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `supervise` about the same job a second time, as a person would from another terminal."""
        return self._run("supervise", "--job", self.job, "--state-dir", str(self.state), *words)

    def status(self) -> dict[str, Any]:
        """Return what `supervise status --json` shows, or an empty dict while there is nothing to tell.

        The command's own function is called: an interpreter for each look would take processor time from the job that is looked at.
        """
        root = state_root(replace(Settings(), job=JobSection(state_dir=str(self.state))))
        try:
            return json.loads(json_text(status_of(with_a_run(root, find_job(root, self.job)))))  # type: ignore[no-any-return]
        except SuperviseError:
            return {}

    def journal(self) -> str:
        """Return the whole lines of the journal that are written so far."""
        texts = (path.read_text(errors="replace") for path in sorted(self.state.glob("*/nodes/*/journal.jsonl")))
        return "".join(text[: text.rfind("\n") + 1] for text in texts)

    def attempts(self) -> int:
        """Return how many attempts were started."""
        return self.journal().count('"event":"AttemptStarted"')

    # --- what it does

    def alive(self) -> bool:
        """Return whether `supervise` itself runs."""
        return self.process.poll() is None

    def rank_pids(self, attempt: int = 1, deadline_s: float = 60.0) -> dict[int, int]:
        """Return rank → pid of `attempt` (or a later one) as soon as `status` knows them."""

        def look() -> dict[int, int]:
            if self.attempts() < attempt:
                return {}  # what `status` would find, without starting it again and again beside the job
            status = self.status()
            ranks = status.get("ranks") or []
            return {rank["rank"]: rank["pid"] for rank in ranks} if (status.get("attempt") or 0) >= attempt else {}

        return wait_for(look, f"ranks of attempt {attempt}", deadline_s, alive=self.alive)

    def progress(self) -> list[tuple[int, int]]:
        """Return the (rank, step) pairs that a job started with --progress=progress wrote so far."""
        with contextlib.suppress(FileNotFoundError):
            return [(int(rank), int(step)) for rank, step, _ in map(str.split, (self.place / "progress").read_text().splitlines())]
        return []

    def wait_for_step(self, step: int, deadline_s: float = 60.0) -> None:
        """Await that rank 0 made `step`, of a job started with --progress=progress: all that it saves before is saved then."""

        def made() -> bool:
            return any(rank == 0 and reached >= step for rank, reached in self.progress())

        wait_for(made, f"step {step}", deadline_s, alive=self.alive)

    def signal(self, signum: int) -> None:
        """Send a signal to `supervise` alone."""
        self.process.send_signal(signum)

    def exit_code(self, deadline_s: float = 90.0) -> int:
        """Await the end; return the exit code as a shell would tell it."""
        deadline_s = patience_s(deadline_s)
        try:
            code = self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            return pytest.fail(f"supervise still runs after {deadline_s} s")
        return code if code >= 0 else 128 - code

    def leftovers(self) -> dict[int, str]:
        """Return pid → command line of every process of this run that is alive, `supervise` apart."""
        return {pid: line for pid, line in processes_with(self.mark).items() if pid != self.process.pid and is_running(pid)}

    def wait_for_nothing_left(self, deadline_s: float = 5.0) -> None:
        """Fail if a process of this run is alive after `deadline_s`; 5 s for the guardian, which leaves once supervise is gone.

        On a busy machine both are ten times as long.
        """
        began = time.monotonic()
        while left := self.leftovers():
            only_guardian = all("/supervisor/guardian --link-fd " in line for line in left.values())
            if not within(max(deadline_s, 5.0) if only_guardian else deadline_s, since=began):
                pytest.fail(f"left behind after {deadline_s} s: {left}")
            while any(map(is_running, left)) and within(deadline_s, since=began):  # a look at the environment of all processes costs more
                time.sleep(0.02)
            time.sleep(0.02)

    def clear(self) -> None:
        """End whatever of this run is still there, whether the test passed or not."""
        deadline = time.monotonic() + 20
        while (left := processes_with(self.mark)) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(OSError):
                    handle = os.pidfd_open(pid)  # a pid that was used again in between must not be hit
                    if pid in processes_with(self.mark):
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                    os.close(handle)
            self.process.poll()
            time.sleep(0.05)
        self.process.wait(60)
        for scratch in set(re.findall(r'"scratch":"(/dev/shm/supervise-[^"/]+)"', self.journal())):
            shutil.rmtree(scratch, ignore_errors=True)  # still there where supervise was killed

    def check_journals(self) -> int:
        """Fail where the journal does not give back the states that the process had; return how many events were folded."""
        folded = 0
        for path in [] if self.journal_is_damaged else sorted(self.state.glob("*/nodes/*/journal.jsonl")):
            # whoever is killed in the middle of a write leaves a torn record, which loses nothing that was decided upon
            torn_is_fine = self.process.returncode == -signal.SIGKILL
            folded += check_fold(found for found in scan(path) if not (torn_is_fine and isinstance(found, Damage) and found.torn))
        return folded

    def check_ledgers(self) -> None:
        """Fail where the time ledger of a journal, an earlier run's too, does not add up to the wall clock, or leaves time unaccounted."""
        check_ledgers_below(self.state, is_damaged=self.journal_is_damaged)

    def account(self) -> str:
        """Return all that there is to know about the run, for the report of a failed test."""
        parts = [("command", " ".join(map(str, self.process.args))), ("exit", str(self.process.poll()))]  # type: ignore[arg-type]
        parts += [("stdout", self.stdout[-4000:]), ("stderr", self.stderr[-8000:]), ("journal", self.journal()[-16000:])]
        logs = [path for path in sorted(self.state.glob("*/nodes/*/attempts/*/*")) if path.suffix != ".times"][-12:]
        parts += [(str(log.relative_to(self.state)), log.read_text(errors="replace")[-2000:]) for log in logs]
        return "\n".join(f"--- {name}\n{text}" for name, text in parts)


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
        around: Surroundings = Surroundings(),
        **environment: str,
    ) -> Supervised:
        where = place or tmp_path
        where.mkdir(parents=True, exist_ok=True)
        runs.append(Supervised(where, command, options, {**defaults, **(EAGER if is_eager else {}), **environment}, around))
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
        found = Network(getattr(request, "param", 3))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"needs network namespaces, which cannot be made here (in a container: --privileged): {error.stderr[-200:]}")
    yield found
    found.close()


@dataclass(frozen=True)
class Bucket:
    """A mirror in a real S3 server, and the variables to reach it."""

    name: str
    reach: dict[str, str]
    client: Any

    @property
    def url(self) -> str:
        """The mirror as a user would write it."""
        return f"s3://{self.name}/prefix"

    def has_whole(self, step: int) -> bool:
        """Return whether the joint manifest of a step is there."""
        keys = [row["Key"] for row in self.client.list_objects_v2(Bucket=self.name).get("Contents", ())]
        whole = re.compile(rf"/step-{step}/[0-9a-f]{{16}}/manifest\.json$")
        return any(whole.search(key) for key in keys)


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
