"""Regular expressions that are compiled at their first use."""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import TYPE_CHECKING, Any

from supervisor import classify
from supervisor.classify import expressions
from supervisor.classify.expressions import expression

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_an_expression_is_compiled_at_its_first_use_and_is_its_pattern_from_then_on() -> None:
    words = expression(r"(\w+) \1", re.IGNORECASE)
    assert "search" not in vars(words)
    assert words.search("Go go") is not None
    assert vars(words)["search"].__self__ is re.compile(r"(\w+) \1", re.IGNORECASE)
    assert (words.sub("-", "a go Go"), words.pattern, words.groups) == ("a -", r"(\w+) \1", 1)


def of(value: object) -> Iterator[Any]:
    """Yield the expressions in a constant of a module."""
    if type(value) is expressions._Expression:  # noqa: SLF001  what each constant is
        yield value
    elif isinstance(value, dict):
        yield from of(tuple(value.values()))
    elif isinstance(value, tuple):
        for part in value:
            yield from of(part)
    elif not isinstance(value, type):
        for name in getattr(value, "__struct_fields__", ()):
            yield from of(getattr(value, name))


def test_each_of_ours_is_a_right_expression() -> None:
    modules = [importlib.import_module(row.name) for row in pkgutil.walk_packages(classify.__path__, f"{classify.__name__}.")]
    late = [each for module in modules for value in vars(module).values() for each in of(value)]
    assert len(late) > 150
    assert all(re.compile(each.pattern, each.flags) for each in late)
