"""What `supervise drill` refuses before anything is started, and when a resume drill kills."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest

from checkpointing.command_line.progress import ProgressBar
from supervisor.cli import main
from supervisor.cli.drill.comparison import compare
from supervisor.cli.drill.drilled_job import DrilledJob
from supervisor.cli.drill.resume import ResumeOrder, _record, _ResumeDrill
from supervisor.cli.drill.scratch_directory import ScratchDirectory
from supervisor.cli.drill.scratch_job import ScratchPlace
from supervisor.config.settings import Checkpoints, Settings
from supervisor.job import resume_proof
from supervisor.job.resume_proof import ProvenCommand, ResumeProof

if TYPE_CHECKING:
    from pathlib import Path

REFUSED = {
    "no step is seen": (["--set", "instrument.enabled=false"], ["true"], "Leave out --set instrument.enabled=false"),
    "an absolute place": (["--set", "checkpoints.paths=/ckpt/*.pt"], ["true"], "--checkpoints 'DIR/*.pt'"),
    "a home": (["--set", "checkpoints.paths=~/ckpt/*.pt"], ["true"], "--checkpoints 'DIR/*.pt'"),
    "shared memory": ([], ["true", "--out=/dev/shm/ckpt"], "below its working directory"),
    "the originals": (["--writable", "out"], ["true"], "leaves the checkpoints that lie there out of the drill"),
    "all above them": (["--writable", "/"], ["true"], "Name a directory outside"),
    "several nodes": ([], ["torchrun", "--nnodes=1:2", "train.py"], "--nnodes=1"),
    "no such command": ([], ["no-such-command"], "Check its spelling"),
}


@pytest.mark.parametrize("kind", ["resume", "soak", "kill"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_drill_in_a_scratch_directory_that_cannot_be_safe_or_seen_is_refused_with_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    options, command, hint = REFUSED[case]
    assert main.main(["drill", *options, kind, "--", *command]) == 64
    assert hint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_working_directory_where_the_command_may_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "cache" / "job"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    assert main.main(["drill", "resume", "--", "true"]) == 64
    assert f"the working directory lies where the drill cannot keep the command from writing: {place}" in capsys.readouterr().err
    assert list(place.iterdir()) == []


def test_a_checkpoint_where_the_command_may_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "step-5.pt").write_text("the result of a week")
    (tmp_path / "ckpt").symlink_to(tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    assert main.main(["--checkpoints", "ckpt/*.pt", "drill", "resume", "--", "true"]) == 64
    assert "a checkpoint of this job lies where the drill cannot keep" in capsys.readouterr().err


def resume_drill(tmp_path: Path, *patterns: str) -> _ResumeDrill:
    """Return a drill whose job was not started; the ranks' logs are below `tmp_path`."""
    scratch = ScratchDirectory(tmp_path)
    settings = Settings(checkpoints=Checkpoints(paths=patterns))
    job = DrilledJob(settings, ["true"], tmp_path, tmp_path, lambda: None, ProgressBar(wanted=False))
    return _ResumeDrill(ResumeOrder(1, 0, 60.0, ScratchPlace("", ())), scratch, job)


def logged(tmp_path: Path, *rows: tuple[str, int, int], path: str = "/ckpt.pt") -> tuple[int | None, bool]:
    """Write the log of one rank's saves, what, number and steps each; return what the drill reads in it."""
    place = tmp_path / "attempt-0001"
    place.mkdir()
    lines = [json.dumps({"what": event, "path": path, "t": 1.0, "n": number, "steps": steps}) for event, number, steps in rows]
    (place / "saves-0.jsonl").write_text("\n".join(lines) + "\n")
    return resume_drill(tmp_path)._last_save()  # noqa: SLF001


def test_a_save_before_the_first_step_is_none_of_the_training(tmp_path: Path) -> None:
    assert logged(tmp_path, ("began", 1, 0), ("ended", 1, 0)) == (None, True)


def test_a_save_that_is_under_way_is_waited_for(tmp_path: Path) -> None:
    assert logged(tmp_path, ("began", 1, 5), ("ended", 1, 5), ("began", 2, 10)) == (10, False)


def test_a_job_that_ended_with_its_only_save_is_not_reported_to_have_saved_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drill = resume_drill(tmp_path)
    (tmp_path / "attempt-0001").mkdir()
    rows = [{"what": event, "path": "/ckpt.pt", "t": 1.0, "n": 1, "steps": 5} for event in ("began", "ended")]
    (tmp_path / "attempt-0001" / "saves-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    drill._ranks.add(0)  # noqa: SLF001
    drill._until = math.inf  # noqa: SLF001
    drill._job.status = 0  # noqa: SLF001
    assert drill._strike() is None  # noqa: SLF001  its rank is gone
    assert drill.report(compare("", (), (), 0)) == 1
    printed = capsys.readouterr().out
    assert "the job ended (0) before 2 losses were printed after a save; nothing is proven" in printed
    assert "no loss was seen: print it" in printed
    monkeypatch.setattr(_ResumeDrill, "_printed", lambda _: True)
    assert drill.report(compare("", (), (), 0)) == 1
    assert "let it make more steps, so that it trains on after its first save" in capsys.readouterr().out


def test_a_script_that_saves_more_often_than_it_prints_its_loss_is_killed_in_the_end(tmp_path: Path) -> None:
    drill = resume_drill(tmp_path)
    for saved in (5, 10, 15, 20):
        drill._saves[saved] = 0  # noqa: SLF001
        assert not drill._is_enough(saved)  # noqa: SLF001
    drill._saves[25] = 0  # noqa: SLF001
    assert drill._is_enough(25)  # noqa: SLF001


def test_two_losses_after_a_save_are_enough(tmp_path: Path) -> None:
    drill = resume_drill(tmp_path)
    drill._saves[5] = 3  # noqa: SLF001
    output = tmp_path / "attempts" / "0001" / "rank-0.out"
    output.parent.mkdir(parents=True)
    output.write_text("".join(f"step {step} loss {1 / step}\n" for step in range(1, 5)))
    assert not drill._is_enough(5)  # noqa: SLF001
    with output.open("a") as file:
        file.write("step 5 loss 0.2\n")
    assert drill._is_enough(5)  # noqa: SLF001


@pytest.mark.parametrize("through_link", [False, True], ids=["its name", "a link"])
def test_a_load_counts_if_the_first_attempt_saved_that_checkpoint(tmp_path: Path, *, through_link: bool) -> None:
    drill = resume_drill(tmp_path)
    (tmp_path / "work").mkdir()
    saved, pretrained = tmp_path / "work" / "step-5.pt", tmp_path / "base.pt"
    logged(tmp_path, ("began", 1, 5), ("ended", 1, 5), path=str(saved))
    place = tmp_path / "attempt-0002"
    place.mkdir()
    latest = {"path": str(tmp_path / "work" / "latest.pt"), "target": str(saved)} if through_link else {"path": str(saved)}
    rows = [{"path": str(pretrained), "complete": True}, {**latest, "complete": True}, {"path": str(saved) + ".torn", "complete": False}]
    for rank in (0, 1):
        (place / f"loads-{rank}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert drill._loaded_by(2) == "step-5.pt on 2 ranks, saved after step 5"  # noqa: SLF001
    assert drill._loaded_by(3) == ""  # noqa: SLF001


def test_a_declared_checkpoint_counts_when_it_is_whole(tmp_path: Path) -> None:
    drill = resume_drill(tmp_path, "ckpt/*.pt")
    (tmp_path / "work" / "ckpt").mkdir(parents=True)
    (tmp_path / "work" / "ckpt" / "step-5.pt").write_bytes(b"PK\x03\x04 torn")
    assert drill._is_saved()  # noqa: SLF001
    assert not drill._is_verified()  # noqa: SLF001
    assert resume_drill(tmp_path)._is_verified()  # noqa: SLF001  where none is declared
    assert not resume_drill(tmp_path)._is_saved()  # noqa: SLF001


def test_a_failed_drill_removes_the_proof_of_the_same_command_only(tmp_path: Path) -> None:
    command, other = ProvenCommand("a", "", ""), ProvenCommand("b", "", "")
    _record(tmp_path, ResumeProof(1.0, command, ("checkpoint",)), command)
    _record(tmp_path, None, other)
    assert resume_proof.read(tmp_path) is not None
    _record(tmp_path, None, command)
    assert resume_proof.read(tmp_path) is None
