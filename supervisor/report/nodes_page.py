"""What `supervise status --all-nodes` shows: where each node of a job stands, and how old that is. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.time_text import span_text
from supervisor.core.values import Struct
from supervisor.report import wording
from supervisor.report.layout import Fact, FactPage, Tone

if TYPE_CHECKING:
    from collections.abc import Sequence

UNKNOWN = "unknown"
#: How a node stands that takes no part any more, or of which nothing is known.
_TONES = {"lost": Tone.BAD, "supervise died": Tone.BAD, UNKNOWN: Tone.WARNING, "left": Tone.WARNING}
#: Where a node's line comes from.
SOURCES = {"here": "this node", "coordinator": "by the coordinator", "journal": "by its journal", "": "nothing is known of it"}
#: Nodes that are listed one by one; of more, those that are not as the others.
MOST_LISTED = 32


class NodeStatus(Struct, frozen=True):
    """One node. number: among the nodes of the newest attempt, None: it takes no part in it. None and "" elsewhere: not known.

    state: a stage, `lost`, `left`, `done`, `waits to join`, `ended with 0`, `supervise died`, or UNKNOWN. step: of its rank that is
    furthest behind. age_s: how old this is. source: a key of SOURCES. why: it is lost, or has left. step_s: seconds of a step, and own_s:
    what of it the node needs by itself. health: what is found to be wrong with it.
    """

    node: str
    number: int | None
    state: str = UNKNOWN
    attempt: int | None = None
    step: int | None = None
    relative: bool = False
    phase: str = ""
    ranks: str = ""
    gpus_out: int = 0
    age_s: float | None = None
    source: str = ""
    why: str = ""
    step_s: float | None = None
    own_s: float | None = None
    health: str = ""

    @property
    def name(self) -> str:
        """What people call it: its host, and its number among the others."""
        return self.node if self.number is None else f"{self.node}:{self.number}"

    @property
    def tone(self) -> Tone:
        """How its line reads."""
        return _TONES.get(self.state, Tone.PLAIN)


class JobNodesStatus(Struct, frozen=True):
    """All nodes of a job. attempt: the newest. coordinator: its node, "": none answered, for `no_coordinator`.

    slow: which ranks or nodes make the others wait, a sentence for each.
    """

    job: str
    attempt: int
    nodes: tuple[NodeStatus, ...]
    coordinator: str = ""
    no_coordinator: str = ""
    slow: tuple[str, ...] = ()


def nodes_page(job: JobNodesStatus, address: str, incidents: Sequence[Fact] = ()) -> FactPage:
    """Return the page. address: the options by which our other commands find the job. incidents: facts on the last one."""
    members = [node for node in job.nodes if node.number is not None]
    others = [node for node in job.nodes if node.number is None]
    bad = [node for node in members if node.tone is not Tone.PLAIN]
    count = f"{len(members)} {'node' if len(members) == 1 else 'nodes'}"
    title = f"job {job.job} on {count}: attempt {job.attempt}" + (f", {len(bad)} not there" if bad else "")
    facts = [
        *_listed("nodes", members),
        *_listed("others", others),
        *(Fact(wording.STRANGE, text, Tone.WARNING) for text in job.slow),
        Fact("coordinator", f"the coordinator on {job.coordinator} answered" if job.coordinator else job.no_coordinator),
        *incidents,
        Fact("look", f"supervise status {address}", copied=True),
    ]
    tone = max((node.tone for node in members), key=list(_ORDER).index, default=Tone.GOOD)
    return FactPage(title, tuple(facts), Tone.GOOD if tone is Tone.PLAIN else tone)


_ORDER = (Tone.PLAIN, Tone.WARNING, Tone.BAD)


def _listed(label: str, nodes: Sequence[NodeStatus]) -> list[Fact]:
    """Return a line for each node; of very many, for those that are not as most are, and one for the rest."""
    rest: list[NodeStatus] = []
    if len(nodes) > MOST_LISTED:
        states = [node.state for node in nodes]
        usual = max(set(states), key=states.count)
        rest = [node for node in nodes if node.state == usual]
        nodes = [node for node in nodes if node.state != usual]
    texts = [(_text(node), node.tone) for node in nodes]
    if rest:
        texts.append((_together(rest), rest[0].tone))
    return [Fact("" if at else label, text, tone) for at, (text, tone) in enumerate(texts)]


def _text(node: NodeStatus) -> str:
    known = [
        f"{node.state}{f': {node.why}' if node.why else ''}",
        *([] if node.attempt is None else [f"attempt {node.attempt}"]),
        *([wording.step_text(node.step, relative=node.relative)] if node.step is not None else []),
        *([f"phase {node.phase}"] if node.phase not in {"", "unknown"} else []),
        *([node.ranks] if node.ranks else []),
        *([f"{node.step_s:.3g} s a step, {node.own_s:.3g} s by itself"] if node.step_s is not None and node.own_s is not None else []),
        *([f"health: {node.health}"] if node.health else []),
        *([f"{node.gpus_out} GPUs out of use"] if node.gpus_out else []),
    ]
    age = "" if node.age_s is None or node.source == "here" else f", {span_text(node.age_s)} ago"
    return f"{node.name}: {', '.join(known)} ({SOURCES[node.source]}{age})"


def _together(nodes: Sequence[NodeStatus]) -> str:
    steps = sorted(node.step for node in nodes if node.step is not None)
    ages = [node.age_s for node in nodes if node.age_s is not None]
    text = f"{len(nodes)} more: {nodes[0].state}"
    text += f", step {steps[0]}" + (f" to {steps[-1]}" if steps[-1] != steps[0] else "") if steps else ""
    return text + (f"; the oldest news is {span_text(max(ages))} old" if ages else "")
