"""Finds a page of the documentation by its name: no two have the same."""

from __future__ import annotations

from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parents[2] / "docs"


def page_path(name: str) -> Path:
    """Return the path of the page."""
    (found,) = DOCS.rglob(name)
    return found


def page_text(name: str) -> str:
    """Return what stands in the page."""
    return page_path(name).read_text(encoding="utf-8")
