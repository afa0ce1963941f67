"""A second signal is never lost, however soon after the first it comes, and whatever the job is doing then."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

pytestmark = pytest.mark.process

JOB = str(Path(__file__).parents[1] / "jobs" / "no_torch.py")
TRAINS = [sys.executable, JOB, "--steps=100000", "--step-ms=20", "--progress=progress", "--pids=pids"]
#: Nothing but a second signal ends it within these seconds.
LONG = ["--set", "stop.deadline_s=60", "--set", "stop.notice_s=600"]


class Place(NamedTuple):
    """A stage that a job can be held in. ignores: TERM and INT end none of its processes."""

    command: list[str]
    ignores: bool
    reached: Callable[[Supervised], object]
    options: tuple[str, ...] = ()


def in_stage(stage: str) -> Callable[[Supervised], bool]:
    return lambda run: f'"stage":"{stage}"' in run.journal()


PLACES = {
    "running": Place(TRAINS, ignores=False, reached=lambda run: len(run.progress()) > 2),
    "running, deaf": Place(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *TRAINS, "--ignore-term"], ignores=True, reached=lambda run: len(run.progress()) > 2
    ),
    "teardown": Place(
        ["sh", "-c", '(trap "" TERM INT; exec sleep 600) & sleep 0.3; kill -9 $$'],
        ignores=True,
        reached=in_stage("teardown"),
        options=("--set", "stop.grace_s=40"),
    ),
    "waiting": Place(["sh", "-c", "kill -9 $$"], ignores=False, reached=in_stage("waiting")),
}
PAIRS = {
    "notice, end": (signal.SIGUSR1, signal.SIGTERM, 0.03),
    "notice, person": (signal.SIGUSR1, signal.SIGINT, 0.03),
    "end, end": (signal.SIGTERM, signal.SIGTERM, 0.4),
    "end, person": (signal.SIGTERM, signal.SIGINT, 0.03),
}
FAST = {("running, deaf", "end, end")}
#: Each place and each pair; a notice and its end leave ranks that ignore TERM the time that they have.
ALL = [
    pytest.param(place, pair, marks=() if (place, pair) in FAST else pytest.mark.slow, id=f"{place}: {pair}")
    for place, pair in [
        ("running, deaf", "end, end"),
        ("running", "notice, end"),
        ("running", "end, person"),
        ("teardown", "notice, person"),
        ("teardown", "end, end"),
        ("waiting", "end, person"),
    ]
]


def is_first_enough(place: str, pair: str) -> bool:
    """Whether the run ends without the second signal, which may then come too late to be taken."""
    return place == "waiting" or (not PLACES[place].ignores and pair.startswith("end"))


ENOUGH = [case for case in ALL if is_first_enough(*case.values)]


def taken(run: Supervised) -> int:
    return run.journal().count('"event":"StopRequested"')


def send(supervise: Callable[..., Supervised], place: str, pair: str) -> Supervised:
    row, (first, second, gap_s) = PLACES[place], PAIRS[pair]
    run = supervise(*row.command, options=[*LONG, *row.options])
    wait_for(lambda: row.reached(run), f"the job is in: {place}", 30, alive=run.alive)
    run.signal(first)
    if first == second:  # two equal signals are one to a process that was not scheduled in between
        wait_for(lambda: taken(run) or not run.alive(), "the first signal to be taken")
    time.sleep(gap_s)
    if run.alive():
        run.signal(second)
    return run


@pytest.mark.parametrize(("place", "pair"), [case for case in ALL if case not in ENOUGH])
def test_the_second_signal_is_answered(supervise: Callable[..., Supervised], place: str, pair: str) -> None:
    first, second, _ = PAIRS[pair]
    run = send(supervise, place, pair)
    code = run.exit_code(deadline_s=20)  # without the second it would take a minute, or all steps
    assert code == (130 if second == signal.SIGINT else 75 if first == signal.SIGUSR1 else 143)
    assert taken(run) == 2
    if PLACES[place].ignores:  # of two signals that are pending the kernel delivers the lower number first
        assert any(f"{signal.Signals(number).name}: ranks are killed in 2 s" in run.stderr for number in (first, second))
    run.wait_for_nothing_left()


@pytest.mark.parametrize(("place", "pair"), ENOUGH)
def test_the_second_signal_does_no_harm_where_the_first_is_enough(supervise: Callable[..., Supervised], place: str, pair: str) -> None:
    first, second, _ = PAIRS[pair]
    run = send(supervise, place, pair)
    code = run.exit_code(deadline_s=20)
    counts = {first} if place == "waiting" or taken(run) == 1 else {first, second}
    assert code == (130 if signal.SIGINT in counts else 75 if first == signal.SIGUSR1 else 143)
    run.wait_for_nothing_left()
