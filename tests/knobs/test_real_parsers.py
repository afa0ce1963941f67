"""The programs' own parsers read what we wrote as we meant it. They are no dependencies of ours: skipped where they are not installed.

Importing them takes long, so that one process of each parses all command lines: each as it is, and as we changed it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.knobs.scripts import find, values_of

if TYPE_CHECKING:
    from pathlib import Path

HF = """
import json, sys
from transformers import HfArgumentParser, Trainer, TrainingArguments
parser = HfArgumentParser(TrainingArguments)
for argv in json.load(sys.stdin):
    if len(argv) == 1:
        (args,) = parser.parse_json_file(argv[0])
    else:
        (args,) = parser.parse_args_into_dataclasses(argv)
    print(json.dumps([args.per_device_train_batch_size, args.gradient_accumulation_steps, args.dataloader_num_workers, args.output_dir]))
"""
LIGHTNING = """
import json, sys
import lightning as L
from lightning.pytorch.cli import LightningCLI
class Data(L.LightningDataModule):
    def __init__(self, path: str = "p", batch_size: int = 24, num_workers: int = 3):
        super().__init__()
        self.batch_size, self.num_workers, self.path = batch_size, num_workers, path
class Model(L.LightningModule): ...
for argv in json.load(sys.stdin):
    cli = LightningCLI(Model, Data, run=False, save_config_callback=None, args=argv)
    print(json.dumps([cli.datamodule.batch_size, cli.trainer.accumulate_grad_batches, cli.datamodule.num_workers, cli.datamodule.path]))
"""
HF_LINES = [
    ["--output_dir", "p"],
    ["--output_dir", "p", "--per_device_train_batch_size", "16"],
    ["--output_dir", "p", "--per-device-train-batch-size=16", "--gradient-accumulation-steps", "2"],
    ["--per_device_train_batch_size", "2", "--per_device_train_batch_size", "16", "--dataloader_num_workers=3", "--output_dir=p"],
    ["args.json"],
]
LIGHTNING_LINES = [
    ["--data.batch_size", "8"],
    ["--data.batch_size=8", "--trainer.accumulate_grad_batches=2", "--data.num_workers", "0"],
    ["--config", "c.yaml"],
    ["--config", "c.yaml", "--data.num_workers", "2"],
    ["--trainer.max_epochs", "1"],
]
NEW = (("batch_size", "4"), ("grad_accum", "6"), ("num_workers", "1"))

pytestmark = pytest.mark.process


def compare(place: Path, script: str, lines: list[list[str]]) -> None:
    """Let the program's parser read each line as it is and as it is changed."""
    (place / "train.py").write_text(script)
    commands = [("python", "train.py", *line) for line in lines]
    plans = [find(place, command) for command in commands]
    changed = [plan.apply(command, NEW, place / str(n)).argv for n, (plan, command) in enumerate(zip(plans, commands, strict=True))]
    done = subprocess.run(
        [sys.executable, "train.py"],
        input=json.dumps([list(argv[2:]) for argv in (*commands, *changed)]),
        cwd=place, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    read = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert [[str(value) for value in values[:3]] for values in read[: len(lines)]] == [list(values_of(plan).values()) for plan in plans]
    assert read[len(lines) :] == [[4, 6, 1, "p"]] * len(lines)


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed: pip install transformers")
def test_hf_argument_parser_agrees_with_our_reading_and_writing(tmp_path: Path) -> None:
    (tmp_path / "args.json").write_text(json.dumps({"output_dir": "p", "per_device_train_batch_size": 16}))
    compare(tmp_path, HF, HF_LINES)


@pytest.mark.skipif(
    find_spec("lightning") is None or find_spec("jsonargparse") is None,
    reason="lightning is not installed: pip install lightning jsonargparse",
)
def test_lightning_cli_agrees_with_our_reading_and_writing(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("data:\n  batch_size: 6\ntrainer:\n  accumulate_grad_batches: 3\n")
    compare(tmp_path, LIGHTNING, LIGHTNING_LINES)
