"""A rank's way through the rounds: meet, say what was seen, and go on, whoever is gone.

In: a Board, a Meter. Out: steps, samples and finished phases, said as they come. What fails is the board's. Nothing is kept but there.
Ranks wait for nobody but the partner of the moment, so that one that hangs holds up its partners only, each for one trial's timeout.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from health.nodecheck import schedule
from health.nodecheck.liveness import Board, Peers
from health.nodecheck.model import Meeting, Member, Sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from health.nodecheck.liveness import Options

SECOND: Final = "second looks"
_POLL_S: Final = 0.01
_LOOK_S: Final = 0.5


class Meter(Protocol):
    """What measures."""

    def meet(self, meeting: Meeting | None, phase: int, number: int) -> Sample:
        """Return what a meeting showed."""


class Voice(Protocol):
    """Where a rank says what it does."""

    def step(self, text: str) -> None:
        """Say what comes next: also a sign of life."""

    def sample(self, sample: Sample) -> None:
        """Say what was seen."""

    def finished(self, phase: int) -> None:
        """Say that a phase is over."""


def wait_members(board: Board, peers: Peers, world: int, voice: Voice) -> dict[int, Member]:
    """Return all that came, when each came or counts as gone."""
    found: dict[int, Member] = {}
    waiting = [*range(world)]
    while waiting:
        voice.step(f"waiting for rank {waiting[0]} to come")
        for rank in waiting:
            if text := board.get(f"member/{rank}"):
                found[rank] = Member.from_json(json.loads(text))
        waiting = [rank for rank in waiting if rank not in found and not peers.gone(rank)]
        if waiting:
            time.sleep(_LOOK_S / 5)
    return found


def is_shared(me: Member, members: Sequence[Member]) -> bool:
    """Return whether this machine's CPU has more ranks to serve than cores."""
    machines = Counter(one.machine for one in members if one.device == "cpu")
    return me.device == "cpu" and machines[me.machine] > me.cores


@dataclass(frozen=True, slots=True)
class Player:
    """One rank, and what it plays with."""

    board: Board
    peers: Peers
    me: Member
    meter: Meter
    voice: Voice


def take_part(player: Player, options: Options) -> None:
    """Play the tournament, and what is asked for after it."""
    begun = time.monotonic()
    for meetings in schedule.schedule(options.world, options.rounds):
        if time.monotonic() - begun > options.tournament_s:
            break
        if not meetings:  # alone in the world
            player.voice.sample(player.meter.meet(None, 0, 0))
        _meet(player, schedule.meeting_of(player.me.rank, meetings))
    player.voice.finished(0)
    while not (text := player.board.get(SECOND)):
        player.voice.step("waiting for what else is asked for")
        time.sleep(_LOOK_S / 5)
    for rows in json.loads(text):
        _meet(player, schedule.meeting_of(player.me.rank, [Meeting(*row) for row in rows]))
    player.voice.finished(1)


def _meet(player: Player, meeting: Meeting | None) -> None:
    if meeting is None:
        return
    if _wait_partner(player, meeting):
        player.voice.sample(player.meter.meet(meeting, meeting.phase, meeting.number))
    else:
        rank = player.me.rank
        player.voice.sample(Sample(meeting.phase, meeting.number, rank, meeting.partner(rank), absent=True))


def _wait_partner(player: Player, meeting: Meeting) -> bool:
    """Return whether the partner came to the meeting; False as soon as it is known that it will not."""
    board, peers = player.board, player.peers
    partner = meeting.partner(player.me.rank)
    board.put(f"ready/{meeting.name}/{player.me.rank}", "1")
    look = 0.0
    while not board.has(f"ready/{meeting.name}/{partner}"):
        if time.monotonic() > look:
            player.voice.step(f"round {meeting.number}: waiting for rank {partner}")
            sign = peers.sign(partner)
            if peers.gone(partner) or (sign is not None and sign.finished >= meeting.phase):
                break
            look = time.monotonic() + _LOOK_S
        time.sleep(_POLL_S)
    return board.has(f"ready/{meeting.name}/{partner}") and not peers.gone(partner)
