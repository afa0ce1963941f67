"""What happens to a job of several nodes, drawn from its seed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from supervisor.cluster.model import CoordinatorMemory
from tests.simulation.cluster.world import Machine, World

if TYPE_CHECKING:
    from collections.abc import Callable

#: Steps of the protocol at which the node that makes one may die, or the host of the coordinator.
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
    """Return what kills the host of the coordinator."""
    return lambda _machine: _dies(world, world.host)


def stops_it(world: World) -> Callable[[Machine], None]:
    """Return what stops the supervisor of the machine that takes a step for some seconds."""
    return lambda machine: _is_paused(world, machine)


def replaces_host(world: World) -> Callable[[Machine], None]:
    """Return what gives the host of the coordinator another disk."""
    return lambda _machine: _is_replaced(world, world.host)


def forgets_decision_and_dies(world: World) -> Callable[[Machine], None]:
    """Return what ends the supervisor of the coordinator's host, whose disk has not taken the decision."""

    def strike(_machine: Machine) -> None:
        host = world.host
        if host.coordinator is not None and host.coordinator.memory.decision is not None:
            host.kept = CoordinatorMemory(host.coordinator.memory.attempt, host.coordinator.memory.end)
            host.memory = replace(host.memory, acted=None)
            host.die()
            world.later(0.3, host.start)

    return strike


def gives_the_meeting_up(world: World) -> Callable[[Machine], None]:
    """Return what takes a machine out of a meeting that has no number yet, as the last fault of all."""

    def strike(machine: Machine) -> None:
        machine.leave_meeting()
        world.calm_t = world.t
        _calm(world)

    return strike


def cuts_it_off_and_stops_it(world: World) -> Callable[[Machine], None]:
    """Return what stops a supervisor whose link to the coordinator has just been cut."""

    def strike(machine: Machine) -> None:
        _is_cut(world, machine, (60.0,))
        world.later(9.0, _is_paused_for, world, machine, 25.0)

    return strike


def cuts_one_off_from_a_spare(world: World) -> Callable[[Machine], None]:
    """Return what cuts the link from a member to a coordinator that is none, and stops the supervisors of the other members."""

    def strike(machine: Machine) -> None:
        for other in world.machines:
            if other.core is not None:
                other.core.shows_steps = True
        world.later(10.0, cut, machine)

    def cut(machine: Machine) -> None:
        host = world.host
        if machine is not host and host.core is not None and not host.core.ranks_of:
            _has_cut(world, {(machine.index, host.index), (host.index, machine.index)}, 60.0)
            for other in world.machines:
                if other not in {machine, host}:
                    world.later(3.0, _is_paused_for, world, other, 25.0)

    return strike


def replaces_a_spare_that_nobody_reaches(world: World) -> Callable[[Machine], None]:
    """Return what replaces the host of the coordinator, a spare, while no member reaches it. It then begins with those that are left."""

    def strike(_machine: Machine) -> None:
        host, others = world.host, world.machines[1:]
        if host.core is not None and not host.core.ranks_of:
            world.least = 1
            _has_cut(world, {pair for other in others for pair in ((other.index, host.index), (host.index, other.index))}, 55.0)
            host.die(disk=False)
            world.later(0.3, host.start)

    return strike


def pauses_everyone(world: World) -> None:
    """Stop the supervisor of every machine again and again, the coordinator's too, for 30 s at most; also all at once."""
    rng = world.rng
    _trains_through(world)
    at = 25.0
    while at < world.calm_t - 30.0:
        for machine in rng.sample(world.machines, rng.randrange(1, len(world.machines) + 1)):
            world.later(at, _is_paused_for, world, machine, rng.choice((7.0, 25.0, 30.0)))
        at += rng.uniform(32.0, 45.0)


def cuts_and_resets(world: World) -> None:
    """Cut links for 6 s at most, and reset connections: each is back within 10 s after it was closed."""
    rng = world.rng
    _trains_through(world)
    at = 25.0
    while at < world.calm_t - 30.0:
        machine = rng.choice(world.machines)
        if rng.random() < 0.3:
            world.later(at, _is_reset, world, machine)
        else:
            world.later(at, _is_cut, world, machine, (1.0, 3.0, 6.0))
        at += rng.uniform(13.0, 25.0)


def _trains_through(world: World) -> None:
    """Let all nodes meet at once, and train for as long as the world is watched."""
    world.least, world.calm_t, world.work_s, world.stops_in = world.rules.nodes, 240.0, (300.0, 300.0), 0
    world.machines = world.machines[: world.rules.nodes]


def with_spare(world: World) -> World:
    """Return a job in which all train, one machine is a spare, and nothing is broken."""
    _trains_through(world)
    world.machines.append(Machine(world, len(world.machines)))
    return world


AT_A_STEP = (kills_it, kills_it, kills_host, stops_it, stops_it, replaces_host)


def _calm(world: World) -> None:
    """No more faults: all links are whole, and every supervisor runs that has not ended."""
    world.cut.clear()
    for machine in world.machines:
        machine.paused_until = min(machine.paused_until, world.t)
        if machine.core is None:
            machine.start()


def _rank_fails(world: World, machine: Machine) -> None:
    for victim in world.machines if world.rng.random() < 0.3 else [machine]:
        if victim.core is not None:
            world.later(world.rng.uniform(0.0, 0.2), victim.core.rank_fails)


def _dies(world: World, machine: Machine) -> None:
    if machine.core is None or machine.core.stage in {"stopped", "done", "leaving"}:
        return
    world.faults += 1
    machine.die(power=world.rng.random() < 0.8)
    world.later(world.rng.choice((0.3, 2.0, 5.0, 15.0, 40.0)), machine.start)


def _is_replaced(world: World, machine: Machine) -> None:
    if machine.core is not None and machine.core.stage in {"stopped", "done", "leaving"}:
        return
    world.faults += 1
    machine.die(disk=False)
    world.later(world.rng.uniform(1.0, 30.0), machine.start)


def _is_cut(world: World, machine: Machine, lengths: tuple[float, ...] = (1.0, 3.0, 5.0, 8.0, 20.0, 60.0)) -> None:
    """A machine is cut off, in one direction or both; or the machines are split into two groups."""
    rng, count = world.rng, len(world.machines)
    links = {(machine.index, other) for other in range(count) if other != machine.index}
    back = {(b, a) for a, b in links}
    if rng.random() < 0.3:
        side = set(rng.sample(range(count), rng.randrange(1, count)))
        cut = {(a, b) for a in range(count) for b in range(count) if (a in side) != (b in side)}
    else:
        cut = rng.choice((links, back, links | back))
    _has_cut(world, cut, rng.choice(lengths))


def _has_cut(world: World, cut: set[tuple[int, int]], length_s: float) -> None:
    world.cut |= cut
    world.faults += 1
    world.later(length_s, _heals, world, cut)


def _heals(world: World, cut: set[tuple[int, int]]) -> None:
    world.cut -= cut


def _is_paused(world: World, machine: Machine) -> None:
    world.faults += 1
    machine.paused_until = world.t + world.rng.choice((1.0, 4.0, 10.0, 30.0, 30.0, 90.0))


def _is_paused_for(world: World, machine: Machine, length_s: float) -> None:
    machine.paused_until = world.t + length_s


def _is_reset(world: World, machine: Machine) -> None:
    world.faults += 1
    if machine.connection is not None:
        machine.connection.reset()


def _leaves(_world: World, machine: Machine) -> None:
    if machine.core is not None and machine.core.stage not in {"stopped", "done", "leaving"}:
        machine.stops_with_75()


def _stalls(_world: World, machine: Machine) -> None:
    if machine.core is not None:
        machine.core.stalls()


FAULTS = (_rank_fails, _rank_fails, _dies, _is_cut, _is_cut, _is_paused, _is_reset, _leaves, _stalls)
