"""`supervise -- torchrun train.py` alone protects a script that resumes by itself from its own torn file, and touches no other file.

A real gloo training under torchrun saves in its own way, nothing declared, and is killed in the middle of a save. It comes to its end
from a whole checkpoint, and every file that is not its own is where and what it was.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.manifest.documents import Manifests
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.mirror.source import TransferControl
from tests.checkpointing.mirror.process import save, upload, waiting
from tests.e2e.selfresuming import TRAIN, fast
from tests.e2e.untouched import assert_untouched, listing, moved
from tests.scale.object_store import object_store
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Bucket, Supervised, Surroundings

#: A job that imports no torch.
ALONE = [sys.executable, str(Path(__file__).parents[1] / "jobs" / "no_torch.py"), "--save-every=10"]
RESUMING = ["--checkpoints", "ckpt/*.pt", "--resume-args", "--resume {resume}"]

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("short_intervals"),
]  # several runs, each of which imports torch


@pytest.mark.slow
def test_a_torn_checkpoint_of_its_own_is_out_of_the_way_of_a_script_that_resumes_by_itself(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    (tmp_path / "ckpt").mkdir()
    foreign = tmp_path / "ckpt" / "step_999.pt"
    foreign.write_bytes(b"PK\x03\x04 torn long ago, by somebody else")
    (tmp_path / "ckpt" / "notes.txt").write_text("mine")
    before = listing(tmp_path)
    run = supervise(*TRAIN, "--style=steps", "--tear-at=30", "--steps=40", "--pace-s=0.2", options=["--config", str(fast(tmp_path))])
    assert run.exit_code(deadline_s=180) == 0, "it did not come to its end"
    assert run.stdout.split() == ["resumed", "at", "0", "resumed", "at", "20"]
    assert run.attempts() == 2
    assert moved(run) == [(str(tmp_path / "ckpt" / "step_30.pt"), f"{tmp_path}/.supervise-aside/torn-a")]
    assert "moved to" in run.stderr
    assert_untouched(run, before)


@pytest.mark.slow
def test_a_file_that_is_written_in_place_is_put_back_as_it_was(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    options = ["--config", str(fast(tmp_path))]
    (tmp_path / "best.pt").write_bytes(b"PK\x03\x04 torn long ago, by somebody else")
    before = listing(tmp_path)
    run = supervise(*TRAIN, "--style=inplace", "--tear-at=30", "--steps=40", "--pace-s=0.4", options=options)
    assert run.exit_code(deadline_s=180) == 0
    resumes = [line for line in run.stdout.splitlines() if line.startswith("resumed")]
    assert resumes == ["resumed at 0", "resumed at 20"]
    assert run.attempts() == 2
    torn = tmp_path / "ckpt.pt"
    assert [path for path, _ in moved(run)] == [str(torn)]
    assert "the copy of step 20 was put in its place" in run.stderr
    assert_untouched(run, before)


def continues_on_a_wiped_disk(supervise: Callable[..., Supervised], node: Path, mirror: str, **reach: str) -> None:
    """Train, lose the whole working directory, train on."""
    node.mkdir()
    options = [*RESUMING, "--mirror", mirror]
    job = [*ALONE, "--progress=progress"]
    assert supervise(*job, "--steps=20", options=options, place=node, **reach).exit_code() == 0
    shutil.rmtree(node)
    second = supervise(*job, "--steps=30", options=options, place=node, **reach)
    assert second.exit_code() == 0
    assert f"restored {node}/ckpt/step-000020.pt of step 20 from {mirror}" in second.stderr
    assert [step for _, step in second.progress()] == list(range(21, 31))


def test_a_wiped_disk_continues_from_a_directory(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    continues_on_a_wiped_disk(supervise, tmp_path / "node", str(tmp_path / "mirror"))


@pytest.mark.slow  # tests/checkpointing/mirror/test_command_line.py sends and restores through the same server
@pytest.mark.s3
def test_a_wiped_disk_continues_from_s3(supervise: Callable[..., Supervised], tmp_path: Path, bucket: Bucket) -> None:
    continues_on_a_wiped_disk(supervise, tmp_path / "node", bucket.url, **bucket.reach)


#: A program whose saves no hook sees: weights by a plain open, as a C++ writer would make them.
PLAIN = """
import glob, json, os, struct, time
names = glob.glob("ckpt/step_*.safetensors")
at = max((int(name.split("_")[1].split(".")[0]) for name in names), default=0)
print("resumed at", at, flush=True)
os.makedirs("ckpt", exist_ok=True)
for step in range(at + 1, at + 4):
    head = json.dumps({"w": {"dtype": "F32", "shape": [1024], "data_offsets": [0, 4096]}}).encode()
    with open(f"ckpt/step_{step}.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + struct.pack("<f", step) * 1024)
    time.sleep(0.3)
"""


@pytest.mark.slow
def test_a_save_without_a_hook_is_mirrored_and_returns_to_an_empty_disk(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    mirror, node = tmp_path / "mirror", tmp_path / "node"
    (node / "ckpt").mkdir(parents=True)
    mirror.mkdir()
    (tmp_path / "plain.py").write_text(PLAIN)
    options = ["--job", "plain", "--checkpoints", "ckpt/*.safetensors", "--resumes-itself", "--mirror", str(mirror)]
    options += ["--config", str(fast(tmp_path))]
    command = [sys.executable, str(tmp_path / "plain.py")]
    first = supervise(*command, options=options, place=node)
    assert (first.exit_code(), first.stdout) == (0, "resumed at 0\n")
    sent = {path.parents[1].name for path in mirror.rglob("manifest.json")}
    assert "step-3" in sent, "the last save of the run"
    shutil.rmtree(node / "ckpt")
    shutil.rmtree(first.state)
    second = supervise(*command, options=options, place=node)
    assert (second.exit_code(), second.stdout) == (0, "resumed at 3\n")
    again = [path for path in mirror.rglob("manifest.json") if path.parents[1].name == "step-3"]
    assert len(again) == 1, "what was restored is not sent again"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_end_waits_for_the_upload_with_a_line_and_two_signals_end_that(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    """The mirror is away: what the finished job leaves is only here."""
    node, sink = tmp_path / "node", tmp_path / "alerts"
    node.mkdir()
    options = [*RESUMING, "--mirror", "s3://bucket", "--config", str(fast(tmp_path))]
    options += ["--set", "checkpoints.finish_s=1800"]
    program = json.dumps(["/bin/sh", "-c", f"cat >> {sink}"])
    with (tmp_path / "fast.toml").open("a") as file:
        file.write(f'\n[[alerts.sink]]\nkind = "exec"\ncommand = {program}\n')
    reach = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "key") | {"AWS_DEFAULT_REGION": "us-east-1"}
    with object_store([]) as store:
        run = supervise(*ALONE, "--steps=20", options=options, place=node, AWS_ENDPOINT_URL_S3=store.url, **reach)
        run.wait_for_line("to be mirrored to s3://bucket")
    wait_for(lambda: "to the mirror: " in run.stderr, "the line of the end", 150, alive=run.alive)
    line = next(line for line in run.stderr.splitlines() if "to the mirror: " in line)
    assert re.search(r"sending the last .*checkpoints? to the mirror: [\d.]+ \w+ left; waits 2\d min more, a signal shortens that", line), (
        line
    )
    run.signal(signal.SIGTERM)
    wait_for(lambda: "another signal ends that" in run.stderr, "the shorter wait", 20, alive=run.alive)
    run.signal(signal.SIGINT)
    assert run.exit_code(60) == 0
    assert "done, no incident" in run.stderr.splitlines()[-1]
    assert f"only here: {node}/ckpt/step-000020.pt and 1 more" in run.stderr.splitlines()[-1]
    assert "The last checkpoint step-000020.pt is in no mirror" in sink.read_text()


@pytest.mark.slow
def test_a_mirror_with_only_other_jobs_checkpoints_asks_what_is_meant(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    options = ["--mirror", str(mirror)]
    empty = supervise("true", options=options)
    assert empty.exit_code() == 0, "a mirror that holds nothing is a normal start"
    described = save(tmp_path / "elsewhere" / "step_5.pt", 1 << 20, 5, job="base")
    entry = waiting(str(tmp_path / "elsewhere" / "step_5.pt"), described.read_bytes())
    upload(open_backend(str(mirror)), entry, TransferControl())
    (tmp_path / "elsewhere" / "step_5.pt").unlink()
    refused = supervise("true", options=options)
    assert refused.exit_code() == 78
    assert "only of others: base" in refused.stderr
    assert "--set checkpoints.restore_from=none" in refused.stderr
    status = refused.status()
    assert (status["exit_code"], status["incidents"]) == (78, 0), "it was refused, and did not die"
    explained = refused.ask("why").stdout
    assert "supervise died" not in explained
    assert "supervise itself died" not in explained
    anew = supervise("true", options=[*options, "--set", "checkpoints.restore_from=none"])
    assert (anew.exit_code(), "restored" in anew.stderr) == (0, False)
    named = supervise("true", options=[*options, "--set", "checkpoints.restore_from=base"])
    assert named.exit_code() == 0
    assert f"restored {tmp_path}/elsewhere/step_5.pt of step 5" in named.stderr


@pytest.mark.slow  # tests/checkpointing/mirror/test_restore.py passes one over
def test_a_damaged_newest_copy_is_passed_over_aloud(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    for step in (5, 6):
        described = save(tmp_path / "ckpt" / f"step_{step}.pt", 1 << 20, step, job="e2e")
        entry = waiting(str(tmp_path / "ckpt" / f"step_{step}.pt"), described.read_bytes())
        upload(open_backend(str(mirror)), entry, TransferControl())
        (tmp_path / "ckpt" / f"step_{step}.pt").unlink()
    [newest] = mirror.rglob("data/step_6.pt")
    newest.write_bytes(b"x" + newest.read_bytes()[1:])
    run = supervise("true", options=["--mirror", str(mirror)])
    assert run.exit_code() == 0
    assert f"restored {tmp_path}/ckpt/step_5.pt of step 5" in run.stderr
    for text in (run.stderr, run.ask("status").stdout, run.ask("why").stdout):
        flat = " ".join(text.split())
        assert "passed over" in flat
        assert "the copy is damaged" in flat
    assert "checkpoint_restored" in run.journal()


@pytest.mark.slow
def test_a_mirror_that_cannot_be_reached_is_no_business_of_the_training(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    options = [*RESUMING, "--config", str(fast(tmp_path))]
    assert supervise(*ALONE, "--steps=10", options=options).exit_code() == 0
    nowhere = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "SUPERVISE_CHECKPOINTS_FINISH_S": "1"}
    nowhere["AWS_ENDPOINT_URL_S3"] = "http://127.0.0.1:9"
    run = supervise(*ALONE, "--steps=20", "--progress=progress", options=[*options, "--mirror", "s3://bucket/prefix"], **nowhere)
    assert run.exit_code() == 0
    assert run.attempts() == 1
    assert [step for _, step in run.progress()] == list(range(11, 21))
    assert "not in the mirror yet, and kept for the next start" in run.stderr


@pytest.mark.slow
def test_only_so_many_of_its_own_stay_where_that_was_asked_for(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    options = ["--checkpoints", "ckpt/step_*.pt", "--resumes-itself", "--config", str(fast(tmp_path))]
    assert supervise(*TRAIN, "--steps=20", options=options).exit_code() == 0
    run = supervise(*TRAIN, "--steps=60", "--pace-s=0.2", options=[*options, "--keep", "1"])
    assert run.exit_code() == 0
    assert f"removed {tmp_path}/ckpt/step_30.pt" in run.stderr
    left = {path.name for path in (tmp_path / "ckpt").glob("*.pt")}
    assert {"step_10.pt", "step_20.pt", "step_60.pt"} <= left, "what an earlier run wrote stays"
    assert "step_30.pt" not in left


IN_PLACE = """
import argparse, os, pathlib, signal, time
import torch
import torch.distributed as dist

class Kills:
    def __reduce__(self):  # in the middle of the second save
        os.kill(os.getpid(), signal.SIGKILL)

parser = argparse.ArgumentParser()
parser.add_argument("--resume")
resume = parser.parse_args().resume
dist.init_process_group("gloo")
first = torch.load(resume)["step"] if resume else 0
print("resumed at", first, flush=True)
out = pathlib.Path("sub/ckpt.pt")
for step in range(first + 1, 4):
    torch.save({"step": step, "w": torch.ones(4096), "kills": Kills() if step == 2 and not resume else None}, out)
    while step == 1 and not os.path.exists("verified"):
        time.sleep(0.05)
"""


def wait_until_the_first_save_is_verified(run: Supervised, place: Path) -> None:
    """Let the script of IN_PLACE save for the second time once its first save is known to be whole."""
    wait_for((place / "sub" / "ckpt.pt").exists, "the first save", alive=run.alive)
    known = Manifests(CheckpointCatalogue(next(run.state.glob("*/nodes/*/checkpoints"))))
    wait_for(lambda: known.get(str(place / "sub" / "ckpt.pt")), "its verification", alive=run.alive)
    (place / "verified").touch()


@pytest.mark.slow
def test_a_kill_in_the_second_save_does_not_lose_the_first_and_the_last_one_is_verified(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "t.py").write_text(IN_PLACE)
    options = ["--checkpoints", "sub/ckpt.pt", "--resume-args", "--resume {resume}"]
    run = supervise("torchrun", "--standalone", "--nproc-per-node=1", "t.py", options=options)
    wait_until_the_first_save_is_verified(run, tmp_path)
    assert run.exit_code(deadline_s=120) == 0, run.stderr
    assert run.stdout.split() == ["resumed", "at", "0", "resumed", "at", "1"]
    last = run.stderr.splitlines()[-1]
    cost = r"1 incident(, at least \d+ s lost)?"
    assert re.fullmatch(rf"supervise: done, {cost}; the newest checkpoint is verified: \S+ \(step 3\)", last), last
    assert f"{tmp_path}/sub/ckpt.pt" in last
    listed = json.loads(run.ask_again("checkpoints", "ls", "--json", "--checkpoints", "sub/ckpt.pt").stdout)
    assert [(row["state"], row["step"]) for row in listed["checkpoints"]] == [("verified", 3)]
    latest = json.loads(run.ask_again("checkpoints", "latest", "--json", "sub").stdout)
    assert (latest["path"], latest["step"]) == (f"{tmp_path}/sub/ckpt.pt", 3)


#: A program whose checkpoint holds a member of its own enum, which loading calls.
ENUM = """
import enum, os, sys, torch
class Mode(enum.Enum):
    WARM = 1
at = torch.load(sys.argv[2], weights_only=False)["step"] if len(sys.argv) > 2 else 0
print("resumed at", at, flush=True)
os.makedirs("ckpt", exist_ok=True)
torch.save({"step": at + 1, "mode": Mode.WARM}, f"ckpt/step_{at + 1}.pt")
"""


@pytest.mark.slow
def test_a_second_save_that_raises_and_leaves_an_empty_zip_does_not_lose_the_first(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    """torch.save closes its file as a whole zip, in which there is nothing."""
    (tmp_path / "sub").mkdir()
    raises = IN_PLACE.replace("os.kill(os.getpid(), signal.SIGKILL)", 'raise RuntimeError("this cannot be pickled")')
    (tmp_path / "t.py").write_text(raises)
    options = ["--checkpoints", "sub/ckpt.pt", "--resume-args", "--resume {resume}"]
    run = supervise("torchrun", "--standalone", "--nproc-per-node=1", "t.py", options=options)
    wait_until_the_first_save_is_verified(run, tmp_path)
    assert run.exit_code(deadline_s=120) == 0, run.stderr
    assert run.stdout.split() == ["resumed", "at", "0", "resumed", "at", "1"]
    assert "without data.pkl" in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("saved", ["a dictionary", "a member of an enum of its own"])
def test_a_job_of_a_chain_resumes_from_what_the_job_before_it_saved(
    supervise: Callable[..., Supervised], tmp_path: Path, surroundings: type[Surroundings], saved: str
) -> None:
    is_enum = saved != "a dictionary"
    (tmp_path / "train.py").write_text(ENUM if is_enum else ENUM.replace("Mode.WARM}", "Mode.WARM.value}"))
    prefix = ["supervise", "--state-dir", str(tmp_path / "state"), "--checkpoints", "ckpt/step_*.pt", "--resume-args", "--resume {resume}"]
    prefix += ["--job", "chain"] if is_enum else []  # what a job wrote itself may call its classes
    command, unnamed = [*prefix, "--", sys.executable, str(tmp_path / "train.py")], surroundings(without_us=True)
    for number in range(3):  # each `sbatch` gives another name to the job
        run = supervise(*command, around=unnamed, place=tmp_path, SLURM_JOB_ID=str(100 + number))
        assert (run.exit_code(), run.stdout) == (0, f"resumed at {number}\n"), run.stderr
    names = ["chain"] if is_enum else ["slurm-100", "slurm-101", "slurm-102"]
    assert sorted(path.name for path in run.state.iterdir()) == names


def test_newer_checkpoints_that_cannot_be_read_are_named_where_an_older_one_is_taken(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    assert supervise(*ALONE, "--steps=10", options=RESUMING).exit_code() == 0
    unread = tmp_path / "ckpt" / "step-000020.pt"
    unread.symlink_to(unread.name)
    run = supervise(*ALONE, "--steps=10", options=RESUMING)
    assert run.exit_code() == 0
    why = f"{unread}: it could not be read: Too many levels of symbolic links"
    assert f"supervise: warning: checkpoint passed over: {why}" in run.stderr
    (tmp_path / "ckpt" / "step-000010.pt").unlink()
    run = supervise(*ALONE, "--steps=10", options=RESUMING)
    assert run.exit_code() == 65
    assert "passed over" not in run.stderr, "none is taken: the card lists them"
    assert f"supervisecheckpointsverify{unread}" in "".join(run.stderr.split()), "a card may break its lines within a long path"


@pytest.mark.parametrize("name", ["base.pt", "step-000020.pt"])
def test_a_start_is_not_refused_for_the_room_that_another_or_a_torn_checkpoint_would_take(
    supervise: Callable[..., Supervised], tmp_path: Path, name: str
) -> None:
    assert supervise(*ALONE, "--steps=10", options=RESUMING).exit_code() == 0
    large = tmp_path / "ckpt" / name
    large.write_bytes(b"PK\3\4 torn, and preallocated")
    os.truncate(large, 15 << 40)  # sparse: more than the disk has
    run = supervise(*ALONE, "--steps=20", options=RESUMING)
    assert run.exit_code() == 0, run.stderr
