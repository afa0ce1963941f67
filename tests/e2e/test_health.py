"""A node that fails under a real job: real torchrun, the real nvidia-ml-py, and a fake of the driver's library below it; gloo in one test.

The fake (tests/health/fake_nvml) is a test double at the library's edge: what it tells is a file that a test changes while the job runs.
"""

from __future__ import annotations

import json
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.fake_nvml import FakeNvml
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

JOB = str(Path(__file__).parents[1] / "jobs" / "gpu_fault.py")
KNOBS = ("--knob", "batch_size=--batch-size", "--knob", "grad_accum:1=--accum")
FAST = {"_SUPERVISE_TEST_INTERVALS": "0.04"}
UUID = "GPU-00000000-0000-4000-8000-{:012d}"

pytestmark = pytest.mark.process


@pytest.fixture
def four_gpus(fake_library: Path, tmp_path: Path) -> FakeNvml:
    (tmp_path / "nvml").mkdir()
    fake = FakeNvml(fake_library, tmp_path / "nvml" / "state")
    fake.set(gpus=4)
    return fake


def around(fake: FakeNvml) -> dict[str, str]:
    return {name: fake.environ[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE")} | FAST


def torchrun(ranks: int) -> list[str]:
    return ["torchrun", "--standalone", f"--nproc-per-node={ranks}"]


@dataclass(frozen=True)
class Line:
    """What a rank wrote down of one step."""

    rank: int
    step: int
    micro: int
    accum: int
    batch: int
    uuid: str
    attempt: int


def trained(run: Supervised) -> list[Line]:
    file = run.place / "log"
    lines = []
    for line in file.read_text().splitlines() if file.exists() else ():
        rank, step, micro, accum, batch, uuid, attempt = line.split()
        lines.append(Line(int(rank), int(step), int(micro), int(accum), int(batch), uuid, int(attempt)))
    return lines


def logged(run: Supervised, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for path in run.state.glob("*/nodes/*/supervise.log") for line in path.read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def ledger(run: Supervised) -> list[dict[str, Any]]:
    return [json.loads(line) for path in run.state.glob(".gpus/*.jsonl") for line in path.read_text().splitlines()]


def wait_for_training(run: Supervised, ranks: int, step: int = 5) -> None:
    """Await that all ranks train: one that comes later takes the errors of its GPU for those of before."""

    def are_there() -> bool:
        return {line.rank for line in trained(run) if line.step >= step} == set(range(ranks))

    wait_for(are_there, f"step {step} of {ranks} ranks", 60, alive=run.alive)


def test_a_gpu_with_a_memory_error_is_excluded_and_the_global_batch_stays(
    supervise: Callable[..., Supervised], four_gpus: FakeNvml
) -> None:
    job = [*torchrun(4), JOB, "--batch-size=6", "--accum=1"]
    run = supervise(*job, options=(*KNOBS, "--min-gpus=3"), UNTIL_ERROR="1", **around(four_gpus))
    wait_for_training(run, 4)
    four_gpus.set({"2.ecc_unc_vol": 1, "2.ecc_unc_agg": 1, "2.remap_unc": 1, "2.remap_pending": 1})
    assert run.exit_code() == 0
    (decided,) = logged(run, "plan.decided")
    assert (decided["cause"], decided["strategy"], decided["nproc"], decided["exclude"]) == ("gpu_ecc", "exclude_gpu", 3, [UUID.format(2)])
    assert decided["confidence"] >= 0.9
    assert decided["rank"] == 2
    (row,) = ledger(run)
    assert (row["uuid"], row["pci"], row["errors"]) == (UUID.format(2), "0000:12:00.0", 1)
    assert "uncorrectable memory error" in row["evidence"]
    last = [line for line in trained(run) if line.attempt == 2]
    assert {line.uuid for line in last} == {UUID.format(gpu) for gpu in (0, 1, 3)}
    assert {line.rank for line in last} == {0, 1, 2}
    assert {line.batch for line in trained(run)} == {24}
    assert {(line.micro, line.accum) for line in last} == {(4, 2)}
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_only_whole_replicas_continue_and_keep_the_global_batch(supervise: Callable[..., Supervised], four_gpus: FakeNvml) -> None:
    job = [*torchrun(4), JOB, "--batch-size=6", "--accum=1", "--model-parallel=2"]
    run = supervise(*job, options=(*KNOBS, "--model-parallel=2", "--min-gpus=1"), UNTIL_ERROR="1", **around(four_gpus))
    wait_for_training(run, 4)
    four_gpus.set({"2.ecc_unc_vol": 1, "2.ecc_unc_agg": 1, "2.remap_unc": 1, "2.remap_pending": 1})
    assert run.exit_code(120) == 0
    assert (
        "a replica, one copy of the model, has 2 ranks (--model-parallel 2): if GPUs or nodes are lost, only whole replicas train on"
        in run.stderr
    )
    (decided,) = logged(run, "plan.decided")
    assert (decided["strategy"], decided["nproc"]) == ("exclude_gpu", 2)
    last = [line for line in trained(run) if line.attempt == 2]
    assert {line.rank for line in last} == {0, 1}, "3 GPUs are left, and 3 ranks are no whole replicas"
    assert {line.uuid for line in last} == {UUID.format(gpu) for gpu in (0, 1)}
    assert {line.batch for line in trained(run)} == {12}
    assert {(line.micro, line.accum) for line in last} == {(6, 2)}
    assert run.attempts() == 2
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_without_permission_to_shrink_a_job_ends_with_69_naming_the_gpu(supervise: Callable[..., Supervised], four_gpus: FakeNvml) -> None:
    run = supervise(*torchrun(4), JOB, UNTIL_ERROR="1", **around(four_gpus))
    wait_for_training(run, 4)
    four_gpus.set({"1.ecc_unc_vol": 2, "1.ecc_unc_agg": 2, "1.field.230": 1})
    assert run.exit_code() == 69
    assert UUID.format(1) in run.stderr
    assert "--min-gpus" in run.stderr
    assert [row["uuid"] for row in ledger(run)] == [UUID.format(1)]
    facts = json.loads(max(run.state.glob("*/nodes/*/incidents/*/evidence.json")).read_text())
    readings = {fact["name"]: fact for fact in facts if fact["source"] == "nvml"}
    assert readings.keys() == {"ecc_uncorrected", "recovery_action"}
    assert ["hardware", "yes"] in readings["ecc_uncorrected"]["fields"]
    # the ledger is asked before any rank is there
    again = supervise(*torchrun(4), JOB, **around(four_gpus))
    assert again.exit_code() == 69
    assert UUID.format(1) in again.stderr
    assert {line.attempt for line in trained(again)} == {1}  # of the run before
    # a GPU that was reset, and is well, is back by itself
    four_gpus.set({"1.ecc_unc_vol": 0, "1.field.230": 0})
    well = supervise(*torchrun(4), JOB, "--steps=3", **around(four_gpus))
    assert well.exit_code() == 0
    assert [line["uuid"] for line in logged(well, "gpu.released")] == [UUID.format(1)]
    assert ledger(well)[-1]["by"] == "health"
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_a_gpu_that_needs_a_reset_is_left_out_before_the_first_rank_is_there(
    supervise: Callable[..., Supervised], four_gpus: FakeNvml
) -> None:
    four_gpus.set({"3.field.230": 1})
    spare = supervise(*torchrun(3), JOB, "--steps=3", **around(four_gpus))
    assert spare.exit_code() == 0
    assert {line.uuid for line in trained(spare)} == {UUID.format(gpu) for gpu in (0, 1, 2)}
    assert spare.attempts() == 1
    assert [row["uuid"] for row in ledger(spare)] == [UUID.format(3)]


@pytest.mark.slow
def test_a_driver_that_does_not_fit_its_library_is_no_node_for_a_gpu_job(supervise: Callable[..., Supervised], four_gpus: FakeNvml) -> None:
    four_gpus.set({"init_error": 18})
    run = supervise(*torchrun(2), JOB, "--steps=3", **around(four_gpus))
    assert run.exit_code() == 69
    assert run.attempts() == 0
    assert "modprobe" in run.stderr
    without = supervise(*torchrun(2), JOB, "--steps=3", CUDA_VISIBLE_DEVICES="", **around(four_gpus))
    assert without.exit_code() == 0
    anyway = supervise(
        *torchrun(2),
        JOB,
        "--steps=3",
        options=(
            "--set",
            "health.enabled=false",
        ),
        **around(four_gpus),
    )
    assert anyway.exit_code() == 0


@pytest.mark.slow
def test_a_list_that_gives_a_rank_a_gpu_which_is_not_there_is_refused_before_any_rank(
    supervise: Callable[..., Supervised], four_gpus: FakeNvml
) -> None:
    run = supervise(*torchrun(3), JOB, "--steps=3", CUDA_VISIBLE_DEVICES="0,1,9", **around(four_gpus))
    assert run.exit_code() == 78
    assert run.attempts() == 0
    assert trained(run) == []
    card = " ".join(run.stderr.split())
    assert "CUDA_VISIBLE_DEVICES=0,1,9 names GPU 9, which this node does not have (it has GPUs 0 to 3)" in card
    assert "write CUDA_VISIBLE_DEVICES=0,1,2 --set health.enabled=false starts in spite of it" in card
    assert "device_ordinal" in run.ask("why").stdout
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_ranks_that_share_a_gpu_over_gloo_are_warned_of_once_and_train(supervise: Callable[..., Supervised], four_gpus: FakeNvml) -> None:
    four_gpus.set(gpus=1)
    run = supervise("torchrun", "--nproc-per-node=4", *torchrun(2)[1:], JOB, "--gloo", "--steps=3", **around(four_gpus))
    assert run.exit_code() == 0
    assert {line.rank for line in trained(run)} == {0, 1}
    shared = "torchrun's 2 ranks here (--nproc-per-node=2), and 1 GPU is visible: rank 1 fails if it takes the GPU of its LOCAL_RANK"
    assert run.stderr.count(shared) == 1
    assert "gloo and MPS do; write --nproc-per-node=1\n" in run.stderr
    assert "torchrun takes the last --nproc-per-node alone: --nproc-per-node=4 has no effect" in run.stderr


@pytest.mark.slow
def test_health_alone_ends_no_healthy_job_and_warns_once(supervise: Callable[..., Supervised], four_gpus: FakeNvml) -> None:
    run = supervise(*torchrun(2), JOB, "--immune", "--steps=80", **around(four_gpus))
    wait_for_training(run, 2)
    four_gpus.set({"1.ecc_unc_vol": 1})
    run.wait_for_line("health: GPU 1 .* uncorrectable memory error since the job's start; the job continues")
    assert run.exit_code() == 0
    assert run.attempts() == 1
    assert [line["kind"] for line in logged(run, "alert.raised")] == ["node_health"]
    assert run.stderr.count("uncorrectable memory error") == 1
    assert ledger(run) == []


@pytest.mark.slow
def test_evict_on_ends_the_attempt_at_once_and_takes_the_gpu_out_of_use(supervise: Callable[..., Supervised], four_gpus: FakeNvml) -> None:
    options = ("--set", "health.evict_on=gpu_ecc")
    run = supervise(*torchrun(2), JOB, "--immune", "--steps=60", options=options, **around(four_gpus))
    wait_for_training(run, 2)
    four_gpus.set({"1.ecc_unc_vol": 1})
    assert run.exit_code() == 0
    assert run.attempts() == 2
    assert [line["cause"] for line in logged(run, "plan.decided")] == ["gpu_ecc"]
    assert {line.uuid for line in trained(run) if line.attempt == 2} == {UUID.format(0), UUID.format(2)}
    exits = [line for line in logged(run, "rank.exited") if line["attempt"] == 1]
    assert {line["signal"] for line in exits} == {signal.SIGTERM}, "the ranks were to be asked to end, and not to be killed"
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_an_nvml_that_hangs_neither_delays_nor_ends_a_healthy_job(supervise: Callable[..., Supervised], four_gpus: FakeNvml) -> None:
    run = supervise(*torchrun(2), JOB, "--steps=60", **around(four_gpus))
    wait_for_training(run, 2)
    four_gpus.set({"all.hang_ms.nvmlDeviceGetFieldValues": 600_000})
    assert run.exit_code() == 0
    assert run.attempts() == 1
    lines = [line for line in trained(run) if line.rank == 0]
    assert [line.step for line in lines] == list(range(1, 61))
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_an_nvml_that_hangs_from_the_start_holds_no_attempt_back_for_long(
    supervise: Callable[..., Supervised], four_gpus: FakeNvml
) -> None:
    four_gpus.set({"all.hang_ms.nvmlDeviceGetUUID": 600_000})
    began = time.monotonic()
    run = supervise(*torchrun(2), JOB, "--steps=3", **around(four_gpus))
    run.wait_for_line("probe nvml did not answer")
    assert time.monotonic() - began < 14
    assert run.exit_code() == 0
    assert ledger(run) == []
    run.wait_for_nothing_left()
