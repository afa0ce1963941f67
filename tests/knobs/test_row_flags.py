"""Flags that rows of the user's name: where each is written, and which are refused before anything starts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from supervisor.config import recover_rows
from supervisor.config.settings import Settings
from supervisor.errors import SuperviseError
from supervisor.knobs import job_knobs

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.knobs.knob_set import KnobSet

PARSER = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--gradient-clip-val", type=float, default=0.0)
parser.add_argument("--skip-nan", action="store_true")
parser.parse_args()
"""
OWN_PARSER = "from ours import parse\nparse()\n"
HYDRA = "import hydra\n@hydra.main(config_path='conf')\ndef main(cfg): ...\nmain()\n"


def knobs(place: Path, command: str, sets: dict[str, object], script: str = PARSER, declared: tuple[str, ...] = ()) -> KnobSet:
    """Return the knobs of a command with one row, [recover.nan_loss] of a file in `place`."""
    (place / "train.py").write_text(script)
    rows = recover_rows.read({"nan_loss": {"set": sets}}, "supervise.toml", {"recover.nan_loss.set": 3})
    settings = Settings(cwd=str(place), recover=tuple(rows.values()))
    settings = replace(settings, knobs=replace(settings.knobs, declared=declared))
    return job_knobs.find(settings, command.split(), {}, place)


def changed(place: Path, command: str, sets: dict[str, object], script: str = PARSER) -> str:
    """Return the command of an attempt after the row acted."""
    known = knobs(place, command, sets, script)
    row = recover_rows.read({"nan_loss": {"set": sets}}, "supervise.toml", {})["nan_loss"]
    assert {name for name, _ in row.sets} <= {knob.name for knob in known.knobs}
    unchanged = known.apply(command.split(), (), place)
    assert unchanged.argv == tuple(command.split()), "a row changes nothing before it acts"
    return " ".join(known.apply(command.split(), row.sets, place).argv)


@pytest.mark.parametrize(
    ("command", "sets", "becomes"),
    [
        ("python train.py --gradient-clip-val 0.5 -v", {"--gradient-clip-val": "1.0"}, "python train.py --gradient-clip-val 1.0 -v"),
        ("python train.py --gradient-clip-val=0.5 -v", {"--gradient-clip-val": 1.0}, "python train.py --gradient-clip-val=1.0 -v"),
        ("python train.py", {"--gradient-clip-val": 1.0}, "python train.py --gradient-clip-val 1.0"),
        ("python train.py", {"--gradient-clip-val=": 1.0}, "python train.py --gradient-clip-val=1.0"),
        ("python train.py --bias 1", {"--bias": -2}, "python train.py --bias -2"),
        ("python train.py -c 1 -- --own", {"-c": 3}, "python train.py -c 3 -- --own"),
        ("python train.py -- --own", {"--skip-nan": True}, "python train.py --skip-nan -- --own"),
        ("python train.py --skip-nan", {"--skip-nan": True}, "python train.py --skip-nan"),
        (
            "torchrun --nproc-per-node=2 train.py --a 1",
            {"--gradient-clip-val": 1.0},
            "torchrun --nproc-per-node=2 train.py --a 1 --gradient-clip-val 1.0",
        ),
        (
            "accelerate launch --mixed_precision bf16 train.py --mixed_precision no",
            {"--mixed_precision": "bf16"},
            "accelerate launch --mixed_precision bf16 train.py --mixed_precision bf16",
        ),
        ("deepspeed --num_gpus 2 train.py", {"--gradient-clip-val": 1.0}, "deepspeed --num_gpus 2 train.py --gradient-clip-val 1.0"),
        ("python -m ours.train --lr 1", {"--warmup": 100}, "python -m ours.train --lr 1 --warmup 100"),
        ("bash run.sh --lr 1", {"--lr": 0.1}, "bash run.sh --lr 0.1"),
    ],
)
def test_a_flag_is_written_in_the_form_of_the_command(tmp_path: Path, command: str, sets: dict[str, object], becomes: str) -> None:
    assert changed(tmp_path, command, sets) == becomes


@pytest.mark.parametrize(
    ("command", "sets", "becomes"),
    [
        ("python train.py optim.lr=1 model=a", {"optim.lr=": 0.1}, "python train.py optim.lr=0.1 model=a"),
        ("python train.py optim.lr=1 --cfg job", {"trainer.clip=": 1.0}, "python train.py optim.lr=1 trainer.clip=1.0 --cfg job"),
        ("python train.py", {"+trainer.clip=": 1.0}, "python train.py +trainer.clip=1.0"),
        ("python train.py ++amp=true", {"amp=": False}, "python train.py ++amp=false"),
    ],
)
def test_a_word_of_hydras_is_written_beside_the_others(tmp_path: Path, command: str, sets: dict[str, object], becomes: str) -> None:
    assert changed(tmp_path, command, sets, HYDRA) == becomes


@pytest.mark.parametrize(
    ("command", "sets", "why", "remedy"),
    [
        ("python train.py", {"--gradient-clip-vl": 1}, "no such flag; the nearest is --gradient-clip-val", 'Write "--gradient-clip-val"'),
        ("python train.py --gradient-clip 1", {"--gradient-clip-val": 2}, "--gradient-clip in the command may be an abbreviation", "Write"),
        ("python train.py", {"--gradient-clip-val": True}, "it takes a value, and the row has true", '"--gradient-clip-val" = "VALUE"'),
        ("python train.py", {"--skip-nan": "yes"}, "it takes no value", '"--skip-nan" = true'),
        ("python train.py", {"optim.lr=": 1}, "no KEY=VALUE word, and its script does not use Hydra", 'Write "--optim.lr"'),
        ("torchrun --nproc-per-node=2 train.py", {"--nproc-per-node": 1}, "it is an option of the launcher", "Name a flag of the script"),
        ("torchrun train.py", {"--max_restarts": 1}, "it is an option of the launcher", "Name a flag of the script"),
        ("accelerate launch --num_processes 2 train.py", {"--num_processes": 1}, "it is an option of the launcher", "Name a flag"),
        ("bash run.sh", {"--lr": 0.1}, "nothing shows that this command takes it", "Write --lr in the command"),
        ("python train.py --bs 8", {"--bs": 4}, "it is the place of batch_size", "Write batch_size in the row"),
        ("python train.py --a 1", {"--a": 1, "--a=": 2}, "it is the place of --a", "Write --a in the row"),
    ],
)
def test_an_impossible_flag_in_a_row_is_refused_with_the_rows_line(
    tmp_path: Path, command: str, sets: dict[str, object], why: str, remedy: str
) -> None:
    with pytest.raises(SuperviseError) as refused:
        knobs(tmp_path, command, sets, declared=("batch_size=--bs",) if "--bs" in command else ())
    assert why in refused.value.message
    assert refused.value.message.startswith("[recover.nan_loss] cannot set ")
    assert "(supervise.toml:3)" in refused.value.message
    assert remedy in refused.value.hint


def test_the_place_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OWN_PARSER)
    rows = recover_rows.read({"nan_loss": {"set": {"--resume": "x"}}}, "supervise.toml", {})
    settings = Settings(cwd=str(tmp_path), recover=tuple(rows.values()))
    settings = replace(settings, knobs=replace(settings.knobs, resume=replace(settings.knobs.resume, args="--resume {resume}")))
    settings = replace(settings, checkpoints=replace(settings.checkpoints, paths=("c/*.pt",)))
    with pytest.raises(SuperviseError, match="it is how the script gets its checkpoint"):
        job_knobs.find(settings, ["python", "train.py"], {}, tmp_path)


def test_one_flag_with_a_value_and_without_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OWN_PARSER)
    rows = recover_rows.read({"nan_loss": {"set": {"--safe": True}}, "segfault": {"set": {"--safe": "yes"}}}, "supervise.toml", {})
    with pytest.raises(SuperviseError, match="with a value in one row, and without one in another"):
        job_knobs.find(Settings(cwd=str(tmp_path), recover=tuple(rows.values())), ["python", "train.py"], {}, tmp_path)


def test_a_secret_in_the_command_is_in_no_knob(tmp_path: Path) -> None:
    known = knobs(tmp_path, "python train.py --hub-token hunter2hunter2", {"--hub-token": "another-hunter2"}, OWN_PARSER)
    assert "hunter2" not in str(known.knobs)
