"""Converts a state that a journal of format 2 holds, as JSON, into one of this format: every field has its place in a table.

Format 2 held the state as one flat object. Nothing is decided again.
"""

from __future__ import annotations

from typing import Any

#: Each field of a state of format 2, and where it stands now. `ranks` followed from `placed` and `ended`.
FIELDS: dict[str, str] = {
    "stage": "stage",
    "token": "token",
    "incidents": "incidents",
    "gpus": "gpus",
    "journal_degraded": "journal_degraded",
    "run_id": "run.id",
    "policy": "run.policy",
    "reason": "run.reason",
    "stop": "run.stop",
    "exit_code": "run.exit_code",
    "failures": "run.failures",
    "failed": "run.failed",
    "recurrences": "run.recurrences",
    "incident": "run.incident",
    "jitter": "run.jitter",
    "overrides": "run.overrides",
    "nproc": "run.nproc",
    "poisoned": "run.rejected",
    "suspect_until": "run.untrusted_through_step",
    "steps_back": "run.steps_back",
    "traced": "run.traced",
    "high_water": "run.high_water",
    "saved_mark": "run.saved_high_water",
    "newest": "run.newest",
    "verified": "run.verified",
    "known_good": "run.known_good",
    "unused": "run.unused",
    "ever_loaded": "run.ever_loaded",
    "checked": "run.findings",
    "programs": "run.programs",
    "values": "run.knob_values",
    "disputes": "run.disputes",
    "batchnorm": "run.batchnorm",
    "wanted": "run.command_nproc",
    "health": "run.reported_findings",
    "agreed": "run.last_agreement",
    "mixed_from_t": "run.mixed_from_t",
    "attempt": "attempt.number",
    "began_t": "attempt.began_t",
    "resume": "attempt.resume",
    "begun_with": "attempt.overrides",
    "handed": "attempt.visible_gpus",
    "gathers": "attempt.awaits_agreement",
    "scratch": "attempt.scratch_refusal",
    "started_t": "attempt.started_t",
    "placed": "attempt.ranks",
    "world_size": "attempt.world_size",
    "saves_when_told": "attempt.save_on_request",
    "saved": "attempt.saved",
    "loaded": "attempt.loaded",
    "first_step": "attempt.first_step",
    "progress": "attempt.progress",
    "steps_seen": "attempt.steps_seen",
    "began_as": "attempt.began_as",
    "saved_steps": "attempt.saved_steps",
    "told_nodes": "attempt.reported_start",
    "others_began": "attempt.peer_starts",
    "differs": "attempt.start_mismatch",
    "deaths": "attempt.deaths",
    "ended": "attempt.ended",
    "over_t": "attempt.over_t",
    "evidence": "attempt.evidence",
    "own_signal_awaited": "attempt.awaits_own_signal",
    "evicted": "attempt.eviction",
}
#: Fields of the values within it that have another name now.
_WITHIN: dict[str, dict[str, str]] = {
    "stop": {
        "from_t": "left_from_t",
        "told": "save_requested",
        "waits": "spares_ranks",
        "announced": "end_announced",
        "crashed": "rank_failed",
        "searches": "save_search",
        "searched": "save_search_done",
    },
}


def converted(values: dict[str, Any]) -> dict[str, Any]:
    """Return a state of format 2 as one of this format. A field that format 2 did not have is passed over."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        section, _, field = FIELDS.get(name, "").rpartition(".")
        if field:
            into = found.setdefault(section, {}) if section else found
            into[field] = _renamed(value, _WITHIN.get(name, {}))
    return found


def _renamed(value: Any, names: dict[str, str]) -> Any:  # noqa: ANN401 (JSON)
    return {names.get(name, name): inner for name, inner in value.items()} if names and isinstance(value, dict) else value
