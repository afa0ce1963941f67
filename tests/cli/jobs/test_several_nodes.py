# ruff: noqa: ANN401  values as a command takes and prints them
"""`supervise why` and `report` of a job whose nodes share the state directory: each incident once, with what every node has of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.cli.jobs.report import report
from supervisor.cli.jobs.status import status
from supervisor.cli.jobs.why import why
from supervisor.core.events import AttemptEnded, EvidenceCollected, LauncherExited
from supervisor.core.model import Cause, Claim, Evidence
from supervisor.core.training_events import PaceChanged
from supervisor.errors import SuperviseError
from supervisor.job import identity
from tests.cli.jobs.several import JobOfNodes

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.recorded_job import RecordedJob

HERE = identity.node_name()


@pytest.fixture
def job(make_job: type[RecordedJob], root: Path) -> JobOfNodes:
    """Return a job of three nodes in which the rank of gpu-2 was killed, then gpu-3 was lost, and came back with a number of its own."""
    job_of_nodes = JobOfNodes(make_job, root, HERE, "gpu-2", "gpu-3")
    job_of_nodes.meet(1, 1)
    job_of_nodes.train(5, 61)
    job_of_nodes.fail(10, "gpu-2")
    job_of_nodes.meet(20, 2)
    job_of_nodes.train(25, 62)
    job_of_nodes.fail(30, "gpu-3", lost=True)
    job_of_nodes.nodes["gpu-3"].close()
    job_of_nodes.meet(40, 3, HERE, "gpu-2")
    job_of_nodes.train(45, 63)
    job_of_nodes.end(60)
    return job_of_nodes


def settings(job: JobOfNodes) -> Any:
    return job.nodes[HERE].settings


def explained(job: JobOfNodes, capsys: pytest.CaptureFixture[str], incident: int | None = None, *, show_all: bool = False) -> str:
    capsys.readouterr()
    assert why(settings(job), "train", incident, show_all=show_all) == 0
    return " ".join(capsys.readouterr().out.split())


def test_each_incident_is_shown_once_and_names_the_node_that_failed_and_how_it_ended_on_the_others(
    job: JobOfNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    text = explained(job, capsys, show_all=True)
    assert text.count("-- incident") == 2
    first = explained(job, capsys, 1)
    assert "where rank 1 on gpu-2:1, step 61, attempt 1" in first, "the step of the node that failed"
    assert f"nodes {HERE}:0: its ranks were stopped; gpu-2:1: rank 1 was killed by SIGKILL; gpu-3:2: its ranks were stopped" in first
    second = explained(job, capsys)
    assert "Node gpu-3:2 is lost: silent for 60 s" in second
    assert "gpu-3:2: lost" in second
    documents = []
    for host in job.hosts:
        assert why(job.nodes[host].settings, "train", None, show_all=True, as_json=True) == 0
        documents.append(json.loads(capsys.readouterr().out)["incidents"])
    assert [incident["nodes"] for incident in documents[0]] == [{HERE: 1, "gpu-2": 1, "gpu-3": 1}, {HERE: 2, "gpu-2": 2}]


def test_an_incident_of_another_node_alone_is_shown_too_and_its_number_is_not_taken_for_one_of_this_node(
    make_job: type[RecordedJob], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = JobOfNodes(make_job, root, HERE, "gpu-2")
    other = job.nodes["gpu-2"]
    unmet = Evidence("launcher", "rendezvous", "no meeting", t=other.T0, claim=Claim(Cause.RENDEZVOUS, 0.9, transient=True))
    other.feed(LauncherExited(other.T0 + 1, 1, "agent", signal=9), AttemptEnded(other.T0 + 1, 1, "failed"))
    other.feed(EvidenceCollected(other.T0 + 2, 1, 1, (unmet,)))
    job.meet(10, 2)
    job.train(15, 61)
    job.end(60)
    text = explained(job, capsys)
    assert "incident 1 of job train on gpu-2: resolved" in text
    assert "where node gpu-2, step unknown, attempt 1" in text
    assert " nodes " not in text
    with pytest.raises(SuperviseError, match="no such incident: job train: 1"):
        why(settings(job), "train", 1)
    assert report(settings(job), "train", as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["nodes"][1] == {"node": "gpu-2", "attempts": [2], "alone": [1]}


def test_jobs_that_never_met_are_not_brought_together(make_job: type[RecordedJob], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for host in (HERE, "gpu-2"):
        job = make_job(root, node=host)
        job.begin()
        job.start(1)
        job.progress(5, 9)
        job.fail(10 if host == HERE else 12)
        job.restart(20)
        job.succeed(60)
    capsys.readouterr()
    assert why(job.settings, "train", None, show_all=True, as_json=True) == 0
    (incident,) = json.loads(capsys.readouterr().out)["incidents"]
    assert (incident["node"], incident["nodes"]) == (HERE, {HERE: 1})


def test_the_report_shows_the_attempts_of_each_node_together(job: JobOfNodes, capsys: pytest.CaptureFixture[str], root: Path) -> None:
    (root / "train" / "nodes" / "gpu-3").rename(root / "elsewhere")
    assert report(settings(job), "train", as_json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["nodes"] == [
        {"node": HERE, "attempts": [1, 2, 3], "alone": []},
        {"node": "gpu-2", "attempts": [1, 2, 3], "alone": []},
        {"node": "gpu-3", "attempts": [1, 2], "alone": None},
    ]
    assert [incident["number"] for incident in document["incidents"]] == [1, 2]
    assert report(settings(job), "train") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[-4:] == [
        ["node", "attempts", "note"],
        [HERE, "1-3"],
        ["gpu-2", "1-3"],
        ["gpu-3", *["1,", "2", "its", "journal", "is", "not", "here"]],
    ]


@pytest.mark.parametrize("content", [b"", b"no record\n"], ids=["empty", "damaged"])
def test_a_node_whose_journal_has_no_run_shows_the_job_by_that_of_another_node(
    job: JobOfNodes, capsys: pytest.CaptureFixture[str], root: Path, content: bytes
) -> None:
    job.nodes[HERE].close()
    (root / "train" / "nodes" / HERE / "journal.jsonl").write_bytes(content)
    (root / "train" / "nodes" / "gpu-3" / "journal.jsonl").write_bytes(b"")
    capsys.readouterr()
    note = f"the journal of {HERE} has no run: this is from that of gpu-2"
    assert report(settings(job), "train", as_json=True) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["node"] == "gpu-2"
    assert [incident["number"] for incident in document["incidents"]] == [1, 2]
    assert {node["node"]: node["attempts"] for node in document["nodes"]} == {"gpu-2": [1, 2, 3], HERE: [1, 2, 3], "gpu-3": [1, 2]}
    assert note in err
    assert ("journal: " in err) is bool(content)
    assert why(settings(job), "train", None, as_json=True) == 0
    out, err = capsys.readouterr()
    assert [(incident["node"], incident["nodes"]) for incident in json.loads(out)["incidents"]] == [("gpu-2", {"gpu-2": 2})]
    assert note in err
    assert ("journal: " in err) is bool(content)
    assert status(settings(job), "train", as_json=True) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["node"], json.loads(out)["incidents"]) == ("gpu-2", 2)
    assert note in err
    assert ("journal: " in err) is bool(content)


def test_the_report_names_who_was_slow_for_how_long_on_whichever_node_it_is_asked_for(
    make_job: type[RecordedJob], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = JobOfNodes(make_job, root, HERE, "gpu-2")
    job.meet(1, 1)
    job.train(5, 61)
    other = job.nodes["gpu-2"]
    other.feed(PaceChanged(other.T0 + 100, 1, "straggler", "node 0 computes 1.5 times as long", 0, node=0))
    other.feed(PaceChanged(other.T0 + 220, 1, "straggler", "node 0 is as fast as the others again", 0, is_over=True, node=0))
    other.feed(PaceChanged(other.T0 + 300, 1, "straggler", "node 1 computes 1.3 times as long", node=1))
    job.fail(480, "gpu-2")
    job.end(500)
    for host in job.hosts:
        capsys.readouterr()
        assert report(job.nodes[host].settings, "train", as_json=True) == 0
        slow = json.loads(capsys.readouterr().out)["slow"]
        assert [(row["attempt"], row["text"], row["end_t"] - row["begin_t"]) for row in slow] == [
            (1, "node 0 computes 1.5 times as long", 120.0),
            (1, "node 1 computes 1.3 times as long", pytest.approx(180, abs=2)),
        ]
        assert report(job.nodes[host].settings, "train") == 0
        text = " ".join(capsys.readouterr().out.split())
        longest = "slow for 3 min in attempt 1: node 1 computes 1.3 times as long"
        assert f"{longest} for 2 min in attempt 1: node 0 computes 1.5 times as long" in text
