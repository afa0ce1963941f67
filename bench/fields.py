"""Makes tables of what comments in the source say beside a field, a value or a key: it stands there, and nowhere else."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FunctionType, ModuleType

#: A key of a dictionary, a field of a class, a member of an enum by its value, a pair of names by the last, a name with its module, and a
#: table of rows.
_ENTRIES = (
    r'\s+(?:\w+\[)?"(\w+)"(?::|\] = )',
    r"\s+(\w+): ",
    r'\s+[A-Z_]+ = "([^"]+)"',
    r'\s+\("\w+", "(\w+)"\),',
    r'\s+\("(\w+)", "checkpointing\.[\w.]+"\),',
    r"([A-Z]+(?:_[A-Z]+)*): Final = RowTable\(",
)
_ENTRY = re.compile("|".join(_ENTRIES))
_COMMENT = re.compile(r"(?:^\s*|  )#:? (?!noqa|fmt:|type:)(.+?)(?:  # .*)?$")
_OURS = ("supervisor.", "checkpointing.", "health.")


def described(source: type | FunctionType | ModuleType) -> dict[str, str]:
    """Return what comments say above and after each entry of a class (with those that it extends), a function or a module."""
    texts: dict[str, str] = {}
    above: list[str] = []
    parts = [part for part in reversed(source.__mro__) if part.__module__.startswith(_OURS)] if isinstance(source, type) else [source]
    for line in "\n".join(map(inspect.getsource, parts)).splitlines():
        comment, entry = _COMMENT.search(line), _ENTRY.match(line)
        if comment and line.lstrip().startswith("#"):
            above.append(comment[1])
            continue
        if entry and (words := " ".join([*above, *([comment[1]] if comment else [])])):
            texts[entry[entry.lastindex or 0]] = words
        above = []
    return texts


def rows(source: type | FunctionType | ModuleType, **inner: type | FunctionType) -> Iterator[tuple[str, str]]:
    """Yield (name, meaning) of each entry that has one. inner: by the name of an entry, what describes the objects in it."""
    for name, text in described(source).items():
        yield f"`{name}`", text
        if name in inner:
            yield from ((f"`{name}.{key}`", words) for key, words in described(inner[name]).items())


def names(module: ModuleType, *listed: str) -> Iterator[str]:
    """Yield a heading, a signature and the docstring for each of the listed names of a module."""
    for name in listed:
        thing = getattr(module, name)
        text = re.sub(r"\s*\(docs/[^)]*\)", "", inspect.getdoc(thing) or "")
        yield f"## {name}"
        if inspect.isroutine(thing) or "__init__" in vars(thing):
            yield f"    {name}({', '.join(_parameters(inspect.signature(thing)))})"
        yield text


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    is_keyword = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            is_keyword = True
            yield "*"
        default = parameter.default
        text = repr(default) if default is None or isinstance(default, str | float | int | tuple) else "…"
        yield parameter.name if default is parameter.empty else f"{parameter.name}={text}"


def tables_of_rows(*modules: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield (name, meaning) of each table of rows of the modules (checkpointing/io/row_file.py)."""
    for module in modules:
        yield from ((f"`{getattr(module, constant).name}`", text) for constant, text in described(module).items() if constant.isupper())
