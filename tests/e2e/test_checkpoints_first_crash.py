"""The first crash of a script that resumes by itself: nobody was seen to load from its one file yet, and its second save is cut off.

A real gloo training under torchrun saves in place and is killed in its second save, nothing declared. The next attempt continues from the
last good save, also where the script would have swallowed the error.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.manifest.documents import Manifests
from tests.e2e.selfresuming import TRAIN, fast
from tests.e2e.untouched import assert_untouched, listing, moved
from tests.jobs import light
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.supervised import Supervised

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("short_intervals"),
]  # several attempts, each of which imports torch


@pytest.mark.slow
def test_one_kill_in_mid_save_costs_a_script_that_swallows_its_load_error_one_save(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "other.pt").write_bytes(b"PK\x03\x04 torn long ago, by somebody else")
    options = ["--config", str(fast(tmp_path))]
    before = listing(tmp_path)
    words = ["--style=inplace", "--swallow", "--tear-at=20", "--steps=30", "--pace-s=0.5"]
    run = supervise(*TRAIN, *words, options=options)
    assert run.exit_code(deadline_s=240) == 0
    resumes = [line for line in run.stdout.splitlines() if line.startswith("resumed")]
    assert resumes == ["resumed at 0", "resumed at 10"]
    assert run.attempts() == 2
    torn = tmp_path / "ckpt.pt"
    assert [path for path, _ in moved(run)] == [str(torn)]
    assert "the copy of step 10 was put in its place" in run.stderr
    assert_untouched(run, before)


@pytest.mark.slow
def test_a_torn_checkpoint_that_a_link_leads_to_stays_where_it_is(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    options = ["--config", str(fast(tmp_path))]
    (tmp_path / "ckpt").mkdir()
    words = ["--style=steps", "--latest", "--swallow", "--tear-at=30", "--steps=40", "--pace-s=0.3"]
    run = supervise(*TRAIN, *words, options=options)
    assert run.exit_code(deadline_s=240) == 0
    assert moved(run) == []
    assert "latest.pt leads to it" in run.stderr
    assert (tmp_path / "ckpt" / "latest.pt").exists()


#: As nanoGPT does: one file, written in place, and a switch that says to begin with it. Comes after light.IMPORT.
SWITCHED = """
import os, pathlib, signal, sys
import torch
model = torch.nn.Linear(2, 2)
optimizer = light_sgd(torch, model.parameters())
first = 0
pathlib.Path("out").mkdir(exist_ok=True)
if "--init_from=resume" in sys.argv:
    first = torch.load("out/ckpt.pt")["iter_num"]
print("began at", first, flush=True)
for step in range(first + 1, 31):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    if step % 10 == 0:
        torch.save({"iter_num": step, "model": model.state_dict()}, "out/ckpt.pt")
    if step == 15 and os.environ["SUPERVISE_JOB_ATTEMPT"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow  # test_program_resume.py shows a switch
def test_a_switch_is_used_once_a_save_was_seen_though_no_place_is_declared(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(light.IMPORT + SWITCHED)
    run = supervise(sys.executable, str(script), options=["--resume-switch", "--init_from=resume"])
    assert run.exit_code(deadline_s=60) == 0
    assert "warning: without --checkpoints, --init_from=resume is used only after" in run.stderr
    assert run.stdout.splitlines() == ["began at 0", "began at 10"]
    assert "resumed at step 10 from" in run.stderr


#: Loads its `last.pt` whenever it is there; somebody else tears that before the first crash. Comes after light.IMPORT.
LAST = """
import os, pathlib, signal, time
import torch
model = torch.nn.Linear(2, 2)
optimizer = light_sgd(torch, model.parameters())
last = pathlib.Path("out/last.pt")
last.parent.mkdir(exist_ok=True)
first = torch.load(last)["step"] if last.exists() else 0
for step in range(first + 1, 31):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    if step % 10 == 0:
        for path in (last, f"out/step_{step}.pt"):
            torch.save({"step": step, "model": model.state_dict()}, path)
pathlib.Path("saved").touch()
while not pathlib.Path("go-on").exists():
    time.sleep(0.05)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_torn_file_of_a_stranger_is_met_once_and_the_card_names_the_whole_one(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(light.IMPORT + LAST)
    run = supervise(sys.executable, str(script), options=["--config", str(fast(tmp_path))])
    wait_for((tmp_path / "saved").exists, "the saves", alive=run.alive)
    known = Manifests(CheckpointCatalogue(next(run.state.glob("*/nodes/*/checkpoints"))))
    wait_for(lambda: known.get(str(tmp_path / "out" / "step_30.pt")), "its verification", alive=run.alive)
    os.truncate(tmp_path / "out" / "last.pt", 700)
    (tmp_path / "go-on").touch()
    assert run.exit_code(deadline_s=60) == 65
    assert run.attempts() == 2
    reported = " ".join(run.stderr.split())
    assert "last.pt is torn step_30.pt is whole" in reported or "a copy of last.pt is kept" in reported
