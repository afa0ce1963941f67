"""A rank's way through the rounds: it measures with each partner, reports, and continues, also where ranks are gone.

A rank waits for its present partner only. A rank that hangs therefore holds up its partners alone, each for the timeout of one trial.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from health.nodecheck import schedule
from health.nodecheck.liveness import Peers, SharedStore
from health.nodecheck.model import Member, PairTrial, Sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from health.nodecheck.liveness import Options

SECOND: Final = "second looks"
_POLL_S: Final = 0.01
_LOOK_S: Final = 0.5


class PairMeter(Protocol):
    """The measuring part."""

    def measure_pair(self, pair_trial: PairTrial | None, phase: int, number: int) -> Sample:
        """Return what a pair trial showed."""


class ProgressReporter(Protocol):
    """Where a rank reports its progress."""

    def step(self, text: str) -> None:
        """Report the next step; it also proves that the rank is alive."""

    def sample(self, sample: Sample) -> None:
        """Report a sample."""

    def finished(self, phase: int) -> None:
        """Report that a phase is over."""


def wait_members(store: SharedStore, peers: Peers, world: int, reporter: ProgressReporter) -> dict[int, Member]:
    """Return all that came, when each came or is treated as gone."""
    members: dict[int, Member] = {}
    waiting = [*range(world)]
    while waiting:
        reporter.step(f"waiting for rank {waiting[0]} to come")
        for rank in waiting:
            if text := store.get(f"member/{rank}"):
                members[rank] = Member.from_json(json.loads(text))
        waiting = [rank for rank in waiting if rank not in members and not peers.gone(rank)]
        if waiting:
            time.sleep(_LOOK_S / 5)
    return members


def is_shared(me: Member, members: Sequence[Member]) -> bool:
    """Return whether other ranks compute on this machine's CPU too: each of them would use all its cores."""
    return me.device == "cpu" and any(other.rank != me.rank and other.device == "cpu" and other.machine == me.machine for other in members)


@dataclass(frozen=True, slots=True)
class Participant:
    """One rank, and its resources."""

    store: SharedStore
    peers: Peers
    me: Member
    meter: PairMeter
    reporter: ProgressReporter


def take_part(participant: Participant, options: Options) -> None:
    """Take part in the tournament, then in the second looks."""
    began = time.monotonic()
    for pair_trials in schedule.schedule(options.world, options.rounds):
        if time.monotonic() - began > options.tournament_s:
            break
        if not pair_trials:  # alone in the world
            participant.reporter.sample(participant.meter.measure_pair(None, 0, 0))
        _run_trial(participant, schedule.trial_of(participant.me.rank, pair_trials))
    participant.reporter.finished(0)
    while not (text := participant.store.get(SECOND)):
        participant.reporter.step("waiting for what else is asked for")
        time.sleep(_LOOK_S / 5)
    for rows in json.loads(text):
        _run_trial(participant, schedule.trial_of(participant.me.rank, [PairTrial(*row) for row in rows]))
    participant.reporter.finished(1)


def _run_trial(participant: Participant, pair_trial: PairTrial | None) -> None:
    if pair_trial is None:
        return
    if _wait_partner(participant, pair_trial):
        participant.reporter.sample(participant.meter.measure_pair(pair_trial, pair_trial.phase, pair_trial.number))
    else:
        rank = participant.me.rank
        participant.reporter.sample(Sample(pair_trial.phase, pair_trial.number, rank, pair_trial.partner(rank), absent=True))


def _wait_partner(participant: Participant, pair_trial: PairTrial) -> bool:
    """Return whether the partner came; False as soon as it is known that it will not."""
    store, peers = participant.store, participant.peers
    partner = pair_trial.partner(participant.me.rank)
    store.put(f"ready/{pair_trial.name}/{participant.me.rank}", "1")
    look = 0.0
    while not store.has(f"ready/{pair_trial.name}/{partner}"):
        if time.monotonic() > look:
            participant.reporter.step(f"round {pair_trial.number}: waiting for rank {partner}")
            heartbeat = peers.heartbeat(partner)
            if peers.gone(partner) or (heartbeat is not None and heartbeat.finished >= pair_trial.phase):
                break
            look = time.monotonic() + _LOOK_S
        time.sleep(_POLL_S)
    return store.has(f"ready/{pair_trial.name}/{partner}") and not peers.gone(partner)
