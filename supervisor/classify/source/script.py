"""Splits a script into functions, and each into its calls and its leaves (return, break, …), with the branches that each is in."""

from __future__ import annotations

import ast
import functools
import warnings
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: A script is written by hand; a larger file is data.
MOST_BYTES = 2 << 20
#: Statements that lie deeper are not read. An `elif` is one level.
MOST_LEVELS = 60
#: A name that is assigned from names is followed so far.
MOST_HOPS = 6
LOOPS = (ast.For, ast.AsyncFor, ast.While)
LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)


def tree_of(source: str | bytes) -> ast.Module:
    """Return the syntax tree of a text. Raises SyntaxError, also for a text that is too deep or holds a null byte."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script's own: an invalid escape and the like
            return ast.parse(source)
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error) or type(error).__name__) from error


def imports(tree: ast.Module) -> dict[str, str]:
    """Return each imported name's dotted origin."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update(_imported(node))
    return names


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    for alias in node.names:
        if isinstance(node, ast.Import):
            yield alias.asname or alias.name.partition(".")[0], alias.name if alias.asname else alias.name.partition(".")[0]
        elif node.module and not node.level:
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def dotted(node: ast.expr, names: dict[str, str]) -> str | None:
    """Return the dotted origin of a name or an attribute of something imported; None for anything else."""
    chain = chain_of(node)
    return ".".join([names[chain[0]], *chain[1:]]) if chain and chain[0] in names else None


def chain_of(node: ast.expr) -> list[str]:
    """Return `a.b.c` as its names; a first part that is not a name is empty: `f(x).b` is "", "b"."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "")
    return parts[::-1]


class Branch(NamedTuple):
    """A statement, and which of its blocks: body, orelse, handlers, finalbody."""

    node: ast.AST
    block: str


class ScriptEvent(NamedTuple):
    """A call, a yield or a leave of a function, with the branches that it is in, outermost first."""

    node: ast.AST
    path: tuple[Branch, ...]

    @property
    def line(self) -> int:
        """Its first line."""
        return int(getattr(self.node, "lineno", 0))


class Function:
    """A function of the script, or the script itself (name ""). owner: the class of a method, "" for none."""

    def __init__(self, node: ast.AST, name: str, owner: str, parent: Function | None) -> None:
        self.node, self.name, self.owner, self.parent = node, name, owner, parent
        self.events: list[ScriptEvent] = []
        self.parts: list[ast.AST] = []  # its comparisons, subscripts and sums
        self.assigned: dict[str, list[ast.expr | None]] = {}  # None: by `+=`
        self.looped: dict[str, list[ast.expr]] = {}  # what the variables of its loops run over
        arguments = node.args if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None
        self.parameters = [] if arguments is None else [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        self.is_decorated = bool(getattr(node, "decorator_list", ()))

    @property
    def calls(self) -> Iterator[tuple[ast.Call, ScriptEvent]]:
        """Its calls, in the order of the text."""
        return ((event.node, event) for event in self.events if isinstance(event.node, ast.Call))

    @functools.cached_property
    def yields(self) -> bool:
        """Whether it is a generator."""
        return any(isinstance(event.node, ast.Yield | ast.YieldFrom) for event in self.events)

    @functools.cached_property
    def _under(self) -> dict[tuple[int, str], list[ScriptEvent]]:
        under: dict[tuple[int, str], list[ScriptEvent]] = {}
        for event in self.events:
            for branch in event.path:
                under.setdefault((id(branch.node), branch.block), []).append(event)
        return under

    def under(self, node: ast.AST, *blocks: str) -> list[ScriptEvent]:
        """Return the events in these blocks of a statement."""
        return [event for block in blocks for event in self._under.get((id(node), block), ())]

    @functools.cached_property
    def loops(self) -> dict[ast.For, list[ScriptEvent]]:
        """Its `for` loops, with the events in each."""
        loops: dict[ast.For, list[ScriptEvent]] = {}
        for event in self.events:
            for branch in event.path:
                if isinstance(branch.node, ast.For) and branch.block == "body":
                    loops.setdefault(branch.node, []).append(event)
        return loops


class ParsedScript:
    """A script's functions and names. Raises SyntaxError where the text is not Python of this interpreter's version."""

    def __init__(self, source: str | bytes) -> None:
        self.tree = tree_of(source)
        self.names: dict[str, str] = {}
        self.main = Function(self.tree, "", "", None)
        self.functions = [self.main]
        self.attributes: dict[str, list[ast.expr | None]] = {}
        self.classes: set[str] = set()
        self.settings: list[ast.Delete | ast.Expr | ast.Assign] = []  # that may set or delete an item of a mapping
        self._chains: dict[int, list[str]] = {}
        self._block(self.tree.body, (), self.main, "")
        self._by_name: dict[str, list[Function]] = {}
        for function in self.functions[1:]:
            self._by_name.setdefault(function.name, []).append(function)
        self._called: dict[int, list[tuple[Function, ScriptEvent]]] | None = None

    # reading

    def _block(self, statements: Sequence[ast.stmt], path: tuple[Branch, ...], function: Function, owner: str) -> None:
        if len(path) > MOST_LEVELS:
            return
        for statement in statements:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = Function(statement, statement.name, owner, function)
                self.functions.append(inner)
                self._block(statement.body, (), inner, "")
            elif isinstance(statement, ast.ClassDef):
                self.classes.add(statement.name)
                self._block(statement.body, path, function, statement.name)
            else:
                self._statement(statement, path, function)

    def _statement(self, statement: ast.stmt, path: tuple[Branch, ...], function: Function) -> None:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            self.names.update(_imported(statement))
            return
        self._assign(statement, function)
        if isinstance(statement, ast.Delete | ast.Expr) or (
            isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript)
        ):
            self.settings.append(statement)
        blocks: list[tuple[str, list[ast.stmt], tuple[Branch, ...]]] = []
        expressions: list[ast.AST] = []
        for name, value in ast.iter_fields(statement):
            if isinstance(value, ast.AST):
                expressions.append(value)
            elif isinstance(value, list) and value:
                if isinstance(value[0], ast.stmt):
                    blocks.append((name, value, (*path, Branch(statement, name))))
                elif isinstance(value[0], ast.ExceptHandler | ast.match_case):
                    inner = (*path, Branch(statement, name))
                    blocks += [(name, child.body, (*inner, Branch(child, "body"))) for child in value]
                else:
                    expressions += [child for child in value if isinstance(child, ast.AST)]
        calls, rest = _parts(expressions)
        function.events += [ScriptEvent(node, path) for node in calls]
        function.parts += rest
        if isinstance(statement, LEAVES):
            function.events.append(ScriptEvent(statement, path))
        for _, body, inner in blocks:
            self._block(body, inner, function, "")

    def _assign(self, statement: ast.stmt, function: Function) -> None:
        if isinstance(statement, ast.For | ast.AsyncFor):
            for name in ast.walk(statement.target):
                if isinstance(name, ast.Name):
                    function.looped.setdefault(name.id, []).append(statement.iter)
        for target, value in _assigned(statement):
            if isinstance(target, ast.Name):
                function.assigned.setdefault(target.id, []).append(value)
            elif isinstance(target, ast.Attribute):
                self.attributes.setdefault(target.attr, []).append(value)

    # what names mean

    def chain(self, call: ast.Call) -> list[str]:
        """Return the names of a call, as chain_of does."""
        if id(call) not in self._chains:
            self._chains[id(call)] = chain_of(call.func)
        return self._chains[id(call)]

    def values(self, name: str, function: Function) -> list[ast.expr | None] | None:
        """Return what a variable is given, by the innermost function that has it; None for one that nothing assigns, or a parameter."""
        at = self._holder(name, function)
        return None if at is None else at.assigned.get(name)

    def loops_over(self, name: str, function: Function) -> list[ast.expr]:
        """Return what the loops run over of which a variable is the item."""
        at = self._holder(name, function)
        return [] if at is None else at.looped.get(name, [])

    @staticmethod
    def _holder(name: str, function: Function) -> Function | None:
        at: Function | None = function
        while at is not None and name not in at.assigned and name not in at.looped and name not in at.parameters:
            at = at.parent
        return at

    def origin(self, call: ast.Call) -> str:
        """Return the dotted origin of a call, "" for a function that is not imported."""
        chain = self.chain(call)
        return ".".join((self.names[chain[0]], *chain[1:])) if chain[0] in self.names else ""

    def callee(self, call: ast.Call, function: Function) -> Function | None:
        """Return the function of this script that a call is of, None where that is not sure."""
        chain = self.chain(call)
        known = self._by_name.get(chain[-1], [])
        if not known or chain[0] in self.names or not chain[0]:
            return None
        if len(chain) == 1:
            at: Function | None = function
            own: list[Function] = []
            while at is not None and not own:
                if chain[0] in at.parameters or chain[0] in at.assigned:
                    return None
                own = [function_ for function_ in known if function_.parent is at and not function_.owner]
                at = at.parent
            return own[0] if len(own) == 1 else None
        owner = self._class_of(chain[:-1], function)
        own = [function_ for function_ in known if function_.owner and function_.owner == owner]
        return own[0] if len(own) == 1 else None

    def _class_of(self, receiver: list[str], function: Function) -> str:
        """Return the class of this script that an object is of: `self`, or a name that is given an instance once."""
        if receiver in (["self"], ["cls"]):
            at: Function | None = function
            while at is not None and not at.owner:
                at = at.parent
            return at.owner if at is not None else ""
        values = (self.values(receiver[0], function) if len(receiver) == 1 else self.attributes.get(receiver[-1])) or []
        makers = {value.func.id for value in values if isinstance(value, ast.Call) and isinstance(value.func, ast.Name)}
        return makers.pop() if len(makers) == 1 and len(values) == 1 and makers <= self.classes else ""

    def callers(self, function: Function) -> list[tuple[Function, ScriptEvent]]:
        """Return where a function is called in this script."""
        if self._called is None:
            self._called = {}
            for at in self.functions:
                for call, event in at.calls:
                    callee = self.callee(call, at)
                    if callee is not None:
                        self._called.setdefault(id(callee), []).append((at, event))
        return self._called.get(id(function), [])


def _assigned(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield what a statement assigns, each target with its value: that of a call which gives several, for each of them."""
    pairs: list[tuple[ast.expr, ast.expr | None]] = []
    if isinstance(statement, ast.Assign):
        pairs = [(target, statement.value) for target in statement.targets]
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        pairs = [(statement.target, statement.value)]
    elif isinstance(statement, ast.AugAssign):
        pairs = [(statement.target, None)]
    elif isinstance(statement, ast.With | ast.AsyncWith):
        pairs = [(item.optional_vars, item.context_expr) for item in statement.items if item.optional_vars is not None]
    for target, value in pairs:
        if isinstance(target, ast.Tuple | ast.List):
            yield from zip(target.elts, value.elts if isinstance(value, ast.Tuple | ast.List) else [value] * len(target.elts), strict=False)
        else:
            yield target, value


def argument(call: ast.Call, function: Function, name: str) -> ast.expr | None:
    """Return what a call of `function` gives for a parameter, None where it gives nothing, or by `*`."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    parameters = function.parameters[1:] if function.owner and function.parameters[:1] in (["self"], ["cls"]) else function.parameters
    at = parameters.index(name) if name in parameters else len(call.args)
    return call.args[at] if at < len(call.args) and not any(isinstance(given, ast.Starred) for given in call.args) else None


def _parts(expressions: Sequence[ast.AST]) -> tuple[list[ast.AST], list[ast.AST]]:
    """Return the calls and yields in expressions, in the order of the text, and the rest that rules look at; nothing of a lambda."""
    calls: list[ast.AST] = []
    rest: list[ast.AST] = []
    stack = list(expressions)
    while stack:
        node = stack.pop()
        kind = type(node)
        if kind is ast.Name or kind is ast.Constant or kind is ast.Lambda:
            continue
        if kind is ast.Call or kind is ast.Yield or kind is ast.YieldFrom:
            calls.append(node)
        elif kind is ast.BinOp or kind is ast.Subscript or kind is ast.Compare:
            rest.append(node)
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                stack.append(value)
            elif isinstance(value, list):
                stack += [child for child in value if isinstance(child, ast.AST)]
    return sorted(calls, key=lambda node: (node.lineno, node.col_offset)) if len(calls) > 1 else calls, rest  # type: ignore[attr-defined]
