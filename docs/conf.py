"""The site of the documentation, which `make docs` builds with Sphinx; a warning is an error there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_ROOT = Path(__file__).parents[1]
_VERSION = _ROOT / "supervisor" / "version.py"
sys.path.append(str(_ROOT / "bench"))

project = html_title = "supervise"
(release,) = re.findall(r'^__version__ = "(.+)"', _VERSION.read_text(encoding="utf-8"), re.MULTILINE)
extensions = ["myst_parser"]
exclude_patterns = ["conf.py"]
nitpicky = True
html_theme = "furo"
html_copy_source = False
# A link to a heading is written as any viewer of Markdown takes it.
myst_heading_anchors = 4
# GitHub draws it; here it is shown as text, because the library that draws it would be fetched from elsewhere.
lexers["mermaid"] = TextLexer()


def _fill(_app: Sphinx, name: str, source: list[str]) -> None:
    """Put the tables that are made from the code into their pages."""
    from reference import page_text  # noqa: PLC0415 (only here is bench/ on the path)

    source[0] = page_text(_ROOT / "docs" / f"{name}.md")


def setup(app: Sphinx) -> None:
    """Read each page with its tables."""
    app.connect("source-read", _fill)
