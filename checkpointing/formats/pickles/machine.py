"""The stack machine of pickle, which holds tokens where pickle would hold objects.

It has pickle's stack, marks and memo. Every opcode of the protocols 0 to 5 is a row of a table. Values are referenced, never copied,
compared, hashed or printed, so a pickle that is made to grow without end when it is loaded costs nothing here.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from checkpointing.formats.pickles.facts import EPOCH_KEYS, MOST_KEYS, STEP_KEYS, Number, PickleScan, Storage
from checkpointing.formats.pickles.opcode_texts import reader_of
from checkpointing.formats.pickles.policy import Judgement, is_method, is_plain_unknown, judge, may_be_called

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# These keys are read in every dictionary, at any depth: all shards must agree about them, and they say how many shards there are.
_FACTS: Final = frozenset({*STEP_KEYS, "tensor_model_parallel_size", "pipeline_model_parallel_size", "partition_count"})
_MOST_VALUES: Final = 64
_KEYS: Final = frozenset({*STEP_KEYS, *EPOCH_KEYS})
_LONGEST_TEXT: Final = 256  # keys of storages and of steps are short; longer text is of no interest
_MOST_NAMES: Final = 8  # enough to show the defect of a pickle
_GETATTR: Final = ("builtins getattr", "__builtin__ getattr")
# These do not call their arguments. A call of partial's result is always refused; the result of getattr is judged by its name.
_HOLDERS: Final = ("functools partial", *_GETATTR)
_ONE_ARGUMENT: Final = (
    "builtins iter",
    "__builtin__ iter",
    "builtins type",
    "__builtin__ type",
)  # with more they call one, or make a class
_MOST_ARGUMENTS: Final = 8  # of a call, searched for tensors
_DEEPEST: Final = 4  # pickles within a pickle
_REBUILD: Final = ("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor", "torch._utils _rebuild_tensor_v3")
_FLOAT8: Final = "torch float8_"
_ENCODE: Final = "_codecs encode"  # with "latin1": how the protocols up to 2 write bytes
_PICKLED_BYTES: Final = "torch.storage _load_from_bytes"  # it calls torch.load on its bytes; pickle.dump writes a tensor so
_LARGEST_STEP: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class GlobalName:
    """A global that the pickle refers to: "module name"."""

    name: str


@dataclass(frozen=True, slots=True)
class _Encoded:
    """Bytes that are written as text."""

    text: str


@dataclass(slots=True)
class Thing:
    """A dictionary, a list, a set or an object of the pickle. It keeps its first text keys, the keys of steps, and possible tensors.

    `storage` is the key of a tensor's storage. `parts` are (name, part).
    """

    keys: dict[str, object] | None = None  # each with its value, if that counts something; most things have no key
    storage: str | None = None
    parts: list[tuple[object, object]] | None = None

    def hold(self, name: object, value: object) -> None:
        """Keep a part that may hold tensors, with its name."""
        if isinstance(value, (Thing, Number, tuple)):
            if self.parts is None:
                self.parts = []
            self.parts.append((name, value))

    def take_call(self, function: GlobalName, arguments: object) -> None:  # noqa: ARG002 -- RetainedObject keeps it
        """Keep the arguments of the call that made it: those of a parameter hold a tensor, those of an object its state."""
        for argument in arguments[:_MOST_ARGUMENTS] if isinstance(arguments, tuple) else ():
            self.hold("", argument)

    def take_state(self, state: object) -> None:
        """Keep an object's attributes."""
        self.hold("", state)

    def set(self, key: str, value: object) -> None:
        """Remember a key, with its value if that counts something."""
        if self.keys is None:
            self.keys = {}
        if key in _KEYS or (len(self.keys) < MOST_KEYS and len(key) <= _LONGEST_TEXT):
            self.keys[key] = value if value is None or is_count(value) else _OPAQUE


@dataclass(slots=True)
class RetainedObject(Thing):
    """A thing that keeps everything: all its parts, the call that made it, its state."""

    made_by: str = ""
    arguments: tuple[object, ...] = ()
    state: object = None

    def hold(self, name: object, value: object) -> None:
        """Keep any part."""
        if self.parts is None:
            self.parts = []
        self.parts.append((name, value))

    def take_call(self, function: GlobalName, arguments: object) -> None:
        """Keep the function's name and all arguments."""
        self.made_by, self.arguments = function.name, arguments if isinstance(arguments, tuple) else ()

    def take_state(self, state: object) -> None:
        """Keep the state apart from the parts."""
        self.state = state

    def set(self, key: str, value: object) -> None:
        """Do nothing: `hold` keeps the key."""


_OPAQUE: Final = object()


def is_count(value: object) -> bool:
    """Return whether a value can be a step or a size."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST_STEP


class PickleMachine:
    """The stack machine of pickle, with tokens for values.

    `scan_inner` scans the pickles in this pickle's bytes, at a depth. `thing` is the token of an object that can be filled. `is_listed`
    returns whether a global may be named at all; None: the policy alone decides.
    """

    def __init__(
        self,
        depth: int,
        scan_inner: Callable[[bytes, int], Iterable[PickleScan]],
        thing: type[Thing] = Thing,
        is_listed: Callable[[str, str], bool] | None = None,
    ) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}
        self.dangers: dict[str, None] = {}
        self.unknown: dict[str, None] = {}
        self.unlisted: dict[str, None] = {}
        self.facts: dict[str, set[int]] = {}
        self.counts: dict[Number, None] = {}
        self.searched: dict[int, object] = {}  # by identity: a pickle can hand the same bytes over a million times
        self.depth = depth
        self.scan_inner = scan_inner
        self.thing = thing
        self.is_listed = is_listed

    def danger(self, danger: str) -> None:
        """Note what the pickle would call."""
        if len(self.dangers) < _MOST_NAMES:
            self.dangers[danger] = None

    def refer(self, dotted: str) -> GlobalName:
        """Note a global, "module name", by its class in the policy."""
        module, _, name = dotted.partition(" ")
        if self.is_listed is not None and not self.is_listed(module, name):
            self.danger(f"{module}.{name}"[:_LONGEST_TEXT])
        elif dotted not in _GETATTR:  # getattr is judged by its arguments
            judgement = judge(module, name)
            if judgement is Judgement.DANGEROUS:
                self.danger(f"{module}.{name}"[:_LONGEST_TEXT])
            elif judgement is Judgement.UNKNOWN and len(self.unknown) < _MOST_NAMES:
                self.unknown[f"{module}.{name}"[:_LONGEST_TEXT]] = None
        return GlobalName(dotted)

    def called(self, function: object, arguments: object) -> Any:  # noqa: ANN401 -- a token of any kind
        """Note a call, and return the token of its result."""
        if not isinstance(function, GlobalName):
            self.danger("a call of another call's result")
            return self.thing()
        self.list_call(function, arguments)
        if isinstance(arguments, tuple) and any(isinstance(argument, GlobalName) and argument.name in _GETATTR for argument in arguments):
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
        return self.made_by(function, arguments)

    def made_by(self, function: GlobalName, arguments: object) -> Thing:
        """Return the token of a call's result."""
        thing = self.thing()
        thing.take_call(function, arguments)
        return thing

    def list_call(self, function: GlobalName, arguments: object) -> None:
        """Compare the called function with the list, and every function among its arguments: the called function may call these."""
        self.list_functions((function,))
        if function.name not in _HOLDERS:
            self.list_functions(arguments)
        if isinstance(arguments, tuple) and len(arguments) > 1 and function.name in _ONE_ARGUMENT:
            self.danger(f"{function.name.replace(' ', '.')} of several")

    def list_functions(self, given: object) -> None:
        """Note the functions in `given` that are not on the list of functions that may be called."""
        for argument in given if isinstance(given, tuple) else ():
            if not isinstance(argument, GlobalName) or argument.name in _GETATTR:
                continue
            module, _, name = argument.name.partition(" ")
            if is_method(module, name):
                self.danger(f"{module}.{name}"[:_LONGEST_TEXT])
            elif len(self.unlisted) < _MOST_NAMES and not may_be_called(module, name):
                self.unlisted[f"{module}.{name}"[:_LONGEST_TEXT]] = None

    def view(self, arguments: object) -> Any:  # noqa: ANN401 -- as above
        """Note which elements of a storage a tensor uses: (storage, offset, sizes, strides, …); v3 has the dtype after two more."""
        match arguments:
            case (Storage(key=key), int(offset), tuple(sizes), tuple(strides), *_) if (
                offset >= 0 and len(sizes) == len(strides) and all(map(is_count, (*sizes, *strides))) and all(sizes)
            ):
                end = offset + 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
                known = self.storages[key]
                begin = min(known.begin, offset) if known.end else offset
                row = known.row or (sizes[-1] if sizes else 1)
                kind = known.kind
                match arguments[6:7]:
                    case (GlobalName(dtype),) if dtype.startswith(_FLOAT8) and kind.endswith("UntypedStorage"):
                        kind = dtype  # of one byte each, so elements and bytes are the same
                self.storages[key] = replace(known, kind=kind, begin=begin, end=min(known.count, max(known.end, end)), row=row)
                if end == offset + 1:
                    return Number(key, offset)
                return self.thing(storage=key)
        return self.thing()

    def attribute(self, arguments: object) -> Any:  # noqa: ANN401 -- as above
        """Judge getattr(of, name): how enums, nested classes and bound methods are pickled."""
        match arguments:
            case (GlobalName(of), str(name)) if len(of) + len(name) <= 2 * _LONGEST_TEXT:
                return self.refer(f"{of}.{name}")
            case (kind, str(name)) if not isinstance(kind, GlobalName) and not name.startswith("__"):
                return _OPAQUE
            case _:
                self.danger("builtins.getattr")
                return _OPAQUE

    def within(self, arguments: object) -> None:
        """Judge the pickles that torch would load from bytes in this one."""
        match arguments:
            case (bytes() | _Encoded() as given,) if self.depth < _DEEPEST:
                if id(given) in self.searched:
                    return
                self.searched[id(given)] = given
                data = given if isinstance(given, bytes) else given.text.encode("latin1", "replace")
                for pickle_scan in self.scan_inner(data, self.depth + 1):
                    for danger in pickle_scan.dangers:
                        self.danger(danger)
                    self.unlisted.update(dict.fromkeys(pickle_scan.unlisted))
            case _:
                self.danger("torch.storage._load_from_bytes of bytes that cannot be read")

    def reduce(self) -> None:
        """REDUCE: a call."""
        arguments, function = self.stack.pop(), self.stack.pop()
        self.stack.append(self.called(function, arguments))

    def new(self) -> None:
        """NEWOBJ: `cls.__new__(cls, *arguments)`. A function has no such method of its own, and no other code of the class runs.

        So for an object of an unknown class (`__main__.Config`) no call is noted: the name of the class is noted already.
        """
        arguments, callee = self.stack.pop(), self.stack.pop()
        if isinstance(callee, GlobalName) and is_plain_unknown(*callee.name.partition(" ")[::2]):
            self.list_functions(arguments)
            self.stack.append(self.made_by(callee, arguments))
        else:
            self.stack.append(self.called(callee, arguments))

    def new_with_keywords(self) -> None:
        """NEWOBJ_EX: a call with keywords."""
        self.stack.pop()
        self.new()

    def instance(self, dotted: str) -> None:
        """INST: the class is in the opcode, its arguments after a mark."""
        items = self.pop_mark()
        self.stack.append(self.called(self.refer(dotted), tuple(items)))

    def object_to_mark(self) -> None:
        """OBJ: the class is the first item after the mark."""
        items = self.pop_mark()
        self.stack.append(self.called(items[0], tuple(items[1:])))

    def mark(self) -> None:
        """MARK: begin a new stack."""
        self.below.append(self.stack)
        self.stack = []

    def pop_mark(self) -> list[Any]:
        """Return the items pushed since the last mark."""
        items = self.stack
        self.stack = self.below.pop()
        return items

    def pop(self) -> None:
        """POP: drop the top, or a mark."""
        if self.stack:
            self.stack.pop()
        else:
            self.pop_mark()

    def discard_to_mark(self) -> None:
        """POP_MARK: drop the items pushed since the last mark."""
        self.pop_mark()

    def replace(self, count: int, value: object) -> None:
        """Replace the topmost values by one."""
        if len(self.stack) < count:
            raise IndexError
        del self.stack[len(self.stack) - count :]
        self.stack.append(value)

    def stack_global(self) -> None:
        """STACK_GLOBAL: a global that the two texts on the stack name."""
        name, module = self.stack.pop(), self.stack.pop()
        if isinstance(name, str) and isinstance(module, str) and len(name) + len(module) <= _LONGEST_TEXT:
            self.stack.append(self.refer(f"{module} {name}"))
        else:
            self.danger("a name that is not readable text")
            self.stack.append(_OPAQUE)

    def tuple_of(self, count: int) -> None:
        """TUPLE1 to TUPLE3."""
        items = tuple(self.stack[-count:])
        self.replace(count, items)

    def tuple_to_mark(self) -> None:
        """TUPLE."""
        items = self.pop_mark()
        self.stack.append(tuple(items))

    def dict_to_mark(self) -> None:
        """DICT."""
        items = self.pop_mark()
        self.stack.append(self.thing())
        self.fill(items)

    def thing_to_mark(self) -> None:
        """LIST and FROZENSET."""
        items = self.pop_mark()
        self.stack.append(self.thing())
        self.extend(items)

    def set_item(self) -> None:
        """SETITEM."""
        value, key = self.stack.pop(), self.stack.pop()
        self.fill([key, value])

    def set_items(self) -> None:
        """SETITEMS."""
        self.fill(self.pop_mark())

    def fill(self, items: list[Any]) -> None:
        """Set keys and values of the topmost thing."""
        target = self.stack[-1]
        self.changes(target)
        if isinstance(target, Thing):
            for key, value in zip(items[::2], items[1::2], strict=True):
                target.hold(key, value)
                if isinstance(key, str):
                    target.set(key, value)
                    if isinstance(value, Number) and key in STEP_KEYS and len(self.counts) < _MOST_VALUES:
                        self.counts[value] = None
                    if key in _FACTS and isinstance(value, int) and is_count(value):
                        values = self.facts.setdefault(key, set())
                        if len(values) < _MOST_VALUES:
                            values.add(value)

    def append(self) -> None:
        """APPEND."""
        self.extend([self.stack.pop()])

    def append_to_mark(self) -> None:
        """APPENDS and ADDITEMS."""
        self.extend(self.pop_mark())

    def extend(self, items: list[Any]) -> None:
        """Append items to the topmost thing."""
        target = self.stack[-1]
        self.changes(target)
        if isinstance(target, Thing):
            first = len(target.parts or ())
            for number, item in enumerate(items):
                target.hold(first + number, item)

    def build(self) -> None:
        """BUILD: an object gets its attributes."""
        state = self.stack.pop()
        target = self.stack[-1]
        self.changes(target)
        if isinstance(target, Thing):
            target.take_state(state)

    def changes(self, target: object) -> None:
        """Refuse to change an object that is not the pickle's own: an attribute of a class, a table of a module."""
        if isinstance(target, GlobalName):
            self.danger(f"a change of {target.name.replace(' ', '.')}"[:_LONGEST_TEXT])

    def persistent(self) -> None:
        """Note torch's storages: ("storage", type, key, location, count of elements); legacy files also hold ("module", class, …)."""
        result: Any = _OPAQUE
        match self.stack.pop():
            case ("storage", GlobalName(kind), str(key), _, int(count), *_):
                result = self.storages.setdefault(key, Storage(key, kind, count))
            case ("module", GlobalName() as kind, *_):
                result = kind
            case _:
                pass
        self.stack.append(result)


def _nothing(_machine: PickleMachine, _arg: Any) -> None:  # noqa: ANN401 -- an opcode's argument is whatever the opcode says
    pass


def _push_arg(machine: PickleMachine, arg: Any) -> None:  # noqa: ANN401 -- as above
    machine.stack.append(arg)


def _push(value: object) -> Callable[[PickleMachine, Any], None]:
    return lambda machine, _arg: machine.stack.append(value)


def _push_thing(machine: PickleMachine, _arg: Any) -> None:  # noqa: ANN401 -- as above
    machine.stack.append(machine.thing())


def _put(machine: PickleMachine, arg: Any) -> None:  # noqa: ANN401 -- as above
    machine.memo[arg] = machine.stack[-1]


def _extension(machine: PickleMachine, _arg: Any) -> None:  # noqa: ANN401 -- as above
    machine.danger("a callable by its number in copyreg's registry")
    machine.stack.append(_OPAQUE)


_EFFECTS: Final[dict[str, Callable[[PickleMachine, Any], None]]] = {
    **dict.fromkeys(("PROTO", "FRAME", "READONLY_BUFFER"), _nothing),
    **dict.fromkeys(("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"), _push_arg),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"), _push_arg),
    **dict.fromkeys(("EXT1", "EXT2", "EXT4"), _extension),
    **dict.fromkeys(
        ("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        _push_arg,
    ),
    **dict.fromkeys(("BYTEARRAY8", "NEXT_BUFFER", "PERSID"), _push(_OPAQUE)),
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


# pickletools.genops takes three times as long: it also finds each opcode's position
OPCODES: Final = {op.code.encode("latin-1"): (reader_of(op.arg), _EFFECTS[op.name]) for op in pickletools.opcodes if op.name != "STOP"}
