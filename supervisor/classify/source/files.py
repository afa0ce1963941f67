"""Rules of what ranks share beside collectives: checkpoints that they write and read, and the variable that names their GPUs."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

from supervisor.classify.expressions import expression
from supervisor.classify.source.collectives import Meetings, within
from supervisor.classify.source.findings import DEVICES, LOAD, SAVE, ScriptFinding
from supervisor.classify.source.script import LEAVES, LOOPS, argument, chain_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from supervisor.classify.source.script import Branch, Function, ScriptEvent

_SAVES = frozenset({"torch.save", "safetensors.torch.save_file"})
_LOADS = frozenset({"torch.load", "safetensors.torch.load_file"})
#: A test with such a word may choose the rank that saves.
_MAY_CHOOSE = expression(
    r"rank|main|master|primary|chief|zero|lead|sav|proc|writ|log|host|node|dist|gpu|local|world|worker|shard", re.IGNORECASE
)
#: Calls that join a path from several parts, and do not change its owner.
_JOINS = frozenset({"join", "Path", "str", "abspath", "expanduser", "with_suffix", "with_name", "format", "fspath"})
_VARIABLE = "CUDA_VISIBLE_DEVICES"
#: A path is followed through so many callers, and of so many functions it is asked who calls them.
MOST_CALLERS, MOST_FUNCTIONS = 6, 100


class FileUse(NamedTuple):
    """A save or a load of a path, as the function that it is seen from writes the path. line: of the save or load itself."""

    path: ast.expr
    event: ScriptEvent
    line: int


def saves_on_all_ranks(meetings: Meetings) -> Iterator[ScriptFinding]:
    """Yield the saves that all ranks make to one path. It must be sure that ranks come to them, and that nothing chooses one."""
    if not _is_distributed(meetings):
        return
    on_all: dict[int, bool] = {}
    for function in meetings.script.functions:
        for use in _uses(meetings, function, _SAVES):
            if _is_one_path(meetings, use.path, function, MOST_CALLERS) and _comes_on_all(meetings, use.event, function, on_all):
                text = f"all ranks write {_shown(use.path)} here, at the same time"
                yield ScriptFinding(SAVE, use.line, text)


def _is_distributed(meetings: Meetings) -> bool:
    """Return whether the script surely makes a process group, and leaves what each rank does to itself."""
    origins = {meetings.script.origin(call) for function in meetings.script.functions for call, _ in function.calls}
    return any(origin.startswith("torch.distributed.") and origin.endswith(".init_process_group") for origin in origins)


def _uses(meetings: Meetings, function: Function, names: frozenset[str]) -> list[FileUse]:
    """Return the saves or loads that stand in a function itself, by path; of an open file, of the path that it was opened with."""
    uses = []
    for call, event in function.calls:
        if meetings.script.origin(call) not in names:
            continue
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        at = 1 if names is _SAVES else 0
        path = call.args[at] if len(call.args) > at else given.get("f") or given.get("filename")
        opened = meetings.script.values(path.id, function) if isinstance(path, ast.Name) else None
        if opened and len(opened) == 1 and isinstance(opened[0], ast.Call) and _is_bound(function, opened[0]) and opened[0].args:
            path = opened[0].args[0]
        if path is not None:
            uses.append(FileUse(path, event, call.lineno))
    return uses


def _is_bound(function: Function, call: ast.Call) -> bool:
    """Return whether a `with` has what a call returns: an open file."""
    own = next((event for other, event in function.calls if other is call), None)
    return own is not None and any(
        isinstance(branch.node, ast.With) and any(item.context_expr is call for item in branch.node.items) and within(event, branch.node)
        for event in function.events
        for branch in event.path[len(own.path) : len(own.path) + 1]
    )


def _is_one_path(meetings: Meetings, path: ast.expr, function: Function, hops: int) -> bool:
    """Return whether a path is surely the same on all ranks: of texts, of options, and of names that are given no rank."""
    if hops <= 0 or meetings.ranks.depends(path, function):
        return False
    for node in ast.walk(path):
        if isinstance(node, ast.Call) and chain_of(node.func)[-1] not in _JOINS:
            return False
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and not _is_one_name(meetings, node.id, function, hops):
            return False
    return True


def _is_one_name(meetings: Meetings, name: str, function: Function, hops: int) -> bool:
    script = meetings.script
    if name in script.names or name in {"str", "os"}:
        return True
    values, items = script.values(name, function), script.loops_over(name, function)
    if any(meetings.ranks.depends(item, function) for item in items):
        return False
    if values is not None or items:
        values = values or []
        return all(value is None or _is_option(meetings, value) or _is_one_path(meetings, value, function, hops - 1) for value in values)
    owner: Function | None = function
    while owner is not None and name not in owner.parameters:
        owner = owner.parent
    callers = script.callers(owner) if owner is not None else []
    given = [(at, argument(event.node, owner, name)) for at, event in callers if owner is not None and isinstance(event.node, ast.Call)]
    return bool(given) and all(value is not None and _is_one_path(meetings, value, at, hops - 1) for at, value in given)


def _is_option(meetings: Meetings, value: ast.expr) -> bool:
    """Return whether a value is the command's options, which all ranks share."""
    return (
        isinstance(value, ast.Call) and chain_of(value.func)[-1] in {"parse_args", "parse_known_args"} and not meetings.script.origin(value)
    )


def _comes_on_all(meetings: Meetings, event: ScriptEvent, function: Function, on_all: dict[int, bool]) -> bool:
    """Return whether all ranks surely come to an event: no test on the way may choose one. on_all: of the functions that are known."""
    if not all(_chooses_none(meetings, branch, function) for branch in event.path) or _left_before(meetings, event, function):
        return False
    key = id(function)
    if key not in on_all:
        on_all[key] = not function.name  # the script itself; else until it is known: one that calls itself
        callers = () if function.is_decorated or len(on_all) > MOST_FUNCTIONS else meetings.script.callers(function)
        on_all[key] = on_all[key] or any(_comes_on_all(meetings, call, at, on_all) for at, call in callers)
    return on_all[key]


def _chooses_none(meetings: Meetings, branch: Branch, function: Function) -> bool:
    if isinstance(branch.node, ast.If):
        test = branch.node.test
        text = ast.unparse(test)
        if "__name__" in text:
            return True
        calls = any(isinstance(node, ast.Call) for node in ast.walk(test))
        return not calls and not _MAY_CHOOSE.search(text) and not meetings.ranks.depends(test, function)
    return isinstance(branch.node, (*LOOPS, ast.With, ast.Try)) and branch.block in {"body", "orelse", "finalbody"}


def _left_before(meetings: Meetings, event: ScriptEvent, function: Function) -> bool:
    """Return whether some ranks may have left the function before, by a test that chooses."""
    return any(
        isinstance(leave.node, LEAVES)
        and leave.line < event.line
        and not all(isinstance(b.node, ast.Try | ast.ExceptHandler) or _chooses_none(meetings, b, function) for b in leave.path)
        for leave in function.events
    )


def loads_without_barrier(meetings: Meetings, function: Function) -> Iterator[ScriptFinding]:
    """Yield the loads on other ranks of what some ranks save, where no ranks meet in between."""
    saves = [use for use in _all_uses(meetings, function, _SAVES) if meetings.test_of(use.event, function) is not None]
    for load in _all_uses(meetings, function, _LOADS) if saves else ():
        for save in saves:
            if ast.dump(save.path) == ast.dump(load.path) and _is_unmet(meetings, function, save, load):
                branch = meetings.test_of(save.event, function)
                test = ast.unparse(branch.node.test) if branch is not None else ""  # type: ignore[attr-defined]
                saved = f"saved in line {save.line} by some ranks alone (`{test}`)"
                text = f"{_shown(load.path)} is loaded here, and {saved}, with no barrier between"
                yield ScriptFinding(LOAD, load.line, text, ((load.event.line, load.event.line), (save.line, save.line)))
                break


def _all_uses(meetings: Meetings, function: Function, names: frozenset[str]) -> list[FileUse]:
    """Return the saves or loads in a function, and in the functions of the script that it calls with a path."""
    uses = _uses(meetings, function, names)
    for call, event in function.calls:
        callee = meetings.script.callee(call, function)
        if callee is None or callee is function:
            continue
        for inner in _uses(meetings, callee, names):
            path = (
                argument(call, callee, inner.path.id) if isinstance(inner.path, ast.Name) and inner.path.id in callee.parameters else None
            )
            if path is not None and not _meets(meetings, callee, inner.event):
                uses.append(FileUse(path, event, inner.line))
    return uses


def _meets(meetings: Meetings, function: Function, until: ScriptEvent) -> bool:
    """Return whether ranks may meet in a function before an event."""
    return any(meeting.event.line < until.line for meeting in meetings.of(function, backward=True)) or not meetings.is_sure(
        function.events[: function.events.index(until)], function
    )


def _is_unmet(meetings: Meetings, function: Function, save: FileUse, load: FileUse) -> bool:
    """Return whether a rank surely comes to the load without having met the one that saves."""
    branch = meetings.test_of(save.event, function)
    if branch is None or within(load.event, branch.node, branch.block):
        return False
    if within(load.event, branch.node):
        between = [event for event in function.events if within(event, branch.node) and event.line < load.event.line]
        between = [event for event in between if not within(event, branch.node, branch.block)]
    elif load.event.line > save.event.line and _follows(branch, load.event):
        between = function.events[function.events.index(save.event) + 1 : function.events.index(load.event)]
    else:
        return False
    met = {id(meeting.event.node) for meeting in meetings.of(function, backward=True)}
    return meetings.is_sure(between, function) and not any(id(event.node) in met or isinstance(event.node, LEAVES) for event in between)


def _follows(branch: Branch, event: ScriptEvent) -> bool:
    """Return whether an event follows a test in the same block, or deeper, but in no test of its own that may choose the same ranks."""
    node = branch.node
    return not any(
        isinstance(b.node, ast.If) and b.node is not node and getattr(b.node, "lineno", 0) > getattr(node, "lineno", 0) for b in event.path
    )


def visible_devices(meetings: Meetings) -> Iterator[ScriptFinding]:
    """Yield where the variable that names the GPUs is deleted, or is set after torch was imported."""
    torch_line = _import_line(meetings.script.tree.body)
    for node in meetings.script.settings:
        if isinstance(node, ast.Delete):
            deleted = any(_is_variable(target) for target in node.targets)
        else:
            deleted = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _takes_variable(node.value)
        if deleted:
            yield ScriptFinding(
                DEVICES, node.lineno, f"{_VARIABLE} is deleted: each rank sees all GPUs of the node, also those of other jobs"
            )
        is_set = isinstance(node, ast.Assign) and any(_is_variable(target) for target in node.targets)
        if is_set and torch_line and node.lineno > torch_line:
            text = f"{_VARIABLE} is set after torch was imported (line {torch_line}): what has asked for the GPUs by then keeps all of them"
            yield ScriptFinding(DEVICES, node.lineno, text)


def _import_line(body: Sequence[ast.stmt]) -> int:
    """Return the line of the script's first import of torch at its top level, 0 for none."""
    for node in body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else names
        if any(name.partition(".")[0] == "torch" for name in names):
            return node.lineno
    return 0


def _is_variable(node: ast.expr) -> bool:
    return isinstance(node, ast.Subscript) and _is_environ(node.value) and _is_name(node.slice)


def _takes_variable(call: ast.Call) -> bool:
    function = call.func
    if not isinstance(function, ast.Attribute) or not call.args or not _is_name(call.args[0]):
        return False
    return (function.attr == "pop" and _is_environ(function.value)) or chain_of(function) == ["os", "unsetenv"]


def _is_environ(node: ast.expr) -> bool:
    return chain_of(node) in (["os", "environ"], ["environ"])


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == _VARIABLE


def _shown(path: ast.expr) -> str:
    text = ast.unparse(path)
    return text if len(text) <= 50 else text[:49] + "…"  # noqa: PLR2004  a part of a line
