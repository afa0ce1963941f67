"""What a run does with its mirrors at its two ends: when they are asked, what is reported, and that nothing else waits."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest
import torch

from checkpointing.io.tree import ReadOptions
from checkpointing.manifest import check
from checkpointing.manifest.documents import About, encode
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.mirror.source import TransferControl
from checkpointing.verification import verify
from supervisor.checkpoints.job import JobCheckpoints
from supervisor.checkpoints.mirror import restore_process
from supervisor.checkpoints.mirror import session as checkpoint_mirror
from supervisor.checkpoints.mirror.restore_process import RestoreAnswer
from supervisor.config.settings import Checkpoints, Settings
from supervisor.core.model import RankInfo
from supervisor.core.values import replace
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job.job import Job
from tests.checkpointing.mirror.process import upload, waiting
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from checkpointing.manifest.documents import Manifest
    from supervisor.checkpoints.recording.reports import CheckpointReport

NOTHING = RestoreAnswer("nothing")


def ignore(_report: CheckpointReport) -> None:
    """Nobody reads these reports."""


@pytest.fixture
def checkpoints(tmp_path: Path) -> JobCheckpoints:
    """Those of a job that declares *.pt."""
    for name in ("state", "here"):
        (tmp_path / name).mkdir()
    settings = dataclasses.replace(Settings(), checkpoints=Checkpoints(paths=("*.pt",)))
    return JobCheckpoints(
        Job("train", "run-1", "node", ("true",), tmp_path / "here", {}, settings, tmp_path / "state", tmp_path, "cookie"), ignore
    )


def test_the_mirrors_are_asked_where_nothing_here_is_good(checkpoints: JobCheckpoints, tmp_path: Path) -> None:
    listed: list[str] = []

    def ask(restore: Callable[[], RestoreAnswer]) -> checkpoint_mirror.MirrorAnswer | None:
        return checkpoint_mirror.ask(checkpoints, restore, lambda _took: listed.append("once"))

    assert ask(lambda: NOTHING) == checkpoint_mirror.MirrorAnswer(NOTHING, none_good=False)
    assert listed == [], "nothing lies here"
    path = tmp_path / "here" / "step_10.pt"
    torch.save({"step": 10, "w": torch.ones(4096)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000])
    assert ask(lambda: NOTHING) == checkpoint_mirror.MirrorAnswer(NOTHING, none_good=True)
    (tmp_path / "here" / "step_5.pt").write_bytes(whole)
    assert ask(lambda: pytest.fail("one is good")) is None
    assert listed == ["once"], "the catalogue is new"


def saved(path: Path, step: int) -> None:
    torch.save({"step": step, "w": torch.ones(64)}, path)


class Sent:
    """What the mirror gets: names of checkpoints."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def send(self, manifest: Manifest) -> None:
        """Take one."""
        self.names.append(manifest.path.rpartition("/")[2])

    def is_sending(self, _path: str, _content: str) -> bool:
        """Nothing waits."""
        return False

    def held_paths(self) -> dict[str, frozenset[str]]:
        """No mirror holds anything."""
        return {}

    def whole_saves(self) -> frozenset[str]:
        """No node has a part of a save."""
        return frozenset()


def sent(checkpoints: JobCheckpoints, *, has_rank_0: bool | None = True) -> list[str]:
    """Let the watcher look once; return the names of what is to be sent."""
    names: list[str] = []
    watcher = checkpoints.watcher(checkpoints.mirror_feed(Sent(names), lambda: has_rank_0), lambda: has_rank_0)
    assert watcher is not None
    watcher.start()
    assert watcher.finish(PATIENCE_S)
    return names


def test_a_new_checkpoint_without_a_hook_is_sent_by_the_node_of_rank_0(tmp_path: Path, checkpoints: JobCheckpoints) -> None:
    here = tmp_path / "here"
    saved(here / "step_1.pt", 1)
    checkpoints.note_before()
    assert sent(checkpoints) == [], "it lay there before"
    saved(here / "step_2.pt", 2)
    assert sent(checkpoints, has_rank_0=False) == [], "another node's"
    assert sent(checkpoints, has_rank_0=None) == [], "no rank is known yet"
    assert sent(checkpoints) == ["step_2.pt"]


def test_a_checkpoint_that_one_run_could_not_send_is_new_to_the_next(tmp_path: Path, checkpoints: JobCheckpoints) -> None:
    here = tmp_path / "here"
    saved(here / "step_1.pt", 1)
    checkpoints.note_before()
    saved(here / "step_2.pt", 2)
    job = checkpoints._job  # noqa: SLF001 -- the same job once more
    second = JobCheckpoints(replace(job, run_id="run-2"), ignore)
    second.note_before()
    assert sent(second) == ["step_2.pt"]
    third = JobCheckpoints(replace(job, run_id="run-3"), ignore)
    third.note_before()
    saved(here / "step_3.pt", 3)
    third.restored(str(here / "step_3.pt"), 0)
    assert sent(third) == [], "it came from a mirror"


class Mode(enum.Enum):
    """What a script may save, and what is called to be loaded."""

    WARM = 1


def test_a_new_checkpoint_in_a_declared_place_is_this_jobs_own(tmp_path: Path, checkpoints: JobCheckpoints) -> None:
    planted, later = tmp_path / "here" / "step_1.pt", tmp_path / "here" / "step_2.pt"
    torch.save({"step": 1, "mode": Mode.WARM}, planted)
    event = checkpoints.select(1.0, 1)
    assert [path for path, _ in event.dangerous] == [str(planted)], "it lay there before"
    assert ("Mode" in event.dangerous[0][1], event.torn, event.n_found) == (True, (), 1), "it is whole"
    torch.save({"step": 2, "mode": Mode.WARM}, later)  # no hook saw it
    torch.save({"step": 2, "mode": Mode.WARM}, tmp_path / "other.pt")
    chosen = checkpoints.select(2.0, 2).chosen
    assert chosen is not None
    assert chosen.path == str(later)
    assert not checkpoints.records.provenance.trusts(str(tmp_path / "other.pt"))
    again = JobCheckpoints(checkpoints._job, ignore)  # noqa: SLF001 -- a takeover
    chosen = again.select(3.0, 2).chosen
    assert chosen is not None
    assert chosen.path == str(later)


@pytest.mark.parametrize("made_by", ["another engineer", "an attacker"])
def test_a_person_who_trusts_the_declared_checkpoints_resumes_from_calls_that_are_not_listed(
    tmp_path: Path, checkpoints: JobCheckpoints, made_by: str
) -> None:
    path = tmp_path / "here" / "step_1.pt"
    torch.save({"step": 1, "mode": Mode.WARM if made_by == "another engineer" else os.system}, path)
    assert [dangerous_path for dangerous_path, _ in checkpoints.select(1.0, 0).dangerous] == [str(path)], "fenced, too"
    job = checkpoints._job  # noqa: SLF001 -- the same job, started again
    checkpoints = dataclasses.replace(job.settings.checkpoints, trusted=True)
    trusting = replace(job, settings=dataclasses.replace(job.settings, checkpoints=checkpoints))
    again = JobCheckpoints(trusting, ignore)
    event = again.select(2.0, 0)
    if made_by == "another engineer":
        assert (event.chosen is not None, event.dangerous) == (True, ()), event
    else:
        assert "system" in event.dangerous[0][1]
    (tmp_path / "other.pt").write_bytes(path.read_bytes())
    assert not again.records.provenance.trusts(str(tmp_path / "other.pt")), "not declared"


def log_save(job: Job, path: Path, device: int | None = None) -> None:
    """Write what the hooks in a rank write of a save of attempt 1."""
    st = path.stat()
    row = {"path": str(path), "t": 1.0, "n": 1}
    now = [st.st_dev if device is None else device, st.st_ino, st.st_size, st.st_mtime_ns]
    lines = [{**row, "what": "began", "was": None}, {**row, "what": "ended", "now": now, "well": True}]
    job.attempt_dir(1).mkdir(parents=True, exist_ok=True)
    (job.attempt_dir(1) / f"saves-{path.stem}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("by", ["another path", "the same path"])
def test_the_last_checkpoint_of_a_run_is_none_that_another_job_saved_to_the_same_directory(
    tmp_path: Path, checkpoints: JobCheckpoints, by: str
) -> None:
    checkpoints.select(1.0, 0)
    checkpoints.began(1)
    here = tmp_path / "here"
    mine, theirs = here / "step_2.pt", here / "step_9.pt"
    for path in (mine, theirs) if by == "the same path" else (mine,):
        saved(path, 2)
        log_save(checkpoints._job, path)  # noqa: SLF001 -- its ranks write there
    checkpoints.records.absorb()
    saved(theirs, 9)
    os.utime(theirs, ns=(time.time_ns(), time.time_ns()))  # within one tick of the clock it would be the same file
    for path in (mine, theirs):  # as the watcher does
        manifest = checkpoints.recorder.record_verified(verify(str(path)), ReadOptions())
        assert manifest is not None
        assert manifest.about.run == "run-1", "by its time it is of this run"
        checkpoints.recorder.note_newest(manifest)
        checkpoints.recorder.note_checkpoint(str(path))
    last = checkpoints.last_recorded()
    assert last is not None
    assert last.path == str(here / "step_2.pt")


@pytest.mark.parametrize(("job", "usable"), [("train", True), ("another", False)])
def test_a_checkpoint_of_this_job_in_a_mirror_is_its_own(tmp_path: Path, checkpoints: JobCheckpoints, job: str, *, usable: bool) -> None:
    path = tmp_path / "here" / "step_1.pt"
    torch.save({"step": 1, "mode": Mode.WARM}, path)
    mirror = str(tmp_path / "mirror")
    (tmp_path / "mirror").mkdir()
    manifest = check.build(verify(str(path), own=True), About(job, "run-0"), reading=ReadOptions())
    entry = waiting(str(path), encode(manifest))
    upload(open_backend(mirror), entry, TransferControl())
    path.unlink()
    settings = dataclasses.replace(checkpoints._job.settings, checkpoints=Checkpoints(paths=("*.pt",), mirror=(mirror,), restore_from=job))  # noqa: SLF001 -- the same job
    here = JobCheckpoints(replace(checkpoints._job, settings=settings, environ=dict(os.environ)), ignore)  # noqa: SLF001 -- as above
    answer = restore_process.restore(here._job, lambda _text: None)  # noqa: SLF001 -- as above
    assert answer.kind == "restored", answer
    here.restored(answer.path, answer.began, answer.manifest)
    assert (here.select(1.0, 1).chosen is not None) == usable


@pytest.mark.parametrize(
    ("ranks", "environ", "is_torchrun", "expected"),
    [
        ((), {}, True, None),
        ((RankInfo(0, 0, 1, 1), RankInfo(1, 1, 2, 2)), {}, True, True),
        ((RankInfo(2, 0, 1, 1),), {"RANK": "0"}, True, False),
        ((), {}, False, True),
        ((), {"SLURM_PROCID": "3"}, False, False),
        ((), {"RANK": "0", "SLURM_PROCID": "3"}, False, True),
    ],
)
def test_the_node_of_rank_0(ranks: tuple[RankInfo, ...], environ: dict[str, str], *, is_torchrun: bool, expected: bool | None) -> None:
    assert checkpoint_mirror.has_rank_0(ranks, environ, is_torchrun=is_torchrun) is expected


def test_only_who_has_nothing_is_ended_by_a_mirror_that_gives_nothing() -> None:
    lines: list[str] = []
    refused = RestoreAnswer("unreachable", message="no answer")
    checkpoint_mirror.report(checkpoint_mirror.MirrorAnswer(refused, none_good=True), lines.append)
    assert lines == ["none of the checkpoints on this disk is good, and none could be restored: no answer"]
    with pytest.raises(SuperviseError, match="no checkpoint on this disk") as raised:
        checkpoint_mirror.report(checkpoint_mirror.MirrorAnswer(refused, none_good=False), lines.append)
    assert raised.value.exit_code == ExitCode.REQUEUE
    checkpoint_mirror.report(
        checkpoint_mirror.MirrorAnswer(RestoreAnswer("restored", "/a.pt", 3, "file:/m", 10), none_good=True), lines.append
    )
    checkpoint_mirror.report(
        checkpoint_mirror.MirrorAnswer(RestoreAnswer("restored", "/a.pt", 3, "file:/m", 0), none_good=False), lines.append
    )
    assert lines[1:] == [
        "restored /a.pt of step 3 from file:/m: none on this disk is good",
        "/a.pt of step 3 is here already, whole and the same as in file:/m: nothing was downloaded",
    ]
    with pytest.raises(SuperviseError) as raised:
        checkpoint_mirror.report(
            checkpoint_mirror.MirrorAnswer(RestoreAnswer("elsewhere", message="not this job's"), none_good=False), lines.append
        )
    assert raised.value.exit_code == ExitCode.CONFIG


def test_a_newer_copy_that_was_passed_over_is_reported_and_recorded() -> None:
    lines: list[str] = []
    answer = RestoreAnswer(
        "restored",
        "/a.pt",
        100,
        "s3://b",
        10,
        passed_over=(("s3://b/job/run/attempt-1/step-120/0123456789ab/", "the copy is damaged: part 2"),),
    )
    checkpoint_mirror.report(checkpoint_mirror.MirrorAnswer(answer, none_good=False), lines.append)
    assert lines[0] == "passed over in the mirror: s3://b/job/run/attempt-1/step-120/0123456789ab/: the copy is damaged: part 2"
    note = checkpoint_mirror.note(answer)
    assert note.text == "a.pt from s3://b; passed over: step-120/0123456789ab: the copy is damaged: part 2"
    assert note.data["passed_over"] == [["s3://b/job/run/attempt-1/step-120/0123456789ab/", "the copy is damaged: part 2"]]


def test_the_first_signal_shortens_the_wait_at_the_end_and_the_second_ends_it() -> None:
    received, lines, beats = [15], list[str](), list[int]()
    wait = checkpoint_mirror.EndWait(600.0, lambda signum: {2: 30.0, 15: 20.0}[signum], received, lines.append, lambda: beats.append(1))
    assert 599 < wait.left_s() <= 600, "a signal from before is not counted again"
    assert wait.look("sending")
    assert (lines, beats) == ([], [1])
    received.append(2)
    assert wait.look("sending")
    assert 29 < wait.left_s() <= 30
    assert lines == ["sending; waits 30 s more, another signal ends that"]
    received.append(15)
    assert not wait.look("sending")
    assert wait.left_s() == 0
    soon = checkpoint_mirror.EndWait(5.0, lambda _signum: 30.0, received, lines.append, lambda: None)
    received.append(15)
    assert soon.left_s() <= 5, "a signal never gives it more time"


def test_others_are_served_and_a_stop_is_obeyed_during_a_restore() -> None:
    begun, released, stopped = threading.Event(), threading.Event(), threading.Event()

    def work() -> int:
        begun.set()
        assert released.wait(PATIENCE_S)
        return 7

    assert checkpoint_mirror.run_beside(work, released.set, stopped) == 7
    released.clear()
    begun.clear()
    assert checkpoint_mirror.run_beside(work, stopped.set, stopped) is None
    assert begun.wait(PATIENCE_S)
    released.set()
    with pytest.raises(ValueError, match="no"):
        checkpoint_mirror.run_beside(lambda: int("no"), released.set, threading.Event())
