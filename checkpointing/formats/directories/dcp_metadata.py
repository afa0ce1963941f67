"""Reads a DCP `.metadata` without running it.

The file is a pickle, and torch gives it to pickle.load, which runs whatever is in it. Only the names in
`_LISTED` are allowed, even in a file that this job wrote itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from checkpointing.formats.pickles import policy, scanner
from checkpointing.formats.pickles.machine import GlobalName, RetainedObject
from checkpointing.io.reader import never

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MOST_BYTES: Final = 256 << 20
#: A normal file needs about 70 opcodes per piece of a tensor. A malicious one can make us use 80 bytes of memory per opcode.
MOST_OPCODES: Final = 32 << 20


class MetadataDamaged(Exception):  # noqa: N818 -- a fact about the file, not a program error
    """The file is not a whole pickle, or not one of DCP's metadata."""


class TooLarge(Exception):  # noqa: N818 -- a fact about the file, not a program error
    """The pickle has more opcodes than MOST_OPCODES."""


class Dangerous(Exception):  # noqa: N818 -- a fact about the file, not a program error
    """The pickle names a function or class that no metadata needs: to load it would run code."""


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a shard. `offset` and `length` are bytes of the file; `plain`: stored as torch.save writes it, not transformed.

    `need_bytes` is what its numbers take, 0 where it is not a tensor or of a type that is not known here.
    """

    name: str
    file: str
    offset: int
    length: int
    need_bytes: int = 0
    plain: bool = True


@dataclass(frozen=True, slots=True)
class Metadata:
    """The required content of the checkpoint's files. `missing`: items that the metadata names but gives no place.

    `uncovered`: tensors whose pieces have fewer elements than the tensor.
    """

    items: tuple[Item, ...]
    missing: tuple[str, ...]
    uncovered: tuple[str, ...]


_ITEM_BYTES: Final = {
    **dict.fromkeys(("uint8", "int8", "bool", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32", "complex32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}


#: Every global that torch 2.1 to 2.13 and Megatron-Core write into it; dtypes (`torch bfloat16`) besides.
_LISTED: Final = {
    "torch.distributed.checkpoint.metadata": (
        "Metadata MetadataIndex TensorStorageMetadata BytesStorageMetadata ChunkStorageMetadata TensorProperties StorageMeta"
        " _MEM_FORMAT_ENCODING"
    ),
    "torch.distributed._shard.sharded_tensor.metadata": "TensorProperties MEM_FORMAT_ENCODING",
    # Megatron-Core adds each rank's plan (`all_local_plans`), to reuse the metadata of the save before
    "torch.distributed.checkpoint.planner": "SavePlan WriteItem WriteItemType TensorWriteData BytesIOWriteData",
    "torch.distributed.checkpoint.filesystem": "_StorageInfo _StoragePrefix",
    "torch.serialization": "_get_layout",
    "megatron.core.dist_checkpointing.strategies.torch": "MCoreMetadata MCoreSavePlan",
    "torch": "Size device strided sparse_coo contiguous_format preserve_format channels_last channels_last_3d",
    "collections": "OrderedDict",
    "pathlib": "PosixPath WindowsPath PurePosixPath Path",
    "pathlib._local": "PosixPath WindowsPath PurePosixPath Path",
    "builtins": "set frozenset",
    "__builtin__": "set frozenset",
    "copyreg": "_reconstructor",
    "copy_reg": "_reconstructor",
}
_LISTED_SETS: Final = {module: frozenset(names.split()) for module, names in _LISTED.items()}


_TOPS: Final = ("torch.distributed.checkpoint.metadata Metadata", "megatron.core.dist_checkpointing.strategies.torch MCoreMetadata")


def _is_listed(module: str, name: str) -> bool:
    return name in _LISTED_SETS.get(module, ()) or policy.is_dtype(module, name)


def read(raw: bytes, interrupted: Callable[[], bool] = never) -> Metadata:
    """Read a `.metadata`. Raises MetadataDamaged, Dangerous, TooLarge, Interrupted."""
    if not raw:
        raise MetadataDamaged("torn: it is empty")
    if not any(raw[:64]):
        raise MetadataDamaged("torn: it begins with zeros, so its data never reached the disk")
    top = _built(raw, interrupted)
    if not isinstance(top, RetainedObject) or top.made_by not in _TOPS:
        raise MetadataDamaged("it holds no DCP metadata")
    fields = _state(top)
    described, stored = fields.get("state_dict_metadata"), fields.get("storage_data")
    if not isinstance(described, RetainedObject) or not isinstance(stored, RetainedObject):
        raise MetadataDamaged("it names no items")
    places = dict(_places(stored))
    items, missing, uncovered = [], [], []
    for name, description in described.parts or ():
        pieces, covered = _pieces(str(name), description)
        if not covered:
            uncovered.append(str(name))
        for key, need_bytes in pieces:
            place = places.pop(key, None)
            if place is None:
                missing.append(str(name))
            else:
                items.append(Item(place.name, place.file, place.offset, place.length, need_bytes, place.plain))
    items.extend(places.values())
    return Metadata(tuple(items), tuple(dict.fromkeys(missing)), tuple(uncovered))


def _built(raw: bytes, interrupted: Callable[[], bool]) -> object:
    """Return the outermost object. Raises as `read` does."""
    problem: Exception | None = None
    top: object = None
    try:
        top, machine = scanner.build(raw, _is_listed, MOST_OPCODES, interrupted)
        dangers: Iterable[str] = machine.dangers
    except scanner.NotAPickle as error:
        dangers, problem = error.dangers, MetadataDamaged(f"it is not a whole pickle: {error}"[:200])
    except scanner.TooLong as error:
        dangers, problem = error.dangers, TooLarge(f"it has more than {MOST_OPCODES} opcodes")
    if (first := next(iter(dangers), None)) is not None:
        raise Dangerous(f"it would call {first[:100]}")
    if problem is not None:
        raise problem
    return top


_Key = tuple[str, tuple[int, ...] | None]


def _places(stored: RetainedObject) -> Any:  # noqa: ANN401 -- yields (_Key, Item)
    for index, info in stored.parts or ():
        at, where = _state(index), _state(info)
        match where:
            case {"relative_path": str(file), "offset": int(offset), "length": int(length)} if offset >= 0 and length >= 0:
                name = at.get("fqn")
                yield (
                    (str(name), _numbers(at.get("offset"))),
                    Item(str(name), file, offset, length, 0, not where.get("transform_descriptors")),
                )
            case _:
                raise MetadataDamaged("a row of its storage_data makes no sense")


def _pieces(name: str, description: object) -> tuple[list[tuple[_Key, int]], bool]:
    """Return the pieces of one item as (key, bytes), and whether they make up the whole of it."""
    if not isinstance(description, RetainedObject):
        raise MetadataDamaged(f"its entry of {name[:80]} makes no sense")
    if not description.made_by.endswith(" TensorStorageMetadata"):
        return [((name, None), 0)], True
    fields = _state(description)
    size, chunks = _numbers(fields.get("size")), fields.get("chunks")
    if size is None or not isinstance(chunks, RetainedObject):
        raise MetadataDamaged(f"its entry of {name[:80]} makes no sense")
    item_bytes = _ITEM_BYTES.get(_dtype(fields.get("properties")), 0)
    pieces: list[tuple[_Key, int]] = []
    total = 0
    for _, chunk in chunks.parts or ():
        piece = _state(chunk)
        offsets, sizes = _numbers(piece.get("offsets")), _numbers(piece.get("sizes"))
        if offsets is None or sizes is None:
            raise MetadataDamaged(f"its entry of {name[:80]} makes no sense")
        total += math.prod(sizes)
        pieces.append(((name, offsets), math.prod(sizes) * item_bytes))
    return pieces, total >= math.prod(size)


def _state(pickled: object) -> dict[str, Any]:
    """Return an object's fields. A class with slots is pickled with the state (None, {field: value})."""
    state = pickled.state if isinstance(pickled, RetainedObject) else None
    if isinstance(state, tuple) and len(state) == 2:  # noqa: PLR2004 -- a pair
        state = state[1]
    return {key: value for key, value in state.parts or () if isinstance(key, str)} if isinstance(state, RetainedObject) else {}


def _numbers(size: object) -> tuple[int, ...] | None:
    """Return a torch.Size as numbers; None if it is None or not a valid size."""
    if isinstance(size, RetainedObject) and size.made_by and len(size.arguments) <= 1:
        size = size.arguments[0] if size.arguments else ()
    if isinstance(size, RetainedObject) and not size.made_by:
        size = tuple(number for _, number in size.parts or ())
    if not isinstance(size, tuple) or not all(isinstance(number, int) and number >= 0 for number in size):
        return None
    return tuple(size)


def _dtype(properties: object) -> str:
    """Return the dtype's name, "" for none. TensorProperties is written as a tuple of its values, the dtype first."""
    if not isinstance(properties, RetainedObject):
        return ""
    dtype: object = _state(properties).get("dtype")
    if isinstance(properties.state, tuple) and properties.state:
        dtype = properties.state[0]
    return dtype.name.rpartition(" ")[2] if isinstance(dtype, GlobalName) else ""
