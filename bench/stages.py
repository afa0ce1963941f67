"""The tables of docs/reference/stages.md: the rows by which `decide` answers events, and a drawing that is made of them."""

from __future__ import annotations

from supervisor.core.decide import EVENTS
from supervisor.core.events import SupervisorStarted
from supervisor.core.state import Stage


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


def events() -> str:
    """Return the table of the events: in which stages each is answered, and by what."""
    lines = ["| event | stages | answered by |", "|---|---|---|"]
    for kind, row in EVENTS.items():
        missing = [stage.name for stage in Stage if stage not in row.stages]
        stages = ", ".join(stage.name for stage in Stage if stage in row.stages)
        short = "every stage" if not missing else f"all but {missing[0]}" if len(missing) == 1 else stages
        module = row.handler.__module__.rpartition(".")[2]
        lines.append(f"| `{kind.__name__}` | {short} | `core/{module}.py` `{row.handler.__name__}` |")
    return "\n".join(lines)
