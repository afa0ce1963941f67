"""A `checkpoint-N/` of transformers' Trainer: the model's weights, and what a resumed training needs beside them.

Names (transformers/trainer.py, 4.36 to 5.23, _save_checkpoint; trainer_state.json is written last):

    model.safetensors, shards with an index, or pytorch_model.bin; adapter_model.*       the weights; under FSDP pytorch_model_fsdp_N/,
                                                                                         under DeepSpeed global_stepN/
    optimizer.pt (FSDP: optimizer.bin, optimizer_N/), scheduler.pt, rng_state.pth        all three, or none of them: save_only_model;
                                                                                         rng_state_<rank>.pth with several ranks
    trainer_state.json                                                                   its global_step is that of the directory's name
    training_args.bin, config.json and others                                            must be whole where they are there

A loop of a user's own often saves under these names. Nobody else knows its other files: those that are there must be whole.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from checkpointing.formats import NOWHERE, Examination, StepPosition, combine, examine_member, nested
from checkpointing.formats.directories import deepspeed, members, rank_shards, weights
from checkpointing.formats.pickles import facts
from checkpointing.model import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkpointing.io.tree import Tree

_NAME: Final = re.compile(r"(?:tmp-)?checkpoint-(\d{1,18})(?:\.\w+)?")
_STATE: Final = "trainer_state.json"
_ARGUMENTS: Final = "training_args.bin"
_OPTIMIZER: Final = re.compile(r"optimizer\.(pt|bin)|optimizer_\d+|optimizer\.pt\.\w+")
_SCHEDULER: Final = re.compile(r"scheduler\.(pt|bin)")
_RANDOM: Final = re.compile(r"rng_state(?:_(\d+))?\.pth")
_FSDP: Final = re.compile(r"(pytorch_model_fsdp|optimizer)_\d+")
_DEEPSPEED: Final = re.compile(r"global_step\d+")
_PICKLES: Final = re.compile(r"(optimizer|scheduler|scaler|rng_state(_\d+)?|training_args|pytorch_model_fsdp)\.(pt|pth|bin)")


def claims(tree: Tree) -> bool:
    """Claim a directory with the trainer's state, and one with the name of its checkpoints and any other file of them."""
    top = tree.top()
    if any(_NAME.fullmatch(name) for name in tree.directories if "/" not in name):
        return False  # the output directory, with checkpoints in it
    if _STATE in top:
        return True
    return _NAME.fullmatch(tree.name) is not None and any(name == _ARGUMENTS or _RANDOM.fullmatch(name) for name in top)


def examine(tree: Tree, *, bulk: bool) -> Examination:
    """Examine every file, and whether all of them are there. Raises OSError and Interrupted."""
    step, epoch, parts = _read_state(tree)
    parts += [*_weights(tree, bulk=bulk), *_beside(tree), *_files(tree, bulk=bulk), *_deepspeed(tree, bulk=bulk)]
    named = _NAME.fullmatch(tree.name)
    if step is not None and named is not None and int(named[1]) != step:
        parts.append(Examination(Verdict.BAD, f"{_STATE} is of step {step}, and the directory of step {named[1]}"))
    parts += _scheduler(tree, step)
    return combine(parts, NOWHERE if step is None else StepPosition(step, epoch, sure=True))


def _read_state(tree: Tree) -> tuple[int | None, int | None, list[Examination]]:
    """Return step and epoch of the trainer's state, and its fault."""
    if tree.file(_STATE) is None:
        examination = examine_member(tree, _STATE, bulk=False)
        why = f"{_STATE} is missing: the save did not end" if examination.verdict is Verdict.INCOMPLETE else examination.reason
        return None, None, [Examination(examination.verdict, why)]
    state, problem = members.json_of(tree, _STATE)
    if problem is not None:
        return None, None, [problem]
    step = state.get("global_step") if isinstance(state, dict) else None
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        return None, None, [Examination(Verdict.BAD, f"{_STATE}: it has no global_step")]
    epoch = state.get("epoch")
    return step, int(epoch) if isinstance(epoch, float | int) and epoch == epoch else None, []  # noqa: PLR0124 -- NaN is what does not equal itself


def _weights(tree: Tree, *, bulk: bool) -> Iterator[Examination]:
    examinations = weights.examine(tree, bulk=bulk)
    are_elsewhere = any(name.startswith("pytorch_model_fsdp") or _DEEPSPEED.fullmatch(name) for name in tree.top())
    yield from examinations or ([] if are_elsewhere else [members.NO_WEIGHTS])
    yield from members.examine_sharded(tree, _FSDP, bulk=bulk)


def _beside(tree: Tree) -> Iterator[Examination]:
    """Return what a resumed training would miss. Each node has the random states of its own ranks, so they may begin anywhere."""
    top = tree.top()
    optimizer = any(_OPTIMIZER.fullmatch(name) or _DEEPSPEED.fullmatch(name) for name in top)
    scheduler = any(_SCHEDULER.fullmatch(name) for name in top)
    ranks = [match[1] for name in sorted(top) if (match := _RANDOM.fullmatch(name))]
    if (not optimizer and not scheduler and not ranks) or not _is_the_trainers(tree):
        return  # save_only_model, or what the script alone knows
    if not optimizer:
        yield Examination(Verdict.INCOMPLETE, "optimizer.pt is missing")
    if not scheduler and not any(_DEEPSPEED.fullmatch(name) for name in top):
        yield Examination(Verdict.INCOMPLETE, "scheduler.pt is missing")
    if not ranks:
        yield Examination(Verdict.INCOMPLETE, "rng_state.pth is missing")
    absent = members.first_gap({int(rank) for rank in ranks if rank is not None})
    if absent is not None:
        yield Examination(Verdict.INCOMPLETE, f"rng_state_{absent}.pth is missing")


def _is_the_trainers(tree: Tree) -> bool:
    """Return whether the Trainer saved this: a script that saves under the same names writes neither its arguments nor its log."""
    if _ARGUMENTS in tree.top() or tree.file(_STATE) is None:
        return True
    state, _ = members.json_of(tree, _STATE)
    return isinstance(state, dict) and "log_history" in state


def _files(tree: Tree, *, bulk: bool) -> Iterator[Examination]:
    """Examine the files beside the weights, each by itself."""
    yield from members.examine_beside(tree, _PICKLES, bulk=bulk)
    for name in sorted(name for name in tree.entries if bulk and "/" not in name and name.endswith(".json")):
        if name != _STATE and not name.endswith(weights.INDEX) and tree.file(name) is not None:
            _, problem = members.json_of(tree, name)
            if problem is not None:
                yield problem


def _deepspeed(tree: Tree, *, bulk: bool) -> Iterator[Examination]:
    """Examine DeepSpeed's own directory, which the file `latest` next to it names."""
    steps = sorted(name for name in tree.directories if _DEEPSPEED.fullmatch(name))
    for name in steps:
        examination = deepspeed.examine(tree.sub(name), bulk=bulk)
        yield nested(name, examination)
    if tree.file("latest") is not None:
        latest = tree.read_small("latest", 1 << 12).decode("utf-8", "replace").strip()
        if latest not in steps:
            yield Examination(Verdict.INCOMPLETE, f"latest names {latest[:80] or 'nothing'}, which is not there")
    elif steps:
        yield Examination(Verdict.INCOMPLETE, "latest is missing: DeepSpeed writes it last")


def _scheduler(tree: Tree, step: int | None) -> Iterator[Examination]:
    """Find a scheduler that is ahead of the trainer. It may be behind: it makes no step where an optimizer step was skipped."""
    if step is None or tree.file("scheduler.pt") is None:
        return
    last = rank_shards.integer_outermost(rank_shards.scan_of(tree, "scheduler.pt"), "last_epoch")
    counted = rank_shards.integer_anywhere(rank_shards.scan_of(tree, "optimizer.pt"), facts.COUNTED)
    # where a step is skipped, the scheduler pauses with the optimizer; where both begin anew, neither has the count of the trainer;
    # and an optimizer put together by hand has a count that no save has
    if last == step and counted is not None and counted != step and _was_saved(tree, counted):
        yield Examination(Verdict.BAD, f"optimizer.pt is of step {counted}, {_STATE} and scheduler.pt of step {step}: files of two saves")
    if last is not None and last > step:
        yield Examination(Verdict.BAD, f"scheduler.pt is of step {last}, and {_STATE} of step {step}: files of two saves")


def _was_saved(tree: Tree, step: int) -> bool:
    """Return whether the trainer saves at this step: its own interval tells, or the directory of that save."""
    beside = os.path.join(os.path.dirname(os.path.abspath(tree.path)), f"checkpoint-{step}")  # noqa: PTH100, PTH118, PTH120 -- strings throughout the package
    if os.path.isdir(beside):  # noqa: PTH112 -- as above
        return True
    state, _ = members.json_of(tree, _STATE)
    every = state.get("save_steps") if isinstance(state, dict) else None
    return isinstance(every, int) and every > 0 and step > 0 and step % every == 0
