"""Bounds what a node reports of an attempt to the others: what explains first. All of it stays in the node's own journal and logs.

A storm of time-outs leaves 150 KB of evidence on eight ranks, nearly all of it the same lines once more. With a thousand nodes that is
more than the judge has memory and seconds for, and it adds nothing. So a report has, in this order:

1. how the ranks and the launcher ended; then what the kernel and the driver say, and the exception that ended each rank;
2. the last heartbeat of each rank;
3. of what the logs hold one of each kind (the same but for numbers, ranks and addresses) and one more of another rank: the surest claim and
   the earliest time first; of marks of progress the newest;
4. the last lines of the ranks that ended first.

Omitted facts are counted in a fact of their own.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Final

from supervisor.classify.fingerprint import normalised
from supervisor.core.model import Evidence
from supervisor.core.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervisor.core.state import NodeReport

#: Bytes of the JSON of one report, the facts' part of it; a node of more ranks than 32 gets so much for each.
MOST_BYTES: Final = 46 << 10
MOST_BYTES_OF_A_RANK: Final = 1536
#: Lines of each kind that are kept; streams whose last lines are kept.
MOST_ALIKE, MOST_TAILS = 2, 4
#: Where a fact is in the order above.
_ENDS, _PROVEN, _BEATS, _LINES, _TAILS = range(5)
_STANDINGS: Final = {"exit": _ENDS, "launcher": _ENDS, "heartbeat": _BEATS, "log": _LINES, "observer": _LINES, "tail": _TAILS}
_PROGRESS = frozenset({"progress", "recent_progress"})
#: The JSON of a fact, of a claim, and of a field without their texts.
_FACT_BYTES, _CLAIM_BYTES, _FIELD_BYTES = 130, 90, 8
#: Kinds of omitted facts that are named; the rest is counted.
_NAMED = 6


def bounded(report: NodeReport, most_bytes: int = MOST_BYTES) -> NodeReport:
    """Return the report without the names of the nodes, which all of them know, and with evidence of at most `most_bytes` of JSON."""
    attempt = replace(report.attempt, members=())
    if attempt.evidence is None:
        return replace(report, attempt=attempt)
    room = max(most_bytes, MOST_BYTES_OF_A_RANK * len(attempt.ranks))
    indexes, left_out = _chosen(attempt.evidence, room)
    facts = tuple(attempt.evidence[index] for index in sorted(indexes))
    return replace(report, attempt=replace(attempt, evidence=(*facts, *left_out)))


def _chosen(facts: Sequence[Evidence], room: int) -> tuple[set[int], tuple[Evidence, ...]]:
    """Return the indexes of the facts that are kept, and the fact that counts the others."""
    ended = [fact.rank for fact in facts if fact.source == "exit"]  # the earliest first (observe/collect.py)
    order = {rank: place for place, rank in reversed(list(enumerate(ended)))}
    alike = Counter[tuple[str, ...]]()
    known_kinds = set[tuple[int | str | None, ...]]()  # kinds with the rank
    rows = []
    for index in sorted(range(len(facts)), key=lambda index: _age(facts[index])):
        fact = facts[index]
        standing, place = _standing(fact), order.get(fact.rank, len(order))
        kind = fact.source, fact.name, _kind_text(fact)
        count = alike[kind]
        is_known = count >= MOST_ALIKE or (*kind, fact.rank) in known_kinds or (fact.name in _PROGRESS and count > 0)
        if standing == _LINES and is_known:
            continue
        alike[kind] += 1
        known_kinds.add((*kind, fact.rank))
        rows.append((standing, count if standing != _TAILS else 0, -_weight(fact), place, index))
    indexes, tails = set[int](), 0
    for standing, *_, index in sorted(rows):
        size = _size(facts[index])
        if size > room or (standing == _TAILS and tails == MOST_TAILS):
            continue
        room -= size
        tails += standing == _TAILS
        indexes.add(index)
    return indexes, _left_out([fact for index, fact in enumerate(facts) if index not in indexes])


def _weight(fact: Evidence) -> float:
    return fact.claim.weight if fact.claim is not None else 0.0


def _standing(fact: Evidence) -> int:
    return _STANDINGS.get(fact.source, _PROVEN)


def _age(fact: Evidence) -> float:
    """Return the place in time by which one of several facts alike is kept: the first, but the newest progress."""
    if fact.name in _PROGRESS:
        return -fact.t
    return fact.t or float("inf")


def _kind_text(fact: Evidence) -> str:
    """Return the text by which facts are alike: of a traceback the exception that it ends with."""
    if fact.name in _PROGRESS:
        return ""
    text = fact.text.rstrip().rpartition("\n")[2] if fact.name == "traceback" else fact.text
    return normalised(text)


def _size(fact: Evidence) -> int:
    """Return the bytes of its JSON, at most: as the standard library writes them, all letters but ASCII's as escapes."""
    texts = [fact.source, fact.name, fact.text, fact.node]
    claim = fact.claim
    if claim is not None:
        texts += [claim.cause, *claim.consequence_of]
    of_fields = len(json.dumps(fact.fields)) + _FIELD_BYTES * len(fact.fields)
    return _FACT_BYTES + len(json.dumps(texts)) + of_fields + (_CLAIM_BYTES if claim is not None else 0)


def _left_out(facts: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Return the fact that counts the omitted ones; nothing where all was kept."""
    facts = tuple(facts)
    if not facts:
        return ()
    ranks = len({fact.rank for fact in facts if fact.rank is not None})
    kinds = Counter(fact.name if fact.source != "tail" else "last lines" for fact in facts).most_common()
    named = ", ".join(f"{count} {name}" for name, count in kinds[:_NAMED])
    other_count = sum(count for _, count in kinds[_NAMED:])
    whose = f" of {ranks} rank{'s' * (ranks > 1)}" if ranks else ""
    named += f", {other_count} others" if other_count else ""
    text = f"{len(facts)} more facts{whose} were left out of the report ({named}); the node's journal has them"
    return (Evidence("observer", "left_out", text),)
