"""The strange numbers of an attempt: over all ranks, from the log and from worker.report, each posted once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.config import loss_rules
from supervisor.core.model import Phase
from supervisor.core.training_events import LossChanged
from supervisor.core.values import replace
from supervisor.observe.log_watch import LogWatch
from supervisor.observe.loss_watch import LossWatch
from supervisor.observe.ranks.heartbeats import RankHeartbeat
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.core.events import Event

BEAT = RankHeartbeat(
    local_rank=0, rank=0, pid=1, start_ticks=1, hello_ns=0, phase=Phase.TRAIN, phase_since_ns=0, steps=0, last_step_ns=None, step=None,
    step_source=None, torch_loaded=True, backward_seen=True, save_asked=False,
)  # fmt: skip


class Watched:
    """A watch, and what it posted as `+rule rank` and `-rule rank`."""

    def __init__(self) -> None:
        self.posted: list[LossChanged] = []
        self.watch = LossWatch(loss_rules.packaged(), 3, self.post)

    def post(self, event: Event) -> None:
        """Take an event of the watch."""
        assert isinstance(event, LossChanged)
        assert event.attempt == 3
        self.posted.append(event)

    def take(self) -> list[str]:
        """Return what was posted since the last time."""
        changes = [f"{'-' if alarm.is_over else '+'}{alarm.rule} {alarm.rank}" for alarm in self.posted]
        self.posted.clear()
        return changes


def test_the_newest_loss_is_the_trainings_of_the_lowest_rank() -> None:
    seen = Watched()
    first, second = seen.watch.stream(0), seen.watch.stream(1)
    assert first is not None
    assert second is not None
    assert seen.watch.newest is None
    second.feed(b"step 1 loss: 4.5\n", 1.0)
    assert seen.watch.newest == 4.5
    first.feed(b"step 1 train_loss=2.5 val_loss=9.0\nstep 1 lr: 0.1\n", 1.0)
    second.feed(b"step 2 loss: 7.5\n", 2.0)
    assert seen.watch.newest == 2.5
    first.feed(b"step 3 loss: nan\n", 3.0)
    assert seen.watch.newest is None, "a journal holds finite numbers"
    seen.watch.sample([replace(BEAT, loss=1.25, losses=1)], 4.0)
    assert seen.watch.newest == 1.25


def test_a_number_is_strange_as_long_as_it_is_on_any_rank() -> None:
    seen = Watched()
    first, second = seen.watch.stream(0), seen.watch.stream(1)
    assert first is not None
    assert second is not None
    first.feed(b"step 1 loss: nan\n", 1.0)
    assert seen.take() == []
    first.feed(b"step 2 loss: nan\n", 2.0)
    second.feed(b"step 1 loss: nan\nstep 2 loss: nan\n", 2.5)
    assert seen.take() == ["+loss.nan 0"]
    first.feed(b"step 3 loss: 1.5\n", 3.0)
    assert seen.take() == []
    second.feed(b"step 3 loss: 1.5\n", 3.0)
    assert seen.take() == ["-loss.nan 1"]


def test_a_reported_loss_wins_over_the_log() -> None:
    seen = Watched()
    log = seen.watch.stream(0)
    assert log is not None
    log.feed(b"step 1 loss: nan\nstep 2 loss: nan\n", 1.0)
    assert seen.take() == ["+loss.nan 0"]
    good, bad = replace(BEAT, loss=1.5, losses=1), replace(BEAT, loss=float("nan"), losses=2)
    seen.watch.sample([good], 2.0)
    log.feed(b"step 3 loss: nan\nstep 4 loss: nan\n", 2.0)
    assert seen.take() == ["-loss.nan None"]
    for _ in range(5):  # one report, sampled again and again
        seen.watch.sample([bad], 3.0)
    assert seen.take() == []
    seen.watch.sample([replace(bad, losses=3, step=17)], 4.0)
    (event,) = seen.posted
    assert (event.text, event.rank, event.step, event.is_over) == ("loss is NaN, 2 times in a row", 0, 17, False)
    seen.watch.sample([replace(good, losses=4)], 5.0)
    assert seen.take() == ["+loss.nan 0", "-loss.nan 0"]


def test_without_rules_nothing_is_read() -> None:
    watch = LossWatch((), 1, lambda _event: None)
    assert watch.stream(0) is None
    watch.sample([replace(BEAT, loss=float("nan"), losses=2)], 1.0)


def test_the_thread_that_reads_the_logs_feeds_it_while_the_job_runs(tmp_path: Path) -> None:
    from supervisor.config import signatures  # noqa: PLC0415  the catalogue takes 0.1 s
    from supervisor.observe.anchor_scanner import scanner  # noqa: PLC0415

    catalogue, _ = signatures.read()
    pair = catalogue, scanner(catalogue.anchors)
    seen = Watched()
    logs = LogWatch(tmp_path, lambda: pair, lambda: 1.0, seen.watch.stream)
    logs.start()
    try:
        (tmp_path / "rank-1.out").write_bytes(b"\r 10%|# | 10/100 [00:01<00:09, loss=nan]\r 20%|## | 20/100 [00:02<00:09, loss=nan]\r")
        wait_for(lambda: bool(seen.posted), "the number is posted", 20)
    finally:
        logs.finish(5)
    assert seen.take() == ["+loss.nan 1"]
