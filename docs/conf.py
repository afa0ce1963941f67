"""The site of the documentation, which `make docs` builds with Sphinx; a warning is an error there."""

from __future__ import annotations

import re
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

_VERSION = Path(__file__).parents[1] / "supervisor" / "version.py"

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
