"""The watcher tells of every checkpoint that appears and is whole, once, and of nothing else."""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import TYPE_CHECKING

import pytest
import torch

from checkpointing.candidates import SelectionOptions
from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.discover import Listing, find
from checkpointing.io.reader import Interrupted, Throttle
from checkpointing.reader.one_pass import OnePass
from checkpointing.rejections import Rejections
from checkpointing.select import newest
from checkpointing.verification import Cache
from supervisor.checkpoints.recording.watcher import CheckpointWatcher, to_event, to_ref
from supervisor.core.events import CheckpointSelected
from supervisor.core.model import CheckpointRef
from tests.support.figures import within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from checkpointing.model import Verification
    from checkpointing.reader.messages import CheckpointRead, ReadCheckpoint

DEADLINE_S = 60.0


class Watched:
    """A watcher of `*.pt` in a directory, and its reports."""

    def __init__(self, directory: Path, cache: Cache, quiet_s: float) -> None:
        """Make it; nothing runs yet."""
        self.reports: queue.Queue[CheckpointRef] = queue.Queue()
        self.threads: set[int] = set()
        self.told_at: list[float] = []
        self.watcher = CheckpointWatcher(
            lambda: find(("*.pt",), str(directory)), self._note, cache, OnePass(), interval_s=0.02, quiet_s=quiet_s
        )

    def _note(self, verification: Verification, _answer: CheckpointRead, news: bool) -> None:  # noqa: FBT001  the watcher's
        if not news:
            return
        ref = to_ref(verification)
        self.told_at.append(time.monotonic())
        self.threads.add(threading.get_native_id())
        self.reports.put(ref)

    def next(self) -> tuple[str, int | None]:
        """Wait for the next checkpoint: its name and step."""
        ref = self.reports.get(timeout=DEADLINE_S)
        return ref.path.rpartition("/")[2], ref.step


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    """Start watchers, and see that each ends."""
    begun: list[Watched] = []

    def start(cache: Cache | None = None, quiet_s: float = 0.1) -> Watched:
        watched = Watched(tmp_path, cache or Cache(), quiet_s)
        watched.watcher.start()
        begun.append(watched)
        return watched

    yield start
    for watched in begun:
        assert watched.watcher.stop(DEADLINE_S)


def save(path: Path, step: int) -> None:
    torch.save({"w": torch.ones(4), "step": step}, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def test_each_new_checkpoint_is_reported_once(tmp_path: Path, watch: Callable[..., Watched]) -> None:
    watched = watch()
    for step in (10, 20):
        save(tmp_path / f"step_{step}.pt", step)
        assert watched.next() == (f"step_{step}.pt", step)
    (tmp_path / "latest.pt").symlink_to("step_20.pt")  # the same file
    save(tmp_path / "step_30.pt", 30)
    assert watched.next() == ("step_30.pt", 30)
    assert watched.reports.empty()


def test_one_file_written_over_and_over(tmp_path: Path, watch: Callable[..., Watched]) -> None:
    watched = watch()
    for step in (10, 20):
        torch.save({"step": step}, tmp_path / "last.pt")
        assert watched.next() == ("last.pt", step)


def test_a_step_below_an_earlier_one_is_reported_too(tmp_path: Path, watch: Callable[..., Watched]) -> None:
    """After a roll-back training writes lower steps than it once reached."""
    save(tmp_path / "step_500.pt", 500)
    watched = watch()
    assert watched.next() == ("step_500.pt", 500)
    save(tmp_path / "step_350.pt", 350)
    assert watched.next() == ("step_350.pt", 350)


def test_of_what_was_there_only_the_newest_whole_one_is_read(tmp_path: Path, watch: Callable[..., Watched]) -> None:
    for step in (10, 20, 30):
        save(tmp_path / f"step_{step}.pt", step)
    os.truncate(tmp_path / "step_30.pt", 500)
    watched = watch()
    assert watched.next() == ("step_20.pt", 20)
    save(tmp_path / "step_40.pt", 40)
    assert watched.next() == ("step_40.pt", 40)
    assert watched.reports.empty()


def test_a_file_is_read_only_once_it_stood_still(tmp_path: Path, watch: Callable[..., Watched]) -> None:
    watched = watch(quiet_s=0.5)
    path = tmp_path / "step_5.pt"
    save(path, 5)
    written: list[tuple[float, float]] = []
    for _ in range(40):
        before = time.monotonic()
        os.utime(path)  # it continues changing
        written.append((before, time.monotonic()))
        threading.Event().wait(0.025)
    assert watched.next() == ("step_5.pt", 5)
    # more than once where this thread itself stood still for so long
    assert not [at for told_at in watched.told_at for at in written if told_at - 0.5 < at[0] <= at[1] < told_at]


def test_a_file_whose_save_was_seen_to_end_is_read_at_once(tmp_path: Path) -> None:
    reports: queue.Queue[str] = queue.Queue()
    news, looks = threading.Event(), threading.Event()

    def look() -> Listing:
        looks.set()
        return find(("*.pt",), str(tmp_path))

    watcher = CheckpointWatcher(
        look,
        lambda verification, _reading, _news: reports.put(verification.path.rpartition("/")[2]),
        Cache(),
        OnePass(),
        interval_s=10 * DEADLINE_S,
        quiet_s=5 * DEADLINE_S,
        is_ended=lambda candidate: candidate.path.endswith("step_1.pt"),
        has_news=news.is_set,
    )
    watcher.start()
    assert looks.wait(DEADLINE_S)
    save(tmp_path / "step_1.pt", 1)
    save(tmp_path / "step_2.pt", 2)
    news.set()
    assert reports.get(timeout=DEADLINE_S) == "step_1.pt"
    assert watcher.stop(DEADLINE_S)
    assert reports.empty(), "of step 2 nobody saw the end of the save"


def test_a_torn_file_is_neither_reported_nor_rejected_and_is_reported_once_it_is_whole(
    tmp_path: Path, watch: Callable[..., Watched]
) -> None:
    watched = watch()
    torch.save({"step": 5}, tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    (tmp_path / "step_5.pt").write_bytes(content[:700])
    save(tmp_path / "step_6.pt", 6)
    assert watched.next() == ("step_6.pt", 6)
    with (tmp_path / "step_5.pt").open("ab") as file:
        file.write(content[700:])
    assert watched.next() == ("step_5.pt", 5)


def test_a_checkpoint_verified_by_the_selection_is_not_reported_again(tmp_path: Path, watch: Callable[..., Watched]) -> None:
    save(tmp_path / "step_10.pt", 10)
    cache = Cache()
    selection = newest(
        find(["*.pt"], str(tmp_path)),
        SelectionOptions(rejections=Rejections(CheckpointCatalogue(tmp_path / "state", is_writer=True)), cache=cache),
    )
    watched = watch(cache)
    save(tmp_path / "step_20.pt", 20)
    assert watched.next() == ("step_20.pt", 20)
    assert to_event(selection, 1.5, 3) == CheckpointSelected(
        t=1.5, attempt=3, chosen=CheckpointRef(path=str(tmp_path / "step_10.pt"), step=10, level="structure"), n_found=1
    )


def test_the_event_distinguishes_torn_from_unproven(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(compute_crc32=False)
    try:
        torch.save({"step": 9}, tmp_path / "step_9.pt")
    finally:
        torch.serialization.set_crc32_options(compute_crc32=True)
    (tmp_path / "step_8.pt").write_bytes(b"")
    event = to_event(
        newest(
            find(["*.pt"], str(tmp_path)),
            SelectionOptions(rejections=Rejections(CheckpointCatalogue(tmp_path / "state", is_writer=True))),
        ),
        1.5,
        3,
    )
    assert (event.chosen, event.n_found) == (None, 2)
    assert event.torn == ((str(tmp_path / "step_8.pt"), "torn: the file is empty"),)
    assert event.refused == ((str(tmp_path / "step_9.pt"), "it was saved without CRCs: nothing in it proves its records whole"),)


def test_the_thread_is_of_low_priority_and_the_process_is_not(tmp_path: Path, watch: Callable[..., Watched]) -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    watched = watch()
    save(tmp_path / "step_10.pt", 10)
    watched.next()
    (thread,) = watched.threads
    assert os.getpriority(os.PRIO_PROCESS, thread) == min(19, max(before, 10))
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


@pytest.mark.bench
def test_stop_is_prompt_while_a_large_file_is_read(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(4 << 20), "step": 1}, tmp_path / "step_1.pt")  # 16 MiB at 1 KiB/s
    reports: list[object] = []
    watcher = CheckpointWatcher(
        lambda: find(("*.pt",), str(tmp_path)),
        lambda *report: reports.append(report),
        Cache(),
        OnePass(cap_bytes_per_s=1024),
        interval_s=0.01,
        quiet_s=0.0,
    )
    reading = threading.Event()
    take = Throttle.take

    def noted(self: Throttle, n_bytes: int) -> None:
        if n_bytes >= 1 << 20:
            reading.set()
        take(self, n_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Throttle, "take", noted)
        watcher.start()
        assert reading.wait(DEADLINE_S)
        begun = time.monotonic()
        assert watcher.stop(DEADLINE_S)
        assert within(2.0, since=begun)
    assert reports == []


def test_once_no_rank_is_alive_nothing_waits_for_the_throttle(tmp_path: Path) -> None:
    reports: queue.Queue[str] = queue.Queue()
    watcher = CheckpointWatcher(
        lambda: find(("*.pt",), str(tmp_path)),
        lambda verification, *_: reports.put(verification.path),
        Cache(),
        OnePass(cap_bytes_per_s=1024),
        interval_s=60.0,
        quiet_s=60.0,
    )
    torch.save({"w": torch.zeros(4 << 20), "step": 1}, tmp_path / "step_1.pt")  # 16 MiB at 1 KiB/s
    watcher.start()
    assert watcher.finish(DEADLINE_S)
    assert reports.get_nowait() == f"{tmp_path}/step_1.pt"


@pytest.mark.bench
def test_a_file_system_that_hangs_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging, released = threading.Event(), threading.Event()

    def hang() -> Listing:
        hanging.set()
        released.wait(DEADLINE_S)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    watcher = CheckpointWatcher(hang, print, Cache(), OnePass())
    watcher.start()
    assert hanging.wait(DEADLINE_S)
    begun = time.monotonic()
    assert not watcher.stop(0.2)
    assert within(2.0, since=begun)
    released.set()
    assert watcher.stop(DEADLINE_S)


def test_a_failure_of_the_watcher_is_reported_once_and_watching_continues(tmp_path: Path) -> None:
    reports: queue.Queue[str] = queue.Queue()
    looks = 0

    def look() -> Listing:
        nonlocal looks
        looks += 1
        if looks <= 2:
            raise ValueError("no listing")
        return find(("*.pt",), str(tmp_path))

    def verified(verification: Verification, _answer: CheckpointRead, _news: bool) -> None:  # noqa: FBT001  the watcher's
        if verification.step in {10, 15}:
            raise ValueError("no copy")
        reports.put(verification.path)

    save(tmp_path / "step_10.pt", 10)
    save(tmp_path / "step_15.pt", 15)
    watcher = CheckpointWatcher(look, verified, Cache(), OnePass(), interval_s=0.01, quiet_s=0.0, on_trouble=reports.put)
    watcher.start()
    assert reports.get(timeout=DEADLINE_S) == "the checkpoints could not be listed: ValueError: no listing"
    assert reports.get(timeout=DEADLINE_S) == f"{tmp_path}/step_15.pt: ValueError: no copy", "the other file meets the same failure"
    save(tmp_path / "step_20.pt", 20)
    assert reports.get(timeout=DEADLINE_S) == f"{tmp_path}/step_20.pt"
    assert watcher.stop(DEADLINE_S)
    assert reports.empty()


def test_a_read_interrupted_by_the_stop_ends_silently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)

    class Endless(OnePass):
        """A pass that ends when it is stopped."""

        def read(self, order: ReadCheckpoint, stopped: threading.Event) -> CheckpointRead:
            """Wait for the stop."""
            reading_on.set()
            stopped.wait(DEADLINE_S)
            raise Interrupted(order.path)

    reading_on = threading.Event()
    save(tmp_path / "step_10.pt", 10)
    watcher = CheckpointWatcher(
        lambda: find(("*.pt",), str(tmp_path)),
        lambda *report: raised.append(report),
        Cache(),
        Endless(),
        quiet_s=0.0,
        on_trouble=raised.append,
    )
    watcher.start()
    assert reading_on.wait(DEADLINE_S)
    assert watcher.stop(DEADLINE_S)
    assert raised == []


def test_a_watcher_that_never_started_stops() -> None:
    assert CheckpointWatcher(lambda: Listing(()), print, Cache(), OnePass()).stop()
