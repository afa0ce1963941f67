"""Bugs planted in the protocol: each breaks a law in some seed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.cluster import node, store
from supervisor.cluster.messages import DecisionProposed, WriteRow
from supervisor.cluster.model import DONE, MEMBERSHIP, ClusterDecision, EpochEnd, nodes_of
from tests.simulation.cluster.faults import cuts_it_off_and_kills_host, stops_it, world_of
from tests.simulation.cluster.laws import LawBroken

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.cluster.world import World

    Plant = Callable[[pytest.MonkeyPatch], None]

SEEDS = 400


def without(patch: pytest.MonkeyPatch, rule: str) -> None:
    """Take a rule of the node away."""
    for name in ("_RULES", "_TIMED_RULES"):
        patch.setattr(node, name, tuple(one for one in getattr(node, name) if one.__name__ != rule))


def rows_are_overwritten(patch: pytest.MonkeyPatch) -> None:
    real = store._taken  # noqa: SLF001

    def bug(state: Any, given: Any) -> Any:  # noqa: ANN401
        if isinstance(given, store.FromNode) and isinstance(given.message, WriteRow):
            state = replace(state, rows={key: value for key, value in state.rows.items() if key != given.message.key})
        return real(state, given)

    patch.setattr(store, "_taken", bug)


def leader_acts_on_what_it_proposed(patch: pytest.MonkeyPatch) -> None:
    real = node._of_core  # noqa: SLF001

    def bug(state: Any, given: Any) -> Any:  # noqa: ANN401
        state, sent = real(state, given)
        if isinstance(given, DecisionProposed) and state.open_epoch is not None:
            state = replace(state, rows={**state.rows, f"decision/{given.number}": given.decision.value()})
        return state, sent

    patch.setattr(node, "_of_core", bug)


def numbered_while_the_last_epoch_is_open(patch: pytest.MonkeyPatch) -> None:
    real = store._with_number  # noqa: SLF001

    def bug(state: Any) -> Any:  # noqa: ANN401
        key = "" if state.epoch is None else f"decision/{state.epoch.number}"
        hidden = replace(state, rows={**state.rows, key: ClusterDecision("restart").value()}) if key and key not in state.rows else state
        after = real(hidden)
        return state if after is hidden else replace(after, rows={name: row for name, row in after.rows.items() if name != key})

    patch.setattr(store, "_with_number", bug)


def meeting_numbered_again(patch: pytest.MonkeyPatch) -> None:
    real = store._with_meeting  # noqa: SLF001
    patch.setattr(store, "_with_meeting", lambda state, message: real(replace(state, numbered=()), message))


def reports_not_awaited(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node, "_live", lambda _state, epoch: epoch.members[:1])


def success_of_one_node(patch: pytest.MonkeyPatch) -> None:
    ended_by_one(patch, "done", EpochEnd(DONE, "", ""))


def admitted_when_one_node_has_saved(patch: pytest.MonkeyPatch) -> None:
    ended_by_one(patch, "saved", EpochEnd(MEMBERSHIP, "", "all have saved"))


def ended_by_one(patch: pytest.MonkeyPatch, row: str, end: EpochEnd) -> None:
    """Let the row of one node end the epoch."""
    real = node._ending  # noqa: SLF001

    def _ending(state: Any) -> Any:  # noqa: ANN401
        epoch = state.open_epoch
        if epoch is not None and nodes_of(state.rows, row, epoch.number) and f"end/{epoch.number}" not in state.rows | state.unseen:
            return node._written(state, f"end/{epoch.number}", end.value())  # noqa: SLF001
        return real(state)

    patch.setattr(node, "_RULES", tuple(_ending if rule is real else rule for rule in node._RULES))  # noqa: SLF001


def silent_store_ignored(patch: pytest.MonkeyPatch) -> None:
    without(patch, "_falling_silent")


def lost_member_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store, "_silence", lambda _state, _node: "")


def writes_not_repeated(patch: pytest.MonkeyPatch) -> None:
    real = node._ticked  # noqa: SLF001
    patch.setattr(node, "_ticked", lambda state, standing: real(replace(state, unseen={}), standing))


def store_without_memory_decides_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node.MemberState, "is_young", False)


def nothing_kept_by_the_store(patch: pytest.MonkeyPatch) -> None:
    real = store.new_store

    def bug(name: str, host: str, rules: Any, t: float, kept: Any = (), **others: Any) -> Any:  # noqa: ANN401
        return real(name, host, rules, t, tuple(row for row in kept if not row[0].startswith("decision/")), **others)

    patch.setattr(store, "new_store", bug)


def missed_epoch_not_noticed(patch: pytest.MonkeyPatch) -> None:
    without(patch, "_passed")


def given_up_meeting_not_voided(patch: pytest.MonkeyPatch) -> None:
    real = node._written  # noqa: SLF001
    patch.setattr(
        node, "_written", lambda state, key, value: (state, ()) if '"void"' in value and "end/" in key else real(state, key, value)
    )


def who_stands_aside_acts(patch: pytest.MonkeyPatch) -> None:
    real = node.step

    def bug(state: Any, message: Any) -> Any:  # noqa: ANN401
        after, outputs = real(state, message)
        if state.memory.aside and state.memory.acted is None and after.memory.acted is not None:
            outputs = (*outputs, node.ActOn(after.memory.epoch, after.memory.acted, 1))
        return after, outputs

    patch.setattr(node, "step", bug)


def decision_not_reposted(patch: pytest.MonkeyPatch) -> None:
    real = node._returning  # noqa: SLF001

    def _returning(state: Any) -> Any:  # noqa: ANN401
        found = real(state)
        if found is None:
            return None
        keep = lambda key: not key.startswith("decision/")  # noqa: E731
        after, sent = found
        kept = {key: row for key, row in after.unseen.items() if keep(key)}
        return replace(after, unseen=kept), tuple(order for order in sent if keep(order.message.key))

    patch.setattr(node, "_RULES", tuple(_returning if rule is real else rule for rule in node._RULES))  # noqa: SLF001


PLANTED: tuple[Plant, ...] = (
    rows_are_overwritten,
    leader_acts_on_what_it_proposed,
    numbered_while_the_last_epoch_is_open,
    meeting_numbered_again,
    reports_not_awaited,
    success_of_one_node,
    admitted_when_one_node_has_saved,
    silent_store_ignored,
    lost_member_not_noticed,
    writes_not_repeated,
    store_without_memory_decides_at_once,
    nothing_kept_by_the_store,
    missed_epoch_not_noticed,
    given_up_meeting_not_voided,
    who_stands_aside_acts,
    decision_not_reposted,
)


#: What must happen at the first step of a kind, for the bug to be met soon.
NEEDS = {
    rows_are_overwritten: ("judges", stops_it),
    nothing_kept_by_the_store: ("acts", cuts_it_off_and_kills_host),
}
#: The seed that found a bug last is tried first.
TRIED_FIRST = {
    rows_are_overwritten: 16,
    leader_acts_on_what_it_proposed: 8,
    numbered_while_the_last_epoch_is_open: 43,
    admitted_when_one_node_has_saved: 81,
    writes_not_repeated: 55,
    given_up_meeting_not_voided: 52,
}


def world(seed: int, plant: Plant) -> World:
    """Return the job of a seed, in which happens what the bug needs."""
    made = world_of(seed)
    if plant in NEEDS:
        step, strike = NEEDS[plant]
        strikes, struck = strike(made), made.rng.randrange(1, 4)
        made.triggers.append((step, struck, strikes))
    return made


#: Those that the fast tests plant, too: that the laws see anything at all. They are found in a moment.
FAST = (rows_are_overwritten, leader_acts_on_what_it_proposed, admitted_when_one_node_has_saved)


@pytest.mark.parametrize(
    "plant",
    [pytest.param(plant, marks=() if plant in FAST else pytest.mark.slow) for plant in PLANTED],
    ids=[plant.__name__ for plant in PLANTED],
)
def test_a_law_is_broken(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(is_broken(world(seed, plant)) for seed in (TRIED_FIRST.get(plant, 0), *range(SEEDS)))


def is_broken(world: World) -> bool:
    """Return whether a law does not hold in this history."""
    try:
        world.play()
    except LawBroken:
        return True
    return False
