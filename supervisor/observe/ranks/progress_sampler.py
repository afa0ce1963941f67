"""Turns the heartbeats of the running attempt into progress events. The job's progress is that of its slowest rank.

Shared memory gives no notice of a change, so the loop's tick reads it. ProgressObserved is posted at the first step, at a change of phase,
at the last step, and else 10, 20, 40 and 80 s after the first step and then once a minute, because each is a record in the journal.
StartCeilingPassed, ProgramSeen,
SaveOnRequestSeen and Saved are posted once; ProgramSeen comes before the end of a rank. An unreadable file changes nothing.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

from supervisor.core.events import ProgramSeen, ProgressObserved, Saved, SaveOnRequestSeen, StartCeilingPassed
from supervisor.core.model import Phase
from supervisor.core.values import astuple, replace
from supervisor.instrument._supervise_shim import layout
from supervisor.instrument._supervise_shim.layout import start_ticks_of
from supervisor.observe.ranks import error_files, save_logs
from supervisor.observe.ranks.path_patterns import checkpoint_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from supervisor.core.events import Event
    from supervisor.core.model import CheckpointRef, RankInfo, RankMemory
    from supervisor.core.step_shares import StepShares
    from supervisor.observe.ranks.heartbeats import RankHeartbeat

REPORT_S = 60.0
#: After the first step a report comes this soon: a job that was just started is watched.
FIRST_REPORT_S = 10.0
#: Ranks without a heartbeat for this long after their start are reported once as uninstrumented: imports on a slow disk take minutes.
START_CEILING_S = 600.0
#: So many ranks a report has with what they hold of the memory, and only where a figure changed by this share since the last that had.
MOST_RANKS, CHANGED = 4, 0.1
#: A phase that changes with every step (train, checkpoint, train) is posted this often at most.
PHASE_S = 1.0


class ProgressSampler:
    """Watches one attempt at a time. Its methods are called one at a time."""

    def __init__(  # noqa: PLR0913, PLR0917 (what else a report has)
        self,
        post: Callable[[Event], None],
        ceiling_s: float,
        is_ours: Callable[[str], bool] = lambda _: True,
        loss: Callable[[], float | None] = lambda: None,
        memory: Callable[[], tuple[RankMemory, ...]] = lambda: (),
        shares: Callable[[], StepShares | None] = lambda: None,
    ) -> None:
        """Take where to post, how long ranks may be silent, whether a path lies where this job's checkpoints are.

        loss: returns the newest loss. memory: what each rank holds, the worst first. shares: where a step goes.
        """
        self._post, self._loss, self._memory, self._shares = post, loss, memory, shares
        self._is_ours = is_ours
        self._ceiling_s = ceiling_s

    def watch(self, attempt: int, directory: Path, t: float, resume: CheckpointRef | None) -> None:
        """Begin with a new attempt whose files are in `directory`."""
        self._attempt, self._directory, self._began, self._resume = attempt, directory, t, resume
        self._posted: ProgressObserved | None = None
        self._posted_memory: tuple[RankMemory, ...] = ()
        self._posted_shares: StepShares | None = None
        self._first_t = t  # of the newest report that showed a first step
        self._ceiling_posted = self._program_sought = self._program_posted = self._asking_posted = self._saved_posted = False

    def sample(self, t: float, ranks: Sequence[RankInfo], beats: Sequence[RankHeartbeat], *, last: bool = False) -> None:
        """Take a sample of the heartbeats and post the news. The `last` sample before the attempt's end posts every new step."""
        self._post_silence(t, ranks, beats)
        seen = [beat for beat in beats if beat.pid]
        if last or any(beat.steps > 0 for beat in seen):
            self._post_program(t, last=last)
        if not seen:
            return
        self._post_saves(t, seen)
        slowest = min(seen, key=lambda beat: max(beat.steps, 0))
        steps = min(max(beat.steps, 0) for beat in seen)
        absolute = [beat.step for beat in seen if beat.step is not None]
        firsts = [beat.first_step for beat in seen if beat.first_step is not None]
        totals = [beat.total for beat in seen if beat.total is not None]
        phase, first_step, total = Phase(slowest.phase), min(firsts, default=None), max(totals, default=None)
        now = ProgressObserved(t, self._attempt, min(absolute, default=None), steps, phase, first_step=first_step, total=total)
        posted = self._posted
        first = posted is None or (steps > 0 and posted.steps_seen < 1) or now.first_step != posted.first_step or _is_second(now, posted)
        changed = posted is not None and now.phase != posted.phase and t - posted.t >= PHASE_S
        is_further = posted is not None and (now.step, steps) != (posted.step, posted.steps_seen)
        due = posted is not None and is_further and (last or t - posted.t >= self._pause_s(posted))
        if first:
            self._first_t = t
        if first or changed or due:
            loaded, read = self._loaded()
            shares = self._shares()
            is_news = shares is not None and (self._posted_shares is None or shares.differs(self._posted_shares))
            self._posted_shares = shares if is_news else self._posted_shares
            self._posted = replace(
                now,
                loaded=loaded,
                read=read,
                loss=_shown(self._loss()),
                time_shares=shares if is_news else None,
                memory=self._changed_memory(),
            )
            self._post(self._posted)

    def _changed_memory(self) -> tuple[RankMemory, ...]:
        """Return the ranks that hold most; () where that is about the same as in the last report: a job reports all day."""
        newest = self._memory()[:MOST_RANKS]
        if _is_alike(newest, self._posted_memory):
            return ()
        self._posted_memory = newest
        return newest

    def _pause_s(self, posted: ProgressObserved) -> float:
        """Return how long after this report the next one is due."""
        return min(REPORT_S, max(FIRST_REPORT_S, posted.t - self._first_t))

    def _post_program(self, t: float, *, last: bool) -> None:
        """Post what the ranks wrote of the framework: at the first step, or with the exception that came before it."""
        if self._program_posted or (self._program_sought and not last):
            return
        self._program_sought = True
        reported_program = error_files.programs(self._directory)
        if reported_program is not None:
            self._program_posted = True
            self._post(ProgramSeen(t, self._attempt, reported_program.programs, reported_program.values, reported_program.batchnorm))

    def _post_saves(self, t: float, beats: Sequence[RankHeartbeat]) -> None:
        """Post that the script saves on request, and that it has saved."""
        asking = [beat for beat in beats if beat.asks]
        if asking and not self._asking_posted:
            self._asking_posted = True
            self._post(SaveOnRequestSeen(t, self._attempt))
        if not self._saved_posted and is_saved(asking):
            self._saved_posted = True
            self._post(Saved(t, self._attempt))

    def _post_silence(self, t: float, ranks: Sequence[RankInfo], beats: Sequence[RankHeartbeat]) -> None:
        if self._ceiling_posted or not ranks or t - self._began < self._ceiling_s:
            return
        self._ceiling_posted = True
        present = {beat.rank for beat in beats if beat.pid}
        silent = tuple(info.rank for info in ranks if info.rank not in present)
        if silent:
            self._post(StartCeilingPassed(t, self._attempt, silent))

    def _loaded(self) -> tuple[str | None, str | None]:
        """The checkpoint of this job that a rank loaded before it trained, or a file of it, and the last other file that one loaded.

        The checkpoint that the attempt resumes from if it is among them, else the last one.
        """
        paths = loads(self._directory)
        units = [checkpoint_path(path) for path in paths]
        resumed = self._resume.path if self._resume is not None else ""
        if resumed and (resumed in {*paths, *units} or any(path.startswith(resumed + "/") for path in paths)):
            return resumed, None
        of_job = [unit for unit in units if self._is_ours(unit)]
        others = [unit for unit in units if unit not in of_job]
        return of_job[-1] if of_job else None, others[-1] if others else None


def _is_alike(newest: Sequence[RankMemory], before: Sequence[RankMemory]) -> bool:
    """Return whether the same ranks hold about the same."""
    now, then = ({rank.rank: astuple(rank)[1:] for rank in ranks} for ranks in (newest, before))
    pairs = [pair for rank in now for pair in zip(now[rank], then.get(rank, ()), strict=False)]
    return now.keys() == then.keys() and all(a == b or (a and b and abs(a - b) < CHANGED * max(a, b)) for a, b in pairs)


def _shown(loss: float | None) -> float | None:
    """Return a loss with as many digits as a float of 32 bits has: it is recorded once a minute."""
    return None if loss is None else float(f"{loss:.7g}")


def _is_second(now: ProgressObserved, posted: ProgressObserved) -> bool:
    """Whether only the script's own step shows that a first step was made: it continued from the one with which it began."""
    return now.steps_seen < 1 and posted.step is not None and posted.step == now.first_step and now.step != posted.step


def is_saved(asking: Sequence[RankHeartbeat]) -> bool:
    """Return whether the requested checkpoint is saved, as far as this node's ranks that poll for requests can show.

    Each of them continued after the request (or is gone), and one saw its save end. On a node without rank 0 none need have saved: often
    only rank 0 saves, and in a synchronous training the others reach their next poll only together with it.
    """
    if not any(beat.save_asked for beat in asking):
        return False
    saved = any(beat.saved for beat in asking) or all(beat.rank > 0 for beat in asking)
    return saved and all(beat.went_on or start_ticks_of(beat.pid) != beat.start_ticks for beat in asking)


def loads(directory: Path, *, complete: bool = True) -> list[str]:
    """Return the paths that ranks loaded before they trained in this attempt, in the order of each rank's file.

    complete: False for those whose load failed.
    """
    return [path for paths in loads_of_ranks(directory, complete=complete) for path in paths]


def loads_of_ranks(directory: Path, *, complete: bool = True) -> list[list[str]]:
    """Return for each rank the paths that it loaded before it trained in this attempt, in their order; after a link, where it led then.

    A load that failed does not count, and a later load is an evaluation's. Nor does what a rank of this attempt had saved: the other ranks
    get their first weights so (torch's DDP tutorial).
    """
    ranks: list[list[dict[str, Any]]] = []
    for file in sorted(directory.glob("loads-*.jsonl")):
        ranks.append([])
        for row in _rows(file):
            with contextlib.suppress(ValueError, TypeError):
                if row.get("complete", True) is complete and layout.loads_first(row.get("via", ""), int(row.get("steps", 0))):
                    ranks[-1].append(row)
    saved: dict[str, float] = {}
    for file in sorted(directory.glob("saves-*.jsonl")) if any(ranks) else ():
        for row in _rows(file):
            saved[row["path"]] = min(row["t"], saved.get(row["path"], math.inf))
    return [[path for row in rows if row["t"] <= saved.get(row["path"], math.inf) for path in _names(row)] for rows in ranks]


def _names(row: dict[str, Any]) -> tuple[str, ...]:
    target = row.get("target")
    return (row["path"], target) if isinstance(target, str) else (row["path"],)


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(OSError):
        yield from save_logs.rows(file.read_bytes())
