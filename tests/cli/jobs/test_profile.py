"""`supervise profile` where there is nothing to record: a sentence and exit code 1; and the files of what was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from supervisor.cli.jobs import profile as profile_command
from supervisor.cli.jobs.job_files import JobFiles
from supervisor.errors import SuperviseError
from supervisor.observe.ranks.profiles import ProfileAnswer, RankProfile, TraceAnswer
from tests.support.small_disks import small_disk

if TYPE_CHECKING:
    from collections.abc import Sequence

FIVE = {"steps": 5, "seconds": None, "torch": False}


def refusal(written: Any, rank: int | None = None, into: str = ".") -> str:  # noqa: ANN401 - a fixture's
    with pytest.raises(SuperviseError) as caught:
        profile_command.profile(written.settings, "train", rank, FIVE, Path(into))
    assert caught.value.exit_code == 1
    assert caught.value.hint
    return caught.value.message


def test_a_job_that_does_not_run_has_nothing_to_record(written: Any) -> None:  # noqa: ANN401 - as above
    written.begin()
    written.close()
    assert refusal(written) == "no rank runs: job train: attempt 1"


def test_a_job_of_another_node_is_recorded_there(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401 - as above
    written.begin()
    written.close()
    monkeypatch.setattr(profile_command.identity, "node_name", lambda: "elsewhere")
    assert refusal(written) == f"no rank of this node: job train: it runs on {written.node}"


def recordings(answers: Sequence[ProfileAnswer | str]) -> list[RankProfile]:
    """Return recordings that are over: an answer, or why there is none."""
    profiles = []
    for rank, answer in enumerate(answers):
        recording = RankProfile(Path("/nowhere"), rank, (1, 1), FIVE)
        recording.answer, recording.failure = (None, answer) if isinstance(answer, str) else (answer, "")
        profiles.append(recording)
    return profiles


def finish(tmp_path: Path, answers: Sequence[ProfileAnswer | str]) -> int:
    place = JobFiles("train", "node", tmp_path)
    return profile_command._written(place, recordings(answers), tmp_path / "profile-train", FIVE)  # noqa: SLF001  the command without a job that runs


STACKS = {"<module> (train.py:3);step (train.py:9)": 30, "<module> (train.py:3)": 10}


def test_the_files_have_all_ranks_and_the_unanswered_rank_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = ProfileAnswer(0.4, 5, 40, STACKS, cuda=False)
    assert finish(tmp_path, [answer, "its process is gone", answer]) == 1
    out, err = capsys.readouterr()
    assert "rank 1 was not recorded: its process is gone" in err
    assert "75 %  step (train.py:9)" in out
    lines = (tmp_path / "profile-train.collapsed").read_text().splitlines()
    assert lines == sorted(f"rank {rank};{stack} {count}" for rank in (0, 2) for stack, count in STACKS.items())
    assert ET.parse(tmp_path / "profile-train.svg").getroot().tag.endswith("svg")  # noqa: S314  our own


def test_missing_steps_and_a_missing_trace_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = TraceAnswer(0, (), "RuntimeError: Profiler is already enabled on this thread")
    assert finish(tmp_path, [ProfileAnswer(120.0, 2, 40, STACKS, cuda=True, trace=trace)]) == 1
    err = capsys.readouterr().err
    assert "only 2 of 5 steps were made" in err
    assert "rank 0: there is no trace of torch's: RuntimeError: Profiler is already enabled on this thread" in err


def test_a_trace_is_named_with_its_hottest_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = TraceAnswer(5, (("aten::mm", 10, 1500.0, 0.0),))
    assert finish(tmp_path, [ProfileAnswer(1.0, 5, 40, STACKS, cuda=False, trace=trace)]) == 0
    out, err = capsys.readouterr()
    assert "aten::mm" in out
    assert "1.5 ms" in out
    assert "profile-train-rank0.trace.json (5 steps; https://ui.perfetto.dev opens it)" in out
    assert "rank 0 has no CUDA: the trace has the operators of the CPU only" in err


@pytest.mark.process
def test_a_full_disk_is_reported_and_keeps_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with small_disk(tmp_path / "disk", "size=4k") as disk:
        (disk / "filler").write_bytes(bytes(4096))
        assert finish(disk, [ProfileAnswer(0.4, 5, 40, STACKS, cuda=False)]) == 1
        assert [path.name for path in disk.iterdir()] == ["filler"]
    assert capsys.readouterr().err.count("was not written: No space left on device") == 2
