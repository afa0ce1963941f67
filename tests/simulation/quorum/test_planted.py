"""Bugs planted in the register: each breaks a law in some seed.

Two rules about votes of a lost disk that are still under way are needed in histories that chance does not make:
tests/cluster/test_quorum.py has them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.cluster.quorum import acceptor, proposer
from supervisor.cluster.quorum.acceptor import AcceptCell, Ballot, Incarnation, JoinRegister, PrepareBallot, RegisterCell
from supervisor.cluster.register import RegisterChanged
from tests.simulation.quorum.laws import RegisterLawBroken, check, world_of
from tests.simulation.quorum.world import Host

if TYPE_CHECKING:
    from collections.abc import Callable

    Plant = Callable[[pytest.MonkeyPatch], None]

SEEDS = 1000


def taken_as(patch: pytest.MonkeyPatch, kind: type[Any], bug: Callable[[Any, Any], Any]) -> None:
    """Have an acceptor take one kind of request in another way, once it votes."""
    real = acceptor._taken  # noqa: SLF001

    def _taken(state: Any, request: Any) -> Any:  # noqa: ANN401
        is_bad = isinstance(request, kind) and (state.votes or kind is JoinRegister)
        return bug(state, request) if is_bad else real(state, request)

    patch.setattr(acceptor, "_taken", _taken)


def accepts_below_its_promise(patch: pytest.MonkeyPatch) -> None:
    taken_as(patch, AcceptCell, lambda state, asked: (replace(state, accepted=asked.ballot, cell=asked.cell), True))


def does_not_keep_its_promise(patch: pytest.MonkeyPatch) -> None:
    taken_as(patch, PrepareBallot, lambda state, asked: (state, asked.ballot >= state.promised))


def promises_a_lower_ballot(patch: pytest.MonkeyPatch) -> None:
    taken_as(patch, PrepareBallot, lambda state, asked: (replace(state, promised=asked.ballot), True))


def answers_before_the_disk(patch: pytest.MonkeyPatch) -> None:
    real = Host.ask

    def ask(host: Host, request: Any) -> Any:  # noqa: ANN401
        before = host.disk
        answer = real(host, request)
        if host.state is not None and isinstance(request, AcceptCell):
            host.disk = before
            host.world.later(0.5, lambda state=host.state: setattr(host, "disk", state) if host.state is state else None)
        return answer

    patch.setattr(Host, "ask", ask)


def half_is_a_majority(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(proposer, "majority", lambda size: size // 2)


def begins_with_any_vote(patch: pytest.MonkeyPatch) -> None:
    """A ballot begins with the value of the first vote, and not with the newest."""
    real = proposer.RegisterCall._prepared  # noqa: SLF001

    def _prepared(call: Any) -> Any:  # noqa: ANN401
        first = None

        def spied(answers: Any) -> Any:  # noqa: ANN401
            nonlocal first
            votes = proposer.counted(answers)
            first = next(iter(votes.values()), None)
            return answers

        steps = real(call)
        asked = next(steps)
        while True:
            answers = yield asked
            try:
                asked = steps.send(spied(answers))
            except StopIteration as end:
                return None if end.value is None or first is None else first.cell

    patch.setattr(proposer.RegisterCall, "_prepared", _prepared)


def ballots_are_used_twice(patch: pytest.MonkeyPatch) -> None:
    real = proposer.RegisterCall.__init__
    patch.setattr(proposer.RegisterCall, "__init__", lambda call, _name, size, number=0: real(call, "one name for all", size, number))


def reads_what_is_not_settled(patch: pytest.MonkeyPatch) -> None:
    def settled(call: Any, answers: Any) -> Any:  # noqa: ANN401
        votes = proposer.counted(answers)
        enough = len(votes) >= call._majority  # noqa: SLF001
        return max(votes.values(), key=lambda vote: vote.accepted).cell if enough else None

    patch.setattr(proposer.RegisterCall, "_settled", settled)


def does_not_know_its_own_write(patch: pytest.MonkeyPatch) -> None:
    real = proposer.RegisterCall._accepted  # noqa: SLF001

    def _accepted(call: Any, cell: Any) -> Any:  # noqa: ANN401
        is_seen = cell is not None and cell.write == call._name and getattr(call, "was_sent", False)  # noqa: SLF001
        call.was_sent = cell is not None
        found = yield from real(call, cell)
        if found is not None and is_seen:
            raise RegisterChanged
        return found

    patch.setattr(proposer.RegisterCall, "_accepted", _accepted)


def refused_by_what_no_majority_has(patch: pytest.MonkeyPatch) -> None:
    real = proposer.RegisterCall._accepted  # noqa: SLF001

    def _accepted(call: Any, cell: Any) -> Any:  # noqa: ANN401
        if cell is not None and cell.write != call._name:  # noqa: SLF001
            return cell
        return (yield from real(call, cell))

    patch.setattr(proposer.RegisterCall, "_accepted", _accepted)


def votes_without_its_disk(patch: pytest.MonkeyPatch) -> None:
    real = acceptor.new_acceptor
    patch.setattr(acceptor, "new_acceptor", lambda *arguments: replace(real(*arguments), votes=True))


def is_not_asked_whether_it_voted(patch: pytest.MonkeyPatch) -> None:
    """A new disk is taken for the first one of its host."""
    taken_as(patch, JoinRegister, lambda state, asked: (_noted(state, asked), True))


def _noted(state: Any, asked: Any) -> Any:  # noqa: ANN401
    known = list(state.incarnations)
    known[asked.index] = asked.incarnation
    return replace(state, incarnations=tuple(known))


def joins_when_one_has_answered(patch: pytest.MonkeyPatch) -> None:
    real = acceptor.joined

    def joined(state: Any, answers: Any) -> Any:  # noqa: ANN401
        if not answers or state.incarnations[state.index].number == 1:
            return real(state, answers)
        one = next((answer for answer in answers.values() if answer.votes), None)
        return real(state, answers if one is None else dict.fromkeys((i for i in range(len(state.incarnations)) if i != state.index), one))

    patch.setattr(acceptor, "joined", joined)


def takes_over_no_value(patch: pytest.MonkeyPatch) -> None:
    real = acceptor.joined

    def joined(state: Any, answers: Any) -> Any:  # noqa: ANN401
        after = real(state, answers)
        return replace(after, accepted=Ballot(), cell=RegisterCell()) if after.votes and not state.votes else after

    patch.setattr(acceptor, "joined", joined)


def numbers_are_not_raised(patch: pytest.MonkeyPatch) -> None:
    """A disk keeps a number that another one of its host had."""
    real = acceptor.joined

    def joined(state: Any, answers: Any) -> Any:  # noqa: ANN401
        own = state.incarnations[state.index]
        shown = {i: replace(one, incarnations=_with(one.incarnations, state.index, own)) for i, one in answers.items()}
        return real(state, shown)

    patch.setattr(acceptor, "joined", joined)


def _with(known: Any, index: int, incarnation: Incarnation) -> Any:  # noqa: ANN401
    return (*known[:index], incarnation, *known[index + 1 :])


PLANTED = (
    accepts_below_its_promise,
    does_not_keep_its_promise,
    promises_a_lower_ballot,
    answers_before_the_disk,
    half_is_a_majority,
    begins_with_any_vote,
    ballots_are_used_twice,
    reads_what_is_not_settled,
    does_not_know_its_own_write,
    refused_by_what_no_majority_has,
    votes_without_its_disk,
    is_not_asked_whether_it_voted,
    joins_when_one_has_answered,
    takes_over_no_value,
    numbers_are_not_raised,
)


def first_broken() -> int | None:
    """Return the first seed in which a law does not hold."""
    for seed in range(SEEDS):
        world = world_of(seed)
        world.play()
        try:
            check(world)
        except RegisterLawBroken:
            return seed
    return None


@pytest.mark.parametrize("plant", [pytest.param(plant, marks=pytest.mark.slow) for plant in PLANTED])
def test_a_planted_bug_breaks_a_law(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert first_broken() is not None
