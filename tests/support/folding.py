"""The state that a journal records is the fold of `decide` over its events: nothing that decides lives outside of it."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from supervisor.core.machine import decide, initial
from supervisor.core.values import replace
from supervisor.journal.records import EventTaken, Record, RunBegan, event_of
from supervisor.journal.state_json import merge, progressed
from supervisor.view.job_facts import state_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.journal.records import Damage


def check_fold(records: Iterable[Record | Damage]) -> int:
    """Fail at the first record whose state is not what `decide` makes of the events up to it; return how many events there were."""
    folded, recorded, events = initial(), dict[str, Any](), 0
    for record in records:
        assert isinstance(record, Record), str(record)
        body = record.body
        if isinstance(body, RunBegan) and body.incidents_before is not None:
            folded = replace(initial(), incidents=body.incidents_before)
        if isinstance(body, RunBegan):
            folded = replace(folded, journal_degraded=False)
        if not isinstance(body, EventTaken):
            continue
        events += 1
        assert body.whole or recorded, f"record {record.seq}: the first state is not whole"
        if body.whole:
            recorded = deepcopy(body.state or {})
        else:
            merge(recorded, progressed(recorded, body.data) if body.is_short else deepcopy(body.state or {}))
        folded, _ = decide(folded, event_of(body))
        assert state_of(recorded) == folded, f"record {record.seq}: {body.event}"
    return events
