"""Names the ranks that have not saved as they were asked to, and where each is. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Phase
from supervisor.core.numeric import rank_list
from supervisor.observe.hangs.rank_activity import ActivityKind, rank_activity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.observe.hangs.look import Look
    from supervisor.observe.ranks.heartbeats import RankHeartbeat


def text_of(look: Look, beats: Sequence[RankHeartbeat]) -> str:
    """Return one sentence: which ranks did not ask, never ask, or were asked to save and have not, each with its phase and line."""
    does = {
        rank.rank: _does(rank_activity(rank).text, rank.phase, waits=rank_activity(rank).kind is ActivityKind.WAITS) for rank in look.ranks
    }
    alike: dict[str, list[int]] = {}
    for beat in beats:
        if how := _how(beat, is_anyone_asking=any(other.asks for other in beats)):
            alike.setdefault(f"{how} ({does.get(beat.rank, 'it could not be examined')})", []).append(beat.rank)
    return "; ".join(f"{rank_list(ranks)} {how}" for how, ranks in alike.items())


def _how(beat: RankHeartbeat, *, is_anyone_asking: bool) -> str:
    """Return what a rank did not do, after its name; "" where it saved, or never asks while others do not either."""
    if beat.save_asked:
        return "" if beat.went_on else "was asked to save, and its save is not over"
    if not beat.asks:
        return "never asked worker.should_save()" if is_anyone_asking else ""
    return "did not ask worker.should_save() in this time"


def _does(text: str, phase: Phase | None, *, waits: bool) -> str:
    known = f"phase {phase}, " if phase is not None and phase is not Phase.UNKNOWN else ""
    return f"{known}{'waits ' if waits else ''}{text}"
