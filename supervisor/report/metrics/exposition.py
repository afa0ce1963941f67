"""Writes samples in Prometheus's text format 0.0.4, by prometheus_client: the one place where it is imported."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from supervisor.report.metrics.table import JOB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric as MetricFamily

    from supervisor.report.metrics.samples import MetricSample

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4


class _Samples(Collector):
    """A collector of samples that are there already."""

    def __init__(self, samples: Iterable[MetricSample], job: str) -> None:
        self._samples, self._job = samples, job

    def collect(self) -> Iterator[MetricFamily]:
        """Yield a family for each metric."""
        for metric, samples in groupby(self._samples, key=lambda sample: sample.metric):
            names = (JOB, *metric.labels)
            if metric.kind == "summary":
                summary = SummaryMetricFamily(metric.value, metric.help, labels=names)
                for one in samples:
                    summary.add_metric((self._job, *one.labels), one.events, one.value)
                yield summary
                continue
            family: CounterMetricFamily | GaugeMetricFamily = (
                CounterMetricFamily(metric.value, metric.help, labels=names)
                if metric.kind == "counter"
                else GaugeMetricFamily(metric.value, metric.help, labels=names)
            )
            for one in samples:
                family.add_metric((self._job, *one.labels), float(one.value))
            yield family


def exposition(samples: Iterable[MetricSample], job: str) -> bytes:
    """Return the page that a scraper gets. Samples of one metric follow each other."""
    return generate_latest(_Samples(samples, job))
