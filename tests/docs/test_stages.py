"""docs/reference/stages.md shows the rows by which `decide` answers events, and a drawing that is made of them.

`python -m tests.docs.test_stages` writes both into the page.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.core.decide import EVENTS
from supervisor.core.events import SupervisorStarted
from supervisor.core.state import Stage

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "stages.md"


def drawing() -> str:
    """Return the stages and the ways between them, as Mermaid draws them. A takeover, which may come in any stage, is left to the text."""
    ways: dict[tuple[Stage, Stage], list[str]] = {}
    for kind, row in EVENTS.items():
        for before, targets in row.leads_to.items():
            if kind is not SupervisorStarted or before is Stage.NEW:
                for after in targets:
                    ways.setdefault((before, after), []).append(kind.__name__)
    order = list(Stage)
    rows = sorted(ways, key=lambda way: (order.index(way[0]), order.index(way[1])))
    lines = [f"    {before.name} --> {after.name}: {', '.join(ways[before, after])}" for before, after in rows]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> NEW", *lines, "    ENDED --> [*]", "```"])


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


PARTS = {"drawing": drawing, "events": table}


@pytest.mark.parametrize("part", PARTS)
def test_the_page_shows_the_rows_of_the_events(part: str) -> None:
    shown = PAGE.read_text(encoding="utf-8").partition(f"<!-- {part} -->\n")[2].partition(f"\n<!-- /{part} -->")[0]
    assert shown == PARTS[part](), "write it anew: python -m tests.docs.test_stages"


def test_the_page_says_what_every_stage_is() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"| {stage.name} |" in page for stage in Stage)


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    for part, made in PARTS.items():
        before, _, rest = page.partition(f"<!-- {part} -->\n")
        page = f"{before}<!-- {part} -->\n{made()}\n<!-- /{part} -->{rest.partition(f'<!-- /{part} -->')[2]}"
    PAGE.write_text(page, encoding="utf-8")
