"""What ranks saved at one step in one directory is one checkpoint, in whatever layout: it is resumed, mirrored, restored and removed whole.

A real gloo training under torchrun saves weights and optimizer in files of their own. It is killed while it saves the last member of a set.
tests/checkpointing/formats/directories/test_file_set.py and tests/checkpoints/test_layouts.py show each layout.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkpointing.model import Verdict
from checkpointing.verification import verify
from tests.e2e.selfresuming import fast

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

pytestmark = [pytest.mark.process, pytest.mark.timeout(300), pytest.mark.usefixtures("short_intervals")]

SCRIPT = str(Path(__file__).parents[1] / "jobs" / "saves_a_set.py")


def training(layout: str, *more: str, ranks: int = 1) -> list[str]:
    return ["torchrun", "--standalone", f"--nproc-per-node={ranks}", SCRIPT, f"--layout={layout}", *more]


#: A program without torch: it saves the set after the one that it is given, by a plain open, as a C++ writer would.
PLAIN = """
import os, struct, sys
given = sys.argv[2] if len(sys.argv) > 2 else "step-0"
print("resumed from", os.path.basename(given), flush=True)
for step in map(int, os.environ.get("STEPS", str(int(given.rpartition("-")[2]) + 1)).split()):
    os.makedirs(f"ckpt/step-{step}", exist_ok=True)
    for name in ("model", "optimizer"):
        head = b'{"w":{"dtype":"F32","shape":[1024],"data_offsets":[0,4096]}}'
        with open(f"ckpt/step-{step}/{name}.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(head)) + head + struct.pack("<f", step) * 1024)
"""


def test_a_set_of_files_is_resumed_and_mirrored_and_an_incomplete_one_is_passed_over(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (tmp_path / "plain.py").write_text(PLAIN)
    command = [sys.executable, str(tmp_path / "plain.py")]
    subprocess.run(command, cwd=tmp_path, env={"STEPS": "1 2 3"}, check=True, stdout=subprocess.DEVNULL)  # noqa: S603  the program under test
    (tmp_path / "ckpt/step-3/optimizer.safetensors").unlink()
    options = ["--checkpoints", "ckpt/step-*", "--resume-args", "--resume {resume}", "--mirror", str(mirror)]
    run = supervise(*command, options=options)
    assert (run.exit_code(), run.stdout) == (0, "resumed from step-2\n"), run.stderr
    assert "step-3: missing, and in the saves before it: optimizer.safetensors" in run.stderr
    assert run.stderr.splitlines()[-1].endswith(f"1 of 1 saves are in {mirror}")
    assert sorted(path.name for path in mirror.rglob("*.safetensors")) == ["model.safetensors", "optimizer.safetensors"]


@pytest.mark.slow
def test_a_set_with_a_torn_member_is_not_resumed_and_the_one_before_is(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    mirror, node = tmp_path / "mirror", tmp_path / "node"
    mirror.mkdir()
    node.mkdir()
    options = ["--checkpoints", "ckpt/**/*.pt", "--resume-args", "--resume {resume}", "--config", str(fast(tmp_path))]
    run = supervise(*training("ranks_", "--tear-at=30", ranks=2), options=[*options, "--mirror", str(mirror)], place=node)
    assert run.exit_code(deadline_s=150) == 0, run.stderr
    before = node / "ckpt" / "step-20"
    resumes = [line for line in run.stdout.splitlines() if line.startswith("resumed")]
    assert resumes == ["resumed at 0 from None", f"resumed at 20 from {before}"]
    assert run.stderr.splitlines()[-1].endswith(f"4 of 4 saves are in {mirror}")
    saved = [verify(str(node / "ckpt" / f"step-{step}")) for step in (10, 20, 30, 40)]
    assert [(checkpoint.verdict, checkpoint.step) for checkpoint in saved] == [(Verdict.VERIFIED, step) for step in (10, 20, 30, 40)]

    shutil.rmtree(node / "ckpt")
    shutil.rmtree(run.state)
    again = supervise(*training("ranks_", "--steps=50", ranks=2), options=[*options, "--mirror", str(mirror)], place=node)
    assert again.exit_code(deadline_s=120) == 0, again.stderr
    assert f"resumed at 40 from {node / 'ckpt' / 'step-40'}" in again.stdout


@pytest.mark.slow
def test_so_many_sets_stay_whole_and_the_older_ones_go_whole(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    options = ["--checkpoints", "ckpt/epoch_*", "--resume-args", "--resume {resume}", "--config", str(fast(tmp_path)), "--keep", "2"]
    run = supervise(*training("nested", "--steps=60", "--pace-s=0.15"), options=options)
    assert run.exit_code(deadline_s=150) == 0, run.stderr
    left = sorted(path.name for path in (tmp_path / "ckpt").iterdir() if not path.name.startswith("."))
    assert left == ["epoch_50", "epoch_60"], run.stderr
    assert {len(list((tmp_path / "ckpt" / name).rglob("*.*"))) for name in left} == {len(list((tmp_path / "ckpt" / left[0]).rglob("*.*")))}


@pytest.mark.slow
def test_sets_that_nobody_declared_are_discovered_and_mirrored(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    run = supervise(*training("nested"), options=["--mirror", str(mirror), "--config", str(fast(tmp_path))])
    assert run.exit_code(deadline_s=120) == 0, run.stderr
    assert run.stderr.splitlines()[-1].endswith(f"4 of 4 saves are in {mirror}")
    assert run.status()["saves"] == f"4 of 4 saves are in {mirror}"


@pytest.mark.slow
def test_a_declared_pattern_that_misses_the_saves_is_reported_with_a_correct_one(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    options = ["--checkpoints", "ckpt/step-*.pt", "--resumes-itself", "--mirror", str(mirror), "--config", str(fast(tmp_path))]
    run = supervise(*training("pair", "--pace-s=0.2"), options=options)
    assert run.exit_code(deadline_s=120) == 0, run.stderr
    assert "finds no checkpoint there" in run.stderr
    assert "declare 'ckpt/step-[0-9]*' instead" in run.stderr
    assert run.stderr.splitlines()[-1].endswith(f"4 of 4 saves are in {mirror}"), "what was discovered is mirrored all the same"
