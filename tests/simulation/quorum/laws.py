"""The laws of a register: compare-and-set that is linearizable, and that answers when the faults are over.

Each version has one value for ever, and every call sees a version that was there at some time between its beginning and its end. As
versions only grow, that is all: a history is linearizable if no call sees less than one that had ended before, and none sees what nobody
wrote yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.quorum.world import CALM_T, World

if TYPE_CHECKING:
    from tests.simulation.quorum.world import Host, Operation

#: The hosts have joined again, and calls that began before have ended.
_ANSWERS_T = CALM_T + 2.0


class RegisterLawBroken(Exception):  # noqa: N818
    """A law does not hold."""


def world_of(seed: int) -> World:
    """Return the register of a seed, with its faults ahead of it."""
    world = World(seed)
    rng = world.rng
    for _ in range(rng.randrange(0, 7)):
        host, at, s = rng.choice(world.hosts), rng.uniform(0.3, CALM_T - 0.5), rng.choice((0.05, 0.3, 1.0))
        world.later(at, rng.choice(FAULTS), world, host, s)
    world.later(CALM_T, _calm, world)
    return world


def _is_killed(world: World, host: Host, s: float) -> None:
    host.die(disk=True)
    world.later(s, host.start)


def _loses_disk(world: World, host: Host, s: float) -> None:
    world.loses_disk(host, s)


def _loses_disk_at_a_vote(world: World, _host: Host, _s: float) -> None:
    world.votes_to_loss = world.rng.randrange(1, 6)


def _is_cut(world: World, host: Host, s: float) -> None:
    sources = [*(("proposer", name) for name in range(3)), *(("host", index) for index in range(world.size))]
    cut = {(source, host.index) for source in sources if world.rng.random() < 0.5}
    world.cut |= cut
    world.later(s, world.cut.difference_update, cut)


FAULTS = (_is_killed, _is_killed, _loses_disk, _loses_disk_at_a_vote, _loses_disk_at_a_vote, _is_cut, _is_cut)


def _calm(world: World) -> None:
    for host in world.hosts:
        host.start()


def check(world: World) -> None:
    """Raise RegisterLawBroken where a law does not hold after the world was played."""
    done = [one for one in world.operations if one.seen is not None]
    _one_value(done)
    _in_order(done)
    written = {one.value: one for one in world.operations if one.kind != "read"}
    for one in done:
        if one.seen_value and (one.seen_value not in written or written[one.seen_value].began_t > (one.ended_t or 0.0)):
            raise RegisterLawBroken(f"nobody had written what was seen: {one}")
    refused = {one.value for one in done if one.kind == "changed"}
    if seen := refused & {one.seen_value for one in done}:
        raise RegisterLawBroken(f"a write was refused and is there: {seen}")
    kinds = {one.kind for one in done if one.began_t > _ANSWERS_T}
    if not kinds >= {"read", "write"}:
        raise RegisterLawBroken(f"the faults are over, and only {kinds} come to an end")


def _one_value(done: list[Operation]) -> None:
    values: dict[int, str] = {0: ""}
    for one in done:
        if one.seen is not None and one.seen_value is not None and values.setdefault(one.seen, one.seen_value) != one.seen_value:
            raise RegisterLawBroken(f"version {one.seen} has two values: {values[one.seen]!r}, {one.seen_value!r}")
    writers = [one.seen for one in done if one.kind == "write"]
    if len(writers) != len(set(writers)):
        raise RegisterLawBroken(f"a version was replaced twice: {sorted(writers)}")


def _in_order(done: list[Operation]) -> None:
    """No call sees less than one that had ended before it began; a write replaced a version that was there."""
    for later in done:
        least = max((one.seen or 0 for one in done if (one.ended_t or 0.0) < later.began_t), default=0)
        there = later.version if later.kind == "write" else later.seen or 0
        if there < least and later.kind != "changed":  # that one saw this version or a later one
            raise RegisterLawBroken(f"version {least} was seen by a call that had ended before this one began: {later}")
