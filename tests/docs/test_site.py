"""The site of the documentation: it is built without a warning, and a browser fetches nothing of it from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What a browser fetches by itself; a link (<a href>) it does not.
FETCHED = re.compile(r"""<(?:script|img|iframe|link|source|object|embed)\b[^>]*?\b(?:src|href|data)\s*=\s*["'](https?:)?//[^"']+""")


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(400)
def test_the_site_is_built_without_a_warning_and_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("furo", reason="the extra [docs] is not installed: make docs")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", tmp_path / "doctrees", ROOT / "docs", tmp_path / "site"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False)  # noqa: S603  ours
    assert (done.returncode, done.stderr) == (0, "")
    pages = {path.relative_to(tmp_path / "site"): path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.html")}
    sources = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert sources <= pages.keys()
    assert {str(page): addresses for page, text in pages.items() if (addresses := FETCHED.findall(text))} == {}
