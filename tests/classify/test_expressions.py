"""Regular expressions that are compiled at their first use."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

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


def _expressions(value: object) -> Iterator[re.Pattern[str]]:
    """Yield the expressions of a constant: itself, or those in it."""
    if type(value) is expressions._Expression:  # noqa: SLF001  what each constant is
        yield cast("re.Pattern[str]", value)
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _expressions(inner)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _expressions(inner)


def test_each_constant_is_a_right_expression() -> None:
    modules = [importlib.import_module(module.name) for module in pkgutil.walk_packages(classify.__path__, f"{classify.__name__}.")]
    late = [pattern for module in modules for value in vars(module).values() for pattern in _expressions(value)]
    assert len(late) > 150
    assert all(re.compile(pattern.pattern, pattern.flags) for pattern in late)
