"""The journal that a requeued Slurm job continues on a node where it did not run before."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from supervisor.config.settings import Settings
from supervisor.job.job import Job
from supervisor.journal.records import Header, RunBegan, RunEnded, encode
from supervisor.run.moved_job import JOURNAL, carry_along

if TYPE_CHECKING:
    from pathlib import Path

STEP = {
    "SLURM_JOB_ID": "7100",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[08,10]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_NODEID": "0",
    "SLURM_RESTART_COUNT": "1",
}


def life(place: Path, node: str, *times: tuple[float, float], name: str = "slurm-7100") -> Path:
    """Write a node's journal with lives of the job: when each began and ended. Its time of change is that of the last end."""
    path = place / name / "nodes" / node / JOURNAL
    path.parent.mkdir(parents=True)
    bodies: list[tuple[float, Header | RunBegan | RunEnded]] = [(0.0, Header(name, node))]
    for began_t, end_t in times:
        bodies += [(began_t, RunBegan(f"run-of-{node}")), (end_t, RunEnded(75))]
    path.write_bytes(b"".join(encode(seq, t, t, body) for seq, (t, body) in enumerate(bodies, start=1)))
    os.utime(path, (bodies[-1][0], bodies[-1][0]))
    return path


def job(place: Path, name: str = "slurm-7100", **environ: str) -> Job:
    state = place / name / "nodes" / "gpu08.cluster"
    state.mkdir(parents=True, exist_ok=True)
    command = ("python", "train.py")
    return Job(name, "new", "gpu08.cluster", command, place, {**STEP, **environ}, Settings(), state, place, "cookie")


def test_a_node_without_a_journal_takes_the_newest_one_left_with_its_files(tmp_path: Path) -> None:
    life(tmp_path, "gpu01", (100, 200))
    newest = life(tmp_path, "gpu02", (100, 200), (300, 400))
    life(tmp_path, "gpu10", (100, 500))  # of the step: it continues with its own
    (newest.parent / "incidents" / "0001").mkdir(parents=True)
    (newest.parent / "incidents" / "0001" / "card.txt").write_text("card")
    (newest.parent / "lock").touch()
    here = job(tmp_path)
    assert carry_along(here) == "gpu02"
    assert (here.state / JOURNAL).read_bytes() == newest.read_bytes()
    assert (here.state / "incidents" / "0001" / "card.txt").read_text() == "card"
    assert sorted(path.name for path in here.state.iterdir()) == ["incidents", JOURNAL]
    assert carry_along(here) == "", "it has the journal of that life now"


def test_a_task_of_an_array_takes_that_of_its_own_task(tmp_path: Path) -> None:
    own = life(tmp_path, "gpu02", (100, 200), name="slurm-7099_3")
    life(tmp_path, "gpu01", (100, 300), name="slurm-7099_4")
    here = job(tmp_path, "slurm-7099_3", SLURM_ARRAY_JOB_ID="7099", SLURM_ARRAY_TASK_ID="3")
    assert carry_along(here) == "gpu02"
    assert (here.state / JOURNAL).read_bytes() == own.read_bytes()


def test_a_node_that_missed_a_run_takes_its_journal_and_keeps_its_old_one(tmp_path: Path) -> None:
    old = life(tmp_path, "gpu08.cluster", (100, 200)).read_bytes()
    newest = life(tmp_path, "gpu02", (300, 400))
    here = job(tmp_path, SLURM_RESTART_COUNT="2")
    assert carry_along(here) == "gpu02"
    assert (here.state / JOURNAL).read_bytes() == newest.read_bytes()
    assert (here.state / "journal-0001.jsonl").read_bytes() == old


def test_a_node_that_took_part_in_that_life_keeps_its_own(tmp_path: Path) -> None:
    own = life(tmp_path, "gpu08.cluster", (101, 199)).read_bytes()
    life(tmp_path, "gpu02", (100, 200))
    here = job(tmp_path)
    assert carry_along(here) == ""
    assert (here.state / JOURNAL).read_bytes() == own


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_RESTART_COUNT": "0"},
        {"SLURM_STEP_ID": ""},
        {"SLURM_STEP_NODELIST": "gpu["},
        {"SLURM_JOB_ID": "7101"},
        {"SLURM_STEP_NODELIST": "cloud-[1-2]"},
    ],
    ids=["not-requeued", "no-step", "unread", "another-job", "hosts-have-other-names"],
)
def test_an_uncertain_move_carries_no_files_along(tmp_path: Path, environ: dict[str, str]) -> None:
    life(tmp_path, "gpu02", (100, 200))
    here = job(tmp_path, **environ)
    assert carry_along(here) == ""
    assert list(here.state.iterdir()) == []


def test_a_job_whose_nodes_all_stayed_carries_no_files_along(tmp_path: Path) -> None:
    life(tmp_path, "gpu10", (100, 200))
    assert carry_along(job(tmp_path)) == ""
