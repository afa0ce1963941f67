"""Reads from a pickle's opcodes the object that it would build: nothing is imported, called or executed.

`scan` finds the integers under well-known step keys in the outermost dictionary, that dictionary's keys, the storages that it refers to,
and the dangerous or unknown calls that it would make (policy.py has the rule). The caller bounds the bytes.
"""

from __future__ import annotations

import io
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from checkpointing.formats.pickles.facts import EPOCH_KEYS, STEP_KEYS, Number, PickleScan, Storage
from checkpointing.formats.pickles.machine import OPCODES, PickleMachine, RetainedObject, Thing, is_count
from checkpointing.io.reader import Interrupted, never
from checkpointing.model import MOST_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MOST_NAMED: Final = 500_000  # things that are visited to find the names of tensors
# A model of 5000 tensors with Adam's state has 400 000 opcodes, read in 0.2 CPU seconds. Each opcode can hold about 100 bytes of the
# scanner, so this also bounds what a file that is built to hurt can take.
MAX_OPCODES: Final = 6_000_000
_ASKED_EACH: Final = (1 << 14) - 1  # a mask: every so many opcodes the caller is asked whether to continue


class NotAPickle(Exception):  # noqa: N818 -- a fact about the bytes, not a program error
    """The opcodes end early or contradict each other. `dangers`: its calls before that."""

    def __init__(self, message: str, dangers: tuple[str, ...] = ()) -> None:
        """Keep both."""
        super().__init__(message)
        self.dangers = dangers


class TooLong(Exception):  # noqa: N818 -- a fact about the bytes, not a program error
    """More opcodes than we are willing to read. `dangers`: what those would call that were read."""

    def __init__(self, dangers: tuple[str, ...] = ()) -> None:
        """Keep them."""
        super().__init__()
        self.dangers = dangers


def scan(data: bytes, max_opcodes: int = MAX_OPCODES, depth: int = 0) -> PickleScan:
    """Read a pickle's opcodes up to its STOP; later bytes are not read. Raises NotAPickle, TooLong.

    `depth`: how many pickles this one is within.
    """
    return _result(*_run(PickleMachine(depth, inner), data, max_opcodes, never))


def build(
    data: bytes,
    is_listed: Callable[[str, str], bool] | None = None,
    max_opcodes: int = MAX_OPCODES,
    interrupted: Callable[[], bool] = never,
) -> tuple[object, PickleMachine]:
    """Return the outermost object of a pickle, every thing in it whole (RetainedObject), and the machine, which holds its dangers.

    `is_listed`: the names that it may have at all, by module and name. Raises NotAPickle, TooLong, Interrupted.
    """
    machine, top, _ = _run(PickleMachine(0, inner, RetainedObject, is_listed), data, max_opcodes, interrupted)
    return top, machine


def _run(machine: PickleMachine, data: bytes, max_opcodes: int, interrupted: Callable[[], bool]) -> tuple[PickleMachine, object, int]:
    """Return the machine, the outermost object, and how many bytes the pickle has."""
    stream = io.BytesIO(data)
    read = stream.read
    try:
        for number in range(max_opcodes):
            if not number & _ASKED_EACH and interrupted():
                raise Interrupted
            code = read(1)
            if code == b".":
                return machine, machine.stack.pop(), stream.tell()
            if not code:
                break
            row = OPCODES.get(code)
            if row is None:
                unknown = f"byte {code[0]:#04x} is not an opcode"
                raise NotAPickle(unknown, tuple(machine.dangers))
            reader, does = row
            does(machine, None if reader is None else reader(stream))
        else:
            raise TooLong(tuple(machine.dangers))
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise NotAPickle(str(error) or "its stack runs empty", tuple(machine.dangers)) from None
    without_stop = "it has no end"
    raise NotAPickle(without_stop, tuple(machine.dangers))


def inner(data: bytes, depth: int) -> Iterator[PickleScan]:
    """Yield what each of the pickles says that follow one another in `data`, as far as they are readable."""
    while data:
        try:
            pickle_scan = scan(data, depth=depth)
        except NotAPickle as error:
            pickle_scan = PickleScan((), None, (), dangers=error.dangers)
        except TooLong as error:
            pickle_scan = PickleScan((), None, (), dangers=(*error.dangers, "a pickle that is too long to be read"))
        yield pickle_scan
        data = data[pickle_scan.end :] if pickle_scan.end else b""


def _named(top: object, storages: dict[str, Storage]) -> tuple[Storage, ...]:
    """Return the storages with the names that lead to their first tensors. Everything is visited once, however often it is held."""
    names: dict[str, str] = {}
    seen = {id(top)}
    waiting: deque[tuple[str, object]] = deque([("", top)])
    while waiting and len(names) < len(storages):
        name, thing = waiting.popleft()
        key = thing.key if isinstance(thing, Number) else thing.storage if isinstance(thing, Thing) else None
        if key is not None:
            names.setdefault(key, name)
        parts = thing.parts if isinstance(thing, Thing) else enumerate(thing) if isinstance(thing, tuple) else None
        for inner_name, inner_thing in parts or ():
            if isinstance(inner_thing, (Thing, Number, tuple)) and id(inner_thing) not in seen and len(seen) < _MOST_NAMED:
                seen.add(id(inner_thing))
                waiting.append((_joined(name, inner_name), inner_thing))
    return tuple(replace(storage, name=names.get(key, "")) for key, storage in storages.items())


def _joined(name: str, key: object) -> str:
    text = key[:MOST_NAME] if isinstance(key, str) else str(key) if is_count(key) else "" if key == "" else "?"
    return (f"{name}.{text}" if name and text else name or text)[:MOST_NAME]


def _result(machine: PickleMachine, top: object, end: int) -> PickleScan:
    entries = (top.keys if isinstance(top, Thing) else None) or {}
    numbers = {key: value for key, value in entries.items() if isinstance(value, int)}
    return PickleScan(
        tuple((key, numbers[key]) for key in STEP_KEYS if key in numbers),
        next((numbers[key] for key in EPOCH_KEYS if key in numbers), None),
        _named(top, machine.storages),
        frozenset(entries),
        tuple(numbers.items()),
        frozenset(key for key, value in entries.items() if value is None),
        tuple((key, frozenset(values)) for key, values in machine.facts.items()),
        tuple(machine.dangers),
        tuple(machine.unknown),
        end,
        tuple(machine.counts),
        tuple(machine.unlisted),
    )
