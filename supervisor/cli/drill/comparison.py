"""Compares the training state with which an attempt resumed with the states that the attempt before it went through.

Each rank recorded a row before each optimizer step (`_supervise_shim/resume_record.py`): digests of weights, optimizer state and gradients.
The first state of the resumed attempt must be the state of the first attempt after some step k. The weights show which k it is, so the
checkpoint's own format is not read. k must be greater than the steps that the resumed attempt made itself: a seeded script that begins from
scratch repeats the first attempt, so its row 0 equals row 0.

The gradients of the next step come from data, randomness and weights together. If they are equal, the data went on where it was. If they
differ, nothing is shown: the data may differ, or the sums of a GPU.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from supervisor.core.values import Struct, field

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: The rows of the resumed attempt that may hold the resumed state: some scripts step once with zeros, to have a state to load into.
_FIRST_ROWS = 2


class StateRow(Struct, frozen=True):
    """The state before one optimizer step. optimizer: its number in the process, from 0. steps: how many the process made before.

    step: the absolute one, None: unknown. weights, state, gradients: digests, "": not readable. settings: of each group of parameters.
    """

    optimizer: int
    steps: int
    step: int | None
    weights: str
    state: str
    gradients: str
    settings: tuple[dict[str, Any], ...] = field(default=())


class StateComparison(Struct, frozen=True):
    """The result for each part. True: equal, False: different, None: not shown. lines: the report's words, by the part's name.

    after: the step of the first attempt after which it had the resumed state; None: after none.
    """

    after: int | None
    weights: bool | None
    optimizer: bool | None = None
    step: bool | None = None
    data: bool | None = None
    lines: tuple[tuple[str, str], ...] = ()

    @property
    def is_proven(self) -> bool:
        """Whether weights and optimizer are equal, and the count of steps does not contradict them."""
        return self.weights is True and self.optimizer is True and self.step is not False

    @property
    def shown(self) -> tuple[str, ...]:
        """The names of what is equal."""
        names = ("weights", "optimizer", "step", "data")
        return tuple(name for name in names if getattr(self, name) is True)


def rows_of(text: bytes) -> list[StateRow]:
    """Return the rows of one rank's file. A line that is being written is passed over."""
    found = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
            found.append(
                StateRow(
                    int(row["optimizer"]),
                    int(row["steps"]),
                    None if row["step"] is None else int(row["step"]),
                    str(row["weights"]),
                    str(row["state"]),
                    str(row["gradients"]),
                    tuple(row["settings"]),
                )
            )
        except (ValueError, KeyError, TypeError):
            continue
    return found


def compare(before: Mapping[int, Sequence[StateRow]], after: Mapping[int, Sequence[StateRow]]) -> StateComparison:
    """Compare the rows of the first attempt with those of the resumed one, each by rank."""
    missing = sorted(rank for rank in before if not after.get(rank))
    if missing or not before:
        who = f"rank {missing[0]} made no step after the kill" if missing else "no rank made a step"
        return StateComparison(None, weights=None, lines=(("resumed", f"no: {who}"),))
    pairs = [_Pair.of(rank, number, rows, _of(after[rank], number)) for rank, rows in before.items() for number in _optimizers(after[rank])]
    first_pairs = [pair for pair in pairs if pair.optimizer == 0]  # another optimizer may step at other times
    common = set.intersection(*(set(pair.matches) for pair in first_pairs))
    if not common or not all(pair.matches for pair in pairs):
        return StateComparison(None, weights=False, lines=(("weights", _why_none(pairs)),))
    step = max(common, key=lambda one: (all(pair.is_state_equal(one) for pair in first_pairs), one))
    if all(pair.is_unchanged(step) for pair in pairs):
        return StateComparison(None, weights=None, lines=(("weights", f"not shown: by step {step} the training had changed nothing"),))
    matches = [pair.at(step) for pair in pairs]
    optimizer, optimizer_text = _optimizer(matches)
    silent = [rank for rank, rows in before.items() if len(_optimizers(after[rank])) < len(_optimizers(_after_step(rows, step)))]
    if silent:
        optimizer, optimizer_text = None, f"not shown: an optimizer of rank {silent[0]} made no step after the kill"
    counted, counted_text = _counted(matches)
    data, data_text = _data(matches)
    ranks = len(after)
    lines = (
        ("resumed", f"after step {step} of the first attempt"),
        ("weights", f"the same digests{f' on {ranks} ranks' if ranks > 1 else ''}"),
        ("optimizer", optimizer_text),
        ("step", counted_text),
        ("data", data_text),
    )
    return StateComparison(step, weights=True, optimizer=optimizer, step=counted, data=data, lines=lines)


class _Match(Struct, frozen=True):
    """A row of the resumed attempt and the one of the first attempt with the same weights, each with the next row of its optimizer."""

    before: StateRow
    before_next: StateRow | None
    after: StateRow
    after_next: StateRow | None


class _Pair(Struct, frozen=True):
    """One optimizer of a rank in the resumed attempt, and the steps of the first attempt after which an optimizer had its weights.

    The optimizers' numbers in both attempts need not agree: some scripts make a new optimizer in each epoch. first: the first
    attempt's row before its first step. is_beginning: the weights are those of that row.
    """

    rank: int
    optimizer: int
    matches: dict[int, _Match]
    is_beginning: bool
    first: StateRow | None

    @classmethod
    def of(cls, rank: int, optimizer: int, before: Sequence[StateRow], after: Sequence[StateRow]) -> _Pair:
        """Return the pair of the first attempt's rows of a rank, `before`, and the resumed attempt's rows of one optimizer, `after`."""
        matches: dict[int, _Match] = {}
        for at, row in enumerate(after[:_FIRST_ROWS]):
            for index, one in enumerate(before):
                if row.weights and one.weights == row.weights and one.steps > row.steps:
                    later = _of(before[index + 1 :], one.optimizer)
                    matches[one.steps] = _Match(one, next(iter(later), None), row, next(iter(after[at + 1 :]), None))
            if matches:
                break
        first = _of(before, optimizer)
        is_beginning = bool(first and after) and first[0].weights == after[0].weights != ""
        return cls(rank, optimizer, matches, is_beginning, next(iter(first), None))

    def is_state_equal(self, step: int) -> bool:
        match = self.matches[step]
        return match.before.state == match.after.state

    def is_unchanged(self, step: int) -> bool:
        """Return whether the first attempt had changed nothing by this step: a start from scratch looks the same then."""
        found, first = self.at(step).before, self.first
        return first is not None and (found.weights, found.state, found.settings) == (first.weights, first.state, first.settings)

    def at(self, step: int) -> _Match:
        """Return the match of this step; of an optimizer that steps at other times its last one."""
        return self.matches.get(step) or self.matches[max(self.matches)]


def _after_step(rows: Iterable[StateRow], step: int) -> list[StateRow]:
    """Return the rows after so many steps of the process: one of each optimizer, if several alternate."""
    return [row for row in rows if row.steps == step]


def _optimizers(rows: Iterable[StateRow]) -> list[int]:
    return sorted({row.optimizer for row in rows})


def _of(rows: Iterable[StateRow], optimizer: int) -> list[StateRow]:
    return [row for row in rows if row.optimizer == optimizer]


def _why_none(pairs: Sequence[_Pair]) -> str:
    """Return why no step has the resumed weights."""
    if all(pair.is_beginning for pair in pairs):
        return "those of the beginning: it started from scratch"
    ranks = sorted({pair.rank for pair in pairs if not pair.matches})
    if not ranks:
        return "the ranks resumed after different steps"
    where = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    return f"different: {where} resumed with weights that the first attempt had after none of its steps"


def _optimizer(matches: Sequence[_Match]) -> tuple[bool | None, str]:
    if any(not match.before.state or not match.after.state for match in matches):
        return None, "not shown: its state cannot be read"
    if any(match.before.state != match.after.state for match in matches):
        return False, "different: its state (momentum and the like) is not the one that was saved"
    changed = sorted({text for match in matches for text in _changed(match.before.settings, match.after.settings)})
    if changed:
        return False, f"the same state, other settings: {', '.join(changed)}"
    return True, "the same state and settings"


def _changed(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what differs in the settings of the groups of parameters."""
    if len(before) != len(after):
        return [f"{len(before)}→{len(after)} groups"]
    pairs = zip(before, after, strict=True)
    return [
        f"{name} {one.get(name)}→{other.get(name)}" for one, other in pairs for name in {*one, *other} if one.get(name) != other.get(name)
    ]


def _counted(matches: Sequence[_Match]) -> tuple[bool | None, str]:
    """Compare the absolute steps, as the script or the optimizer counts them."""
    known = [
        (one.step, other.step)
        for match in matches
        for one, other in ((match.before, match.after), (match.before_next, match.after_next))
        if one is not None and other is not None and one.step is not None and other.step is not None
    ]
    if not known:
        return None, "not shown: neither the optimizer nor worker.heartbeat(step) counts it"
    wrong = next(((one, other) for one, other in known if one != other), None)
    if wrong is not None:
        return False, f"counted otherwise: {wrong[1]} where the first attempt counted {wrong[0]}"
    return True, "counted on"


def _data(matches: Sequence[_Match]) -> tuple[bool | None, str]:
    if all(match.before.gradients and match.before.gradients == match.after.gradients for match in matches):
        return True, "the next step has the same gradients, so the same data and randomness"
    return None, "not shown: the next step has other gradients (other data, other randomness, or sums that vary)"
