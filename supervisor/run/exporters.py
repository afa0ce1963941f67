"""Exports a run to other systems while it lasts: its metrics and its trace. Each is imported only where it is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.checkpoints.mirror.uploads import MirrorUploads
    from supervisor.core.model import RankMemory
    from supervisor.job.job import Job
    from supervisor.node.health_watch import HealthWatch
    from supervisor.report.journald import Level
    from supervisor.report.mirror_report import MirrorReport
    from supervisor.report.vitals import Vitals
    from supervisor.run.loop import Loop


class RunExporter(Protocol):
    """Shows a run from `start` to `close`, in threads of its own. Neither raises."""

    def start(self) -> None:
        """Begin; returns at once."""

    def close(self, deadline_s: float) -> str:
        """Show the rest, for so many seconds at most, and end. Return what went wrong with it, "" for nothing; again, nothing happens."""


def exporters_of(  # noqa: PLR0913, PLR0917 (the parts that know something)
    job: Job,
    loop: Loop,
    vitals: Vitals,
    health: HealthWatch,
    mirror: tuple[MirrorUploads, MirrorReport] | None,
    message: Callable[[str, Level], None],
    memory: Callable[[], tuple[RankMemory, ...]],
) -> list[RunExporter]:
    """Return what the settings and the environment ask for. message: prints a line, from any thread.

    memory: returns what each rank holds.
    """
    exporters: list[RunExporter] = []
    if job.settings.metrics.is_used:
        from supervisor.run.metrics import JobMetrics  # noqa: PLC0415 (what a job does not ask for costs it nothing)

        exporters.append(JobMetrics(job, loop, vitals, health, mirror, message=message, memory=memory))
    if "otlp" in job.environ.get("OTEL_TRACES_EXPORTER", ""):
        from supervisor.run.traces import JobTraces, are_wanted  # noqa: PLC0415 (as above)

        exporters += [JobTraces(job, message=message)] if are_wanted(job.environ) else []
    return exporters
