"""Kill -9 of each of our own processes, of a loader and of a rank that saves; an agent that is deaf; a disk that does not answer.

Two promises: nothing that is proven ours is left after 5 s, and where a supervisor lives, or a new one is started, the job continues.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.untouched import assert_untouched, listing, moved
from tests.support.figures import within
from tests.support.waiting import is_running, wait_for, words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.supervised import Supervised

JOBS = Path(__file__).parents[1] / "jobs"
NO_TORCH = str(JOBS / "no_torch.py")
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node=2"]
ONE_RANK = ["torchrun", "--standalone", "--nproc-per-node=1"]
ACCELERATE = ["accelerate", "launch", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"]
ACCELERATE += ["--multi_gpu", "--num_processes=2", "--main_process_port=0"]  # its only way to start two ranks without mpirun
PLAIN = [sys.executable]
#: What starts so many ranks.
LAUNCHERS = {"plain": (PLAIN, 1), "torchrun": (TORCHRUN, 2), "accelerate": (ACCELERATE, 2)}
RESUMING = ["--checkpoints", "ckpt/*.pt", "--resume-args", "--resume {resume}"]
STEADY = ["--step-ms=20", "--save-every=5", "--progress=progress", "--pids=pids"]
DAEMON = ["--daemon=daemon", "--daemon-env=inherit"]

pytestmark = pytest.mark.process


def parent_of(pid: int) -> int:
    """Return the parent's pid, 0 where the process is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def children_of(parent: int) -> list[int]:
    """Return the pids of its living children."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if parent_of(pid) == parent and is_running(pid)]


def command_line_of(pid: int) -> bytes:
    """Return its words, b"" where it is gone: a probe comes and goes."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def helpers_of(run: Supervised) -> dict[str, int]:
    """Return the pids of the supervisor, the guardian and what it started: the agent, accelerate's launcher, a plain command."""
    (guardian,) = (pid for pid in children_of(run.process.pid) if b"guardian" in command_line_of(pid))
    started = [pid for pid in children_of(guardian) if b"tests/jobs" in command_line_of(pid)]
    return {"supervisor": run.process.pid, "guardian": guardian, "agent": started[0]}


def attempt_pids(run: Supervised) -> set[int]:
    """Return every process of the run, `supervise` and its guardians apart: ranks, their launcher, daemons, loaders."""
    return {pid for pid, command in run.leftovers().items() if "/guardian" not in command}


def strike(*pids: int) -> float:
    """Kill -9 all of them at once; returns when."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return time.monotonic()


def assert_gone(pids: set[int], since: float, within_s: float = 5.0) -> None:
    """Fail where one of them is alive `within_s` after `since`, ten times as much on a busy machine."""
    while alive := {pid for pid in pids if is_running(pid)}:
        if not within(within_s, since=since):
            pytest.fail(f"alive {within_s} s after the kill: {alive}")
        time.sleep(0.02)


def records(run: Supervised, kind: str, event: str = "") -> list[dict[str, Any]]:
    """Return the bodies of the journal's records of one kind, of one event where that is named."""
    taken = [json.loads(line)["rec"] for line in run.journal().splitlines()]
    return [record["body"] for record in taken if record["kind"] == kind and record["body"].get("event", "") == event]


def begun_from(run: Supervised) -> list[int | None]:
    """Return, for each attempt, the step of the checkpoint that it was handed; None: from scratch."""
    taken = [json.loads(line)["rec"] for line in run.journal().splitlines()]
    begun = [dict(record["body"].get("actions", ())).get("BeginAttempt") for record in taken if record["kind"] == "event"]
    return [action["resume"]["step"] if action.get("resume") else None for action in begun if action]


def assert_second_attempt_went_on(run: Supervised) -> None:
    """Fail unless there were two attempts, and the second began where a checkpoint of the first ended."""
    first, second = begun_from(run)
    assert first is None
    assert second is not None
    assert second >= 10
    steps = [step for rank, step in run.progress() if rank == 0]
    assert (steps.count(1), steps.count(second), steps.count(second + 1) > 0) == (1, 1, True)


@pytest.fixture
def silent_store() -> Iterator[socket.socket]:
    """Give a listener that takes connections and never says a word: whoever awaits a store there awaits it in C++."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.mark.slow
def test_kill_9_of_the_agent_leaves_nothing_of_the_attempt_and_the_job_continues(supervise: Callable[..., Supervised]) -> None:
    """test_reviews.py kills the guardian."""
    run = supervise(*TORCHRUN, NO_TORCH, "--steps=60", "--hold-at=40", *STEADY, *DAEMON, options=RESUMING)
    run.wait_for_step(12)
    wait_for(lambda: len(attempt_pids(run)) == 5, "two ranks, two daemons, what started them", alive=run.alive)
    attempt = attempt_pids(run)
    assert_gone(attempt, strike(helpers_of(run)["agent"]))
    (run.place / "go-on").touch()
    assert run.exit_code() == 0
    assert_second_attempt_went_on(run)


@pytest.mark.slow
def test_a_guardian_that_is_killed_before_its_first_word_is_started_again(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    for number in range(5):  # a busy machine may let the job make its first step before us
        run = supervise(sys.executable, NO_TORCH, "--steps=3", "--progress=progress", place=tmp_path / f"try-{number}")
        wait_for(lambda: children_of(run.process.pid) or not run.alive(), "a guardian is started", 20)  # noqa: B023  called at once
        struck = 0
        while struck < 2 and not run.progress() and run.alive():  # the third try is the last
            for pid in children_of(run.process.pid):
                with contextlib.suppress(ProcessLookupError):  # listed, and ended since
                    strike(pid)
                    struck += 1
                wait_for(lambda pid=pid: not is_running(pid), "it is dead", 30)  # type: ignore[misc]  # a bound loop variable
        assert run.exit_code() == 0
        if struck:
            break
    assert struck >= 1  # once only where the job was quicker than we
    assert 1 <= run.attempts() <= struck + 1  # a further one where its first word was quicker than we


@pytest.mark.parametrize(
    ("killed", "launcher"),
    [
        (("supervisor",), "plain"),
        pytest.param(("supervisor", "agent"), "torchrun", marks=pytest.mark.slow),
        pytest.param(("supervisor",), "accelerate", marks=pytest.mark.slow),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else value,
)
def test_kill_9_of_supervise_leaves_nothing_and_a_new_one_continues_the_run(
    supervise: Callable[..., Supervised], killed: tuple[str, ...], launcher: str
) -> None:
    words, ranks = LAUNCHERS[launcher]
    job = [*words, NO_TORCH, "--steps=60", "--hold-at=40", *STEADY, *DAEMON]
    first = supervise(*job, options=RESUMING)
    first.wait_for_step(12)
    due = 2 * ranks + (words is not PLAIN)
    wait_for(lambda: len(attempt_pids(first)) == due, "each rank, its daemon, and what started them", alive=first.alive)
    attempt = {*attempt_pids(first), helpers_of(first)["guardian"]}
    assert_gone(attempt, strike(*(helpers_of(first)[helper] for helper in killed)))
    first.exit_code(5)
    first.wait_for_nothing_left(0)

    (first.place / "go-on").touch()
    second = supervise(*job, options=RESUMING)
    assert second.exit_code() == 0
    began = records(second, "run")
    assert len(began) == 2
    assert began[0]["run_id"] == began[1]["run_id"]
    assert [body["attempt"] for body in records(second, "event", "AttemptStarted")] == [1, 2]
    assert_second_attempt_went_on(second)
    assert "supervise died" in second.ask("why", "1").stdout


@pytest.mark.slow
def test_ranks_that_save_and_exit_0_after_kill_9_of_supervise_have_not_finished(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    job = [*ONE_RANK, str(JOBS / "ddp_small.py"), "--light", "--steps=60", "--step-ms=100", "--progress=progress", "--save-on-term"]
    first = supervise(*job, options=RESUMING)
    first.wait_for_step(12)
    strike(first.process.pid)
    first.exit_code(5)
    first.wait_for_nothing_left()
    (saved,) = (int(path.stem.removeprefix("step-")) for path in (tmp_path / "ckpt").glob("*.pt"))
    assert 12 <= saved < 60

    second = supervise(*job, options=RESUMING)
    assert second.exit_code() == 0
    assert f"resumed at step {saved} from" in second.stderr
    assert sorted(second.progress()) == [(0, step) for step in range(1, 61)], "no step was lost, and none made twice"


BEATS = """
import os, time
from supervisor import worker
fd = os.open("step", os.O_WRONLY | os.O_CREAT)
for step in range(1, 100000):
    worker.heartbeat(step)
    os.pwrite(fd, b"%06d" % step, 0)
    time.sleep(0.01)
"""


@pytest.mark.slow
def test_the_step_of_an_attempt_that_died_with_its_supervisor_is_its_last(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    script = tmp_path / "beats.py"
    script.write_text(BEATS)
    first = supervise(sys.executable, str(script))
    wait_for(lambda: words_of(first.place / "step")[:1] >= [["000050"]], "step 50")
    strike(first.process.pid)
    first.exit_code(5)
    first.wait_for_nothing_left()
    reached = int((first.place / "step").read_text())
    assert f"step {reached}" in first.ask("status").stdout
    second = supervise(sys.executable, str(script))
    match = second.wait_for_line(r"at step (\d+): supervise died, and its attempt with it")
    assert int(match[1]) - reached in {0, 1}  # the file may have been written, or not
    second.process.terminate()
    second.exit_code()


@pytest.mark.slow
def test_processes_left_by_a_killed_supervisor_and_guardian_end_at_the_next_start(
    supervise: Callable[..., Supervised],
) -> None:
    job = [sys.executable, NO_TORCH, "--steps=400", *STEADY, *DAEMON]  # longer than the 5 s between two looks at what is to be written down
    first = supervise(*job, options=RESUMING)
    first.wait_for_step(12)
    rank = first.rank_pids()[0]
    daemon = int(words_of(first.place / "daemon")[0][0])
    variables = dict(pair.split("=", 1) for pair in Path(f"/proc/{rank}/environ").read_text().split("\0") if "=" in pair)
    variables["SUPERVISE_JOB_COOKIE"] = dict(  # the rank itself may have taken it out of its environment
        pair.split("=", 1) for pair in Path(f"/proc/{daemon}/environ").read_text().split("\0") if "=" in pair
    )["SUPERVISE_JOB_COOKIE"]
    wait_for(lambda: any(str(daemon) in path.read_text() for path in recorded(variables)), "the daemon is written down", 10)
    stranger = subprocess.Popen(["sleep", "600"], env=variables)  # noqa: S607  # our cookie, another parent
    try:
        guardian = helpers_of(first)["guardian"]
        os.kill(guardian, signal.SIGSTOP)  # two kills are no instant: between them it would do its work
        killed_at = strike(first.process.pid, guardian)
        assert_gone({rank}, killed_at)
        first.exit_code(5)
        assert is_running(daemon)  # nobody was left to end it: else this proves nothing
        second = supervise(*job, options=RESUMING)
        second.wait_for_line("continues with run")
        wait_for(lambda: begun_from(second)[1:], "the second attempt is begun", 20, alive=second.alive)
        assert not is_running(daemon)
        assert second.exit_code() == 0
        assert_second_attempt_went_on(second)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def recorded(variables: dict[str, str]) -> list[Path]:
    """Return the file in which processes are written down for the next start, where it is there."""
    return list(Path(variables["SUPERVISE_JOB_DIR"]).glob("processes.jsonl"))


@pytest.mark.slow
@pytest.mark.bench
def test_term_ends_an_agent_that_awaits_a_store_for_ever(supervise: Callable[..., Supervised], silent_store: socket.socket) -> None:
    port = silent_store.getsockname()[1]
    silent_store.settimeout(60)
    meeting = ["--node-rank=1", "--master-addr=127.0.0.1", f"--master-port={port}"]
    run = supervise(
        *["torchrun", "--nnodes=2", "--nproc-per-node=1", *meeting], NO_TORCH, "--pids=pids", options=["--set", "stop.deadline_s=2"]
    )
    connection, _ = silent_store.accept()
    with connection:
        assert connection.recv(1)  # it asks, and awaits an answer
        run.signal(signal.SIGTERM)
        asked = time.monotonic()
        assert run.exit_code(deadline_s=10) == 143
        assert within(2 + 3 + 1, since=asked)  # the deadline, the margin until the guardian is asked, and the end itself
        run.wait_for_nothing_left()
    assert not (run.place / "pids").exists()


@pytest.mark.slow
@pytest.mark.bench
def test_term_ends_a_job_whose_agent_is_stopped(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*TORCHRUN, NO_TORCH, "--steps=100000", *STEADY, *DAEMON, options=["--set", "stop.deadline_s=1"])
    run.wait_for_step(3)
    os.kill(helpers_of(run)["agent"], signal.SIGSTOP)
    run.signal(signal.SIGTERM)
    asked = time.monotonic()
    assert run.exit_code(deadline_s=10) == 143
    run.wait_for_nothing_left(0)
    assert within(1 + 3 + 1, since=asked)


@pytest.mark.slow
def test_a_helper_that_is_killed_while_the_ranks_may_still_save_ends_the_wait(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*TORCHRUN, NO_TORCH, "--steps=100000", *STEADY, *DAEMON, "--ignore-term")
    run.wait_for_step(3)
    wait_for(lambda: len(attempt_pids(run)) == 5, "agent, ranks and their daemons", alive=run.alive)
    attempt = attempt_pids(run)
    run.signal(signal.SIGTERM)
    run.wait_for_line("SIGTERM: ranks are asked to end, killed in 30 s")
    assert_gone(attempt, strike(helpers_of(run)["agent"]))
    assert run.exit_code(deadline_s=5) == 143


STALLING = """#!{python}
import os, sys, time
from pathlib import Path
real, order, log = os.fsync, Path("stall"), Path("stalled")
def fsync(fd):
    if order.exists() and os.readlink(f"/proc/self/fd/{{fd}}").endswith("journal.jsonl"):
        with log.open("a") as file:
            file.write("1\\n")
        until = time.monotonic() + 30
        while order.exists() and time.monotonic() < until:
            time.sleep(0.05)
        order.unlink(missing_ok=True)
    real(fd)
os.fsync = fsync
sys.argv[0] = {supervise!r}
from supervisor.cli.main import main
sys.exit(main())
"""


def stalling(place: Path) -> str:
    """Return a PATH on which `supervise` is one whose journal stalls for 30 s while the file `stall` exists."""
    starter = place / "bin" / "supervise"
    starter.parent.mkdir()
    real = Path(sys.executable).parent
    starter.write_text(STALLING.format(python=sys.executable, supervise=str(real / "supervise")))
    starter.chmod(0o755)
    return f"{starter.parent}:{real}:{os.environ['PATH']}"


@pytest.mark.slow
@pytest.mark.bench
def test_a_journal_whose_fsync_stalls_for_30_s_delays_no_stop_and_a_restart_by_no_more_than_5_s(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    job = ["--steps=2000", *STEADY, "--term-file=terms"]  # ranks run apart: neither has ended by the kill
    run = supervise(*TORCHRUN, NO_TORCH, *job, options=RESUMING, PATH=stalling(tmp_path), _SUPERVISE_TEST_INTERVALS="0.04")
    run.wait_for_step(12)
    peer = run.rank_pids()
    (run.place / "stall").touch()
    killed_at = strike(peer[1])
    before = len(run.progress())
    terms = wait_for(lambda: words_of(run.place / "terms"), "the peer is asked to end", 5)
    assert int(terms[0][1]) / 1e9 - killed_at < 1.0
    wait_for(lambda: len(words_of(run.place / "pids")) == 4, "the second attempt's ranks", 20, alive=run.alive)
    assert within(5 + 3, since=killed_at)  # three for starting two processes on a loaded machine
    assert (run.place / "stall").exists()
    assert len(words_of(run.place / "stalled")) >= 1
    run.wait_for_line("journal degraded")
    assert run.exit_code() == 0
    assert len(run.progress()) > before
    run.wait_for_line("journal recovered")
    assert run.attempts() == 2
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_kill_9_of_a_dataloader_worker_is_survived(supervise: Callable[..., Supervised]) -> None:
    job = [str(JOBS / "ddp_small.py"), "--light", "--loader=1", "--steps=60", "--hold-at=40", *STEADY]
    run = supervise(*ONE_RANK, *job, options=RESUMING)
    run.wait_for_step(12)
    (loader,) = children_of(run.rank_pids()[0])
    attempt = attempt_pids(run)
    assert len(attempt) == 3  # the agent, a rank, its loader
    assert_gone(attempt - {helpers_of(run)["agent"]}, strike(loader))
    (run.place / "go-on").touch()
    assert run.exit_code() == 0
    assert run.attempts() == 2
    assert "rank 0 raised" in run.ask("why", "1").stdout
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_a_checkpoint_that_rank_0_was_killed_in_is_not_handed_out(supervise: Callable[..., Supervised]) -> None:
    job = ["--steps=40", "--step-ms=5", "--save-every=10", "--save-in-place", "--save-ms=100000", "--slow-save=20", "--progress=progress"]
    run = supervise(sys.executable, NO_TORCH, *job, options=RESUMING)
    pid = run.rank_pids()[0]
    torn = run.place / "ckpt" / "step-000020.pt"
    wait_for(lambda: torn.exists() and torn.stat().st_size, "the second checkpoint is begun", 30, alive=run.alive)
    kept = listing(run.place / "ckpt", without=[torn])  # which the second attempt writes anew
    strike(pid)
    assert run.exit_code() == 0
    run.wait_for_line(rf"checkpoint left where it is and not used: \S*{torn.name}")
    assert moved(run) == []
    assert_untouched(run, kept)
    assert begun_from(run) == [None, 10]
