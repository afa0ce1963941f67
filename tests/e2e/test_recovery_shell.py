"""Plans carried out on real torchrun: the arguments, the GPUs and the number of ranks of the next attempt are what was decided.

The memory that runs out and the GPU that fails are made up by the job (tests/jobs/out_of_memory.py), in torch's own words; `nvidia-smi`
is a script. Everything else is real.
"""

from __future__ import annotations

import json
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.support.supervised import clean_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

JOB = str(Path(__file__).parents[1] / "jobs" / "out_of_memory.py")
KNOBS = ("--knob", "batch_size=--batch-size", "--knob", "grad_accum=--accum")
FAST = {"_SUPERVISE_TEST_INTERVALS": "0.04"}
A, B, C = (f"GPU-{name}-0000-0000-0000-000000000000" for name in ("aaaa1111", "bbbb2222", "cccc3333"))

pytestmark = pytest.mark.process


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
    visible: str
    attempt: int


def trained(run: Supervised) -> list[Line]:
    lines = []
    for line in (run.place / "log").read_text().splitlines() if (run.place / "log").exists() else ():
        rank, step, micro, accum, batch, visible, attempt = line.split()
        lines.append(Line(int(rank), int(step), int(micro), int(accum), int(batch), visible, int(attempt)))
    return lines


def logged(run: Supervised, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for path in run.state.glob("*/nodes/*/supervise.log") for line in path.read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def card_of(run: Supervised) -> list[str]:
    return next(path for path in sorted(run.state.glob("*/nodes/*/incidents/*/card.txt"), reverse=True)).read_text().splitlines()


def on_node(run: Supervised, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ours that is about the node, not about a job."""
    argv = ["supervise", *words, "--state-dir", str(run.state)]
    return subprocess.run(argv, cwd=run.place, env=clean_environment(), capture_output=True, text=True, check=False)  # noqa: S603  our own


# --- out of memory


@pytest.mark.slow
def test_out_of_memory_halves_the_batch_until_it_fits_and_the_global_batch_stays(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*torchrun(2), JOB, "--batch-size", "32", "--fits=8", "--accum=1", options=KNOBS, **FAST)
    assert run.exit_code() == 0
    lines = trained(run)
    assert {(line.micro, line.accum, line.batch) for line in lines} == {(8, 4, 64)}
    assert {line.rank for line in lines if line.step == 5} == {0, 1}  # both ranks, to the end
    assert run.attempts() == 3
    assert "Restarting as attempt 2 with --batch-size 32 -> 16, --accum 1 -> 2" in run.stderr
    assert "Restarting as attempt 3 with --batch-size 16 -> 8, --accum 2 -> 4" in run.stderr
    assert [dict(line["overrides"]) for line in logged(run, "attempt.begun")] == [
        {},
        {"batch_size": "16", "grad_accum": "2"},
        {"batch_size": "8", "grad_accum": "4"},
    ]
    opening = run.stderr.splitlines()[1]
    assert "on CUDA OOM" in opening
    assert "--batch-size 32" in opening
    assert {line["kind"] for line in logged(run, "alert.raised")} >= {"batch_changed"}
    card = card_of(run)
    assert len(card) <= 16
    assert "  done      restarted as attempt 3: --batch-size 16 → 8; --accum 2 → 4" in card
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_the_plan_shows_the_micro_batches_that_fit_after_an_oom(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "ckpt").mkdir()
    torch.save({"model": {"w": torch.ones(1 << 20)}, "step": 1}, tmp_path / "ckpt" / "1.pt")
    command = [*torchrun(2), JOB, "--batch-size", "32", "--fits=16", "--accum=1"]
    run = supervise(*command, options=KNOBS, **FAST)
    assert run.exit_code() == 0
    argv = [
        "supervise",
        "--job",
        "e2e",
        "--checkpoints",
        "ckpt/*.pt",
        "--state-dir",
        str(run.state),
        *KNOBS,
        "plan",
        "--fit",
        "--",
        *command,
    ]
    done = subprocess.run(argv, cwd=run.place, env=clean_environment(), capture_output=True, text=True, check=True)  # noqa: S603  our own
    assert "attempt 1 held 21.9 GiB and asked for 2.0 GiB, of 23.1 GiB, with a micro-batch of 32" in done.stdout
    assert "32, accumulation 1: 23.9 GiB of 23.1 GiB: does not fit" in done.stdout
    assert "16, accumulation 2: 12.0 GiB of 23.1 GiB: should fit" in done.stdout


@pytest.mark.slow
def test_a_plain_command_and_a_checkpoint_handed_over_go_with_a_changed_batch(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\n"
        "open('argv', 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        "if int(sys.argv[sys.argv.index('--bs') + 1]) > 16:\n"
        "    torch.save({'step': 7, 'w': torch.ones(4)}, 'ckpt/7.pt')\n"
        f"    raise torch.cuda.OutOfMemoryError({oom_text()!r})\n"
    )
    (tmp_path / "ckpt").mkdir()
    options = (
        "--knob",
        "batch_size=--bs",
        "--knob",
        "grad_accum:1=--ga",
        "--checkpoints",
        "ckpt/*.pt",
        "--resume-args",
        "--resume {resume}",
    )
    run = supervise("python", str(script), "--bs", "32", options=options, **FAST)
    assert run.exit_code() == 0
    first, again, smaller = (tmp_path / "argv").read_text().splitlines()
    assert first == "--bs 32"
    resumes = ["--resume", str(tmp_path / "ckpt" / "7.pt")]
    assert again.split() == ["--bs", "32", *resumes], "no step is known: once as it was"
    assert "one plain restart comes before a change" in run.stderr
    words = smaller.split()
    assert words[:2] == ["--bs", "16"]
    assert words[words.index("--ga") + 1] == "2" if "--ga" in words else "--ga=2" in words
    assert words[-2:] == resumes


def oom_text() -> str:
    source = Path(JOB).read_text()
    names: dict[str, Any] = {}
    exec(source[source.index("OUT_OF_MEMORY") : source.index("ECC =")], names)  # noqa: S102  the job's own words, without its imports
    return str(names["OUT_OF_MEMORY"])


# --- GPUs


@pytest.fixture
def three_gpus(tmp_path: Path) -> str:
    """Put an nvidia-smi that knows three GPUs on a PATH, and return that."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    rows = "".join(f"{i}, {uuid}, 00000000:{pci}:00.0, NVIDIA H100\\n" for i, (uuid, pci) in enumerate(((A, "3B"), (B, "5E"), (C, "86"))))
    program.write_text(f"#!/bin/sh\nprintf '{rows}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return f"{program.parent}:{clean_environment()['PATH']}"


FAULT = ("--batch-size=4", "--accum=2", "--ecc-at-step=3", f"--faulty={B}")


@pytest.mark.slow
def test_a_failed_gpu_is_excluded_and_the_job_stops_naming_it(supervise: Callable[..., Supervised], three_gpus: str) -> None:
    run = supervise(*torchrun(3), JOB, *FAULT, PATH=three_gpus, **FAST)
    assert run.exit_code() == 69
    assert B in run.stderr
    assert "--min-gpus" in run.stderr
    assert f"supervise nodes clear --state-dir {run.state} {B}" in run.stderr
    (out,) = logged(run, "gpu.quarantined")
    assert (out["index"], out["uuid"], out["pci"]) == (1, B, "0000:5e:00.0")
    assert len(card_of(run)) <= 24
    shown = on_node(run, "nodes", "gpus", "--json")
    (row,) = [row for row in json.loads(shown.stdout)["gpus"] if not row["in_use"]]
    assert (row["uuid"], row["job"]) == (B, run.job)
    # the next start is refused before any rank is there, in the same words
    again = supervise(*torchrun(3), JOB, *FAULT, PATH=three_gpus, **FAST)
    assert again.exit_code() == 69
    assert B in again.stderr
    assert "`supervise nodes clear --state-dir /" in " ".join(again.stderr.split())  # the card folds its lines, and shortens a long path
    assert {line.attempt for line in trained(again)} == {1}  # of the run before
    assert logged(again, "attempt.started")[-1]["run_id"] == logged(again, "attempt.started")[0]["run_id"]
    assert on_node(run, "nodes", "clear", B).returncode == 0
    assert [row for row in json.loads(on_node(run, "nodes", "gpus", "--json").stdout)["gpus"] if not row["in_use"]] == []
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_a_spare_takes_the_place_of_a_gpu_that_fails(supervise: Callable[..., Supervised], three_gpus: str) -> None:
    run = supervise(*torchrun(2), JOB, *FAULT, PATH=three_gpus, **FAST)
    assert run.exit_code() == 0
    last = [line for line in trained(run) if line.attempt == 2]
    assert {line.rank for line in last} == {0, 1}
    assert {line.visible for line in last} == {f"{A},{C}"}
