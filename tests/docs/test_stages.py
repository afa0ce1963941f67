"""docs/stages.md shows the rows by which `decide` answers events."""

from __future__ import annotations

from pathlib import Path

from supervisor.core.decide import EVENTS
from supervisor.core.state import Stage

PAGE = Path(__file__).parents[2] / "docs" / "stages.md"


def table() -> str:
    """Return the table of the events as the page has it."""
    lines = ["| event | stages | answered by |", "|---|---|---|"]
    for kind, row in EVENTS.items():
        missing = [stage.name for stage in Stage if stage not in row.stages]
        stages = ", ".join(stage.name for stage in Stage if stage in row.stages)
        short = "every stage" if not missing else f"all but {missing[0]}" if len(missing) == 1 else stages
        module = row.handler.__module__.rpartition(".")[2]
        lines.append(f"| `{kind.__name__}` | {short} | `core/{module}.py` `{row.handler.__name__}` |")
    return "\n".join(lines)


def test_the_page_shows_the_rows_of_the_events() -> None:
    shown = PAGE.read_text(encoding="utf-8").partition("<!-- events -->\n")[2].partition("\n<!-- /events -->")[0]
    assert shown == table()


def test_the_page_names_every_stage() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(stage.name in page for stage in Stage)
