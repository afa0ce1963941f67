"""What happens to a job of several nodes, drawn from its seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.cluster.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.cluster.world import Machine

#: Steps of the protocol at which the node that makes one may die, or the host of the store.
STEPS = ("reports", "judges", "decided", "acts", "done")


def world_of(seed: int) -> World:
    """Return the job of a seed, with its faults ahead of it."""
    world = World(seed)
    rng = world.rng
    for _ in range(rng.randrange(0, 9)):
        fault, at = rng.choice(FAULTS), rng.uniform(3.0, world.calm_t - 1.0)
        machine = rng.choice(world.machines)
        world.later(at, fault, world, machine)
    if rng.random() < 0.15:
        world.later(rng.uniform(10.0, world.calm_t - 1.0), _is_replaced, world, rng.choice(world.machines))
    for _ in range(rng.randrange(0, 4)):
        world.triggers.append((rng.choice(STEPS), rng.randrange(1, 6), rng.choice(AT_A_STEP)(world)))
    world.later(world.calm_t, _calm, world)
    return world


def kills_it(world: World) -> Callable[[Machine], None]:
    """Return what kills the machine that takes a step."""
    return lambda machine: _dies(world, machine)


def kills_host(world: World) -> Callable[[Machine], None]:
    """Return what kills the host of the store."""
    return lambda _machine: _dies(world, world.host)


def stops_it(world: World) -> Callable[[Machine], None]:
    """Return what stops the supervisor of the machine that takes a step for some seconds."""
    return lambda machine: _is_paused(world, machine)


def replaces_host(world: World) -> Callable[[Machine], None]:
    """Return what gives the host of the store another disk."""
    return lambda _machine: _is_replaced(world, world.host)


def cuts_it_off_and_kills_host(world: World) -> Callable[[Machine], None]:
    """Return what makes the machine that takes a step the only one that knows of it."""

    def strike(machine: Machine) -> None:
        host = world.host
        if machine is not host and machine.core is not None:
            cut = {(machine.index, host.index), (host.index, machine.index)}
            world.cut |= cut
            world.later(60.0, _heals, world, cut)
            host.die()
            world.later(0.3, host.start)

    return strike


AT_A_STEP = (kills_it, kills_it, kills_host, stops_it, stops_it, replaces_host)


def _calm(world: World) -> None:
    """No more faults: all links are whole, and every supervisor runs that has not ended."""
    world.cut.clear()
    for machine in world.machines:
        machine.paused_until = min(machine.paused_until, world.t)
        if machine.core is None:
            machine.start()


def _rank_fails(world: World, machine: Machine) -> None:
    for one in world.machines if world.rng.random() < 0.3 else [machine]:
        if one.core is not None:
            world.later(world.rng.uniform(0.0, 0.2), one.core.rank_fails)


def _dies(world: World, machine: Machine) -> None:
    if machine.core is None or machine.core.stage in {"stopped", "done"}:
        return
    world.faults += 1
    machine.die()
    world.later(world.rng.choice((0.3, 2.0, 5.0, 15.0, 40.0)), machine.start)


def _is_replaced(world: World, machine: Machine) -> None:
    if machine.core is not None and machine.core.stage in {"stopped", "done"}:
        return
    world.faults += 1
    machine.die(disk=False)
    world.later(world.rng.uniform(1.0, 30.0), machine.start)


def _is_cut(world: World, machine: Machine) -> None:
    """A machine is cut off, in one direction or both; or the machines are split into two groups."""
    rng, count = world.rng, len(world.machines)
    links = {(machine.index, other) for other in range(count) if other != machine.index}
    back = {(b, a) for a, b in links}
    if rng.random() < 0.3:
        side = set(rng.sample(range(count), rng.randrange(1, count)))
        cut = {(a, b) for a in range(count) for b in range(count) if (a in side) != (b in side)}
    else:
        cut = rng.choice((links, back, links | back))
    world.cut |= cut
    world.faults += 1
    world.later(rng.choice((1.0, 3.0, 5.0, 8.0, 20.0, 60.0)), _heals, world, cut)


def _heals(world: World, cut: set[tuple[int, int]]) -> None:
    world.cut -= cut


def _is_paused(world: World, machine: Machine) -> None:
    world.faults += 1
    machine.paused_until = world.t + world.rng.choice((1.0, 4.0, 10.0, 30.0))


def _leaves(_world: World, machine: Machine) -> None:
    if machine.core is not None and machine.core.stage not in {"stopped", "done"}:
        machine.stops_with_75()


FAULTS = (_rank_fails, _rank_fails, _dies, _is_cut, _is_cut, _is_paused, _leaves)
