"""Regular expressions that are compiled at their first use."""

from __future__ import annotations

import gc
import importlib
import pkgutil
import re

from supervisor import classify
from supervisor.classify import expressions
from supervisor.classify.expressions import expression


def test_an_expression_is_compiled_at_its_first_use_and_is_its_pattern_from_then_on() -> None:
    words = expression(r"(\w+) \1", re.IGNORECASE)
    assert "search" not in vars(words)
    assert words.search("Go go") is not None
    assert vars(words)["search"].__self__ is re.compile(r"(\w+) \1", re.IGNORECASE)
    assert (words.sub("-", "a go Go"), words.pattern, words.groups) == ("a -", r"(\w+) \1", 1)


def test_each_of_ours_is_a_right_expression() -> None:
    for module in pkgutil.walk_packages(classify.__path__, f"{classify.__name__}."):
        importlib.import_module(module.name)
    late = [value for value in gc.get_objects() if type(value) is expressions._Expression]  # noqa: SLF001  what each constant is
    assert len(late) > 150
    assert all(re.compile(value.pattern, value.flags) for value in late)
