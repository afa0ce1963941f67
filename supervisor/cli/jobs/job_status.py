"""Finds out where a job is on one node: by its journal, its lock, the end of its log and, while it runs, its heartbeats."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.manifest.documents import Manifests
from supervisor.checkpoints.mirror import WAITING_TABLE
from supervisor.checkpoints.recording import numerics
from supervisor.cli.jobs import live_ranks
from supervisor.cli.jobs.job_files import JobFiles, live_beats, progress_of, show_problems, view_of
from supervisor.cli.jobs.live_gpus import LiveGpus
from supervisor.cli.jobs.live_gpus import status_of as gpu_status
from supervisor.cli.jobs.log_tail import LoggedProgress, log_tail
from supervisor.core import budget
from supervisor.core.model import Phase
from supervisor.core.numeric import rank_list
from supervisor.core.step_shares import compared
from supervisor.core.watch.memory import forecast_text
from supervisor.job import identity
from supervisor.report import kept_alerts
from supervisor.report.incident_status import incident_status
from supervisor.report.text import clean
from supervisor.view.status import (
    ForecastStatus,
    HangStatus,
    LossCurve,
    StandbyStatus,
    Status,
    StoredCheckpoint,
    SupervisorStatus,
    WaitedNodes,
    state_of,
)
from supervisor.view.step_total import step_total

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervisor.core.model import Progress
    from supervisor.core.training_events import MemoryForecast
    from supervisor.observe.ranks.heartbeats import RankHeartbeat
    from supervisor.view.job_view import JobView
    from supervisor.view.spans import PaceSample

#: Losses of a curve; of fewer in the journal than LEAST_LOSSES the log may have more.
MOST_LOSSES, LEAST_LOSSES = 60, 10
#: A loss beyond is left out, as one that is infinite: a float cannot hold the difference of two such.
_LARGEST_LOSS = 1e300
#: Phases that follow a step, or are one.
_TRAINS = frozenset({Phase.TRAIN, Phase.CHECKPOINT, Phase.EVAL})


def status_of(place: JobFiles, gpus: LiveGpus | None = None) -> Status:
    """Return the job's state. gpus: asks NVML, where the job has GPUs and runs here; None: nobody does."""
    view, alive = view_of(place)
    show_problems(view)
    return status_from(place, view, alive, gpus)


def status_from(
    place: JobFiles,
    view: JobView,
    alive: bool | None,  # noqa: FBT001  as `view_of` returns it
    gpus: LiveGpus | None = None,
    tail: LoggedProgress | None = None,
) -> Status:
    """Return the job's state by a view that was read, as `status_of`. tail: what its log showed a moment ago; None: it is read."""
    run, end, now = view.run, view.end, time.time()
    runs = alive is not False and end is None
    asked = gpus if gpus is not None and runs and view.gpus and place.node == identity.node_name() else None
    if asked is not None:
        asked.ask()
    beats = live_beats(view) if end is None else ()
    progress = progress_of(view, beats) if end is None else view.progress
    tail = log_tail_of(place, view) if tail is None else tail
    incident, decision = view.open_incident, view.last_decision
    step_age_s = live_ranks.last_step_age_s(beats) if runs else None
    pace = live_ranks.steps_per_s(view, beats, now, step_age_s) if runs and view.ranks else None
    reported = max((beat.total for beat in beats if beat.total), default=None)
    total = step_total(
        progress.step,
        is_relative=progress.relative and not _counts_from_known(view),
        reported=reported,
        count=tail.count,
        command=run.command if run else (),
    )
    catalogue = CheckpointCatalogue(place.directory / "checkpoints")
    return Status(
        job=place.job,
        node=place.node,
        run=run.run_id if run else "",
        state=state_of(view, alive=alive, trains=_trains(view, beats, progress, tail)),
        stage=view.stage,
        attempt=view.attempt,
        step=progress.step,
        step_relative=progress.relative,
        phase=progress.phase.value,
        ranks=live_ranks.rank_statuses(view, beats) if alive is not False else (),
        incident=incident.number if incident else None,
        incidents=view.incidents_before + view.incidents_unlisted + len(view.incidents),
        supervisor=SupervisorStatus(run.pid if run else 0, alive),
        state_dir=str(place.directory),
        now=now,
        drill=identity.is_drill(place.directory),
        since=view.run_t or None,
        until=view.end_t or None,
        attempt_since=view.attempt_t,
        restarts=max(0, view.attempt - 1),
        restarts_left=_restarts_left(view, now) if runs else None,
        total_steps=None if total is None else total.steps,
        total_from=None if total is None else clean(total.source),
        steps_per_s=pace,
        eta_s=round(max(0, total.steps - progress.step) / pace, 1) if total is not None and progress.step is not None and pace else None,
        last_step_age_s=None if step_age_s is None else round(step_age_s, 3),
        loss=_loss(view, tail),
        start=view.start if view.start is not None and view.start.attempt == view.attempt else None,
        hang=_hang(view, now),
        forecasts=tuple(forecast_status(forecast, now) for forecast in view.forecasts) if runs else (),
        warnings=tuple(map(clean, view.warnings)) if runs else (),
        world_size=view.world_size or None if view.ranks and alive is not False else None,
        nodes=tuple(member.partition("/")[0] for member in view.members),
        waits=WaitedNodes(view.missing, view.missing_until_t) if runs and view.missing else None,
        standby=_standby(view) if runs else None,
        saved=live_ranks.newest_save(view, now) if end is None else None,
        verified=_verified(view, now),
        mirrored=_mirrored(view, now),
        saves=clean(view.saves) or None if view.saves else None,
        waiting_uploads=_waiting_uploads(view, catalogue),
        gpus=tuple(map(gpu_status, view.gpus)) if asked is None else asked.statuses(view.gpus),
        health=tuple(view.findings.values()),
        examined=view.examined_t,
        last_incident=incident_status(view.incidents[-1], place.node) if view.incidents else None,
        last_decision=f"{decision.plan.kind.value}: {clean(decision.plan.reason)}" if decision else None,
        exit_code=end.exit_code if end else None,
        numbers=_numbers(catalogue, run.run_id) or None if run else None,
        left_out=max((beat.left_out for beat in beats), default=0),
        step_shares=(view.step_shares or compared(live_ranks.rank_shares(beats))) if runs else None,
        restored=clean(view.restored) or None if view.restored else None,
        alerts=kept_alerts.summary(place.directory, run.run_id) or None if run else None,
    )


def forecast_status(forecast: MemoryForecast, now: float) -> ForecastStatus:
    """Return a forecast as of now: less is left than when it was made."""
    text, left_s = clean(forecast_text(forecast, now)), round(max(0.0, forecast.out_t - now), 1)
    return ForecastStatus(forecast.subject, text, left_s, round(forecast.doubt_s, 1), forecast.rank, forecast.step)


def _trains(view: JobView, beats: Sequence[RankHeartbeat], progress: Progress, tail: LoggedProgress) -> bool:
    """Return whether a rank of the present attempt made a step, does what follows one, or prints its steps or its loss."""
    seen = view.time is not None and view.time.trains and view.time.begun_attempt == view.attempt
    shown = tail.count is not None or bool(tail.losses)
    return seen or shown or progress.phase in _TRAINS or any(beat.steps > 0 for beat in beats)


def _counts_from_known(view: JobView) -> bool:
    """Return whether it is known where the attempt began, from which its steps are counted."""
    given = view.resume.step if view.resume is not None else 0
    return view.time is not None and view.time.base is not None and view.time.base == given


def _restarts_left(view: JobView, now: float) -> int:
    """Return how many restarts the budget still allows. Of a journal that is read in part the kept failures show how many were charged."""
    charged = max(view.charged, sum(failure.charged for failure in view.failures))
    return budget.restarts_left(view.failures, now, view.policy, charged)


def _hang(view: JobView, now: float) -> HangStatus | None:
    held = view.hang_at_end if view.hang is None else (*view.hang, now)
    if held is None:
        return None
    t, hang, until_t = held
    where = ", ".join(filter(None, (f"{rank_list(hang.ranks)}{f' on {hang.node}' if hang.node else ''}" if hang.ranks else "", hang.code)))
    still_s = round(hang.still_s + until_t - t, 1)
    from supervisor.core.watch.hangs import why_it_goes_on  # noqa: PLC0415  the rules are needed in a hang only

    goes_on = why_it_goes_on(view.state()[0], hang, is_first=False) if view.hang is not None else ""
    done = f"the job continues: {goes_on}" if goes_on else ""
    return HangStatus(hang.kind.value, clean(hang.text), hang.ranks, still_s, clean(where), clean(hang.reason), done)


def log_tail_of(place: JobFiles, view: JobView) -> LoggedProgress:
    """Return what the log of the newest attempt shows."""
    if view.run is None:
        return LoggedProgress()
    rank = min((rank.rank for rank in view.ranks), default=0)
    return log_tail(place.directory / "attempts" / f"{view.attempt:04d}", rank)


def _loss(view: JobView, tail: LoggedProgress) -> LossCurve | None:
    """Return the newest losses: those of the journal, one a minute; of a young run those of the log."""
    rows: list[tuple[int | None, float]] = [(sample.step, sample.loss) for sample in _samples(view) if sample.loss is not None]
    source = "journal"
    if len(rows) < LEAST_LOSSES and len(tail.losses) > len(rows):
        rows, source = list(tail.losses), "log"
    rows = [row for row in rows if abs(row[1]) < _LARGEST_LOSS][-MOST_LOSSES:]  # NaN is not
    if len(rows) < 2:  # noqa: PLR2004  a curve
        return None
    return LossCurve(tuple(loss for _, loss in rows), rows[0][0], rows[-1][0], source)


def _samples(view: JobView) -> Iterable[PaceSample]:
    """Return the newest samples of the pace, the oldest first: of a long run every so many, and the last ones."""
    if view.time is None:
        return ()
    ledger = view.time.run
    kept = ledger.samples[-MOST_LOSSES:]
    last_t = kept[-1].t if kept else 0.0
    return [*kept, *(sample for sample in ledger.newest_samples if sample.t > last_t)]


def _verified(view: JobView, now: float) -> StoredCheckpoint | None:
    if view.verified is None:
        return None
    t, checkpoint = view.verified
    return StoredCheckpoint(checkpoint.path, checkpoint.shown_step, round(now - t, 1))


def _mirrored(view: JobView, now: float) -> StoredCheckpoint | None:
    if view.mirrored is None:
        return None
    t, note = view.mirrored
    step = note.data.get("step")
    return StoredCheckpoint(str(note.data.get("path", "")), step if isinstance(step, int) else None, round(now - t, 1), clean(note.text))


def _waiting_uploads(view: JobView, catalogue: CheckpointCatalogue) -> int:
    return catalogue.count(WAITING_TABLE) if view.saves or view.mirrored is not None else 0


def _standby(view: JobView) -> StandbyStatus | None:
    note = view.standbys
    if note is None:
        return None
    ready, mib, pids = (note.data.get(name) for name in ("ready", "private_mib", "pids"))
    numbers = tuple(pid for pid in pids if isinstance(pid, int)) if isinstance(pids, list) else ()
    return StandbyStatus(clean(note.text), ready if isinstance(ready, int) else 0, mib if isinstance(mib, int) else 0, numbers)


def _numbers(catalogue: CheckpointCatalogue, run: str) -> str:
    newest = numerics.last_of_run(Manifests(catalogue).all(), run)
    return "" if newest is None else numerics.report(newest)
