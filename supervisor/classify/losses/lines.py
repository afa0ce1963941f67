"""Reads numbers out of what a rank prints: the losses in the forms of the frameworks, and what the user's own rules name.

A line without one of the rules' words costs one search of its block. Of a block at most MOST_LINES lines are read, the last ones: a
number that is strange stays strange. A carriage return ends a line, because progress bars print it.

    step 120 loss: nan                              lm loss: 6.912E+00 |            Loss nan (nan)
    {'loss': 0.5, 'grad_norm': 1.2, 'epoch': 0.1}   train_loss=1.23, v_num=0        loss=tensor(nan, device='cuda:0')

No loss: `loss scale`, `loss_weight`, `best_val_loss` (it begins as inf), `packet loss 3%`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from supervisor.classify.expressions import expression
from supervisor.classify.logs import text
from supervisor.classify.losses.rules import LossRule
from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: Lines that are read of one block, and the part read of a long one.
MOST_LINES = 64
LONGEST = 4096
MOST_OF_A_LINE = 16
#: The literals of a line with a loss.
WORDS = ("loss", "Loss", "LOSS")

_LOSS = expression(
    r"""(?:(?P<before>[A-Za-z]+)[ ])?
    (?P<name>[\w/.-]{0,40}?loss(?:es)?\d{0,3}(?:[_/]\w{0,24})?(?:[ ](?:train|val|avg))?)(?=["'\s:=|([-])
    ["']?\s{0,3}(?:[:=|]|->|is\b)?\s{0,8}["'\[(]{0,2}(?:tensor\(|(?:np|numpy)\.float\d+\()?\s?
    (?P<value>[-+]?(?:nan|inf(?:inity)?|\d+(?:\.\d*)?(?:e[-+]?\d+)?|\.\d+))(?![\w%/])(?!,\d)""",
    re.IGNORECASE | re.VERBOSE,
)
_WORD = expression(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
#: A word of a name that makes it no loss of the training.
_NO_LOSS = frozenset(
    (  # noqa: SIM905 - a list has a line for each word
        "scale scales scaler scaling weight weights coef coeff coefficient fn func function type name mask ratio lambda alpha beta decay "
        "tokens count idx id dim reduction spike spikes threshold limit patience chunk chunks time times best min max lowest prev "
        "previous last old init initial target packet data hearing no"
    ).split()
)
#: A word before a name that belongs to it.
_QUALIFIERS = frozenset(
    (  # noqa: SIM905 - as above
        "lm mtp train training val valid validation test eval evaluation total avg average mean running aux mlm nll ctc kl policy value "
        "actor critic generator discriminator"
    ).split()
)
#: A name with loss as a word of its own (not glossary, colossal).
_WHOLE = expression(r"(?<![A-Za-z])[Ll]oss|(?<=[a-z])Loss|(?i:train|val|valid|test|eval|avg|total|mean)loss|LOSS")
#: The words in the name of a loss that is not the training's.
_NOT_OF_TRAINING = expression(r"(?<![a-z])(?:val|valid|validation|test|eval|evaluation)(?![a-z])", re.IGNORECASE)
_BAR = expression(r"\d{1,3}%\||\d+it \[|\|\s*(\d+)/(?:\d+|\?) \[")
_COUNT = expression(r"(\d+)/(?:\d+|\?) ?\[|(\d+)it \[")
_STEP = expression(r"(?i)\b(?:global_?step|step|iter|iteration|it|batch|update)s?\b[\"']?\s{0,3}[:=#]?\s{0,3}\[?\s{0,6}(\d+)")
_EPOCH = expression(r"(?i)\bepoch\b[\"']?\s{0,3}[:=#]?\s{0,3}\[?\s{0,6}([\d.]+)")


class NumberReading(Struct, frozen=True):
    """One number that was read.

    capture: which of the reader's captures found it. shown: as it was printed. place: where the training stood, as far as the line shows:
    equal for two prints of one step, empty where it shows nothing. step: its number, if the line has one. is_bar: it is in a
    progress bar, which shows a number again while the next step runs.
    """

    capture: int
    name: str
    shown: str
    value: float
    place: tuple[str, ...] = ()
    step: int | None = None
    rank: int | None = None
    is_bar: bool = False


class NumberCapture(Struct, frozen=True):
    """A pattern, and the rules that judge its captures; `rule` is None for the losses."""

    words: tuple[bytes, ...]
    rule: LossRule | None = None


def is_of_training(name: str) -> bool:
    """Whether a loss of this name is the training's own, and not one of an evaluation."""
    return _NOT_OF_TRAINING.search(name) is None


def captures(rules: Iterable[LossRule]) -> tuple[tuple[NumberCapture, ...], tuple[tuple[LossRule, ...], ...]]:
    """Return the captures that the rules need, and for each its rules. Rules without a pattern share one."""
    rules = tuple(rules)
    of_losses = tuple(rule for rule in rules if rule.is_of_losses)
    own = tuple(rule for rule in rules if not rule.is_of_losses)
    first = ((NumberCapture(tuple(word.encode() for word in WORDS)),), (of_losses,)) if of_losses else ((), ())
    return (
        (*first[0], *(NumberCapture(tuple(word.encode() for word in rule.words), rule) for rule in own)),
        (*first[1], *((rule,) for rule in own)),
    )


class NumberReader:
    """Reads the numbers of one stream. Bounded memory, any bytes."""

    def __init__(self, wanted: Sequence[NumberCapture], most_lines: int = MOST_LINES) -> None:
        """Begin at the beginning of a stream. most_lines: that are read of one block, the last ones; it may be changed between two."""
        self._captures = tuple(wanted)
        self.most_lines = most_lines
        self._words = tuple(dict.fromkeys(word for capture in wanted for word in capture.words))
        self._carry = b""

    def feed(self, block: bytes) -> list[NumberReading]:
        """Return the numbers of the lines that end in this block, in order."""
        end = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
        if not end:
            self._carry = (self._carry + block)[-LONGEST:]
            return []
        begin = 0
        lines: list[bytes] = []
        if self._carry:  # only the first line is copied: of a large block a copy costs more than the search
            begin = min(at for at in (block.find(b"\n"), block.find(b"\r")) if at >= 0) + 1
            first = self._carry + block[:begin]
            lines += self._lines(first, 0, len(first))
        lines += self._lines(block, begin, end)
        self._carry = block[max(end, len(block) - LONGEST) :]
        return [reading for line in lines[-self.most_lines :] for reading in self._read(line)]

    @property
    def waiting_bytes(self) -> int:
        """The bytes of a line that did not end yet."""
        return len(self._carry)

    def finish(self) -> list[NumberReading]:
        """Return the numbers of the last line, which nothing ended."""
        return self.feed(b"\n") if self._carry else []

    def _lines(self, data: bytes, begin: int, end: int) -> Iterator[bytes]:
        """Yield the last lines between two offsets that have one of the words."""
        spans: set[tuple[int, int]] = set()
        for word in self._words:
            upto = end
            # lines before those found so far are not among the last: a word that is nowhere would cost a search of the whole block
            since = sorted(spans)[-self.most_lines][0] if len(spans) >= self.most_lines else begin
            for _ in range(self.most_lines):
                hit = data.rfind(word, since, upto)
                if hit < 0:
                    break
                start = max(data.rfind(b"\n", begin, hit) + 1, data.rfind(b"\r", begin, hit) + 1, begin)
                ends = [at for at in (data.find(b"\n", hit, end), data.find(b"\r", hit, end)) if at >= 0]
                spans.add((start, min(ends, default=end)))
                upto = start
        for start, stop in sorted(spans)[-self.most_lines :]:
            yield data[max(start, stop - LONGEST) : stop]

    def _read(self, raw: bytes) -> Iterator[NumberReading]:
        line = text.read(raw) if raw[:1] in {b"[", b" "} or raw[:1].isdigit() else text.Line(text.plain(raw.decode("utf-8", "replace")))
        for number, capture in enumerate(self._captures):
            if not any(word in raw for word in capture.words):
                continue
            for name, shown, step in _losses(line.text) if capture.rule is None else _of_rule(capture.rule, line.text):
                value = _value(shown)
                if value is not None:
                    yield _placed(number, name, shown, value, step, line)


def _placed(number: int, name: str, shown: str, value: float, step: int | None, line: text.Line) -> NumberReading:  # noqa: PLR0913, PLR0917 (a number and its line)
    is_bar = _BAR.search(line.text) is not None
    place: tuple[str, ...] = ()
    match = _COUNT.search(line.text) if is_bar else None
    if match is not None:
        place = (match[1] or match[2],)
    elif steps := _STEP.findall(line.text):
        place = (*_EPOCH.findall(line.text)[:1], *steps[:3])
        step = int(steps[0]) if step is None else step
    if step is None and place:
        step = int(place[-1])
    return NumberReading(number, name, shown, value, place, step, line.rank, is_bar)


def _losses(line: str) -> Iterator[tuple[str, str, None]]:
    """Yield name and printed value of each loss of a line."""
    for count, match in enumerate(_LOSS.finditer(line)):
        if count == MOST_OF_A_LINE:
            return
        before, name = (match["before"] or ""), match["name"].strip("-._/")
        words = {word.lower() for word in _WORD.findall(name)}
        if words & _NO_LOSS or before.lower() in _NO_LOSS or not _WHOLE.search(name):
            continue
        yield (f"{before} {name}" if before.lower() in _QUALIFIERS else name), match["value"], None


def _of_rule(rule: LossRule, line: str) -> Iterator[tuple[str, str, int | None]]:
    match = rule.pattern.search(line) if rule.pattern is not None else None
    if match is None or match["value"] is None:
        return
    name, step = _group(match, "name"), _group(match, "step")
    yield name or rule.id, match["value"], int(step) if step and step.isdecimal() else None


def _group(match: object, name: str) -> str | None:
    try:
        value: str | None = match[name]  # type: ignore[index]  # a match of re or regex
    except (IndexError, KeyError):
        return None
    return value


def _value(shown: str) -> float | None:
    try:
        return float(shown.strip().rstrip(",;"))
    except ValueError:
        return None
