"""The settings of [metrics]. Part of the tree in settings.py."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.core.setting_columns import setting


@dataclass(frozen=True, slots=True)
class MetricsSection:
    """[metrics]: how Prometheus gets the metrics of a run (docs/guides/monitoring.md)."""

    listen: str = setting(
        "",
        "Serve metrics for Prometheus at this port of the loopback interface, or at ADDRESS:PORT.",
        "`9409` can be reached from this node only, `0.0.0.0:9409` or `[::]:9409` from everywhere. There is no password: "
        "[what can be seen](monitoring.md#who-can-read-them).",
        env="SUPERVISE_METRICS",
    )
    textfile_dir: str = setting(
        "",
        "Write metrics into this directory of node_exporter's textfile collector.",
        "The file is `supervise-JOB.prom`, written every 15 s and removed at the end.",
    )

    @property
    def is_used(self) -> bool:
        """Whether there are metrics: what makes them is imported only then."""
        return bool(self.listen or self.textfile_dir)
