"""The proposer of a register by majority: one call of `read` or `write`, as a generator that yields what to send. Pure.

    read     shows the value where a majority accepted it in one ballot and promised no higher one. Else it makes a ballot for it.
    write    makes a ballot: if the value has the version that is to be replaced, for the new value; else for the value as it is. So what is
             reported was accepted by a majority, and no later ballot can begin with an older value.

Where a ballot is lost to another one, the call makes the next. A lost one may still have been accepted, so a write knows its own by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisor.cluster.quorum.acceptor import AcceptCell, AcceptorRequest, Ballot, PrepareBallot, ReadCell, RegisterCell, majority
from supervisor.cluster.register import RegisterChanged, Registered, RegisterUnreachable

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from typing import TypeVar

    from supervisor.cluster.quorum.acceptor import AcceptorAnswer

    Kind = TypeVar("Kind")
    Answers = Mapping[int, AcceptorAnswer]
    #: It is sent the answers after a Poll, nothing after a Pause, and closed when its time is up.
    Steps = Generator["Poll | Pause", Answers, Kind]

#: A read looks so often for a value that is settled before it makes a ballot, which gets in the way of a write.
_LOOKS = 3


@dataclass(frozen=True, slots=True)
class Poll:
    """Send this to all, and bring their answers, by the index of the sender, once they are enough or no more are expected."""

    request: AcceptorRequest
    enough: Callable[[Answers], bool]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for a short time, each time another one, so that two proposers do not get into each other's way for ever."""


def counted(answers: Answers) -> Answers:
    """Return the votes that count together: none of an incarnation of which another one knows a newer."""
    granted = {index: answer for index, answer in answers.items() if answer.granted}
    newest = {index: max((other.incarnations[index].number for other in granted.values()), default=0) for index in granted}
    return {index: answer for index, answer in granted.items() if answer.incarnations[index].number >= newest[index]}


class RegisterCall:
    """One call. name: used for no other. number: of the newest ballot that is known."""

    def __init__(self, name: str, size: int, number: int = 0) -> None:
        self.number = number
        self._name, self._size, self._majority = name, size, majority(size)
        self._ballot = Ballot()

    def read(self) -> Steps[Registered]:
        """Return the value."""
        for _ in range(_LOOKS):
            answers = yield Poll(ReadCell(), lambda found: self._settled(found) is not None)
            cell = self._settled(answers)
            if cell is not None:
                return Registered(cell.version, cell.value)
            yield Pause()
        while True:
            before = yield from self._prepared()
            cell = yield from self._accepted(before)
            if cell is not None:
                return Registered(cell.version, cell.value)

    def write(self, value: str, version: int) -> Steps[int]:
        """Return the new version. Raises RegisterChanged, and RegisterUnreachable where others wrote since and this one may have, too."""
        is_proposed = False
        while True:
            before = yield from self._prepared()
            is_next = before is not None and before.version == version
            is_proposed = is_proposed or is_next
            cell = yield from self._accepted(RegisterCell(version + 1, value, self._name) if is_next else before)
            if cell is None:
                continue
            if cell.write == self._name:
                return cell.version
            if is_proposed and cell.version > version + 1:
                raise RegisterUnreachable("others wrote since, and before that this may have been written")
            raise RegisterChanged(f"version {cell.version} is there, and not {version}")

    def _prepared(self) -> Steps[RegisterCell | None]:
        """Prepare the next ballot; return the value that it must begin with, None where it is lost."""
        self._ballot = Ballot(self.number + 1, self._name)
        votes = counted((yield from self._polled(PrepareBallot(self._ballot))))
        return max(votes.values(), key=lambda vote: vote.accepted).cell if len(votes) >= self._majority else None

    def _accepted(self, cell: RegisterCell | None) -> Steps[RegisterCell | None]:
        """Have the ballot that was prepared accept a value; return it, None where the ballot is lost."""
        if cell is not None:
            votes = counted((yield from self._polled(AcceptCell(self._ballot, cell))))
            if len(votes) >= self._majority:
                return cell
        yield Pause()
        return None

    def _polled(self, request: PrepareBallot | AcceptCell) -> Steps[Answers]:
        answers = yield Poll(request, self._is_voted)
        self.number = max((self.number, self._ballot.number, *(answer.promised.number for answer in answers.values())))
        return answers

    def _is_voted(self, answers: Answers) -> bool:
        votes = len(counted(answers))
        return votes >= self._majority or len(answers) - votes > self._size - self._majority

    def _settled(self, answers: Answers) -> RegisterCell | None:
        votes = [vote for vote in counted(answers).values() if vote.accepted == vote.promised]
        newest = max(votes, key=lambda vote: vote.accepted, default=None)
        alike = [vote for vote in votes if newest is not None and vote.accepted == newest.accepted]
        return newest.cell if newest is not None and len(alike) >= self._majority else None
