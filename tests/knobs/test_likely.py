"""The options that the card names: with flags that stand in the command, or that the script's own parser has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.core.model import RESUME, Cause, Policy
from supervisor.knobs import bindings, declaration, likely
from supervisor.knobs.script_analysis import ScriptText, parse
from supervisor.strategies import propose
from supervisor.strategies.memory import batch_options
from tests.knobs.scripts import find
from tests.strategies.test_ladders import situation

if TYPE_CHECKING:
    from pathlib import Path

ARGPARSE = parse(
    """
parser.add_argument("--batch-size", "-b", type=int, default=32)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--workers", default=os.cpu_count(), type=int)
parser.add_argument("--gradient-checkpointing", action="store_true")
parser.add_argument("--eval-batch-size", type=int, default=8)
parser.add_argument("--resume_from", default=None)
parser.add_argument("--resume", action="store_true")
"""
)
CLICK = parse('@click.option("--bs", default=16)\n@click.option("--grad-checkpoint", is_flag=True)\ndef main(bs): pass')
NOTHING = ScriptText()


@pytest.mark.parametrize(
    ("command", "text", "named"),
    [
        ("--batch-size 32", NOTHING, {"batch_size": "--knob batch_size=--batch-size"}),
        ("--batch_size=32 --lr 1", NOTHING, {"batch_size": "--knob batch_size=--batch_size"}),
        ("-b 32 -j 4", NOTHING, {"batch_size": "--knob batch_size=-b", "num_workers": "--knob num_workers=-j"}),
        ("--data.batch_size 32", NOTHING, {"batch_size": "--knob batch_size=--data.batch_size"}),
        ("--batch-size 64 --micro-batch-size 8", NOTHING, {"batch_size": "--knob batch_size=--micro-batch-size"}),
        (
            "train.batch_size=8 +train.accum=2",
            NOTHING,
            {"batch_size": "--knob batch_size=train.batch_size=", "grad_accum": "--knob grad_accum=train.accum="},
        ),
        ("--batch-size auto --eval-batch-size 32 --num-workers", NOTHING, {}),
        ("-- --batch-size 32", NOTHING, {}),
        ("--per_device_batch 8", NOTHING, {"batch_size": "--knob batch_size=--per_device_batch"}),
        ("--ckpt-dir out --resume last.pt", NOTHING, {"resume": "--resume-args '--resume {resume}'"}),
        ("--resume", NOTHING, {}),  # a switch that is on already
        (
            "",
            CLICK,
            {"batch_size": "--knob batch_size:16=--bs", "activation_checkpointing": "--knob activation_checkpointing=--grad-checkpoint"},
        ),
        (
            "--batch-size 64 --gradient-checkpointing",
            ARGPARSE,
            {
                "batch_size": "--knob batch_size=--batch-size",
                "grad_accum": "--knob grad_accum:1=--accum",
                "num_workers": "--knob num_workers:VALUE=--workers",
                "resume": "--resume-args '--resume_from {resume}'",
            },
        ),
        ("", parse('parser.add_argument("--resume", action="store_true")'), {"resume": "--resume-switch '--resume'"}),
        (
            "--load-checkpoint a.pt",
            parse('parser.add_argument("--resume", action="store_true")'),
            {"resume": "--resume-args '--load-checkpoint {resume}'"},  # what the command gives comes before what the parser has
        ),
    ],
)
def test_likely_options_are_those_of_the_command_and_the_script(command: str, text: ScriptText, named: dict[str, str]) -> None:
    options = dict(likely.options(command.split(), text, ()))
    assert options == named
    for name, option in options.items() - {(RESUME, options.get(RESUME))}:
        assert declaration.parse(option.removeprefix("--knob ").replace("VALUE", "4")).name == name, "it can be given as it is shown"


def test_a_knob_that_is_known_is_not_named_again() -> None:
    options = dict(likely.options(["--batch-size", "8"], ARGPARSE, {"batch_size", "num_workers", RESUME}))
    assert options.keys() == {"grad_accum", "activation_checkpointing"}


def test_each_knob_has_its_flags_once() -> None:
    assert set(likely.FLAGS) < set(bindings.NAMES)
    flags = [flag for names in likely.FLAGS.values() for flag in names]
    assert len(flags) == len(set(flags))


def test_a_likely_option_of_the_command_enables_nothing_by_itself(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text('parser.add_argument("--accum", type=int, default=1)\n')
    job_knobs = find(tmp_path, "torchrun train.py --batch-size 32")
    assert not job_knobs.knobs
    assert batch_options(job_knobs.likely) == "--knob batch_size=--batch-size --knob grad_accum:1=--accum"


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ((), "--knob batch_size=--YOUR-FLAG --knob grad_accum=--YOUR-FLAG enables that"),
        (("batch_size",), "--knob batch_size=--real --knob grad_accum=--YOUR-FLAG enables that; without such a flag --allow-batch-drift"),
        (("batch_size", "grad_accum"), "--knob batch_size=--real --knob grad_accum=--real enables that"),
        (("activation_checkpointing",), "--knob activation_checkpointing=--real enables it"),
    ],
)
def test_the_card_names_the_scripts_real_flags(known: tuple[str, ...], words: str) -> None:
    options = tuple((name, f"--knob {name}=--real") for name in known)
    plan = propose(situation(Cause.CUDA_OOM, policy=Policy(likely=options)))
    assert any(words in note for note in plan.notes), plan.notes
