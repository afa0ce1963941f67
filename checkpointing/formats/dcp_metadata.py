"""What a DCP `.metadata` says, read without running it.

In: its bytes. Out: `Metadata`: the items, where each lies, how long a tensor's piece is. Raises `MetadataDamaged`, `Dangerous`, `TooLarge`.

The file is a pickle, and torch's own reader gives it to pickle.load, which runs whatever stands in it. So what it may name is a closed
list (`_LISTED`), whoever wrote it. Here every global becomes an empty class of ours: a call then makes an empty object, and nothing that
a file names is ever imported.

Tables and sets become lists of rows, so that no key is hashed (a nested tuple can take for ever to hash). The unpickler is the
one of the standard library that is written in Python: the other fills an array up to any memo index that a file names.
"""

from __future__ import annotations

import io
import math
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from checkpointing.formats.pickles import policy
from checkpointing.io.reader import Interrupted, never

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_BYTES: Final = 256 << 20
#: A piece of a tensor takes about 70 opcodes; a file that is built to hurt takes 80 bytes of memory for each.
MOST_OPCODES: Final = 32 << 20
_ASKED_EACH: Final = 1 << 14


class MetadataDamaged(Exception):  # noqa: N818 -- a fact about the file, not an error of ours
    """It is not a whole pickle, or not one of DCP's metadata."""


class TooLarge(Exception):  # noqa: N818 -- a fact about the file, not an error of ours
    """It has more opcodes than we are willing to build."""


class Dangerous(Exception):  # noqa: N818 -- a fact about the file, not an error of ours
    """It names what no metadata needs, and what would run code."""


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a shard. `offset` and `length` are bytes of the file; `plain`: stored as torch.save writes it, not transformed.

    `need_bytes` is what its numbers take, 0 where it is no tensor or of a type that is not known here.
    """

    name: str
    file: str
    offset: int
    length: int
    need_bytes: int = 0
    plain: bool = True


@dataclass(frozen=True, slots=True)
class Metadata:
    """What must be there. `missing` are items that the metadata names but gives no place; `uncovered` tensors whose pieces leave gaps.

    `saved_as` is the last part of the path that it was saved under, "" where it does not say.
    """

    items: tuple[Item, ...]
    missing: tuple[str, ...]
    uncovered: tuple[str, ...]
    saved_as: str = ""


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
    "torch.distributed.checkpoint.filesystem": "_StorageInfo _StoragePrefix",
    "torch.serialization": "_get_layout",
    "megatron.core.dist_checkpointing.strategies.torch": "MCoreMetadata",
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


def _is_listed(module: str, name: str) -> bool:
    return name in _LISTED_SETS.get(module, ()) or policy.is_dtype(module, name)


class _Empty:
    """What stands for an object of any class: what it was made of, and the state that it was given."""

    __slots__ = ("args", "state")
    kind: ClassVar[str] = ""
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: object) -> _Empty:  # noqa: PYI034 -- as pickle calls it
        made = super().__new__(cls)
        made.args, made.state = args, None
        return made

    def __init__(self, *_args: object) -> None:
        """Take what a call gives; __new__ has kept it."""

    def __setstate__(self, state: object) -> None:
        self.state = state

    def fields(self) -> dict[str, Any]:
        """Give the attributes by name, as far as the state is a table."""
        return self.state.as_dict() if isinstance(self.state, _Rows) else {}


class _Rows:
    """What stands for a dictionary or a set: its rows in order, nothing hashed."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: list[tuple[Any, Any]] = []

    def __setitem__(self, key: object, value: object) -> None:
        self.rows.append((key, value))

    def add(self, value: object) -> None:
        self.rows.append((value, None))

    def as_dict(self) -> dict[str, Any]:
        """Give the rows whose key is a text."""
        return {key: value for key, value in self.rows if isinstance(key, str)}


class _Counted(dict[int, Any]):
    """The table of opcodes, which counts how often it is asked. Raises TooLarge, Interrupted."""

    def __init__(self, table: dict[int, Any], interrupted: Callable[[], bool]) -> None:
        super().__init__(table)
        self._left, self._interrupted = MOST_OPCODES, interrupted

    def __getitem__(self, code: int) -> Any:  # noqa: ANN401 -- pickle's interface
        self._left -= 1
        if self._left <= 0:
            raise TooLarge(f"it has more than {MOST_OPCODES} opcodes")
        if self._left % _ASKED_EACH == 0 and self._interrupted():
            raise Interrupted
        return super().__getitem__(code)


class _MetadataReader(pickle._Unpickler):  # noqa: SLF001 -- see the module's head; typeshed and CPython's own tests use this name
    """Builds empty objects."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)  # noqa: SLF001 -- as above

    def __init__(self, raw: bytes, interrupted: Callable[[], bool], *, closed: bool) -> None:
        super().__init__(io.BytesIO(raw))
        self.dispatch = _Counted(type(self).dispatch, interrupted)  # type: ignore[misc]  # of this one alone
        self._made: dict[tuple[str, str], type[_Empty]] = {}
        self._closed = closed
        self._memory = 0

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 -- pickle's interface
        judgement = policy.judge(module, name)
        unsafe = (policy.Judgement.DANGEROUS, policy.Judgement.UNLISTED)
        refused = judgement in unsafe or policy.is_method(module, name)
        if refused or (self._closed and not _is_listed(module, name)):
            text = f"{module}.{name}"[:100]
            raise Dangerous(f"it would call {text}")
        key = (module, name)
        if key not in self._made:
            self._made[key] = type("Empty", (_Empty,), {"kind": f"{module}.{name}", "__slots__": ()})
        return self._made[key]

    def persistent_load(self, pid: Any) -> Any:  # noqa: ANN401 -- pickle's interface
        return pid

    def load_rows(self) -> None:
        self.append(_Rows())  # type: ignore[attr-defined]  # pickle's own attributes, which typeshed leaves out

    def load_marked_rows(self) -> None:
        rows, items = _Rows(), self.pop_mark()  # type: ignore[attr-defined]  # as above
        for key, value in zip(items[::2], items[1::2], strict=False):
            rows[key] = value
        self.append(rows)  # type: ignore[attr-defined]  # as above

    def load_marked_set(self) -> None:
        rows = _Rows()
        for value in self.pop_mark():  # type: ignore[attr-defined]  # as above
            rows.add(value)
        self.append(rows)  # type: ignore[attr-defined]  # as above

    def load_extension(self) -> NoReturn:
        """Refuse what a registry of this process would name."""
        raise MetadataDamaged("it uses extension codes")


for _opcode, _method in (
    (pickle.EMPTY_DICT, _MetadataReader.load_rows),
    (pickle.EMPTY_SET, _MetadataReader.load_rows),
    (pickle.DICT, _MetadataReader.load_marked_rows),
    (pickle.FROZENSET, _MetadataReader.load_marked_set),
    (pickle.EXT1, _MetadataReader.load_extension),
    (pickle.EXT2, _MetadataReader.load_extension),
    (pickle.EXT4, _MetadataReader.load_extension),
):
    _MetadataReader.dispatch[_opcode[0]] = _method


def build(raw: bytes, interrupted: Callable[[], bool] = never, *, closed: bool = False) -> Any:  # noqa: ANN401 -- whatever the pickle says
    """Build what a pickle says out of empty objects, rows and plain values.

    Raises MetadataDamaged, Dangerous, TooLarge, Interrupted.

    `closed`: it may name nothing but what a `.metadata` holds.
    """
    try:
        return _MetadataReader(raw, interrupted, closed=closed).load()
    except (Dangerous, MetadataDamaged, TooLarge, Interrupted):
        raise
    except Exception as error:  # noqa: BLE001 -- a pickle can make any error: of types, of values, of memory, of recursion
        raise MetadataDamaged(f"it is not a whole pickle: {type(error).__name__}: {str(error)[:80]}") from None


def scalar_storage(value: object) -> tuple[str, str] | None:
    """Give storage type and key of what `build` made of a tensor whose storage holds a single number; None for anything else."""
    match value:
        case _Empty(args=(("storage", type() as kind, str(key), _, 1, *_), 0, *_)) if issubclass(kind, _Empty):
            return kind.kind, key
        case _:
            return None


def read(raw: bytes, interrupted: Callable[[], bool] = never) -> Metadata:
    """Read a `.metadata`. Raises MetadataDamaged, Dangerous, TooLarge, Interrupted."""
    if not raw:
        raise MetadataDamaged("torn: it is empty")
    if not any(raw[:64]):
        raise MetadataDamaged("torn: it begins with zeros, so its data never reached the disk")
    top = build(raw, interrupted, closed=True)
    if not isinstance(top, _Empty) or not top.kind.endswith(".Metadata"):
        raise MetadataDamaged("it holds no DCP metadata")
    fields = top.fields()
    described, stored = fields.get("state_dict_metadata"), fields.get("storage_data")
    if not isinstance(described, _Rows) or not isinstance(stored, _Rows):
        raise MetadataDamaged("it names no items")
    places = dict(_places(stored))
    items, missing, uncovered = [], [], []
    for name, what in described.rows:
        pieces, covered = _pieces(str(name), what)
        if not covered:
            uncovered.append(str(name))
        for key, need_bytes in pieces:
            place = places.pop(key, None)
            if place is None:
                missing.append(str(name))
            else:
                items.append(Item(place.name, place.file, place.offset, place.length, need_bytes, place.plain))
    items.extend(places.values())
    return Metadata(tuple(items), tuple(dict.fromkeys(missing)), tuple(uncovered), _saved_as(fields.get("storage_meta")))


_Key = tuple[str, tuple[int, ...] | None]


def _places(stored: _Rows) -> Any:  # noqa: ANN401 -- yields (_Key, Item)
    for index, info in stored.rows:
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


def _pieces(name: str, what: object) -> tuple[list[tuple[_Key, int]], bool]:
    """Give the pieces of one item as (key, bytes), and whether they make up the whole of it."""
    if not isinstance(what, _Empty):
        raise MetadataDamaged(f"what it says about {name[:80]} makes no sense")
    if not what.kind.endswith("TensorStorageMetadata"):
        return [((name, None), 0)], True
    fields = _state(what)
    size, chunks = _numbers(fields.get("size")), fields.get("chunks")
    if size is None or not isinstance(chunks, list):
        raise MetadataDamaged(f"what it says about {name[:80]} makes no sense")
    item_bytes = _ITEM_BYTES.get(_dtype(fields.get("properties")), 0)
    pieces: list[tuple[_Key, int]] = []
    total = 0
    for chunk in chunks:
        here = _state(chunk)
        offsets, sizes = _numbers(here.get("offsets")), _numbers(here.get("sizes"))
        if offsets is None or sizes is None:
            raise MetadataDamaged(f"what it says about {name[:80]} makes no sense")
        total += math.prod(sizes)
        pieces.append(((name, offsets), math.prod(sizes) * item_bytes))
    return pieces, total >= math.prod(size)


def _state(thing: object) -> dict[str, Any]:
    """Give an object's fields; (None, {...}) is how pickle writes those of a class with slots."""
    if not isinstance(thing, _Empty):
        return {}
    if isinstance(thing.state, tuple) and len(thing.state) == 2 and isinstance(thing.state[1], _Rows):  # noqa: PLR2004 -- a pair
        return thing.state[1].as_dict()
    return thing.fields()


def _numbers(size: object) -> tuple[int, ...] | None:
    """Give a torch.Size as numbers; None for None and for what is none."""
    if isinstance(size, _Empty) and len(size.args) <= 1:
        size = size.args[0] if size.args else ()
    if not isinstance(size, (tuple, list)) or not all(isinstance(one, int) and one >= 0 for one in size):
        return None
    return tuple(size)


def _dtype(properties: object) -> str:
    """Give the dtype's name, "" for none. TensorProperties is written as a tuple of its values, the dtype first."""
    if not isinstance(properties, _Empty):
        return ""
    found: object = _state(properties).get("dtype")
    if isinstance(properties.state, tuple) and properties.state:
        found = properties.state[0]
    return found.kind.rpartition(".")[2] if isinstance(found, type) and issubclass(found, _Empty) else ""


def _saved_as(storage_meta: object) -> str:
    where = _state(storage_meta).get("checkpoint_id")
    parts = where.args if isinstance(where, _Empty) else (where,)
    last = parts[-1] if parts else ""
    return last.rstrip("/").rpartition("/")[2] if isinstance(last, str) else ""
