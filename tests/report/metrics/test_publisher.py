"""Pages are made when they are wanted, by one thread; a disk that hangs delays its own page alone."""

from __future__ import annotations

import os
import resource
import threading
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.report.metrics import publisher as module
from supervisor.report.metrics.exposition import Samples, exposition
from supervisor.report.metrics.publisher import MetricsPublisher
from supervisor.report.metrics.samples import MetricSample
from supervisor.report.metrics.table import Metric
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def samples(step: int = 1, times: int = 1) -> Samples:
    """What a publisher collects, here a step."""
    return Samples((MetricSample(Metric.STEP, step),) * times, "a")


def page(step: int = 1, times: int = 1) -> bytes:
    return exposition(samples(step, times))


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., MetricsPublisher]]:
    monkeypatch.setattr(module, "MOST_WAIT_S", 60.0)  # a page is given as soon as it is made: a busy machine makes it later
    running: list[tuple[MetricsPublisher, threading.Thread]] = []

    def start(
        collect: Callable[[], Samples], textfile: Path | None = None, failed: Callable[[str], None] = lambda _: None
    ) -> MetricsPublisher:
        publisher = MetricsPublisher(collect, textfile, failed)
        thread = threading.Thread(target=publisher.run, daemon=True)
        thread.start()
        running.append((publisher, thread))
        return publisher

    yield start
    for publisher, thread in running:
        publisher.close()
        thread.join(60)
        assert not thread.is_alive()


def test_a_storm_of_scrapers_costs_one_page(publish: Callable[..., MetricsPublisher], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_S", 60.0)
    pages: list[int] = []

    def collect() -> Samples:
        pages.append(1)
        return samples()

    publisher = publish(collect)
    assert [publisher.page() for _ in range(50)] == [page()] * 50
    assert len(pages) == 1


def test_samples_are_collected_only_on_request(publish: Callable[..., MetricsPublisher]) -> None:
    pages: list[int] = []

    def collect() -> Samples:
        pages.append(1)
        return samples()

    publisher = publish(collect)
    time.sleep(0.2)
    assert pages == []
    assert publisher.page() == page()


def test_a_disk_that_hangs_costs_the_scraper_a_moment_and_gives_the_page_before(
    publish: Callable[..., MetricsPublisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FRESH_S", 0.0)
    answers, gate = iter((1, 2, *[2] * 100)), threading.Event()
    gate.set()

    def collect() -> Samples:
        gate.wait(30)
        return samples(next(answers))

    publisher = publish(collect)
    assert publisher.page() == page(1)
    monkeypatch.setattr(module, "MOST_WAIT_S", 0.3)
    gate.clear()
    assert publisher.page() == page(1)
    gate.set()
    assert wait_for(lambda: publisher.page() == page(2) or None, "the page after it", 10)


def test_a_page_that_fails_is_reported_once_and_the_next_one_is_made(
    publish: Callable[..., MetricsPublisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FRESH_S", 0.0)
    failures: list[str] = []
    outcomes: list[Samples | Exception] = [OSError(5, "Input/output error"), OSError(5, "Input/output error"), samples()]

    def collect() -> Samples:
        outcome = outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    publisher = publish(collect, failed=failures.append)
    monkeypatch.setattr(module, "MOST_WAIT_S", 0.2)
    wait_for(lambda: publisher.page() == page(), "a page", 10)
    assert failures == ["the metrics could not be made: OSError: [Errno 5] Input/output error"]


def test_the_textfile_is_replaced_as_a_whole_readable_by_all_and_removed_at_the_end(
    publish: Callable[..., MetricsPublisher], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WRITE_S", 0.05)
    file, number = tmp_path / "supervise-a.prom", iter(range(10_000))
    before = os.umask(0o077)
    try:
        publisher = publish(lambda: samples(next(number), 1000), file)
        wait_for(file.exists, "the file", 10)
        seen: set[bytes] = set()

        def changed() -> bool:
            _, _, *values = file.read_bytes().splitlines()
            assert len(values) == 1000
            (line,) = set(values)  # never half of one and half of another
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
    publisher = publish(samples, tmp_path / "gone" / "supervise-a.prom", failures.append)
    wait_for(lambda: failures, "the warning", 10)
    time.sleep(0.2)
    assert len(failures) == 1
    assert failures[0].endswith("supervise-a.prom: No such file or directory")
    assert publisher.page() == page()


def test_metrics_that_cannot_be_made_are_not_answered_with_the_old_ones(
    publish: Callable[..., MetricsPublisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scrape fails; else Prometheus takes the old values for present ones."""
    monkeypatch.setattr(module, "FRESH_S", 0.0)
    pages = iter((samples(120),))
    publisher = publish(lambda: next(pages))
    assert publisher.page() == page(120)
    assert publisher.page() is None


def test_a_textfile_is_replaced_by_whole_pages_only(
    publish: Callable[..., MetricsPublisher], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is nearly full takes a part of a write, and refuses the rest; a limit of the file's size does the same."""
    monkeypatch.setattr(module, "FRESH_S", 0.0)
    monkeypatch.setattr(module, "WRITE_S", 0.0)
    file, pages = tmp_path / "supervise.prom", list[int]()

    def collect() -> Samples:
        pages.append(len(pages))
        return samples(len(pages), 5000)

    publisher = publish(collect, file)
    wait_for(lambda: publisher.page() and file.exists(), "the first page", 20)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        so_many = len(pages) + 2  # when this one is made, the one before it is written
        wait_for(lambda: publisher.page() and len(pages) >= so_many, "two more pages", 20)
        content = file.read_bytes()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(content.splitlines()) == 5002
    wait_for(lambda: list(tmp_path.iterdir()) == [file], "no part of a page beside it, between two writes", 20)
