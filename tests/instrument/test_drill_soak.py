"""The faults of a soak inside a rank: each order is taken once, at its place, and only in the drill."""

from __future__ import annotations

import json
import signal
import zipfile
from typing import TYPE_CHECKING

import pytest

from supervisor.cli.drill.faults import SHIM
from tests.jobs import light

if TYPE_CHECKING:
    from conftest import Attempt

pytestmark = pytest.mark.process

TRAIN = (
    light.IMPORT
    + """
import errno, json, os, sys, time, torch, zipfile
from torch.utils.data import DataLoader
model = torch.nn.Linear(2, 2)
optimizer = light_sgd(torch, model.parameters())
job, number = os.environ["SUPERVISE_JOB_DIR"], 0

def order(kind, rank=3):
    global number
    number += 1
    with open(job + "/new-order", "w") as file:
        json.dump({"number": number, "kind": kind, "rank": rank}, file)
    os.replace(job + "/new-order", job + "/drill-order")

def step():
    model(torch.ones(2, 2)).sum().backward()
    optimizer.step()

order("oom")
step()
print("no fault before the first step was made")
try:
    step()
except torch.OutOfMemoryError as error:
    print("memory:", str(error)[:24])
step()
order("oom", rank=2)
step()
print("no fault of another rank")

batches = iter(DataLoader(range(100)))
next(batches)
sys.modules["_supervise_soak"].LOADER_S = 0.3
order("loader")
began = time.monotonic()
next(batches)
print("slow:", time.monotonic() - began >= 0.3)
next(batches)

order("disk", rank=None)
try:
    torch.save(model.state_dict(), "full.pt")
except OSError as error:
    print("disk:", error, 0 < os.stat("full.pt").st_size, zipfile.is_zipfile("full.pt"))
with open("full.pt", "wb") as file:
    order("disk", rank=None)
    try:
        torch.save(model.state_dict(), file)
    except OSError as error:
        print("disk:", error, 0 < os.stat("full.pt").st_size, zipfile.is_zipfile("full.pt"))
torch.save(model.state_dict(), "full.pt")
print("whole:", torch.load("full.pt")["bias"].shape)
order("torn", rank=None)
torch.save(model.state_dict(), "torn.pt")
print("not reached")
"""
)


@pytest.mark.slow
def test_each_order_strikes_once_at_its_place(attempt: Attempt) -> None:
    (attempt.job_dir / "drill").write_text(json.dumps({"kind": "soak"}))
    done = attempt.run("-c", TRAIN, env=attempt.env(pythonpath=str(SHIM), RANK="3", LOCAL_RANK="0"), cwd=attempt.job_dir, python=["-u"])
    assert done.stdout.splitlines() == [
        "no fault before the first step was made",
        "memory: CUDA out of memory. Trie",
        "no fault of another rank",
        "slow: True",
        "disk: [Errno 28] No space left on device True False",
        "disk: [Errno 28] No space left on device True False",
        "whole: torch.Size([2])",
    ], done.stderr
    assert done.returncode == -signal.SIGKILL
    assert not zipfile.is_zipfile(attempt.job_dir / "torn.pt")
    assert sorted(path.name for path in attempt.job_dir.glob("drill-s*")) == [
        *(f"drill-seen-{place}" for place in ("loader", "save", "step")),
        *(f"drill-struck-{number}" for number in (1, 3, 4, 5, 6)),
    ]
    row = json.loads((attempt.job_dir / "drill-struck-6").read_text())
    assert (row["rank"], row["step"]) == (3, 3)
