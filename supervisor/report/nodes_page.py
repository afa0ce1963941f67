"""The page of `supervise status --all-nodes`: the state of each node of a job, and its age. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.units import span_text, step_time_text
from supervisor.core.values import Struct
from supervisor.report import wording
from supervisor.report.layout import Fact, FactPage, Tone
from supervisor.report.table import Cell, Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

UNKNOWN = "unknown"
#: The state of a node that takes no part any more, or of which nothing is known.
_TONES = {"lost": Tone.BAD, "supervise died": Tone.BAD, "hung": Tone.BAD, UNKNOWN: Tone.WARNING, "left": Tone.WARNING}
#: Where a node's line comes from.
SOURCES = {"here": "this node", "coordinator": "by the coordinator", "journal": "by its journal", None: "nothing is known of it"}
#: Nodes that are listed one by one; of more, those that are not as the others.
MOST_LISTED = 32


class NodeStatus(Struct, frozen=True):
    """One node of a job. None: not known."""

    node: str  # host name
    number: int | None  # among the nodes of the attempt; null: it takes no part in it
    state: str = UNKNOWN  # a word as in `status`, or lost, left, done, waits to join, unknown
    why: str | None = None  # it is lost, or has left
    attempt: int | None = None  # this and the next three as in `status`, of this node
    step: int | None = None  # of its rank that is furthest behind
    step_relative: bool = False  # counted from where the attempt began
    phase: str = "unknown"  # what its ranks do
    ranks: str | None = None  # those that live, such as `ranks 0-7`; null: none, or not known
    gpus_out_of_use: int = 0  # how many of its GPUs
    step_s: float | None = None  # seconds of a step over the last minute
    own_s: float | None = None  # what of it the node needs by itself
    health: str | None = None  # the faults found in the node
    age_s: float | None = None  # how old this is, in seconds
    source: str | None = None  # where it comes from

    @property
    def name(self) -> str:
        """Its name for people: its host, and its number among the others."""
        return self.node if self.number is None else f"{self.node}:{self.number}"

    @property
    def tone(self) -> Tone:
        """How its line reads."""
        return _TONES.get(self.state, Tone.PLAIN)


class JobNodesStatus(Struct, frozen=True):
    """All nodes of a job."""

    job: str  # its name
    attempt: int  # the newest
    nodes: tuple[NodeStatus, ...]  # by group rank, then those that take no part
    coordinator: str | None = None  # the node of the coordinator that answered; else null
    no_coordinator: str | None = None  # why none answered
    slow: tuple[str, ...] = ()  # which nodes make the others wait: a list of texts


def nodes_page(job: JobNodesStatus, address: str, incidents: Sequence[Fact] = ()) -> tuple[FactPage | Table, ...]:
    """Return the page, and below it a table of the attempt's nodes and one of those that take no part in it.

    address: the options by which our other commands find the job. incidents: facts on the last one.
    """
    members = [node for node in job.nodes if node.number is not None]
    others = [node for node in job.nodes if node.number is None]
    bad = [node for node in members if node.tone is not Tone.PLAIN]
    count = f"{len(members)} {'node' if len(members) == 1 else 'nodes'}"
    title = f"job {job.job} on {count}: attempt {job.attempt}" + (f", {len(bad)} not there" if bad else "")
    facts = [
        *(Fact(wording.STRANGE, text, Tone.WARNING) for text in job.slow),
        Fact("coordinator", f"the coordinator on {job.coordinator} answered" if job.coordinator else job.no_coordinator or ""),
        *incidents,
        Fact("look", f"supervise status {address}", copied=True),
    ]
    tone = max((node.tone for node in members), key=list(_ORDER).index, default=Tone.GOOD)
    page = FactPage(title, tuple(facts), Tone.GOOD if tone is Tone.PLAIN else tone)
    tables = (_table("nodes", members, job.attempt), _table("others: they take no part in the attempt", others, job.attempt))
    return page, *(table for table in tables if table.rows)


_ORDER = (Tone.PLAIN, Tone.WARNING, Tone.BAD)


_RIGHT = frozenset({"attempt", "step", "GPUs out"})
_COLUMNS = ("node", "state", "attempt", "step", "phase", "ranks", "a step takes", "GPUs out", "known", "why")


def _table(title: str, nodes: Sequence[NodeStatus], attempt: int) -> Table:
    """Return a row for each node; of very many, for those that are not as most are, and one for the rest."""
    rest: list[NodeStatus] = []
    if len(nodes) > MOST_LISTED:
        states = [node.state for node in nodes]
        usual = max(set(states), key=states.count)
        rest = [node for node in nodes if node.state == usual]
        nodes = [node for node in nodes if node.state != usual]
    rows = [_row(node, attempt) for node in nodes] + ([_together(rest)] if rest else [])
    return Table(tuple(Column(name, right=name in _RIGHT) for name in _COLUMNS), tuple(rows), title=title)


def _row(node: NodeStatus, attempt: int) -> tuple[Cell | str, ...]:
    step = "" if node.step is None else wording.step_text(node.step, relative=node.step_relative).removeprefix("step ")
    pace = "" if node.step_s is None or node.own_s is None else f"{step_time_text(node.step_s)}, {step_time_text(node.own_s)} by itself"
    age = "" if node.age_s is None or node.source == "here" else f", {span_text(node.age_s)} ago"
    return (
        node.name,
        Cell(node.state, node.tone),
        "" if node.attempt in {None, attempt} else str(node.attempt),
        step,
        "" if node.phase == "unknown" else node.phase,
        node.ranks or "",
        pace,
        str(node.gpus_out_of_use) if node.gpus_out_of_use else "",
        SOURCES[node.source] + age,
        "; ".join(text for text in (node.why, node.health) if text),
    )


def _together(nodes: Sequence[NodeStatus]) -> tuple[Cell | str, ...]:
    steps = sorted(node.step for node in nodes if node.step is not None)
    ages = [node.age_s for node in nodes if node.age_s is not None]
    step = "" if not steps else str(steps[0]) if steps[0] == steps[-1] else f"{steps[0]} to {steps[-1]}"
    known = f"the oldest news is {span_text(max(ages))} old" if ages else ""
    return f"{len(nodes)} more", Cell(nodes[0].state, nodes[0].tone), "", step, "", "", "", "", known, ""
