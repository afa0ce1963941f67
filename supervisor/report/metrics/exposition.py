"""Writes samples in Prometheus's text format 0.0.4, by prometheus_client: the one place where it is imported."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest, write_to_textfile
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from supervisor.report.metrics.table import JOB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from prometheus_client.metrics_core import Metric as MetricFamily

    from supervisor.report.metrics.samples import MetricSample

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
#: node_exporter runs as another user.
_MODE: Final = 0o644


class Samples(Collector):
    """Samples of one job at one moment, as a collector. Those of one metric follow each other."""

    def __init__(self, samples: Iterable[MetricSample], job: str) -> None:
        self._samples, self._job = samples, job

    def collect(self) -> Iterator[MetricFamily]:
        """Yield a family for each metric."""
        for metric, samples in groupby(self._samples, key=lambda sample: sample.metric):
            names = (JOB, *metric.labels)
            if metric.kind == "summary":
                summary = SummaryMetricFamily(metric.value, metric.help, labels=names)
                for sample in samples:
                    summary.add_metric((self._job, *sample.labels), sample.events, sample.value)
                yield summary
                continue
            family: CounterMetricFamily | GaugeMetricFamily = (
                CounterMetricFamily(metric.value, metric.help, labels=names)
                if metric.kind == "counter"
                else GaugeMetricFamily(metric.value, metric.help, labels=names)
            )
            for sample in samples:
                family.add_metric((self._job, *sample.labels), float(sample.value))
            yield family


def exposition(samples: Samples) -> bytes:
    """Return the page that a scraper gets."""
    return generate_latest(samples)


def write_textfile(path: Path, samples: Samples) -> None:
    """Replace node_exporter's file by a whole one. Its name ends in `.prom` last, when everybody may read it. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    write_to_textfile(str(new), samples)
    new.chmod(_MODE)  # whatever the umask is
    new.replace(path)
