"""What ranks saved at one step in one directory is one checkpoint, in whatever layout: it is resumed, mirrored, restored and removed whole.

A real gloo training under torchrun saves weights and optimizer in files of their own. It is killed while it saves the last member of a set.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.selfresuming import fast

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.conftest import Supervised

pytestmark = [pytest.mark.process, pytest.mark.timeout(300), pytest.mark.usefixtures("short_intervals")]

SCRIPT = str(Path(__file__).parents[1] / "jobs" / "saves_a_set.py")
#: layout → what is declared, and the name of a step's directory
DECLARED = {
    "pair": ("ckpt/step-*", "step-{}"),
    "safetensors": ("ckpt/step-*", "step-{}"),
    "nested": ("ckpt/epoch_*", "epoch_{}"),
    "ranks": ("ckpt", "step-{}"),
    "ranks_": ("ckpt/**/*.pt", "step-{}"),
    "json": ("ckpt/step-*", "step-{}"),
}


def training(layout: str, *more: str) -> list[str]:
    return ["torchrun", "--standalone", "--nproc-per-node=2", SCRIPT, f"--layout={layout}", *more]


def contents(place: Path) -> dict[str, str]:
    """Return the digest of each file of the newest set."""
    return {str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest() for path in place.rglob("*") if path.is_file()}


def undisturbed(supervise: Callable[..., Supervised], place: Path, layout: str, options: list[str]) -> dict[str, str]:
    """Return what a run that nobody kills leaves."""
    place.mkdir()
    run = supervise(*training(layout), options=options, place=place)
    assert run.exit_code(deadline_s=120) == 0, run.stderr
    return contents(place / "ckpt")


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


def test_a_set_of_files_is_resumed_and_mirrored_and_one_that_has_not_all_files_is_passed_over(
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
@pytest.mark.parametrize("how", ["torn", "left-out"])
@pytest.mark.parametrize("layout", DECLARED)
def test_a_set_with_a_torn_or_missing_member_is_not_resumed_and_the_one_before_is(
    supervise: Callable[..., Supervised], tmp_path: Path, layout: str, how: str
) -> None:
    pattern, name = DECLARED[layout]
    mirror, node = tmp_path / "mirror", tmp_path / "node"
    mirror.mkdir()
    node.mkdir()
    options = ["--checkpoints", pattern, "--resume-args", "--resume {resume}", "--config", str(fast(tmp_path))]
    tear = ["--tear-at=30", *(["--leave-out"] if how == "left-out" else [])]
    run = supervise(*training(layout, *tear), options=[*options, "--mirror", str(mirror)], place=node)
    assert run.exit_code(deadline_s=150) == 0, run.stderr
    before = node / "ckpt" / name.format(20)
    said = [line for line in run.stdout.splitlines() if line.startswith("resumed")]
    assert said == ["resumed at 0 from None", f"resumed at 20 from {before}"]
    assert run.stderr.splitlines()[-1].endswith(f"4 of 4 saves are in {mirror}")
    assert contents(node / "ckpt") == undisturbed(supervise, tmp_path / "calm", layout, options)

    shutil.rmtree(node / "ckpt")
    shutil.rmtree(run.state)
    again = supervise(*training(layout, "--steps=50"), options=[*options, "--mirror", str(mirror)], place=node)
    assert again.exit_code(deadline_s=120) == 0, again.stderr
    assert f"resumed at 40 from {node / 'ckpt' / name.format(40)}" in again.stdout


@pytest.mark.slow
@pytest.mark.parametrize("layout", DECLARED)
def test_so_many_sets_stay_whole_and_the_older_ones_go_whole(supervise: Callable[..., Supervised], tmp_path: Path, layout: str) -> None:
    pattern, name = DECLARED[layout]
    options = ["--checkpoints", pattern, "--resume-args", "--resume {resume}", "--config", str(fast(tmp_path)), "--keep", "2"]
    run = supervise(*training(layout, "--steps=60", "--pace-s=0.15"), options=options)
    assert run.exit_code(deadline_s=150) == 0, run.stderr
    left = sorted(path.name for path in (tmp_path / "ckpt").iterdir() if not path.name.startswith("."))
    assert left == sorted(name.format(step) for step in (50, 60)), run.stderr
    assert {len(list((tmp_path / "ckpt" / one).rglob("*.*"))) for one in left} == {len(list((tmp_path / "ckpt" / left[0]).rglob("*.*")))}


@pytest.mark.slow
def test_a_killed_job_resumes_from_its_sets_and_ends_with_the_content_of_a_run_without_a_kill(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    node = tmp_path / "node"
    node.mkdir()
    options = ["--checkpoints", "ckpt/step-*", "--resume-args", "--resume {resume}", "--config", str(fast(tmp_path))]
    first = supervise(*training("pair", "--steps=20"), options=options, place=node)
    assert first.exit_code(deadline_s=120) == 0, first.stderr
    second = supervise(*training("pair"), options=options, place=node)
    assert second.exit_code(deadline_s=120) == 0, second.stderr
    assert f"resumed at 20 from {node}/ckpt/step-20" in second.stdout
    assert contents(node / "ckpt") == undisturbed(supervise, tmp_path / "calm", "pair", options)


@pytest.mark.slow
def test_sets_that_nobody_declared_are_discovered_and_mirrored(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    run = supervise(*training("nested"), options=["--mirror", str(mirror), "--config", str(fast(tmp_path))])
    assert run.exit_code(deadline_s=120) == 0, run.stderr
    assert run.stderr.splitlines()[-1].endswith(f"4 of 4 saves are in {mirror}")
    assert run.status()["saves"] == f"4 of 4 saves are in {mirror}"


@pytest.mark.slow
def test_a_declared_pattern_that_does_not_find_the_saves_is_said_with_the_one_that_does(
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
