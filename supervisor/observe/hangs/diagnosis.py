"""What two neighbouring looks at the ranks between which none moved mean: what the hang is, and who is to blame. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import Hang, HangKind, Phase
from supervisor.core.numeric import rank_list
from supervisor.core.values import replace
from supervisor.observe.hangs.awaited import AwaitedKind
from supervisor.observe.hangs.movement import compare
from supervisor.observe.hangs.standing import Doing, Standing, standing

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from supervisor.observe.hangs.look import Look
    from supervisor.observe.hangs.movement import Movement

#: Kinds in which the ranks that are waited for may come, if they do anything.
_MAY_GO_ON = frozenset({HangKind.LATE, HangKind.WAITING, HangKind.EXIT, HangKind.STILL})


def hang(first: Look, second: Look, *, still_s: float, limit_s: float, calibrated: bool) -> Hang:
    """Return what the hang is, of two neighbouring looks between which no rank moved."""
    movement = compare(first, second)
    before = {look.rank: standing(look) for look in first.ranks}
    plain = tuple(standing(look) for look in second.ranks)
    lasting_ranks = {one.rank for one in plain if one.rank in before and _same(before[one.rank], one)}
    now = tuple(_in_full(one, movement) for one in plain)
    lasting = tuple(one for one in now if one.rank in lasting_ranks)
    kind, text, culprits = _judged(now, lasting, second, movement)
    concerned = culprits or now
    waiters = [one for one in now if one.group is not None]
    timeouts = [one.group.timeout_s for one in waiters if one.group is not None and one.group.timeout_s is not None]
    shown = concerned[0] if concerned else None
    busy, slow = ({rank for rank, _ in rows} for rows in (movement.busy, movement.slow))
    goes_on = [one.rank for one in concerned if kind in _MAY_GO_ON or one.rank in slow]
    is_busy = kind in _MAY_GO_ON and any(rank in busy for rank in goes_on)
    is_slow = any(rank in slow for rank in goes_on)
    return Hang(
        kind,
        text,
        tuple(one.rank for one in culprits),
        _code(culprits),
        Phase.UNKNOWN if shown is None else shown.phase,
        still_s,
        limit_s,
        calibrated,
        is_busy,
        min(timeouts, default=None),
        is_slow,
        "" if is_busy or is_slow else _left_file(concerned),
    )


def _in_full(one: Standing, movement: Movement) -> Standing:
    """Return what a rank does, with what it uses, moves and waits for, if it is not in a collective."""
    if one.doing not in {Doing.ELSEWHERE, Doing.BLOCKED}:
        return one
    busy = [f", and {text}" for rank, text in movement.busy if rank == one.rank]
    slow = [f", {text}" for rank, text in movement.slow if rank == one.rank]
    waits = [f", waiting for {' and '.join(awaited.text for awaited in one.awaits)}"] if one.awaits and not busy else []
    return replace(one, text="".join([one.text, *busy, *slow, *waits]))


def _left_file(concerned: Sequence[Standing]) -> str:
    """Return the file that all of these ranks wait for the end of, and that nobody is left to remove; "" for none."""
    files = [{awaited.name for awaited in one.awaits if awaited.is_left} for one in concerned]
    return min(set.intersection(*files), default="") if files else ""


def _judged(
    now: tuple[Standing, ...], lasting: tuple[Standing, ...], look: Look, movement: Movement
) -> tuple[HangKind, str, tuple[Standing, ...]]:
    """Return kind, sentence and culprits: the first kind that is proven. `lasting`: the ranks that do the same in both looks."""
    waits = tuple(one for one in now if one.doing is Doing.WAITS)
    if missed := _missed(now, lasting, waits, movement, {one.rank for one in look.ranks if one.script_over}):
        others = tuple(one for one in now if one.doing is Doing.ELSEWHERE)
        return HangKind.GONE, _sentence(waits, (*others, *missed), look), missed
    if conflict := _mismatch(lasting):
        return HangKind.MISMATCH, f"{_waiting(conflict)}: they wait for ever", conflict
    for kind, which in ((HangKind.STOPPED, Doing.STOPPED), (HangKind.BLOCKED, Doing.BLOCKED)):
        if culprits := tuple(one for one in lasting if one.doing is which):
            return kind, _sentence(waits, culprits, look), culprits
    rest = tuple(one for one in now if one.doing not in {Doing.WAITS, Doing.GONE})
    goes_on = rest if len(rest) < len(now) else ()  # the others ended in order
    if rest and (waits or all(one.at_exit for one in rest)):
        return HangKind.LATE if waits else HangKind.EXIT, _sentence(waits, rest, look), rest
    calls = {(one.group.name if one.group else "", one.text) for one in waits}
    if len(calls) == 1 and not any(one.collective is not None and one.collective.is_p2p for one in waits):
        return HangKind.WAITING, _sentence(waits, (), look) + _missing(waits, look), ()
    return HangKind.STILL, _sentence(waits, rest, look) or "no rank of this node is known", goes_on


def _missing(waits: Sequence[Standing], look: Look) -> str:
    """Return how many ranks came to the process group that is to be made, where it is to have more than there are on this node."""
    world = max((one.world or 0 for one in look.ranks), default=0)
    if world <= len(waits) or not all("init_process_group" in one.text for one in waits):
        return ""
    rest = world - len(waits)
    where = "the other one is on another node" if rest == 1 else f"the {rest} others are on other nodes"
    return f": {len(waits)} of {world} ranks came; {where}, or never started"


def _missed(
    now: tuple[Standing, ...], lasting: tuple[Standing, ...], waits: tuple[Standing, ...], movement: Movement, over: Collection[int]
) -> tuple[Standing, ...]:
    """Return the ranks that are gone and that a peer waits for, or all if none lives. `over`: the ranks that have no more to train.

    A rank may also have ended in order, while another one still uploads the result: that is no hang. But one that polls, for nothing that a
    living process holds and while no byte of it moves, polls for what no rank will make any more. If it gave up its group before, or if the
    ranks that are gone came to their end and nothing shows what it polls, it may be a service on another machine that it asks.
    """
    gone = tuple(one for one in lasting if one.doing is Doing.GONE)
    if len(gone) == len(now):
        return gone
    active = {rank for rank, _ in (*movement.busy, *movement.slow)}
    in_order = all(one.rank in over for one in gone)
    alive = [one for one in now if one.doing is Doing.ELSEWHERE and one.rank not in active and one.rank not in over]
    polling = [one for one in alive if _polls_in_vain(one, movement) and (one.awaits or not in_order)]
    if len(polling) + len(gone) == len(now):
        return gone
    return tuple(one for one in gone if any(wait.group is None or not wait.group.ranks or one.rank in wait.group.ranks for wait in waits))


def _polls_in_vain(one: Standing, movement: Movement) -> bool:
    """Return whether a rank polls, or waits at a pipe, with nobody there."""
    waits = one.rank in movement.polling or any(awaited.kind is AwaitedKind.PIPE for awaited in one.awaits)
    return waits and not any(awaited.lives for awaited in one.awaits)


def _mismatch(lasting: tuple[Standing, ...]) -> tuple[Standing, ...]:
    """Return the ranks that wait in one process group for collectives that differ; none without.

    Two ranks whose collectives of one number are different operations wait for ever, whatever the others do. Different numbers prove it
    only if all ranks of the group are seen, and all wait: a broadcast is over for its source before the others have come.
    """
    groups: dict[tuple[str, str, tuple[int, ...]], list[Standing]] = {}  # two groups that share no rank may share a name
    for one in lasting:
        if (
            one.doing is Doing.WAITS
            and one.group is not None
            and one.group.name
            and one.collective is not None
            and not one.collective.is_p2p
        ):
            groups.setdefault((one.group.name, one.group.backend, one.group.ranks), []).append(one)
    for found in groups.values():
        calls = {(one.collective.sequence, one.collective.operation) for one in found if one.collective is not None}
        differ_in_name = len(calls) > len({sequence for sequence, _ in calls})
        members = {rank for one in found if one.group is not None for rank in one.group.ranks}
        all_wait = bool(members) and members == {one.rank for one in found}
        if differ_in_name or (len(calls) > 1 and all_wait):
            return tuple(found)
    return ()


def _sentence(waits: tuple[Standing, ...], others: tuple[Standing, ...], look: Look) -> str:
    """Return one sentence: who waits in what, and what the others do."""
    parts = [_waiting(waits)] if waits else []
    alike: dict[str, list[Standing]] = {}
    for one in others:
        alike.setdefault(one.text, []).append(one)
    parts += [f"{rank_list(one.rank for one in ones)} {'is' if len(ones) == 1 else 'are'} {text}" for text, ones in alike.items()]
    behind = _behind(look)
    return "; ".join([*parts, *([behind] if behind else [])])


def _waiting(waits: Sequence[Standing]) -> str:
    """Return who waits in which collective, and where in the user's code: `ranks 0-6 wait in all_reduce (seq 1841, train.py:61)`."""
    alike: dict[str, list[Standing]] = {}
    for one in waits:
        place = one.place if all(other.place == one.place for other in waits if other.text == one.text) else ""
        inner = f", {place})" if place else ")"
        text = one.text[:-1] + inner if one.text.endswith(")") else one.text + (f" ({place})" if place else "")
        alike.setdefault(text, []).append(one)
    parts: list[str] = []
    for text, ones in alike.items():
        verb = "" if parts else " waits" if len(ones) == 1 else " wait"
        parts.append(f"{rank_list(one.rank for one in ones)}{verb} {text}")
    return ", ".join(parts)


def _code(culprits: Sequence[Standing]) -> str:
    """Return where the culprits stand in the user's code: `train.py:61`, `train.py:61 (rank 0), train.py:75 (ranks 1-3)`."""
    places: dict[str, list[int]] = {}
    for one in culprits:
        if one.place:
            places.setdefault(one.place, []).append(one.rank)
    if len(places) == 1:
        return next(iter(places))
    return ", ".join(f"{place} ({rank_list(ranks)})" for place, ranks in places.items())


def _behind(look: Look) -> str:
    """Return which ranks made fewer steps than the others; "" where all made as many. One that ended lags behind nobody."""
    steps = {one.rank: one.steps for one in look.ranks if one.steps and not one.process.is_gone}
    most = max(steps.values(), default=0)
    by_lag: dict[int, list[int]] = {}
    for rank, made in steps.items():
        by_lag.setdefault(most - made, []).append(rank)
    return ", ".join(
        f"{rank_list(ranks)} {'is' if len(ranks) == 1 else 'are'} {'one step' if lag == 1 else f'{lag} steps'} behind"
        for lag, ranks in sorted(by_lag.items())
        if lag
    )


def _same(before: Standing, after: Standing) -> bool:
    """Return whether a rank does the same in both looks."""
    return (before.doing, before.pid, before.text) == (after.doing, after.pid, after.text)
