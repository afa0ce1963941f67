"""Rules of the order of collectives: some ranks call one that others do not, or leave before it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from supervisor.classify.source.collectives import Meeting, Meetings, excludes, within
from supervisor.classify.source.findings import HANDLER, RANK_TEST, ScriptFinding
from supervisor.classify.source.script import LEAVES, LOOPS, Branch, ScriptEvent, chain_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from supervisor.classify.source.script import Function

#: Exceptions that all ranks raise alike, or that end a loop in order.
_ALIKE = frozenset(
    {"StopIteration", "StopAsyncIteration", "KeyboardInterrupt", "ImportError", "ModuleNotFoundError", "NotImplementedError", "SystemExit"}
    | {"GeneratorExit", "AttributeError", "BrokenPipeError"}
)
#: Calls that make a process group, which may be of the ranks under a test alone.
_GROUPS = frozenset({"init_process_group", "init_rpc", "new_group"})
_ENDS = frozenset({"exit", "_exit", "abort", "quit", "destroy_process_group", "kill", "raise_signal"})


def under_rank_test(meetings: Meetings, function: Function) -> Iterator[ScriptFinding]:
    """Yield the collectives that only some ranks of those that run the function call."""
    tests: dict[int, list[tuple[Meeting, Branch]]] = {}
    for meeting in meetings.of(function):
        branch = meetings.test_of(meeting.event, function)
        if branch is not None:
            tests.setdefault(id(branch.node), []).append((meeting, branch))
    for rows in tests.values():
        finding = _one_sided(meetings, function, rows)
        if finding is not None:
            yield finding


def _one_sided(meetings: Meetings, function: Function, rows: Sequence[tuple[Meeting, Branch]]) -> ScriptFinding | None:
    """Return the fault of the collectives under one test."""
    node = rows[0][1].node
    if not isinstance(node, ast.If):
        return None
    if any(name in _GROUPS for name in _called(meetings, function, node)):
        return None  # the collectives may be of these ranks alone
    sides = {side: [meeting for meeting, branch in rows if branch.block == side] for side in ("body", "orelse")}
    for side, other in (("body", "orelse"), ("orelse", "body")):
        there = _of_others(meetings, function, node, side, other)
        alone = [meeting for meeting in sides[side] if meeting.op not in {peer.op for peer in there}]
        if not alone or not meetings.is_sure(function.under(node, other), function) or meetings.is_paired(node, alone[0].op):
            continue
        first = alone[0]
        ranks = _test_text(node, side)
        instead = f", and the others {_named(sides[other][0])} in line {sides[other][0].event.line}" if sides[other] else ""
        text = f"only ranks with {ranks} (line {_line(node)}) {_named(first)}{instead}: the others never come to it"
        return ScriptFinding(RANK_TEST, first.event.line, text, (_span(node),))
    return None


def _called(meetings: Meetings, function: Function, node: ast.AST) -> set[str]:
    """Return the names of the functions called under a test, and within the script's functions called there."""
    names = set()
    for event in function.under(node, "body", "orelse"):
        if isinstance(event.node, ast.Call):
            callee = meetings.script.callee(event.node, function)
            names |= {
                meetings.script.chain(event.node)[-1],
                *(meetings.script.chain(call)[-1] for call, _ in (callee.calls if callee else ())),
            }
    return names


def _of_others(meetings: Meetings, function: Function, node: ast.AST, side: str, other: str) -> list[Meeting]:
    """Return the collectives of the ranks that do not take one side of a test: its other side; and what follows where the side leaves."""
    events, rows = function.under(node, side), meetings.of(function)
    leaves = any((isinstance(event.node, LEAVES) or _ends(event)) and event.path[-1].node is node for event in events)
    return [
        meeting
        for meeting in rows
        if within(meeting.event, node, other) or (leaves and not within(meeting.event, node) and meeting.event.line > _span(node)[1])
    ]


def leaves_before(meetings: Meetings, function: Function) -> Iterator[ScriptFinding]:
    """Yield where some ranks return, continue or break before a collective of the others."""
    if function.yields or not function.name:
        return
    rows = meetings.of(function, backward=True)
    first_line = max((event.line for call, event in function.calls if meetings.script.chain(call)[-1] in _GROUPS), default=0) if rows else 0
    for event in function.events if rows else ():
        if event.line < first_line or not isinstance(event.node, ast.Return | ast.Continue | ast.Break):
            continue
        branch = meetings.test_of(event, function)
        loop = next((b.node for b in reversed(event.path) if isinstance(b.node, LOOPS) and b.block == "body"), None)
        if branch is None or (not isinstance(event.node, ast.Return) and not _is_inside(branch, loop, event)):
            continue
        node = branch.node
        other = "orelse" if branch.block == "body" else "body"
        if isinstance(event.node, ast.Return):
            missed = [meeting for meeting in rows if meeting.event.line > event.line and not within(meeting.event, node, branch.block)]
        else:
            after = [
                meeting
                for meeting in rows
                if loop is not None and within(meeting.event, loop, "body") and not within(meeting.event, node, branch.block)
            ]
            missed = [meeting for meeting in after if isinstance(event.node, ast.Break) or meeting.event.line > event.line]
        outer = ScriptEvent(event.node, event.path[: event.path.index(branch)])
        missed = [meeting for meeting in missed if not excludes(outer, meeting.event)]
        missed = [meeting for meeting in missed if meetings.test_of(meeting.event, function) is None or within(meeting.event, node, other)]
        own = {meeting.op for meeting in rows if within(meeting.event, node, branch.block)}
        sure = meetings.is_sure(function.under(node, branch.block), function)
        if missed and sure and not own & {meeting.op for meeting in missed}:
            leave = type(event.node).__name__.lower()
            first = missed[0]
            ranks = f"ranks with {_test_text(node, branch.block)} (line {_line(node)})"
            text = f"{ranks} {leave} here, and the others {_named(first)} in line {first.event.line}"
            lines = (_span(node), *((meeting.event.line, _end(meeting.event.node)) for meeting in missed))
            yield ScriptFinding(RANK_TEST, event.line, text, lines)


def _is_inside(branch: Branch, loop: ast.AST | None, event: ScriptEvent) -> bool:
    """Return whether a test is inside of the loop that a continue or a break is of."""
    nodes = [b.node for b in event.path]
    return loop is not None and nodes.index(branch.node) > nodes.index(loop)


def skipped_by_handler(meetings: Meetings, function: Function) -> Iterator[ScriptFinding]:
    """Yield the handlers that go on, where a rank which raises skips a collective between others."""
    rows = meetings.of(function, backward=True)
    if not rows:
        return
    tries: dict[int, tuple[ast.Try, tuple[Branch, ...]]] = {}
    for event in function.events:
        for branch in event.path:
            if isinstance(branch.node, ast.Try):
                tries.setdefault(id(branch.node), (branch.node, event.path))
    for node, path in tries.values():
        nodes = [branch.node for branch in path]
        loop = next((b for b in reversed(nodes[: nodes.index(node)]) if isinstance(b, LOOPS)), None)
        for handler in node.handlers:
            finding = _skipped(meetings, function, node, handler, loop)
            if finding is not None:
                yield finding
                break


def _skipped(
    meetings: Meetings, function: Function, node: ast.Try, handler: ast.ExceptHandler, loop: ast.AST | None
) -> ScriptFinding | None:
    rows = meetings.of(function, backward=True)
    in_body = [meeting for meeting in rows if within(meeting.event, node, "body", "orelse")]
    before = [meeting for meeting in rows if meeting.event.line < node.lineno and (loop is None or within(meeting.event, loop))]
    leave = _leave(handler)
    tries_again = any(isinstance(event.node, ast.Break | ast.Return) for event in function.under(node, "body", "orelse"))
    if leave is None or tries_again or _kinds(handler) & _ALIKE or not _is_local(meetings, function, handler):
        return None
    after: list[Meeting] = []
    if isinstance(leave, ast.Continue | ast.Return):
        after = [
            meeting
            for meeting in rows
            if meeting.event.line > _end(node) and (loop is None or isinstance(leave, ast.Return) or within(meeting.event, loop))
        ]
    raising = [event for event in function.under(node, "body") if isinstance(event.node, ast.Call)]
    own = {id(meeting.event.node) for meeting in in_body}
    risky = [event for event in raising if id(event.node) not in own]
    skipped = [meeting for meeting in in_body if any(event.line < meeting.event.line for event in risky)] or (
        after if risky or in_body else []
    )
    skipped = [meeting for meeting in skipped if meetings.test_of(meeting.event, function) is None]
    if not skipped or not _between(skipped, before, in_body, loop):
        return None
    how = {ast.Continue: "`continue`", ast.Return: "`return`"}.get(type(leave), "going on")
    first, line = skipped[0], getattr(leave, "lineno", handler.lineno)
    kinds = " or ".join(sorted(_kinds(handler))) or "any exception"
    lines_of_body = f"{node.body[0].lineno}-{_end(node.body[-1])}"
    text = (
        f"a rank that raises {kinds} in lines {lines_of_body} skips {first.op} in line {first.event.line} by {how} here, and the others"
        " wait in it"
    )
    lines = (_span(node), *((meeting.event.line, _end(meeting.event.node)) for meeting in (*skipped, *before)))
    return ScriptFinding(HANDLER, line, text, lines)


def _between(skipped: Sequence[Meeting], before: Sequence[Meeting], in_body: Sequence[Meeting], loop: ast.AST | None) -> bool:
    """Return whether a rank that skips these continues to others: the loop comes to the same again, or others stand before."""
    return loop is not None or any(meeting.event.line < skipped[0].event.line for meeting in (*before, *in_body))


def _leave(handler: ast.ExceptHandler) -> ast.AST | None:
    """Return how a handler continues: its continue or return, or itself where it runs to its end; None where it raises or ends the rank."""
    parts = list(ast.walk(handler))
    names = [chain_of(node.func)[-1] for node in parts if isinstance(node, ast.Call)]
    if any(name in _ENDS or name.startswith("assert") for name in names):
        return None
    leave = next((node for node in parts if isinstance(node, ast.Continue | ast.Return)), None)
    raises = any(isinstance(node, ast.Raise | ast.Break | ast.Assert) for node in parts)
    return leave or (None if raises else handler)


def _is_local(meetings: Meetings, function: Function, handler: ast.ExceptHandler) -> bool:
    """Return whether a handler calls nothing that may bring the ranks together."""
    own = function.under(handler, "body")
    return meetings.is_sure(own, function) and not any(within(meeting.event, handler) for meeting in meetings.of(function, backward=True))


def _ends(event: ScriptEvent) -> bool:
    """Return whether a call ends the rank."""
    return isinstance(event.node, ast.Call) and chain_of(event.node.func)[-1] in _ENDS


def _kinds(handler: ast.ExceptHandler) -> set[str]:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type] if handler.type is not None else []
    return {chain_of(kind)[-1] for kind in kinds}


def _named(meeting: Meeting) -> str:
    return f"come to {meeting.op} through a call" if meeting.hidden else f"call {meeting.op}"


def _test_text(node: ast.AST, side: str) -> str:
    text = ast.unparse(node.test)  # type: ignore[attr-defined]
    text = text if len(text) <= 60 else text[:59] + "…"  # noqa: PLR2004  a line of a card
    return f"`{text}`" if side == "body" else f"`{text}` false"


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))


def _end(node: ast.AST) -> int:
    return int(getattr(node, "end_lineno", None) or _line(node))


def _span(node: ast.AST) -> tuple[int, int]:
    return _line(node), _end(node)
