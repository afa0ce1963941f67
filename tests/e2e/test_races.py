"""A rank reads a checkpoint while another one writes it: told from a damaged file, and not rejected. The script: tests/jobs/race.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

JOB = str(Path(__file__).parents[1] / "jobs" / "race.py")
COMMAND = ["torchrun", "--standalone", "--nproc-per-node=2", JOB, "--ckpt", "ckpt/last.pt"]
RESUMING = ("--checkpoints", "ckpt/*.pt", "--resume-args", "--resume {resume}")
FAST = {"_SUPERVISE_TEST_INTERVALS": "0.04"}

#: Both ranks save each step to one file. The last save waits until the warning was printed.
BOTH_SAVE = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(3):
    dist.barrier()
    torch.save({"step": step}, "last.pt")
while not os.path.exists("named"):
    time.sleep(0.05)
dist.destroy_process_group()
"""

pytestmark = pytest.mark.process


def logged(run: Supervised, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for path in run.state.glob("*/nodes/*/supervise.log") for line in path.read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def card(run: Supervised) -> str:
    return " ".join(max(run.state.glob("*/nodes/*/incidents/*/card.txt")).read_text().split())


@pytest.mark.slow  # tests/scenarios shows it
def test_a_checkpoint_read_too_early_is_not_rejected_and_the_next_attempt_resumes_from_it(
    tmp_path: Path, supervise: Callable[..., Supervised]
) -> None:
    (tmp_path / "ckpt").mkdir()
    run = supervise(*COMMAND, options=RESUMING, **FAST)
    assert run.exit_code(deadline_s=120) == 0
    (seen,) = (tmp_path / "seen").read_text().splitlines()
    assert seen.startswith("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory")
    assert [(line["cause"], line["strategy"]) for line in logged(run, "plan.decided")] == [("checkpoint_corrupt", "raced")]
    assert [line["resume_from"] or None for line in logged(run, "attempt.begun")] == [None, str(tmp_path / "ckpt" / "last.pt")]
    text = card(run)
    assert "A rank read a checkpoint while another rank was writing it" in text
    assert f"rank 1 read what rank 0 was writing: {tmp_path / 'ckpt' / 'last.pt'}" in text
    assert "mend the script: save to a temporary name and rename it (os.replace), or with checkpointing.save" in text
    load = next(number for number, line in enumerate(Path(JOB).read_text().splitlines(), 1) if "torch.load(path)" in line)
    assert f"race.py:{load}: args.ckpt is loaded here, and saved in line" in text
    assert "dist.barrier() on all ranks between the save and the load" in text


@pytest.mark.slow
def test_ranks_that_save_to_one_file_are_named_once_while_they_run(tmp_path: Path, supervise: Callable[..., Supervised]) -> None:
    (tmp_path / "train.py").write_text(BOTH_SAVE)
    run = supervise("torchrun", "--standalone", "--nproc-per-node=2", "train.py", _SUPERVISE_TEST_INTERVALS="0.04")
    run.wait_for_line(r"warning: local ranks 0 and 1 both save to \S+/last.pt: one overwrites the other")
    (tmp_path / "named").touch()
    assert run.exit_code(deadline_s=60) == 0
    assert [(line["path"], line["ranks"]) for line in logged(run, "saves.shared")] == [(str(tmp_path / "last.pt"), [0, 1])]
