"""Signals to `supervise` and to all of its processes: what is a wish, what is a failure, and who may live on."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.figures import within
from tests.support.supervised import processes_with
from tests.support.waiting import is_running, wait_for, words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.supervised import Supervised

JOBS = Path(__file__).parents[1] / "jobs"
NO_TORCH = str(JOBS / "no_torch.py")
PLAIN = [sys.executable, NO_TORCH]
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node=2"]
LAUNCHED = [*TORCHRUN, NO_TORCH]
LONG = ["--steps=100000", "--step-ms=20", "--progress=progress", "--pids=pids"]

pytestmark = pytest.mark.process


def incidents(run: Supervised) -> int:
    """Return the number of incidents in the status plus the number of decisions in the journal."""
    return int(run.status()["incidents"]) + run.journal().count('"ReportDecision"')


def ignores(pid: int, signum: int) -> bool:
    """Return whether the process ignores the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.split("SigIgn:")[1].split()[0], 16) >> (signum - 1) & 1)


def sleeps_in_load(run: Supervised) -> bool:
    """Return whether rank 0 has begun and sleeps: of a job that resumes from a fifo, in opening it."""
    begun = words_of(run.place / "pids")
    return bool(begun) and Path(f"/proc/{begun[0][1]}/stat").read_text().rpartition(")")[2].split()[0] == "S"


# phase: what the job is told, and what shows that it is there
PHASES: dict[str, tuple[list[str], Callable[[Supervised], object]]] = {
    "start": ([], lambda run: run.leftovers() and '"kind":"run"' in run.journal()),
    "import": (["--skew-rank=0", "--skew-s=600"], lambda run: words_of(run.place / "pids")),
    "load": (["--resume=fifo"], sleeps_in_load),
    "train": (["--step-ms=20"], lambda run: len(run.progress()) > 3),
    "save": (["--save-every=2", "--save-ms=600000"], lambda run: list((run.place / "ckpt").glob("*.tmp"))),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "phase"),
    [pytest.param(LAUNCHED if phase in {"start", "train"} else PLAIN, phase, id=phase) for phase in PHASES],
)
def test_term_ends_the_job_in_every_phase_with_143_and_is_no_failure(
    supervise: Callable[..., Supervised], tmp_path: Path, launcher: list[str], phase: str
) -> None:
    options, reached = PHASES[phase]
    os.mkfifo(tmp_path / "fifo")
    run = supervise(*launcher, *LONG, *options)
    wait_for(lambda: reached(run), f"the job is in {phase}", 30, alive=run.alive)
    run.signal(signal.SIGTERM)
    assert run.exit_code(deadline_s=10) == 143
    run.wait_for_nothing_left(0)
    assert incidents(run) == 0
    if phase == "train":
        assert re.search(r"^supervise: stopped at step (\d+|unknown)", run.stderr, re.MULTILINE)


SLOW_AGENT = """
import pathlib, sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            sys.meta_path.remove(self)
            pathlib.Path("imports").touch()
            time.sleep(4)

if any(word.endswith("supervisor/agent/__main__.py") for word in sys.orig_argv):
    sys.meta_path.insert(0, Slow())
"""


@pytest.mark.bench
def test_a_stop_while_the_agent_imports_torch_ends_within_a_second_or_two_and_no_rank_is_started(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SLOW_AGENT)
    run = supervise(*LAUNCHED, *LONG, PYTHONPATH=str(tmp_path / "site"))
    wait_for((tmp_path / "imports").exists, "the agent imports torch", 30, alive=run.alive)
    asked = time.monotonic()
    run.signal(signal.SIGTERM)
    assert run.exit_code(deadline_s=20) == 128 + signal.SIGTERM
    assert within(3, since=asked)  # before its torch is there
    assert not (tmp_path / "pids").exists()
    assert run.attempts() == 0
    run.wait_for_nothing_left()


@pytest.mark.slow
@pytest.mark.bench
def test_twenty_terms_in_a_tenth_of_a_second_are_one(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*PLAIN, *LONG, "--save-on-term", "--save-ms=1500", "--term-file=terms")
    run.wait_for_step(3)
    began = time.monotonic()
    for _ in range(20):
        run.signal(signal.SIGTERM)
        time.sleep(0.004)
    assert within(0.25, since=began), "not a storm: this machine is too busy to send one"
    assert run.exit_code(deadline_s=30) == 143
    assert list((run.place / "ckpt").glob("step-*.pt"))  # a second TERM had left two seconds for it, a third none
    ranks = [line[0] for line in words_of(run.place / "terms")]
    assert sorted(ranks) == sorted(set(ranks))
    assert "again:" not in run.stderr
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_terms_up_to_the_last_moment_end_it_with_143_and_not_by_a_signal(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    for number in range(3):
        run = supervise(
            "sleep", "600", options=["--set", "instrument.enabled=false", "--set", "health.enabled=false"], place=tmp_path / str(number)
        )
        wait_for(lambda run=run: run.attempts() == 1, "the job runs", 30, alive=run.alive)  # type: ignore[misc]  # bound
        until = time.monotonic() + 20
        while run.alive() and time.monotonic() < until:
            run.signal(signal.SIGTERM)
        assert run.process.returncode == 143
        run.wait_for_nothing_left()


@pytest.mark.parametrize(
    ("launcher", "first"),
    [
        pytest.param(PLAIN, "ranks", id="ranks-plain"),
        pytest.param(LAUNCHED, "supervise", id="supervise-torchrun", marks=pytest.mark.slow),
    ],
)
def test_term_to_every_process_of_the_job_is_no_failure(supervise: Callable[..., Supervised], launcher: list[str], first: str) -> None:
    run = supervise(*launcher, *LONG)
    run.wait_for_step(3)
    ranks = list(run.rank_pids().values())
    rest = [pid for pid in processes_with(run.mark) if pid not in ranks]
    assert run.process.pid in rest
    for pid in [*ranks, *rest] if first == "ranks" else [*rest, *ranks]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        if first == "ranks" and pid == ranks[-1]:
            # the scheduler comes to us last, within the second that such a death waits for it
            wait_for(lambda: '"event":"RankExited"' in run.journal(), "the deaths are heard of", 30)
    assert run.exit_code(deadline_s=10) == 143
    assert incidents(run) == 0
    assert "supervise: incident" not in run.stderr
    assert run.attempts() == 1
    run.wait_for_nothing_left()


@contextlib.contextmanager
def agent_held(ranks: list[int]) -> Iterator[None]:
    """Hold the agent of these ranks: between two signals it could see the first rank dead, and end the second with TERM."""
    (agent,) = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in ranks}
    os.kill(agent, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(agent, signal.SIGCONT)


@pytest.mark.slow
def test_an_interrupt_of_one_rank_of_several_is_a_kill_and_the_job_continues(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*LAUNCHED, *LONG, options=["--resumes-itself"])
    run.wait_for_step(3)
    os.kill(run.rank_pids()[1], signal.SIGINT)
    wait_for(lambda: run.attempts() == 2, "the job is restarted", 60, alive=run.alive)
    run.wait_for_line(r"incident 1[^:]*: rank 1 ")
    assert "killed_unknown, " in run.ask("why", "1").stdout
    run.signal(signal.SIGTERM)
    assert run.exit_code(deadline_s=20) == 143


@pytest.mark.slow
def test_an_interrupt_of_all_ranks_stops_the_run(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*LAUNCHED, *LONG)
    run.wait_for_step(3)
    ranks = [*run.rank_pids().values()]
    with agent_held(ranks):
        for pid in ranks:
            os.kill(pid, signal.SIGINT)
        wait_for(lambda: not any(map(is_running, ranks)), "the ranks have died of it", 30)
    assert run.exit_code(deadline_s=20) == 130
    assert run.attempts() == 1
    run.wait_for_nothing_left()


@pytest.mark.bench
def test_a_script_that_ignores_term_is_killed_at_the_deadline(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*PLAIN, *LONG, "--ignore-term", options=["--set", "stop.deadline_s=1.5"])
    run.wait_for_step(3)
    run.signal(signal.SIGTERM)
    asked = time.monotonic()
    assert run.exit_code(deadline_s=10) == 143
    assert time.monotonic() - asked >= 1.5
    assert within(1.5 + 3, since=asked)
    run.wait_for_nothing_left(0)


@pytest.mark.slow
@pytest.mark.bench
def test_the_second_int_hurries_and_the_third_kills_at_once(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    deaf = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *PLAIN, *LONG, "--ignore-term"]
    run = supervise(*deaf, place=tmp_path / "two")
    run.wait_for_step(3)
    run.signal(signal.SIGINT)
    run.wait_for_line("SIGINT: ranks are asked to end, killed in 30 s")
    time.sleep(0.3)  # closer together they would be one wish
    run.signal(signal.SIGINT)
    hurried = time.monotonic()
    assert run.exit_code(deadline_s=10) == 130
    assert time.monotonic() - hurried > 1.5
    assert within(2 + 3, since=hurried)
    run.wait_for_nothing_left(0)

    run = supervise(*deaf, place=tmp_path / "three")
    run.wait_for_step(3)
    for _ in range(2):
        run.signal(signal.SIGINT)
        time.sleep(0.3)
    run.signal(signal.SIGINT)
    killed = time.monotonic()
    assert run.exit_code(deadline_s=10) == 130
    assert within(1.5, since=killed)  # sooner than the two seconds of the second
    run.wait_for_nothing_left(0)


@pytest.mark.slow
def test_a_hang_up_that_was_ignored_at_the_start_stays_ignored_by_all(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    nohup = tmp_path / "bin" / "supervise"
    nohup.parent.mkdir()
    real = Path(sys.executable).parent
    nohup.write_text(f"#!/bin/sh\ntrap '' HUP\nexec {real}/supervise \"$@\"\n")
    nohup.chmod(0o755)
    run = supervise(*LAUNCHED, *LONG, "--steps=100", PATH=f"{nohup.parent}:{real}:{os.environ['PATH']}")
    run.wait_for_step(3)
    ranks = run.rank_pids()
    for pid in (struck := processes_with(run.mark)):
        os.kill(pid, signal.SIGHUP)
    assert len(struck) == 5  # supervisor, guardian, agent, two ranks
    assert all(ignores(pid, signal.SIGHUP) for pid in ranks.values())
    assert run.exit_code() == 0
    assert run.attempts() == 1

    ended = supervise(*PLAIN, *LONG, place=tmp_path / "without")
    ended.wait_for_step(3)
    assert not ignores(ended.rank_pids()[0], signal.SIGHUP)
    ended.signal(signal.SIGHUP)
    assert ended.exit_code(deadline_s=10) == 129


@pytest.mark.parametrize(
    ("launcher", "ranks"), [pytest.param(PLAIN, 1, id="plain"), pytest.param(LAUNCHED, 2, id="torchrun", marks=pytest.mark.slow)]
)
def test_quit_shows_the_stacks_of_all_ranks_and_the_training_continues(
    supervise: Callable[..., Supervised], launcher: list[str], ranks: int
) -> None:
    run = supervise(*launcher, *LONG, "--steps=50", "--hold-at=40")
    run.wait_for_step(3)
    run.signal(signal.SIGQUIT)
    for rank in range(ranks):
        run.wait_for_line(rf"stacks of rank {rank}:\n(?:.*\n)*?.*no_torch\.py", 20)
    (run.place / "go-on").touch()  # however late the stacks came: they train on
    assert run.exit_code() == 0
    assert {rank for rank, step in run.progress() if step == 50} == {*range(ranks)}
    assert run.attempts() == 1
    assert incidents(run) == 0


@pytest.mark.slow  # test_ends.py shows it of a daemon
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed (Debian: apt-get install tmux)")
def test_a_tmux_server_and_a_slow_uploader_live_on_after_a_job_that_ended_well(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    upload = 'mkfifo network; setsid sh -c "cat network; touch uploaded; echo done"'
    start = f'tmux -L e2e -f /dev/null new-session -d "sleep 600"; {upload} & exec "$@"'
    run = supervise("sh", "-c", start, "sh", *LAUNCHED, "--steps=3", TMUX_TMPDIR=str(tmp_path))
    tmux = ["tmux", "-L", "e2e"]
    environment = {**os.environ, "TMUX_TMPDIR": str(tmp_path)}
    try:
        assert run.exit_code() == 0
        assert "left running" in run.stderr
        os.close(os.open(tmp_path / "network", os.O_WRONLY | os.O_NONBLOCK))  # ENXIO if the uploader no longer reads: it was ended
        wait_for((tmp_path / "uploaded").exists, "the upload is done", 15)
        assert subprocess.run([*tmux, "list-sessions"], env=environment, check=False, capture_output=True).returncode == 0  # noqa: S603
    finally:
        subprocess.run([*tmux, "kill-server"], env=environment, check=False, capture_output=True)  # noqa: S603  # this socket's alone
    run.wait_for_nothing_left()


def test_after_a_crash_a_detached_process_and_a_stranger_with_our_cookie_live_on(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*PLAIN, *LONG, "--daemon=daemon", "--daemon-env=SUPERVISE_JOB_DETACH=1", options=["--set", "restart.max_attempts=1"])
    run.wait_for_step(3)
    rank = run.rank_pids()[0]
    variables = Path(f"/proc/{rank}/environ").read_text().split("\0")
    assert any(pair.startswith("SUPERVISE_JOB_COOKIE=") for pair in variables)
    copied = dict(pair.split("=", 1) for pair in variables if "=" in pair)
    stranger = subprocess.Popen(["sleep", "600"], env=copied)  # noqa: S607
    detached = int(words_of(run.place / "daemon")[0][0])
    try:
        os.kill(rank, signal.SIGKILL)
        assert run.exit_code() != 0
        assert stranger.poll() is None
        assert is_running(detached)
    finally:
        stranger.kill()
        stranger.wait()
        os.kill(detached, signal.SIGKILL)
