"""What two neighbouring looks at the ranks between which none moved mean: what the hang is, and who is to blame. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Hang, HangKind, Phase
from supervisor.core.numeric import rank_list
from supervisor.core.values import replace
from supervisor.observe.hangs import devices
from supervisor.observe.hangs.awaited import AwaitedKind
from supervisor.observe.hangs.rank_activity import AT_EXIT, ActivityKind, RankActivity, rank_activity
from supervisor.observe.hangs.rank_progress import compare

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from supervisor.observe.hangs.look import Look
    from supervisor.observe.hangs.rank_progress import RankProgress

#: Kinds in which the ranks that are waited for may come, if they do anything.
_MAY_GO_ON = frozenset({HangKind.LATE, HangKind.WAITING, HangKind.EXIT, HangKind.STILL})


def hang(first: Look, second: Look, *, still_s: float, limit_s: float, calibrated: bool) -> Hang:
    """Return what the hang is, of two neighbouring looks between which no rank moved."""
    progress = compare(first, second)
    before = {look.rank: rank_activity(look) for look in first.ranks}
    plain = tuple(rank_activity(look) for look in second.ranks)
    lasting_ranks = {activity.rank for activity in plain if activity.rank in before and _same(before[activity.rank], activity)}
    now = tuple(_in_full(activity, progress) for activity in plain)
    lasting = tuple(activity for activity in now if activity.rank in lasting_ranks)
    kind, text, culprits = _judged(now, lasting, second, progress)
    at_exit, end_step = _behind_the_end(now, second)
    concerned = culprits or now
    waiters = [activity for activity in now if activity.group is not None]
    timeouts = [activity.group.timeout_s for activity in waiters if activity.group is not None and activity.group.timeout_s is not None]
    shown = concerned[0] if concerned else None
    busy, slow = ({rank for rank, _ in rows} for rows in (progress.busy, progress.slow))
    goes_on = [activity.rank for activity in concerned if kind in _MAY_GO_ON or activity.rank in slow]
    is_busy = kind in _MAY_GO_ON and any(rank in busy for rank in goes_on)
    is_slow = any(rank in slow for rank in goes_on)
    return Hang(
        kind,
        text,
        tuple(activity.rank for activity in culprits),
        _code(culprits),
        Phase.UNKNOWN if shown is None else shown.phase,
        still_s,
        limit_s,
        calibrated,
        is_busy,
        min(timeouts, default=None),
        is_slow,
        "" if is_busy or is_slow else _left_file(concerned),
        at_exit,
        "; ".join(f"rank {rank} {does}" for rank, does in progress.working),
        end_step,
        devices=devices.text_of(second, [activity.rank for activity in culprits]),
    )


def _behind_the_end(now: Sequence[RankActivity], look: Look) -> tuple[str, int | None]:
    """Return who stands behind the training's end and in what, and the step that all ranks made; "" where a rank may still train."""
    alive = [activity for activity in now if activity.kind is not ActivityKind.GONE]
    at_exit = {activity.rank for activity in now if activity.at_exit}
    ended = [rank.has_ended or rank.rank in at_exit or (rank.process.is_gone and rank.steps is None) for rank in look.ranks]
    if not alive or not all(ended):
        return "", None
    alike: dict[str, list[int]] = {}
    for activity in alive:
        place = f" ({activity.place})" if activity.place and activity.place not in activity.text else ""
        text = activity.text.removeprefix(AT_EXIT).removeprefix(", and ")
        alike.setdefault(f"{text}{place}", []).append(activity.rank)
    parts = [
        f"{rank_list(ranks)} {'stands' if len(ranks) == 1 else 'stand'} at {'its' if len(ranks) == 1 else 'their'} exit"
        f"{': ' if text.startswith('a thread') else ' '}{text}".rstrip()
        for text, ranks in alike.items()
    ]
    steps = [rank.step for rank in look.ranks]
    return "; ".join(parts), None if None in steps else min(step for step in steps if step is not None)


def _in_full(activity: RankActivity, progress: RankProgress) -> RankActivity:
    """Return what a rank does, with what it uses, moves and waits for, if it is not in a collective."""
    if activity.kind not in {ActivityKind.ELSEWHERE, ActivityKind.BLOCKED}:
        return activity
    busy = [f", and {text}" for rank, text in progress.busy if rank == activity.rank]
    slow = [f", {text}" for rank, text in progress.slow if rank == activity.rank]
    waits = [f", waiting for {' and '.join(awaited.text for awaited in activity.awaits)}"] if activity.awaits and not busy else []
    return replace(activity, text="".join([activity.text, *busy, *slow, *waits]))


def _left_file(concerned: Sequence[RankActivity]) -> str:
    """Return the file that all of these ranks wait for the end of, and that nobody is left to remove; "" for none."""
    files = [{awaited.name for awaited in activity.awaits if awaited.is_left} for activity in concerned]
    return min(set.intersection(*files), default="") if files else ""


def _judged(
    now: tuple[RankActivity, ...], lasting: tuple[RankActivity, ...], look: Look, progress: RankProgress
) -> tuple[HangKind, str, tuple[RankActivity, ...]]:
    """Return kind, sentence and culprits: the first kind that is proven. `lasting`: the ranks that do the same in both looks."""
    waits = tuple(activity for activity in now if activity.kind is ActivityKind.WAITS)
    if missed := _missed(now, lasting, waits, progress, {rank.rank for rank in look.ranks if rank.script_over}):
        others = tuple(activity for activity in now if activity.kind is ActivityKind.ELSEWHERE)
        return HangKind.GONE, _sentence(waits, (*others, *missed), look), missed
    if conflict := _mismatch(lasting):
        return HangKind.MISMATCH, f"{_waiting(conflict)}: they wait for ever", conflict
    for kind, which in ((HangKind.STOPPED, ActivityKind.STOPPED), (HangKind.BLOCKED, ActivityKind.BLOCKED)):
        if culprits := tuple(activity for activity in lasting if activity.kind is which and not _waits_for_another(activity, progress)):
            return kind, _sentence(waits, culprits, look), culprits
    rest = tuple(activity for activity in now if activity.kind not in {ActivityKind.WAITS, ActivityKind.GONE})
    goes_on = rest if len(rest) < len(now) else ()  # the others ended in order
    is_exit = not waits and all(activity.at_exit for activity in rest)
    # who polls waits for another rank, and that one is late; where all poll, those are late that did not come to the collective
    late = tuple(activity for activity in rest if not _waits_for_another(activity, progress))
    if rest and (waits or is_exit or 0 < len(late) < len(rest)):
        return HangKind.EXIT if is_exit else HangKind.LATE, _sentence(waits, rest, look), late or rest
    calls = {(activity.group.name if activity.group else "", activity.text) for activity in waits}
    if len(calls) == 1 and not any(activity.collective is not None and activity.collective.is_p2p for activity in waits):
        return HangKind.WAITING, _sentence(waits, (), look) + _missing(waits, look), ()
    return HangKind.STILL, _sentence(waits, rest, look) or "no rank of this node is known", goes_on


def _missing(waits: Sequence[RankActivity], look: Look) -> str:
    """Return how many ranks came to the process group that is to be made, where it is to have more than there are on this node."""
    world = max((rank.world or 0 for rank in look.ranks), default=0)
    if world <= len(waits) or not all("init_process_group" in activity.text for activity in waits):
        return ""
    rest = world - len(waits)
    where = "the other one is on another node" if rest == 1 else f"the {rest} others are on other nodes"
    return f": {len(waits)} of {world} ranks came; {where}, or never started"


def _missed(
    now: tuple[RankActivity, ...],
    lasting: tuple[RankActivity, ...],
    waits: tuple[RankActivity, ...],
    progress: RankProgress,
    over: Collection[int],
) -> tuple[RankActivity, ...]:
    """Return the ranks that are gone and that a peer waits for, or all if none lives. `over`: the ranks that have no more to train.

    A rank may also have ended in order, while another one still uploads the result: that is no hang. But one that polls, for nothing that a
    living process holds and while no byte of it moves, polls for what no rank will make any more. If it gave up its group before, or if the
    ranks that are gone came to their end and nothing shows what it polls, it may be a service on another machine that it asks.
    """
    gone = tuple(activity for activity in lasting if activity.kind is ActivityKind.GONE)
    if len(gone) == len(now):
        return gone
    active = {rank for rank, _ in (*progress.busy, *progress.slow)}
    in_order = all(activity.rank in over for activity in gone)
    alive = [
        activity
        for activity in now
        if activity.kind is ActivityKind.ELSEWHERE and activity.rank not in active and activity.rank not in over
    ]
    polling = [activity for activity in alive if _polls_in_vain(activity, progress) and (activity.awaits or not in_order)]
    if len(polling) + len(gone) == len(now):
        return gone
    groups = [wait.group for wait in waits]
    return tuple(activity for activity in gone if any(group is None or not group.ranks or activity.rank in group.ranks for group in groups))


def _waits_for_another(activity: RankActivity, progress: RankProgress) -> bool:
    """Return whether a rank waits for another one outside of torch's collectives.

    It polls a file, or torch's store; or what is at the other end of its queue, connection or lock is another rank. A loop that only sleeps
    and asks for what nobody knows waits too; but not one that reads from its own children, or asks a server of somebody else's.
    """
    if activity.kind not in {ActivityKind.ELSEWHERE, ActivityKind.BLOCKED} or activity.at_exit or activity.phase is Phase.DATA:
        return False
    if activity.rank in {rank for rank, _ in (*progress.busy, *progress.slow)}:
        return False
    polls = activity.rank in progress.polling
    if not activity.awaits:
        return polls and activity.kind is ActivityKind.ELSEWHERE
    return any(
        awaited.of_store or bool(set(awaited.ranks) - {activity.rank}) or (polls and awaited.kind is AwaitedKind.FILE and not awaited.pids)
        for awaited in activity.awaits
    )


def _polls_in_vain(activity: RankActivity, progress: RankProgress) -> bool:
    """Return whether a rank polls, or waits at a pipe, with nobody there."""
    waits = activity.rank in progress.polling or any(awaited.kind is AwaitedKind.PIPE for awaited in activity.awaits)
    return waits and not any(awaited.lives for awaited in activity.awaits)


def _mismatch(lasting: tuple[RankActivity, ...]) -> tuple[RankActivity, ...]:
    """Return the ranks that wait in one process group for collectives that differ; none without.

    Two ranks whose collectives of one number are different operations wait for ever, whatever the others do. Different numbers prove it
    only if all ranks of the group are seen, and all wait: a broadcast is over for its source before the others have come.
    """
    groups: dict[tuple[str, str, tuple[int, ...]], list[RankActivity]] = {}  # two groups that share no rank may share a name
    for activity in lasting:
        if (
            activity.kind is ActivityKind.WAITS
            and activity.group is not None
            and activity.group.name
            and activity.collective is not None
            and not activity.collective.is_p2p
        ):
            groups.setdefault((activity.group.name, activity.group.backend, activity.group.ranks), []).append(activity)
    for waiting in groups.values():
        calls = {(activity.collective.sequence, activity.collective.operation) for activity in waiting if activity.collective is not None}
        differ_in_name = len(calls) > len({sequence for sequence, _ in calls})
        members = {rank for activity in waiting if activity.group is not None for rank in activity.group.ranks}
        all_wait = bool(members) and members == {activity.rank for activity in waiting}
        if differ_in_name or (len(calls) > 1 and all_wait):
            return tuple(waiting)
    return ()


def _sentence(waits: tuple[RankActivity, ...], others: tuple[RankActivity, ...], look: Look) -> str:
    """Return one sentence: who waits in what, and what the others do."""
    parts = [_waiting(waits)] if waits else []
    alike: dict[str, list[RankActivity]] = {}
    for activity in others:
        alike.setdefault(activity.text, []).append(activity)
    parts += [
        f"{rank_list(activity.rank for activity in activities)} {'is' if len(activities) == 1 else 'are'} {text}"
        for text, activities in alike.items()
    ]
    behind = _behind(look)
    return "; ".join([*parts, *([behind] if behind else [])])


def _waiting(waits: Sequence[RankActivity]) -> str:
    """Return who waits in which collective, and where in the user's code: `ranks 0-6 wait in all_reduce (seq 1841, train.py:61)`."""
    alike: dict[str, list[RankActivity]] = {}
    for activity in waits:
        place = activity.place if all(other.place == activity.place for other in waits if other.text == activity.text) else ""
        inner = f", {place})" if place else ")"
        text = activity.text[:-1] + inner if activity.text.endswith(")") else activity.text + (f" ({place})" if place else "")
        alike.setdefault(text, []).append(activity)
    parts: list[str] = []
    for text, activities in alike.items():
        verb = "" if parts else " waits" if len(activities) == 1 else " wait"
        parts.append(f"{rank_list(activity.rank for activity in activities)}{verb} {text}")
    return ", ".join(parts)


def _code(culprits: Sequence[RankActivity]) -> str:
    """Return where the culprits stand in the user's code: `train.py:61`, `train.py:61 (rank 0), train.py:75 (ranks 1-3)`."""
    places: dict[str, list[int]] = {}
    for activity in culprits:
        if activity.place:
            places.setdefault(activity.place, []).append(activity.rank)
    if len(places) == 1:
        return next(iter(places))
    return ", ".join(f"{place} ({rank_list(ranks)})" for place, ranks in places.items())


def _behind(look: Look) -> str:
    """Return which ranks made fewer steps than the others; "" where all made as many. One that ended lags behind nobody."""
    steps = {rank.rank: rank.steps for rank in look.ranks if rank.steps and not rank.process.is_gone}
    most = max(steps.values(), default=0)
    by_lag: dict[int, list[int]] = {}
    for rank, rank_steps in steps.items():
        by_lag.setdefault(most - rank_steps, []).append(rank)
    return ", ".join(
        f"{rank_list(ranks)} {'is' if len(ranks) == 1 else 'are'} {'one step' if lag == 1 else f'{lag} steps'} behind"
        for lag, ranks in sorted(by_lag.items())
        if lag
    )


def _same(before: RankActivity, after: RankActivity) -> bool:
    """Return whether a rank does the same in both looks."""
    return (before.kind, before.pid, before.text) == (after.kind, after.pid, after.text)
