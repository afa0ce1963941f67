"""Finds out where a job stands on one node: by its journal, its lock and, while it runs, its heartbeats."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.manifest.documents import Manifests
from supervisor.checkpoints.recording import numerics
from supervisor.cli import alerts
from supervisor.cli.jobs.job_files import JobFiles, history_of, live_beats, progress_of, show_problems
from supervisor.core import budget
from supervisor.core.values import asdict
from supervisor.report.status_page import RankStatus, StandbyStatus, Status, StoredCheckpoint
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.core.model import Hang
    from supervisor.journal.history import History
    from supervisor.observe.ranks.heartbeats import RankHeartbeat
    from supervisor.report.status_page import AlertList


def status_of(place: JobFiles) -> Status:
    """Return where the job stands: from its journal, its lock, and while it runs from its heartbeats."""
    history, alive = history_of(place)
    show_problems(history)
    return status_from(place, history, alive)


def status_from(place: JobFiles, history: History, alive: bool | None) -> Status:  # noqa: FBT001  as `history_of` returns it
    """Return where the job stands by a history that was read, from its lock, and while it runs from its heartbeats."""
    run, end, now = history.run, history.end, time.time()
    beats = live_beats(history) if end is None else ()
    progress = progress_of(history, beats) if end is None else history.progress
    incident, decision, runs = history.open_incident, history.last_decision, alive is not False and end is None
    step_t = _step_t(beats, now)
    return Status(
        job=place.job,
        node=place.node,
        run=run.run_id if run else "",
        stage=history.stage,
        attempt=history.attempt,
        step=progress.step,
        step_relative=progress.relative,
        phase=progress.phase.value,
        ranks=_ranks(history, beats) if alive is not False else (),
        incident=incident.number if incident else None,
        incidents=history.incidents_before + len(history.incidents),
        last_decision=f"{decision.plan.kind.value}: {clean(decision.plan.reason)}" if decision else "",
        supervisor_pid=run.pid if run else 0,
        supervisor_alive=alive,
        state_dir=str(place.directory),
        exit_code=end.exit_code if end else None,
        ended=end is not None,
        numbers=_numbers(place, run.run_id) if run else "",
        left_out=max((beat.left_out for beat in beats), default=0),
        restored=clean(history.restored),
        world_size=history.world_size if history.ranks and alive is not False else 0,
        alerts=alerts.summary(place.directory, run.run_id) if run else "",
        now=now,
        since_t=history.run_t or None,
        ended_t=history.end_t or None,
        attempt_t=history.attempt_t,
        steps_per_s=_pace(history, beats, step_t) if runs and history.ranks else None,
        total_steps=max((beat.total for beat in beats if beat.total), default=None),
        step_t=step_t if runs else None,
        verified=_verified(history),
        mirrored=_mirrored(history),
        saves=clean(history.saves),
        restarts_left=_restarts_left(history, now) if runs else None,
        last_incident=history.incidents[-1] if history.incidents else None,
        gpus=history.gpus,
        findings=tuple(history.findings.values()),
        examined_t=history.examined_t,
        hang=history.hang if runs else None,
        warnings=tuple(clean(text) for text in history.warnings),
        start=history.start if history.start is not None and history.start.attempt == history.attempt else None,
        standbys=_standbys(history) if runs else None,
        missing=(history.missing, history.missing_until_t) if runs and history.missing else None,
    )


def _restarts_left(history: History, now: float) -> int:
    """Return how many restarts the budget still allows. Of a journal that is read in part the kept failures show how many were charged."""
    charged = max(history.charged, sum(failure.charged for failure in history.failures))
    return budget.restarts_left(history.failures, now, history.policy, charged)


def _ranks(history: History, beats: Sequence[RankHeartbeat]) -> tuple[RankStatus, ...]:
    by_rank = {beat.rank: beat for beat in beats}
    steps = {beat.rank: beat.step if beat.step is not None else beat.steps for beat in beats if beat.step is not None or beat.steps > 0}
    furthest = max(steps.values(), default=None)
    found = []
    for rank in history.ranks:
        beat, step = by_rank.get(rank.rank), steps.get(rank.rank)
        lag = None if step is None or furthest is None else furthest - step
        # a wrapper's child (numactl python ...) began after it; a launcher that reports in its rank's place began before
        one = beat if beat is not None and beat.start_ticks >= rank.start_ticks else rank
        phase = beat.phase.value if beat is not None else "unknown"
        found.append(RankStatus(rank.rank, rank.local_rank, one.pid, step, phase, lag, _memory_bytes(one.pid, one.start_ticks)))
    return tuple(found)


def _memory_bytes(pid: int, start_ticks: int) -> int | None:
    """Return the resident memory of a rank's process; None if it is gone, or another process has its number."""
    from supervisor.instrument._supervise_shim.layout import start_ticks_of  # noqa: PLC0415  for a job that runs

    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:  # noqa: PTH123  psutil costs 25 ms
            pages = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") if start_ticks_of(pid) == start_ticks else None


def _step_t(beats: Sequence[RankHeartbeat], now: float) -> float | None:
    """Return when the rank that is furthest behind ended its last step."""
    ended = [beat.last_step_ns for beat in beats if beat.last_step_ns is not None]
    return now - (time.monotonic_ns() - min(ended)) / 1e9 if ended else None


def _pace(history: History, beats: Sequence[RankHeartbeat], step_t: float | None) -> float | None:
    """Return the steps per second from the oldest of the newest reports until now."""
    points = list(history.pace)
    absolute = [beat.step for beat in beats if beat.step is not None]
    live = min(absolute, default=None) if absolute else min((beat.steps for beat in beats), default=None)
    if points and step_t is not None and live is not None and step_t > points[-1][0] and live >= points[-1][1]:
        points.append((step_t, live))
    if len(points) < 2 or points[-1][0] <= points[0][0]:  # noqa: PLR2004 (a distance)
        return None
    pace = (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])
    return pace if pace > 0 else None


def _verified(history: History) -> StoredCheckpoint | None:
    if history.verified is None:
        return None
    t, found = history.verified
    return StoredCheckpoint(found.path, found.shown_step, t)


def _mirrored(history: History) -> StoredCheckpoint | None:
    if history.mirrored is None:
        return None
    t, note = history.mirrored
    step = note.data.get("step")
    return StoredCheckpoint(str(note.data.get("path", "")), step if isinstance(step, int) else None, t, clean(note.text))


def _standbys(history: History) -> StandbyStatus | None:
    note = history.standbys
    if note is None:
        return None
    ready, mib, pids = (note.data.get(name) for name in ("ready", "private_mib", "pids"))
    numbers = tuple(pid for pid in pids if isinstance(pid, int)) if isinstance(pids, list) else ()
    return StandbyStatus(clean(note.text), ready if isinstance(ready, int) else 0, mib if isinstance(mib, int) else 0, numbers)


def _numbers(place: JobFiles, run: str) -> str:
    newest = numerics.last_of_run(Manifests(CheckpointCatalogue(place.directory / "checkpoints")).all(), run)
    return "" if newest is None else numerics.report(newest)


def as_dict(seen: Status) -> dict[str, Any]:
    """Return the JSON of `status --json` (docs/guides/status-why-logs.md)."""
    return {
        "job": seen.job,
        "node": seen.node,
        "run": seen.run,
        "since": seen.since_t,
        "stage": seen.stage,
        "attempt": seen.attempt,
        "attempt_since": seen.attempt_t,
        "restarts": seen.restarts,
        "restarts_left": seen.restarts_left,
        "step": seen.step,
        "step_relative": seen.step_relative,
        "total_steps": seen.total_steps,
        "steps_per_s": None if seen.steps_per_s is None else round(seen.steps_per_s, 4),
        "eta_s": None if seen.eta_s is None else round(seen.eta_s, 1),
        "last_step_age_s": None if seen.step_t is None else round(seen.now - seen.step_t, 3),
        "phase": seen.phase,
        "start": None if seen.start is None else asdict(seen.start),
        "hang": None if seen.hang is None else _hang(*seen.hang, seen.now),
        "warnings": list(seen.warnings) if seen.runs else [],
        "ranks": [
            {
                "rank": r.rank,
                "local_rank": r.local_rank,
                "pid": r.pid,
                "step": r.step,
                "phase": r.phase,
                "lag": r.lag,
                "memory_bytes": r.memory_bytes,
            }
            for r in seen.ranks
        ],
        "world_size": seen.world_size or None,
        "waits": None if seen.missing is None else {"nodes": seen.missing[0], "until": seen.missing[1]},
        "standby": None
        if seen.standbys is None
        else {
            "text": seen.standbys.text,
            "ready": seen.standbys.ready,
            "private_mib": seen.standbys.private_mib,
            "pids": list(seen.standbys.pids),
        },
        "verified": _stored(seen.verified, seen.now),
        "mirrored": _stored(seen.mirrored, seen.now),
        "saves": seen.saves or None,
        "gpus": [{"index": gpu.index, "uuid": gpu.uuid, "quarantined": gpu.quarantined or None} for gpu in seen.gpus],
        "health": [{"check": f.check, "subject": f.subject, "result": f.result, "reason": f.reason} for f in seen.findings],
        "incident": seen.incident,
        "incidents": seen.incidents,
        "last_decision": seen.last_decision or None,
        "supervisor": {"pid": seen.supervisor_pid, "alive": seen.supervisor_alive},
        "state_dir": seen.state_dir,
        "exit_code": seen.exit_code,
        "numbers": seen.numbers or None,
        "left_out": seen.left_out,
        "restored": seen.restored or None,
        "alerts": seen.alerts or None,
        **({} if seen.alert_list is None else {"alert_list": _alert_rows(seen.alert_list), "alerts_dropped": seen.alert_list.dropped}),
    }


def _alert_rows(alert_list: AlertList) -> list[dict[str, Any]]:
    return [{**asdict(alert), "answer": alert.answer or None} for alert in alert_list.alerts]


def _hang(t: float, hang: Hang, now: float) -> dict[str, Any]:
    return {"kind": hang.kind.value, "text": hang.text, "ranks": list(hang.ranks), "still_s": round(hang.still_s + now - t, 1)}


def _stored(found: StoredCheckpoint | None, now: float) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"path": found.path, "step": found.step, "age_s": round(now - found.t, 1), "mirror": found.place or None}
