"""`dataclass` as in the standard library, made at a third of its cost.

The standard library's writes the source of seven methods for each class and compiles them, which for 280 classes was a fifth of the time in
which a run starts. Only `__init__` needs source: the other methods are closures here. Made at less cost are frozen dataclasses with or
without slots; whatever has other options is the standard library's. `replace`, `fields`, `asdict`, patterns, copies and pickles work alike.

A type checker sees the standard library's name, and so all that it knows of dataclasses.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import Field
    from dataclasses import dataclass as dataclass  # noqa: PLC0414  this is where others get it from
else:

    def dataclass(cls=None, /, **options):  # noqa: ANN001, ANN003, ANN201  the signature is the standard library's
        """Make a class a dataclass: @dataclass(frozen=True, slots=True)."""
        cheap = options.get("frozen") and not options.keys() - {"frozen", "slots"}
        make = (lambda found: _frozen(found, slots=options.get("slots", False))) if cheap else dataclasses.dataclass(**options)
        return make if cls is None else make(cls)


_FACTORY = object()
_set = object.__setattr__


def _frozen(cls: type[Any], *, slots: bool) -> type[Any]:
    cls.__doc__ = cls.__doc__ or cls.__name__  # else the standard library makes one from a signature
    own = frozenset(name for name, value in cls.__dict__.items() if value is not None)  # with an __eq__ of its own, __hash__ is None
    made: type[Any] = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    fields = dataclasses.fields(made)
    methods = _methods(tuple(f.name for f in fields), tuple(f.name for f in fields if f.repr), _key(fields))
    if not slots:
        del methods["__getstate__"], methods["__setstate__"]
    methods["__init__"] = _init(made, fields, slots=slots)
    for name, method in methods.items():
        if name not in own:
            method.__qualname__ = f"{made.__qualname__}.{name}"
            setattr(made, name, method)
    return made


def _key(fields: tuple[Field[Any], ...]) -> Callable[[Any], Any]:
    """Return what gives the values by which two instances are compared."""
    names = tuple(f.name for f in fields if f.compare)
    if len(names) > 1:
        return attrgetter(*names)
    return (lambda one: (getattr(one, names[0]),)) if names else lambda _one: ()


def _methods(names: tuple[str, ...], shown: tuple[str, ...], key: Callable[[Any], Any]) -> dict[str, Callable[..., Any]]:
    def __eq__(self: object, other: object) -> bool:  # noqa: N807
        return bool(key(self) == key(other)) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: object) -> int:  # noqa: N807
        return hash(key(self))

    @recursive_repr()
    def __repr__(self: object) -> str:  # noqa: N807
        return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def __setattr__(_self: object, name: str, _value: object) -> None:  # noqa: N807
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(_self: object, name: str) -> None:  # noqa: N807
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __getstate__(self: object) -> list[Any]:  # noqa: N807
        return [getattr(self, name) for name in names]

    def __setstate__(self: object, state: list[Any]) -> None:  # noqa: N807
        for name, value in zip(names, state, strict=True):
            _set(self, name, value)

    found = (__eq__, __hash__, __repr__, __setattr__, __delattr__, __getstate__, __setstate__)
    return {method.__name__: method for method in found}


def _init(cls: type[Any], fields: tuple[Field[Any], ...], *, slots: bool) -> Callable[..., None]:
    """Return `__init__`, the one method whose parameters are the class's own."""
    names: dict[str, Any] = {"_set": _set, "_factory": _FACTORY}
    positional: list[str] = []
    named: list[str] = []
    body: list[str] = []
    for field in fields:
        name, default = field.name, f"_default_{field.name}"
        value = name
        if field.default_factory is not dataclasses.MISSING:
            names[f"_make_{name}"], names[default] = field.default_factory, _FACTORY
            value = f"_make_{name}() if {name} is _factory else {name}" if field.init else f"_make_{name}()"
        elif field.default is not dataclasses.MISSING:
            names[default] = field.default
            value = name if field.init else default
        if field.init:
            (named if field.kw_only else positional).append(f"{name}={default}" if default in names else name)
        elif default not in names or not slots:
            continue  # it is set elsewhere, or is the class's own
        body.append(f" _set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    parameters = ", ".join(["self", *positional, *(["*", *named] if named else [])])
    source = f"def __init__({parameters}):\n" + ("\n".join(body) or " pass")
    exec(source, names)  # noqa: S102  as the standard library does: names of our own fields, and no text from outside
    made: Callable[..., None] = names["__init__"]
    return made
