"""Finds calls of collectives of all ranks, also those in functions of the same script."""

from __future__ import annotations

import ast
import builtins
import sys
from typing import TYPE_CHECKING, NamedTuple

from supervisor.classify.expressions import expression
from supervisor.classify.source.ranks import RankExpressions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.classify.source.script import Branch, Function, ParsedScript, ScriptEvent

#: torch.distributed's collectives, with the place of `group` among their arguments.
_TORCH = {
    "barrier": 0,
    "monitored_barrier": 0,
    "all_reduce": 2,
    "broadcast": 2,
    "reduce": 3,
    "all_gather": 2,
    "gather": 3,
    "scatter": 3,
    "reduce_scatter": 3,
    "all_to_all": 2,
    "all_to_all_single": 4,
    "all_gather_into_tensor": 2,
    "reduce_scatter_tensor": 3,
    "all_gather_object": 2,
    "gather_object": 3,
    "broadcast_object_list": 2,
    "scatter_object_list": 3,
}
#: Accelerate's, of an Accelerator.
_ACCELERATE = frozenset({"gather", "gather_for_metrics", "reduce", "pad_across_processes"})
_CHECKPOINT = frozenset(
    {"torch.distributed.checkpoint.save", "torch.distributed.checkpoint.load", "torch.distributed.checkpoint.async_save"}
)
#: Calls that give a model whose backward exchanges gradients.
_WRAPPERS = frozenset({"DistributedDataParallel", "FullyShardedDataParallel", "fully_shard"})
_GROUPS = frozenset({"group", "process_group", "pg"})
#: Packages of which no function is a collective, besides those of Python itself.
_PLAIN_PACKAGES = sys.stdlib_module_names | {
    "torch",
    "numpy",
    "tqdm",
    "wandb",
    "yaml",
    "pandas",
    "matplotlib",
    "psutil",
    "PIL",
    "loguru",
    "rich",
}
#: A method of which the name suggests that ranks may meet in it.
_MAY_MEET = expression(
    r"barrier|sync|wait|reduce|gather|broadcast|scatter|all_|step|backward|train|eval|valid|fit|save|load|run|forward|main|test|launch|join"
)


#: A test that asks whether there are several ranks.
_SEVERAL = expression(r"is_initialized|is_available|world|distributed|ddp|num_processes")
#: A function with more of them was not written by hand, and is left out.
MOST_COLLECTIVES = 100
#: Calls of functions of the script within each other are followed so far.
MOST_CALLS = 20
BACKWARD = "backward"


class Meeting(NamedTuple):
    """A call in which ranks meet: op names the collective; of a call of a function of the script, the first one in it."""

    op: str
    event: ScriptEvent
    hidden: bool


class Meetings:
    """The collectives of one script."""

    def __init__(self, script: ParsedScript) -> None:
        self.script = script
        self.ranks = RankExpressions(script)
        called = [call for function in script.functions for call, _ in function.calls]
        self.exchanges = any(script.chain(call)[-1] in _WRAPPERS or script.origin(call).rpartition(".")[2] in _WRAPPERS for call in called)
        self._tests: dict[str, set[str]] | None = None
        self._of: dict[int, tuple[Meeting, ...]] = {}
        self._depth = 0

    def op(self, call: ast.Call) -> str:
        """Return the collective that a call itself is, over all ranks; "" for none."""
        chain, origin = self.script.chain(call), self.script.origin(call)
        name, receiver = chain[-1], chain[-2] if len(chain) > 1 else ""
        in_group = any(keyword.arg in _GROUPS and not _is_none(keyword.value) for keyword in call.keywords)
        of_torch = origin.rpartition(".")[0] in {"torch.distributed", "torch.distributed.distributed_c10d"}
        if name in _TORCH and (of_torch or (receiver == "dist" and not origin)):
            at = _TORCH[origin.rpartition(".")[2] if of_torch else name]
            return "" if in_group or (len(call.args) > at and not _is_none(call.args[at])) else name
        if origin in _CHECKPOINT:
            given = {keyword.arg for keyword in call.keywords}
            return "" if in_group or "no_dist" in given else f"checkpoint.{origin.rpartition('.')[2]}"
        if origin == "checkpointing.save":
            return origin
        if name == "wait_for_everyone" or (name in _ACCELERATE and "accelerator" in receiver.lower()):
            return name
        return "barrier" if name == "barrier" and receiver == "strategy" else ""

    def is_backward(self, call: ast.Call) -> bool:
        """Return whether a call is the backward of a model whose gradients are exchanged in it."""
        chain = self.script.chain(call)
        return len(chain) > 1 and chain[-1] == "backward" and (self.exchanges or "accelerator" in chain[-2].lower())

    def of(self, function: Function, *, backward: bool = False) -> tuple[Meeting, ...]:
        """Return the collectives in a function, in the order of the text. backward: with those of a model's gradients."""
        key = id(function)
        if key not in self._of:
            self._of[key] = ()  # of one that calls itself
            self._depth += 1
            rows = []
            for call, event in function.calls if self._depth <= MOST_CALLS else ():
                op = self.op(call) or (BACKWARD if self.is_backward(call) else "")
                callee = None if op else self.script.callee(call, function)
                inner = self._on_all(callee) if callee is not None and callee is not function else ()
                if op or inner:
                    rows.append(Meeting(op or inner[0].op, event, not op))
            self._depth -= 1
            self._of[key] = tuple(rows) if len(rows) <= MOST_COLLECTIVES else ()
        return self._of[key] if backward else tuple(meeting for meeting in self._of[key] if meeting.op != BACKWARD)

    def _on_all(self, function: Function) -> tuple[Meeting, ...]:
        """Return those that each caller of the function surely meets where there are several ranks; first those that are not a backward."""
        rows = [meeting for meeting in self.of(function, backward=True) if self._is_certain(meeting.event, function)]
        return tuple(sorted(rows, key=lambda meeting: meeting.op == BACKWARD))

    def _is_certain(self, event: ScriptEvent, function: Function) -> bool:
        """Return whether no test but one for several ranks is above an event, or above a return before it."""
        leaves = [leave for leave in function.events if isinstance(leave.node, ast.Return) and leave.line < event.line]
        tests = [b.node.test for e in (event, *leaves) for b in e.path if isinstance(b.node, ast.If)]
        return self.test_of(event, function) is None and all(_SEVERAL.search(ast.unparse(test)) for test in tests)

    def test_of(self, event: ScriptEvent, function: Function) -> Branch | None:
        """Return the innermost branch around an event that only some ranks take."""
        tested = (branch for branch in reversed(event.path) if isinstance(branch.node, ast.If) and branch.block in {"body", "orelse"})
        is_test = self.ranks.is_test
        return next((b for b in tested if is_test(b.node.test, function, holds=b.block == "body")), None)  # type: ignore[attr-defined]

    def is_paired(self, node: ast.If, op: str = "") -> bool:
        """Return whether another test of ranks in the script has the same collective, or any where `op` is "": some wait for others so."""
        if self._tests is None:
            self._tests = {}
            for function in self.script.functions:
                for meeting in self.of(function):
                    branch = self.test_of(meeting.event, function)
                    if branch is not None:
                        self._tests.setdefault(meeting.op, set()).add(ast.dump(branch.node.test))  # type: ignore[attr-defined]
        tests = self._tests.get(op, set()) if op else set().union(*self._tests.values())
        return bool(tests - {ast.dump(node.test)})

    def is_sure(self, events: Iterable[ScriptEvent], function: Function) -> bool:
        """Return whether all that is called there is known to be no collective, or to be one that `of` has."""
        return all(self._is_known(event.node, function) for event in events if isinstance(event.node, ast.Call))

    def _is_known(self, call: ast.Call, function: Function) -> bool:
        chain, origin = self.script.chain(call), self.script.origin(call)
        callee = self.script.callee(call, function)
        if callee is not None:
            return len(self.of(callee, backward=True)) == len(self._on_all(callee))
        if self.op(call) or (chain[0] in self.script.classes and len(chain) == 1):
            return True
        if origin:
            return origin.partition(".")[0] in _PLAIN_PACKAGES and not origin.startswith("torch.distributed.")
        if len(chain) == 1:
            return hasattr(builtins, chain[0])
        return not _MAY_MEET.search(chain[-1])


def within(event: ScriptEvent, node: ast.AST, *blocks: str) -> bool:
    """Return whether an event is within a statement; in one of `blocks` of it if any is given."""
    return any(branch.node is node and (not blocks or branch.block in blocks) for branch in event.path)


def excludes(event: ScriptEvent, other: ScriptEvent) -> bool:
    """Return whether two events stand on the two sides of one test, so that a rank comes to one of them alone."""
    sides = {id(branch.node): branch.block for branch in event.path if isinstance(branch.node, ast.If)}
    return any(sides.get(id(branch.node), branch.block) != branch.block for branch in other.path)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
