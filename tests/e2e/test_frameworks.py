"""Scripts of well-known frameworks with their own flags, no knob declared: out of memory for real (tests/jobs/small_gpu.py), over gloo.

The frameworks are no dependencies of ours: tests/support/frameworks.py installs them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import words_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

JOBS = Path(__file__).parents[1] / "jobs"
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node=1"]
HF = ["--use_cpu", "--max_steps=4", "--save_strategy=no", "--report_to=none", "--disable_tqdm=true", "--output_dir=out"]
LIGHTNING = ["fit", "--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.strategy=ddp", "--trainer.max_steps=4"]
LIGHTNING += ["--trainer.logger=false", "--trainer.enable_checkpointing=false", "--trainer.enable_progress_bar=false"]

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("script", "title", "batch_size", "grad_accum", "arguments"),
    [
        ("hf_trainer.py", "HF Trainer", "--per_device_train_batch_size", "--gradient_accumulation_steps", HF),
        ("lightning_cli.py", "Lightning", "--data.batch_size", "--trainer.accumulate_grad_batches", LIGHTNING),
    ],
    ids=["HF Trainer", "Lightning"],
)
def test_its_own_flags_are_halved_and_doubled_once_it_is_seen_to_train(  # noqa: PLR0913, PLR0917  a case and three tools
    supervise: Callable[..., Supervised],
    tmp_path: Path,
    frameworks: dict[str, str],
    script: str,
    title: str,
    batch_size: str,
    grad_accum: str,
    arguments: list[str],
) -> None:
    command = [*TORCHRUN, str(JOBS / script), *arguments, batch_size, "16"]
    run = supervise(*command, _SUPERVISE_TEST_INTERVALS="0.04", HF_HUB_OFFLINE="1", **frameworks)
    assert run.exit_code(deadline_s=300) == 0
    assert f"on CUDA OOM: {batch_size} 16→8, {grad_accum} 1→2 ({title})" in run.stderr.splitlines()[1]
    assert f"{batch_size} 16 -> 8, {grad_accum} 1 -> 2" in run.stderr
    begun = [json.loads(line) for path in run.state.glob("*/nodes/*/supervise.log") for line in path.read_text().splitlines()]
    begun = [dict(line["overrides"]) for line in begun if line["event"] == "attempt.begun"]
    assert begun == [{}, {"batch_size": "8", "grad_accum": "2"}]
    # four optimizer steps of two micro-batches of 8: 2 x 8 = 16 each, as before
    assert words_of(tmp_path / "shapes") == [["0", "8", "2"]] * 8
    run.wait_for_nothing_left()
