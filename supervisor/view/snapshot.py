"""A view as a record of the journal: the job as it is, and the additions to its long lists since the view before.

The writer puts one into the journal once an hour. From the last one a reader has the job's state at once; from all of them, one after
the other, it has the lists too: incidents, spans of time, samples of the pace, saves, meetings. None holds what another one has, so that
90 days of them are some MiB.
"""

from __future__ import annotations

import json
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from checkpointing.io import typed
from supervisor.core.values import Struct, field, replace
from supervisor.journal.records import ViewTaken, to_json
from supervisor.journal.state_json import changes_of, copied, lean, merge
from supervisor.view.incidents import RecordedIncident, RecordedStraggler
from supervisor.view.job_view import JobView
from supervisor.view.spans import PaceSample, RunLedger, SaveMark, TimeSpan, TimeState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: The version of the view's fields. It changes when a field gets another meaning: a view of another version is passed over.
VERSION = 1

_Row = TypeVar("_Row")


class Addition(Struct, Generic[_Row], frozen=True, array_like=True):
    """The change of a list since the view before."""

    kept: int = 0  # how many of its first rows are still there
    rows: list[_Row] = field(default_factory=list)  # the rows behind them


class SpanRow(Struct, frozen=True, array_like=True):
    """The end of one of the spans that follow each other alike."""

    end_t: float
    last_step: int | float | None = None


class SpanGroup(Struct, frozen=True, array_like=True):
    """Spans of time that are alike and follow each other without a gap."""

    begin_t: float
    state: TimeState
    attempt: int
    incident: int
    ranks: int
    first_step: float | None
    ends: list[SpanRow]


class ViewLists(Struct, frozen=True, omit_defaults=True):
    """The lists of a view that grow for as long as the job runs."""

    incidents: Addition[RecordedIncident] = Addition()
    stragglers: Addition[RecordedStraggler] = Addition()
    meetings: Addition[tuple[int, tuple[str, ...]]] = Addition()
    first_deaths: Addition[tuple[int, int]] = Addition()
    runs_over: Addition[RunLedger] = Addition()
    spans: Addition[SpanGroup] = Addition()
    unproven: Addition[SpanGroup] = Addition()
    samples: Addition[PaceSample] = Addition()
    saves: Addition[SaveMark] = Addition()
    opened: Addition[int] = Addition()


_VIEW, _LISTS = typed.decoder(JobView), typed.decoder(ViewLists)
_SPANS = frozenset({"spans", "unproven"})


def lists_of(view: JobView) -> dict[str, list[Any]]:
    """Return the lists of a view, by the names of ViewLists."""
    time = view.time
    return {
        "incidents": view.incidents,
        "stragglers": view.stragglers,
        "meetings": list(view.meetings.items()),
        "first_deaths": list(view.first_deaths.items()),
        "runs_over": view.runs_over,
        "spans": [] if time is None else time.run.spans,
        "unproven": [] if time is None else time.unproven,
        "samples": [] if time is None else time.run.samples,
        "saves": [] if time is None else time.run.saves,
        "opened": [] if time is None else time.run.incidents,
    }


def with_lists(view: JobView, lists: dict[str, list[Any]]) -> JobView:
    """Return the view with these lists."""
    time = view.time
    if time is not None:
        ledger = replace(time.run, spans=lists["spans"], samples=lists["samples"], saves=lists["saves"], incidents=lists["opened"])
        time = replace(time, run=ledger, unproven=lists["unproven"])
    return replace(
        view,
        time=time,
        incidents=lists["incidents"],
        stragglers=lists["stragglers"],
        meetings=dict(lists["meetings"]),
        first_deaths=dict(lists["first_deaths"]),
        runs_over=lists["runs_over"],
    )


def view_taken(view: JobView, before: JobView | None, *, full: bool) -> ViewTaken:
    """Return the record of a view, which has taken this record already.

    before: that of the record that it continues from; None: it is whole. full: its state is whole, and the last incident is in it.
    """
    earlier = {} if before is None else lists_of(before)
    full = full or before is None
    additions = {name: _addition(name, rows, earlier.get(name, []), full=full) for name, rows in lists_of(view).items()}
    head = with_lists(view, {name: [] for name in additions})
    if not full and before is not None and view.values is not None:
        head.values = changes_of(view.values, before.values or {})
    lists = ViewLists(**additions)
    return ViewTaken(VERSION, 0 if before is None else before.seq, full, msgspec.Raw(to_json(lean(head))), msgspec.Raw(to_json(lists)))


def _addition(name: str, rows: list[Any], before: Sequence[Any], *, full: bool) -> Addition[Any]:
    alike = takewhile(lambda pair: pair[0] is pair[1] or pair[0] == pair[1], zip(rows, before, strict=False))
    kept = sum(1 for _ in alike)
    if full and name in {"incidents", "meetings"}:
        kept = max(0, min(kept, len(rows) - 1))
    elif full and name == "stragglers":  # who looks at the end of the journal sees who makes the others wait
        kept = next((place for place, straggler in enumerate(rows[:kept]) if straggler.until_t is None), kept)
    return Addition(kept, grouped(rows[kept:]) if name in _SPANS else lean(rows[kept:]))


def grouped(spans: Iterable[TimeSpan]) -> list[SpanGroup]:
    """Return spans in groups of those that are alike and follow each other."""
    groups: list[SpanGroup] = []
    last: TimeSpan | None = None
    for span in spans:
        follows = last is not None and last.is_alike(span) and (last.end_t, last.last_step) == (span.begin_t, span.first_step)
        if not follows:
            groups.append(SpanGroup(span.begin_t, span.state, span.attempt, span.incident, span.ranks, span.first_step, []))
        step = span.last_step
        groups[-1].ends.append(SpanRow(span.end_t, int(step) if step is not None and step.is_integer() else step))
        last = span
    return groups


def spans_of(groups: Iterable[SpanGroup]) -> list[TimeSpan]:
    """Return the spans of these groups."""
    spans = []
    for group in groups:
        begin_t, first_step = group.begin_t, group.first_step
        for row in group.ends:
            of_group = group.state, group.attempt, group.incident, group.ranks
            spans.append(TimeSpan(begin_t, row.end_t, *of_group, first_step, row.last_step))
            begin_t, first_step = row.end_t, row.last_step
    return spans


class ViewChain:
    """Puts a view together from the records of views in a journal, one after the other.

    is_whole: it begins with one that is whole; else with any that is full, and its lists may begin late.
    """

    def __init__(self, *, is_whole: bool) -> None:
        self._is_whole = is_whole
        self._view: JobView | None = None  # of the newest record, without its lists
        self._lists: dict[str, list[Any]] = {name: [] for name in ViewLists.__struct_fields__}
        self._skipped: dict[str, int] = dict.fromkeys(ViewLists.__struct_fields__, 0)  # rows that stand before each list
        self._after = 0  # number of the record after which the lists begin

    def take(self, taken: ViewTaken) -> bool:
        """Take the next record; return whether it follows on those before it. One that does not, or cannot be read, changes nothing."""
        before = 0 if self._view is None else self._view.seq
        is_first = self._view is None and taken.full and not self._is_whole
        if taken.before not in {0, before} and not is_first:
            return False
        parts = parts_of(taken)
        if parts is None:
            return False
        view, lists = parts
        if not taken.full and view.values is not None:
            values = copied((self._view and self._view.values) or {})
            merge(values, view.values)
            view.values = values
        if self._view is None:
            self._after = taken.before
        elif taken.before == 0:
            self._lists, self._skipped = {name: [] for name in self._lists}, dict.fromkeys(self._lists, 0)
        for name, rows in self._lists.items():
            addition: Addition[Any] = getattr(lists, name)
            place = addition.kept - self._skipped[name]
            if place < 0 or (self._view is None and place):
                self._skipped[name], place = addition.kept, 0
            del rows[place:]
            rows.extend(spans_of(addition.rows) if name in _SPANS else addition.rows)
        self._view = view
        return True

    def view(self) -> JobView | None:
        """Return the view with its lists; None: there was none."""
        if self._view is None:
            return None
        view = with_lists(self._view, {name: [*rows] for name, rows in self._lists.items()})
        return replace(view, after_seq=self._after, incidents_unlisted=self._skipped["incidents"])


def parts_of(taken: ViewTaken) -> tuple[JobView, ViewLists] | None:
    """Return the view of a record and the additions to its lists; None where another version wrote it, or a field does not fit."""
    if taken.version != VERSION:
        return None
    try:
        try:
            return _VIEW.decode(taken.view), _LISTS.decode(taken.lists)
        except (UnicodeDecodeError, msgspec.DecodeError):  # it refuses the escapes of lone surrogates
            return typed.converted(json.loads(bytes(taken.view)), JobView), typed.converted(json.loads(bytes(taken.lists)), ViewLists)
    except (ValueError, RecursionError, msgspec.ValidationError):
        return None
