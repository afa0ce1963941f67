"""Rules of what each rank trains on: as many batches as its peers, in another order each epoch, with noise of its own."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from supervisor.classify.expressions import expression
from supervisor.classify.source.collectives import Meetings, within
from supervisor.classify.source.findings import EPOCH, SEED, UNEVEN, ScriptFinding
from supervisor.classify.source.script import LOOPS, argument, chain_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.classify.source.script import Function, ScriptEvent

#: Calls and options that make shards even, end the loop after so many steps, or let a rank end before its peers.
_EVENS = expression(
    r"drop_last|even_batches|split_batches|\bJoin\b|\.join\(\w*model|with .*\.join\(|[Pp]add?(ed|ing)?\b|max_steps|steps_per_epoch"
    r"|num_steps|total_steps|max_iters|num_samples|num_batches|islice\([^,\n]+,[^,\n]+\)"
)
#: Without one of these no rank takes a part by its number.
_TAKES = expression(r"::|islice|range|%")
_SAMPLERS = frozenset({"torch.utils.data.distributed.DistributedSampler", "torch.utils.data.DistributedSampler"})
#: Programs that call set_epoch, or seed, by themselves.
_BY_THEMSELVES = frozenset({"accelerate", "lightning", "pytorch_lightning", "transformers", "ignite", "composer", "ray", "fabric"})
_SEEDS = frozenset({"torch.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "torch.random.manual_seed"})
_NOISE = frozenset({"torch.randn_like", "torch.rand_like", "torch.randint_like", "torch.bernoulli"})


def uneven(meetings: Meetings, text: str) -> Iterator[ScriptFinding]:
    """Yield the loops with collectives whose length depends on the rank, and the shards that a rank takes for them."""
    for function in meetings.script.functions:
        yield from _uneven_loops(meetings, function)
        yield from _short_generator(meetings, function)
    if not _TAKES.search(text) or _EVENS.search(text) or not _loops(meetings) or _divides_by_world(meetings):
        return
    for function in meetings.script.functions:
        for shard, line in _shards(meetings, function):
            yield ScriptFinding(
                UNEVEN,
                line,
                f"each rank takes `{shard}`: some get more batches than others unless the number divides, and wait for the others",
                _loops(meetings),
            )


def _uneven_loops(meetings: Meetings, function: Function) -> Iterator[ScriptFinding]:
    """Yield `for _ in range(N)` with a collective in it, where N is computed from the rank, here or by a caller."""
    for loop in function.loops if meetings.of(function, backward=True) else ():
        given = _range_of(loop)
        met = next((meeting for meeting in meetings.of(function, backward=True) if within(meeting.event, loop, "body")), None)
        if given is None or met is None:
            continue
        text, line = "", 0
        if _is_computed(meetings, given, function):
            text, line = ast.unparse(given), loop.lineno
        elif isinstance(given, ast.Name) and given.id in function.parameters:
            for at, event in meetings.script.callers(function):
                value = argument(event.node, function, given.id) if isinstance(event.node, ast.Call) else None
                if value is not None and _is_computed(meetings, value, at):
                    text, line = ast.unparse(value), event.line
        if text:
            where = "" if line == loop.lineno else f" (line {line})"
            yield ScriptFinding(
                UNEVEN,
                loop.lineno,
                f"the loop is `{text}` rounds long{where}, on each rank another number, and has {met.op} in line {met.event.line}",
                ((loop.lineno, loop.end_lineno or loop.lineno),),
            )


def _range_of(loop: ast.For) -> ast.expr | None:
    """Return N of `for _ in range(N)`."""
    call = loop.iter
    is_range = isinstance(call, ast.Call) and chain_of(call.func) == ["range"] and len(call.args) == 1
    return call.args[0] if is_range and isinstance(call, ast.Call) else None


def _is_computed(meetings: Meetings, node: ast.expr, function: Function) -> bool:
    """Return whether a number is a sum, difference or product with the rank."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Add | ast.Sub | ast.Mult)
        and any(meetings.ranks.is_rank(side, function) for side in (node.left, node.right))
    )


def _short_generator(meetings: Meetings, function: Function) -> Iterator[ScriptFinding]:
    """Yield where a generator of batches returns or breaks on some ranks alone, and the loop over it has collectives."""
    if not function.yields:
        return
    for event in function.events:
        if not isinstance(event.node, ast.Return | ast.Break) or meetings.test_of(event, function) is None:
            continue
        for at, call in meetings.script.callers(function):
            loop = next((loop for loop in at.loops if loop.iter is call.node), None)
            met = loop and next((meeting for meeting in meetings.of(at, backward=True) if within(meeting.event, loop, "body")), None)
            if loop is not None and met:
                branch = meetings.test_of(event, function)
                test = ast.unparse(branch.node.test) if branch is not None else ""  # type: ignore[attr-defined]
                text = f"some ranks alone (`{test}`) end their batches here, and the loop over them has {met.op} in line {met.event.line}"
                yield ScriptFinding(UNEVEN, event.line, text, ((loop.lineno, loop.end_lineno or loop.lineno), (event.line, event.line)))
                break


def _shards(meetings: Meetings, function: Function) -> Iterator[tuple[str, int]]:
    """Yield the shards that the rank takes: `data[rank::world]`, range and islice of the same, `i % world == rank`."""
    ranks = meetings.ranks
    for node in function.parts:
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            cut = node.slice
            is_shard = cut.upper is None and ranks.is_rank(cut.lower, function) and ranks.is_world(cut.step, function)
        else:
            is_shard = isinstance(node, ast.Compare) and _is_modulo(meetings, node, function)
        if is_shard and isinstance(node, ast.expr):
            yield ast.unparse(node), node.lineno
    for call, event in function.calls:
        name = meetings.script.chain(call)[-1]
        given = call.args[1:] if name == "islice" else call.args if name == "range" else []
        if len(given) == 3 and ranks.is_rank(given[0], function) and ranks.is_world(given[2], function):  # noqa: PLR2004  start, stop, step
            yield ast.unparse(call), event.line


def _is_modulo(meetings: Meetings, test: ast.Compare, function: Function) -> bool:
    """Return whether a test takes the items of a rank by their number: `i % world == rank`."""
    sides = (test.left, test.comparators[0]) if len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq | ast.NotEq) else ()
    numbers = [
        side
        for side in sides
        if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mod) and meetings.ranks.is_world(side.right, function)
    ]
    return bool(numbers) and any(meetings.ranks.is_rank(side, function) for side in sides if side not in numbers)


def _divides_by_world(meetings: Meetings) -> bool:
    """Return whether the script divides something by the number of ranks: it may cut the rest off."""
    return any(
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.FloorDiv | ast.Div | ast.Mod)
        and not _of_loop(node)
        and meetings.ranks.is_world(node.right, function)
        for function in meetings.script.functions
        for node in function.parts
    )


def _of_loop(node: ast.AST) -> bool:
    """Return whether this is the modulo of an item's own number."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Name)


def _loops(meetings: Meetings) -> tuple[tuple[int, int], ...]:
    """Return the lines of the loops over data with a collective in them."""
    spans: dict[int, tuple[int, int]] = {}
    for function in meetings.script.functions:
        for meeting in meetings.of(function, backward=True):
            for branch in meeting.event.path:
                if isinstance(branch.node, ast.For | ast.AsyncFor) and _range_of(branch.node) is None:  # type: ignore[arg-type]
                    spans[id(branch.node)] = branch.node.lineno, branch.node.end_lineno or branch.node.lineno
    return tuple(spans.values())


def without_set_epoch(meetings: Meetings) -> Iterator[ScriptFinding]:
    """Yield the samplers that shuffle, where a loop of epochs has a loop over their loader, and nothing sets the epoch."""
    script = meetings.script
    if _is_by_itself(meetings) or any(script.chain(call)[-1] == "set_epoch" for function in script.functions for call, _ in function.calls):
        return
    for function in script.functions:
        for call, event in function.calls:
            if script.origin(call) not in _SAMPLERS or not _shuffles(call):
                continue
            loop = _epoch_loop(meetings, function, call)
            if loop is not None:
                text = f"the sampler shuffles each epoch of the loop in line {loop.lineno} alike: nothing calls set_epoch"
                yield ScriptFinding(EPOCH, event.line, text)


def _is_by_itself(meetings: Meetings) -> bool:
    return any(origin.partition(".")[0] in _BY_THEMSELVES for origin in meetings.script.names.values())


def _shuffles(call: ast.Call) -> bool:
    """Return whether a sampler surely shuffles: its default."""
    given = next((keyword.value for keyword in call.keywords if keyword.arg == "shuffle"), call.args[3] if len(call.args) > 3 else None)  # noqa: PLR2004  the fourth
    starred = any(isinstance(argument, ast.Starred) for argument in call.args) or any(keyword.arg is None for keyword in call.keywords)
    return not starred and (given is None or (isinstance(given, ast.Constant) and given.value is True))


def _epoch_loop(meetings: Meetings, function: Function, sampler: ast.Call) -> ast.For | None:
    """Return the loop over epochs that has a loop over the sampler's loader in it, in the same function."""
    names = {name for name, values in function.assigned.items() if sampler in values}
    loaders = {
        name
        for name, values in function.assigned.items()
        if any(isinstance(value, ast.Call) and chain_of(value.func)[-1] == "DataLoader" and _has(value, names, sampler) for value in values)
    }
    loops = function.loops
    for loop in loops:
        over = {node.id for other in loops if _is_inside(other, loop) for node in ast.walk(other.iter) if isinstance(node, ast.Name)}
        if over & loaders and isinstance(loop.iter, ast.Call) and chain_of(loop.iter.func)[-1] in {"range", "count", "trange"}:
            return loop
        called = [event.node for event in loops[loop] if isinstance(event.node, ast.Call)]
        if (
            any(_iterates(meetings, call, function, loaders) for call in called)
            and isinstance(loop.target, ast.Name)
            and "epoch" in loop.target.id
        ):
            return loop
    return None


def _is_inside(inner: ast.For, outer: ast.For) -> bool:
    return outer.lineno < inner.lineno <= (outer.end_lineno or 0)


def _has(call: ast.Call, names: set[str], sampler: ast.Call) -> bool:
    given = next((keyword.value for keyword in call.keywords if keyword.arg == "sampler"), None)
    return given is sampler or (isinstance(given, ast.Name) and given.id in names)


def _iterates(meetings: Meetings, call: ast.Call, function: Function, loaders: set[str]) -> bool:
    """Return whether a function of the script is called with a loader, and loops over it."""
    callee = meetings.script.callee(call, function)
    if callee is None:
        return False
    for name in callee.parameters:
        given = argument(call, callee, name)
        if isinstance(given, ast.Name) and given.id in loaders:
            return any(isinstance(p, ast.Name) and p.id == name for loop in callee.loops for p in ast.walk(loop.iter))
    return False


def one_seed(meetings: Meetings) -> Iterator[ScriptFinding]:
    """Yield the first draw of noise for a batch, in a loop over a loader, from a generator that is seeded alike on all ranks."""
    if not meetings.exchanges or _is_by_itself(meetings):
        return
    seed, script = _seed_line(meetings), meetings.script
    for function in script.functions if seed else ():
        for call, event in function.calls:
            is_noise = script.origin(call) in _NOISE and not any(keyword.arg == "generator" for keyword in call.keywords)
            if is_noise and _is_batch(meetings, call, event, function):
                yield ScriptFinding(
                    SEED, event.line, f"{ast.unparse(call.func)} draws the same on all ranks: all have the seed of line {seed}"
                )
                return


def _seed_line(meetings: Meetings) -> int:
    """Return the line that gives all ranks one seed, under no test; 0 without one, and where a rank may have a seed of its own."""
    line = 0
    for function in meetings.script.functions:
        for call, event in function.calls:
            name, given = meetings.script.chain(call)[-1], (*call.args, *(keyword.value for keyword in call.keywords))
            if name == "set_rng_state" or ("seed" in name.lower() and any(meetings.ranks.depends(value, function) for value in given)):
                return 0
            is_tested = any(isinstance(b.node, ast.If) and "__name__" not in ast.unparse(b.node.test) for b in event.path)
            is_plain = bool(call.args) and isinstance(call.args[0], ast.Constant | ast.Name | ast.Attribute)
            if meetings.script.origin(call) in _SEEDS and is_plain and not is_tested:
                line = line or event.line
    return line


def _is_batch(meetings: Meetings, call: ast.Call, event: ScriptEvent, function: Function) -> bool:
    """Return whether noise is drawn like what a loop over a loader gives, with a backward in the loop."""
    loop = next((b.node for b in reversed(event.path) if isinstance(b.node, LOOPS) and b.block == "body"), None)
    if not isinstance(loop, ast.For) or _range_of(loop) is not None or not call.args:
        return False
    given = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    for _ in range(3):
        given |= {name for name, values in function.assigned.items() if any(_names(value) & given for value in values)}
    trains = any(within(meeting.event, loop, "body") and meeting.op == "backward" for meeting in meetings.of(function, backward=True))
    return trains and bool(_names(call.args[0]) & given)


def _names(node: ast.expr | None) -> set[str]:
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name)} if node is not None else set()
