"""From facts to the page that Prometheus reads: names, units, labels, and no sample of an unknown fact."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from health.model import Readings
from supervisor.core.model import Cause
from supervisor.core.state import JobState, Stage
from supervisor.report.metrics.exposition import Samples, exposition
from supervisor.report.metrics.facts import LiveFacts
from supervisor.report.metrics.samples import samples_of, steps_per_second
from supervisor.report.metrics.table import JOB, Metric
from supervisor.view.job_view import JobView
from supervisor.view.spans import PaceSample, TimeState
from tests.report.metrics.facts import NOW, T0, UUID, live, readings, recorded

#: A summary has two samples.
SUFFIXES = {"supervise_recovery_seconds": ("_sum", "_count")}
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def page(facts: LiveFacts, journal: JobView) -> Series:
    """Return what Prometheus's own parser reads, without the label of the job."""
    text = exposition(Samples(samples_of(facts, journal), facts.job)).decode()
    series: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels.pop(JOB) == "bert"
            key = sample.name, frozenset(sample.labels.items())
            assert key not in series, f"twice: {key}"
            series[key] = sample.value
    return series


def value(series: Series, name: str, **labels: str) -> float:
    return series[f"supervise_{name}", frozenset(labels.items())]


def test_a_run_of_which_all_is_known_has_every_metric_with_its_labels_and_no_other() -> None:
    series = page(live(), recorded())
    wanted = {name: metric for metric in Metric for name in (metric + part for part in SUFFIXES.get(metric, ("",)))}
    assert {name for name, _ in series} == set(wanted)
    for name, labels in series:
        assert {label for label, _ in labels} == set(wanted[name].labels), name


def test_its_values_are_in_base_units() -> None:
    series = page(live(), recorded())
    gpu = {"gpu": "3", "uuid": UUID}
    assert value(series, "gpu_power_watts", **gpu) == 350
    assert value(series, "gpu_utilization_ratio", **gpu) == 0.97
    assert value(series, "gpu_sm_clock_hertz", **gpu) == 1.98e9
    assert value(series, "gpu_memory_used_bytes", **gpu) == 20 << 30
    assert value(series, "gpu_quarantined", **gpu) == 1
    assert value(series, "stage", stage="running") == 1
    assert value(series, "stage", stage="waiting") == 0
    assert (value(series, "step"), value(series, "loss"), value(series, "hang")) == (1200, 2.25, 1)
    assert value(series, "restarts_total", cause="cuda_oom") == 1
    assert value(series, "incidents_total", cause="cuda_oom", action="stop") == 0
    assert (value(series, "recovery_seconds_sum"), value(series, "recovery_seconds_count")) == (7.5, 1)
    assert value(series, "checkpoint_last_verified_timestamp_seconds") == NOW - 60
    assert (value(series, "mirror_backlog_checkpoints"), value(series, "mirror_backlog_bytes")) == (2, 1 << 30)
    assert value(series, "health_check_status", check="gpu_ecc", result="failed") == 1
    assert value(series, "health_check_status", check="gpu_ecc", result="ok") == 0
    assert not [labels for name, labels in series if name == "supervise_health_check_status" and ("check", "gpu_nvlink") in labels]


def test_the_time_states_add_up_to_the_wall_clock() -> None:
    series = page(live(), recorded())
    seconds = {dict(labels)["state"]: took_s for (name, labels), took_s in series.items() if name == "supervise_time_seconds"}
    assert set(seconds) == {state.value for state in TimeState}
    assert math.isclose(sum(seconds.values()), NOW - T0)
    assert (value(series, "ettr_ratio"), value(series, "goodput_ratio")) == (0.6, 0.6)


def test_an_unknown_value_has_no_sample() -> None:
    before = LiveFacts(NOW, "bert", "run-1", "gpu-7", "1", JobState())
    names = {name.removeprefix("supervise_") for name, _ in page(before, JobView())}
    assert {"stage", "restarts_total", "incidents_total", "metrics_timestamp_seconds"} <= names
    unknown = {"step", "loss", "last_progress_timestamp_seconds", "time_seconds", "ettr_ratio", "run_start_timestamp_seconds"}
    unknown |= {"checkpoint_last_verified_timestamp_seconds", "mirror_backlog_bytes", "health_check_status", "gpu_power_watts"}
    assert not unknown & names


def test_a_count_of_nothing_is_zero_and_not_missing() -> None:
    series = page(live(), JobView())
    causes = {dict(labels)["cause"] for name, labels in series if name == "supervise_restarts_total"}
    assert causes == {cause.value for cause in Cause} | {"membership", "takeover"}


def test_readings_that_are_old_are_not_shown() -> None:
    old = replace(live(), readings=readings(NOW - 91))
    assert not [name for name, _ in page(old, recorded()) if name.startswith("supervise_gpu_") and name != "supervise_gpu_quarantined"]
    assert not [name for name, _ in page(replace(live(), readings=Readings()), recorded()) if name == "supervise_gpu_power_watts"]


def test_the_number_of_series_is_bounded() -> None:
    assert len(page(live(), recorded())) < 300


@pytest.mark.parametrize("metric", Metric, ids=str)
def test_a_name_says_its_unit_and_kind(metric: Metric) -> None:
    assert re.fullmatch(r"supervise(_[a-z0-9]+)+", metric)
    assert (metric.kind == "counter") == metric.endswith("_total")
    assert not re.search(r"percent|_ms\b|milli|_mw\b|_mib\b|minutes|hours", metric)
    assert not {"job", "instance", "le", "quantile"} & set(metric.labels), "Prometheus's own labels"


@pytest.mark.parametrize(
    ("samples", "pace"),
    [
        ([], 0.0),
        ([PaceSample(NOW - 5, 2, 100, 0.5)], 2.0),
        ([PaceSample(NOW - 15, 2, 100, 0.5), PaceSample(NOW - 5, 2, 120, 0.5)], 21 / 10.5),
        ([PaceSample(NOW - 80, 1, 100, 0.1), PaceSample(NOW - 5, 2, 60, 0.5)], 2.0),
    ],
    ids=["no report", "one", "two", "an attempt before"],
)
def test_the_pace_is_that_of_the_attempts_last_reports(samples: list[PaceSample], pace: float) -> None:
    assert steps_per_second(samples, 2, NOW) == pytest.approx(pace)


def test_the_pace_of_a_job_that_stands_still_falls() -> None:
    samples = [PaceSample(NOW - 15, 2, 100, 0.5), PaceSample(NOW - 5, 2, 120, 0.5)]
    assert steps_per_second(samples, 2, NOW + 10) == pytest.approx(2.0)
    assert steps_per_second(samples, 2, NOW + 600) < 0.04


def test_every_stage_is_there_exactly_once() -> None:
    series = page(live(), recorded())
    assert sum(on for (name, _), on in series.items() if name == "supervise_stage") == 1
    assert len([name for name, _ in series if name == "supervise_stage"]) == len(Stage)
