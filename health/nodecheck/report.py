"""The report of a node check, as results, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from health import judge as health_judge
from health.checks import node_environments
from health.model import HOST, CheckResult, Readings, Repair, Result, worst
from health.nodecheck.model import Kind
from health.nodecheck.trial_judge import DEFAULT, judge, pair_trials, speeds
from health.probing.runner import OUTCOME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from health.model import Json
    from health.nodecheck.model import Pair, TrialEvidence
    from health.nodecheck.trial_judge import Limits, Slow

VERSION: Final = 1
UNFIT: Final = 69
PRESENCE: Final = "node_presence"
FAILURES: Final = "node_failures"
COMPUTE: Final = "node_compute"
LINKS: Final = "node_links"
_NODES: Final = "env_nodes"


def results(known: TrialEvidence, limits: Limits = DEFAULT) -> tuple[CheckResult, ...]:
    """Return the faults, worst first, and last the extent of the check; never empty."""
    verdicts = judge(known, limits)
    rows = [
        *(_presence(known, rank, why) for rank, why in known.gone.items()),
        *(_unfinished(known, rank, step) for rank, step in known.unfinished.items()),
        *(_failing(known, rank, why) for rank, why in verdicts.failing.items()),
        *(_failing_link(known, pair, why) for pair, why in verdicts.failing_links.items()),
        *(_doubt(known, pair, why) for pair, why in verdicts.doubts.items()),
        *(
            _slow(COMPUTE, f"rank:{rank}", f"{_name(known, rank)} computes slowly", [slowness], limits)
            for rank, slowness in verdicts.slow_compute.items()
        ),
        *(_slow_rank(known, rank, slow, limits) for rank, slow in verdicts.slow_ranks.items()),
        *(_slow_link(known, pair, slow, limits) for pair, slow in verdicts.slow_links.items()),
        *_environments(known),
    ]
    if known.rehearsed:  # so that no reader takes it for a real fault
        rows = [replace(check_result, reason="rehearsal: " + check_result.reason) for check_result in rows]
    return (*worst(rows), _extent(known))


def exit_code(rows: Iterable[CheckResult]) -> int:
    """Return 0, or UNFIT where anything is FAILED."""
    return UNFIT if any(check_result.result is Result.FAILED for check_result in rows) else 0


def to_json(known: TrialEvidence, rows: Sequence[CheckResult], seconds: float, t: float) -> dict[str, Json]:
    """Return the object of `--json`."""
    return {
        "v": VERSION,
        "t": t,
        "seconds": round(seconds, 3),
        "fit": exit_code(rows) == 0,
        "rehearsal": known.rehearsed,
        "world": known.world,
        "meetings": len(pair_trials(known)),
        "members": [known.members[rank].to_json() for rank in sorted(known.members)],
        "speeds": list(speeds(known)),
        "results": [check_result.to_json() for check_result in rows],
    }


def lines(outcome: dict[str, Json]) -> Iterable[str]:
    """Yield the lines for people of what `to_json` returned."""
    rows = outcome["results"]
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict):
            yield f"{str(row['result']).upper():<9} {row['check']:<14} {row['reason']}"
            evidence = row["evidence"]
            yield from (f"{'':<25}  {line}" for line in (evidence if isinstance(evidence, list) else []))
    members, ratios = outcome["members"], outcome["speeds"]
    models = {str(member["model"]) for member in members if isinstance(member, dict)} if isinstance(members, list) else set()
    if len(models) > 1 and isinstance(ratios, list) and ratios:
        by_rank = ",".join(f"{ratio:g}" for ratio in ratios)
        yield f"{'':<9} {'speeds':<14} {by_rank} by rank: what --knob grad_accum:planned:BATCH=plan: takes"
    fit = "all ranks are fit for a job" if outcome["fit"] else "not fit for a job until the FAILED ones are repaired or left out"
    yield f"node check of {outcome['world']} ranks in {outcome['seconds']:.1f} s: {fit}"


def time_of(seconds: float) -> str:
    """Return a time for people."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def _name(known: TrialEvidence, rank: int) -> str:
    return str(known.members.get(rank, f"rank {rank}"))


def _ends(known: TrialEvidence, pair: Pair) -> str:
    return f"{_name(known, pair[0])} and {_name(known, pair[1])}"


def _link(pair: Pair) -> str:
    return f"link:{pair[0]}-{pair[1]}"


def _met(known: TrialEvidence, rank: int) -> int:
    return sum(1 for _, _, pair in pair_trials(known) if rank in pair)


def _presence(known: TrialEvidence, rank: int, why: str) -> CheckResult:
    return CheckResult(PRESENCE, f"rank:{rank}", Result.FAILED, f"{_name(known, rank)}: {why}", repair=Repair.DRAIN)


def _unfinished(known: TrialEvidence, rank: int, step: str) -> CheckResult:
    return CheckResult(PRESENCE, f"rank:{rank}", Result.UNKNOWN, f"{_name(known, rank)}: not through at the deadline; last: {step}")


def _failing(known: TrialEvidence, rank: int, why: Sequence[str]) -> CheckResult:
    reason = f"{_name(known, rank)} failed in {len(why)} of {_met(known, rank)} meetings; its partners pass with others"
    return CheckResult(FAILURES, f"rank:{rank}", Result.FAILED, reason, tuple(why[:3]), Repair.DRAIN)


def _failing_link(known: TrialEvidence, pair: Pair, why: Sequence[str]) -> CheckResult:
    reason = f"link between {_ends(known, pair)}: {len(why)} of {_met_each_other(known, pair)} meetings failed" + _both_pass(known, pair)
    return CheckResult(FAILURES, _link(pair), Result.FAILED, reason, tuple(why[:3]), Repair.DRAIN)


def _both_pass(known: TrialEvidence, pair: Pair) -> str:
    return ", and both pass with others" if all(_met(known, rank) > _met_each_other(known, pair) for rank in pair) else ""


def _met_each_other(known: TrialEvidence, pair: Pair) -> int:
    return sum(1 for _, _, other in pair_trials(known) if other == pair)


def _doubt(known: TrialEvidence, pair: Pair, why: str) -> CheckResult:
    reason = (
        f"{_ends(known, pair)}: one of {_met_each_other(known, pair)} meetings went wrong: chance, their link, or one of them: check again"
    )
    return CheckResult(FAILURES, _link(pair), Result.UNKNOWN, reason, (why,))


def _slow_rank(known: TrialEvidence, rank: int, slow: Sequence[Slow], limits: Limits) -> CheckResult:
    alone = all(trial.kind is Kind.OVERLAP for trial in slow)
    word = "is slow where it computes and communicates at once" if alone else "communicates slowly with all its partners"
    return _slow(LINKS, f"rank:{rank}", f"{_name(known, rank)} {word}", slow, limits)


def _slow_link(known: TrialEvidence, pair: Pair, slow: Sequence[Slow], limits: Limits) -> CheckResult:
    return _slow(LINKS, _link(pair), f"link between {_ends(known, pair)} is slow, and both are not with others", slow, limits)


def _slow(check: str, subject: str, reason: str, slow: Sequence[Slow], limits: Limits) -> CheckResult:
    result = Result.FAILED if max(row.ratio for row in slow) >= limits.failed else Result.DEGRADED
    evidence = (
        f"{row.kind.value}: {time_of(row.seconds)}, {time_of(row.others)} for the others (median of {row.count}): {row.ratio:.1f} times"
        for row in slow
    )
    return CheckResult(check, subject, result, reason, tuple(evidence), Repair.DRAIN)


def _environments(known: TrialEvidence) -> Iterator[CheckResult]:
    """Yield what differs between nodes; nothing for a single node."""
    if len(known.nodes) < 2:  # noqa: PLR2004 -- to be alike takes two
        return
    alike = Counter(node.host for node in known.nodes.values())
    nodes = {node.host if alike[node.host] == 1 else f"{node.host} (rank {rank})": node.readings for rank, node in known.nodes.items()}
    for name, readings in nodes.items():
        if readings.one("env.versions") is None:
            outcome = readings.table(OUTCOME, "probe:environment")
            why = f"{outcome.get('state', 'no answer')} {outcome.get('why', '')}".strip()
            yield CheckResult(_NODES, HOST, Result.UNKNOWN, f"{name}: its environment could not be read: {why}")
    asked = Readings(reading for readings in nodes.values() for reading in readings.of(OUTCOME))
    rows = health_judge.judge(asked + node_environments.merge_nodes(nodes), checks={_NODES: node_environments.env_nodes})
    yield from (check_result for check_result in rows if check_result.result is not Result.SKIPPED)


def _extent(known: TrialEvidence) -> CheckResult:
    met = pair_trials(known)
    few = "" if len({*(rank for _, _, pair in met for rank in pair)}) > 2 else "; too few to compare: that takes three ranks"  # noqa: PLR2004
    reason = f"{len(known.members)} of {known.world} ranks came; {len(met)} meetings of {len({pair for _, _, pair in met})} pairs{few}"
    return CheckResult(PRESENCE, "host", Result.UNKNOWN if few else Result.OK, reason)
