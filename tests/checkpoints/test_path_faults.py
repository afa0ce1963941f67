"""An exception names a path: the disk then shows a leftover in the way, a file that was set aside, or a pointer to no whole checkpoint."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest
import torch

from supervisor.checkpoints.job import JobCheckpoints
from supervisor.checkpoints.path_faults import paths_in
from supervisor.config.settings import Checkpoints
from supervisor.core.model import Cause, Evidence
from supervisor.core.values import replace
from tests.checkpoints.test_layouts import pair
from tests.checkpoints.test_repair import disk, stat_of
from tests.support.few import few

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.checkpoints.test_repair import JobOnDisk


__all__ = ["disk"]


def raised(text: str, rank: int = 0) -> Evidence:
    return Evidence("error_file", "exception", text, rank, time.time())


def faults(disk: JobOnDisk, text: str) -> list[Evidence]:
    """Return what is found about an exception of the second attempt, whose ranks were started just now."""
    return list(disk.checkpoints.path_faults(2, [raised(text)]))


def fault(disk: JobOnDisk, text: str) -> tuple[Cause | None, dict[str, str], str]:
    evidence = faults(disk, text)
    if not evidence:
        return None, {}, ""
    assert evidence[0].claim is not None
    return evidence[0].claim.cause, dict(evidence[0].fields), evidence[0].text


def second_attempt(disk: JobOnDisk) -> None:
    disk.checkpoints.records.absorb()
    time.sleep(0.01)  # file systems stamp with the time of the last tick
    disk.checkpoints.began(2)
    time.sleep(0.01)  # what its ranks write is stamped later


def torn_set(disk: JobOnDisk) -> Path:
    """Save whole sets of steps 20 and 40, and half of that of step 60; return the half."""
    for step in (20, 40):
        pair(disk, f"ckpt/step-{step}", step)
    torn = pair(disk, "ckpt/step-60", 60, ("model.pt",))
    second_attempt(disk)
    return torn


TEXTS = {
    "a text of its own": "FileExistsError: Checkpoint directory ckpt/step-60 already exists",
    "os.makedirs": "FileExistsError: [Errno 17] File exists: '{here}/ckpt/step-60'",
    "a file in it": "FileExistsError: [Errno 17] File exists: 'ckpt/step-60/model.pt'",
    "a rename to it": "OSError: [Errno 39] Directory not empty: 'ckpt/saving' -> 'ckpt/step-60'",
    "a library's": "ValueError: Checkpoint directory {here}/ckpt/step-60 (60) already exists. Please set `overwrite`.",
    "a file where a directory lies": "IsADirectoryError: [Errno 21] Is a directory: 'ckpt/step-60'",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_killed_saves_leftover_in_the_way_is_named_and_set_aside(disk: JobOnDisk, text: str) -> None:
    torn = torn_set(disk)
    cause, fields, summary = fault(disk, text.format(here=disk.here))
    assert (cause, fields["leftover"], fields["leftover_is_ours"]) == (Cause.CHECKPOINT_LEFTOVER, str(torn), "yes")
    assert f"{torn} is in the way of the save: attempt 1 left it (missing, and in the saves before it: optim.pt)" in summary
    disk.checkpoints.ended()
    selected = disk.checkpoints.select(1.0, 2, in_the_way=fields["leftover"])
    assert disk.moved() == [(str(torn), f"{disk.here}/.supervise-aside/torn-a")]
    assert "it was in the way of a save: moved to" in dict(selected.repaired)[str(torn)]


def test_a_torn_file_in_the_way_of_a_new_file_is_set_aside(disk: JobOnDisk) -> None:
    (disk.here / "ckpt").mkdir()
    for step in (20, 40, 60):
        torn = disk.rank.saves(f"ckpt/step-{step}.pt", step, cut=step == 60)
    second_attempt(disk)
    cause, fields, summary = fault(disk, "FileExistsError: [Errno 17] File exists: 'ckpt/step-60.pt'")
    assert (cause, fields["leftover"], fields["leftover_is_ours"]) == (Cause.CHECKPOINT_LEFTOVER, str(torn), "yes")
    assert "torn" in summary


def test_a_leftover_is_set_aside_too_where_the_script_is_handed_its_checkpoint(disk: JobOnDisk) -> None:
    settings = dataclasses.replace(disk.job.settings, checkpoints=Checkpoints(paths=("ckpt/step-*",)))
    disk.checkpoints = JobCheckpoints(replace(disk.job, settings=settings), disk.reports.append)
    disk.checkpoints.began(1)
    torn = torn_set(disk)
    disk.checkpoints.ended()
    assert disk.checkpoints.select(1.0, 2).repaired == (), "nothing is in anyone's way"
    selected = disk.checkpoints.select(2.0, 2, in_the_way=fault(disk, TEXTS["os.makedirs"].format(here=disk.here))[1]["leftover"])
    assert [path for path, _ in selected.repaired] == [str(torn)]
    assert selected.chosen is not None
    assert selected.chosen.step == 40
    assert not torn.exists()


def test_a_file_written_by_this_attempt_is_no_leftover(disk: JobOnDisk) -> None:
    torn_set(disk)
    (disk.here / "ckpt" / "step-60" / "optim.pt").write_bytes(b"of another rank, now")
    assert faults(disk, TEXTS["a text of its own"]) == []


def test_the_directory_of_the_saves_itself_is_no_leftover(disk: JobOnDisk) -> None:
    torn_set(disk)
    assert faults(disk, "FileExistsError: [Errno 17] File exists: 'ckpt'") == []
    assert faults(disk, "FileExistsError: [Errno 17] File exists: 'logs/run.txt'") == []


def test_a_whole_one_in_the_way_stays_and_the_command_is_named(disk: JobOnDisk) -> None:
    torn_set(disk)
    cause, fields, summary = fault(disk, "FileExistsError: Checkpoint directory ckpt/step-40 already exists")
    place = disk.here / "ckpt" / "step-40"
    assert (cause, "leftover_is_ours" in fields) == (Cause.CHECKPOINT_LEFTOVER, False)
    assert "its verdict is verified" in fields["stays"]
    assert "(it is whole)" in summary
    aside = disk.here / ".supervise-aside"
    assert fields["remedy"] == f"mkdir -p {aside} && mv {place} {aside}/torn-a"


def test_a_whole_checkpoint_rejected_by_this_run_is_set_aside(disk: JobOnDisk) -> None:
    torn_set(disk)
    rejected = disk.here / "ckpt" / "step-40"
    disk.checkpoints.ended()
    disk.checkpoints.select(1.0, 2, (str(rejected),))
    _, fields, _ = fault(disk, "FileExistsError: Checkpoint directory ckpt/step-40 already exists")
    assert fields["leftover_is_ours"] == "yes"
    disk.checkpoints.select(2.0, 2, (str(rejected),), in_the_way=fields["leftover"])
    assert (str(rejected), True) in [(path, to.startswith(str(disk.here))) for path, to in disk.moved()]


def test_of_several_nodes_nothing_is_set_aside_and_the_command_is_named(disk: JobOnDisk) -> None:
    disk.checkpoints = JobCheckpoints(disk.job, disk.reports.append, several_nodes=True)
    disk.checkpoints.began(1)
    torn_set(disk)
    _, fields, _ = fault(disk, TEXTS["a text of its own"])
    assert ("leftover_is_ours" in fields, fields["stays"]) == (False, "a rank is alive, and may be writing it")
    assert fields["remedy"].endswith("/torn-a")


def test_a_temporary_name_that_a_killed_save_left_is_a_leftover(disk: JobOnDisk) -> None:
    torn_set(disk)
    left = disk.here / "ckpt" / "step-80.tmp"
    left.mkdir()
    os.utime(left, (1, 1))
    cause, fields, _ = fault(disk, f"FileExistsError: [Errno 17] File exists: '{left}'")
    assert (cause, fields["leftover"]) == (Cause.CHECKPOINT_LEFTOVER, str(left))


@pytest.mark.parametrize("below", few(["", "/meta.json"]))
@pytest.mark.parametrize("way", ["relative", "absolute", "through a link"])
def test_a_checkpoint_set_aside_returns_for_a_script_that_needs_it_and_stays(disk: JobOnDisk, below: str, way: str) -> None:
    torn = torn_set(disk)
    disk.rank.loads("ckpt/step-20/model.pt")
    assert list(disk.repairs()) == ["ckpt/step-60"]
    assert not torn.exists()
    (disk.here / "link").symlink_to("ckpt")
    path = {"relative": "ckpt/step-60", "absolute": str(torn), "through a link": "link/step-60"}[way] + below
    cause, fields, summary = fault(disk, f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'")
    assert (cause, fields["path"], fields["set_aside"]) == (Cause.CHECKPOINT_LEFTOVER, str(torn), "1")
    assert "which was set aside" in summary
    selected = disk.checkpoints.select(1.0, 2, missed=fields["set_aside"])
    assert "the script misses the file that was set aside: it was moved back from" in selected.repaired[0][1]
    assert (torn / "model.pt").exists()
    assert "because it was moved back once" in disk.repairs()["ckpt/step-60"]
    assert disk.moved() == []


def test_a_file_that_nobody_set_aside_is_missing_for_another_reason(disk: JobOnDisk) -> None:
    torn_set(disk)
    disk.rank.loads("ckpt/step-20/model.pt")
    assert disk.repairs()
    for path in ("ckpt/step-600", "ckpt/step-80", "data/step-60", "config.json"):
        assert faults(disk, f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'") == []


def files(disk: JobOnDisk) -> Path:
    """Save whole files of steps 20 and 40."""
    (disk.here / "ckpt").mkdir()
    for step in (20, 40):
        path = disk.rank.saves(f"ckpt/step-{step}.pt", step)
        os.utime(path, (step, step))
    disk.checkpoints.records.absorb()
    return disk.here / "ckpt"


def to_itself(ckpt: Path) -> str:
    (ckpt / "last.ckpt").symlink_to("last.ckpt")
    return f"OSError: [Errno 40] Too many levels of symbolic links: '{ckpt}/last.ckpt'"


def in_a_circle(ckpt: Path) -> str:
    (ckpt / "last.ckpt").symlink_to("latest.ckpt")
    (ckpt / "latest.ckpt").symlink_to("last.ckpt")
    return "OSError: [Errno 40] Too many levels of symbolic links: 'ckpt/last.ckpt'"


def dangling(ckpt: Path) -> str:
    (ckpt / "latest").symlink_to("step-60.pt")
    return "FileNotFoundError: [Errno 2] No such file or directory: 'ckpt/latest'"


def moved_directory(ckpt: Path) -> str:
    (ckpt / "latest").symlink_to("/old/place/ckpt/step-40.pt")
    return "FileNotFoundError: [Errno 2] No such file or directory: 'ckpt/latest'"


LINKS: dict[str, tuple[Callable[[Path], str], str, str]] = {
    "to itself": (to_itself, "last.ckpt", "leads to itself"),
    "in a circle": (in_a_circle, "last.ckpt", "leads to itself"),
    "dangling": (dangling, "latest", "which is not there"),
    "to where the directory was": (moved_directory, "latest", "/old/place/ckpt/step-40.pt, which is not there"),
}


@pytest.mark.parametrize(("break_", "link", "why"), LINKS.values(), ids=LINKS)
@pytest.mark.parametrize("known", [True, False], ids=["of this job", "never seen before"])
def test_a_broken_link_is_named_with_the_newest_whole_one_and_its_command(
    disk: JobOnDisk,
    break_: Callable[[Path], str],
    link: str,
    why: str,
    known: bool,  # noqa: FBT001
) -> None:
    ckpt = files(disk)
    if not known:
        shutil.rmtree(disk.state / "checkpoints")
        disk.checkpoints = JobCheckpoints(replace(disk.job, run_id="run-2"), disk.reports.append)
    cause, fields, summary = fault(disk, break_(ckpt))
    assert (cause, fields["pointer"]) == (Cause.CHECKPOINT_POINTER, str(ckpt / link))
    assert why in summary
    assert "the newest whole one next to it is step-40.pt" in summary
    assert fields["remedy"] == f"ln -sfn step-40.pt {ckpt}/{link}"


@pytest.mark.parametrize("below", ["", "/model.pt"])
def test_a_link_to_a_directory_that_is_gone_gets_a_whole_directory(disk: JobOnDisk, below: str) -> None:
    for step in (20, 40):
        pair(disk, f"ckpt/step-{step}", step)
    (disk.here / "ckpt" / "latest").symlink_to("step-60")
    cause, fields, _ = fault(disk, f"FileNotFoundError: [Errno 2] No such file or directory: 'ckpt/latest{below}'")
    assert cause is Cause.CHECKPOINT_POINTER
    assert fields["remedy"] == f"ln -sfn step-40 {disk.here}/ckpt/latest"


def test_a_link_that_was_moved_before_the_save_was_on_the_disk(disk: JobOnDisk) -> None:
    torn = torn_set(disk)
    link = disk.here / "ckpt" / "latest"
    link.symlink_to("step-60")
    directory = disk.job.attempt_dir(2)
    directory.mkdir(parents=True)
    text = '{"t": 3, "path": "%s/model.pt", "complete": false, "via": "torch", "steps": 0}\n' % link  # noqa: UP031 (braces)
    (directory / "loads-0.jsonl").write_text(text)
    cause, fields, summary = fault(disk, "AssertionError: metadata is None")
    assert (cause, fields["pointer"]) == (Cause.CHECKPOINT_POINTER, str(link))
    assert f"{link} leads to {torn}, which is not whole; the newest whole one next to it is step-40" in summary
    assert fields["remedy"] == f"ln -sfn step-40 {link}"


TRACKERS = {
    "Megatron's": ("latest_checkpointed_iteration.txt", "60", "iter_00000{}", "echo 40 > {}"),
    "verl's": ("latest_checkpointed_iteration.txt", "60", "global_step_{}", "echo 40 > {}"),
    "DeepSpeed's": ("latest", "global_step60", "global_step{}", "echo global_step40 > {}"),
    "a script's, with a path": ("last_checkpoint.txt", "ckpt/step-60", "step-{}", "echo ckpt/step-40 > {}"),
}


@pytest.mark.parametrize(("tracker", "text", "names", "command"), TRACKERS.values(), ids=TRACKERS)
def test_a_file_that_names_what_is_not_there(disk: JobOnDisk, tracker: str, text: str, names: str, command: str) -> None:
    for step in (20, 40):
        pair(disk, f"ckpt/{names.format(step)}", step)
    file = disk.here / "ckpt" / tracker
    file.write_text(f"{text}\n")
    missing = f"{disk.here}/ckpt/{names.format(60)}/model.pt"
    cause, fields, summary = fault(disk, f"FileNotFoundError: [Errno 2] No such file or directory: '{missing}'")
    assert (cause, fields["pointer"]) == (Cause.CHECKPOINT_POINTER, str(file))
    assert f"{file} names {disk.here}/ckpt/{names.format(60)}, which is not there" in summary
    assert fields["remedy"] == command.format(file)


def test_a_part_deep_below_what_a_file_names_and_a_directory_with_brackets_in_its_name(disk: JobOnDisk) -> None:
    for step in (20, 40):
        pair(disk, f"run[1]/ckpt/global_step_{step}", step)
    file = disk.here / "run[1]" / "ckpt" / "latest_checkpointed_iteration.txt"
    file.write_text("60")
    missing = f"{disk.here}/run[1]/ckpt/global_step_60/actor/dist/optim/rank0/model.pt"
    cause, fields, _ = fault(disk, f"FileNotFoundError: [Errno 2] No such file or directory: '{missing}'")
    assert (cause, fields["pointer"], fields["remedy"][:13]) == (Cause.CHECKPOINT_POINTER, str(file), "printf %s 40 ")


def test_a_pointer_that_is_right_by_now_and_a_link_to_data_are_none(disk: JobOnDisk) -> None:
    ckpt = files(disk)
    (ckpt / "latest").symlink_to("step-40.pt")
    assert faults(disk, "FileNotFoundError: [Errno 2] No such file or directory: 'ckpt/latest'") == [], "a race with who moved it"
    (disk.here / "data").mkdir()
    (disk.here / "data" / "train.bin").symlink_to("/mnt/away/train.bin")
    assert faults(disk, "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'") == []


def test_a_torn_file_beside_a_broken_link_is_not_offered(disk: JobOnDisk) -> None:
    ckpt = files(disk)
    (ckpt / "step-60.pt").write_bytes((ckpt / "step-40.pt").read_bytes()[:-100])
    assert fault(disk, to_itself(ckpt))[1]["remedy"].split()[2] == "step-40.pt"


def test_where_no_whole_one_is_there_none_is_named(disk: JobOnDisk) -> None:
    ckpt = files(disk)
    text = dangling(ckpt)
    for path in ckpt.glob("step-*.pt"):
        path.write_bytes(b"torn")
    answer = fault(disk, text)
    assert answer[0] is None or "remedy" not in answer[1]


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("FileExistsError: [Errno 17] File exists: '/a b/step-60'", ["/a b/step-60"]),
        ("OSError: [Errno 39] Directory not empty: 'x.tmp' -> 'x'", ["x.tmp", "x"]),
        ("FileExistsError: Checkpoint directory ckpt/step_60 already exists.", ["ckpt/step_60"]),
        ('RuntimeError: "./out/iter_0000060": already exists; remove it', ["./out/iter_0000060"]),
        ("ValueError: expected 3/4 of it", ["3/4"]),
        ("KeyError: 60", []),
    ],
)
def test_the_paths_in_a_text(text: str, paths: list[str]) -> None:
    assert list(paths_in(text)) == paths


def test_a_sound_file_that_cannot_be_unpickled_is_no_pointer(disk: JobOnDisk) -> None:
    ckpt = files(disk)
    torch.save({"step": 60}, ckpt / "step-60.pt")
    assert faults(disk, f"RuntimeError: Error(s) in loading state_dict for Net: {ckpt}/step-60.pt") == []


DCP = "CheckpointException: CheckpointException ranks:dict_keys([0, 1]) RuntimeError: Checkpoint already exists and self.overwrite=False."


def saving(disk: JobOnDisk, path: str, *, well: bool | None = False, local: int = 0) -> None:
    """Log that a rank of the second attempt was in a save, which raised, ended well, or did not end."""
    directory = disk.job.attempt_dir(2)
    directory.mkdir(parents=True, exist_ok=True)
    row = {"path": str(disk.here / path), "t": time.time(), "n": 1}
    rows = [{**row, "what": "began", "via": "dcp", "was": stat_of(disk.here / path), "file": False, "steps": 60}]
    rows += [] if well is None else [{**row, "what": "ended", "well": well, "now": stat_of(disk.here / path)}]
    with (directory / f"saves-{local}.jsonl").open("a") as log:
        log.writelines(json.dumps(line) + "\n" for line in rows)


@pytest.mark.parametrize("well", [False, None], ids=["raised", "under way"])
@pytest.mark.parametrize("text", [DCP, "RuntimeError: Checkpoint already exists and self.overwrite=False."])
@pytest.mark.parametrize("below", ["", "/model"], ids=["the directory", "a part of it"])
def test_an_error_that_names_no_path_is_of_the_save_in_which_its_rank_was(
    disk: JobOnDisk,
    well: bool | None,  # noqa: FBT001
    text: str,
    below: str,
) -> None:
    torn = torn_set(disk)
    saving(disk, f"ckpt/step-60{below}", well=well)
    cause, fields, summary = fault(disk, text)
    assert (cause, fields["leftover"], fields["leftover_is_ours"]) == (Cause.CHECKPOINT_LEFTOVER, str(torn), "yes")
    assert f"{torn} is in the way of the save: attempt 1 left it" in summary


def test_a_whole_checkpoint_in_the_way_of_a_refused_save_stays(disk: JobOnDisk) -> None:
    torn_set(disk)
    whole = disk.here / "ckpt" / "step-40"
    saving(disk, "ckpt/step-40")
    cause, fields, summary = fault(disk, DCP)
    assert (cause, fields["leftover"], "leftover_is_ours" in fields) == (Cause.CHECKPOINT_LEFTOVER, str(whole), False)
    assert f"{whole} is in the way of the save: attempt 1 left it (it is whole)" in summary
    assert "its verdict is verified" in fields["stays"]
    disk.checkpoints.ended()
    disk.checkpoints.select(1.0, 2, in_the_way=str(whole))
    assert whole.exists()


def test_an_error_that_names_no_path_may_be_of_a_plain_file(disk: JobOnDisk) -> None:
    (disk.here / "ckpt").mkdir()
    for step in (20, 40, 60):
        torn = disk.rank.saves(f"ckpt/step-{step}.pt", step, cut=step == 60)
    second_attempt(disk)
    saving(disk, "ckpt/step-60.pt")
    cause, fields, _ = fault(disk, "RuntimeError: the checkpoint already exists")
    assert (cause, fields["leftover"], fields["leftover_is_ours"]) == (Cause.CHECKPOINT_LEFTOVER, str(torn), "yes")


def test_where_nothing_is_in_the_way_of_the_save_an_error_of_its_own_stays_the_scripts(disk: JobOnDisk) -> None:
    torn_set(disk)
    saving(disk, "ckpt/step-80")
    assert faults(disk, "ValueError: the key already exists") == [], "the save was to a free name"
    saving(disk, "ckpt/step-60", well=True)
    assert faults(disk, "ValueError: the key already exists") == [], "no save was under way"
    saving(disk, "ckpt/step-60")
    assert faults(disk, "ValueError: the loss is 3") == [], "it says nothing of what is there"


def test_the_save_of_another_rank_explains_no_error(disk: JobOnDisk) -> None:
    torn_set(disk)
    saving(disk, "ckpt/step-60", local=1)
    assert faults(disk, "ValueError: the key already exists") == []


def first_set(disk: JobOnDisk, *, steps: int = 20, directory: str = "ckpt/step-20", file: str = "model.pt") -> Path:
    """Save the first of two files of the first save of all; select before the second attempt, and begin it."""
    first = pair(disk, directory, 20, (file,))
    disk.rank.made_steps(steps)
    assert disk.repairs() == {}, "nothing proves yet that it is not whole"
    second_attempt(disk)
    return first


@pytest.mark.parametrize(("directory", "file", "missing"), [
    ("ckpt/step-20", "model.pt", "optim.pt"),
    ("out/checkpoint-20", "pytorch_model.bin", "trainer_state.json"),
])  # fmt: skip
def test_a_file_that_the_script_misses_in_the_first_save_proves_that_it_did_not_end(
    disk: JobOnDisk, directory: str, file: str, missing: str
) -> None:
    first = first_set(disk, directory=directory, file=file)
    cause, fields, summary = fault(disk, f"FileNotFoundError: [Errno 2] No such file or directory: '{directory}/{missing}'")
    assert (cause, fields["leftover"], fields["leftover_is_ours"]) == (Cause.CHECKPOINT_LEFTOVER, str(first), "yes")
    assert f"{first} is the rest of the first save, in which attempt 1 died: {missing} is missing" in summary
    disk.checkpoints.ended()
    done = dict(disk.checkpoints.select(1.0, 3, in_the_way=fields["leftover"]).repaired)[str(first)]
    assert "the save did not end: moved to" in done
    assert done.endswith("the run begins anew")
    assert [path for path, _ in disk.moved()] == [str(first)]


def test_a_first_save_after_which_the_job_trained_on_is_whole_and_the_missing_file_is_the_scripts_error(disk: JobOnDisk) -> None:
    first = first_set(disk, steps=25)
    assert faults(disk, "FileNotFoundError: [Errno 2] No such file or directory: 'ckpt/step-20/optim.pth'") == []
    assert first.exists()
