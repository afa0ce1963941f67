"""Publishes the metrics of one run: brings together what they are made from, and keeps their threads.

Imported only where metrics are on, and its own thread imports its libraries (prometheus_client, http.server), so that no start waits
for them. That thread reads the state, which is one frozen value, and what others keep for any thread to read; the loop has no part in it.
"""

from __future__ import annotations

import errno
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from supervisor.config.intervals import SAMPLE_S
from supervisor.config.listening import listen_at
from supervisor.config.metrics_address import metrics_address
from supervisor.errors import SuperviseError
from supervisor.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.checkpoints.mirror.uploads import MirrorUploads
    from supervisor.core.model import RankMemory
    from supervisor.job.job import Job
    from supervisor.node.health_watch import HealthWatch
    from supervisor.report.journald import Level
    from supervisor.report.metrics.facts import LiveFacts
    from supervisor.report.metrics.publisher import MetricsPublisher
    from supervisor.report.metrics.server import MetricsServer
    from supervisor.report.mirror_report import MirrorReport
    from supervisor.report.vitals import Vitals
    from supervisor.run.loop import Loop

#: How often a port that is in use is tried again.
RETRY_S: Final = 10.0
#: Readings of GPUs are shown for so many intervals of sampling, and for FRESH_S at least.
_FRESH_SAMPLES: Final = 3


class JobMetrics:
    """The metrics of one run, from `start` to `close`. message: prints a line, from any thread. mirror: None where there is none.

    memory: returns what each rank of this node holds.
    """

    def __init__(  # noqa: PLR0913 (the parts that know something)
        self,
        job: Job,
        loop: Loop,
        vitals: Vitals,
        health: HealthWatch,
        mirror: tuple[MirrorUploads, MirrorReport] | None,
        *,
        message: Callable[[str, Level], None],
        memory: Callable[[], tuple[RankMemory, ...]] = lambda: (),
    ) -> None:
        self._job, self._loop, self._vitals, self._health, self._mirror, self._memory = job, loop, vitals, health, mirror, memory
        self._message = message
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._publisher: MetricsPublisher | None = None
        self._server: MetricsServer | None = None

    def start(self) -> None:
        """Make and serve them from now on, in threads of their own."""
        self._thread.start()

    def close(self, deadline_s: float) -> str:
        """Stop, and give the thread so many seconds to remove its file. The end is not reported."""
        self._closed.set()
        if self._server is not None:
            self._server.stop()
        if self._publisher is not None:
            self._publisher.close()
        self._thread.join(deadline_s)
        return ""

    def _run(self) -> None:
        from supervisor.report.metrics.exposition import Samples  # noqa: PLC0415 (no start waits for it)
        from supervisor.report.metrics.publisher import MetricsPublisher  # noqa: PLC0415
        from supervisor.report.metrics.samples import samples_of  # noqa: PLC0415
        from supervisor.view.reading import ViewFollower  # noqa: PLC0415

        journal = ViewFollower(self._job.state / "journal.jsonl")

        def collect() -> Samples:
            live = self._live()
            journal.advance()
            return Samples(tuple(samples_of(live, journal.view)), live.job)

        publisher = self._publisher = MetricsPublisher(collect, self._textfile(), lambda text: self._message(text, "warning"))
        if self._job.settings.metrics.listen:
            threading.Thread(target=self._serve, args=(publisher,), name="metrics-server", daemon=True).start()
        if self._closed.is_set():
            publisher.close()
        publisher.run()

    def _textfile(self) -> Path | None:
        settings = self._job.settings
        directory = settings.metrics.textfile_dir
        return Path(settings.cwd, directory, f"supervise-{self._job.name}.prom") if directory else None

    def _serve(self, publisher: MetricsPublisher) -> None:
        from supervisor.report.metrics.exposition import CONTENT_TYPE  # noqa: PLC0415 (as above)
        from supervisor.report.metrics.server import PATH, MetricsServer  # noqa: PLC0415

        address, is_reported = self._job.settings.metrics.listen, False
        while not self._closed.is_set():
            try:
                at = metrics_address(self._job.settings)
                listener = listen_at(at)
            except (OSError, SuperviseError) as error:
                if not is_reported:
                    in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
                    again = f"the job continues without them; again each {RETRY_S:g} s" if in_use else "the job continues without them"
                    cause = "another process listens there" if in_use else str(error)
                    self._message(f"metrics: cannot listen at {address}: {cause}; {again}", "warning")
                is_reported = True
                self._closed.wait(RETRY_S)
                continue
            self._message(f"metrics: http://{at.with_port(listener.getsockname()[1])}{PATH}", "info")
            with listener:
                self._server = MetricsServer(listener, CONTENT_TYPE, publisher.page)
                self._server.run()
            return

    def _live(self) -> LiveFacts:
        from supervisor.report.metrics.facts import FRESH_S, LiveFacts, MirrorFacts  # noqa: PLC0415 (as above)

        job, mirror = self._job, None
        if self._mirror is not None:
            uploads, report = self._mirror
            backlog, size = uploads.backlog()
            mirror = MirrorFacts(backlog, size, uploads.behind_s(), report.is_failing)
        facts = partial(LiveFacts, self._loop.clock.now(), job.name, job.run_id, job.node, __version__, self._loop.state)
        return facts(
            last_progress_t=self._vitals.step_t,
            mirror=mirror,
            checks=self._health.last_results(),
            readings=self._health.last_readings(),
            memory=self._memory() if self._loop.state.attempt.live_ranks else (),
            fresh_s=max(FRESH_S, _FRESH_SAMPLES * SAMPLE_S),
        )
