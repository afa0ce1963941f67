"""The command as an attempt runs it: changed where it must be, the user's files untouched."""

from __future__ import annotations

import hashlib
import json
import stat
from typing import TYPE_CHECKING

import pytest
import yaml

from supervisor.core.values import replace
from supervisor.errors import SuperviseError
from supervisor.report.opening_lines import opening_lines
from tests.knobs.scripts import SCRIPTS, find, values_of

if TYPE_CHECKING:
    from pathlib import Path

HALVED = (("batch_size", "4"), ("grad_accum", "8"))
DEEPSPEED = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 4,
    "zero_optimization": {"stage": 2},
}


def digests(place: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(place.rglob("*")) if path.is_file()}


def test_without_a_knob_the_command_is_unchanged(tmp_path: Path) -> None:
    job_knobs = find(tmp_path, "python train.py --bs 8")
    assert (job_knobs.knobs, job_knobs.unavailable, opening_lines(job_knobs, (), {})) == ((), (), [])
    after = job_knobs.apply(["python", "train.py", "--bs", "8"], (), tmp_path / "attempt")
    assert (after.argv, after.environment, after.files) == (("python", "train.py", "--bs", "8"), {}, ())
    assert not (tmp_path / "attempt").exists()


def test_flags_are_changed_behind_the_script_alone(tmp_path: Path) -> None:
    command = ["torchrun", "--nproc-per-node", "2", "--bs", "3", "train.py", "--bs", "8", "--", "--bs", "1"]
    job_knobs = find(tmp_path, command, "batch_size=--bs", "grad_accum:4=--accum")
    after = job_knobs.apply(command, HALVED, tmp_path)
    assert after.argv == ("torchrun", "--nproc-per-node", "2", "--bs", "3", "train.py", "--bs", "4", "--accum", "8", "--", "--bs", "1")
    assert after.environment == {"SUPERVISE_JOB_BATCH_SIZE": "4", "SUPERVISE_JOB_GRAD_ACCUM": "8"}
    assert job_knobs.apply(command, (), tmp_path).argv == tuple(command)
    assert opening_lines(job_knobs, (), {}) == ["on CUDA OOM: --bs 8→4, --accum 4→8; --no-batch-change forbids it"]


def test_a_command_that_reads_our_variables_has_them_from_the_first_attempt(tmp_path: Path) -> None:
    declared = ("batch_size:8=env:SUPERVISE_JOB_BATCH_SIZE", "grad_accum:1=env:SUPERVISE_JOB_GRAD_ACCUM")
    job_knobs = find(tmp_path, "python train.py", *declared)
    assert job_knobs.apply(["python", "train.py"], (), tmp_path).environment == {
        "SUPERVISE_JOB_BATCH_SIZE": "8",
        "SUPERVISE_JOB_GRAD_ACCUM": "1",
    }
    assert job_knobs.apply(["python", "train.py"], HALVED, tmp_path).environment["SUPERVISE_JOB_BATCH_SIZE"] == "4"


def test_placeholders_are_filled_from_the_first_attempt_and_others_are_left(tmp_path: Path) -> None:
    command = ["bash", "run.sh", "--bs={batch_size}", "{resume}", "${batch_size}"]
    job_knobs = find(tmp_path, command, "batch_size:8={batch_size}")
    assert job_knobs.apply(command, (), tmp_path).argv == ("bash", "run.sh", "--bs=8", "{resume}", "${batch_size}")
    assert job_knobs.apply(command, (("batch_size", "4"),), tmp_path).argv[2] == "--bs=4"


def test_a_variable_of_the_users_has_the_value_that_it_is_given(tmp_path: Path) -> None:
    job_knobs = find(tmp_path, "python train.py", "num_workers=env:WORKERS", environ={"WORKERS": "4"})
    assert values_of(job_knobs) == {"num_workers": "4"}
    assert job_knobs.apply(["python", "train.py"], (("num_workers", "2"),), tmp_path).environment == {"WORKERS": "2"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        ({"PYTORCH_ALLOC_CONF": "a:1"}, {"PYTORCH_ALLOC_CONF": "a:1,expandable_segments:True"}),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False,a:1"}, {"PYTORCH_CUDA_ALLOC_CONF": "a:1,expandable_segments:True"}),
    ],
    ids=["nothing", "the new name", "the old name"],
)
def test_the_users_allocator_settings_are_kept(tmp_path: Path, environ: dict[str, str], expected: dict[str, str]) -> None:
    job_knobs = find(tmp_path, "python train.py", environ=environ)
    overrides = (("env:PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),)
    assert job_knobs.apply(["python", "train.py"], overrides, tmp_path).environment == expected


@pytest.mark.parametrize(
    ("command", "declared", "value"),
    [
        ("python train.py --amp", "mixed_precision=--amp", "on"),
        ("python train.py", "mixed_precision=--amp", ""),
        ("python train.py --precision bf16", "mixed_precision=--precision=bf16", "on"),
        ("python train.py --precision 32", "mixed_precision=--precision=bf16", ""),
        ("python train.py model.offload=true", "cpu_offload=model.offload=true", "on"),
    ],
)
def test_a_switch_that_is_on_in_the_command_is_known_to_be(tmp_path: Path, command: str, declared: str, value: str) -> None:
    job_knobs = find(tmp_path, command, declared)
    assert [knob.value for knob in job_knobs.knobs] == [value]
    assert job_knobs.apply(command.split(), (), tmp_path).argv == tuple(command.split())


def test_switches_are_turned_on_as_declared(tmp_path: Path) -> None:
    declared = ("activation_checkpointing=--ckpt", "cpu_offload=model.offload=full")
    job_knobs = find(tmp_path, "python train.py a=1", *declared)
    assert job_knobs.apply(["python", "train.py", "a=1"], (), tmp_path).argv == ("python", "train.py", "a=1")
    after = job_knobs.apply(["python", "train.py", "a=1"], (("activation_checkpointing", "on"), ("cpu_offload", "on")), tmp_path)
    assert after.argv == ("python", "train.py", "a=1", "model.offload=full", "--ckpt")


def test_keys_of_a_file_are_changed_in_a_copy(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    text = "optim:  # ours\n  bs: 8   # per GPU\n  accum: 4\r\n"
    (tmp_path / "conf" / "a.yaml").write_bytes(text.encode())
    command = ["python", "train.py", "--config", "conf/a.yaml"]
    before = digests(tmp_path)
    job_knobs = find(tmp_path, command, "batch_size=conf/a.yaml:optim.bs", "grad_accum=--config:optim.accum")
    assert job_knobs.apply(command, (), tmp_path / "attempt").argv == tuple(command)
    after = job_knobs.apply(command, HALVED, tmp_path / "attempt")
    copy = after.files[0]
    assert after.argv == ("python", "train.py", "--config", str(copy))
    assert yaml.safe_load(copy.read_text()) == {"optim": {"bs": 4, "accum": 8}}
    assert "optim:  # ours\n  bs: 4   # per GPU\n" in copy.read_text()
    assert (copy.name, stat.S_IMODE(copy.stat().st_mode), stat.S_IMODE(copy.parent.stat().st_mode)) == ("a.yaml", 0o600, 0o700)
    (tmp_path / "conf" / "a.yaml").unlink()
    assert job_knobs.apply(command, HALVED, tmp_path / "attempt").files == (copy,), "what was read at start is what is changed"
    (tmp_path / "conf" / "a.yaml").write_bytes(text.encode())
    assert {name: digest for name, digest in digests(tmp_path).items() if name in before} == before


@pytest.mark.parametrize(
    ("world", "overrides", "total"),
    [
        (None, HALVED, 64),
        (2, HALVED, 64),
        (1, (("grad_accum", "8"),), 64),
        (None, (("batch_size", "4"),), None),
        (3, (("batch_size", "4"),), 48),
    ],
    ids=["same product", "world known", "fewer ranks", "another product", "another product, world known"],
)
def test_deepspeeds_three_numbers_agree(
    tmp_path: Path, world: int | None, overrides: tuple[tuple[str, str], ...], total: int | None
) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED))
    (tmp_path / "train.py").write_text(SCRIPTS["deepspeed"])
    command = ["deepspeed", "--num_gpus", "2", "train.py", "--deepspeed", "--deepspeed_config", "ds.json"]
    before = digests(tmp_path)
    job_knobs = find(tmp_path, command)
    assert values_of(job_knobs) == {"batch_size": "8", "grad_accum": "4"}
    after = job_knobs.apply(command, overrides, tmp_path / "attempt", world)
    new = json.loads(after.files[0].read_text())
    assert new.get("train_batch_size") == total
    micro, accum = new["train_micro_batch_size_per_gpu"], new["gradient_accumulation_steps"]
    assert {"batch_size": str(micro), "grad_accum": str(accum)} == values_of(job_knobs) | dict(overrides)
    if total is not None:
        assert total == micro * accum * (world or 2)
    assert new["zero_optimization"] == {"stage": 2}
    assert after.argv[:-1] == tuple(command[:-1])
    assert {name: digest for name, digest in digests(tmp_path).items() if name in before} == before


def test_deepspeeds_file_may_leave_the_accumulation_to_deepspeed(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8}))
    (tmp_path / "train.py").write_text(SCRIPTS["deepspeed"])
    command = ["deepspeed", "train.py", "--deepspeed_config", "ds.json"]
    job_knobs = find(tmp_path, command)
    assert [(knob.name, knob.value, knob.counts) for knob in job_knobs.knobs] == [
        ("batch_size", "8", "gpu"),
        ("grad_accum", "64", "derived"),
    ]
    after = job_knobs.apply(command, (("batch_size", "4"),), tmp_path / "attempt")
    assert json.loads(after.files[0].read_text()) == {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}


def test_trainer_and_deepspeed_get_the_same_values(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPTS["hf_trainer"])
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED))
    command = ["torchrun", "train.py", "--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "4", "--deepspeed", "ds.json"]
    after = find(tmp_path, command).apply(command, HALVED, tmp_path / "attempt")
    assert after.argv[2:7] == ("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "8", "--deepspeed")
    new = json.loads(after.files[0].read_text())
    assert (new["train_batch_size"], new["train_micro_batch_size_per_gpu"], new["gradient_accumulation_steps"]) == (64, 4, 8)
    auto = {**DEEPSPEED, "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
    (tmp_path / "ds.json").write_text(json.dumps(auto))
    after = find(tmp_path, command).apply(command, HALVED, tmp_path / "attempt")
    assert (after.argv[-1], after.files) == ("ds.json", ())
    (tmp_path / "ds.json").write_text(json.dumps({**DEEPSPEED, "train_micro_batch_size_per_gpu": 2}))
    job_knobs = find(tmp_path, command)
    assert "batch_size" not in values_of(job_knobs), "they disagree already"


def test_a_knob_at_two_places_is_written_to_both(tmp_path: Path) -> None:
    command = ["python", "train.py", "--a", "8", "--b", "8"]
    job_knobs = find(tmp_path, command, "batch_size=--a", "batch_size=--b")
    assert job_knobs.apply(command, HALVED[:1], tmp_path).argv == ("python", "train.py", "--a", "4", "--b", "4")
    with pytest.raises(SuperviseError, match="--a is 8, --b is 9"):
        find(tmp_path, "python train.py --a 8 --b 9", "batch_size=--a", "batch_size=--b")


WRONG = {
    "batchsize=--bs": "there is no knob",
    "batch_size=--bs": "its value is not known: --bs is not in the command",
    "batch_size=--name": "'many' is not a whole number from 1",
    "batch_size=a.yaml:x": "the command does not name a.yaml",
    "batch_size=--config:x": "no such file",
    "batch_size=env:NOWHERE": "its value is not known: $NOWHERE",
    "batch_size:8={batch_size}": "is nowhere",
    "batch_size:8=--set bs={batch_size}": "--set is in the command without bs=…",
    "batch_size=bad.json:x": "is not JSON",
    "batch_size=deepspeed:--bs": "the command does not name",
    "batch_size=--lone": "--lone is there without a value",
    "batch_size=anchor.yaml:bs": "is an anchor",
    "batch_size=auto.json:bs": "'auto' is not a whole number from 1",
    "grad_accum:1=--names": "--name may be an abbreviation of --names",
}


@pytest.mark.parametrize("declared", WRONG)
def test_a_knob_that_cannot_hold_is_reported_at_start(tmp_path: Path, declared: str) -> None:
    files = {"bad.json": "{", "anchor.yaml": "bs: &a 8\nother: *a\n", "auto.json": '{"bs": "auto"}'}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    command = ["python", "train.py", "--name", "many", "--config", "absent.yaml", "--set", "a=1", *files, "--lone"]
    with pytest.raises(SuperviseError) as error:
        find(tmp_path, command, declared)
    assert WRONG[declared] in error.value.message
    assert declared in error.value.message
    assert "--knob" in error.value.message
    assert "--knob" in error.value.hint
    assert error.value.exit_code == 64


def test_each_mistake_has_its_own_remedy(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "auto.json").write_text('{"bs": "auto"}')
    hints = []
    for declared in ("batch_size=bad.json:bs", "batch_size=auto.json:bs", "batch_size=absent.json:bs", "batch_size=--b"):
        with pytest.raises(SuperviseError) as error:
            find(tmp_path, "python train.py bad.json auto.json", declared)
        hints.append(error.value.hint)
    assert len(set(hints)) == len(hints)


@pytest.mark.parametrize("word", ["./conf/a.json", "{0}/conf/a.json", "--config={0}/conf/../conf/a.json", "conf/../conf/a.json"])
def test_a_declared_file_is_that_of_the_command_in_any_spelling(tmp_path: Path, word: str) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "a.json").write_text('{"bs": 8}')
    command = ["python", "train.py", word.format(tmp_path)]
    job_knobs = find(tmp_path, command, "batch_size=conf/a.json:bs")
    after = job_knobs.apply(command, (("batch_size", "4"),), tmp_path / "attempt")
    assert after.files[0].read_text() == '{"bs": 4}'
    assert after.argv[-1].removeprefix("--config=") == str(after.files[0])


def test_a_number_is_shown_without_its_zeros(tmp_path: Path) -> None:
    job_knobs = find(tmp_path, "python train.py --bs 012", "batch_size=--bs")
    assert job_knobs.apply(["python", "train.py", "--bs", "012"], (), tmp_path).environment == {"SUPERVISE_JOB_BATCH_SIZE": "12"}


def test_a_group_of_flags_is_no_abbreviation_of_its_member(tmp_path: Path) -> None:
    assert values_of(find(tmp_path, "python train.py --data X --data.bs 8", "batch_size=--data.bs")) == {"batch_size": "8"}


@pytest.mark.parametrize(
    "places",
    [
        ("--bs", "--bs"),
        ("env:X", "env:X"),
        ("x.bs=", "+x.bs="),
        ("a.json:bs", "--config:bs"),
    ],
)
def test_two_knobs_at_one_place_are_refused(tmp_path: Path, places: tuple[str, str]) -> None:
    (tmp_path / "a.json").write_text('{"bs": 8}')
    declared = (f"batch_size={places[0]}", f"grad_accum={places[1]}")
    with pytest.raises(SuperviseError, match="two knobs at one place: batch_size and grad_accum are both") as error:
        find(tmp_path, "python train.py x.bs=8 --bs 8 --config a.json", *declared, environ={"X": "8"})
    assert error.value.exit_code == 64


@pytest.mark.parametrize(
    ("config", "declared", "remedy"),
    [
        (DEEPSPEED, ("batch_size=deepspeed:ds.json", "grad_accum:1=--acc"), "--knob grad_accum=deepspeed:./ds.json"),
        (DEEPSPEED, ("batch_size:8=--bs", "grad_accum=deepspeed:--ds"), "--knob batch_size=deepspeed:./ds.json"),
        (
            {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8},
            ("batch_size=deepspeed:ds.json", "grad_accum:1=--acc"),
            "--knob grad_accum:derived=./ds.json:train_batch_size",
        ),
    ],
    ids=["the batch alone", "the accumulation alone", "what DeepSpeed derives"],
)
def test_half_of_deepspeeds_batch_is_refused_and_the_remedy_holds(
    tmp_path: Path, config: dict[str, object], declared: tuple[str, str], remedy: str
) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(config))
    command = ["python", "train.py", "--ds", "./ds.json"]
    with pytest.raises(SuperviseError, match="half of DeepSpeed's batch") as error:
        find(tmp_path, command, *declared)
    assert error.value.exit_code == 64
    assert remedy in error.value.hint
    declared_knob = next(text for text in declared if "deepspeed" in text)
    after = find(tmp_path, command, declared_knob, remedy.removeprefix("--knob ")).apply(
        command, (("batch_size", "4"),), tmp_path / "attempt"
    )
    assert json.loads(after.files[0].read_text())["train_micro_batch_size_per_gpu"] == 4


def test_an_override_that_this_node_cannot_make_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SuperviseError, match="no such knob"):
        find(tmp_path, "python train.py").apply(["python", "train.py"], HALVED, tmp_path)


@pytest.mark.parametrize(
    ("declared", "line"),
    [
        (
            ("batch_size=--bs",),
            (
                "on CUDA OOM: nothing can be changed, because supervise does not know how the script gets its gradient accumulation: "
                "add --knob grad_accum=--YOUR-FLAG; --allow-batch-drift halves --bs alone, and the global batch with it"
            ),
        ),
        (("batch_size=--bs", "grad_accum:derived=--accum"), "on CUDA OOM: --bs 8→4; --no-batch-change forbids it"),
        (
            ("batch_size:global=--bs", "grad_accum:2=--accum"),
            (
                "on CUDA OOM: the micro-batch shrinks at the same global batch, if --bs divides by the ranks, not known yet;"
                " --no-batch-change forbids it"
            ),
        ),
        (
            ("batch_size=--odd", "grad_accum:2=--accum"),
            "on CUDA OOM: --odd 7→2, --accum 2→7; --no-batch-change forbids it",
        ),
    ],
    ids=["one alone", "derived", "global", "odd"],
)
def test_the_line_at_start_names_the_enabled_knobs(tmp_path: Path, declared: tuple[str, ...], line: str) -> None:
    assert opening_lines(find(tmp_path, "python train.py --bs 8 --odd 7", *declared), (), {})[0].split(": 1 ")[0] == line


def test_the_line_at_start_says_what_batch_drift_permits_without_an_accumulation(tmp_path: Path) -> None:
    job_knobs = replace(find(tmp_path, "python train.py --bs 5 --one 1", "batch_size=--bs"), batch_drift=True)
    assert opening_lines(job_knobs, (), {}) == ["on CUDA OOM: --bs 5→2, and the global batch with it; --allow-batch-drift permits it"]
    least = replace(find(tmp_path, "python train.py --one 1", "batch_size=--one"), batch_drift=True)
    (line,) = opening_lines(least, (), {})
    assert line.startswith("on CUDA OOM: --one stays as it is: the micro-batch is 1 already")
    both = replace(find(tmp_path, "python train.py --bs 8", "batch_size=--bs", "grad_accum:1=--acc"), batch_drift=True)
    assert opening_lines(both, (), {}) == ["on CUDA OOM: --bs 8→4, --acc 1→2; --no-batch-change forbids it"]


def test_a_continued_run_reports_its_values_and_the_next_change(tmp_path: Path) -> None:
    job_knobs = find(tmp_path, "python train.py --bs 8", "batch_size=--bs", "grad_accum:1=--acc", "cpu_offload=--off", "num_workers:2=--w")
    changed = (("batch_size", "4"), ("grad_accum", "2"), ("cpu_offload", "on"), ("env:PYTORCH_CUDA_ALLOC_CONF", "a:1"))
    assert opening_lines(job_knobs, (), {}, changed) == [
        "continues with --bs 4, --acc 2, --off on (you wrote 8, 1, nothing)",
        "on CUDA OOM: --bs 4→2, --acc 2→4; --no-batch-change forbids it",
    ]


def test_yaml_that_we_wrote_is_yaml(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("{bs: 8}")
    command = ["python", "train.py", "a.yml"]
    after = find(tmp_path, command, "batch_size=a.yml:bs", "num_workers:2=a.yml:loader.workers").apply(
        command, (("batch_size", "4"), ("num_workers", "1")), tmp_path / "x"
    )
    assert yaml.safe_load(after.files[0].read_text()) == {"bs": 4, "loader": {"workers": 1}}
