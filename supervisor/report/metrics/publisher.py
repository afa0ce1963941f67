"""Makes the page of metrics in a thread of its own: when a scraper asks for it, and every WRITE_S for node_exporter's textfile collector.

Making it may wait for the disk. A scraper waits for MOST_WAIT_S at most, and then gets the page before, whose
`supervise_metrics_timestamp_seconds` says how old it is. Where a page could not be made, there is none until the next. Nobody else waits
for anything in here.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Final

from supervisor.report.metrics.exposition import exposition, write_textfile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.report.metrics.exposition import Samples

#: A page so young is sent again: a storm of scrapers costs no more than one.
FRESH_S: Final = 1.0
MOST_WAIT_S: Final = 2.0
WRITE_S: Final = 15.0


class MetricsPublisher:
    """Makes pages of what `collect` returns, which may raise OSError. textfile: where to write each WRITE_S, None: nowhere.

    failed: gets the error of a kind that is new, from this thread.
    """

    def __init__(self, collect: Callable[[], Samples], textfile: Path | None, failed: Callable[[str], None]) -> None:
        self._collect, self._textfile, self._failed = collect, textfile, failed
        self._changed = threading.Condition()
        self._page: bytes | None = None
        self._made_t = self._write_t = float("-inf")  # monotonic seconds
        self._is_wanted = self._is_closed = False
        self._reported: set[str] = set()

    def page(self) -> bytes | None:
        """Return the newest page, waiting a little for a fresh one; None if there is none yet, or it could not be made. From any thread."""
        with self._changed:
            asked_t = time.monotonic()
            if asked_t - self._made_t >= FRESH_S:
                self._is_wanted = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._made_t >= asked_t or self._is_closed, MOST_WAIT_S)
            return self._page

    def run(self) -> None:
        """Make pages until `close`, and remove the file: it would show a run that is over for ever. A killed supervisor's grows old."""
        while self._wait():
            page = None
            try:
                samples = self._collect()
                page = exposition(samples)
                if self._textfile is not None and time.monotonic() >= self._write_t:
                    self._write_t = time.monotonic() + WRITE_S
                    self._write(self._textfile, samples)
            except Exception as error:  # noqa: BLE001  a page that fails must not end those that follow
                self._report(f"the metrics could not be made: {type(error).__name__}: {error}")
            with self._changed:
                self._page, self._made_t = page, time.monotonic()
                self._is_wanted = False
                self._changed.notify_all()
        if self._textfile is not None:
            with contextlib.suppress(OSError):
                self._textfile.unlink(missing_ok=True)

    def close(self) -> None:
        """Have `run` end. Does not wait."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _wait(self) -> bool:
        """Wait until a page is wanted; return False once it is closed."""
        with self._changed:
            wait_s = None if self._textfile is None else max(0.0, self._write_t - time.monotonic())
            self._changed.wait_for(lambda: self._is_wanted or self._is_closed, wait_s)
            return not self._is_closed

    def _write(self, textfile: Path, samples: Samples) -> None:
        try:
            write_textfile(textfile, samples)
        except OSError as error:
            self._report(f"the metrics could not be written: {textfile}: {error.strerror}")

    def _report(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self._failed(text)
