"""An upgrade of supervise between two starts of a run: a journal that the version before wrote is gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.job.identity import node_name
from supervisor.journal.records import frame
from tests.e2e.test_recovery import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.conftest import Supervised

pytestmark = pytest.mark.process
FORMAT1 = Path(__file__).parents[1] / "journal" / "format1" / "requeued.jsonl"
OPTIONS = ["--checkpoints", "ckpt/*.pt", "--resume-args", "--resume {resume}"]
OPTIONS += ["--knob", "batch_size=--batch-size", "--knob", "grad_accum=--accum"]


def test_a_requeue_with_a_new_version_keeps_the_halved_batch_and_the_rejected_checkpoints(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    """The journal says of `python train.py --batch-size 32 --accum 1`: halved to 16, two checkpoints rejected, ended with 75."""
    place = tmp_path / "state" / "e2e" / "nodes" / node_name()
    place.mkdir(parents=True, mode=0o700)
    for directory in place.parents[:3]:
        directory.chmod(0o700)
    good, rejected = checkpoint(tmp_path, 20), checkpoint(tmp_path, 30)
    old = FORMAT1.read_text().replace("/home/ada/job/ckpt/step-0030.pt", str(rejected))
    (place / "journal.jsonl").write_bytes(_framed_anew(old))
    (tmp_path / "train.py").write_text("import sys; print('ran with', *sys.argv[1:], flush=True)\n")
    run = supervise("python", "train.py", "--batch-size", "32", "--accum", "1", options=OPTIONS)
    run.journal_is_damaged = True  # its first records are of format 1, which holds no states to compare
    assert run.exit_code() == 0, run.stderr
    assert "goes on with --batch-size 16, --accum 2 (you wrote 32, 1)" in run.stderr
    assert f"ran with --batch-size 16 --accum 2 --resume {good}" in run.stdout


def _framed_anew(lines: str) -> bytes:
    return b"".join(frame(line.partition('"rec":')[2].removesuffix("}").encode()) for line in lines.splitlines())
