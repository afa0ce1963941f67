"""Of the forms of a promise the fast tests run the first, which are those that users have most; `make test-all` runs all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable


def few(values: Iterable[object], count: int = 1) -> list[object]:
    """Return the values of a parameter, all but the first `count` of them marked slow."""
    return [value if n < count else pytest.param(value, marks=pytest.mark.slow) for n, value in enumerate(values)]


def few_rows(rows: Iterable[tuple[object, ...]], count: int = 1) -> list[object]:
    """Return the rows of several parameters, all but the first `count` of them marked slow."""
    return [row if n < count else pytest.param(*row, marks=pytest.mark.slow) for n, row in enumerate(rows)]
