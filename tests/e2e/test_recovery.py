"""Recovery for real, on a CPU: memory that truly runs out, checkpoints and data that truly kill a training over gloo, bugs, and budgets.

What stands for a GPU is said where it does: torch on a CPU has no OutOfMemoryError and no illegal access of its own.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.support import preloaded
from tests.support.memory_group import memory_group
from tests.support.waiting import wait_for, words_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised, Surroundings

JOBS = Path(__file__).parents[1] / "jobs"
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node=2"]
RESUMING = ("--checkpoints", "ckpt/*.pt", "--resume-args", "--resume {resume}")
FAST = {"_SUPERVISE_TEST_INTERVALS": "0.04"}
#: What makes a script the only rank of its job, without a launcher.
ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", **FAST}

pytestmark = pytest.mark.process


def logged(run: Supervised, event: str) -> list[dict[str, Any]]:
    """Return the lines of the event log of one kind."""
    lines = [json.loads(line) for path in run.state.glob("*/nodes/*/supervise.log") for line in path.read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def overrides(run: Supervised) -> list[dict[str, str]]:
    """Return what each attempt was begun with in place of the command's own."""
    return [dict(line["overrides"]) for line in logged(run, "attempt.begun")]


def card(run: Supervised) -> str:
    """Return the newest incident's card."""
    return max(run.state.glob("*/nodes/*/incidents/*/card.txt")).read_text()


def causes(run: Supervised) -> list[str]:
    """Return the cause of each failure, in order."""
    return [line["cause"] for line in logged(run, "plan.decided")]


# --- out of memory: tests/jobs/memory.py

#: Between what a micro-batch of 8 needs (about 50 MiB) and what one of 16 does (about 100).
ROOM = "--room-mib=76"
MEMORY = [*TORCHRUN, str(JOBS / "memory.py")]
KNOBS = ("--knob", "batch_size=--batch-size", "--knob", "grad_accum:1=--accum")


@dataclass(frozen=True)
class Step:
    """What rank 0 wrote down of an optimizer step."""

    step: int
    micro: int
    accum: int
    loss: float
    own: float
    attempt: int
    tag: str


def steps_of(place: Path, name: str = "losses") -> list[Step]:
    """Return what rank 0 wrote down so far."""
    return [
        Step(int(step), int(micro), int(accum), float(loss), float(own), int(attempt), tag)
        for step, micro, accum, loss, own, attempt, tag in words_of(place / name)
    ]


LOADER = [*TORCHRUN, str(JOBS / "loader_memory.py"), "--workers=4"]


@pytest.mark.slow
def test_a_loader_worker_that_is_killed_halves_the_workers_and_the_script_trains_with_fewer(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    command = [sys.executable, *LOADER[len(TORCHRUN) :], "--fits=2"]
    run = supervise(*command, options=("--knob", "num_workers=--workers"), **ONE_RANK)
    assert run.exit_code() == 0
    assert set(causes(run)) <= {"dataloader_worker", "host_oom"}
    assert overrides(run) == [{}, {}, {"num_workers": "2"}]
    assert words_of(tmp_path / "workers") == [["0", "2", "3"]], "what the rank itself trained with"
    assert "4 loader workers in each rank need more memory than there is: 2 of them (--workers)" in card(run)
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_memory_of_the_machine_that_truly_runs_out_halves_the_workers_until_it_suffices(
    supervise: Callable[..., Supervised], surroundings: type[Surroundings], tmp_path: Path
) -> None:
    """Two ranks with 4 workers of 300 MiB each need 2400 MiB and are killed by the kernel; with 2 each they need 1200."""
    with memory_group(2300) as group:
        inside = ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
        run = supervise(*LOADER, "--hold-mib=300", options=("--knob", "num_workers=--workers"), around=surroundings(prefix=inside), **FAST)
        assert run.exit_code() == 0
        assert set(causes(run)) <= {"dataloader_worker", "host_oom"}
        assert [values.get("num_workers") for values in overrides(run)][:3] == [None, None, "2"]
        last = overrides(run)[-1]["num_workers"]
        assert {workers for _, workers, _ in words_of(tmp_path / "workers")} == {last}
        run.wait_for_nothing_left()


@pytest.mark.slow
def test_memory_that_truly_runs_out_above_8_ends_at_8_with_the_loss_curve_of_an_uninterrupted_run_at_8(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    """Started at 32, it meets its long samples after step 4, is refused memory at 32 and at 16, and ends at 8.

    The refusal is the kernel's (RLIMIT_DATA) and reaches torch's allocator in the middle of a forward or backward pass. The job hands it
    on as torch.OutOfMemoryError in CUDA's words, for a GPU is what it stands for; cause and ladder are those of a GPU.

    The curve is compared with that of a run without us at 8, four times accumulated. In steps 1 to 4 the two add the same terms up in
    another order, in float32 (a relative error of about 1e-7 in each sum), hence 1e-5. That this is no blind comparison is shown by half of
    the global batch, whose loss is farther off by orders of magnitude.
    """
    words = [ROOM, "--batch-size=8", "--accum=4", "--save-every=100", f"--losses={tmp_path}/alone"]
    alone = preloaded.run(*MEMORY[len(TORCHRUN) :], *words, ranks=2)
    assert alone.returncode == 0, alone.stderr
    run = supervise(*MEMORY, ROOM, "--batch-size", "32", options=(*KNOBS, *RESUMING), **FAST)
    assert run.exit_code() == 0

    assert overrides(run) == [{}, {"batch_size": "16", "grad_accum": "2"}, {"batch_size": "8", "grad_accum": "4"}]
    assert causes(run) == ["cuda_oom", "cuda_oom"]
    steps, wanted = steps_of(tmp_path), steps_of(tmp_path, "alone")
    assert [step.step for step in wanted] == list(range(1, 9))
    assert {step.micro for step in steps} >= {32, 8}
    assert {step.micro * step.accum for step in steps} == {32}
    last = {step.step: step for step in steps}  # a step that was lost was made again
    assert {(last[step].micro, last[step].accum) for step in range(5, 9)} == {(8, 4)}
    assert last[3].micro == 32
    for step in wanted:
        assert math.isclose(last[step.step].loss, step.loss, rel_tol=1e-5), (last[step.step], step)
    assert min(abs(step.own - step.loss) / step.loss for step in wanted) > 1e-4
    assert all(abs(earlier.loss - other.loss) / earlier.loss > 1e-4 for earlier, other in pairwise(wanted))
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_without_the_declared_knob_the_arguments_stay_and_the_stop_names_it(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    run = supervise(*MEMORY, ROOM, "--batch-size", "32", options=RESUMING, **FAST)
    assert run.exit_code() == 65
    assert run.attempts() == 2  # it came after the first step: one plain restart, then the same again
    assert overrides(run) == [{}, {}]
    assert {(step.micro, step.accum) for step in steps_of(tmp_path)} == {(32, 1)}
    assert set(causes(run)) == {"cuda_oom"}
    assert "--knob batch_size=" in card(run)
    assert "num_workers" not in card(run)
    assert len(card(run).splitlines()) <= 24
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_a_working_change_outlives_kill_9_and_a_requeue_and_ends_with_the_command(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    def until(run: Supervised, attempt: int) -> Step:
        """Await two steps with long samples of `attempt`."""

        def look() -> list[Step]:
            return [step for step in steps_of(tmp_path) if step.attempt == attempt and step.step > 4]

        return wait_for(lambda: look()[1:], f"two steps of attempt {attempt}", 180, alive=run.alive)[-1]

    command = [sys.executable, *MEMORY[len(TORCHRUN) :], ROOM, "--batch-size", "32", "--steps=100000", "--step-ms=50"]
    options = (*KNOBS, *RESUMING)
    first = supervise(*command, options=options, **ONE_RANK)
    assert until(first, 3).micro == 8
    first.signal(signal.SIGKILL)
    first.exit_code()
    first.wait_for_nothing_left()

    second = supervise(*command, options=options, **ONE_RANK)
    went_on = until(second, 4)
    assert (went_on.micro, went_on.accum) == (8, 4)
    assert "continues with --batch-size 8, --accum 4 (you wrote 32, 1)" in second.stderr
    assert "on CUDA OOM: --batch-size 8→4, --accum 4→8" in second.stderr
    second.signal(signal.SIGUSR1)
    assert second.exit_code() == 75

    third = supervise(*command, options=options, **ONE_RANK)
    went_on = until(third, 5)
    assert (went_on.micro, went_on.accum) == (8, 4)
    assert min(step.step for step in steps_of(tmp_path) if step.attempt == 5) > 4  # from a checkpoint
    third.signal(signal.SIGTERM)
    third.exit_code()
    assert [values.get("batch_size") for values in overrides(third)] == [None, "16", "8", "8", "8"]

    other = supervise(*command, "--tag=other", "--short=100000", options=options, **ONE_RANK)
    wait_for(lambda: [step for step in steps_of(tmp_path) if step.tag == "other"], "a step of the other command", 60, alive=other.alive)
    other.signal(signal.SIGTERM)
    other.exit_code()
    assert {(step.micro, step.accum) for step in steps_of(tmp_path) if step.tag == "other"} == {(32, 1)}


# --- checkpoints, data and code that are at fault: tests/jobs/suspects.py

SUSPECTS = [*TORCHRUN, str(JOBS / "suspects.py")]
#: Where neither a peer nor a launcher is needed, with ONE_RANK.
ALONE = [sys.executable, str(JOBS / "suspects.py")]


ILLEGAL = (
    "CUDA error: an illegal memory access was encountered\\nCUDA kernel errors might be asynchronously reported at some other API call"
)
#: A whole file, byte for byte, of which each rank dies while torch.load reads it: of a null pointer; of what CUDA raises, in its words,
#: for a CPU has no such error; of what torch's reader raises where a disk gives other bytes than it took.
POISONS = {
    "segfault": "import ctypes, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); ctypes.string_at(0)",
    "cuda_illegal_access": f"import torch; raise getattr(torch, 'AcceleratorError', RuntimeError)('{ILLEGAL}')",
    "checkpoint_corrupt": "raise RuntimeError('PytorchStreamReader failed reading file data/0: file read failed')",
}


def checkpoint(place: Path, step: int, poison: str | None = None) -> Path:
    """Write the checkpoint of `step` as the job does, with a poison in it."""
    path = place / "ckpt" / f"step-{step:06d}.pt"
    path.parent.mkdir(exist_ok=True)
    content = {"step": step, "model": torch.nn.Linear(8, 8).state_dict()}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(JOBS)  # as for the script itself
        parts = importlib.import_module("job_parts")
        torch.save(content if poison is None else {**content, "sick": parts.Sick(POISONS[poison])}, path)
    return path


def begin_with_20_known(supervise: Callable[..., Supervised], place: Path, *words: str, options: tuple[str, ...] = RESUMING) -> Supervised:
    """Start a job that goes beyond step 20 once the supervisor knows its checkpoint of that step: it looks every few seconds only."""
    (place / "hold").write_text("1")
    run = supervise(*ALONE, *words, "--hold=hold", "--hold-at=21", options=options, **ONE_RANK)

    def known() -> bool:
        return any('"event":"CheckpointVerified"' in line and "step-000020.pt" in line for line in run.journal().splitlines())

    wait_for(known, "the checkpoint of step 20 to be known", alive=run.alive)
    (place / "hold").unlink()
    return run


def starts(place: Path) -> list[int]:
    """Return the step at which rank 0 of each attempt that came so far began."""
    return [int(step) for rank, step, _ in words_of(place / "started") if rank == "0"]


@pytest.mark.slow
@pytest.mark.parametrize(("poison", "ranks"), [("segfault", 1)])
def test_a_checkpoint_that_kills_twice_while_it_is_loaded_is_poisoned_and_the_one_before_is_taken(
    supervise: Callable[..., Supervised], tmp_path: Path, poison: str, ranks: int
) -> None:
    checkpoint(tmp_path, 5)
    bad = checkpoint(tmp_path, 10, poison)
    job = ["torchrun", "--standalone", f"--nproc-per-node={ranks}", *SUSPECTS[len(TORCHRUN) :]]
    run = supervise(*job, "--steps=12", "--save-every=100", options=RESUMING, **FAST)
    assert run.exit_code() == 0
    assert run.attempts() == 3
    assert causes(run) == [poison, poison]
    assert starts(tmp_path) == [5]  # the other two died in torch.load
    assert len(words_of(tmp_path / "at_end")) == ranks
    assert bad.exists()
    assert logged(run, "plan.decided")[-1]["reason"].startswith(f"{bad} is not used again in this run: back to ")
    assert f"costs 5 steps × {ranks} ranks = {5 * ranks} rank-steps, done again from step 5" in run.stderr  # noqa: RUF001  the sign
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_with_no_older_checkpoint_a_poisoned_one_stops_the_run(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    bad = checkpoint(tmp_path, 10, "checkpoint_corrupt")
    before = bad.read_bytes()
    run = supervise(*ALONE, "--steps=12", options=RESUMING, **ONE_RANK)
    assert run.exit_code() == 65
    assert run.attempts() == 2
    assert starts(tmp_path) == []
    assert bad.read_bytes() == before


@pytest.mark.slow
def test_parameters_from_which_no_numbers_come_cost_one_step_back(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    run = begin_with_20_known(supervise, tmp_path, "--spoil=20", "--steps=25")
    assert run.exit_code() == 0
    assert causes(run) == ["nan_loss"]
    assert starts(tmp_path) == [0, 15]
    assert "costs 5 steps × 1 ranks = 5 rank-steps, done again from step 15" in run.stderr  # noqa: RUF001  the sign
    state = torch.load(tmp_path / "ckpt" / "step-000025.pt", weights_only=True)
    assert state["model"]["weight"].isfinite().all()


@pytest.mark.slow
def test_data_that_makes_no_numbers_goes_one_back_two_back_and_around_it_where_that_is_declared(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    options = (*RESUMING, "--knob", "skip_window=--skip-data")
    run = begin_with_20_known(supervise, tmp_path, "--bad-data=23:24", "--steps=40", options=options)
    assert run.exit_code() == 0
    assert set(causes(run)) == {"nan_loss"}
    assert starts(tmp_path) == [0, 15, 10, 10]
    skipped = overrides(run)[-1]["skip_window"]
    first, last = map(int, skipped.split(":"))
    assert {23, 24} <= set(range(first, last + 1))
    assert logged(run, "plan.decided")[-1]["reason"] == f"the data of steps {first} to {last} is skipped (--skip-data)"
    assert len(words_of(tmp_path / "at_end")) == 1
    run.wait_for_nothing_left()


# --- code that is at fault

SCRIPT = f"""
import sys
sys.path.insert(0, {str(JOBS)!r})
import suspects
LABELS = {{"label": 1}}
def each_step(step):
    if step == 7:
        LABELS["lable"]
suspects.main(each_step)
"""


@pytest.mark.slow
def test_a_deterministic_bug_gets_two_attempts_and_once_it_is_fixed_a_new_start_is_not_refused(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run = supervise(sys.executable, str(script), options=RESUMING, **ONE_RANK)
    assert run.exit_code() == 65
    decided = logged(run, "plan.decided")[-1]["reason"]
    assert decided.startswith("the same error came again at step ")
    assert decided.endswith("(attempts 1 and 2)")
    assert "KeyError: 'lable'" in card(run)
    assert starts(tmp_path) == [0, 5]
    assert len(list((tmp_path / "ckpt").iterdir())) == 1  # a KeyError never steps back
    script.write_text(SCRIPT.replace("lable", "label"))
    mended = supervise(sys.executable, str(script), options=RESUMING, **ONE_RANK)
    assert mended.exit_code() == 0
    assert starts(tmp_path)[2:] == [5]
    assert len(words_of(tmp_path / "at_end")) == 1


@pytest.mark.slow
def test_an_import_that_fails_once_torch_and_the_group_are_there_is_not_tried_again(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch.distributed as d\nd.init_process_group('gloo')\nfrom torch.optim import AdamX\n")
    run = supervise(sys.executable, str(script), **ONE_RANK)
    assert run.exit_code() == 1
    assert run.attempts() == 1
    assert "AdamX" in card(run)


# --- budgets


@pytest.mark.slow
def test_a_script_that_saves_at_step_0_and_dies_at_step_1_ends_in_4_attempts(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    run = supervise(*ALONE, "--save-at-start", "--die-at=1", "--ckpt=ckpt/step-{}-of-[].pt", options=RESUMING, **ONE_RANK)
    assert run.exit_code() == 65
    assert run.attempts() <= 4
    assert starts(tmp_path) == [0] * run.attempts()
    assert len(list((tmp_path / "ckpt").iterdir())) == run.attempts(), "each attempt saves under a new name"
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_a_spent_budget_outlives_kill_9_of_the_supervisor(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "hold").write_text("3")
    command = [*ALONE, "--save-at-start", "--die-at=1", "--hold=hold"]
    first = supervise(*command, options=RESUMING, **ONE_RANK)
    wait_for(lambda: len(starts(tmp_path)) == 3, "the third attempt", 60, alive=first.alive)
    os.kill(first.process.pid, signal.SIGKILL)
    first.exit_code()
    first.wait_for_nothing_left()
    (tmp_path / "hold").unlink()
    second = supervise(*command, options=RESUMING, **ONE_RANK)
    assert second.exit_code() == 65
    deaths = len(starts(tmp_path)) - 1  # the third attempt was ended from without
    assert deaths <= 4
    assert second.attempts() == deaths + 1
