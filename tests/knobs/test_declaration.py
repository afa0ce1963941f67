"""Declarations behind --knob, and the errors for those that make no sense."""

from __future__ import annotations

import pytest

from supervisor.knobs.bindings import NAMES, Env, FileKey, Flag, Override, Pair, Placeholder, Word
from supervisor.knobs.declaration import KnobDeclaration, parse

RIGHT = {
    "batch_size=--batch-size": KnobDeclaration("batch_size", Flag(("--batch-size",)), counts="gpu"),
    "batch_size=-b": KnobDeclaration("batch_size", Flag(("-b",)), counts="gpu"),
    "batch_size:32=--batch_size=": KnobDeclaration("batch_size", Flag(("--batch_size",), joined=True), "32", "gpu"),
    "batch_size:global=--batch": KnobDeclaration("batch_size", Flag(("--batch",)), counts="global"),
    "grad_accum:world:40=--accum": KnobDeclaration("grad_accum", Flag(("--accum",)), "40", "world"),
    "grad_accum:derived=--global-batch": KnobDeclaration("grad_accum", Flag(("--global-batch",)), counts="derived"),
    "batch_size=--set data.bs={batch_size}": KnobDeclaration("batch_size", Pair("--set", "data.bs={}"), counts="gpu"),
    "num_workers:4=env:WORKERS": KnobDeclaration("num_workers", Env("WORKERS"), "4"),
    "batch_size:8={batch_size}": KnobDeclaration("batch_size", Placeholder("batch_size"), "8", "gpu"),
    "batch_size=trainer.batch_size=": KnobDeclaration("batch_size", Override("trainer.batch_size"), counts="gpu"),
    "batch_size=++trainer.batch_size=": KnobDeclaration("batch_size", Override("trainer.batch_size", "++"), counts="gpu"),
    "batch_size=conf/a.yaml:train.bs": KnobDeclaration("batch_size", FileKey(Word("conf/a.yaml"), "train.bs"), counts="gpu"),
    "batch_size=--config:train.bs": KnobDeclaration("batch_size", FileKey(Flag(("--config",)), "train.bs"), counts="gpu"),
    "grad_accum=deepspeed:ds.json": KnobDeclaration(
        "grad_accum", FileKey(Word("ds.json"), "gradient_accumulation_steps", deepspeed=True), counts="rank"
    ),
    "batch_size=deepspeed:--deepspeed_config": KnobDeclaration(
        "batch_size", FileKey(Flag(("--deepspeed_config",)), "train_micro_batch_size_per_gpu", deepspeed=True), counts="gpu"
    ),
    "activation_checkpointing=--ckpt": KnobDeclaration("activation_checkpointing", Flag(("--ckpt",))),
    "activation_checkpointing=--ckpt=full": KnobDeclaration("activation_checkpointing", Flag(("--ckpt",)), on="full"),
    "cpu_offload=model.offload=true": KnobDeclaration("cpu_offload", Override("model.offload"), on="true"),
    "mixed_precision=--precision=bf16-mixed": KnobDeclaration("mixed_precision", Flag(("--precision",)), on="bf16-mixed"),
    "cpu_offload=env:OFFLOAD=1": KnobDeclaration("cpu_offload", Env("OFFLOAD"), on="1"),
    "group_timeout:1800=--ddp_timeout": KnobDeclaration("group_timeout", Flag(("--ddp_timeout",)), "1800"),
    "cpu_offload=a.yaml:offload": KnobDeclaration("cpu_offload", FileKey(Word("a.yaml"), "offload"), on="true"),
    "skip_window=--skip": KnobDeclaration("skip_window", Flag(("--skip",))),
}
WRONG = {
    "batchsize=--bs": "there is no knob 'batchsize'",
    "batch_size": "nothing says where batch_size is set",
    "batch_size=": "nothing says where",
    "batch_size:0=--bs": "neither of gpu, global, a whole number from 1",
    "num_workers:many=--w": "'many' is not a whole number from 0",
    "batch_size=bs": "is not a place",
    "batch_size=bs:3": "file of a known form",
    "batch_size=a.ini:b": "file of a known form",
    "batch_size=a.yaml:": "not a dotted key",
    "batch_size=env:3": "not a name of a variable",
    "batch_size=env:SUPERVISE_JOB_RESUME_FROM": "cannot carry a batch_size to the script; the script may read $SUPERVISE_JOB_BATCH_SIZE",
    "batch_size=env:SUPERVISE_JOB_GRAD_ACCUM": "to the script",
    "num_workers=env:SUPERVISE_JOB_BATCH_SIZE": "to the script",
    "batch_size=env:PYTHONPATH": "to the script",
    "batch_size=env:LOCAL_WORLD_SIZE": "to the script",
    "skip_window=env:CUDA_VISIBLE_DEVICES": "to the script",
    "batch_size=--set bs=1": "not a flag with a value that holds {batch_size}",
    "num_workers=deepspeed:ds.json": "DeepSpeed's file holds batch_size and grad_accum",
    "resume=--resume": "--resume-args",
    "batch_size=--!": "is not a flag",
}


@pytest.mark.parametrize("text", RIGHT)
def test_a_knob_is_declared(text: str) -> None:
    assert parse(text) == RIGHT[text]


@pytest.mark.parametrize("text", WRONG)
def test_an_impossible_declaration_names_the_cause(text: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  the text is compared below
        parse(text)
    assert WRONG[text] in str(error.value)


def test_every_knob_can_be_declared() -> None:
    assert {declared.name for declared in RIGHT.values()} == set(NAMES) - {"resume"}
