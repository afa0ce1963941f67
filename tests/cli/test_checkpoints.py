"""`supervise checkpoints`: the known checkpoints of a job, files that were moved and moved back, and files that are never offered again."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.lineage import Lineages
from checkpointing.manifest import check
from checkpointing.manifest.documents import About, Manifests
from checkpointing.ordering import RollBack
from checkpointing.retention.aside import AsideRecord
from checkpointing.retention.copies import Copies
from checkpointing.retention.prune import PRUNED, PrunedRow
from checkpointing.verification import identity_of, verify
from supervisor.checkpoints.mirror.mirrored import MirroredCheckpoints
from tests.support import preloaded

if TYPE_CHECKING:
    import subprocess

pytestmark = pytest.mark.process
JOB = "it"


def run(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    foreign = ("SUPERVISE_", "SLURM", "XDG_", "STATE_DIRECTORY")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return preloaded.command_text(*arguments, cwd=place, environ=environment)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Give a directory with three checkpoints, the last torn, in which a job ended."""
    (tmp_path / "ckpt").mkdir()
    for step in (1, 2, 3):
        torch.save({"global_step": step, "w": torch.randn(9)}, tmp_path / "ckpt" / f"step_{step}.pt")
    os.truncate(tmp_path / "ckpt" / "step_3.pt", 500)
    done = run(tmp_path, "--job", JOB, "--checkpoints", "ckpt/*.pt", "--resume-args", "{resume}", "--", "true")
    assert done.returncode == 0, done.stderr
    return tmp_path


def node(place: Path) -> Path:
    (directory,) = (place / ".supervise" / JOB / "nodes").iterdir()
    return directory


def test_ls_tells_what_is_known_without_reading(place: Path) -> None:
    record = CheckpointCatalogue(node(place) / "checkpoints", is_writer=True)
    manifest = check.build(verify(str(place / "ckpt" / "step_2.pt")), About(JOB, "run-a", began=5, attempt=3))
    assert Manifests(record).put(manifest)
    copy = Copies(record, 1 << 30, run_id="run-a").keep(manifest).copy
    assert copy is not None
    MirroredCheckpoints(record, ()).add("s3://bucket", manifest, "job/key/")
    record.put(PRUNED, PrunedRow("/gone.pt", manifest.identity, 0, 9, "the newest 2 stay", 7.0))
    done = run(place, "checkpoints", "ls", "--checkpoints", "ckpt/*.pt", "--json")
    document = json.loads(done.stdout)
    (known,) = [row for row in document["checkpoints"] if row["path"] == manifest.path]
    assert known["mirrored"] == [{"mirror": "s3://bucket", "key": "job/key/", "t": pytest.approx(time.time(), abs=60)}]
    assert [kept["place"] for kept in known["copied"]] == [copy.place]
    assert known["verified"] == {"t": manifest.made_unix_s, "id": manifest.id, "format": manifest.layout}
    facts = {name: known[name] for name in ("run", "attempt", "writer", "finite", "rejected", "state", "step")}
    assert facts == {"run": "run-a", "attempt": 3, "writer": "unknown", "finite": True, "rejected": None, "state": "verified", "step": 2}
    assert known["identity"] == dataclasses.asdict(manifest.identity)
    assert [(row["path"], row["reason"], row["t"]) for row in document["pruned"]] == [("/gone.pt", "the newest 2 stay", 7.0)]
    rows = {Path(row["path"]).name: row for row in json.loads(done.stdout)["checkpoints"]}
    assert sorted(rows) == ["step_1.pt", "step_2.pt", "step_3.pt"]
    assert (rows["step_3.pt"]["state"], rows["step_1.pt"]["step"]) == ("torn", 1)
    assert rows["step_1.pt"]["writer"] == "before"
    assert (rows["step_3.pt"]["rejected"]["kind"], rows["step_3.pt"]["verified"], rows["step_1.pt"]["mirrored"]) == ("torn", None, [])
    assert "torn" in run(place, "checkpoints", "ls").stdout  # by the rejection alone, without a pattern
    catalogue = Path(json.loads(done.stdout)["catalogue"])
    assert '{"row":"rejected"' in catalogue.read_text()
    with catalogue.open("a") as file:
        file.write("no row\n")
    damaged = run(place, "checkpoints", "ls")
    assert "torn" in damaged.stdout
    assert str(catalogue) in damaged.stderr


@pytest.mark.slow
def test_a_quarantined_checkpoint_is_not_handed_out_again(place: Path) -> None:
    done = run(place, "checkpoints", "quarantine", "--reason", "it diverged", "ckpt/step_2.pt")
    assert done.returncode == 0, done.stderr
    shown = run(place, "checkpoints", "show", "--json", "ckpt/step_2.pt")
    assert (shown.returncode, json.loads(shown.stdout)["rejection"]["reason"]) == (1, "it diverged")
    assert json.loads(shown.stdout)["verdict"] == "good"
    again = run(place, "--job", JOB, "--checkpoints", "ckpt/*.pt", "--resume-args", "{resume}", "--", "echo")
    assert "step_1.pt" in again.stdout, again.stderr
    assert (place / "ckpt" / "step_2.pt").exists()
    assert run(place, "checkpoints", "quarantine", "nothing.pt").returncode == 64


@pytest.mark.slow
def test_a_quarantined_checkpoint_is_listed_with_its_reason_and_can_return(place: Path) -> None:
    records, path = node(place) / "checkpoints", str(place / "ckpt" / "step_2.pt")
    lineages = Lineages(CheckpointCatalogue(records, is_writer=True), "run-a")
    lineages.begin_run(tuple)
    lineages.try_roll_back(RollBack(lineages.current, 2, path))
    lineages.accuse("attempt 3 stepped back from it")
    (place / "ckpt" / "step_1.pt-unfinished").touch()
    listed = ("checkpoints", "ls", "--checkpoints", "ckpt/*.pt", "--json")
    rows = {Path(row["path"]).name: row for row in json.loads(run(place, *listed).stdout)["checkpoints"]}
    assert (rows["step_2.pt"]["state"], rows["step_2.pt"]["reason"]) == ("out of use", "attempt 3 stepped back from it")
    assert rows["step_1.pt"]["state"] == "unfinished"
    assert set(rows) == {"step_1.pt", "step_2.pt", "step_3.pt"}, "the mark itself is no checkpoint"
    done = run(place, "checkpoints", "quarantine", "--withdraw", "ckpt/step_2.pt")
    assert (done.returncode, done.stdout) == (0, f"used again from the next start of job {JOB} on: {path}\n"), done.stderr
    assert Lineages(CheckpointCatalogue(records, is_writer=True)).roll_backs == ()
    again = run(place, "checkpoints", "quarantine", "--withdraw", "ckpt/step_2.pt")
    assert (again.returncode, "uses it already" in again.stderr) == (64, True)


@pytest.mark.slow
def test_a_quarantine_is_withdrawn_by_the_same_command(place: Path) -> None:
    assert run(place, "checkpoints", "quarantine", "ckpt/step_2.pt").returncode == 0
    assert run(place, "checkpoints", "quarantine", "--withdraw", "ckpt/step_2.pt").returncode == 0
    assert run(place, "checkpoints", "show", "--json", "ckpt/step_2.pt").returncode == 0


def test_a_checkpoint_moved_aside_is_moved_back(place: Path) -> None:
    path = str(place / "ckpt" / "step_3.pt")
    identity = identity_of(path)
    assert identity is not None
    record = AsideRecord(CheckpointCatalogue(node(place) / "checkpoints", is_writer=True))
    moved = record.move(verify(path), 1, {path: identity}, ranks_alive=False)
    assert moved.to, moved.reason
    (change,) = json.loads(run(place, "checkpoints", "ls", "--json").stdout)["changes"]
    assert (change["kind"], change["path"], change["to"]) == ("moved", path, moved.to)
    named = run(place, "checkpoints", "prune", "--dry-run").stdout
    assert f"stays set aside {moved.to}: 500 bytes, from {path} (" in named
    assert f"`supervise checkpoints undo --job {JOB} {change['id']}` moves it back" in named
    assert run(place, "checkpoints", "undo", "77").returncode == 64
    done = run(place, "checkpoints", "undo")
    assert done.returncode == 0, done.stderr
    assert identity_of(path) == identity
    assert not Path(moved.to).exists()
    assert "nothing was moved" in run(place, "checkpoints", "undo").stdout


@pytest.mark.slow
def test_show_names_the_files_of_a_directory(place: Path) -> None:
    root = place / "global_step5"
    root.mkdir()
    torch.save({"global_steps": 5, "dp_world_size": 1, "mp_world_size": 1}, root / "mp_rank_00_model_states.pt")
    shown = run(place, "checkpoints", "show", "global_step5")
    assert shown.returncode == 0
    assert "mp_rank_00_model_states.pt" in shown.stdout


@pytest.mark.slow
def test_records_that_a_supervisor_holds_are_not_changed_behind_its_back(place: Path) -> None:
    done = run(place, "--job", JOB, "--", "supervise", "checkpoints", "quarantine", "--job", JOB, "ckpt/step_1.pt")
    assert done.returncode != 0
    assert "a supervisor runs this job" in done.stdout + done.stderr
