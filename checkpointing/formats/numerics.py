"""NaN and Inf in the bytes of a tensor, without torch.

A `NumericsScan` reads one tensor, in pieces as they come from the disk. It finds a note about what a training computed: a file whose
numbers are not finite is as whole as any other. An Inf is not worth a note where the tensor is a mask: its finite numbers are all 0 or 1,
or one single value, or there are none. (Attention masks of -inf, a best loss that begins as inf, observers that saw nothing yet.)

Looking for the largest bit pattern finds both: with all exponent bits set, the pattern taken as a signed integer is at least that of +Inf,
or, taken as an unsigned one, at least that of -Inf. Measured: 35 GB per CPU-second with numpy for every kind; 5 without, where the bytes
that hold the exponent are cut out and searched. numpy comes with most installations of torch, not with all.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from checkpointing.model import NonFinite

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a kind of floating number is laid out, little-endian: bytes, where +Inf begins, and how to make a number of struct's of it.

    `widen` is (struct code, bytes of zeros to put before it). `only` are the single patterns that are NaN, for kinds without Inf.
    """

    size: int
    inf: int
    widen: tuple[str, int] = ("", 0)
    only: tuple[int, ...] = ()


# The names are those of the safetensors format. Source of the 8-bit kinds: torch/headeronly/util/Float8_*.h
_KINDS: Final = {
    "F64": _Kind(8, 0x7FF0_0000_0000_0000, ("d", 0)),
    "F32": _Kind(4, 0x7F80_0000, ("f", 0)),
    "F16": _Kind(2, 0x7C00, ("e", 0)),
    "BF16": _Kind(2, 0x7F80, ("f", 2)),
    "F8_E5M2": _Kind(1, 0x7C, ("e", 1)),
    "F8_E4M3": _Kind(1, 0x7F, only=(0x7F, 0xFF)),
    "F8_E4M3FNUZ": _Kind(1, 0x80, only=(0x80,)),
    "F8_E5M2FNUZ": _Kind(1, 0x80, only=(0x80,)),
    "F8_E8M0": _Kind(1, 0xFF, only=(0xFF,)),
}
# What torch calls them: types of storages (torch/storage.py) and of tensors.
_TORCH: Final = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "ComplexFloatStorage": "F32",
    "ComplexDoubleStorage": "F64",
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "complex32": "F16",
    "complex64": "F32",
    "complex128": "F64",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}
_MASK: Final = frozenset((0.0, 1.0))


def kind_of(name: str) -> str | None:
    """Return the kind of a name of safetensors or torch ("BF16", "torch.bfloat16", "torch HalfStorage"); None if it is not floating."""
    short = name.replace(" ", ".").rpartition(".")[2]
    return short if short in _KINDS else "F32" if short == "C64" else _TORCH.get(short)


def look(kind: str, pieces: Iterable[bytes | memoryview], tensor: str = "") -> NonFinite | None:
    """Examine a whole tensor; None if it is finite or a mask."""
    scan = NumericsScan(kind)
    for piece in pieces:
        scan.feed(piece)
    return scan.found(tensor)


class NumericsScan:
    """Looks at one tensor, fed piece by piece; `found` then has its findings. `kind` is one that `kind_of` gave."""

    def __init__(self, kind: str) -> None:
        """Begin with nothing seen."""
        self._kind = _KINDS[kind]
        self._numpy = _numpy()
        self._seen = 0  # elements so far
        self._rest = b""  # of an element that a piece cut
        self._nan: int | None = None
        self._inf: int | None = None
        self._finite: set[float] | None = set()  # its finite values, as long as it may be a mask

    def found(self, tensor: str) -> NonFinite | None:
        """Return the values that are not finite in the tensor of that name; None without one."""
        if self._nan is not None:
            return NonFinite(tensor, "NaN", self._nan)
        if self._inf is not None and (self._finite is None or not (len(self._finite) <= 1 or self._finite <= _MASK)):
            return NonFinite(tensor, "Inf", self._inf)
        return None

    def feed(self, piece: bytes | memoryview) -> None:
        """Examine the bytes that follow those seen before; they may begin and end within an element."""
        if self._nan is not None:
            return
        size = self._kind.size
        if self._rest:
            need = size - len(self._rest)
            whole, piece = self._rest + bytes(piece[:need]), piece[need:]
            self._rest = b""
            if len(whole) < size:
                self._rest = whole
                return
            self._look(whole)
        cut = len(piece) - len(piece) % size
        self._rest = bytes(piece[cut:])
        if cut:
            self._look(piece[:cut])

    def _look(self, data: bytes | memoryview) -> None:
        if self._numpy is None:
            self._look_slowly(bytes(data))
        else:
            self._look_fast(self._numpy, data)
        self._seen += len(data) // self._kind.size

    def _look_fast(self, np: Any, data: bytes | memoryview) -> None:  # noqa: ANN401 -- a module that may not be there
        kind = self._kind
        unsigned = np.frombuffer(data, f"<u{kind.size}")
        if kind.only:
            for pattern in kind.only:
                hits = unsigned == pattern
                if hits.any():
                    self._nan = self._seen + int(hits.argmax())
                    return
            return
        high = 1 << (8 * kind.size - 1)
        if int(unsigned.view(f"<i{kind.size}").max()) < kind.inf and int(unsigned.max()) < high | kind.inf:
            if self._finite is not None:
                one_value = unsigned.min() == unsigned.max()  # zeros, which are common, and go fast so
                self._note(self._numbers(unsigned[:1] if one_value else unsigned))
            return
        numbers = self._numbers(unsigned)
        nan = np.isnan(numbers)
        if nan.any():
            self._nan = self._seen + int(nan.argmax())
            return
        infinite = np.isinf(numbers)
        if self._inf is None:
            self._inf = self._seen + int(infinite.argmax())
        if self._finite is not None:
            self._note(numbers[~infinite])

    def _numbers(self, unsigned: Any) -> Any:  # noqa: ANN401 -- arrays of a module that may not be there
        code, zeros = self._kind.widen
        width = self._kind.size + zeros
        wide = unsigned.astype(f"<u{width}") << (8 * zeros) if zeros else unsigned
        return wide.view({"d": "<f8", "f": "<f4", "e": "<f2"}[code])

    def _note(self, numbers: Any) -> None:  # noqa: ANN401 -- as above
        """Keep the finite values as long as they may be a mask's. The first elements of a weight show that it is not a mask."""
        finite = self._finite
        if finite is None or not len(numbers):
            return
        for some in (numbers[:8], numbers):
            low, high = float(some.min()), float(some.max())
            if low != high and not (low in _MASK and high in _MASK):
                self._finite = None
                return
        if not bool(((numbers == low) | (numbers == high)).all()):
            self._finite = None
            return
        finite.update((low, high))
        if len(finite) > 1 and not finite <= _MASK:
            self._finite = None

    def _look_slowly(self, data: bytes) -> None:
        kind = self._kind
        if kind.only:
            places = [at for at in (data.find(bytes((pattern,))) for pattern in kind.only) if at >= 0]
            self._nan = self._seen + min(places) if places else None
            return
        top = data[kind.size - 1 :: kind.size]
        first = kind.inf >> (8 * kind.size - 8)  # the top byte of +Inf: below it no exponent is full
        suspicious = any(byte in top for first_of in (first, first | 0x80) for byte in range(first_of, (first_of | 0x7F) + 1))
        if not suspicious and self._finite is None:
            return
        code, zeros = kind.widen
        for index in range(len(data) // kind.size):
            raw = bytes(zeros) + data[index * kind.size : (index + 1) * kind.size]
            self._take(struct.unpack("<" + code, raw)[0], self._seen + index)
            if self._nan is not None or (self._finite is None and not suspicious):
                return

    def _take(self, number: float, index: int) -> None:
        if number != number:  # noqa: PLR0124 -- NaN is what does not equal itself
            self._nan = index
        elif number in (float("inf"), float("-inf")):
            self._inf = index if self._inf is None else self._inf
        elif self._finite is not None:
            self._finite.add(number)
            if len(self._finite) > 1 and not self._finite <= _MASK:
                self._finite = None


def _numpy() -> Any:  # noqa: ANN401 -- a module, or None
    """Import numpy, which nothing else here needs; None where it is not installed."""
    try:
        import numpy  # noqa: ICN001, PLC0415 -- half a second that only the reading of tensors is to pay
    except ImportError:
        return None
    return numpy
