"""The GPU memory that a rank records, compared with torch's own answers; and the cost of the record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.instrument._supervise_shim import layout
from supervisor.observe.ranks import heartbeats

pytestmark = pytest.mark.process
#: Leaves the last byte of each sample to the hook: allocates, frees in pieces, steps, and prints what torch says then.
SCRIPT = """
import json, time, torch
from torch.cuda import memory
torch.cuda.set_device(torch.cuda.device_count() - 1)
torch.cuda.set_per_process_memory_fraction(0.5)
model = torch.nn.Linear(4096, 4096).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
pinned = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)
pieces = [torch.empty(3 << 20, dtype=torch.uint8, device="cuda") for _ in range(200)]
del pieces[::2]
model(torch.ones(64, 4096, device="cuda")).sum().backward()
optimizer.step()
stats, device = memory.memory_stats(), torch.cuda.current_device()
began = time.perf_counter()
for _ in range(100):
    memory.memory_stats_as_nested_dict()
took_s = (time.perf_counter() - began) / 100
print(json.dumps([stats["allocated_bytes.all.current"], stats["reserved_bytes.all.current"], stats["allocated_bytes.all.peak"],
    stats["inactive_split_bytes.all.current"], int(torch.cuda.get_device_properties(device).total_memory * 0.5), took_s]))
"""


def test_the_heartbeat_has_what_torch_says(gpus: list[str], tmp_path: Path) -> None:
    path = tmp_path / "attempt-0001" / "heartbeat"
    heartbeats.create(path, 1)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environ = os.environ | {
        "PYTHONPATH": str(Path(layout.__file__).parents[1]), "SUPERVISE_JOB_SHIM": "rank", "SUPERVISE_JOB_DIR": str(tmp_path),
        "SUPERVISE_JOB_ATTEMPT": "1", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
    }  # fmt: skip
    done = subprocess.run([sys.executable, str(script)], env=environ, capture_output=True, text=True, check=True, timeout=300)  # noqa: S603
    *figures, took_s = json.loads(done.stdout)
    (seen,) = heartbeats.read(path)
    assert gpus
    assert seen.gpu_memory is not None
    memory = seen.gpu_memory
    assert [memory.allocated, memory.reserved, memory.peak, memory.split, memory.limit] == figures
    assert memory.split > 0
    assert seen.pinned is None or seen.pinned >= 64 << 20, "torch tells it from 2.7 on"
    assert took_s < 1e-3, "once in 10 s, beside steps of 10 ms"
