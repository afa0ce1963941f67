"""Pages are made when they are wanted, by one thread; a disk that hangs delays its own page alone."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.report.metrics import publisher as module
from supervisor.report.metrics.publisher import MetricsPublisher
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def publish() -> Iterator[Callable[..., MetricsPublisher]]:
    running: list[tuple[MetricsPublisher, threading.Thread]] = []

    def start(make: Callable[[], bytes], textfile: Path | None = None, failed: Callable[[str], None] = lambda _: None) -> MetricsPublisher:
        made = MetricsPublisher(make, textfile, failed)
        thread = threading.Thread(target=made.run, daemon=True)
        thread.start()
        running.append((made, thread))
        return made

    yield start
    for made, thread in running:
        made.close()
        thread.join(10)
        assert not thread.is_alive()


def test_a_storm_of_scrapers_costs_one_page(publish: Callable[..., MetricsPublisher], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_S", 60.0)
    made: list[int] = []

    def make() -> bytes:
        made.append(1)
        return b"page"

    publisher = publish(make)
    assert [publisher.page() for _ in range(50)] == [b"page"] * 50
    assert len(made) == 1


def test_nothing_is_made_unless_somebody_asks(publish: Callable[..., MetricsPublisher]) -> None:
    made: list[int] = []

    def make() -> bytes:
        made.append(1)
        return b"page"

    publisher = publish(make)
    time.sleep(0.2)
    assert made == []
    assert publisher.page() == b"page"


def test_a_disk_that_hangs_costs_the_scraper_a_moment_and_gives_the_page_before(
    publish: Callable[..., MetricsPublisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FRESH_S", 0.0)
    monkeypatch.setattr(module, "MOST_WAIT_S", 0.3)
    answers, gate = iter((b"first", b"second")), threading.Event()
    gate.set()

    def make() -> bytes:
        gate.wait(30)
        return next(answers)

    publisher = publish(make)
    assert publisher.page() == b"first"
    gate.clear()
    assert publisher.page() == b"first"
    gate.set()
    assert wait_for(lambda: publisher.page() == b"second" or None, "the page after it", 10)


def test_a_page_that_fails_is_reported_once_and_the_next_one_is_made(
    publish: Callable[..., MetricsPublisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FRESH_S", 0.0)
    failures: list[str] = []
    outcomes: list[bytes | Exception] = [OSError(5, "Input/output error"), OSError(5, "Input/output error"), b"page"]

    def make() -> bytes:
        outcome = outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    publisher = publish(make, failed=failures.append)
    monkeypatch.setattr(module, "MOST_WAIT_S", 0.2)
    wait_for(lambda: publisher.page() == b"page", "a page", 10)
    assert failures == ["the metrics could not be made: OSError: [Errno 5] Input/output error"]


def test_the_textfile_is_replaced_as_a_whole_readable_by_all_and_removed_at_the_end(
    publish: Callable[..., MetricsPublisher], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WRITE_S", 0.05)
    file, number = tmp_path / "supervise-a.prom", iter(range(10_000))
    before = os.umask(0o077)
    try:
        publisher = publish(lambda: b"number %d\n" % next(number) * 1000, file)
        wait_for(file.exists, "the file", 10)
        seen: set[bytes] = set()

        def changed() -> bool:
            (line,) = set(file.read_bytes().splitlines())  # never half of one and half of another
            seen.add(line)
            return len(seen) > 5

        wait_for(changed, "five more", 20)
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o644
    publisher.close()
    wait_for(lambda: not list(tmp_path.iterdir()), "nothing left", 10)


def test_a_directory_that_fails_is_one_warning(
    publish: Callable[..., MetricsPublisher], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WRITE_S", 0.02)
    failures: list[str] = []
    publisher = publish(lambda: b"page", tmp_path / "gone" / "supervise-a.prom", failures.append)
    wait_for(lambda: failures, "the warning", 10)
    time.sleep(0.2)
    assert len(failures) == 1
    assert failures[0].endswith("supervise-a.prom: No such file or directory")
    assert publisher.page() == b"page"
