"""Makes tables of fields: what a field, a value or a key means stands beside it in the source, as a comment, and nowhere else."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A field of a class, a member of an enum, or a key of a dictionary: its name, and for a member its value.
_ENTRY = re.compile(r"""\s+(?:"(?P<key>\w+)":|(?P<field>\w+):|\w+ = "(?P<value>[^"]+)")""")
_OURS = ("supervisor.", "checkpointing.", "health.")
_COMMENT = re.compile(r"(?:^\s+|  )# (?!noqa|fmt:|type:)(.+?)(?:  # .*)?$")


def described(source: object) -> dict[str, str]:
    """Return what the comments of a class or a function say of each of its entries: those above it, and that behind it.

    Of a class, with those of the classes that it extends.
    """
    texts: dict[str, str] = {}
    above: list[str] = []
    parts = reversed(source.__mro__) if isinstance(source, type) else (source,)
    ours = [part for part in parts if inspect.getmodule(part).__name__.startswith(_OURS)]
    for line in "\n".join(map(inspect.getsource, ours)).splitlines():
        comment, entry = _COMMENT.search(line), _ENTRY.match(line)
        if comment and line.lstrip().startswith("#"):
            above.append(comment[1])
            continue
        if entry and (words := " ".join([*above, *([comment[1]] if comment else [])])):
            texts[entry["key"] or entry["field"] or entry["value"]] = words
        above = []
    return texts


def rows(source: object, **inner: object) -> Iterator[tuple[str, str]]:
    """Yield (name, meaning) of each entry that has one. inner: by the name of an entry, what describes the objects in it."""
    for name, text in described(source).items():
        yield f"`{name}`", text.replace("|", r"\|")
        if name in inner:
            yield from ((f"`{name}.{key}`", text.replace("|", r"\|")) for key, text in described(inner[name]).items())
