"""The supervisor's side of the mirror's process: what was asked of it outlives its death, and is not given up at the end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from typing import TYPE_CHECKING, Any, cast

import pytest

from checkpointing.manifest import documents
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.mirror.spool import Spool
from checkpointing.model import Identity
from supervisor.checkpoints.mirror import restore_process
from supervisor.checkpoints.mirror.process import MirrorLink
from supervisor.config.settings import Settings
from supervisor.core.values import replace
from supervisor.job.job import Job
from supervisor.journal.records import MIRRORED, Note
from supervisor.report.mirror_report import MirrorReport
from tests.checkpointing.mirror.process import ROOT, save
from tests.checkpointing.mirror.test_joining import OTHER, SAVE, Nodes
from tests.support import node_parts
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from checkpointing.mirror.messages import MirrorEvent
    from supervisor.core.actions import Alert
    from supervisor.report.event_log import EventLog
    from supervisor.report.reporter import Reporter

pytestmark = pytest.mark.process


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
def linked(job: Job) -> Iterator[tuple[MirrorLink, list[Mapping[str, Any]]]]:
    events: list[Mapping[str, Any]] = []
    link = MirrorLink(job, events.append)
    link.start()
    try:
        yield link, events
    finally:
        link.close(0.0)


def test_a_process_that_was_killed_is_started_again_and_brings_what_was_asked(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "ckpt" / "step_1.pt"
    described = documents.read(str(save(path, 1 << 20, 1)))
    with linked(job) as (link, events):
        wait_for(lambda: any(row["ev"] == "ready" for row in events), "the process")
        process = link._process  # noqa: SLF001 -- whom to kill
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)  # it is asked, and dies before it can hold it
        link.send(described)
        assert link.is_sending(str(path), "any")
        os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: any(row["ev"] == "uploaded" for row in events), "the upload by the next process")
        assert [(row["code"], row["wait_s"]) for row in events if row["ev"] == "died"] == [(-signal.SIGKILL, 1.0)]
        wait_for(lambda: not link.is_sending(str(path), next(row["id"] for row in events if row["ev"] == "uploaded")), "the spool")
        assert link.close(20.0) == 0


def test_of_two_saves_to_one_path_the_second_waits_until_it_is_held_too(job: Job) -> None:
    link = MirrorLink(job, lambda _row: None)
    last = documents.Manifest("last", is_tree=False, layout="torch_zip", files=(), path="/ckpt/last", identity=Identity(1, 2, 3, 4), step=1)
    for _ in range(2):
        link.send(last)
    assert link.backlog() == (1, 0), "one path"
    for row in ({"ev": "spooled"}, {"ev": "alert", "what": "dropped"}):
        link._note({**row, "path": "/ckpt/last"})  # type: ignore[typeddict-item, arg-type]  # noqa: SLF001  of the first, from the process
        assert link.is_sending("/ckpt/last", "none")
    link._note({"ev": "spooled", "path": "/ckpt/last"})  # type: ignore[typeddict-item]  # noqa: SLF001  as above
    assert not link.is_sending("/ckpt/last", "none")


def test_a_process_that_dies_as_the_run_ends_is_started_once_more_to_bring_the_rest(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "ckpt" / "step_1.pt"
    described = documents.read(str(save(path, 1 << 20, 1)))
    with linked(job) as (link, events):
        wait_for(lambda: any(row["ev"] == "ready" for row in events), "the process")
        process = link._process  # noqa: SLF001 -- whom to kill
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        link.send(described)
        os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: any(row["ev"] == "died" for row in events), "it is known to be dead, and the next one waits a second")
        assert link.close(30.0) == 0
        assert [row["ev"] for row in events if row["ev"] == "uploaded"] == ["uploaded"]


def test_a_configuration_that_is_none_is_not_tried_again(job: Job) -> None:
    wrong = dataclasses.replace(job.settings, checkpoints=dataclasses.replace(job.settings.checkpoints, mirror=("ftp://nowhere",)))
    with linked(replace(job, settings=wrong)) as (link, events):
        wait_for(lambda: not link._thread.is_alive(), "the end of it")  # noqa: SLF001 -- what must not go on
        assert [row["what"] for row in events if row["ev"] == "alert"] == ["refused"]
        assert not any(row["ev"] == "died" for row in events)


def test_a_spool_that_a_predecessor_still_holds_is_waited_for(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "ckpt" / "step_1.pt"
    described = documents.read(str(save(path, 1000, 1)))
    held = Spool(str(job.state / "spool"))
    with linked(job) as (link, events):
        link.send(described)
        wait_for(lambda: link._n_held > 0, "a start that meets the other process")  # noqa: SLF001 -- no event reports it
        held.close()
        wait_for(lambda: any(row["ev"] == "uploaded" for row in events), "the upload by the next process")
        assert not any(row["ev"] in {"alert", "died", "recovered"} for row in events)
        assert link.close(20.0) == 0


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
    news.took({"ev": "alert", "what": "away", "mirror": "s3://b", "message": "no answer", "hint": ""})
    news.waited(900.0)
    assert len(heard.alerts) == 3, "the reason was reported already"
    row = {"path": "ckpt/9.pt", "step": 9, "id": "x", "key": "k", "bytes": 1, "sent": 1, "seconds": 0.1}
    news.took(cast("MirrorEvent", {"ev": "uploaded", "mirror": "s3://b", **row}))
    assert noted == [Note(MIRRORED, "s3://b", {"path": "ckpt/9.pt", "step": 9})]


def test_how_long_a_checkpoint_waits_is_known_from_the_asking_until_bytes_move(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "ckpt" / "step_1.pt"
    described = documents.read(str(save(path, 1000, 1)))
    with linked(job) as (link, events):
        wait_for(lambda: any(row["ev"] == "ready" for row in events), "the process")
        process = link._process  # noqa: SLF001 -- whom to stop
        assert process is not None
        assert (link.waits_s(), link.behind_s()) == (0, 0)
        os.kill(process.pid, signal.SIGSTOP)
        link.send(described)
        wait_for(lambda: link.waits_s() > 0.2, "the time that it waits")
        assert link.behind_s() > 0.2
        os.kill(process.pid, signal.SIGCONT)
        wait_for(lambda: any(row["ev"] == "uploaded" for row in events), "the upload")
        wait_for(lambda: link.waits_s() == link.behind_s() == 0, "nothing that waits")
        link.send(dataclasses.replace(described, path=str(tmp_path / "gone.pt")))
        wait_for(lambda: any(row.get("what") == "refused" for row in events), "the refusal")
        assert link.waits_s() == 0, "nobody waits for what was refused"


def test_a_node_that_sent_its_part_first_learns_with_its_next_one_that_the_mirror_has_the_whole(job: Job, tmp_path: Path) -> None:
    backend = open_backend(str(tmp_path / "mirror"))
    with linked(job) as (link, events):
        for n_sent, save_name in ((1, SAVE), (2, OTHER)):
            home = tmp_path / save_name
            nodes = Nodes(home, node_parts.save_whole(home / "whole" / "step_40", seed=n_sent), backend, save_name)
            link.send(nodes.part(0))
            wait_for(lambda n=n_sent: [row["key"] for row in events if row["ev"] == "uploaded"] == [""] * n, "the part")  # type: ignore[misc]
            if n_sent == 1:
                assert nodes.send(1)
                assert not link.whole_saves()
        wait_for(link.whole_saves, "the news of the first save")
        assert link.whole_saves() == {f"job/nodes/step_40-{SAVE}/"}
