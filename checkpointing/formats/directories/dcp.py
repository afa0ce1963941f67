"""A directory that torch.distributed.checkpoint wrote: `.metadata`, and shards `__<rank>_<n>.distcp` with one item after the other.

The metadata names every item, its shard, and where it lies there. An item is a file of torch.save's, so each has its own CRCs. The checks:
the metadata is whole; each shard is there; items lie within their shard without overlap or gap; each tensor's pieces make up all of it.
With `bulk` each item is checked by itself. The metadata has no checksum, and a shard does not say which save it is of: a manifest
(docs/reference/checkpoint-format.md) does.

DCP writes the metadata last, so a directory without it is a save that did not end. A save over an existing directory overwrites the shards
first. If it is killed, the old metadata stays with new shards: `_of_two_saves` sees that by the times of the files.
"""

from __future__ import annotations

import math
import os
import re
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from checkpointing.formats import NOWHERE, Examination, PartExamination, StepPosition, combine, torch_zip, zip_layout
from checkpointing.formats.directories import dcp_metadata
from checkpointing.formats.pickles import facts, scanner
from checkpointing.formats.pickles.facts import Number
from checkpointing.io import birth_time
from checkpointing.io.reader import Short
from checkpointing.model import MOST_NAME, Verdict, first_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from checkpointing.formats.directories.dcp_metadata import Item, Metadata
    from checkpointing.io.reader import FileReader
    from checkpointing.io.tree import Tree
    from checkpointing.model import NonFinite

METADATA: Final = ".metadata"
_TEMPORARY: Final = ".metadata.tmp"
_SHARD: Final = ".distcp"
_HOLDERS: Final = frozenset(("train_state", "trainer", "trainer_state", "progress", "state", "extra", "meta", "metadata", "loop", "app"))
_MOST_STEP_BYTES: Final = 1 << 16
_MOST_REPORTED: Final = 20
_STEPPED: Final = re.compile(r"(^|\.)state\.(.+\.)?step$")
_MOST_COUNTS: Final = 64
_CLOCKS_NS: Final = 60_000_000_000  # by how much the clocks of two nodes may differ
_FASTEST_BYTES_PER_NS: Final = 10.0  # no disk takes more
_SCALARS: Final = {"LongStorage": "<q", "IntStorage": "<i", "ShortStorage": "<h", "FloatStorage": "<f", "DoubleStorage": "<d"}


def claims(tree: Tree) -> bool:
    """Claim a directory with the metadata, or with a shard."""
    return any(name in (METADATA, _TEMPORARY) or name.endswith(_SHARD) for name in tree.top())


def examine(tree: Tree, *, bulk: bool) -> Examination:  # noqa: PLR0911 -- each is another answer
    """Check metadata and shards, and with `bulk` every item. Raises OSError and Interrupted."""
    entry = tree.entries.get(METADATA)
    if entry is None:
        return Examination(Verdict.INCOMPLETE, f"{METADATA} is missing: the save did not end")
    if entry.what:
        return Examination(Verdict.UNVERIFIABLE, f"{METADATA} is {entry.what}: it was not read")
    if entry.size > dcp_metadata.MOST_BYTES:
        return Examination(Verdict.UNVERIFIABLE, f"{METADATA} has {entry.size} bytes: it was not read")
    try:
        metadata = dcp_metadata.read(tree.read_small(METADATA, dcp_metadata.MOST_BYTES), tree.interrupted)
    except dcp_metadata.Dangerous as error:
        return Examination(Verdict.DANGEROUS, f"loading it would run code: {METADATA}: {error}")
    except dcp_metadata.MetadataDamaged as error:
        return Examination(Verdict.BAD, f"{METADATA}: {error}")
    except dcp_metadata.TooLarge as error:
        return Examination(Verdict.UNVERIFIABLE, f"{METADATA}: {error}: it was not read")
    except Short:
        return Examination(Verdict.BAD, f"{METADATA} became shorter while it was read")
    shards = _by_shard(metadata)
    parts = [*_gaps_in(metadata), *_missing(tree, shards)]
    if not parts:
        parts = [part for name, items in shards.items() for part in _lay_out(tree, name, items)]
    if not parts:
        parts = [*_of_two_saves(tree, shards), *_examine_items(tree, shards, bulk=bulk)]
        parts += _of_two_steps(tree, shards) if bulk else []
    return combine(
        [*parts, *_notes(tree, shards)], _place(tree, shards), format="fsdp" if "fsdp" in tree.name else "", files=_files(tree, shards)
    )


def examine_part(tree: Tree) -> PartExamination | None:
    """Check the shards that are here: with the metadata if this node has it, else each as one whole item after the other."""
    if tree.file(METADATA) is None:
        return _examine_shards(tree)
    try:
        metadata = dcp_metadata.read(tree.read_small(METADATA, dcp_metadata.MOST_BYTES), tree.interrupted)
    except (dcp_metadata.Dangerous, dcp_metadata.MetadataDamaged, dcp_metadata.TooLarge, Short):
        return None
    shards = _by_shard(metadata)
    present = {name: items for name, items in shards.items() if name in tree.entries}
    absent = tuple((name, items[-1].offset + items[-1].length) for name, items in shards.items() if name not in present)
    if not absent or any("/" in name for name, _ in absent):
        return None
    parts = [
        *_gaps_in(metadata),
        *_missing(tree, present),
        *(part for name, items in present.items() for part in _lay_out(tree, name, items)),
    ]
    if not parts:
        parts = [*_of_two_saves(tree, present), *_examine_items(tree, present, bulk=True), *_of_two_steps(tree, present)]
    examination = combine(parts, _place(tree, present), format="fsdp" if "fsdp" in tree.name else "", files=_files(tree, present))
    return PartExamination(examination, absent, leads=True)


def _examine_shards(tree: Tree) -> PartExamination | None:
    """Check shards without the metadata, which only the node of rank 0 writes."""
    names = sorted(name for name in tree.files if name.endswith(_SHARD) and "/" not in name)
    if not names or METADATA in tree.entries or _TEMPORARY in tree.entries:
        return None
    files = tuple(name for name in tree.files if not name.endswith(".tmp"))
    examination = combine([part for name in names for part in _examine_unlisted(tree, name)], files=files)
    return PartExamination(replace(examination, format="fsdp" if "fsdp" in tree.name else ""), ((METADATA, None),), leads=False)


def _examine_unlisted(tree: Tree, name: str) -> Iterator[Examination]:
    """Check a shard whose items nothing lists."""
    at = 0
    with tree.open(name) as source:
        while at < source.size:
            length = zip_layout.length_at(source, at)
            if length is None or at + length > source.size:
                yield Examination(Verdict.BAD, f"{name}: torn: no item ends after byte {at} of {source.size}")
                return
            try:
                examination = torch_zip.examine(source.window(at, length), ".pt", bulk=True)
            except Short:
                examination = Examination(Verdict.BAD, "the shard became shorter while it was read")
            if examination.verdict is not Verdict.VERIFIED:
                yield replace(examination, reason=f"{name}: the item at byte {at}: {examination.reason}", place=NOWHERE)
                return
            at += length
    yield Examination(Verdict.VERIFIED, "", NOWHERE, torch_zip.LEVEL)


def _by_shard(metadata: Metadata) -> dict[str, list[Item]]:
    """Return the items of each shard in the order of the file."""
    shards: dict[str, list[Item]] = {}
    for item in metadata.items:
        shards.setdefault(item.file, []).append(item)
    return {name: sorted(items, key=lambda item: (item.offset, item.length)) for name, items in sorted(shards.items())}


def _gaps_in(metadata: Metadata) -> Iterator[Examination]:
    if metadata.missing:
        yield Examination(Verdict.BAD, f"{METADATA} gives no place for {first_names(metadata.missing, 3)}")
    if metadata.uncovered:
        yield Examination(Verdict.BAD, f"the pieces in {METADATA} do not make up the whole of {first_names(metadata.uncovered, 3)}")


def _missing(tree: Tree, shards: dict[str, list[Item]]) -> Iterator[Examination]:
    for name in shards:
        entry = tree.entries.get(name)
        if entry is None:
            kind = Verdict.UNVERIFIABLE if name in tree.directories or "/../" in f"/{name}/" else Verdict.INCOMPLETE
            yield Examination(kind, f"shard {name[:100]} is missing")
        elif entry.what:
            yield Examination(Verdict.UNVERIFIABLE, f"shard {name[:100]} is {entry.what}: it was not read")


def _lay_out(tree: Tree, name: str, items: list[Item]) -> Iterator[Examination]:
    """Return where the items of one shard do not fit it, or each other."""
    size, at = tree.entries[name].size, 0
    for item in items:
        if item.offset != at and not (item.length == 0 and item.offset <= at):
            yield Examination(Verdict.BAD, f"{name}: {item.name} begins at byte {item.offset} where {at} is next")
            return
        at = item.offset + item.length
        if item.plain and item.length < item.need_bytes:
            yield Examination(Verdict.BAD, f"{name}: {item.name} has {item.length} bytes, and its numbers alone take {item.need_bytes}")
            return
    if at > size:
        yield Examination(Verdict.BAD, f"{name}: torn: {size} of {at} bytes")
    elif at < size:
        yield Examination(Verdict.BAD, f"{name}: {size - at} bytes after its last item")


def _examine_items(tree: Tree, shards: dict[str, list[Item]], *, bulk: bool) -> Iterator[Examination]:
    """Examine each item as the file that torch.save made of it; without `bulk` it is enough that they exist."""
    if not bulk:
        yield Examination(Verdict.VERIFIED, "", NOWHERE, "directory")
        return
    n_bad = 0
    for name, items in shards.items():
        with tree.open(name) as source:
            for item in items:
                examination = _examine_item(source, item)
                n_bad += examination.verdict is not Verdict.VERIFIED
                if examination.verdict is not Verdict.VERIFIED or examination.reason or examination.non_finite or examination.unlisted:
                    why = f"{name}: {item.name}: {examination.reason}" if examination.reason else ""
                    yield Examination(
                        examination.verdict,
                        why,
                        NOWHERE,
                        examination.level,
                        non_finite=tuple(_named(item, examination.non_finite)),
                        unlisted=examination.unlisted,
                    )
                if n_bad > _MOST_REPORTED:
                    return
    yield Examination(Verdict.VERIFIED, "", NOWHERE, torch_zip.LEVEL)


def _named(item: Item, entries: Iterable[NonFinite]) -> Iterator[NonFinite]:
    """Call each tensor what the metadata calls its item; the pickle of a tensor by itself has no name for it."""
    for non_finite in entries:
        yield replace(
            non_finite, tensor=(item.name if non_finite.tensor.startswith("data/") else f"{item.name}.{non_finite.tensor}")[:MOST_NAME]
        )


def _examine_item(source: FileReader, item: Item) -> Examination:
    if not item.plain:
        return Examination(Verdict.UNVERIFIABLE, "it is stored in a form of its own, which is not known here")
    item_reader = source.window(item.offset, item.length)
    try:
        if item_reader.read(0, min(4, item_reader.size)) != zip_layout.LOCAL_MAGIC:
            return Examination(Verdict.BAD, "it does not begin as torch.save writes it")
        return torch_zip.examine(item_reader, ".pt", bulk=True)
    except Short:
        return Examination(Verdict.BAD, "the shard became shorter while it was read")


def _of_two_saves(tree: Tree, shards: dict[str, list[Item]]) -> Iterator[Examination]:
    """Find shards that were overwritten after the metadata was written.

    The metadata is written last, so shards that are younger are of a later save. Copying can make times that look the same, and nodes
    with clocks of their own can. So it is believed in two cases: where the metadata's time is that of the original (it is older than
    the file itself) and the shards' are younger by more than clocks differ; and where every shard was there before the metadata came to
    be, long enough to have been written whole, which no copying does that takes one after the other, or begins all at once.
    """
    metadata, birth = tree.entries[METADATA].st, birth_time.birth_time_ns(f"{tree.path}/{METADATA}")
    if birth is None:
        return
    ages = {name: tree.entries[name].st.st_mtime_ns - metadata.st_mtime_ns for name in shards}
    if metadata.st_mtime_ns + _CLOCKS_NS < birth:
        younger = tuple(name for name, age in ages.items() if age > _CLOCKS_NS)
    else:
        # major 0: a network file system, whose files can have the times of several nodes (or a virtual one)
        younger = tuple(name for name, age in ages.items() if age > (0 if os.major(metadata.st_dev) else _CLOCKS_NS))
        births = [birth_time.birth_time_ns(f"{tree.path}/{name}") for name in shards] if younger else []
        last = max((birth for birth in births if birth is not None), default=birth)
        took_ns = sum(item.length for items in shards.values() for item in items) / _FASTEST_BYTES_PER_NS
        if None in births or birth - last <= took_ns:
            return
    if younger:
        yield Examination(Verdict.BAD, f"files of two saves: {first_names(younger, 3)} is younger than {METADATA}, which is written last")


def _of_two_steps(tree: Tree, shards: dict[str, list[Item]]) -> Iterator[Examination]:
    """Find shards of different saves by the step counts that Adam and its like keep for each parameter.

    Parameters of one model can differ, so it takes two in each of two shards, the same within each and different between them.
    """
    shard_of_step: dict[float, str] = {}
    for name, items in shards.items():
        counts = [item for item in items if _STEPPED.search(item.name) and item.plain and item.length <= _MOST_STEP_BYTES]
        values = [_number(tree, item) for item in counts[:_MOST_COUNTS]]
        if len(values) > 1 and values[0] is not None and len(set(values)) == 1:
            shard_of_step.setdefault(values[0], name)
    if len(shard_of_step) > 1:
        steps = ", ".join(f"{name} of optimizer step {value:g}" for value, name in list(shard_of_step.items())[:3])
        yield Examination(Verdict.BAD, f"files of two saves: {steps}")


def _notes(tree: Tree, shards: dict[str, list[Item]]) -> Iterator[Examination]:
    extra = tuple(sorted(name for name in tree.entries if name.endswith(_SHARD) and "/" not in name and name not in shards))
    if extra:
        yield Examination(
            Verdict.VERIFIED, f"{first_names(extra, 3)} belongs to another save: nothing refers to it", NOWHERE, torch_zip.LEVEL
        )
    if _TEMPORARY in tree.entries:
        yield Examination(Verdict.VERIFIED, f"{_TEMPORARY} was left by a save that did not end", NOWHERE, torch_zip.LEVEL)


def _files(tree: Tree, shards: dict[str, list[Item]]) -> tuple[str, ...]:
    """Return the members; a temporary file and shards of another save are not. Other files there are a trainer's, and of the save."""
    return tuple(name for name in tree.files if name in shards or not (name.endswith((_SHARD, ".tmp"))))


def _place(tree: Tree, shards: dict[str, list[Item]]) -> StepPosition:
    """Return the step that an item under one of the well-known names holds."""
    small = {item.name: item for items in shards.values() for item in items if item.length <= _MOST_STEP_BYTES and item.plain}
    for key in facts.STEP_KEYS:
        for name, item in small.items():
            holder, _, last = name.rpartition(".")
            if last != key or (holder and holder not in _HOLDERS and key not in facts.RUN_KEYS):
                continue
            step = _count(tree, item)
            if step is not None and 0 <= step < 1 << 62:
                epoch = small.get(f"{holder}.epoch" if holder else "epoch")
                return StepPosition(
                    step,
                    None if epoch is None else _count(tree, epoch),
                    sure=key in facts.RUN_KEYS,
                    loose=key in facts.LOOSE_KEYS,
                )
    return NOWHERE


def _count(tree: Tree, item: Item) -> int | None:
    number = _number(tree, item)
    return int(number) if number is not None and math.isfinite(number) and number == int(number) else None


def _number(tree: Tree, item: Item) -> float | None:
    """Read an item that is a number, or a tensor of one; None for anything else, damaged ones included."""
    if tree.file(item.file) is None:
        return None
    try:
        with tree.open(item.file) as source:
            item_reader = source.window(item.offset, item.length)
            records = {record.name.partition(b"/")[2]: record for record in zip_layout.read_records(item_reader)}
            pickled = records[b"data.pkl"]
            value, machine = scanner.build(item_reader.read(pickled.data, pickled.size_bytes))
            if machine.dangers or machine.unlisted:
                return None
            if not isinstance(value, Number):
                return value if isinstance(value, int | float) and not isinstance(value, bool) else None
            storage = machine.storages[value.key]
            if storage.count != 1:
                return None
            layout = struct.Struct(_SCALARS[storage.kind.rpartition(" ")[2]])
            number: float = layout.unpack(item_reader.read(records[b"data/" + storage.key.encode()].data, layout.size))[0]
            return number
    except (
        zip_layout.ZipDamaged,
        zip_layout.NotZip,
        zip_layout.Unsupported,
        scanner.NotAPickle,
        scanner.TooLong,
        Short,
        KeyError,
    ):
        return None
