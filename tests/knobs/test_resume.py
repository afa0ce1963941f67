"""How a script gets its checkpoint: by a declaration, or by an option that the text of a known program shows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from supervisor.config.settings import Origin, Settings, with_values
from supervisor.knobs import job_knobs
from supervisor.knobs.programs import programs
from supervisor.report.opening_lines import handover_warning, resume_line
from tests.knobs.scripts import ACCELERATE, DEEPSPEED, HF, LIGHTNING, MEGATRON, NANOGPT, TITAN

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.knobs.knob_set import KnobSet

HF_RESUMES = HF.replace(".train()", ".train(resume_from_checkpoint=args.resume_from_checkpoint)")
NANOGPT_RESUMES = NANOGPT + "init_from = 'scratch'\nif init_from == 'scratch':\n    pass\nelif init_from == 'resume':\n    pass\n"
ACCELERATE_RESUMES = (
    ACCELERATE
    + "parser.add_argument('--resume_from_checkpoint', type=str)\n"
    + "if args.resume_from_checkpoint:\n    accelerator.load_state(args.resume_from_checkpoint)\n"
)
DEEPSPEED_RESUMES = DEEPSPEED + "engine.load_checkpoint(args.load_dir)\n"

#: program: its script, the arguments, what is appended, what the script gets
AVAILABLE = {
    "hf_trainer": (HF_RESUMES, "", "--resume_from_checkpoint {resume}", "path"),
    "lightning": (LIGHTNING, "fit --data.batch_size=4", "--ckpt_path={resume}", "path"),
    "torchtitan": (TITAN, "--checkpoint.enable", "", "itself"),
    "megatron": (MEGATRON, "--save out", "--load out", "switch"),
    "nanogpt": (NANOGPT_RESUMES, "config/small.py --out_dir=out", "--init_from=resume", "switch"),
    "deepspeed": (DEEPSPEED_RESUMES, "--save_dir out", "--load_dir out", "switch"),
    "accelerate": (ACCELERATE_RESUMES, "", "--resume_from_checkpoint {resume}", "path"),
}
#: name: the script, the arguments, and why nothing is added
UNAVAILABLE = {
    "HF's parser takes it, and the script never passes it on": (HF, "", "does not show .resume_from_checkpoint"),
    "the command gives it": (HF_RESUMES, "--resume-from-checkpoint out/checkpoint-5", "--resume_from_checkpoint is in the command"),
    "it may be abbreviated": (HF_RESUMES, "--resume_from out", "--resume_from may be short for --resume_from_checkpoint"),
    "a file alone": (HF_RESUMES, "args.json", "beside another argument the script would not read args.json"),
    "a file names it": (LIGHTNING, "fit --config c.yaml", "--ckpt_path is in a file that the command names"),
    "another subcommand": (LIGHTNING, "validate", "does not begin with fit"),
    "not on": (TITAN, "--checkpoint.enable=false", "--checkpoint.enable is not on"),
    "no place to save to": (MEGATRON, "", "the command has no --save"),
    "it begins anew from weights": (MEGATRON, "--save out --load out --finetune", "with --finetune it begins anew"),
    "another place to load from": (MEGATRON, "--save out --load other", "--load is in the command, which decides"),
    "its place is a template of its own": (MEGATRON, "--save out/{step}", "--save out/{step} holds a placeholder"),
    "what is appended would be no option": (HF_RESUMES, "--output_dir out -- words", "after `--`"),
    "a copy without resume": (NANOGPT, "", "does not show init_from=resume"),
    "it begins with other weights": (NANOGPT_RESUMES, "--init_from=gpt2", "--init_from is in the command"),
    "no option of the parser": (ACCELERATE_RESUMES.replace("--resume_", "--"), "", "does not show --resume_from_checkpoint"),
}


def ways_of(place: Path, script: str, arguments: str, **values: str | bool | tuple[str, ...]) -> tuple[KnobSet, Settings]:
    """Return the knobs of a script that is run in `place`, with the settings."""
    (place / "t.py").write_text(script)
    keys = {key.replace("__", "."): value for key, value in values.items()}
    settings = with_values(Settings(cwd=str(place)), keys, {key: Origin("command line", "--x") for key in keys})
    command = ["python", "t.py", *arguments.split()]
    return job_knobs.find(settings, command, {}, place), settings


def test_each_program_that_resumes_is_tried_here() -> None:
    assert set(AVAILABLE) == {program.name for program in programs() if program.resume is not None}


@pytest.mark.parametrize("name", AVAILABLE)
def test_a_program_resumes_by_its_own_option_once_a_rank_is_seen_to_run_it(tmp_path: Path, name: str) -> None:
    script, arguments, args, gets = AVAILABLE[name]
    ways, settings = ways_of(tmp_path, script, arguments)
    (way,) = ways.resume
    assert (way.args, way.knob.counts, way.knob.by, way.knob.seen) == (args, gets, name, False)
    line = resume_line(settings, ways)
    assert way.knob.how in line
    assert line.endswith(f"once a rank is seen to train with {next(p.title for p in programs() if p.name == name)}")


@pytest.mark.parametrize("name", UNAVAILABLE)
def test_no_resume_option_is_added_in_doubt(tmp_path: Path, name: str) -> None:
    script, arguments, why = UNAVAILABLE[name]
    (tmp_path / "args.json").write_text("{}")
    (tmp_path / "c.yaml").write_text("ckpt_path: old.ckpt\n")
    ways, settings = ways_of(tmp_path, script, arguments)
    assert ways.resume == ()
    (row,) = (row for row in ways.unavailable if row.knob == "resume")
    assert why in row.why
    assert row.remedy
    assert row.why in resume_line(settings, ways)


def test_megatron_that_loads_from_where_it_saves_resumes_by_itself(tmp_path: Path) -> None:
    ways, settings = ways_of(tmp_path, MEGATRON, "--save out --load out")
    assert ways.resume[0].knob.counts == "itself"
    assert ways.resume[0].args == ""
    assert resume_line(settings, ways).startswith("the script resumes itself with --load out, once a rank")


def test_of_a_script_that_resumes_itself_no_handover_is_claimed(tmp_path: Path) -> None:
    ways, settings = ways_of(tmp_path, "", "", checkpoints__paths=("ckpt/*.pt",), job__resumes_itself=True)
    assert resume_line(settings, ways) == "the script resumes itself from ckpt/*.pt"


@pytest.mark.parametrize(
    "declared",
    [
        {"knobs__resume__args": "--from {resume}"},
        {"knobs__resume__switch": "--init_from=mine"},
        {"job__resumes_itself": True},
    ],
    ids=lambda row: next(iter(row)),
)
def test_a_declared_way_to_resume_comes_before_a_recognised_one(tmp_path: Path, declared: dict[str, str | bool]) -> None:
    ways, _ = ways_of(tmp_path, NANOGPT_RESUMES, "", **declared)
    assert [way.knob.by for way in ways.resume] == ([] if "job__resumes_itself" in declared else ["declared"])
    assert not [row for row in ways.unavailable if row.knob == "resume"]


def test_a_place_in_the_command_is_a_declaration_too(tmp_path: Path) -> None:
    ways, settings = ways_of(tmp_path, HF_RESUMES, "--model {resume}", checkpoints__paths=("out/*",))
    (way,) = ways.resume
    assert (way.knob.by, way.knob.how, way.args) == ("declared", "{resume}", "")
    assert not [row for row in ways.unavailable if row.knob == "resume"]
    assert resume_line(settings, ways) == "resumes from the newest verified out/*, passed by {resume}"


@pytest.mark.parametrize(
    ("script", "declared", "warned"),
    [
        ("print(1)\n", {}, True),
        ("import os\nprint(os.environ.get('SUPERVISE_JOB_RESUME_FROM'))\n", {}, False),
        ("from checkpointing import load_latest\n", {}, False),
        ("from supervisor.worker import resume_from\n", {}, False),
        ("print('resume_from_checkpoint')\n", {}, True),
        ("print(1)\n", {"knobs__resume__args": "--from {resume}"}, False),
        ("print(1)\n", {"job__resumes_itself": True}, False),
        ("print(1)\n", {"checkpoints__paths": ()}, False),
    ],
)
def test_declared_checkpoints_that_the_script_does_not_take_are_warned_of(
    tmp_path: Path, script: str, declared: dict[str, str | bool], *, warned: bool
) -> None:
    ways, settings = ways_of(tmp_path, script, "", **{"checkpoints__paths": ("out/*",), **declared})
    warning = handover_warning(settings, ways, ["python", "t.py"], {})
    assert bool(warning) is warned
    assert ("nothing shows that t.py takes a checkpoint" in warning) is warned


def test_a_checkpoint_in_the_command_or_a_script_that_cannot_be_read(tmp_path: Path) -> None:
    ways, settings = ways_of(tmp_path, "print(1)\n", "", checkpoints__paths=("out/*",))
    assert not handover_warning(settings, ways, ["python", "t.py", "--from={resume}"], {})
    assert "nothing shows that the command takes" in handover_warning(settings, ways, ["sh", "-c", "python t.py"], {})


def test_a_declared_program_is_believed_and_its_text_is_needed_all_the_same(tmp_path: Path) -> None:
    ways, _ = ways_of(tmp_path, HF_RESUMES, "", knobs__program="hf_trainer")
    assert ways.resume[0].knob.seen
    unread, _ = ways_of(tmp_path, "def broken(:", "", knobs__program="hf_trainer")
    assert unread.resume == ()


def test_a_switch_and_its_older_spelling_are_one_way(tmp_path: Path) -> None:
    new, _ = ways_of(tmp_path, "", "", knobs__resume__switch="--again")
    old, _ = ways_of(tmp_path, "", "", knobs__resume__args="--again", job__resumes_itself=True)
    assert new.resume == old.resume


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        (["--resume", "out/step-20.pt"], "each attempt begins at step 20, because the command names out/step-20.pt"),
        (["--resume=out/step-20.pt"], "--checkpoints 'out/step-*.pt' --resume-args '--resume {resume}' passes the newest"),
        (["out/step-20.pt"], "--resume-args '--YOUR-FLAG {resume}'"),
        (["--resume", "out/checkpoint-40"], "each attempt begins at step 40"),
        (["--resume", "out/step-99.pt"], ""),  # it is not there
        (["--base", "model.pt"], ""),
        (["--data", "part-3"], ""),
        (["--config", "step-1.yaml"], ""),
    ],
)
def test_a_checkpoint_that_the_command_names_is_that_of_each_attempt(tmp_path: Path, words: list[str], warned: str) -> None:
    ways, settings = ways_of(tmp_path, "print(1)\n", "")
    for name in ("out/checkpoint-40", "part-3"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("out/step-20.pt", "model.pt", "step-1.yaml"):
        (tmp_path / name).touch()
    command = ["python", "t.py", *words]
    warning = handover_warning(settings, ways, command, {})
    assert warned in warning
    assert bool(warned) == bool(warning)
    assert ("the command names the checkpoint" in resume_line(settings, ways, (), command)) == bool(warned)
    assert not handover_warning(replace(settings, job=replace(settings.job, resumes_itself=True)), ways, command, {})
