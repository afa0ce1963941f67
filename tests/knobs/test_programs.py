"""Programs are recognised by what they are, and enabled only where nothing is left to guess."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from supervisor.config.settings import ROWS
from supervisor.knobs.bindings import COUNTS, NAMES
from supervisor.knobs.programs import Script, locate, programs, recognise
from supervisor.knobs.script_analysis import ScriptText, parse, read_script
from tests.knobs.scripts import HF, HF_BY_MODULE, LIGHTNING, NANOGPT, SCRIPTS, find, values_of

ROOT = Path(__file__).parents[2]

LOCATED = {
    "python train.py --x": Script("file", "train.py", 2),
    "python -u -m pkg.train --x": Script("module", "pkg.train", 4),
    "torchrun --nproc-per-node 2 train.py --x": Script("file", "train.py", 4),
    "torchrun --nproc-per-node=2 -m torchtitan.train --x": Script("module", "torchtitan.train", 4),
    "torchrun --standalone -- train.py --x": Script("file", "train.py", 4),
    "python -m torch.distributed.run --nnodes 2 train.py --x": Script("file", "train.py", 6),
    "srun -n 2 --export=ALL torchrun train.py --x": Script("file", "train.py", 6),
    "env A=b python train.py --x": Script("file", "train.py", 4),
    "accelerate launch --num_processes 2 --gradient_accumulation_steps 4 train.py --x": Script("file", "train.py", 7),
    "accelerate launch -m pkg.train --x": Script("module", "pkg.train", 4),
    "python -m accelerate.commands.launch train.py --x": Script("file", "train.py", 4),
    "deepspeed --num_gpus 2 train.py --x": Script("file", "train.py", 4),
    "./train.py --x": Script("file", "./train.py", 1),
    "bash train.sh --x": Script("none", "", 1),
    "torchrun --no-python ./run.sh --x": Script("none", "./run.sh", 3),
    "python -c pass --x": Script("none", "pass", 3),
}
#: What each script's own command enables, and the command.
AVAILABLE = [
    (
        "hf_trainer",
        "torchrun hf_trainer.py --per-device-train-batch-size 32",
        {"batch_size": "32", "grad_accum": "1", "num_workers": "0", "group_timeout": "1800"},
    ),
    ("hf_trainer", "torchrun hf_trainer.py", {"batch_size": "8", "grad_accum": "1", "num_workers": "0", "group_timeout": "1800"}),
    (
        "lightning",
        "python lightning.py fit --data.batch_size=16 --trainer.accumulate_grad_batches 2",
        {"batch_size": "16", "grad_accum": "2", "num_workers": "3"},
    ),
    ("lightning", "python lightning.py fit", {"batch_size": "24", "grad_accum": "1", "num_workers": "3"}),
    (
        "torchtitan",
        "torchrun -m torchtitan.train --training.local_batch_size 4 --training.global_batch_size 64",
        {"batch_size": "4", "grad_accum": "64"},
    ),
    (
        "megatron",
        "torchrun megatron.py --micro-batch-size 4 --global-batch-size 64 --num-workers 2",
        {"batch_size": "4", "grad_accum": "64", "num_workers": "2"},
    ),
    ("nanogpt", "torchrun nanogpt.py", {"batch_size": "12", "grad_accum": "40"}),
    ("nanogpt", "torchrun nanogpt.py --batch_size=6", {"batch_size": "6", "grad_accum": "40"}),
]


@pytest.mark.parametrize("command", LOCATED)
def test_the_scripts_own_arguments_are_found(command: str) -> None:
    assert locate(command.split()) == LOCATED[command]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_program_is_recognised_by_its_scripts_text(place: Path, name: str) -> None:
    assert find(place, f"python {name}.py").programs == (name,)


def test_a_program_is_recognised_by_the_module_that_is_run(place: Path) -> None:
    job_knobs = find(place, "torchrun -m torchtitan.train --training.local_batch_size 4 --training.global_batch_size 64")
    assert job_knobs.programs == ("torchtitan",)
    assert all(knob.seen for knob in job_knobs.knobs)


def test_a_declared_program_needs_no_text_and_none_is_recognised_where_that_is_declared(place: Path) -> None:
    command = "bash run.sh --per_device_train_batch_size 32"
    assert find(place, command).programs == ()
    job_knobs = find(place, command, program="hf_trainer")
    assert job_knobs.programs == ("hf_trainer",)
    assert values_of(job_knobs) == {"batch_size": "32", "grad_accum": "1", "num_workers": "0", "group_timeout": "1800"}
    assert all(knob.seen for knob in job_knobs.knobs)
    assert find(place, "python nanogpt.py", program="hf_trainer").programs == ("hf_trainer",)
    assert find(place, "python nanogpt.py", program="none").programs == ()


def test_each_program_may_be_declared() -> None:
    (row,) = (row for row in ROWS if row.key == "knobs.program")
    assert row.choices == ("auto", "none", *(program.name for program in programs()))


def test_a_name_by_another_way_is_the_same_name() -> None:
    assert [match.program.name for match in recognise(Script("file", "a.py", 0), parse(HF_BY_MODULE))] == ["hf_trainer"]


@pytest.mark.parametrize(
    "text",
    [
        "import argparse\nparser.add_argument('--per_device_train_batch_size')\nparser.add_argument('--gradient_accumulation_steps')\n",
        "from mine import HfArgumentParser, TrainingArguments\n",
        HF.replace("HfArgumentParser, ", ""),
        HF + "args = TrainingArguments(output_dir=args.output_dir)",
        NANOGPT.replace("gradient_accumulation_steps //= ddp_world_size", "pass"),
        LIGHTNING.replace("from lightning.pytorch.cli import LightningCLI", "from mine import LightningCLI"),
        "def broken(:",
        "\0",
        "",
    ],
    ids=[
        "flags alone",
        "another's class",
        "no parser of flags",
        "arguments that it makes itself",
        "accumulation per rank",
        "another's CLI",
        "no Python",
        "no text",
        "empty",
    ],
)
def test_flags_of_the_same_name_identify_nothing(text: str) -> None:
    assert recognise(Script("file", "a.py", 0), parse(text)) == ()


@pytest.mark.parametrize(("program", "command", "values"), AVAILABLE, ids=[row[1] for row in AVAILABLE])
def test_a_value_of_the_command_or_a_known_default_is_available(place: Path, program: str, command: str, values: dict[str, str]) -> None:
    job_knobs = find(place, command)
    assert job_knobs.programs == (program,)
    assert values_of(job_knobs) == values
    assert {knob.by for knob in job_knobs.knobs} == {program}, "by the name that a rank tells"


UNAVAILABLE = [
    ("hf_trainer", "python a.py --auto_find_batch_size True", HF, "another meaning"),
    ("hf_trainer", "python a.py --per_device_train_b 4", HF, "may be short for"),
    ("hf_trainer", "python a.py --per_device_train_batch_size many", HF, "many is not a whole number"),
    (
        "hf_trainer",
        "python a.py",
        HF + "args.per_device_train_batch_size = 4\n",
        "the script sets per_device_train_batch_size itself, in line 6",
    ),
    ("lightning", "python a.py fit", LIGHTNING.replace("batch_size: int = 24", "batch_size"), "its default is not known"),
    ("lightning", "python a.py fit --data.batch_size 2 --model.batch_size 3", LIGHTNING, "are both given"),
    ("torchtitan", "torchrun -m torchtitan.train --training.local_batch_size 4", "", "its default is not known"),
    (
        "torchtitan",
        "torchrun -m torchtitan.train --training.local_batch_size 4 --training.global_batch_size -1",
        "",
        "follows the micro-batch",
    ),
    (
        "megatron",
        "python a.py --micro-batch-size 4 --global-batch-size 8 --rampup-batch-size 1 1 1",
        SCRIPTS["megatron"],
        "another meaning",
    ),
    ("nanogpt", "python a.py", NANOGPT.replace("batch_size = 12", "batch_size = size()"), "its default is not known"),
    ("deepspeed", "deepspeed a.py --deepspeed", SCRIPTS["deepspeed"], "no --deepspeed_config"),
    ("accelerate", "accelerate launch a.py", SCRIPTS["accelerate"], "its place is not known"),
    ("accelerate", "accelerate launch --use_deepspeed a.py", SCRIPTS["accelerate"], "--use_deepspeed gives its numbers another meaning"),
    ("hf_trainer", "python a.py", HF + "d = {'gradient_accumulation_steps': 4}\n", "the script sets gradient_accumulation_steps itself"),
    ("hf_trainer", "python a.py", HF + "d['gradient_accumulation_steps'] = 4\n", "the script sets gradient_accumulation_steps itself"),
    ("accelerate", "accelerate launch a.py", SCRIPTS["accelerate"].replace("=2", "=n"), "what the script gives is not known"),
]


@pytest.mark.parametrize(("program", "command", "text", "why"), UNAVAILABLE, ids=[f"{row[0]}: {row[3]}" for row in UNAVAILABLE])
def test_an_uncertain_value_is_unavailable_with_its_reason(tmp_path: Path, program: str, command: str, text: str, why: str) -> None:
    (tmp_path / "a.py").write_text(text)
    job_knobs = find(tmp_path, command)
    assert job_knobs.programs == (program,)
    assert not {"batch_size", "grad_accum"} & set(values_of(job_knobs)), "one without the other could not keep the global batch"
    assert any(why in knob.why for knob in job_knobs.unavailable), job_knobs.unavailable


def test_a_file_that_the_command_names_gives_values(place: Path) -> None:
    (place / "c.yaml").write_text("data:\n  class_path: Data\n  init_args: {batch_size: 6}\ntrainer: {accumulate_grad_batches: 3}\n")
    job_knobs = find(place, "python lightning.py fit --config c.yaml")
    assert {"batch_size": "6", "grad_accum": "3"}.items() <= values_of(job_knobs).items()
    after = job_knobs.apply(["python", "lightning.py", "fit", "--config", "c.yaml"], (("batch_size", "3"), ("grad_accum", "6")), place)
    assert after.argv[5:] == ("--data.init_args.batch_size=3", "--trainer.accumulate_grad_batches=6")
    (place / "t.toml").write_text("[training]\nlocal_batch_size = 2\nglobal_batch_size = 8\n")
    assert values_of(find(place, "torchrun -m torchtitan.train --job.config_file t.toml")) == {"batch_size": "2", "grad_accum": "8"}


def test_nanogpts_python_files_give_values(place: Path) -> None:
    (place / "shakespeare.py").write_text("batch_size = 64\n")
    job_knobs = find(place, "torchrun nanogpt.py shakespeare.py")
    assert values_of(job_knobs)["batch_size"] == "64"
    assert job_knobs.apply(["torchrun", "nanogpt.py", "shakespeare.py"], (("batch_size", "32"),), place).argv[3:] == ("--batch_size=32",)


def test_hf_arguments_in_one_file_are_changed_there(place: Path) -> None:
    (place / "args.json").write_text('{"per_device_train_batch_size": 4}')
    job_knobs = find(place, "python hf_trainer.py args.json")
    assert values_of(job_knobs)["batch_size"] == "4"
    after = job_knobs.apply(["python", "hf_trainer.py", "args.json"], (("batch_size", "2"), ("grad_accum", "2")), place / "attempt")
    assert (place / "args.json").read_text() == '{"per_device_train_batch_size": 4}'
    assert Path(after.argv[2]).read_text() == '{"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}'


def test_a_knob_declared_by_the_user_comes_before_the_programs_row(place: Path) -> None:
    job_knobs = find(place, "python hf_trainer.py --mine 4", "batch_size=--mine")
    assert [(knob.by, knob.value) for knob in job_knobs.knobs if knob.name == "batch_size"] == [("declared", "4")]
    assert values_of(job_knobs)["grad_accum"] == "1"


def test_accelerates_accumulation_is_a_variable(place: Path) -> None:
    job_knobs = find(place, "accelerate launch accelerate.py --bs 8", "batch_size=--bs")
    assert values_of(job_knobs) == {"batch_size": "8", "grad_accum": "2"}
    after = job_knobs.apply(["accelerate", "launch", "accelerate.py", "--bs", "8"], (("batch_size", "4"), ("grad_accum", "4")), place)
    assert after.argv == ("accelerate", "launch", "accelerate.py", "--bs", "4")
    assert after.environment["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == "4"


def test_a_script_is_parsed_and_not_run(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n" + HF)
    assert find(tmp_path, "python a.py").programs == ("hf_trainer",)
    assert not (tmp_path / "ran").exists()


def test_a_path_that_is_no_script_has_no_text(tmp_path: Path) -> None:
    assert read_script(tmp_path) == read_script(tmp_path / "absent") == ScriptText()


def test_a_pipe_is_left_to_the_script(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.py")
    reader = os.open(tmp_path / "train.py", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(tmp_path / "train.py", os.O_WRONLY)
    os.write(writer, HF.encode())
    os.close(writer)
    assert find(tmp_path, "python train.py").programs == ()
    assert os.read(reader, len(HF)) == HF.encode()
    os.close(reader)


def test_every_row_has_its_source_and_the_unit_of_its_numbers() -> None:
    for program in programs():
        assert program.source
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", program.checked)
        assert program.modules or program.needs or program.executes
        assert program.knobs or program.deepspeed
        for name, row in program.knobs.items():
            assert name in NAMES
            assert (row.counts in COUNTS[name]) if name in COUNTS else not row.counts
            assert bool(row.env) != bool(row.flags or row.places)
            assert not (row.flags and row.places)


def test_a_rank_reports_the_programs_by_the_same_names() -> None:
    shim = (ROOT / "supervisor" / "instrument" / "_supervise_shim" / "programs.py").read_text(encoding="utf-8")
    assert set(re.findall(r'seen\.add\(\s*"(\w+)"', shim)) == {program.name for program in programs()}
