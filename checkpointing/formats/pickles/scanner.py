"""What a pickle would build, read from its opcodes alone: nothing is imported, called or executed.

In: the bytes of a pickle, bounded by the caller. Out: the integers that stand under well-known step keys in the outermost dictionary,
that dictionary's keys, the storages that it refers to, and what it would call that is dangerous or unknown (`pickle_danger` has the
rule). Raises `NotAPickle` where the opcodes are cut off or make no sense. The machine below has pickle's
stack, marks and memo, but holds tokens where pickle would hold objects; every opcode of the protocols 0 to 5 is a row of a table.
Values are referenced, never copied, compared, hashed or printed, so a pickle that is built to explode has nothing to explode here.
"""

from __future__ import annotations

import io
import pickletools
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from checkpointing.formats.pickles.facts import Number, PickleScan, Storage
from checkpointing.formats.pickles.policy import Judgement, is_method, is_plain_unknown, judge, may_be_called
from checkpointing.model import MOST_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# In the order in which they are believed: what counts optimizer steps for the whole run first.
# global_step: Lightning, DeepSpeed; iter_num: nanoGPT. The others count the whole run in one script, and the epoch in the next.
RUN_KEYS: Final = ("global_step", "iter_num")
STEP_KEYS: Final = (*RUN_KEYS, "step", "iteration", "iter", "num_steps")
LOOSE_KEYS: Final = ("num_steps",)  # as often how many there will be
_EPOCH: Final = "epoch"
# Looked for in every dictionary, however deep: what shards of one checkpoint must agree about, and how many there must be.
_FACTS: Final = frozenset({*STEP_KEYS, "tensor_model_parallel_size", "pipeline_model_parallel_size", "partition_count"})
COUNTED: Final = "optimizer's step"  # a fact that is read from the numbers, by who has them
_MOST_VALUES: Final = 64
_KEYS: Final = frozenset({*STEP_KEYS, _EPOCH})
_LONGEST_TEXT: Final = 256  # keys of storages and of steps are short; longer text is of no interest
_MOST_NAMES: Final = 8  # enough to say what is wrong with a pickle
MOST_KEYS: Final = 64  # of the outermost dictionary; a framework's own are among its first
_GETATTR: Final = ("builtins getattr", "__builtin__ getattr")
# They call nothing that they are given. To call what partial returns is refused in itself; what getattr returns is judged by its name.
_HOLDERS: Final = ("functools partial", *_GETATTR)
_ONE_ARGUMENT: Final = ("builtins iter", "__builtin__ iter", "builtins type", "__builtin__ type")  # with more they call, or make a class
_MOST_NAMED: Final = 500_000  # things that are visited to find the names of tensors
_MOST_ARGUMENTS: Final = 8  # of a call, looked at for tensors
_DEEPEST: Final = 4  # pickles within a pickle
_REBUILD: Final = ("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor", "torch._utils _rebuild_tensor_v3")
_FLOAT8: Final = "torch float8_"
_ENCODE: Final = "_codecs encode"  # with "latin1": how the protocols up to 2 write bytes
_PICKLED_BYTES: Final = "torch.storage _load_from_bytes"  # a torch.load of the bytes that it is given, as pickle.dump writes a tensor
_LARGEST_STEP: Final = 1 << 62
# A model of 5000 tensors with Adam's state has 400 000 opcodes, read in 0.2 CPU seconds. Each opcode can hold about 100 bytes of ours,
# so this also bounds what a file that is built to hurt can take.
MAX_OPCODES: Final = 6_000_000


class NotAPickle(Exception):  # noqa: N818 -- a fact about the bytes, not an error of ours
    """The opcodes end early or contradict each other. `dangers`: what it would have called before."""

    def __init__(self, message: str, dangers: tuple[str, ...] = ()) -> None:
        """Keep both."""
        super().__init__(message)
        self.dangers = dangers


class TooLong(Exception):  # noqa: N818 -- a fact about the bytes, not an error of ours
    """More opcodes than we are willing to read. `dangers`: what those would call that were read."""

    def __init__(self, dangers: tuple[str, ...] = ()) -> None:
        """Keep them."""
        super().__init__()
        self.dangers = dangers


@dataclass(frozen=True, slots=True)
class _Global:
    name: str


@dataclass(frozen=True, slots=True)
class _Encoded:
    """Bytes that are written as text."""

    text: str


@dataclass(slots=True)
class _Thing:
    """Anything that can be filled: dictionary, list, object. Only its first textual keys are remembered, and those of steps.

    `storage` is the key of the storage of a tensor. `parts` are what it holds that may hold tensors, each with its name.
    """

    keys: dict[str, object] | None = None  # each with its value, where that is of interest; most things never get one
    storage: str | None = None
    parts: list[tuple[object, object]] | None = None

    def hold(self, name: object, part: object) -> None:
        if isinstance(part, (_Thing, Number, tuple)):
            if self.parts is None:
                self.parts = []
            self.parts.append((name, part))

    def set(self, key: str, value: object) -> None:
        if self.keys is None:
            self.keys = {}
        if key in _KEYS or (len(self.keys) < MOST_KEYS and len(key) <= _LONGEST_TEXT):
            self.keys[key] = value if value is None or _counts(value) else _OPAQUE


_OPAQUE: Final = object()


def _counts(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST_STEP


class _Machine:
    """The stack machine of pickle, with tokens for values."""

    def __init__(self, depth: int = 0) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}
        self.dangers: dict[str, None] = {}
        self.unknown: dict[str, None] = {}
        self.unlisted: dict[str, None] = {}
        self.facts: dict[str, set[int]] = {}
        self.counts: dict[Number, None] = {}
        self.looked_within: dict[int, object] = {}  # by identity: a pickle can hand the same bytes over a million times
        self.depth = depth

    def danger(self, what: str) -> None:
        if len(self.dangers) < _MOST_NAMES:
            self.dangers[what] = None

    def refer(self, dotted: str) -> _Global:
        """Note a global, "module name", by what it is to us."""
        module, _, name = dotted.partition(" ")
        if dotted not in _GETATTR:  # which is judged by what it is called with
            judgement = judge(module, name)
            if judgement is Judgement.DANGEROUS:
                self.danger(f"{module}.{name}"[:_LONGEST_TEXT])
            elif judgement is not Judgement.KNOWN and len(self.unknown) < _MOST_NAMES:
                self.unknown[f"{module}.{name}"[:_LONGEST_TEXT]] = None
            if judgement is Judgement.UNLISTED and len(self.unlisted) < _MOST_NAMES:
                self.unlisted[f"{module}.{name}"[:_LONGEST_TEXT]] = None
        return _Global(dotted)

    def called(self, function: object, arguments: object) -> Any:  # noqa: ANN401 -- a token, whatever it stands for
        """Note a call, and give what stands for its result."""
        if not isinstance(function, _Global):
            self.danger("a call of what another call returned")
            return _Thing()
        self.list_call(function, arguments)
        if isinstance(arguments, tuple) and any(isinstance(one, _Global) and one.name in _GETATTR for one in arguments):
            self.danger("builtins.getattr")
        if function.name in _GETATTR:
            return self.attribute(arguments)
        if function.name == _PICKLED_BYTES:
            self.within(arguments)
        elif function.name == _ENCODE:
            match arguments:
                case (str(text), "latin1"):
                    return _Encoded(text)
        elif function.name in _REBUILD:
            return self.view(arguments)
        return self.made_of(arguments)

    def made_of(self, arguments: object) -> _Thing:
        """Give what stands for an object that holds its arguments: a parameter around a tensor, an object around its state."""
        made = _Thing()
        if isinstance(arguments, tuple):
            for one in arguments[:_MOST_ARGUMENTS]:
                made.hold("", one)
        return made

    def list_call(self, function: _Global, arguments: object) -> None:
        """Hold a call against the list, and every function among its arguments too: what is called may call these."""
        self.list_functions((function,))
        if function.name not in _HOLDERS:
            self.list_functions(arguments)
        if isinstance(arguments, tuple) and len(arguments) > 1 and function.name in _ONE_ARGUMENT:
            self.danger(f"{function.name.replace(' ', '.')} of several")

    def list_functions(self, given: object) -> None:
        """Note those of `given` that are not on the list of what may be called."""
        for one in given if isinstance(given, tuple) else ():
            if not isinstance(one, _Global) or one.name in _GETATTR:
                continue
            module, _, name = one.name.partition(" ")
            if is_method(module, name):
                self.danger(f"{module}.{name}"[:_LONGEST_TEXT])
            elif len(self.unlisted) < _MOST_NAMES and not may_be_called(module, name):
                self.unlisted[f"{module}.{name}"[:_LONGEST_TEXT]] = None

    def view(self, arguments: object) -> Any:  # noqa: ANN401 -- as above
        """Note which elements of a storage a tensor uses: (storage, offset, sizes, strides, …); v3 has the dtype behind two more."""
        match arguments:
            case (Storage(key=key), int(offset), tuple(sizes), tuple(strides), *_) if (
                offset >= 0 and len(sizes) == len(strides) and all(map(_counts, (*sizes, *strides))) and all(sizes)
            ):
                end = offset + 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
                known = self.storages[key]
                begin = min(known.begin, offset) if known.end else offset
                row = known.row or (sizes[-1] if sizes else 1)
                kind = known.kind
                match arguments[6:7]:
                    case (_Global(dtype),) if dtype.startswith(_FLOAT8) and kind.endswith("UntypedStorage"):
                        kind = dtype  # of one byte each, so elements and bytes are the same
                self.storages[key] = replace(known, kind=kind, begin=begin, end=min(known.count, max(known.end, end)), row=row)
                if end == offset + 1:
                    return Number(key, offset)
                return _Thing(storage=key)
        return _Thing()

    def attribute(self, arguments: object) -> Any:  # noqa: ANN401 -- as above
        """Judge getattr(of, name): how enums, nested classes and bound methods are pickled."""
        match arguments:
            case (_Global(of), str(name)) if len(of) + len(name) <= 2 * _LONGEST_TEXT:
                return self.refer(f"{of}.{name}")
            case (kind, str(name)) if not isinstance(kind, _Global) and not name.startswith("__"):
                return _OPAQUE
            case _:
                self.danger("builtins.getattr")
                return _OPAQUE

    def within(self, arguments: object) -> None:
        """Judge the pickles that torch would load out of bytes within this one."""
        match arguments:
            case (bytes() | _Encoded() as given,) if self.depth < _DEEPEST:
                if id(given) in self.looked_within:
                    return
                self.looked_within[id(given)] = given
                data = given if isinstance(given, bytes) else given.text.encode("latin1", "replace")
                for found in inner(data, self.depth + 1):
                    for what in found.dangers:
                        self.danger(what)
                    self.unlisted.update(dict.fromkeys(found.unlisted))
            case _:
                self.danger("torch.storage._load_from_bytes of what cannot be read")

    def reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        self.stack.append(self.called(function, arguments))

    def new(self) -> None:
        """NEWOBJ: `cls.__new__(cls, *arguments)`. A function has no such method of its own, and nothing of the class runs but that.

        So an object of a class that nobody here knows (`__main__.Config`) calls nothing that its name does not: it is noted with it.
        """
        arguments, made = self.stack.pop(), self.stack.pop()
        if isinstance(made, _Global) and is_plain_unknown(*made.name.partition(" ")[::2]):
            self.list_functions(arguments)
            self.stack.append(self.made_of(arguments))
        else:
            self.stack.append(self.called(made, arguments))

    def new_with_keywords(self) -> None:
        self.stack.pop()
        self.new()

    def instance(self, dotted: str) -> None:
        """INST: the class stands in the opcode, its arguments behind a mark."""
        items = self.pop_mark()
        self.stack.append(self.called(self.refer(dotted), tuple(items)))

    def object_to_mark(self) -> None:
        """OBJ: the class is the first behind the mark."""
        items = self.pop_mark()
        self.stack.append(self.called(items[0], tuple(items[1:])))

    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def pop_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.below.pop()
        return items

    def pop(self) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.pop_mark()

    def discard_to_mark(self) -> None:
        self.pop_mark()

    def replace(self, count: int, value: object) -> None:
        if len(self.stack) < count:
            raise IndexError
        del self.stack[len(self.stack) - count :]
        self.stack.append(value)

    def stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if isinstance(name, str) and isinstance(module, str) and len(name) + len(module) <= _LONGEST_TEXT:
            self.stack.append(self.refer(f"{module} {name}"))
        else:
            self.danger("a name that is no readable text")
            self.stack.append(_OPAQUE)

    def tuple_of(self, count: int) -> None:
        items = tuple(self.stack[-count:])
        self.replace(count, items)

    def tuple_to_mark(self) -> None:
        items = self.pop_mark()
        self.stack.append(tuple(items))

    def dict_to_mark(self) -> None:
        items = self.pop_mark()
        self.stack.append(_Thing())
        self.fill(items)

    def thing_to_mark(self) -> None:
        self.pop_mark()
        self.stack.append(_Thing())

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.fill([key, value])

    def set_items(self) -> None:
        self.fill(self.pop_mark())

    def fill(self, items: list[Any]) -> None:
        target = self.stack[-1]
        self.changes(target)
        if isinstance(target, _Thing):
            for key, value in zip(items[::2], items[1::2], strict=True):
                target.hold(key, value)
                if isinstance(key, str):
                    target.set(key, value)
                    if isinstance(value, Number) and key in STEP_KEYS and len(self.counts) < _MOST_VALUES:
                        self.counts[value] = None
                    if key in _FACTS and isinstance(value, int) and _counts(value):
                        values = self.facts.setdefault(key, set())
                        if len(values) < _MOST_VALUES:
                            values.add(value)

    def append(self) -> None:
        self.extend([self.stack.pop()])

    def append_to_mark(self) -> None:
        self.extend(self.pop_mark())

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        self.changes(target)
        if isinstance(target, _Thing):
            first = len(target.parts or ())
            for number, item in enumerate(items):
                target.hold(first + number, item)

    def build(self) -> None:
        """BUILD: an object gets its attributes."""
        state = self.stack.pop()
        target = self.stack[-1]
        self.changes(target)
        if isinstance(target, _Thing):
            target.hold("", state)

    def changes(self, target: object) -> None:
        """Refuse to change what is no object of the pickle's own: an attribute of a class, a table of a module."""
        if isinstance(target, _Global):
            self.danger(f"a change of {target.name.replace(' ', '.')}"[:_LONGEST_TEXT])

    def persistent(self) -> None:
        """Note torch's storages: ("storage", type, key, location, count of elements); legacy files also hold ("module", class, …)."""
        result: Any = _OPAQUE
        match self.stack.pop():
            case ("storage", _Global(kind), str(key), _, int(count), *_):
                result = self.storages.setdefault(key, Storage(key, kind, count))
            case ("module", _Global() as kind, *_):
                result = kind
            case _:
                pass
        self.stack.append(result)


def _nothing(_machine: _Machine, _arg: Any) -> None:  # noqa: ANN401 -- an opcode's argument is whatever the opcode says
    pass


def _push_arg(machine: _Machine, arg: Any) -> None:  # noqa: ANN401 -- as above
    machine.stack.append(arg)


def _push(value: object) -> Callable[[_Machine, Any], None]:
    return lambda machine, _arg: machine.stack.append(value)


def _push_thing(machine: _Machine, _arg: Any) -> None:  # noqa: ANN401 -- as above
    machine.stack.append(_Thing())


def _put(machine: _Machine, arg: Any) -> None:  # noqa: ANN401 -- as above
    machine.memo[arg] = machine.stack[-1]


def _extension(machine: _Machine, _arg: Any) -> None:  # noqa: ANN401 -- as above
    machine.danger("a callable by its number in copyreg's registry")
    machine.stack.append(_OPAQUE)


_TABLE: Final[dict[str, Callable[[_Machine, Any], None]]] = {
    **dict.fromkeys(("PROTO", "FRAME", "READONLY_BUFFER"), _nothing),
    **dict.fromkeys(("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"), _push_arg),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"), _push_arg),
    **dict.fromkeys(("EXT1", "EXT2", "EXT4"), _extension),
    **dict.fromkeys(
        ("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        _push_arg,
    ),
    **dict.fromkeys(
        (
            "FLOAT",
            "BINFLOAT",
            "BYTEARRAY8",
            "NEXT_BUFFER",
            "PERSID",
        ),
        _push(_OPAQUE),
    ),
    "NONE": _push(None),
    "NEWTRUE": _push(True),  # noqa: FBT003 -- the value itself
    "NEWFALSE": _push(False),  # noqa: FBT003 -- the value itself
    **dict.fromkeys(("EMPTY_DICT", "EMPTY_LIST", "EMPTY_SET"), _push_thing),
    "EMPTY_TUPLE": _push(()),
    "MARK": lambda machine, _arg: machine.mark(),
    "POP_MARK": lambda machine, _arg: machine.discard_to_mark(),
    "POP": lambda machine, _arg: machine.pop(),
    "DUP": lambda machine, _arg: machine.stack.append(machine.stack[-1]),
    "GLOBAL": lambda machine, arg: machine.stack.append(machine.refer(arg)),
    "STACK_GLOBAL": lambda machine, _arg: machine.stack_global(),
    "TUPLE": lambda machine, _arg: machine.tuple_to_mark(),
    "TUPLE1": lambda machine, _arg: machine.tuple_of(1),
    "TUPLE2": lambda machine, _arg: machine.tuple_of(2),
    "TUPLE3": lambda machine, _arg: machine.tuple_of(3),
    "DICT": lambda machine, _arg: machine.dict_to_mark(),
    **dict.fromkeys(("LIST", "FROZENSET"), lambda machine, _arg: machine.thing_to_mark()),
    "INST": lambda machine, arg: machine.instance(arg),
    "OBJ": lambda machine, _arg: machine.object_to_mark(),
    "SETITEM": lambda machine, _arg: machine.set_item(),
    "SETITEMS": lambda machine, _arg: machine.set_items(),
    "APPEND": lambda machine, _arg: machine.append(),
    **dict.fromkeys(("APPENDS", "ADDITEMS"), lambda machine, _arg: machine.append_to_mark()),
    "REDUCE": lambda machine, _arg: machine.reduce(),
    "NEWOBJ": lambda machine, _arg: machine.new(),
    "NEWOBJ_EX": lambda machine, _arg: machine.new_with_keywords(),
    "BUILD": lambda machine, _arg: machine.build(),
    "BINPERSID": lambda machine, _arg: machine.persistent(),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda machine, arg: machine.stack.append(machine.memo[arg])),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _put),
    "MEMOIZE": lambda machine, _arg: _put(machine, len(machine.memo)),
}


# pickletools.genops does the same in three times the time: it also tells where each opcode stands
_ROWS: Final = {
    op.code.encode("latin-1"): (None if op.arg is None else op.arg.reader, _TABLE[op.name])
    for op in pickletools.opcodes
    if op.name != "STOP"
}


def scan(data: bytes, max_opcodes: int = MAX_OPCODES, depth: int = 0) -> PickleScan:
    """Read a pickle's opcodes up to its STOP; what stands behind is not looked at. Raises NotAPickle, TooLong.

    `depth`: how many pickles this one is within.
    """
    machine, stream = _Machine(depth), io.BytesIO(data)
    read = stream.read
    try:
        for _ in range(max_opcodes):
            code = read(1)
            if code == b".":
                return _result(machine, stream.tell())
            if not code:
                break
            row = _ROWS.get(code)
            if row is None:
                unknown = f"byte {code[0]:#04x} is no opcode"
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
            found = scan(data, depth=depth)
        except NotAPickle as error:
            found = PickleScan((), None, (), dangers=error.dangers)
        except TooLong as error:
            found = PickleScan((), None, (), dangers=(*error.dangers, "a pickle that is too long to be read"))
        yield found
        data = data[found.end :] if found.end else b""


def _named(top: object, storages: dict[str, Storage]) -> tuple[Storage, ...]:
    """Give the storages with the names that lead to their first tensors. Everything is visited once, however often it is held."""
    names: dict[str, str] = {}
    seen = {id(top)}
    waiting: deque[tuple[str, object]] = deque([("", top)])
    while waiting and len(names) < len(storages):
        name, thing = waiting.popleft()
        key = thing.key if isinstance(thing, Number) else thing.storage if isinstance(thing, _Thing) else None
        if key is not None:
            names.setdefault(key, name)
        parts = thing.parts if isinstance(thing, _Thing) else enumerate(thing) if isinstance(thing, tuple) else None
        for part, inner_thing in parts or ():
            if isinstance(inner_thing, (_Thing, Number, tuple)) and id(inner_thing) not in seen and len(seen) < _MOST_NAMED:
                seen.add(id(inner_thing))
                waiting.append((_joined(name, part), inner_thing))
    return tuple(replace(storage, name=names.get(key, "")) for key, storage in storages.items())


def _joined(name: str, part: object) -> str:
    text = part[:MOST_NAME] if isinstance(part, str) else str(part) if _counts(part) else "" if part == "" else "?"
    return (f"{name}.{text}" if name and text else name or text)[:MOST_NAME]


def _result(machine: _Machine, end: int) -> PickleScan:
    top = machine.stack.pop()
    found = (top.keys if isinstance(top, _Thing) else None) or {}
    numbers = {key: value for key, value in found.items() if isinstance(value, int)}
    return PickleScan(
        tuple((key, numbers[key]) for key in STEP_KEYS if key in numbers),
        numbers.get(_EPOCH),
        _named(top, machine.storages),
        frozenset(found),
        tuple(numbers.items()),
        frozenset(key for key, value in found.items() if value is None),
        tuple((key, frozenset(values)) for key, values in machine.facts.items()),
        tuple(machine.dangers),
        tuple(machine.unknown),
        end,
        tuple(machine.counts),
        tuple(machine.unlisted),
    )
