"""`supervise checkpoints push|pull|restore|prune` as functions: what they print, and their exit codes."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.manifest import check, documents
from checkpointing.manifest.documents import Manifests
from checkpointing.mirror import client
from checkpointing.retention import rules
from checkpointing.retention.copies import Copies
from checkpointing.verification import verify
from supervisor.checkpoints.discovery.record import LOGGED, WRITE, LoggedRun, Write
from supervisor.checkpoints.mirror import uploads
from supervisor.cli.checkpoints import mirror as checkpoint_mirror
from supervisor.cli.checkpoints import prune
from supervisor.cli.main import main
from supervisor.config.settings import Settings
from supervisor.errors import ExitCode, SuperviseError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "mirror").mkdir()
    base = Settings()
    return dataclasses.replace(
        base,
        job=dataclasses.replace(base.job, state_dir=str(tmp_path / "state")),
        checkpoints=dataclasses.replace(base.checkpoints, mirror=(str(tmp_path / "mirror"),)),
    )


def saved(tmp_path: Path, step: int) -> str:
    path = tmp_path / "ckpt" / f"step_{step}.pt"
    path.parent.mkdir(exist_ok=True)
    torch.save({"step": step, "model": torch.randn(1000)}, path)
    return str(path)


def rows(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_push_list_pull_and_restore(settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [saved(tmp_path, step) for step in (1, 2)]
    assert checkpoint_mirror.push(settings, "job", paths, as_json=True) == 0
    assert [row["step"] for row in rows(capsys)] == [1, 2]
    assert checkpoint_mirror.list_mirrors(settings, "job", as_json=True) == 0
    assert {row["step"] for row in rows(capsys)} == {1, 2}
    assert checkpoint_mirror.pull(settings, "job", "1", str(tmp_path / "one"), as_json=True) == 0
    assert rows(capsys)[0]["path"] == str(tmp_path / "one" / "step_1.pt")
    assert (tmp_path / "one" / "step_1.pt").read_bytes() == (tmp_path / "ckpt" / "step_1.pt").read_bytes()
    assert checkpoint_mirror.restore_newest(settings, "job", str(tmp_path / "new"), as_json=False) == 0
    assert "step_2.pt" in capsys.readouterr().out


def test_a_push_tells_of_each_of_its_reads_and_of_what_is_sent(settings: Settings, tmp_path: Path) -> None:
    path, reports = saved(tmp_path, 1), list[tuple[str, int, int]]()
    (backend,) = checkpoint_mirror.backends_of(settings)
    list(client.push(path, [backend], job="job", progress=lambda *row: reports.append(row)))
    size = os.path.getsize(path)  # noqa: PTH202  as the command gets it
    assert list(dict.fromkeys(phase for phase, _, _ in reports)) == ["verifying", "reading", "pushing"]
    assert all(done <= total == size for _, done, total in reports)
    assert {phase: done for phase, done, _ in reports}["pushing"] == size


def test_pull_takes_only_the_named_checkpoint_and_none_with_the_same_ending(settings: Settings, tmp_path: Path) -> None:
    checkpoint_mirror.push(settings, "job", [saved(tmp_path, 5000), saved(tmp_path, 1005)], as_json=True)
    last = next((tmp_path / "mirror" / "job" / "by-hand" / "attempt-0" / "step-1005").iterdir()).name
    for wanted in (last[-1], last[-3:], "005"):
        with pytest.raises(SuperviseError, match="no such") as caught:
            checkpoint_mirror.pull(settings, "job", wanted, str(tmp_path / "none"), as_json=True)
        assert caught.value.exit_code == ExitCode.USAGE
    for number, wanted in enumerate(("1005", "step_1005.pt", last, f"step-1005/{last}")):
        assert checkpoint_mirror.pull(settings, "job", wanted, str(tmp_path / str(number)), as_json=True) == 0
        assert (tmp_path / str(number) / "step_1005.pt").exists()


def test_pull_asks_which_of_several_is_meant(settings: Settings, tmp_path: Path) -> None:
    for _ in range(2):  # the same step twice, of another content each time
        checkpoint_mirror.push(settings, "job", [saved(tmp_path, 5)], as_json=True)
    with pytest.raises(SuperviseError, match="several") as caught:
        checkpoint_mirror.pull(settings, "job", "5", str(tmp_path / "none"), as_json=True)
    assert (caught.value.exit_code, caught.value.hint.count("step-5/")) == (ExitCode.USAGE, 2)


def test_a_torn_one_is_not_pushed(settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, 1)
    with open(path, "r+b") as file:  # noqa: PTH123 -- as the command gets it
        file.truncate(1000)
    assert checkpoint_mirror.push(settings, "job", [path], as_json=True) == 1
    assert rows(capsys)[0]["verdict"] == "bad"
    assert checkpoint_mirror.restore_newest(settings, "job", None, as_json=True) == 1


def test_pruning_says_first_what_it_would_do(settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint_mirror.push(settings, "job", [saved(tmp_path, step) for step in (1, 2, 3)], as_json=True)
    capsys.readouterr()
    assert checkpoint_mirror.prune(settings, "job", rules.RetentionPolicy(newest=1), dry_run=True, as_json=True) == 0
    assert [(row["step"], row["removed"]) for row in rows(capsys)] == [(1, False), (2, False)]
    checkpoint_mirror.prune(settings, "job", rules.RetentionPolicy(newest=1), dry_run=False, as_json=True)
    capsys.readouterr()
    checkpoint_mirror.list_mirrors(settings, "job", as_json=True)
    assert [row["step"] for row in rows(capsys)] == [3]


def test_the_removals_are_printed_and_the_jobs_own_are_left_to_its_supervisor(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state" / "job" / "nodes" / "here"
    (state / "checkpoints").mkdir(parents=True)
    (state / "journal.jsonl").touch()
    catalogue = CheckpointCatalogue(state / "checkpoints", is_writer=True)
    manifests, copies = Manifests(catalogue), Copies(catalogue, 1 << 30)
    writes = []
    for step in (1, 2, 3):
        path = saved(tmp_path, step)
        manifest = check.build(verify(path), documents.About("job", "run-1"))
        assert manifests.put(manifest)
        shutil.copyfile(path, tmp_path / "latest.pt")  # copies are kept of what is written again and again
        assert copies.keep(check.build(verify(str(tmp_path / "latest.pt"))), rules.RetentionPolicy(3)).copy is not None
        after = (manifest.identity.dev, manifest.identity.ino, manifest.identity.size, manifest.identity.mtime_ns)
        writes.append(Write(path, attempt=1, t=1.0, after=after, created_by_job=True))
    catalogue.put(WRITE, *writes)
    catalogue.put(LOGGED, LoggedRun("run-1"))
    paths = (str(tmp_path / "ckpt" / "*.pt"),)
    keeping = dataclasses.replace(settings, checkpoints=dataclasses.replace(settings.checkpoints, keep=1, paths=paths, mirror=()))
    assert prune.prune(keeping, "job", None, dry_run=True, as_json=True) == 0
    printed = rows(capsys)
    assert [(row["what"], row["removed"]) for row in printed] == [("copy", False)] * 2 + [("checkpoint", False)] * 2
    assert [row["path"] for row in printed[2:]] == [str(tmp_path / "ckpt" / f"step_{step}.pt") for step in (1, 2)]
    assert "the supervisor removes it" in printed[2]["reason"]
    assert len(copies.all()) == 3, "a dry run removes nothing"
    assert prune.prune(keeping, "job", None, dry_run=False, as_json=True) == 0
    assert [copy.manifest.step for copy in copies.all()] == [3]
    shutil.copyfile(saved(tmp_path, 4), tmp_path / "latest.pt")
    copies.keep(check.build(verify(str(tmp_path / "latest.pt"))), rules.RetentionPolicy(3))
    with open(copies.all()[-1].place, "r+b") as file:  # noqa: PTH123 -- a plain string
        file.truncate(1000)
    capsys.readouterr()
    assert prune.prune(keeping, "job", None, dry_run=False, as_json=True) == 1
    assert "not proven" in rows(capsys)[0]["reason"]
    (tmp_path / "ckpt" / "step_4.pt").unlink()
    assert len(list((tmp_path / "ckpt").iterdir())) == 3, "what is the user's is not removed by hand"


@pytest.mark.parametrize("mirror", ["mirror", "./mirror"])
def test_a_relative_mirror_is_the_same_as_in_a_run(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str], mirror: str
) -> None:
    here = dataclasses.replace(settings, cwd=str(tmp_path), checkpoints=dataclasses.replace(settings.checkpoints, mirror=(mirror,)))
    assert checkpoint_mirror.push(here, "job", [saved(tmp_path, 1)], as_json=True) == 0
    assert rows(capsys)[0]["mirror"] == str(tmp_path / "mirror")
    assert uploads.mirrors(here) == [str(tmp_path / mirror)]


def test_ls_of_a_mirror_shows_what_pull_takes(settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint_mirror.push(settings, "job", [saved(tmp_path, 7)], as_json=True)
    capsys.readouterr()
    of_job = ["--mirror", str(tmp_path / "mirror"), "--job", "job"]
    assert main(["checkpoints", "ls", *of_job, "--json"]) == 0
    (row,) = rows(capsys)
    assert (row["step"], row["name"]) == (7, "step_7.pt")
    assert main(["checkpoints", "pull", *of_job, row["id"], str(tmp_path / "one")]) == 0
    assert main(["checkpoints", "ls", *of_job, "--set", "checkpoints.restore_from=none"]) == 0
    assert main(["checkpoints", "ls", "--mirror", str(tmp_path / "mirror"), "--state-dir", str(tmp_path / "none")]) == ExitCode.USAGE
    assert "--job" in capsys.readouterr().err


def test_another_jobs_mirror_is_refused_with_78(settings: Settings, tmp_path: Path) -> None:
    checkpoint_mirror.push(settings, "other", [saved(tmp_path, 1)], as_json=True)
    with pytest.raises(SuperviseError) as caught:
        checkpoint_mirror.restore_newest(settings, "job", str(tmp_path / "new"), as_json=True)
    assert caught.value.exit_code == ExitCode.CONFIG
    named = dataclasses.replace(settings, checkpoints=dataclasses.replace(settings.checkpoints, restore_from="other"))
    assert checkpoint_mirror.restore_newest(named, "job", str(tmp_path / "new"), as_json=True) == 0


def test_a_missing_mirror_is_an_error_with_a_hint(settings: Settings) -> None:
    none = dataclasses.replace(settings, checkpoints=dataclasses.replace(settings.checkpoints, mirror=()))
    with pytest.raises(SuperviseError, match="no mirror") as caught:
        checkpoint_mirror.list_mirrors(none, "job", as_json=True)
    assert "--mirror" in caught.value.hint


def test_a_checkpoint_that_is_not_there_is_a_mistake_of_usage(settings: Settings, tmp_path: Path) -> None:
    checkpoint_mirror.push(settings, "job", [saved(tmp_path, 1)], as_json=True)
    with pytest.raises(SuperviseError) as caught:
        checkpoint_mirror.pull(settings, "job", "77", str(tmp_path), as_json=True)
    assert caught.value.exit_code == ExitCode.USAGE
