"""docs/reference/stages.md says what every stage is."""

from __future__ import annotations

from supervisor.core.state import Stage
from tests.support.pages import page_text


def test_the_page_says_what_every_stage_is() -> None:
    page = page_text("stages.md")
    assert all(f"| `{stage}` |" in page for stage in Stage)
