"""The acceptor of a register by majority: what each host of the list keeps, and how it answers. Pure.

The algorithm is CASPaxos (Rystsov 2018, arXiv:1802.07000): Paxos for one value that is changed again and again, in ballots. A ballot is
prepared at a majority, which promises to take part in no lower one and shows what it accepted last. Then a majority accepts the value of
the ballot. What a majority accepted is the value, and every later ballot begins with it. The proposer is in proposer.py.

An acceptor must never forget what it promised or accepted. One that lost its disk would: so each disk is another **incarnation** of its
host, numbered from 1, and a new one does not vote before it has joined:

    1. It sends Join to all other hosts of the list. They note its incarnation, durably, and answer with what they have.
       If one knows an incarnation of the same or a higher number, the number was taken: it goes on with the next one.
    2. When all others have noted it, and nobody knew an earlier one, it never voted: it begins with nothing.
       If somebody did, it takes the highest promise and the newest value of the voters among them: they must be enough to have a member in
       common with each majority in which the earlier incarnation can have been (MAJORITY + others > all).

Votes of the earlier incarnation may still be on their way to a proposer. They do not count: every answer shows the incarnations that its
sender knows, and a proposer leaves an answer out if another one knows a newer incarnation of its sender (the crash-consistent quorum of
Michael et al. 2017, "Recovering Shared Objects Without Stable Storage"). A vote that was given before its sender knew the newer one is part
of what that one took over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, assert_never

if TYPE_CHECKING:
    from collections.abc import Mapping


class Ballot(NamedTuple):
    """The number of a ballot, and which proposer's it is: no two have one ballot. They are ordered."""

    number: int = 0
    proposer: str = ""


class Incarnation(NamedTuple):
    """One disk of a host. Number 0: none is known."""

    number: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class RegisterCell:
    """What is accepted. version 0: nothing was ever written. write: names the call that wrote it, which so finds out that it did."""

    version: int = 0
    value: str = ""
    write: str = ""


@dataclass(frozen=True, slots=True)
class AcceptorState:
    """What an acceptor keeps on disk. index: its place in the list. incarnations: the newest known of each host, its own at its index."""

    index: int
    incarnations: tuple[Incarnation, ...]
    votes: bool = False
    promised: Ballot = Ballot()
    accepted: Ballot = Ballot()
    cell: RegisterCell = RegisterCell()


@dataclass(frozen=True, slots=True)
class ReadCell:
    """Show what you have."""


@dataclass(frozen=True, slots=True)
class PrepareBallot:
    """Take part in no ballot lower than this one."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class AcceptCell:
    """Accept this in this ballot."""

    ballot: Ballot
    cell: RegisterCell


@dataclass(frozen=True, slots=True)
class JoinRegister:
    """Note this incarnation of the host at this index."""

    index: int
    incarnation: Incarnation


AcceptorRequest = ReadCell | PrepareBallot | AcceptCell | JoinRegister


@dataclass(frozen=True, slots=True)
class AcceptorAnswer:
    """Whether the request was granted, and what the acceptor has after it."""

    granted: bool
    votes: bool
    promised: Ballot
    accepted: Ballot
    cell: RegisterCell
    incarnations: tuple[Incarnation, ...]


def majority(size: int) -> int:
    """Return how many of `size` hosts are a majority."""
    return size // 2 + 1


def new_acceptor(index: int, size: int, name: str) -> AcceptorState:
    """Return the state of a host without a file. name: of this disk, used once."""
    known = [Incarnation()] * size
    known[index] = Incarnation(1, name)
    return AcceptorState(index, tuple(known))


def answered(state: AcceptorState, request: AcceptorRequest) -> tuple[AcceptorState, AcceptorAnswer]:
    """Return the new state, which must be on disk before the answer is sent, and the answer."""
    state, granted = _taken(state, request)
    answer = AcceptorAnswer(granted, state.votes, state.promised, state.accepted, state.cell, state.incarnations)
    return state, answer


def _taken(state: AcceptorState, request: AcceptorRequest) -> tuple[AcceptorState, bool]:
    match request:
        case JoinRegister(index, incarnation):
            if index != state.index and incarnation.number > state.incarnations[index].number:
                state = replace(state, incarnations=_with(state.incarnations, index, incarnation))
            return state, True
        case ReadCell():
            return state, state.votes
        case PrepareBallot(ballot):
            if not state.votes or ballot < state.promised:
                return state, False
            return replace(state, promised=ballot), True
        case AcceptCell(ballot, cell):
            if not state.votes or ballot < state.promised:
                return state, False
            return replace(state, promised=ballot, accepted=ballot, cell=cell), True
        case _:
            assert_never(request)


def join_request(state: AcceptorState) -> JoinRegister:
    """Return what an acceptor that does not vote yet sends to all others."""
    return JoinRegister(state.index, state.incarnations[state.index])


def joined(state: AcceptorState, answers: Mapping[int, AcceptorAnswer]) -> AcceptorState:
    """Return the state after these answers to `join_request`, by the index of their senders; it votes once they are enough."""
    own, size = state.incarnations[state.index], len(state.incarnations)
    if state.votes:
        return state
    taken = [known for known in (answer.incarnations[state.index] for answer in answers.values()) if known != own]
    highest = max((known.number for known in taken), default=0)
    if highest >= own.number:
        return replace(state, incarnations=_with(state.incarnations, state.index, Incarnation(highest + 1, own.name)))
    noted = {index: answer for index, answer in answers.items() if answer.incarnations[state.index] == own}
    voters = [answer for answer in noted.values() if answer.votes]
    if len(noted) < size - 1 or (own.number > 1 and len(voters) < size - majority(size) + 1):
        return state
    newest = max(voters, key=lambda answer: answer.accepted, default=None)
    known = tuple(max(each) for each in zip(state.incarnations, *(answer.incarnations for answer in noted.values()), strict=True))
    state = replace(state, votes=True, incarnations=_with(known, state.index, own))
    if newest is None:
        return state
    return replace(state, promised=max(answer.promised for answer in voters), accepted=newest.accepted, cell=newest.cell)


def _with(known: tuple[Incarnation, ...], index: int, incarnation: Incarnation) -> tuple[Incarnation, ...]:
    return (*known[:index], incarnation, *known[index + 1 :])
