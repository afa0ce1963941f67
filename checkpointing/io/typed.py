"""Typed values of JSON, by msgspec, from any thread.

msgspec (0.22) learns the fields of a Struct or a dataclass when it meets the class for the first time. Two threads that do so at the same
time read a table that is half filled, and the interpreter dies of a segmentation fault. So each class is learned under one lock here.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar, overload

import msgspec

_T = TypeVar("_T")
_LOCK = threading.Lock()
_LEARNED: set[Any] = set()


def decoder(kind: type[_T]) -> msgspec.json.Decoder[_T]:
    """Return a decoder of one type."""
    with _LOCK:
        return msgspec.json.Decoder(kind)


@overload
def decoded(text: bytes | str, kind: type[_T]) -> _T: ...
@overload
def decoded(text: bytes | str, kind: Any) -> Any: ...  # noqa: ANN401 -- a union, say
def decoded(text: bytes | str, kind: Any) -> Any:
    """Return the value of a JSON text. Raises msgspec.DecodeError and its subclass ValidationError."""
    _learn(kind)
    return msgspec.json.decode(text, type=kind)


@overload
def converted(value: object, kind: type[_T]) -> _T: ...
@overload
def converted(value: object, kind: Any) -> Any: ...  # noqa: ANN401 -- as above
def converted(value: object, kind: Any) -> Any:
    """Return the typed value of plain objects, such as json.loads gives. Raises msgspec.ValidationError."""
    _learn(kind)
    return msgspec.convert(value, kind)


def _learn(kind: Any) -> None:  # noqa: ANN401 -- a union, say
    if kind not in _LEARNED:
        with _LOCK:
            msgspec.json.Decoder(kind)
            _LEARNED.add(kind)
