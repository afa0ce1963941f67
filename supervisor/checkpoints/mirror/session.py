"""Asks the mirrors before a run's first attempt, and waits for their uploads after its last one.

Both take as long as a disk and a network need. The first runs in a thread, while the caller renews its lease and handles signals.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from checkpointing.io.background_call import BackgroundCall
from checkpointing.io.read_watch import DiskSilent
from checkpointing.mirror import keys
from supervisor.checkpoints.mirror import restore_process
from supervisor.checkpoints.mirror.uploads import mirrors
from supervisor.core.units import bytes_text, span_text
from supervisor.errors import ExitCode, SuperviseError
from supervisor.journal.records import RESTORED, Note

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from supervisor.checkpoints.job import JobCheckpoints
    from supervisor.checkpoints.mirror.uploads import MirrorUploads
    from supervisor.checkpoints.recording.reader_link import ReaderLink
    from supervisor.checkpoints.recording.watcher import CheckpointWatcher
    from supervisor.core.model import RankInfo
    from supervisor.job.job import Job

_LOOK_S: Final = 0.2
SAY_EVERY_S: Final = 30.0
#: Enough for a look of the watcher at known files. It gets more if the run's end leaves time.
_LEAST_S: Final = 0.5
_CONFIG: Final = frozenset({"other_job", "in_the_way", "elsewhere"})

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MirrorAnswer:
    """The mirrors' answer. `none_good`: there are checkpoints on this disk, and none of them is good."""

    answer: restore_process.RestoreAnswer
    none_good: bool


def ask(
    checkpoints: JobCheckpoints,
    restore: Callable[[], restore_process.RestoreAnswer],
    list_manifests: Callable[[Callable[[restore_process.MirrorManifest], None]], None],
) -> MirrorAnswer | None:
    """Ask the mirrors if no checkpoint on this disk is good; return None if one is, or may be. Reads files.

    `list_manifests` passes on what the mirrors hold, for a catalogue that was lost, or is new, where checkpoints lie here.
    """
    try:
        listing = checkpoints.listing()
        if listing.candidates and checkpoints.records.is_catalogue_new:
            rows: list[restore_process.MirrorManifest] = []
            list_manifests(rows.append)
            checkpoints.take_over(rows)
        checkpoints.note_before()
    except DiskSilent:  # the selection meets it as well, and reports it
        return None
    if listing.problems or (listing.candidates and checkpoints.has_good()):
        return None
    return MirrorAnswer(restore(), bool(listing.candidates))


def note(answer: restore_process.RestoreAnswer) -> Note:
    """Return the record of a restore before the first attempt, and of the checkpoints passed over, for `status` and `why`."""
    name = answer.path.rpartition("/")[2]
    text = f"{name} from {answer.mirror}" if answer.kind == "restored" else f"no checkpoint: {answer.message or 'it had none of this job'}"
    if answer.passed_over:
        key, why = answer.passed_over[0]
        more = f" and {len(answer.passed_over) - 1} more" if len(answer.passed_over) > 1 else ""
        # `status` has two lines for it; the data has all
        text += f"; passed over: {keys.short_name(key)}: {why.replace(key, '')}{more}"
    rows = [list(row) for row in answer.passed_over]
    data = {"outcome": answer.kind, "path": answer.path, "step": answer.step, "mirror": answer.mirror, "passed_over": rows}
    return Note(RESTORED, text, data)


def report(asked: MirrorAnswer, say: Callable[[str], None]) -> None:
    """Report the answer, by `say`. Raises SuperviseError if nothing was restored and this disk has no checkpoint."""
    answer = asked.answer
    for key, why in answer.passed_over:
        say(f"passed over in the mirror: {key}: {why}")
    if answer.kind == "restored":
        step = "" if answer.step is None else f" of step {answer.step}"
        why = "none on this disk is good" if asked.none_good else "there was no checkpoint on this disk"
        text = f"restored {answer.path}{step} from {answer.mirror}: {why}"
        say(
            text
            if answer.bytes
            else f"{answer.path}{step} is here already, whole and the same as in {answer.mirror}: nothing was downloaded"
        )
    elif answer.kind != "nothing" and asked.none_good:
        say(f"none of the checkpoints on this disk is good, and none could be restored: {answer.message}")  # the selection says which
    elif answer.kind != "nothing":
        raise SuperviseError(
            f"no checkpoint on this disk, and none could be restored: {answer.message}",
            hint=answer.hint or "without --mirror the training starts from scratch",
            exit_code=ExitCode.CONFIG if answer.kind in _CONFIG else ExitCode.REQUEUE,
        )


def run_beside(work: Callable[[], T], meanwhile: Callable[[], None], given_up: threading.Event) -> T | None:
    """Do `work` in a thread and `meanwhile` until it ends. Return its result, or None once it is given up; raise its exception."""
    background = BackgroundCall(work, "restore")
    while not background.done.wait(_LOOK_S):
        if given_up.is_set():
            return None
        meanwhile()
    return background.result()


def has_rank_0(ranks: Sequence[RankInfo], environ: Mapping[str, str], *, is_torchrun: bool) -> bool | None:
    """Return whether global rank 0 is among a node's ranks; None while none is known.

    A plain command is one known process; its environment holds its rank.
    """
    if not is_torchrun:
        number = environ.get("RANK") or environ.get("SLURM_PROCID") or environ.get("OMPI_COMM_WORLD_RANK") or "0"
        return number == "0"
    return any(rank.rank == 0 for rank in ranks) if ranks else None


def opening_lines(job: Job, *, several_nodes: bool = False) -> list[str]:
    """Return the lines for the start: the uploads and their targets."""
    patterns = ", ".join(job.settings.checkpoints.paths)
    declared = f"{patterns} and " if patterns else ""
    place = f"{', '.join(mirrors(job.settings))}, below {job.name}/{job.run_id}/"
    alone = (
        [f"only the node of rank 0 sends what matches {patterns} and is not saved through torch, safetensors.torch or DCP"]
        if several_nodes and patterns
        else []
    )
    return [f"to be mirrored to {place}: {declared}what the script is seen to save and to load as a checkpoint", *alone]


class EndWait:
    """How long the end of a run may wait for its last checkpoints. The first signal shortens it, the second ends it."""

    def __init__(
        self,
        left_s: float,
        shortened_s: Callable[[int], float],
        received: Sequence[int],
        say: Callable[[str], None],
        beat: Callable[[], None],
    ) -> None:
        """`shortened_s`: the seconds that are left after a signal. `received` grows with each. `beat` is called all the while."""
        self._until = time.monotonic() + left_s
        self._shortened_s, self._received, self._n_known = shortened_s, received, len(received)
        self._say, self._beat = say, beat
        self._is_shortened = False
        self._say_at = time.monotonic() + SAY_EVERY_S

    def left_s(self) -> float:
        """Return the seconds that are left."""
        news = self._received[self._n_known :]
        self._n_known += len(news)
        for signum in news:
            left_s = 0.0 if self._is_shortened else self._shortened_s(signum)
            self._until, self._is_shortened = min(self._until, time.monotonic() + left_s), True
            self._say_at = 0.0
        return max(0.0, self._until - time.monotonic())

    def look(self, subject: str) -> bool:
        """Name the awaited work now and then. Return whether there is time left."""
        self._beat()
        left_s = self.left_s()
        if left_s and time.monotonic() >= self._say_at:
            self._say_at = time.monotonic() + SAY_EVERY_S
            how = "another signal ends that" if self._is_shortened else "a signal shortens that"
            self._say(f"{subject}; waits {span_text(left_s)} more, {how}")
        return left_s > 0


def finish(
    link: ReaderLink,
    mirror: MirrorUploads | None,
    watcher: CheckpointWatcher | None,
    wait: EndWait,
    say: Callable[[str], None],
) -> bool:
    """Verify the last saves, and let the mirror send them. Report the unsent ones. Return whether all was verified."""
    all_verified = True
    if watcher is not None:
        all_verified = watcher.finish(_LEAST_S)
        while not all_verified and wait.look("reading the last checkpoint"):
            all_verified = watcher.finish(_LOOK_S)
        all_verified = all_verified or watcher.finish(0.0)  # it may have ended during the last look
        if not all_verified and mirror is not None:
            say("the last checkpoint was not verified in time and is not in the mirror: the next start of the job sends it")
        watcher.stop(0.1)
    if mirror is None:
        link.close(0.0)
        return all_verified
    link.finish(wait.left_s())
    while not link.has_finished() and wait.look(_sending(*mirror.backlog())):
        time.sleep(_LOOK_S)
    link.close(0.0)
    if left := mirror.backlog()[0]:
        kept = f"{left} checkpoint(s) are" if left > 1 else "1 checkpoint is"
        say(f"{kept} not in the mirror yet, and kept for the next start, which sends what waits")
    return all_verified


def _sending(n_checkpoints: int, n_bytes: int) -> str:
    many = "the last checkpoint" if n_checkpoints <= 1 else f"the last {n_checkpoints} checkpoints"
    return f"sending {many} to the mirror: {bytes_text(n_bytes)} left"
