r"""The user's own regular expressions: bounded texts, and only patterns that cannot backtrack for long.

`re` searches without a limit and holds the interpreter meanwhile: a pattern such as `(x+x+)+y` would stop the supervisor for ever on one
line. So a pattern is refused where it is read if it may take too many steps, and a search is over at most LONGEST characters at once.

Steps are counted as `re` backtracks: for each place at which a match may begin, the ways in which the pattern may match from there, and
the characters that are read for each. A repeat has more than one way only where the next step may begin with a character of the repeat:
`\d+ ` has one, `.* damaged` many. The count is an upper bound, so that a harmless pattern may be refused, but no slow one is taken. Our own
signatures are not counted: tests search them in hostile text.
"""

from __future__ import annotations

import re
from re import _compiler, _parser  # type: ignore[attr-defined]  # the parsed pattern; tests hold what we read of it
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from supervisor.classify.logs.patterns import PatternMatch

#: Characters that are searched at once. A longer text is searched in parts that overlap by half.
LONGEST: Final = 1000
#: So many steps take a few seconds in the worst text (five were measured); more may take much longer.
MOST_STEPS: Final = 1.5e9
HINT: Final = (
    "limit its repeats ({0,80} in place of *), repeat no group that repeats something itself, or begin with words that are always there"
)
_REPEATS: Final = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})
_ONE_CHARACTER: Final = frozenset({"LITERAL", "NOT_LITERAL", "IN", "ANY"})
#: Beside the characters that the pattern names: Latin, and a few of other scripts.
_SAMPLE: Final = frozenset({*map(chr, range(256)), "\u0660", "\u017f", "\u212a", "\u4e2d", "\u2028"})

#: Among the characters that may follow: a condition on the place, such as `$`, which may refuse each length of the text before it.
_A_PLACE: Final = ""

Node = tuple[Any, Any]


class UserPattern:
    """One pattern. Raises ValueError for one that is not valid, or may be slow."""

    def __init__(self, expression: str) -> None:
        try:
            self._pattern = re.compile(expression)
            steps = most_steps(expression)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(str(error)) from error
        if steps > MOST_STEPS:
            shown = "without end" if steps == float("inf") else f"{steps:.0e} steps"
            message = f"its search of one line may take too long ({shown}): {HINT}"
            raise ValueError(message)

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of its groups."""
        return tuple(self._pattern.groupindex)

    def search(self, text: str, /) -> PatternMatch | None:
        """Return the first match in the text. One that is longer than half of LONGEST may be missed."""
        for start in range(0, max(len(text) - LONGEST // 2, 1), LONGEST // 2):
            match = self._pattern.search(text, start, start + LONGEST)
            if match is not None:
                return match
        return None

    def fullmatch(self, text: str, /) -> PatternMatch | None:
        """Return the match of the whole text; None for one that is longer than LONGEST."""
        return self._pattern.fullmatch(text) if len(text) <= LONGEST else None


def most_steps(expression: str) -> float:
    """Return how many steps a search of LONGEST characters may take. Raises re.error."""
    tree = _parser.parse(expression)
    sample = _SAMPLE | {chr(number) for number in _numbers(tree) if 0 <= number < 0x110000}  # noqa: PLR2004  Unicode's end
    count = _StepCount(sample)
    nodes = list(tree)
    at_the_start = bool(nodes) and _name(nodes[0]) == "AT" and not re.compile(expression).flags & re.MULTILINE
    starts = 1.0 if at_the_start else LONGEST / _period(nodes)
    ways = count.ways(nodes, frozenset(), 1.0)
    return starts * max(ways, count.read)


class _StepCount:
    """Counts the ways in which parts of one pattern may match. sample: the characters by which sets are compared."""

    def __init__(self, sample: frozenset[str]) -> None:
        self._sample = sample
        #: The most characters that one repeat may read: those of a repeat with one way, for each way that leads to it.
        self.read = 1.0

    def ways(self, nodes: Sequence[Node], following: frozenset[str], before: float) -> float:
        """Return in how many ways a sequence may match from one place.

        following: the characters with which what follows may begin. before: the ways that lead to the sequence; 0 within a repeat, where
        all that is repeated reads no more than the repeat.
        """
        ways = 1.0
        for index, node in enumerate(nodes):
            rest = nodes[index + 1 :]
            first, nullable = self._first(rest)
            ways *= self._ways_of(node, first | following if nullable else first, rest, before * ways)
        return ways

    def _ways_of(self, node: Node, following: frozenset[str], rest: Sequence[Node], before: float) -> float:
        name, argument = _name(node), node[1]
        if name in _REPEATS:
            return self._ways_of_repeat(argument, following, rest, before)
        if name == "BRANCH":
            branches = [list(branch) for branch in argument[1]]
            counts = [self.ways(branch, following, before) for branch in branches]
            return max(counts) if self._differ(branches, following) else sum(counts)
        product = 1.0
        for inner in _inner(node):
            product *= self.ways(inner, following, before * product)
        return product if name != "GROUPREF_EXISTS" else 2 * product

    def _ways_of_repeat(self, repeat: Any, following: frozenset[str], rest: Sequence[Node], before: float) -> float:  # noqa: ANN401
        least, nodes = int(repeat[0]), list(repeat[2])
        first, nullable = self._first(nodes)
        most = min(int(repeat[1]), LONGEST)
        of_item = self.ways(nodes, (first | following) if most > 1 else following, 0.0 if most > 1 else before)
        if of_item > 1 or (nullable and most > 1):
            return float("inf") if most * _digits(max(of_item, 2.0)) > 300 else of_item**most  # noqa: PLR2004  a float's largest power
        if not first & following:
            self.read = max(self.read, before * most if following else 1.0)
            return 1.0
        return min(most - least + 1, max(1.0, LONGEST / _period(rest)))

    def _differ(self, branches: Sequence[Sequence[Node]], following: frozenset[str]) -> bool:
        """Return whether no character may begin two of the branches."""
        seen: set[str] = set()
        for branch in branches:
            first, nullable = self._first(branch)
            first = first | following if nullable else first
            if seen & first or nullable:
                return False
            seen |= first
        return True

    def _first(self, nodes: Sequence[Node]) -> tuple[frozenset[str], bool]:
        """Return the characters with which a sequence may begin, and whether it may be empty."""
        firsts_so_far: frozenset[str] = frozenset()
        for node in nodes:
            name = _name(node)
            if name in _ONE_CHARACTER:
                return firsts_so_far | self._set(node), False
            if name in {"AT", "ASSERT", "ASSERT_NOT"}:
                firsts_so_far |= {_A_PLACE}
                continue
            if name in _REPEATS:
                first, nullable = self._first(list(node[1][2]))
                nullable = nullable or node[1][0] == 0
            elif name == "BRANCH":
                firsts = [self._first(list(branch)) for branch in node[1][1]]
                first, nullable = frozenset().union(*(characters for characters, _ in firsts)), any(empty for _, empty in firsts)
            elif name in {"SUBPATTERN", "ATOMIC_GROUP"}:
                (inner,) = _inner(node)
                first, nullable = self._first(inner)
            else:  # a reference to a group
                first, nullable = self._sample, True
            firsts_so_far |= first
            if not nullable:
                return firsts_so_far, False
        return firsts_so_far, True

    def _set(self, node: Node) -> frozenset[str]:
        """Return the characters that a node of one character may match, under any flags; all where the sample has none of them."""
        patterns = []
        for flags in (re.DOTALL, re.DOTALL | re.IGNORECASE, re.DOTALL | re.ASCII):
            tree = _parser.parse("", flags)
            tree.append(node)
            patterns.append(_compiler.compile(tree, flags))
        return frozenset(character for character in self._sample if any(pattern.match(character) for pattern in patterns)) or self._sample


def _name(node: Node) -> str:
    return str(node[0])


def _inner(node: Node) -> list[list[Node]]:
    """Return the sequences within a group or a look-around."""
    name, argument = _name(node), node[1]
    if name == "SUBPATTERN":
        return [list(argument[-1])]
    if name == "ATOMIC_GROUP":
        return [list(argument)]
    if name in {"ASSERT", "ASSERT_NOT"}:
        return [list(argument[1])]
    return [list(group) for group in argument[1:] if group is not None] if name == "GROUPREF_EXISTS" else []


def _period(nodes: Sequence[Node]) -> int:
    """Return how far apart two places are at least at which the literal is with which a sequence begins; 1 where it has none."""
    word = ""
    for node in nodes:
        if _name(node) == "LITERAL":
            word += chr(node[1])
        elif _name(node) == "SUBPATTERN" and not word:
            return _period(_inner(node)[0])
        elif _name(node) != "AT":
            break
    return next((shift for shift in range(1, len(word)) if word.startswith(word[shift:])), max(len(word), 1))


def _digits(number: float) -> float:
    return len(f"{number:.0f}") if number != float("inf") else float("inf")


def _numbers(value: object) -> Iterator[int]:
    """Yield every number in a parsed pattern; the codes of its characters are among them."""
    if isinstance(value, int):
        yield int(value)
    elif isinstance(value, (list, tuple, _parser.SubPattern)):
        for item in value:
            yield from _numbers(item)
