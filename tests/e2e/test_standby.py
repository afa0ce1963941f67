"""Standbys, with real torchrun and gloo: they become the ranks of the next attempt, or the start is cold; nothing of them is left."""

from __future__ import annotations

import itertools
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.waiting import is_running, wait_for, words_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

JOBS = Path(__file__).parents[1] / "jobs"
DDP = str(JOBS / "ddp_small.py")
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node=2"]
ONE_RANK = ["torchrun", "--standalone", "--nproc-per-node=1"]
#: Saved and resumed from, with steps slow enough for a standby to be made beside them.
TRAINING = [DDP, "--light", "--steps=100000", "--step-ms=20", "--save-every=20", "--pids=pids", "--progress=progress"]
OPTIONS = ["--standby", "on", "--checkpoints", "ckpt/*.pt", "--resume-args", "--resume {resume}"]

pytestmark = pytest.mark.process


def logged(run: Supervised, event: str) -> list[dict[str, Any]]:
    """Return the log events of this name so far."""
    lines = [line for log in run.state.glob("*/nodes/*/supervise.log") for line in log.read_text().splitlines()]
    return [row for row in map(json.loads, lines) if row["event"] == event]


def ready(run: Supervised, attempt: int, count: int = 2) -> list[int]:
    """Await that so many standbys wait beside an attempt; return their pids."""

    def look() -> list[int]:
        rows = logged(run, "standby.reported")[-1:]
        return [pid for row in rows if (row["attempt"], row["ready"]) == (attempt, count) for pid in row["pids"]]

    return wait_for(look, f"{count} standbys are ready beside attempt {attempt}", 90, alive=run.alive)


def starts(run: Supervised, count: int) -> list[tuple[int, int]]:
    """Await so many starts of ranks; return (rank, pid) of each, as the ranks wrote them."""
    wait_for(lambda: len(words_of(run.place / "pids")) >= count, f"{count} starts of ranks", 90, alive=run.alive)
    return [(int(rank), int(pid)) for rank, pid in words_of(run.place / "pids")]


def trains(run: Supervised) -> None:
    """Await another step of rank 0."""
    step = max((step for rank, step in run.progress() if rank == 0), default=0)
    before = len(run.progress())
    wait_for(lambda: len(run.progress()) > before + 4, f"more steps after {step}", 60, alive=run.alive)


@pytest.mark.slow  # test_main_job.py shows it of two ranks
def test_the_ranks_of_the_next_attempt_are_the_standbys(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*ONE_RANK, *TRAINING, options=OPTIONS)
    waiting = ready(run, 1, 1)
    first = dict(starts(run, 1))
    wait_for(lambda: run.status()["standby"]["pids"] == waiting, "status to show them", alive=run.alive)  # the log may be ahead
    run.wait_for_step(40)
    os.kill(first[0], signal.SIGKILL)
    assert [pid for _, pid in starts(run, 2)[1:]] == waiting
    [used] = wait_for(lambda: logged(run, "standby.used"), "their use is logged", alive=run.alive)
    assert (used["attempt"], used["ranks"], used["cold"]) == (2, [0], "")
    trains(run)
    steps = [step for rank, step in run.progress() if rank == 0]
    resumed = [step for before, step in itertools.pairwise(steps) if step != before + 1]  # none: killed right after a save
    assert all(step % 20 == 1 for step in resumed), "it continues from the newest checkpoint"
    run.signal(signal.SIGTERM)
    assert run.exit_code() == 143
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_a_standby_that_is_killed_costs_a_cold_start(supervise: Callable[..., Supervised]) -> None:
    """test_a_plain_command_has_one_too stops one."""
    run = supervise(*TORCHRUN, *TRAINING, options=OPTIONS)
    waiting = ready(run, 1)
    first = dict(starts(run, 2))
    os.kill(waiting[0], signal.SIGKILL)
    wait_for(lambda: logged(run, "standby.reported")[-1]["ready"] == 1, "its end is reported", alive=run.alive)
    os.kill(first[1], signal.SIGKILL)
    assert len({pid for _, pid in starts(run, 4)[2:]} & set(waiting)) == 1, "one of the two waits still"
    trains(run)
    [used] = wait_for(lambda: logged(run, "standby.used"), "their use is logged", alive=run.alive)
    assert len(used["ranks"]) == 1
    assert used["cold"]
    assert not is_running(waiting[0])
    run.signal(signal.SIGTERM)
    assert run.exit_code() == 143
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_a_script_that_changes_its_import_hooks_before_torch_has_cold_starts(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    hook = "sys.meta_path.append(type('Hook', (), {'find_spec': staticmethod(lambda *_: None)})())"
    first_lines = f"import sys\n{hook}\nsys.path.insert(0, {str(JOBS)!r})\n"
    script.write_text(first_lines + "import ddp_small\nif __name__ == '__main__':\n    ddp_small.main()\n")
    run = supervise(*ONE_RANK, str(script), *TRAINING[1:], options=OPTIONS)
    first = dict(starts(run, 1))
    report = wait_for(lambda: logged(run, "standby.reported")[-1:], "why there is none", 90, alive=run.alive)
    refused = wait_for(
        lambda: [row for row in logged(run, "standby.reported") if not row["pids"]], f"none wait, after {report}", 90, alive=run.alive
    )
    assert "changes" in refused[-1]["text"]
    os.kill(first[0], signal.SIGKILL)
    starts(run, 2)
    trains(run)
    assert [row["ranks"] for row in logged(run, "standby.used")] in ([], [[]]), "one line at most"


@pytest.mark.slow
def test_no_standby_outlives_supervise(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*ONE_RANK, *TRAINING, options=OPTIONS)
    waiting = ready(run, 1, 1)
    run.signal(signal.SIGKILL)
    wait_for(lambda: not any(map(is_running, waiting)), "the standbys are gone", 30)
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_no_standby_outlives_a_job_that_is_done(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*ONE_RANK, *TRAINING, "--hold-at=300", "--held-until=end", "--steps=301", options=OPTIONS)
    waiting = ready(run, 1, 1)
    (run.place / "end").touch()
    assert run.exit_code() == 0
    assert not any(map(is_running, waiting))
    assert "survivors" not in run.stderr
    assert logged(run, "survivors.listed") == []
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_a_plain_command_has_one_too(supervise: Callable[..., Supervised]) -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    run = supervise("python", *TRAINING, options=OPTIONS, **alone)
    [waiting] = ready(run, 1, 1)
    [(_, first)] = starts(run, 1)
    os.kill(first, signal.SIGKILL)
    assert starts(run, 2)[1][1] == waiting
    trains(run)
    [again] = ready(run, 2, 1)
    assert again != waiting
    os.kill(again, signal.SIGSTOP)
    os.kill(waiting, signal.SIGKILL)
    assert starts(run, 3)[2][1] not in {waiting, again}
    trains(run)
    assert logged(run, "standby.used")[-1]["cold"]
    run.signal(signal.SIGTERM)
    assert run.exit_code() == 143
    run.wait_for_nothing_left()


def held(pid: int) -> tuple[int, int]:
    """Return the descriptors and the threads of a process."""
    return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208  their number


def rss_kib(pid: int) -> int:
    """Return the resident memory of a process."""
    return next(int(line.split()[1]) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_restarts_leave_nothing_behind(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*ONE_RANK, *TRAINING, options=OPTIONS, SUPERVISE_RESTART_INTENSITY="50")
    seen, before = [], set[int]()
    for attempt in range(1, 12):
        waiting = ready(run, attempt, 1)
        now = dict(starts(run, attempt)[-1:])
        assert attempt == 1 or set(now.values()) == before
        agent = int(Path(f"/proc/{now[0]}/stat").read_text().rpartition(")")[2].split()[1])
        seen.append((held(agent), held(run.process.pid), len(run.leftovers()), rss_kib(agent), rss_kib(run.process.pid)))
        before = set(waiting)
        if attempt < 11:
            trains(run)
            os.kill(now[0], signal.SIGKILL)
    assert len({counts[:3] for counts in seen[1:]}) <= 2, seen
    assert seen[-1][3] - seen[2][3] < 8 * 1024, seen
    assert seen[-1][4] - seen[2][4] < 8 * 1024, seen
