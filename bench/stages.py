"""The rows by which `decide` answers events, timers and signals, as tables; and a drawing that is made of them.

docs/reference/stages.md has the events, the timers and the drawing, docs/guides/preemption.md has the signals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify.exits import signal_name
from supervisor.core.events import SupervisorStarted
from supervisor.core.machine import EVENTS, TIMERS
from supervisor.core.signals import EFFECTS, SIGNALS, Meaning
from supervisor.core.state import Stage

if TYPE_CHECKING:
    from collections.abc import Callable


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
        lines.append(f"| `{kind.__name__}` | {short} | {_place(row.handler)} |")
    return "\n".join(lines)


def timers() -> str:
    """Return the table of the timers: in which stage each is answered, and by what."""
    rows = [f"| `{name}` | {stage.name} | {_place(handler)} |" for (name, stage), handler in TIMERS.items()]
    return "\n".join(["| timer | stage | answered by |", "|---|---|---|", *rows])


def _place(handler: Callable[..., object]) -> str:
    module = handler.__module__.removeprefix("supervisor.").replace(".", "/")
    return f"`{module}.py` `{handler.__name__}`"


def signals() -> str:
    """Return the table of the signals: what each says, and with which code the run ends."""
    rows = [f"| {_names(meaning)} | {row.says} | {row.exit_code} |" for meaning, row in SIGNALS.items()]
    return "\n".join(["| signal | says | exit code |", "|---|---|---|", *rows])


def answers() -> str:
    """Return the table of what each signal does, by where the job is."""
    order = (Meaning.NOTICE, Meaning.END, Meaning.PERSON)
    rows = [f"| {moment.value} | {' | '.join(getattr(row, meaning) for meaning in order)} |" for moment, row in EFFECTS.items()]
    return "\n".join([f"| when it comes | {' | '.join(map(_names, order))} |", "|---|---|---|---|", *rows])


def _names(meaning: Meaning) -> str:
    return ", ".join(signal_name(signum).removeprefix("SIG") for signum in SIGNALS[meaning].signals)
