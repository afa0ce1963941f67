"""Makes the samples of all metrics from the facts. Pure: a fact that is not known has no sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from health.model import WORST_FIRST, Result
from supervisor.core import budget
from supervisor.core.model import Cause, PlanKind
from supervisor.core.state import Stage
from supervisor.core.step_shares import PARTS
from supervisor.core.values import asdict
from supervisor.core.watch import loss_and_pace
from supervisor.observe.ranks.progress_sampler import REPORT_S
from supervisor.report.ledger.figures import figures_of
from supervisor.report.metrics.table import Metric
from supervisor.view.counters import NO_FAILURE, RunCounters
from supervisor.view.spans import NEWEST_SAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from supervisor.report.metrics.facts import LiveFacts, MirrorFacts
    from supervisor.view.job_view import JobView
    from supervisor.view.spans import PaceSample, RunLedger

#: The pace is that of the last reports of progress; a job that makes none for longer than the time between two slows down.
REPORTED_S = 1.5 * REPORT_S
#: Results of checks that are shown. SKIPPED: nothing of the kind is here.
_SHOWN = tuple(result for result in WORST_FIRST if result is not Result.SKIPPED)
#: Readings of a GPU: the metric, the reading's name, which part of it ("": it is a number), and what makes a base unit of it.
_GPU_READINGS = (
    (Metric.GPU_POWER, "gpu.power_mw", "", 1e-3),
    (Metric.GPU_POWER_LIMIT, "gpu.power_limit_mw", "", 1e-3),
    (Metric.GPU_TEMPERATURE, "gpu.temperature_c", "", 1.0),
    (Metric.GPU_BUSY, "gpu.busy_percent", "", 1e-2),
    (Metric.GPU_CLOCK, "gpu.clock_sm_mhz", "", 1e6),
    (Metric.GPU_ECC, "gpu.ecc_uncorrected_volatile", "", 1.0),
    (Metric.GPU_MEMORY, "gpu.memory", "total", 1.0),
    (Metric.GPU_MEMORY_USED, "gpu.memory", "used", 1.0),
)


class MetricSample(NamedTuple):
    """One value of one metric. labels: in the order of the metric's. events: how many a summary has, whose sum is `value`."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()
    events: int = 0


def samples_of(live: LiveFacts, view: JobView) -> Iterator[MetricSample]:
    """Yield every sample, those of one metric one after the other. view: of the journal."""
    is_known = view.run is not None and view.run.run_id == live.run_id  # else the file is still that of the run before
    yield MetricSample(Metric.BUILD_INFO, 1, (live.version,))
    yield MetricSample(Metric.RUN_INFO, 1, (live.run_id, live.node))
    yield from _of_the_run(live)
    if is_known:
        yield from _of_the_ledger(view.ledgers(live.now)[-1], live)
        if view.step_shares is not None and live.state.stage is Stage.RUNNING:
            yield from (
                MetricSample(Metric.STEP_TIME, share / 100, (part,)) for part, share in zip(PARTS, view.step_shares.parts, strict=True)
            )
    yield from _of_the_counters(view.counters if is_known else RunCounters())
    if live.mirror is not None:
        yield from _of_the_mirror(live.mirror)
    yield from _of_the_node(live)
    yield MetricSample(Metric.JOURNAL_DEGRADED, live.state.journal_degraded)
    yield MetricSample(Metric.MADE, live.now)


def _of_the_run(live: LiveFacts) -> Iterator[MetricSample]:
    state = live.state
    run, attempt = state.run, state.attempt
    for stage in Stage:
        yield MetricSample(Metric.STAGE, state.stage is stage, (stage.value,))
    yield MetricSample(Metric.ATTEMPT, attempt.number)
    yield MetricSample(Metric.RANKS, len(attempt.live_ranks))
    yield MetricSample(Metric.WORLD_SIZE, attempt.world_size)
    if attempt.progress.step is not None:
        yield MetricSample(Metric.STEP, attempt.progress.step)
    if live.last_progress_t is not None:
        yield MetricSample(Metric.PROGRESS, live.last_progress_t)
    yield MetricSample(Metric.HANG, attempt.hang is not None)
    yield MetricSample(Metric.WARNINGS, len(attempt.warnings))
    for held in live.memory:
        for kind, size in list(asdict(held).items())[1:]:
            if size is not None:
                yield MetricSample(Metric.RANK_MEMORY, size, (str(held.rank), kind))
    for forecast in attempt.forecasts:
        yield MetricSample(Metric.OUT_OF_MEMORY, forecast.out_t, (forecast.subject,))
    for node, rank, _ in loss_and_pace.stragglers(attempt):
        yield MetricSample(Metric.STRAGGLER, 1, (str(node), "" if rank is None else str(rank)))
    yield MetricSample(Metric.INCIDENT_OPEN, run.incident is not None)
    yield MetricSample(Metric.RESTARTS_LEFT, budget.restarts_left(run.failures, live.now, run.policy, run.charged))


def _of_the_ledger(ledger: RunLedger, live: LiveFacts) -> Iterator[MetricSample]:
    figures = figures_of([ledger], ())
    yield MetricSample(Metric.RUN_START, ledger.begin_t)
    yield MetricSample(Metric.PACE, steps_per_second(ledger.newest_samples, live.state.attempt.number, live.now))
    loss = next((sample.loss for sample in (*reversed(ledger.newest_samples), *reversed(ledger.samples)) if sample.loss is not None), None)
    if loss is not None:
        yield MetricSample(Metric.LOSS, loss)
    for state, took_s in figures.seconds.items():
        yield MetricSample(Metric.TIME, took_s, (state.value,))
    for metric, share in ((Metric.ETTR, figures.ettr), (Metric.GOODPUT, figures.goodput)):
        if share is not None:
            yield MetricSample(metric, share)


def steps_per_second(samples: Sequence[PaceSample], attempt: int, now: float) -> float:
    """Return the pace of the newest reports of an attempt, 0 where it made no step that was reported."""
    newest = [sample for sample in samples[-NEWEST_SAMPLES:] if sample.attempt == attempt]
    if not newest:
        return 0.0
    first, last = newest[0], newest[-1]
    began_t, steps = first.t, last.step - first.step
    if first.step_s is not None and first.step_s > 0:  # the steps before the first report too, of which only their pace is known
        began_t, steps = began_t - first.step_s, steps + 1
    took_s = max(last.t, now - REPORTED_S) - began_t
    return steps / took_s if steps > 0 and took_s > 0 else 0.0


def _of_the_counters(counters: RunCounters) -> Iterator[MetricSample]:
    """Yield each count, also where it is 0: Prometheus sees no increase of a series that was not there."""
    known_causes = tuple(cause.value for cause in Cause)
    for cause in dict.fromkeys((*known_causes, *NO_FAILURE, *counters.restarts)):
        yield MetricSample(Metric.RESTARTS, counters.restarts.get(cause, 0), (cause,))
    for cause in dict.fromkeys((*known_causes, *counters.incidents)):
        for action in PlanKind:
            yield MetricSample(Metric.INCIDENTS, counters.incidents.get(cause, {}).get(action.value, 0), (cause, action.value))
    yield MetricSample(Metric.RECOVERY, counters.recovery_s, events=counters.recoveries)
    yield MetricSample(Metric.CHECKPOINTS, counters.verified)
    if counters.verified_t is not None:
        yield MetricSample(Metric.CHECKPOINT_TIME, counters.verified_t)
    if counters.verified_step is not None:
        yield MetricSample(Metric.CHECKPOINT_STEP, counters.verified_step)
    if counters.mirrored_t is not None:
        yield MetricSample(Metric.MIRROR_TIME, counters.mirrored_t)


def _of_the_mirror(mirror: MirrorFacts) -> Iterator[MetricSample]:
    yield MetricSample(Metric.MIRROR_BACKLOG, mirror.backlog)
    yield MetricSample(Metric.MIRROR_BYTES, mirror.backlog_bytes)
    yield MetricSample(Metric.MIRROR_BEHIND, mirror.behind_s)
    yield MetricSample(Metric.MIRROR_FAILING, mirror.failing)


def _of_the_node(live: LiveFacts) -> Iterator[MetricSample]:
    for check, worst in sorted(live.checks.items()):
        for result in _SHOWN if worst in _SHOWN else ():
            yield MetricSample(Metric.HEALTH, worst is result, (check, result.value))
    named = {
        reading.subject: str(reading.value.get("index", ""))
        for reading in live.readings.of("gpu.identity")
        if isinstance(reading.value, dict)
    }
    for metric, name, field, unit in _GPU_READINGS:
        for reading in live.readings.of(name):
            value = reading.value.get(field) if isinstance(reading.value, dict) else reading.value
            if reading.subject in named and isinstance(value, int | float) and live.now - reading.t < live.fresh_s:
                yield MetricSample(metric, value * unit, (named[reading.subject], reading.subject.removeprefix("gpu:")))
    for gpu in live.state.gpus:
        yield MetricSample(Metric.GPU_QUARANTINED, bool(gpu.quarantined), (str(gpu.index), gpu.uuid))
