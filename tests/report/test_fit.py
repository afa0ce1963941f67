"""What fits into a GPU: the arithmetic over a checkpoint's sizes and what an attempt ran out of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from checkpointing import sizes
from checkpointing.sizes import TensorSizes
from supervisor.cli import main
from supervisor.core import actions as act
from supervisor.core.model import Cause, Change, FailureVerdict, Knob, Plan, PlanKind
from supervisor.knobs.batch import Batch
from supervisor.report import fit
from supervisor.report.layout import Surface, render
from supervisor.strategies.shortage import Shortage
from supervisor.view.incidents import RecordedFailure

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
KNOBS = (Knob("batch_size", "32", "--bs", counts="gpu"), Knob("grad_accum", "1", "--accum", counts="rank"))


def ran_out(attempt: int, asked: int, changes: tuple[Change, ...] = (), cause: Cause = Cause.CUDA_OOM) -> RecordedFailure:
    """Return a round whose attempt held 20 GiB of 24 and asked for so many more."""
    facts = {"allocated": 20, "asked": asked, "free": 4, "capacity": 24}
    verdict = FailureVerdict(cause, 0.97, "oom", "oom", facts=tuple((name, str(n * GIB)) for name, n in facts.items()))
    plan = Plan(PlanKind.RESTART, "why", "next", "halve_batch", changes=changes)
    return RecordedFailure(attempt, decision=act.ReportDecision(attempt, attempt, verdict, plan, None))


HALVED = (Change("batch_size", "32", "16", "--bs"), Change("grad_accum", "1", "2", "--accum"))


def test_the_last_attempt_that_ran_out_counts_with_the_batch_that_it_had() -> None:
    failures = [ran_out(1, 20, HALVED), ran_out(2, 12), ran_out(3, 99, cause=Cause.USER_CODE)]
    assert fit.measured(failures, KNOBS, 2) == fit.Measured(2, Shortage(20 * GIB, 12 * GIB, 24 * GIB), Batch(16, 2, 2))
    assert fit.measured([ran_out(1, 1)], KNOBS, 2) is None, "20 and 1 of 24 are no shortage"
    alone = fit.measured([ran_out(1, 20)], (), 2)
    assert alone is not None
    assert alone.batch == "no batch size is declared"


def test_the_micro_batches_that_fit_are_shown_with_their_arithmetic() -> None:
    seen = fit.Measured(2, Shortage(20 * GIB, 12 * GIB, 24 * GIB), Batch(16, 2, 2))
    data = fit.document("ckpt/7.pt", TensorSizes(4 * GIB, 8 * GIB), seen, 2)
    assert (data["fixed_bytes"], data["sample_bytes"]) == (16 * GIB, GIB)
    assert [(row["micro_batch"], row["bytes"] // GIB, row["verdict"]) for row in data["micro_batches"]] == [
        (16, 32, "does not fit"),
        (8, 24, "barely"),
        (4, 20, "should fit"),
        (2, 18, "should fit"),
        (1, 17, "should fit"),
    ]
    text = render(fit.page(data), Surface(200)).splitlines()
    fixed = next(line for line in text if "fixed" in line)
    assert "parameters 4.0 GiB + gradients 4.0 GiB + optimizer states 8.0 GiB = 16.0 GiB" in fixed
    assert "sharded over 2 ranks (FSDP, ZeRO-3): 8.0 GiB" in fixed
    assert "  measured     attempt 2 held 20.0 GiB and asked for 12.0 GiB, of 24.0 GiB, with a micro-batch of 16" in text
    assert "  micro-batch  4, accumulation 8: 20.0 GiB of 24.0 GiB: should fit" in text


@pytest.mark.parametrize(
    ("weights", "seen", "words"),
    [
        (4, None, "nothing: no GPU's peak is recorded, and no attempt of this job ran out of GPU memory"),
        (40, fit.Measured(2, Shortage(20 * GIB, 12 * GIB, 24 * GIB), Batch(16, 2, 2)), "the model is sharded, or kept elsewhere"),
        (4, fit.Measured(2, Shortage(20 * GIB, 12 * GIB, 24 * GIB), "no batch size is declared"), "not known: no batch size is declared"),
    ],
)
def test_an_unknown_value_is_not_guessed(weights: int, seen: fit.Measured | None, words: str) -> None:
    data = fit.document("c.pt", TensorSizes(weights * GIB, 0), seen, 0)
    assert data["micro_batches"] == []
    assert words in render(fit.page(data), Surface(200))


def test_the_sizes_of_a_checkpoint_are_read_from_its_headers(tmp_path: Path) -> None:
    model = torch.nn.Linear(64, 32)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    weights = (64 * 32 + 32) * 4
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 1}, tmp_path / "a.pt")
    tensor_sizes = sizes.of_checkpoint(str(tmp_path / "a.pt"))
    assert (tensor_sizes.weights, tensor_sizes.beside) == (
        weights,
        2 * weights + 2 * 4,
    )  # Adam's two moments, and a step for each parameter
    parts = tmp_path / "parts"
    parts.mkdir()
    save_file(model.state_dict(), parts / "model.safetensors")
    torch.save(optimizer.state_dict(), parts / "optimizer.pt")
    (parts / "config.json").write_text("{}")
    (parts / "other.npz").write_bytes(b"not of a known format")
    of_parts = sizes.of_checkpoint(str(parts))
    assert (of_parts.weights, of_parts.beside) == (weights, 2 * weights + 2 * 4)
    assert of_parts.unread == (str(parts / "other.npz"),)


def test_the_command_names_the_checkpoint_and_the_missing_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = ["plan", "--fit", "--state-dir", str(tmp_path / "state")]
    assert main.main([*plan, "--", "python", "train.py"]) == 64
    assert "--checkpoints 'DIR/*.pt'" in capsys.readouterr().err
    assert main.main(["--checkpoints", "c/*.pt", *plan, "--", "python", "train.py"]) == 78
    assert "c/*.pt: no checkpoint there is verified good" in capsys.readouterr().err
    (tmp_path / "c").mkdir()
    torch.save({"model": {"w": torch.ones(1 << 20)}, "step": 3}, tmp_path / "c" / "3.pt")
    assert main.main(["--checkpoints", "c/*.pt", *plan, "--", "python", "train.py"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "parameters 4 MiB, optimizer states 0 bytes" in out
    assert "measured nothing" in out
