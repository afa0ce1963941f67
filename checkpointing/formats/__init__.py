"""The formats that checkpoints come in: one row per format, one file per row, imported when a file is met that needs it.

A format says whether a file, or a directory, is its own (`claims`) and examines its content (`examine`). It raises nothing about it: what
is wrong with it is the answer. A format's result is about bytes only; identity, changes while reading and the names of
checkpoints are `verify`'s. The format of a directory hands its files to the formats of files (`examine_member`): what makes a file whole
is decided in one place.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, cast

from checkpointing import step_names
from checkpointing.io.reader import NotRegular, Short
from checkpointing.model import NonFinite, Verdict, listed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from checkpointing.io.reader import FileReader
    from checkpointing.io.tree import Tree


@dataclass(frozen=True, slots=True)
class StepPosition:
    """Where in the training a file says it was saved.

    `step` is None where it does not; `sure`: the step counts the whole run. `loose`: it may as well count something else.
    """

    step: int | None = None
    epoch: int | None = None
    sure: bool = False
    loose: bool = False


NOWHERE: Final = StepPosition()


@dataclass(frozen=True, slots=True)
class Examination:
    """The finding of a format: the verdict, its reason, and the step and epoch in the content.

    `level` as in model.Verification. `also` are further reasons. `format` is set where the row's own name would say too little.
    `files` are the members of a directory that belong to the checkpoint; () means all that are in it. `non_finite` are tensors that
    hold NaN or Inf: a note, whatever the verdict. `unlisted` is what its pickles would call beyond the list of known names:
    `verify` decides about that, because it depends on who wrote the file.
    """

    verdict: Verdict
    reason: str = ""
    place: StepPosition = NOWHERE
    level: str = ""
    also: tuple[str, ...] = ()
    format: str = ""
    files: tuple[str, ...] = ()
    non_finite: tuple[NonFinite, ...] = ()
    unlisted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartExamination:
    """The finding of a format in a directory that is a part of a checkpoint: the other files lie on the disks of other nodes.

    present: about the files here; VERIFIED says that each of them is whole. absent: the missing files, as (relative path, size in bytes or
    None). leads: the files here show which files there must be.
    """

    present: Examination
    absent: tuple[tuple[str, int | None], ...]
    leads: bool


class Format(Protocol):
    """The interface of a file's format."""

    def claims(self, head: bytes, tail: bytes, suffix: str) -> bool:
        """Return whether a file is this format's by its first EDGE_BYTES, its last, and its suffix (names.suffix_of)."""

    def examine(self, source: FileReader, suffix: str, *, bulk: bool) -> Examination:
        """Examine the file; without `bulk`, its directory and metadata only, and then VERIFIED says no more than that.

        `source` may be a window of a file. Raises OSError and Interrupted.
        """


class TreeFormat(Protocol):
    """The interface of a directory's format."""

    def claims(self, tree: Tree) -> bool:
        """Return whether a directory is this format's, by the names directly in it: often no more was listed yet (Tree.names_of)."""

    def examine(self, tree: Tree, *, bulk: bool) -> Examination:
        """Examine everything that must be there; without `bulk` as for a file. Raises OSError, Interrupted."""


class PartFormat(Protocol):
    """The further interface of a directory's format, if a part of it may lie on each node's own disk."""

    def examine_part(self, tree: Tree) -> PartExamination | None:
        """Examine the files that are here; None if none is missing, or if nothing shows that it is a part. Raises OSError, Interrupted."""


EDGE_BYTES: Final = 512
TORCH_SUFFIXES: Final = (".pt", ".pth", ".ckpt")  # a file with such a name is meant to be a checkpoint, whatever is in it
# The order is that of asking. Each format, and its checks.
FORMATS: Final = (
    # `torch.save` since 1.6, or an archive of such files (stable-baselines3's `.zip`; `lightning`: with `pytorch-lightning_version` in it):
    # the list above, and the numbers; in an archive each member, and the checksums of what lies beside them
    ("torch_zip", "checkpointing.formats.torch_zip"),
    # `torch.save` before, or with `_use_new_zipfile_serialization=False`: magic number, each pickle to its end, the list of storages
    # against those that the objects refer to, each storage's count, the file's length to the byte, the numbers
    ("torch_legacy", "checkpointing.formats.torch_legacy"),
    # one file: header, no gap and no overlap, length to the byte, the numbers
    ("safetensors", "checkpointing.formats.safetensors"),
    # any other pickle: nothing in it proves that it is whole
    ("plain_pickle", "checkpointing.formats.plain_pickle"),
    # any other file that is named like a checkpoint: nothing in it proves that it is whole
    ("unproven", "checkpointing.formats.unrecognised"),
)
TREE_FORMATS: Final = (
    # `global_step500/`: as many shards as `dp_world_size` and `mp_world_size` say, none of another world or step, which the optimizer
    # counts for itself
    ("deepspeed", "checkpointing.formats.directories.deepspeed"),
    # `iter_0000500/` or `release/`: a directory for each pair of ranks that the saved arguments tell, the same files in each, one
    # iteration; DCP directories with `common.pt`
    ("megatron", "checkpointing.formats.directories.megatron"),
    # `checkpoint-500/` of transformers' Trainer: weights; `trainer_state.json`, which is written last, and its step that of the name;
    # optimizer, scheduler and random states of each rank, or none of the three, of one step as far as they count theirs (a script that
    # saves under these names, without the Trainer's `training_args.bin` and log, needs none of them); DeepSpeed's and FSDP's directories in
    # it
    ("hf_trainer", "checkpointing.formats.directories.hf_trainer"),
    # a directory of `save_state`: weights, DCP directories in it, `random_states_<rank>.pkl`, which is written last
    ("accelerate", "checkpointing.formats.directories.accelerate"),
    # one torch file for each rank (`model_world_size_4_rank_3.pt`): a file of each rank, all of one step
    ("fsdp", "checkpointing.formats.directories.fsdp_rank_files"),
    # a directory of `torch.distributed.checkpoint`: `.metadata` without running it; every shard; items one after the other to the shard's
    # end; a tensor's pieces make up all of it; each item as `torch_zip`; shards of a later save, where the files' times or the optimizer's
    # counts of steps tell them
    ("dcp", "checkpointing.formats.directories.dcp"),
    # shards with `model.safetensors.index.json` or `pytorch_model.bin.index.json`: every shard of the index and the tensors that it puts
    # there, each as `safetensors`
    ("safetensors_index", "checkpointing.formats.directories.safetensors_index"),
    # any other directory of one save: each file by its own format, JSON as JSON, directories in it by theirs; that none is missing
    ("file_set", "checkpointing.formats.directories.file_set"),
)


#: The formats of which each node may hold a part on its own disk; their modules offer `examine_part`.
PART_FORMATS: Final = ("dcp", "deepspeed")


def examine_part(tree: Tree) -> PartExamination | None:
    """Return what a directory holds of a checkpoint that lies on the disks of several nodes.

    None if it is whole, if it is not a part, or if its format is not in PART_FORMATS. Raises OSError and Interrupted.
    """
    claimant = tree_format_of(tree)
    if claimant is None or claimant[0] not in PART_FORMATS:
        return None
    part_examination = cast("PartFormat", claimant[1]).examine_part(tree)
    return (
        None
        if part_examination is None
        else replace(part_examination, present=replace(part_examination.present, format=part_examination.present.format or claimant[0]))
    )


def format_of(head: bytes, tail: bytes, suffix: str) -> tuple[str, Format] | None:
    """Return name and module of the first format that claims the file; None where none does."""
    for name, module in FORMATS:
        candidate = cast("Format", importlib.import_module(module))
        if candidate.claims(head, tail, suffix):
            return name, candidate
    return None


def tree_format_of(tree: Tree) -> tuple[str, TreeFormat] | None:
    """Return name and module of the first format that claims the directory; None where none does."""
    for name, module in TREE_FORMATS:
        candidate = cast("TreeFormat", importlib.import_module(module))
        if candidate.claims(tree):
            return name, candidate
    return None


def examine_file(source: FileReader, path: str, *, bulk: bool) -> Examination:
    """Let the format that claims a file look at it; `path` is for its suffix alone. Raises OSError and Interrupted."""
    suffix, edge = step_names.suffix_of(path), min(EDGE_BYTES, source.size)
    try:
        head, tail = source.read(0, edge), source.read(source.size - edge, edge)
        claimant = format_of(head, tail, suffix)
        if claimant is None:
            return Examination(Verdict.FOREIGN, "not a checkpoint of any format that is known here")
        examination = claimant[1].examine(source, suffix, bulk=bulk)
    except Short:  # it shrank meanwhile, which a second stat will show
        return Examination(Verdict.BAD, "the file became shorter while it was read")
    return examination if examination.format else replace(examination, format=claimant[0])


def examine_member(tree: Tree, name: str, *, bulk: bool) -> Examination:
    """Examine one file of a directory by itself; its name is before each reason. Raises OSError and Interrupted."""
    entry = tree.entries.get(name)
    if entry is None:
        return Examination(Verdict.INCOMPLETE, f"{name} is missing")
    if entry.what:
        return Examination(Verdict.UNVERIFIABLE, f"{name} is {entry.what}: it was not read")
    try:
        with tree.open(name) as source:
            examination = examine_file(source, name, bulk=bulk)
    except (NotRegular, FileNotFoundError):  # it was replaced or removed meanwhile, which a second listing will show
        return Examination(Verdict.INCOMPLETE, f"{name} went away while it was read")
    also = tuple(f"{name}: {reason}" for reason in examination.also)
    return replace(
        examination,
        reason=f"{name}: {examination.reason}" if examination.reason else "",
        also=also,
        non_finite=prefixed(f"{name}: ", examination.non_finite),
    )


def nested(name: str, examination: Examination) -> Examination:
    """Make the examination of a directory a part of the one that holds it under `name`."""
    reason = f"{name}: {examination.reason}" if examination.reason else ""
    return replace(examination, reason=reason, place=NOWHERE, format="", files=(), non_finite=prefixed(f"{name}/", examination.non_finite))


def prefixed(prefix: str, entries: Iterable[NonFinite]) -> tuple[NonFinite, ...]:
    """Return the same with names that tell which part of a checkpoint they are in."""
    return tuple(replace(non_finite, tensor=f"{prefix}{non_finite.tensor}") for non_finite in entries)


# What one part of a checkpoint is, the whole is: in this order, the first that occurs.
_GRAVEST: Final = (
    Verdict.DANGEROUS,
    Verdict.BAD,
    Verdict.INCOMPLETE,
    Verdict.WRITING,
    Verdict.UNKNOWN,
    Verdict.UNVERIFIABLE,
    Verdict.FOREIGN,
)
_LEVELS: Final = ("directory", "layout", "structure")  # the weakest first
_MOST_REASONS: Final = 20


def combine(parts: Iterable[Examination], place: StepPosition = NOWHERE, *, format: str = "", files: tuple[str, ...] = ()) -> Examination:  # noqa: A002 -- the field's name
    """Make one answer of those about the parts of a directory: the gravest verdict, its reasons first, the weakest level.

    A part that nothing can prove makes the whole unverifiable; leave out what does not belong to the checkpoint.
    """
    examined = list(parts)
    present = {examination.verdict for examination in examined}
    verdict = next((grade for grade in _GRAVEST if grade in present), Verdict.VERIFIED)
    ordered = [examination for examination in examined if examination.verdict is verdict] + [
        examination for examination in examined if examination.verdict is not verdict
    ]
    reasons = list(dict.fromkeys(why for examination in ordered for why in (examination.reason, *examination.also) if why))
    if len(reasons) > _MOST_REASONS:
        reasons[_MOST_REASONS:] = [f"and {len(reasons) - _MOST_REASONS} more"]
    levels = [examination.level for examination in examined if examination.level]
    level = min(levels, key=_LEVELS.index, default="layout") if verdict is Verdict.VERIFIED else ""
    unlisted = tuple(dict.fromkeys(call for examination in examined for call in examination.unlisted))[:_MOST_REASONS]
    non_finite = listed(non_finite for examination in examined for non_finite in examination.non_finite)
    return Examination(verdict, next(iter(reasons), ""), place, level, tuple(reasons[1:]), format, files, non_finite, unlisted)
