"""Recognised programs resume by their own option, with nothing declared: scripts like nanoGPT's and like one of the HF Trainer."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkpointing.catalogue import FILE_NAME, CheckpointCatalogue
from checkpointing.retention.copies import Copies
from tests.jobs import light
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

pytestmark = pytest.mark.process

#: As nanoGPT does: globals that a file of its own overrides, one checkpoint that is written in place, a switch that begins with it.
NANOGPT = """
import os, signal
import torch
out_dir = "out"
init_from = "scratch"
batch_size = 12
gradient_accumulation_steps = 5 * 8
config_keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, bool, str))]
exec(open("configurator.py").read())
ddp_world_size = 1
gradient_accumulation_steps //= ddp_world_size
os.makedirs(out_dir, exist_ok=True)
model = torch.nn.Linear(2, 2)
optimizer = light_sgd(torch, model.parameters())
iter_num = 0
if init_from == "scratch":
    pass
elif init_from == "resume":
    iter_num = torch.load(os.path.join(out_dir, "ckpt.pt"))["iter_num"]
print("began at", iter_num, flush=True)
while iter_num < 30:
    iter_num += 1
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    if iter_num % 10 == 0:
        torch.save({"iter_num": iter_num, "model": model.state_dict()}, os.path.join(out_dir, "ckpt.pt"))
    if iter_num == 15 and os.path.exists("wait"):
        os.remove("wait")
        signal.pause()
    elif iter_num == 15 and os.environ.get("SUPERVISE_JOB_ATTEMPT") == "1":
        os.kill(os.getpid(), signal.SIGKILL)
"""
CONFIGURATOR = """
import sys
for word in sys.argv[1:]:
    key, _, value = word.removeprefix("--").partition("=")
    assert key in globals(), word
    globals()[key] = value
"""
#: The part of transformers that such a script uses: a parser of flags, and a Trainer that resumes only from what `train` is given.
TRANSFORMERS = f"""
{light.IMPORT}
import argparse, json, os, pathlib, signal, time
import torch
class TrainingArguments:
    pass
class HfArgumentParser(argparse.ArgumentParser):
    def __init__(self, kind):
        super().__init__()
        self.add_argument("--output_dir")
        self.add_argument("--resume_from_checkpoint", default=None)
    def parse_args_into_dataclasses(self):
        return (self.parse_args(),)
class Trainer:
    def __init__(self, args):
        self.args = args
    def train(self, resume_from_checkpoint=None):
        model = torch.nn.Linear(2, 2)
        optimizer = light_sgd(torch, model.parameters())
        first = 0
        if resume_from_checkpoint is not None:
            model.load_state_dict(torch.load(f"{{resume_from_checkpoint}}/pytorch_model.bin"))
            first = json.loads(pathlib.Path(resume_from_checkpoint, "trainer_state.json").read_text())["global_step"]
        print("began at", first, flush=True)
        for step in range(first + 1, 31):
            model(torch.ones(2)).sum().backward()
            optimizer.step()
            if step % 10 == 0:
                place = pathlib.Path(self.args.output_dir, f"checkpoint-{{step}}")
                place.mkdir(parents=True, exist_ok=True)
                torch.save(model.state_dict(), place / "pytorch_model.bin")
                attempt = os.environ.get("SUPERVISE_JOB_ATTEMPT")
                (place / "trainer_state.json").write_text(json.dumps({{"global_step": step, "attempt": attempt}}))
            if step == 25 and os.environ.get("SUPERVISE_JOB_ATTEMPT") == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            while step == 5 and first == 0 and os.environ.get("SUPERVISE_JOB_ATTEMPT") == "2" and not os.path.exists("go-on"):
                time.sleep(0.05)
"""
HF = """
from transformers import HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
Trainer(args).train(resume_from_checkpoint=args.resume_from_checkpoint)
"""


@pytest.mark.slow
def test_a_script_like_nanogpt_continues_from_its_one_file(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(light.IMPORT + NANOGPT)
    (tmp_path / "configurator.py").write_text(CONFIGURATOR)
    run = supervise(sys.executable, "train.py", "--out_dir=runs")
    assert run.exit_code(deadline_s=60) == 0
    assert "resumes with --init_from=resume, once a rank is seen to train with nanoGPT" in run.stderr
    assert run.stdout.splitlines() == ["began at 0", "began at 10"]
    assert "resumed at step 10 from" in run.stderr


@pytest.mark.slow
def test_the_same_command_continues_after_term(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(light.IMPORT + NANOGPT)
    (tmp_path / "configurator.py").write_text(CONFIGURATOR)
    (tmp_path / "wait").touch()
    run = supervise(sys.executable, "train.py")
    wait_for(lambda: not (tmp_path / "wait").exists(), "step 15", alive=run.alive)
    run.signal(signal.SIGTERM)
    assert run.exit_code(deadline_s=60) == 143
    (tmp_path / "wait").touch()
    again = supervise(sys.executable, "train.py")
    wait_for(lambda: not (tmp_path / "wait").exists(), "step 15 again", alive=again.alive)
    assert again.stdout.splitlines() == ["began at 10"]
    assert "resumes with --init_from=resume\n" in again.stderr
    again.signal(signal.SIGINT)
    assert again.exit_code(deadline_s=60) == 130


def lay_out(place: Path, script: str) -> None:
    """Make the package and the script."""
    (place / "transformers").mkdir()
    (place / "transformers" / "__init__.py").write_text("from .trainer import HfArgumentParser, Trainer, TrainingArguments\n")
    (place / "transformers" / "trainer.py").write_text(TRANSFORMERS)
    (place / "train.py").write_text(script)


@pytest.mark.slow
def test_a_script_of_the_hf_trainer_gets_the_newest_whole_checkpoint(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    lay_out(tmp_path, HF)
    run = supervise(sys.executable, "train.py", "--output_dir=out")
    assert run.exit_code(deadline_s=60) == 0
    assert "resumes with --resume_from_checkpoint {resume}, once a rank is seen to train with HF Trainer" in run.stderr
    assert run.stdout.splitlines() == ["began at 0", "began at 20"]
    assert f"resumed at step 20 from {tmp_path}/out/checkpoint-20" in run.stderr


def held(run: Supervised) -> list[Path]:
    """Return the places of the copies that are held for a run."""
    catalogues = [CheckpointCatalogue(file.parent) for file in run.state.rglob(FILE_NAME)]
    return [Path(copy.place) for catalogue in catalogues for copy in Copies(catalogue, 0).all() if copy.held_by]


@pytest.mark.slow
def test_a_checkpoint_that_a_script_would_overwrite_is_copied_first(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    lay_out(tmp_path, HF.replace("resume_from_checkpoint=args.resume_from_checkpoint", ""))
    run = supervise(sys.executable, "train.py", "--output_dir=out")
    wait_for(lambda: held(run), "the copy", alive=run.alive)
    (tmp_path / "go-on").touch()
    assert run.exit_code(deadline_s=60) == 0
    assert "HF Trainer: the script's text does not show .resume_from_checkpoint" in run.stderr
    assert run.stdout.splitlines() == ["began at 0", "began at 0"]
    assert "STARTED FROM SCRATCH" in run.stderr
    assert "of step 20, and may overwrite it: a copy is kept at" in " ".join(run.stderr.split())
    (copy,) = held(run)
    states = [json.loads((Path(place) / "trainer_state.json").read_text()) for place in (copy, tmp_path / "out" / "checkpoint-20")]
    assert [(state["global_step"], state["attempt"]) for state in states] == [(20, "1"), (20, "2")]
