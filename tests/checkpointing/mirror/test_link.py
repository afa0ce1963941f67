"""The supervisor's side of the reader process: what was asked of it outlives its death, and is not given up at the end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
import torch

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.manifest import documents
from checkpointing.mirror import keys
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.reader.messages import CheckpointUploaded, MirrorAlert, ReadCheckpoint
from supervisor.checkpoints.mirror import restore_process
from supervisor.checkpoints.mirror.uploads import MirrorUploads
from supervisor.checkpoints.recording import reader_link
from supervisor.config.settings import Settings
from supervisor.core.values import replace
from supervisor.job.job import Job
from supervisor.journal.records import MIRRORED, Note
from supervisor.report.mirror_report import MirrorReport
from tests.checkpointing.mirror.process import ROOT, save
from tests.checkpointing.mirror.test_joining import OTHER, SAVE, Nodes
from tests.support import forked_popen, node_parts
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from supervisor.core.actions import Alert
    from supervisor.report.event_log import EventLog
    from supervisor.report.reporter import Reporter

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    forked_popen.use_forks(monkeypatch)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    for name in ("state", "scratch", "mirror"):
        (tmp_path / name).mkdir()
    base = Settings()
    settings = dataclasses.replace(base, checkpoints=dataclasses.replace(base.checkpoints, mirror=(str(tmp_path / "mirror"),)))
    return Job(
        "train", "run-1", "node", ("true",), tmp_path, dict(os.environ), settings, tmp_path / "state", tmp_path / "scratch", "cookie"
    )


@contextlib.contextmanager
def linked(job: Job) -> Iterator[tuple[MirrorUploads, list[Mapping[str, Any]]]]:
    events: list[Mapping[str, Any]] = []
    catalogue = CheckpointCatalogue(job.state / "checkpoints", is_writer=True)
    failures: list[Exception] = []
    uploads = MirrorUploads(job, catalogue, lambda event: events.append(msgspec.to_builtins(event)), failures.append)
    uploads.link.start()
    try:
        yield uploads, events
    finally:
        uploads.close(0.0)
    assert failures == []


def test_a_process_that_was_killed_is_started_again_and_brings_what_was_asked(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "ckpt" / "step_1.pt"
    described = documents.read(str(save(path, 1 << 20, 1)))
    with linked(job) as (uploads, events):
        wait_for(lambda: any(row["ev"] == "ready" for row in events), "the process")
        process = uploads.link.process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)  # it is asked, and dies before it can hold it
        uploads.send(described)
        assert uploads.is_sending(str(path), keys.nonce_of(described))
        os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: any(row["ev"] == "uploaded" for row in events), "the upload by the next process")
        assert [(row["code"], row["wait_s"]) for row in events if row["ev"] == "died"] == [(-signal.SIGKILL, 1.0)]
        assert not uploads.is_sending(str(path), keys.nonce_of(described))
        assert uploads.close(20.0) == 0


def test_a_waiting_upload_outlives_the_supervisor_and_the_removal_of_its_file(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "ckpt" / "step_1.pt"
    described, mirror = documents.read(str(save(path, 1 << 20, 1))), tmp_path / "mirror"
    content = path.read_bytes()
    mirror.rmdir()
    with linked(job) as (uploads, events):
        uploads.send(described)
        wait_for(lambda: any(row["ev"] == "alert" for row in events), "the mirror is not there")
        assert uploads.close(0.0) == 1
    path.unlink()
    mirror.mkdir()
    (job.state / "checkpoints" / "pins" / "left").mkdir()
    with linked(job) as (uploads, events):
        assert uploads.backlog() == (1, 1 << 20)
        assert not (job.state / "checkpoints" / "pins" / "left").exists(), "pins without a row are what a kill left"
        wait_for(lambda: any(row["ev"] == "uploaded" for row in events), "the upload by the next supervisor's process")
        assert uploads.close(20.0) == 0
    [data] = mirror.rglob("data/step_1.pt")
    assert data.read_bytes() == content
    assert not list((job.state / "checkpoints" / "pins").iterdir())


def test_a_process_that_dies_as_the_run_ends_is_started_once_more_to_bring_the_rest(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "ckpt" / "step_1.pt"
    described = documents.read(str(save(path, 1 << 20, 1)))
    with linked(job) as (uploads, events):
        wait_for(lambda: any(row["ev"] == "ready" for row in events), "the process")
        process = uploads.link.process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        uploads.send(described)
        os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: any(row["ev"] == "died" for row in events), "it is known to be dead, and the next one waits a second")
        assert uploads.close(30.0) == 0
        assert [row["ev"] for row in events if row["ev"] == "uploaded"] == ["uploaded"]


def test_the_pause_after_a_death_ends_with_the_training_since_a_person_waits_then(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_link, "FIRST_WAIT_S", 600.0)
    path = tmp_path / "step_1.pt"
    torch.save({"step": 1}, path)
    with linked(job) as (uploads, events):
        wait_for(lambda: any(row["ev"] == "ready" for row in events), "the process")
        process = uploads.link.process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: any(row["ev"] == "died" for row in events), "it is known to be dead, and the next one waits ten minutes")
        assert [row["wait_s"] for row in events if row["ev"] == "died"] == [600.0]
        uploads.link.lift()
        answer = uploads.link.read(ReadCheckpoint(0, str(path), own=True), threading.Event())
        assert answer.manifest


def test_a_mirror_that_is_none_is_refused_once_and_checkpoints_are_read_all_the_same(job: Job, tmp_path: Path) -> None:
    wrong = dataclasses.replace(job.settings, checkpoints=dataclasses.replace(job.settings.checkpoints, mirror=("ftp://nowhere",)))
    torch.save({"step": 1}, tmp_path / "step_1.pt")
    with linked(replace(job, settings=wrong)) as (uploads, events):
        answer = uploads.link.read(ReadCheckpoint(0, str(tmp_path / "step_1.pt")), threading.Event())
        assert (answer.verification is not None, bool(answer.manifest)) == (True, True)
        assert [row["what"] for row in events if row["ev"] == "alert"] == ["refused"]
        assert not any(row["ev"] == "died" for row in events)


def test_a_process_that_cannot_begin_says_why(job: Job, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "tenacity.py").write_text("raise ImportError('no such library')\n")
    environ = {**job.environ, "PYTHONPATH": f"{broken}{os.pathsep}{ROOT}"}
    with linked(replace(job, environ=environ)) as (_, events):
        wait_for(lambda: any(row["ev"] == "died" for row in events), "its end")
        died = next(row for row in events if row["ev"] == "died")
        assert (died["code"], died["last_line"]) == (1, "ImportError: no such library")
    answer = restore_process.restore(replace(job, environ=environ), lambda _line: None)
    assert (answer.kind, answer.message) == ("failed", "the process that restores ended with 1: ImportError: no such library")


class Heard:
    """What a person hears, and the log."""

    def __init__(self) -> None:
        self.alerts: list[tuple[str, str]] = []

    def alerted(self, alert: Alert) -> None:
        """Take an alert."""
        self.alerts.append((alert.kind, alert.text))

    def write(self, *_args: object, **_fields: object) -> None:
        """Nobody reads it."""


def test_a_checkpoint_that_waits_while_nothing_moves_is_an_alert_once() -> None:
    heard = Heard()
    noted: list[Note] = []
    news = MirrorReport(cast("Reporter", heard), cast("EventLog", heard), lambda: 1, noted.append)
    for seconds in (0.0, 599.0, 600.0, 700.0):
        news.waited(seconds)
    assert [kind for kind, _ in heard.alerts] == ["mirror_failing"]
    assert "has waited for 10 minutes to be uploaded, and no byte is sent" in heard.alerts[0][1]
    news.waited(3.0)
    assert [kind for kind, _ in heard.alerts] == ["mirror_failing", "mirror_recovered"]
    news.took(MirrorAlert("away", "s3://b", "no answer", ""))
    news.waited(900.0)
    assert len(heard.alerts) == 3, "the reason was reported already"
    news.took(CheckpointUploaded("ckpt/9.pt", 9, "x", "s3://b", "k", 1, 1, 0.1, 0, 0))
    assert noted == [Note(MIRRORED, "s3://b", {"path": "ckpt/9.pt", "step": 9})]


def test_how_long_a_checkpoint_waits_is_known_from_the_asking_until_bytes_move(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "ckpt" / "step_1.pt"
    described = documents.read(str(save(path, 1000, 1)))
    with linked(job) as (uploads, events):
        wait_for(lambda: any(row["ev"] == "ready" for row in events), "the process")
        process = uploads.link.process
        assert process is not None
        assert (uploads.waits_s(), uploads.behind_s()) == (0, 0)
        os.kill(process.pid, signal.SIGSTOP)
        uploads.send(described)
        wait_for(lambda: uploads.waits_s() > 0.2, "the time that it waits")
        assert uploads.behind_s() > 0.2
        os.kill(process.pid, signal.SIGCONT)
        wait_for(lambda: any(row["ev"] == "uploaded" for row in events), "the upload")
        wait_for(lambda: uploads.waits_s() == uploads.behind_s() == 0, "nothing that waits")
        uploads.send(dataclasses.replace(described, path=str(tmp_path / "gone.pt")))
        assert any(row.get("what") == "refused" for row in events)
        assert uploads.waits_s() == 0, "nobody waits for what was refused"


def test_a_node_that_sent_its_part_first_learns_with_its_next_one_or_at_the_end_that_the_mirror_has_the_whole(
    job: Job, tmp_path: Path
) -> None:
    backend, url = open_backend(str(tmp_path / "mirror")), str(tmp_path / "mirror")
    with linked(job) as (uploads, events):
        for n_sent, save_name in ((1, SAVE), (2, OTHER)):
            home = tmp_path / save_name
            nodes = Nodes(home, node_parts.save_whole(home / "whole" / "step_40", seed=n_sent), backend, save_name)
            part = nodes.part(0)
            uploads.send(part)
            wait_for(lambda n=n_sent: [row["key"] for row in events if row["ev"] == "uploaded"] == [""] * n, "the part")  # type: ignore[misc]
            if n_sent == 1:
                assert nodes.send(1)
                assert not uploads.whole_saves()
        wait_for(uploads.whole_saves, "the news of the first save")
        assert uploads.whole_saves() == {f"job/nodes/parts/step-40/{SAVE}/"}
        held = {part.path.replace(OTHER, SAVE)}
        assert uploads.held_paths() == {url: held}, "the count of saves in the mirror has it"
        assert nodes.send(1)
        assert uploads.close(30) == 0
        wait_for(lambda: uploads.held_paths() == {url: held | {part.path}}, "the news of the last save")
