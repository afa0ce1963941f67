"""Judges two neighbouring looks between which no rank moved: the kind of the hang, and the rank to blame. Pure.

A node compares its own two looks (`compared`). The results for all ranks, of one node or of many, are judged by the same rules
(`hang_of`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Hang, HangKind, Phase
from supervisor.core.numeric import rank_list
from supervisor.core.values import Struct, replace
from supervisor.observe.hangs import devices
from supervisor.observe.hangs.awaited import AwaitedKind
from supervisor.observe.hangs.frames import StackFrame
from supervisor.observe.hangs.rank_activity import AT_EXIT, ActivityKind, RankActivity, rank_activity, training_thread
from supervisor.observe.hangs.rank_progress import RankProgress, compare

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from supervisor.observe.hangs.look import Look

#: Kinds in which the ranks that are waited for may come, if they do anything.
_MAY_GO_ON = frozenset({HangKind.LATE, HangKind.WAITING, HangKind.EXIT, HangKind.STILL})
#: So many nodes are named in one place of a sentence, and so many kinds of what ranks do.
MOST_NAMED, MOST_KINDS = 3, 8
#: The GPUs of so many ranks are shown: of those that the others wait for, and then of the first.
MOST_RANKS = 8


class ComparedRank(Struct, frozen=True):
    """One rank as two neighbouring looks show it: its state now, and its work between them.

    lasts: it did the same in the first look. busy, slow: what showed it, after its name, "" for nothing; polls: it only asks again and
    again. working: what some thread of the rank, or of a process below it, still did. script_over, steps, step, world: of its heartbeat.
    has_ended: nothing is left for it to train. recorded, device: where it is in its process group by torch's recorder, and what its GPU
    does, for people. stack: of its training thread, the innermost call first. node: as people are shown it, "" where the job has one.
    """

    activity: RankActivity
    lasts: bool = False
    busy: str = ""
    slow: str = ""
    polls: bool = False
    working: str = ""
    script_over: bool = False
    has_ended: bool = False
    steps: int | None = None
    step: int | None = None
    world: int | None = None
    recorded: str = ""
    device: str = ""
    stack: tuple[StackFrame, ...] = ()
    node: str = ""


def compared(first: Look, second: Look, progress: RankProgress) -> tuple[ComparedRank, ...]:
    """Return the ranks of the second look, compared with the first. progress: what moved between the two (rank_progress.compare)."""
    first_activities = {look.rank: rank_activity(look) for look in first.ranks}
    busy, slow, working = dict(progress.busy), dict(progress.slow), dict(progress.working)
    ranks = []
    for look in second.ranks:
        activity, thread = rank_activity(look), training_thread(look.process.stacks)
        ranks.append(
            ComparedRank(
                activity,
                look.rank in first_activities and _is_same(first_activities[look.rank], activity),
                busy.get(look.rank, ""),
                slow.get(look.rank, ""),
                look.rank in progress.polling,
                working.get(look.rank, ""),
                look.script_over,
                look.has_ended or (look.process.is_gone and look.steps is None),
                None if look.process.is_gone else look.steps,  # one that ended lags behind nobody
                look.step,
                look.world,
                devices.place(look),
                look.device,
                () if thread is None else thread.frames,
            )
        )
    return tuple(ranks)


def hang(first: Look, second: Look, *, still_s: float, limit_s: float, calibrated: bool) -> Hang:
    """Return what the hang is, of two neighbouring looks at the ranks of one node, between which no rank moved."""
    return hang_of(compared(first, second, compare(first, second)), still_s=still_s, limit_s=limit_s, calibrated=calibrated)


def hang_of(
    ranks: Sequence[ComparedRank], *, still_s: float, limit_s: float, calibrated: bool, silent: Sequence[tuple[str, str]] = ()
) -> Hang:
    """Return what the hang is, of all ranks of the job that were looked at. silent: the nodes that were not, each with the reason."""
    progress = RankProgress(
        busy=tuple((rank.activity.rank, rank.busy) for rank in ranks if rank.busy),
        slow=tuple((rank.activity.rank, rank.slow) for rank in ranks if rank.slow),
        polling=tuple(rank.activity.rank for rank in ranks if rank.polls),
        working=tuple((rank.activity.rank, rank.working) for rank in ranks if rank.working),
    )
    now = tuple(_in_full(rank) for rank in ranks)
    lasting = tuple(activity for activity, rank in zip(now, ranks, strict=True) if rank.lasts)
    kind, text, culprits = _kind_of(now, lasting, ranks, progress)
    at_exit, end_step = _behind_the_end(now, ranks)
    concerned = culprits or now
    waiters = [activity for activity in now if activity.group is not None]
    timeouts = [activity.group.timeout_s for activity in waiters if activity.group is not None and activity.group.timeout_s is not None]
    first_concerned = concerned[0] if concerned else None
    busy, slow = ({rank for rank, _ in rows} for rows in (progress.busy, progress.slow))
    goes_on = [activity.rank for activity in concerned if kind in _MAY_GO_ON or activity.rank in slow]
    is_busy = kind in _MAY_GO_ON and any(rank in busy for rank in goes_on)
    is_slow = any(rank in slow for rank in goes_on)
    left_file = "" if is_busy or is_slow else _left_file(concerned)
    kind = HangKind.LOCK if left_file and kind in {HangKind.LATE, HangKind.STILL} else kind
    nodes = {rank.activity.rank: rank.node for rank in ranks}
    of_culprits = {nodes[activity.rank] for activity in culprits}
    return Hang(
        kind,
        "; ".join([text, *_silence(silent)]),
        tuple(activity.rank for activity in culprits),
        _code(culprits),
        Phase.UNKNOWN if first_concerned is None else first_concerned.phase,
        still_s,
        limit_s,
        calibrated,
        is_busy,
        min(timeouts, default=None),
        is_slow,
        left_file,
        at_exit=at_exit,
        working="; ".join(f"rank {rank} {does}" for rank, does in progress.working),
        end_step=end_step,
        devices=devices_text(ranks, [activity.rank for activity in culprits]),
        node=min(of_culprits) if len(of_culprits) == 1 else "",
    )


def devices_text(ranks: Sequence[ComparedRank], culprits: Collection[int]) -> str:
    """Return the ranks and their GPUs as text, the culprits first; "" where no rank's GPU is known."""
    if not any(rank.device for rank in ranks):
        return ""
    ranks = sorted(ranks, key=lambda rank: (rank.activity.rank not in culprits, rank.activity.rank))
    rows = [f"rank {rank.activity.rank}: {', '.join(filter(None, (rank.device, rank.recorded)))}" for rank in ranks[:MOST_RANKS]]
    hidden = len(ranks) - MOST_RANKS
    return "; ".join([*rows, *([f"and {hidden} more in the page of the look"] if hidden > 0 else [])])


def _behind_the_end(now: Sequence[RankActivity], ranks: Sequence[ComparedRank]) -> tuple[str, int | None]:
    """Return the ranks that wait after the training's end and where, and the step that all ranks made; "" where a rank may still train."""
    alive = [activity for activity in now if activity.kind is not ActivityKind.GONE]
    if not alive or not all(rank.has_ended or rank.activity.at_exit for rank in ranks):
        return "", None
    alike: dict[str, list[RankActivity]] = {}
    for activity in alive:
        place = f" ({activity.place})" if activity.place and activity.place not in activity.text else ""
        text = activity.text.removeprefix(AT_EXIT).removeprefix(", and ")
        alike.setdefault(f"{text}{place}", []).append(activity)
    nodes = _nodes(ranks)
    parts = [
        f"{_named(activities, nodes)} {'stands at its exit' if len(activities) == 1 else 'stand at their exit'}"
        f"{': ' if text.startswith('a thread') else ' '}{text}".rstrip()
        for text, activities in list(alike.items())[:MOST_KINDS]
    ]
    steps = [rank.step for rank in ranks]
    return "; ".join(parts), None if None in steps else min(step for step in steps if step is not None)


def _silence(silent: Sequence[tuple[str, str]]) -> list[str]:
    """Return which nodes could not be looked at, by their reasons."""
    alike: dict[str, list[str]] = {}
    for node, reason in silent:
        alike.setdefault(reason, []).append(node)
    return [f"node{'s' * (len(nodes) > 1)} {_listed(nodes)} {reason}" for reason, nodes in alike.items()]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")


def _in_full(rank: ComparedRank) -> RankActivity:
    """Return a rank's activity: its calls, use, moves and waits, if it is not in a collective."""
    activity = rank.activity
    if activity.kind not in {ActivityKind.ELSEWHERE, ActivityKind.BLOCKED}:
        return activity
    busy = [f", and {rank.busy}"] if rank.busy else []
    slow = [f", {rank.slow}"] if rank.slow else []
    waits = [f", waiting for {' and '.join(awaited.text for awaited in activity.awaits)}"] if activity.awaits and not busy else []
    return replace(activity, text="".join([activity.text, *busy, *slow, *waits]))


def _left_file(concerned: Sequence[RankActivity]) -> str:
    """Return the file that all of these ranks wait for the end of, and that nobody is left to remove; "" for none."""
    files = [{awaited.name for awaited in activity.awaits if awaited.is_left} for activity in concerned]
    return min(set.intersection(*files), default="") if files else ""


def _kind_of(
    now: tuple[RankActivity, ...], lasting: tuple[RankActivity, ...], ranks: Sequence[ComparedRank], progress: RankProgress
) -> tuple[HangKind, str, tuple[RankActivity, ...]]:
    """Return kind, sentence and culprits: the first kind that is proven. `lasting`: the ranks that do the same in both looks."""
    waits = tuple(activity for activity in now if activity.kind is ActivityKind.WAITS)
    if missed := _missed(now, lasting, waits, progress, {rank.activity.rank for rank in ranks if rank.script_over}):
        elsewhere = tuple(activity for activity in now if activity.kind is ActivityKind.ELSEWHERE)
        return HangKind.GONE, _sentence(waits, (*elsewhere, *missed), ranks), missed
    if conflict := _mismatch(lasting):
        return HangKind.MISMATCH, f"{_waiting(conflict, _nodes(ranks))}: they wait for ever", conflict
    for kind, activity_kind in ((HangKind.STOPPED, ActivityKind.STOPPED), (HangKind.BLOCKED, ActivityKind.BLOCKED)):
        if culprits := tuple(
            activity for activity in lasting if activity.kind is activity_kind and not _waits_for_another(activity, progress)
        ):
            return kind, _sentence(waits, culprits, ranks), culprits
    remainder = tuple(activity for activity in now if activity.kind not in {ActivityKind.WAITS, ActivityKind.GONE})
    goes_on = remainder if len(remainder) < len(now) else ()  # the others ended in order
    is_exit = not waits and all(activity.at_exit for activity in remainder)
    # who polls waits for another rank, and that one is late; where all poll, those are late that did not come to the collective
    late = tuple(activity for activity in remainder if not _waits_for_another(activity, progress))
    if remainder and (waits or is_exit or 0 < len(late) < len(remainder)):
        return HangKind.EXIT if is_exit else HangKind.LATE, _sentence(waits, remainder, ranks), late or remainder
    calls = {(activity.group.name if activity.group else "", activity.text) for activity in waits}
    if len(calls) == 1 and not any(activity.collective is not None and activity.collective.is_p2p for activity in waits):
        return HangKind.WAITING, _sentence(waits, (), ranks) + _absence(waits, ranks), ()
    return HangKind.STILL, _sentence(waits, remainder, ranks) or "no rank is known", goes_on


def _absence(waits: Sequence[RankActivity], ranks: Sequence[ComparedRank]) -> str:
    """Return how many ranks came to the process group that is to be made, where it is to have more than were looked at."""
    world = max((rank.world or 0 for rank in ranks), default=0)
    if world <= len(waits) or not all("init_process_group" in activity.text for activity in waits):
        return ""
    absent_count = world - len(waits)
    where = "the other one is on another node" if absent_count == 1 else f"the {absent_count} others are on other nodes"
    return f": {len(waits)} of {world} ranks came; {where}, or never started"


def _missed(
    now: tuple[RankActivity, ...],
    lasting: tuple[RankActivity, ...],
    waits: tuple[RankActivity, ...],
    progress: RankProgress,
    over: Collection[int],
) -> tuple[RankActivity, ...]:
    """Return the ranks that are gone and that a peer waits for, or all if none lives. `over`: the ranks that have no more to train.

    A rank may also have ended in order, while another still uploads the result: that is not a hang. But one that polls, for nothing that a
    living process holds and while no byte of it moves, polls for what no rank will make any more. If it gave up its group before, or if the
    ranks that are gone came to their end and nothing shows the subject that it polls, it may be a service on another machine that it asks.
    """
    gone = tuple(activity for activity in lasting if activity.kind is ActivityKind.GONE)
    if len(gone) == len(now) or not gone:
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
    awaited: set[int] | None = set()  # the members of the groups that are waited in; None: one of them is unknown
    for group in {id(wait.group): wait.group for wait in waits}.values():  # the ranks of one node share the object
        awaited = None if awaited is None or group is None or not group.ranks else awaited.union(group.ranks)
    return tuple(activity for activity in gone if awaited is None or activity.rank in awaited)


def _waits_for_another(activity: RankActivity, progress: RankProgress) -> bool:
    """Return whether a rank waits for another one outside of torch's collectives.

    It polls a file, or torch's store; or the other end of its queue, connection or lock is another rank. A loop that only sleeps
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
    of_object: dict[int, list[RankActivity]] = {}  # the same, by the object that the ranks of one node share: of 1,000 ranks each is long
    for activity in lasting:
        if (
            activity.kind is ActivityKind.WAITS
            and activity.group is not None
            and activity.group.name
            and activity.collective is not None
            and not activity.collective.is_p2p
        ):
            group = activity.group
            if id(group) not in of_object:
                of_object[id(group)] = groups.setdefault((group.name, group.backend, group.ranks), [])
            of_object[id(group)].append(activity)
    for waiting in groups.values():
        calls = {(activity.collective.sequence, activity.collective.operation) for activity in waiting if activity.collective is not None}
        differ_in_name = len(calls) > len({sequence for sequence, _ in calls})
        members = {rank for activity in waiting[:1] if activity.group is not None for rank in activity.group.ranks}
        all_wait = bool(members) and members == {activity.rank for activity in waiting}
        if differ_in_name or (len(calls) > 1 and all_wait):
            return tuple(waiting)
    return ()


def _sentence(waits: tuple[RankActivity, ...], others: tuple[RankActivity, ...], ranks: Sequence[ComparedRank]) -> str:
    """Return one sentence: who waits in what, and what the others do. Of several nodes, with the node of each of the others."""
    parts = [_waiting(waits, {})] if waits else []
    alike: dict[str, list[RankActivity]] = {}
    for activity in others:
        alike.setdefault(activity.text, []).append(activity)
    nodes = _nodes(ranks)
    parts += [
        f"{_named(activities, nodes)} {'is' if len(activities) == 1 else 'are'} {text}"
        for text, activities in list(alike.items())[:MOST_KINDS]
    ]
    if rest := [activity.rank for activities in list(alike.values())[MOST_KINDS:] for activity in activities]:
        parts.append(f"{rank_list(rest)} {'is' if len(rest) == 1 else 'are'} elsewhere")
    behind = _behind(ranks)
    return "; ".join([*parts, *([behind] if behind else [])])


def _nodes(ranks: Sequence[ComparedRank]) -> dict[int, str]:
    """Return the node of each rank, none where the job has one."""
    return {rank.activity.rank: rank.node for rank in ranks if rank.node}


def _named(activities: Iterable[RankActivity], nodes: dict[int, str]) -> str:
    """Return ranks as people are shown them, with their nodes: `rank 43 on node n5:5`, `ranks 0-127 on 16 nodes`."""
    ranks = [activity.rank for activity in activities]
    on = list(dict.fromkeys(nodes[rank] for rank in ranks if rank in nodes))
    if not on:
        return rank_list(ranks)
    where = f"node {on[0]}" if len(on) == 1 else f"nodes {', '.join(on)}" if len(on) <= MOST_NAMED else f"{len(on)} nodes"
    return f"{rank_list(ranks)} on {where}"


def _waiting(waits: Sequence[RankActivity], nodes: dict[int, str]) -> str:
    """Return who waits in which collective, and where in the user's code: `ranks 0-6 wait in all_reduce (seq 1841, train.py:61)`."""
    places: dict[str, set[str]] = {}
    for activity in waits:
        places.setdefault(activity.text, set()).add(activity.place)
    alike: dict[str, list[RankActivity]] = {}
    for activity in waits:
        place = activity.place if len(places[activity.text]) == 1 else ""
        inner = f", {place})" if place else ")"
        text = activity.text[:-1] + inner if activity.text.endswith(")") else activity.text + (f" ({place})" if place else "")
        alike.setdefault(text, []).append(activity)
    parts: list[str] = []
    for text, activities in list(alike.items())[:MOST_KINDS]:
        verb = "" if parts else " waits" if len(activities) == 1 else " wait"
        parts.append(f"{_named(activities, nodes)}{verb} {text}")
    if rest := [activity.rank for activities in list(alike.values())[MOST_KINDS:] for activity in activities]:
        parts.append(f"{rank_list(rest)} in others")
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


def _behind(ranks: Sequence[ComparedRank]) -> str:
    """Return which ranks made fewer steps than the others; "" where all made as many."""
    steps = {rank.activity.rank: rank.steps for rank in ranks if rank.steps}
    most = max(steps.values(), default=0)
    by_lag: dict[int, list[int]] = {}
    for rank, rank_steps in steps.items():
        by_lag.setdefault(most - rank_steps, []).append(rank)
    return ", ".join(
        f"{rank_list(behind)} {'is' if len(behind) == 1 else 'are'} {'one step' if lag == 1 else f'{lag} steps'} behind"
        for lag, behind in sorted(by_lag.items())[: MOST_KINDS + 1]
        if lag
    )


def _is_same(first: RankActivity, second: RankActivity) -> bool:
    """Return whether a rank does the same in both looks."""
    return (first.kind, first.pid, first.text) == (second.kind, second.pid, second.text)
