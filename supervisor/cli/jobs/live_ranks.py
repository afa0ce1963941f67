"""Reads the living ranks of this node: their heartbeats, their processes, and the log of their saves."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from supervisor.core.step_shares import PARTS
from supervisor.core.values import replace
from supervisor.job import identity
from supervisor.observe.ranks.step_parts import shares_of
from supervisor.view.status import RankStatus, StoredCheckpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.core.step_shares import RankShares
    from supervisor.observe.ranks.heartbeats import RankHeartbeat
    from supervisor.view.job_view import JobView

#: A rank that made no step for this long is asked for the reason of its wait.
_STILL_S = 5.0
#: The bytes to read at the end of a log of saves; a row has some 200 bytes.
_SAVES_BYTES = 4096


def rank_statuses(view: JobView, beats: Sequence[RankHeartbeat]) -> tuple[RankStatus, ...]:
    """Return the place of each rank of this node; without a heartbeat only that its process lives."""
    by_rank = {beat.rank: beat for beat in beats}
    steps = {beat.rank: beat.step if beat.step is not None else beat.steps for beat in beats if beat.step is not None or beat.steps > 0}
    furthest = max(steps.values(), default=None)
    now_ns, statuses = time.monotonic_ns(), []
    for rank in view.ranks:
        beat, step = by_rank.get(rank.rank), steps.get(rank.rank)
        lag = None if step is None or furthest is None else furthest - step
        # a wrapper's child (numactl python ...) began after it; a launcher that reports in its rank's place began before
        process = beat if beat is not None and beat.start_ticks >= rank.start_ticks else rank
        phase = beat.phase.value if beat is not None else "unknown"
        phase_s = round((now_ns - beat.phase_since_ns) / 1e9, 3) if beat is not None and beat.phase_since_ns else None
        memory_bytes = _memory_bytes(process.pid, process.start_ticks)
        moved_ns = max(beat.last_step_ns or 0, beat.life_ns or 0, beat.phase_since_ns) if beat is not None else now_ns
        waits = _waits(view, rank.rank, process.pid) if memory_bytes and (now_ns - moved_ns) / 1e9 > _STILL_S else None
        shares = rank_shares((beat,) if beat is not None else ()).get(rank.rank)
        parts = None if shares is None else {name: round(share) for name, share in zip(PARTS, shares.parts, strict=True) if round(share)}
        status = RankStatus(rank.rank, rank.local_rank, process.pid, step, phase, lag, memory_bytes, phase_s, waits, parts)
        statuses.append(status if beat is None else _with_memory(status, beat))
    return tuple(statuses)


def _with_memory(status: RankStatus, beat: RankHeartbeat) -> RankStatus:
    """Return a rank's status with what torch tells of its memory."""
    gpu, status = beat.gpu_memory, replace(status, pinned_bytes=beat.pinned)
    if gpu is None:
        return status
    return replace(
        status,
        gpu_allocated_bytes=gpu.allocated,
        gpu_reserved_bytes=gpu.reserved,
        gpu_peak_bytes=gpu.peak,
        gpu_split_bytes=gpu.split,
        gpu_limit_bytes=gpu.limit,
    )


def rank_shares(beats: Sequence[RankHeartbeat]) -> dict[int, RankShares]:
    """Return where the time of each rank went since its training began; no entry where too little of it is known."""
    shares = {beat.rank: shares_of(beat.parts) for beat in beats if beat.parts is not None}
    return {rank: row for rank, row in shares.items() if row is not None}


def _waits(view: JobView, rank: int, pid: int) -> str | None:
    """Return what a rank waits for: a file, as the kernel shows it; or in a hang the ranks that do not come."""
    from supervisor.observe.hangs import procfs  # noqa: PLC0415  for ranks that stand still

    wait = procfs.waits(pid)
    if wait.file is not None:
        name = wait.file.path.rpartition("/")[2] or wait.file.path  # `--stacks` has all of it
        return f"{wait.file.call} of {name}" + (f" ({wait.file.fs_type})" if wait.file.fs_type else "")
    if wait.state in {"T", "t"}:
        return "a signal to continue: it is stopped"
    if wait.state == "D":
        return "a disk or a driver"
    culprits = view.hang[1].ranks if view.hang is not None else ()
    if not culprits or rank in culprits:
        return None
    from supervisor.core.numeric import rank_list  # noqa: PLC0415  in a hang

    return rank_list(culprits)


def _memory_bytes(pid: int, start_ticks: int) -> int | None:
    """Return the resident memory of a rank's process; None if it is gone, or another process has its number."""
    from supervisor.instrument._supervise_shim.layout import start_ticks_of  # noqa: PLC0415  for a job that runs

    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:  # noqa: PTH123  psutil costs 25 ms
            pages = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") if start_ticks_of(pid) == start_ticks else None


def last_step_age_s(beats: Sequence[RankHeartbeat]) -> float | None:
    """Return how long ago the rank that is furthest behind ended its last step; None: it ended none."""
    ended = [beat.last_step_ns for beat in beats if beat.last_step_ns is not None]
    return max(0.0, (time.monotonic_ns() - min(ended)) / 1e9) if ended else None


def steps_per_s(view: JobView, beats: Sequence[RankHeartbeat], now: float, step_age_s: float | None) -> float | None:
    """Return the steps per second from the oldest of the newest reports until now; 0 while the ranks hang, None: not known."""
    if view.hang is not None:
        return 0.0
    points = list(view.pace)
    absolute = [beat.step for beat in beats if beat.step is not None]
    live = min(absolute, default=None) if absolute else min((beat.steps for beat in beats), default=None)
    step_t = None if step_age_s is None else now - step_age_s
    if points and step_t is not None and live is not None and step_t > points[-1][0] and live >= points[-1][1]:
        points.append((step_t, live))
    if len(points) < 2 or points[-1][0] <= points[0][0]:  # noqa: PLR2004 (a distance)
        return None
    pace = (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])
    return round(pace, 4) if pace > 0 else None


def newest_save(view: JobView, now: float) -> StoredCheckpoint | None:
    """Return what a rank of this node saved last in the present attempt, whole or not yet verified; None: nothing was seen."""
    if view.run is None or not view.run.scratch:
        return None
    from checkpointing.step_names import worded_step_in  # noqa: PLC0415  for a job that runs
    from supervisor.observe.ranks import save_logs  # noqa: PLC0415  as above
    from supervisor.observe.ranks.path_patterns import checkpoint_path, pattern_of  # noqa: PLC0415  as above

    known = None if view.verified is None else pattern_of(view.verified[1].path)
    newest: tuple[float, str] | None = None
    for file in identity.attempt_dir(view.run.scratch, view.attempt).glob("saves-*.jsonl"):
        try:
            data = file.read_bytes()
        except OSError:
            continue
        for row in save_logs.rows(data[-_SAVES_BYTES:]):
            path = checkpoint_path(row["path"])
            is_saved = row.get("what") == "renamed" or (row.get("what") == "ended" and row.get("well"))
            if is_saved and (known is None or pattern_of(path) == known):
                newest = max(newest or (row["t"], path), (row["t"], path))
    if newest is None:
        return None
    return StoredCheckpoint(newest[1], worded_step_in(newest[1].rpartition("/")[2]), round(max(0.0, now - newest[0]), 1))
