"""The common part of torch's two file formats: an object's pickle that refers to storages, and the numbers in these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from checkpointing.formats import Examination, StepPosition
from checkpointing.formats.pickles import facts
from checkpointing.model import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from checkpointing.formats.pickles.facts import PickleScan, Storage

# Bytes per element; a type that is not here (sparse, quantised in fours) is checked for presence only. Source: torch/storage.py.
_ITEM_BYTES: Final = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16"), 2),
    **dict.fromkeys(("Int", "Float", "QInt32"), 4),
    **dict.fromkeys(("Long", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
    "Untyped": 1,
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
}
_MOST_NAMED: Final = 3
_LIGHTNING: Final = "pytorch-lightning_version"


def item_bytes(kind: str) -> int:
    """Return the bytes of one element of a storage type ("torch FloatStorage"); 0 for one that is not known."""
    return _ITEM_BYTES.get(_short(kind), 0)


def span(storage: Storage) -> tuple[int, int]:
    """Return offset and length, in bytes of its record, of what tensors use of a storage."""
    size = item_bytes(storage.kind)
    return storage.begin * size, (storage.end - storage.begin) * size


def name_of(storage: Storage) -> str:
    """Return a name for the storage's tensor: what the pickle calls it ("model.head.weight"), else the key of its record."""
    return storage.name or f"data/{storage.key}"


def place(scan: PickleScan) -> StepPosition:
    """Return the step and the epoch that the outermost dictionary tells."""
    key, step = scan.steps[0] if scan.steps else ("", None)
    return StepPosition(step, scan.epoch, sure=key in facts.RUN_KEYS, loose=key in facts.LOOSE_KEYS)


def framework(scan: PickleScan) -> str:
    """Return the format's name where the outermost dictionary is a framework's own; "" otherwise."""
    return "lightning" if _LIGHTNING in scan.keys else ""


def refusal(dangers: Iterable[str]) -> Examination | None:
    """Refuse a pickle that would run code; None for one that would not."""
    calls = tuple(dict.fromkeys(dangers))
    if not calls:
        return None
    return Examination(Verdict.DANGEROUS, f"loading it would run code: its pickle calls {', '.join(calls[:_MOST_NAMED])}")


def note(scan: PickleScan) -> str:
    """Return which names a file holds that are on no list, such as classes of the user's own; "" for none."""
    return f"it needs names that are not listed to be loaded: {', '.join(scan.unknown[:_MOST_NAMED])}" if scan.unknown else ""


def _short(kind: str) -> str:
    return kind.rpartition(" ")[2].removesuffix("Storage")
