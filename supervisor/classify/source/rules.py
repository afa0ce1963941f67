"""Applies the rules to one script, and finds the line that explains a rank's place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify.expressions import expression
from supervisor.classify.source import data, files, order
from supervisor.classify.source.collectives import Meetings
from supervisor.classify.source.script import MOST_BYTES, ParsedScript

if TYPE_CHECKING:
    from supervisor.classify.source.findings import ScriptFinding

#: Without one of these there is nothing to find; and without its word, nothing for a rule.
_OF_SCRIPTS = (
    ("save", files.saves_on_all_ranks),
    ("CUDA_VISIBLE_DEVICES", files.visible_devices),
    ("DistributedSampler", data.without_set_epoch),
    ("manual_seed", data.one_seed),
)
_SUBJECT = expression(r"torch|accelerat|lightning|CUDA_VISIBLE_DEVICES")


def findings(source: bytes) -> tuple[ScriptFinding, ...]:
    """Return what the rules find in a script, in the order of its lines; none in one that is too large. Raises SyntaxError."""
    if len(source) > MOST_BYTES:
        return ()
    script, text = ParsedScript(source), source.decode(errors="replace")
    if not _SUBJECT.search(text):
        return ()
    try:
        meetings = Meetings(script)
        results = [finding for words, rule in _OF_SCRIPTS if words in text for finding in rule(meetings)]
        results += data.uneven(meetings, text)
        for function in meetings.script.functions:
            results += [*order.under_rank_test(meetings, function), *order.leaves_before(meetings, function)]
            results += [*order.skipped_by_handler(meetings, function), *files.loads_without_barrier(meetings, function)]
    except RecursionError:  # an expression of a thousand parts: data
        return ()
    return tuple(sorted(results, key=lambda finding: finding.line))
