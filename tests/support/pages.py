"""Finds a page of the documentation by its name: no two have the same."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import ModuleType

_ROOT: Final = Path(__file__).parents[2]
DOCS: Final = _ROOT / "docs"


def page_path(name: str) -> Path:
    """Return the path of the page."""
    (path,) = DOCS.rglob(name)
    return path


def reference() -> ModuleType:
    """Return the module that makes the tables."""
    sys.path.append(str(_ROOT / "bench"))
    try:
        return import_module("reference")
    finally:
        sys.path.remove(str(_ROOT / "bench"))


@cache
def page_text(name: str) -> str:
    """Return the text of the page as the site has it: with the tables that are made from the code."""
    return str(reference().page_text(page_path(name)))
