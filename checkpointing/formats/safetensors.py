"""A safetensors file: 8 bytes of length, a JSON header, and the tensors one after the other without a gap.

The file has no checksum. The checks prove that the header is right, that the tensors lie in the file without gap or overlap and are as long
as their shapes say, and that the file ends with them. With `bulk` they read the numbers too: NaN, Inf, and zeros that were never written.
The library's reader checks the layout only, not the numbers. Layout: https://github.com/huggingface/safetensors (README and
safetensors/src/tensor.rs, 0.8).

A flipped bit in a number stays unseen here; a manifest (docs/reference/checkpoint-format.md) shows it.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from checkpointing.formats import Examination, StepPosition, numerics, zero_pages
from checkpointing.formats.pickles import facts
from checkpointing.io.reader import Short
from checkpointing.model import MOST_NAME, Verdict, listed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from checkpointing.io.reader import FileReader
    from checkpointing.model import NonFinite

LEVEL: Final = "layout"
SUFFIX: Final = ".safetensors"
_MOST_HEADER_BYTES: Final = 100_000_000  # the library's own limit
_COUNT: Final = re.compile(r"[0-9]{1,18}")
_BITS: Final = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}


class HeaderDamaged(Exception):  # noqa: N818 -- a fact about the file, not a program error
    """The file contradicts itself; the text says how."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One row of the header; `begin` and `end` are offsets in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """The content of the header. `unknown`: a dtype missing in our table."""

    tensors: tuple[Tensor, ...]
    metadata: dict[str, str]
    unknown: str = ""


def claims(head: bytes, tail: bytes, suffix: str) -> bool:  # noqa: ARG001 -- the interface of every format
    """Claim *.safetensors, and any file that begins with a plausible length and a JSON object."""
    return suffix == SUFFIX or (head[8:9] == b"{" and 0 < int.from_bytes(head[:8], "little") <= _MOST_HEADER_BYTES)


def examine(source: FileReader, suffix: str, *, bulk: bool) -> Examination:  # noqa: ARG001 -- the interface of every format
    """Check header and layout, and with `bulk` the numbers. Raises OSError and Interrupted."""
    try:
        header = read_header(source)
        place = _place(header.metadata)
        if header.unknown:
            return Examination(Verdict.UNVERIFIABLE, f"its dtype {header.unknown} is not known here", place)
        if not bulk:
            return Examination(Verdict.VERIFIED, "", place, "directory")
        unwritten, non_finite = _look_at_numbers(source, header.tensors)
    except HeaderDamaged as error:
        return Examination(Verdict.BAD, str(error))
    except Short:
        return Examination(Verdict.BAD, "the file became shorter while it was read")
    if unwritten:
        return Examination(Verdict.BAD, unwritten, place)
    return Examination(Verdict.VERIFIED, "", place, LEVEL, non_finite=non_finite)


def read_header(source: FileReader) -> SafetensorsHeader:
    """Read the header and compare it with the file's size. Raises HeaderDamaged, Short, Interrupted, OSError."""
    if not source.size:
        _damaged("torn: the file is empty")
    if source.size < 8:  # noqa: PLR2004 -- the bytes of the length
        _damaged(f"torn: {source.size} bytes are too few for a header")
    length = int.from_bytes(source.read(0, 8), "little")
    if not length:
        _damaged("torn: it begins with zeros, so its data never reached the disk")
    if length > _MOST_HEADER_BYTES:
        _damaged(f"its header would have {length} bytes: no safetensors file has that")
    if 8 + length > source.size:
        _damaged(f"torn: its header has {length} bytes, and the file {source.size}")
    document = _parse(source.read(8, length))
    metadata = document.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        _damaged("its header's __metadata__ is not a table of texts")
    tensors = sorted((_tensor(name, row, 8 + length) for name, row in document.items()), key=lambda entry: (entry.begin, entry.end))
    unknown = next((tensor.dtype for tensor in tensors if tensor.dtype not in _BITS), "")
    _check_layout(tensors, 8 + length, source.size)
    return SafetensorsHeader(tuple(tensors), metadata, unknown)


def _parse(raw: bytes) -> dict[str, Any]:
    if not raw.startswith(b"{"):
        _damaged("its header is not a JSON object")
    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        _damaged(f"its header is not JSON: {str(error)[:100]}")
    return dict(document)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        twice = "a name is there twice"
        raise ValueError(twice)
    return table


def _tensor(name: str, row: object, base: int) -> Tensor:
    match row:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]} if _are_counts((*shape, begin, end)):
            return Tensor(name, dtype, tuple(shape), base + begin, base + end)
        case _:
            raise HeaderDamaged(f"its header's row of {name[:80]} makes no sense")


def _are_counts(values: Iterable[object]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values)


def _check_layout(tensors: Iterable[Tensor], begin: int, file_bytes: int) -> None:
    at = begin
    for tensor in tensors:
        if tensor.begin != at or tensor.end < tensor.begin:
            _damaged(f"{tensor.name[:80]} begins at byte {tensor.begin} of the file where {at} is next: tensors overlap or leave a gap")
        bits = math.prod(tensor.shape) * _BITS.get(tensor.dtype, 0)
        if tensor.dtype in _BITS and bits != 8 * (tensor.end - tensor.begin):
            _damaged(f"{tensor.name[:80]} has {tensor.end - tensor.begin} bytes where its shape needs {bits // 8}")
        at = tensor.end
    if at > file_bytes:
        _damaged(f"torn: {file_bytes} of {at} bytes")
    if at < file_bytes:
        _damaged(f"{file_bytes - at} bytes after the last tensor")


def _look_at_numbers(source: FileReader, tensors: tuple[Tensor, ...]) -> tuple[str, tuple[NonFinite, ...]]:
    """Read all tensors in one pass. Return the first unwritten range ("" if none) and the tensors whose numbers are not finite."""
    scan = zero_pages.ZeroPageScan([_span(tensor) for tensor in tensors], source.size, source.read)
    non_finite: list[NonFinite] = []
    for tensor in tensors:
        kind = numerics.kind_of(tensor.dtype)
        numbers = numerics.NumericsScan(kind) if kind else None
        for piece in source.bulk(tensor.begin, tensor.end - tensor.begin):
            scan.feed(piece)
            if numbers is not None:
                numbers.feed(piece)
        if numbers is not None and (entry := numbers.found(tensor.name[:MOST_NAME])) is not None:
            non_finite.append(entry)
    return scan.problem(), listed(non_finite)


def _span(tensor: Tensor) -> zero_pages.Span:
    item = max(1, _BITS[tensor.dtype] // 8)
    row = item * tensor.shape[-1] if len(tensor.shape) > 1 else tensor.end - tensor.begin
    return zero_pages.Span(tensor.name[:80], tensor.begin, tensor.end, item, max(1, row), numerics.kind_of(tensor.dtype) is not None)


def _place(metadata: dict[str, str]) -> StepPosition:
    counts = {key: int(text) for key, text in metadata.items() if _COUNT.fullmatch(text)}
    epoch = next((counts[key] for key in facts.EPOCH_KEYS if key in counts), None)
    for key in facts.STEP_KEYS:
        if key in counts:
            return StepPosition(counts[key], epoch, sure=key in facts.RUN_KEYS, loose=key in facts.LOOSE_KEYS)
    return StepPosition(epoch=epoch)


def _damaged(reason: str) -> NoReturn:
    raise HeaderDamaged(reason)
