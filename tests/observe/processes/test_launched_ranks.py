"""The ends of ranks that a command started by itself: none is our child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from supervisor.core.model import RankExit, RankInfo
from supervisor.guardian import process_tree
from supervisor.instrument._supervise_shim import layout
from supervisor.job.clock import Clock
from supervisor.observe.collect import exits
from supervisor.observe.processes.launched_ranks import LaunchedRanks, VanishedRank, with_launched
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

pytestmark = pytest.mark.process
#: A rank that forks a loader, which has its environment, and does as it is told by a line on stdin.
RANK = """
import os, sys
end, held = os.pipe()
if os.fork() == 0:
    os.close(held)
    os.read(end, 1)
    os._exit(0)
print(os.getpid(), flush=True)
sys.exit(int(sys.stdin.readline()))
"""


#: Forks a child that executes a rank only when it is told to, as one that a busy machine holds up does.
SLOW_EXEC = """
import os, sys
child = os.fork()
if child == 0:
    sys.stdin.readline()
    os.execve(sys.executable, [sys.executable, "-c", "import sys; sys.stdin.readline()"], {"LOCAL_RANK": "0", "WORLD_SIZE": "1"})
print(child, flush=True)
os.waitpid(child, 0)
"""


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    children = []

    def start(rank: int, names: Sequence[str] = ("LOCAL_RANK", "WORLD_SIZE")) -> subprocess.Popen[str]:
        environ = {**os.environ, **dict.fromkeys(names, str(rank)), names[-1]: "2"}
        child = subprocess.Popen([sys.executable, "-c", RANK], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603
        assert child.stdout is not None
        child.stdout.readline()
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


def test_a_standby_of_a_rank_is_none(started: Callable[..., subprocess.Popen[str]], seen: LaunchedRanks) -> None:
    """Its environment is the rank's, as a scheduler's `srun` gave it."""
    standby = started(0, ("SUPERVISE_JOB_STANDBY", "LOCAL_RANK", "WORLD_SIZE"))
    rank = started(1)
    add(seen, rank.pid)
    assert standby.pid not in seen.pids.values()


@pytest.fixture
def seen() -> Iterator[LaunchedRanks]:
    ranks = LaunchedRanks()
    yield ranks
    ranks.stop()


def add(ranks: LaunchedRanks, *pids: int) -> None:
    """Give it these processes, and what is below this process."""
    ranks.add_descendants(process_tree.below(os.getpid(), process_tree.snapshot()))
    wait_for(lambda: set(pids) <= set(ranks.pids.values()), "the ranks to be known", 10)


def test_a_rank_that_is_killed_and_not_reaped_shows_the_signal_and_its_loaders_are_no_ranks(
    seen: LaunchedRanks, started: Callable[[int], subprocess.Popen[str]]
) -> None:
    first, second = started(0), started(1)
    add(seen, first.pid, second.pid)
    assert seen.pids == {0: first.pid, 1: second.pid}
    assert [(info.rank, info.local_rank, info.pid) for info in seen.ranks] == [(0, 0, first.pid), (1, 1, second.pid)]
    assert seen.world_size == len(seen.ranks)
    os.kill(second.pid, signal.SIGKILL)
    wait_for(lambda: bool(seen.ends), "its end", 10)
    (end,) = seen.ends
    assert isinstance(end, RankExit)
    assert (end.rank, end.pid, end.signal) == (1, second.pid, signal.SIGKILL)


@pytest.mark.parametrize("names", layout.MPI_NAMES)
def test_a_rank_that_mpirun_started_is_known_by_its_names(
    seen: LaunchedRanks, started: Callable[..., subprocess.Popen[str]], names: Sequence[str]
) -> None:
    first, second = started(0, names), started(1, names)
    add(seen, first.pid, second.pid)
    assert (seen.pids, seen.world_size) == ({0: first.pid, 1: second.pid}, 2)


def test_each_end_is_known_until_a_rank_is_started_again_and_with_it_the_launch_begins_anew(
    seen: LaunchedRanks, started: Callable[[int], subprocess.Popen[str]]
) -> None:
    first, second = started(0), started(1)
    add(seen, first.pid, second.pid)
    for child, code in ((first, "0\n"), (second, "3\n")):
        assert child.stdin is not None
        child.stdin.write(code)
        child.stdin.flush()
    wait_for(lambda: len(seen.ends) > 1, "their ends", 10)
    assert {(end.rank, getattr(end, "code", None)) for end in seen.ends} == {(0, 0), (1, 3)}
    again = started(1)
    add(seen, again.pid)
    assert seen.ends == ()


def test_a_rank_that_only_its_heartbeat_shows_is_a_last_end_and_no_rank_that_the_command_started(
    seen: LaunchedRanks, started: Callable[..., subprocess.Popen[str]]
) -> None:
    child = started(0, ("NOTHING", "AT_ALL"))
    process = process_tree.read(child.pid)
    assert process is not None
    seen.add_claimed([RankInfo(0, 0, child.pid, process.start_ticks)])
    wait_for(lambda: bool(seen._of_claimed), "it is watched", 10)  # noqa: SLF001
    os.kill(child.pid, signal.SIGSEGV)
    wait_for(lambda: layout.start_ticks_of(child.pid) is None, "its death", 10)
    seen.wait_for_ends(10)
    (end,) = seen.last_ends
    assert (getattr(end, "signal", None), seen.ends, seen.ranks) == (signal.SIGSEGV, (), ())


def test_an_end_whose_status_a_sandbox_does_not_show_is_no_success(
    seen: LaunchedRanks, started: Callable[[int], subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = started(0)
    add(seen, rank.pid)
    read_proc = process_tree._read_proc  # noqa: SLF001 -- the kernel of a sandbox
    monkeypatch.setattr(process_tree, "_read_proc", lambda pid, name, **how: b" ".join(read_proc(pid, name, **how).split(b" ")[:45]))
    os.kill(rank.pid, signal.SIGKILL)
    wait_for(lambda: bool(seen.ends), "its end", 10)
    assert [type(end) for end in seen.ends] == [VanishedRank]


def test_a_rank_killed_before_the_others_failed_first_and_a_later_one_was_ended() -> None:
    command = RankExit(0, 70, 30, code=1)
    evidence = exits([command], Clock.start(), 5.0, [RankExit(1, 71, 10, signal=9), VanishedRank(2, 72, 40)], {1: 71, 2: 72})
    assert [(fact.source, fact.name, fact.text, fact.rank) for fact in evidence] == [
        ("exit", "signal", "9", 1),
        ("exit", "exit_code", "1", 0),
    ]
    evidence = exits([command], Clock.start(), 5.0, [VanishedRank(1, 71, 10)], {0: 69, 1: 71})
    assert [(fact.source, fact.name, fact.rank) for fact in evidence] == [
        ("exit", "vanished", 1),
        ("launcher", "exit_code", None),
        ("launcher", "who", None),
    ]


COMMAND, FIRST, SECOND, OTHER = RankInfo(0, 0, 70, 1), RankInfo(8, 0, 71, 1), RankInfo(9, 1, 72, 1), RankInfo(10, 0, 73, 1)


@pytest.mark.parametrize(
    ("known", "rank_infos", "ranks"),
    [
        ((COMMAND,), (), (COMMAND,)),
        ((COMMAND,), (FIRST, SECOND), (FIRST, SECOND)),
        ((COMMAND,), (SECOND,), (COMMAND, SECOND)),
        ((COMMAND, SECOND), (FIRST, SECOND), (FIRST, SECOND)),
        ((COMMAND,), (FIRST, SECOND, OTHER), (FIRST, SECOND, OTHER)),
    ],
    ids=[
        "a command alone",
        "a launcher",
        "a command that is a rank and starts the others",
        "the first rank is found last",
        "two launchers",
    ],
)
def test_the_command_is_a_rank_until_another_process_has_its_local_rank(
    known: tuple[RankInfo, ...], rank_infos: tuple[RankInfo, ...], ranks: tuple[RankInfo, ...]
) -> None:
    assert with_launched(known, rank_infos) == ranks


def test_a_rank_that_was_first_seen_before_it_executed_its_program_is_found(seen: LaunchedRanks) -> None:
    launcher = subprocess.Popen([sys.executable, "-c", SLOW_EXEC], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    try:
        rank = int(launcher.stdout.readline())
        add(seen)
        print(file=launcher.stdin, flush=True)
        wait_for(lambda: b"LOCAL_RANK=0" in process_tree.environment(rank), "it executed its program", 10)
        add(seen, rank)
        assert seen.pids == {0: rank}
    finally:
        launcher.communicate("\n")
