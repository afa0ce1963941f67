"""Finds the lines of a script that explain why ranks wait, or why one loaded a file that another was writing. Pure: it gets the texts."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from supervisor.classify.source.collectives import Meetings
from supervisor.classify.source.findings import HANDLER, RANK_TEST, UNEVEN, ScriptFinding
from supervisor.classify.source.rules import findings
from supervisor.classify.source.script import ParsedScript
from supervisor.core.model import HangKind
from supervisor.core.numeric import rank_list
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class StandingRank(Struct, frozen=True):
    """A rank that waits in a collective, or has left. frames: of the user's code, file and line, the innermost first; none where it left.

    members: the ranks of the process group that it waits in, none where they are not known.
    """

    rank: int
    frames: tuple[tuple[str, int], ...] = ()
    members: tuple[int, ...] = ()


def sentence(file: str, finding: ScriptFinding) -> str:
    """Return a finding with its place and what to write."""
    return f"{file.rpartition('/')[2]}:{finding.line}: {finding.text}; {finding.rule.write}"


def of_hang(ranks: Sequence[StandingRank], texts: Mapping[str, bytes], kind: HangKind) -> str:
    """Return why ranks wait, "" where no text shows it.

    Where the looks do not prove that they wait for different things, or for a rank that left, a collective that only some ranks call is
    the one reason that is sure enough.
    """
    if kind is HangKind.MISMATCH and (reason := _one_sided(ranks, texts)):
        return reason
    rules = (RANK_TEST, UNEVEN, HANDLER) if kind in {HangKind.MISMATCH, HangKind.GONE} else (RANK_TEST,)
    shown: list[tuple[int, str]] = []
    for file, text in texts.items():
        for finding in _findings(text):
            inside = [rank for rank in ranks if any(at == file and finding.holds(line) for at, line in rank.frames)]
            has_left = finding.rule is not UNEVEN or len(inside) < len(ranks)  # who has fewer batches is beyond the loop
            if finding.rule in rules and inside and has_left:
                shown.append((rules.index(finding.rule), sentence(file, finding)))
    return min(shown)[1] if shown else ""


def of_race(frames: Sequence[tuple[str, int]], texts: Mapping[str, bytes]) -> str:
    """Return why a rank read what another one was writing, "" where no text shows it. frames: of its exception, the innermost last."""
    for file, line in reversed(frames):
        for finding in _findings(texts.get(file, b"")):
            if "race" in finding.rule.cards and finding.holds(line):
                return sentence(file, finding)
    return ""


def of_calls(places: Sequence[tuple[str, int]], texts: Mapping[str, bytes]) -> str:
    """Return why ranks called different collectives in these lines, "" where no text shows it."""
    return of_hang([StandingRank(number, (place,)) for number, place in enumerate(places)], texts, HangKind.MISMATCH)


def _findings(text: bytes) -> tuple[ScriptFinding, ...]:
    try:
        return findings(text)
    except SyntaxError:  # it runs: another interpreter's Python
        return ()


def _one_sided(ranks: Sequence[StandingRank], texts: Mapping[str, bytes]) -> str:
    """Return the test of the rank under which some of the ranks wait that the others of their group do not stand in, "" without one.

    The stacks show the way to the collective, also through calls that a text alone does not show.
    """
    for file, text in texts.items():
        for first, last, line, test in _tested(text):
            inside = [rank for rank in ranks if any(at == file and first <= place <= last for at, place in rank.frames)]
            outside = {rank.rank for rank in ranks if rank not in inside}
            if inside and any(not rank.members or outside & set(rank.members) for rank in inside) and outside:
                place = next(place for at, place in inside[0].frames if at == file and first <= place <= last)
                waits = "waits" if len(inside) == 1 else "wait"
                waiting = f"{rank_list([rank.rank for rank in inside])} {waits} in a collective under `{test}` (line {line})"
                return sentence(file, ScriptFinding(RANK_TEST, place, f"{waiting}, and the others are not there"))
    return ""


def _tested(text: bytes) -> Iterator[tuple[int, int, int, str]]:
    """Yield the branches that only some ranks take and of which no counterpart has a collective: lines, and the test."""
    try:
        meetings = Meetings(ParsedScript(text))
    except SyntaxError:
        return
    for function in meetings.script.functions:
        branches = {(id(b.node), b.block): b for event in function.events for b in event.path if isinstance(b.node, ast.If)}
        for branch in branches.values():
            node, body = branch.node, getattr(branch.node, branch.block, None)
            if not isinstance(node, ast.If) or not body or meetings.is_paired(node):
                continue
            other = function.under(node, "orelse" if branch.block == "body" else "body")
            met = {id(meeting.event.node) for meeting in meetings.of(function)}
            meets = any(id(event.node) in met for event in other) or not meetings.is_sure(other, function)
            if not meets and meetings.ranks.is_test(node.test, function, holds=branch.block == "body"):
                yield body[0].lineno, body[-1].end_lineno or body[-1].lineno, node.lineno, ast.unparse(node.test)
