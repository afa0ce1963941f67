"""Finds expressions of a rank or of the number of ranks, and tests that differ between ranks."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from supervisor.classify.source.script import MOST_HOPS, chain_of

if TYPE_CHECKING:
    from supervisor.classify.source.script import Function, ParsedScript

_RANKS = frozenset(
    {"rank", "local_rank", "global_rank", "world_rank", "ddp_rank", "ddp_local_rank", "node_rank", "rank_id", "process_index"}
    | {"local_process_index", "get_rank", "get_local_rank", "get_node_local_rank", "get_global_rank"}
)
_WORLDS = frozenset(
    {"world_size", "world", "ddp_world_size", "num_replicas", "num_processes", "n_ranks", "num_ranks", "get_world_size", "nranks"}
)
_RANK_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "GLOBAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "PMI_RANK"}
    | {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_RANK"}
)
_WORLD_VARIABLES = frozenset({"WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"})
#: Names of a test, as a variable, an attribute or a function.
_TESTS = frozenset(
    {"is_main_process", "is_local_main_process", "is_main", "is_master", "is_master_process", "is_main_rank", "is_rank_zero", "is_rank0"}
    | {"is_rank_0", "is_global_zero", "is_world_process_zero", "is_local_process_zero", "is_primary", "is_chief", "is_last_process"}
    | {"master_process", "is_local_master", "is_leader", "is_first_rank", "is_first_worker"}
)


class RankExpressions:
    """Answers for one script."""

    def __init__(self, script: ParsedScript) -> None:
        self._script = script
        self._depends: dict[tuple[int, int], bool] = {}
        self._numbers: dict[tuple[str, int, int, int], bool] = {}  # by name: values given from each other in circles have many ways
        self._tests: dict[tuple[str, int, int, bool], bool] = {}

    def is_rank(self, node: ast.expr | None, function: Function, hops: int = MOST_HOPS) -> bool:
        """Return whether an expression is the number of this rank, or is computed of it by % or //."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.FloorDiv):
            return self.is_rank(node.left, function, hops)
        return self._is(node, function, _RANKS, _RANK_VARIABLES, hops)

    def is_world(self, node: ast.expr | None, function: Function) -> bool:
        """Return whether an expression is the number of ranks."""
        return self._is(node, function, _WORLDS, _WORLD_VARIABLES, MOST_HOPS)

    def _is(  # noqa: PLR0911  one for each form of an expression
        self, node: ast.expr | None, function: Function, names: frozenset[str], variables: frozenset[str], hops: int
    ) -> bool:
        if node is None or hops <= 0:
            return False
        if isinstance(node, ast.Call):
            chain = chain_of(node.func)
            if chain == ["int"] and len(node.args) == 1:
                return self._is(node.args[0], function, names, variables, hops)
            if chain[-1] in {"get", "getenv"} and node.args:
                return ("environ" in chain or chain[-1] == "getenv") and _text(node.args[0]) in variables
            return chain[-1] in names and not node.args and not node.keywords  # of a group it is another number
        if isinstance(node, ast.Subscript):
            return chain_of(node.value)[-1] == "environ" and _text(node.slice) in variables
        if isinstance(node, ast.Name):
            key = (node.id, id(function), id(names), hops)
            if key not in self._numbers:
                self._numbers[key] = self._is_name(node.id, function, names, variables, hops)
            return self._numbers[key]
        return isinstance(node, ast.Attribute) and node.attr in names

    def _is_name(self, name: str, function: Function, names: frozenset[str], variables: frozenset[str], hops: int) -> bool:
        values = self._script.values(name, function)
        if not values:
            return name in names and not self._script.loops_over(name, function)
        if any(self._is(value, function, names, variables, hops - 1) for value in values):
            return True
        return name in names and not all(isinstance(value, ast.Constant) for value in values)  # a rank of LoRA is a constant

    def is_test(  # noqa: PLR0911  one for each form of an expression
        self, node: ast.expr | None, function: Function, hops: int = MOST_HOPS, *, holds: bool = True
    ) -> bool:
        """Return whether a test is true on some ranks alone; with `holds` False, whether it is false on some ranks alone.

        A test whether there are ranks at all (`rank != -1`) does not. `saves and rank == 0` may be false on all ranks.
        """
        if node is None or hops <= 0:
            return False
        if isinstance(node, ast.Compare):
            return len(node.ops) == 1 and self._compares(node.left, node.ops[0], node.comparators[0], function)
        if isinstance(node, ast.BoolOp):
            tests = [self.is_test(value, function, hops, holds=holds) for value in node.values]
            if isinstance(node.op, ast.And) == holds:
                return any(tests)
            others = [value for value, is_test in zip(node.values, tests, strict=True) if not is_test]
            return sum(tests) == 1 and all(self._is_alone(value, function) for value in others)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.is_test(node.operand, function, hops, holds=not holds)
        if isinstance(node, ast.Call):
            return self._is_call_test(node, function, hops, holds=holds) or self.is_rank(node, function)
        if isinstance(node, ast.Name | ast.Attribute):
            key = (f".{node.attr}" if isinstance(node, ast.Attribute) else node.id, id(function), hops, holds)
            if key not in self._tests:
                self._tests[key] = self._is_given_test(node, function, hops, holds=holds)
            return self._tests[key]
        return False

    def _is_given_test(self, node: ast.Name | ast.Attribute, function: Function, hops: int, *, holds: bool) -> bool:
        if isinstance(node, ast.Name):
            name, values = node.id, self._script.values(node.id, function)
        else:
            name, values = node.attr, self._script.attributes.get(node.attr)
        return self._given_test(values, function, hops, holds=holds) or (not values and name in _TESTS) or self.is_rank(node, function)

    def _is_call_test(self, node: ast.Call, function: Function, hops: int, *, holds: bool) -> bool:
        callee = self._script.callee(node, function)
        if callee is None:
            return chain_of(node.func)[-1] in _TESTS
        key = ("()", id(callee), hops, holds)
        if key not in self._tests:
            returned = [event.node.value for event in callee.events if isinstance(event.node, ast.Return)]
            self._tests[key] = any(self.is_test(value, callee, hops - 1, holds=holds) for value in returned)
        return self._tests[key]

    def _given_test(self, values: list[ast.expr | None] | None, function: Function, hops: int, *, holds: bool) -> bool:
        tests = [value for value in values or () if self.is_test(value, function, hops - 1, holds=holds)]
        return bool(tests) and all(value in tests or isinstance(value, ast.Constant) for value in values or ())

    def _is_alone(self, node: ast.expr, function: Function) -> bool:
        """Return whether a test asks for a single process: `not is_distributed`, `world_size == 1`."""
        if isinstance(node, ast.Compare):
            return self.is_world(node.left, function) or self.is_rank(node.left, function)
        return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)

    def _compares(self, left: ast.expr, op: ast.cmpop, right: ast.expr, function: Function) -> bool:
        if not self.is_rank(left, function):
            if not self.is_rank(right, function) or not isinstance(op, ast.Eq | ast.NotEq):
                return False
            left, right = right, left
        if isinstance(op, ast.In | ast.NotIn):  # names are the members of a group, more often than not
            parts = right.elts if isinstance(right, ast.Tuple | ast.List | ast.Set) else []
            return any(isinstance(side, ast.Constant) and isinstance(side.value, int) for side in parts)
        number = _constant(right)
        if number is None:
            return isinstance(op, ast.Eq | ast.NotEq) and self._may_be_rank(right, function)
        if number < 0:
            return False
        return isinstance(op, ast.Eq | ast.NotEq | ast.Lt | ast.LtE | ast.Gt) or (isinstance(op, ast.GtE) and number > 0)

    def _may_be_rank(self, node: ast.expr, function: Function) -> bool:
        """Return whether a name may be the number of a rank: not None, not the world's size, no -1, no constant out of sight."""
        name = chain_of(node)[-1]
        if isinstance(node, ast.Constant) or self.is_world(node, function) or not isinstance(node, ast.Name | ast.Attribute | ast.BinOp):
            return False
        given = [*(self._script.values(name, function) or ()), *self._script.attributes.get(name, ())]
        numbers = [_constant(value) for value in given if value is not None]
        return not any(number is not None and number < 0 for number in numbers) and bool(numbers or not name.isupper())

    def depends(self, node: ast.AST | None, function: Function, hops: int = MOST_HOPS) -> bool:
        """Return whether an expression may differ between ranks, as far as the names in it are followed."""
        if node is None or hops <= 0:
            return False
        key = (id(node), id(function))
        if key not in self._depends:
            self._depends[key] = False  # of a name that is given itself
            self._depends[key] = any(
                isinstance(child, ast.expr) and (self._depends_itself(child, function, hops)) for child in ast.walk(node)
            )
        return self._depends[key]

    def _depends_itself(self, expression: ast.expr, function: Function, hops: int) -> bool:
        if isinstance(expression, ast.Name | ast.Attribute | ast.Call | ast.Subscript) and self._is(
            expression, function, _RANKS, _RANK_VARIABLES, MOST_HOPS
        ):
            return True
        if isinstance(expression, ast.Name):
            values = [*(self._script.values(expression.id, function) or ()), *self._script.loops_over(expression.id, function)]
            if expression.id in _TESTS:
                return True
        elif isinstance(expression, ast.Attribute):
            values = self._script.attributes.get(expression.attr, [])
            if expression.attr in _TESTS:
                return True
        else:
            return False
        return any(self.depends(value, function, hops - 1) for value in values)


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _constant(node: ast.expr) -> int | None:
    """Return a whole number, also one in quotes."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _constant(node.operand)
        return None if inner is None else -inner
    if not isinstance(node, ast.Constant) or isinstance(node.value, bool):
        return None
    text = str(node.value)
    return int(text) if isinstance(node.value, int | str) and text.lstrip("-").isdigit() and text.isascii() else None
