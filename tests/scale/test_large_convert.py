"""A checkpoint of 20 GB is converted within 2 GiB of memory: one tensor is in memory at a time, never the checkpoint.

The source is small on the disk: its tensors are views of one storage, each at another offset, so each has other numbers and is read by
itself. The target has all of its bytes, and is read again. It is as large as the disk has room for, at most 20 GB; its size is printed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

MIB, GB = 1 << 20, 10**9
TENSOR_BYTES = 512 * MIB
MOST_MEMORY_BYTES = 2048 * MIB
#: What stays free for others on the disk, and the least that proves offsets beyond 32 bits.
SPARED_BYTES, LEAST_BYTES = 6 * GB, 5 * GB
_MEASURED = (
    "import resource, subprocess, sys; code = subprocess.run(sys.argv[1:]).returncode; "
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10); sys.exit(code)"
)


def source_of(place: Path, n_tensors: int) -> Path:
    """Save tensors that overlap in one storage of finite numbers."""
    flat = torch.arange(TENSOR_BYTES // 4 + 1024 * n_tensors, dtype=torch.int32).remainder_(1 << 20).add_(1).view(torch.int32).float()
    torch.save({f"layer.{n}": flat[1024 * n : 1024 * n + TENSOR_BYTES // 4] for n in range(n_tensors)}, place / "large.pt")
    return place / "large.pt"


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("to", "most_bytes"), [("safetensors", 20 * GB), ("torch", LEAST_BYTES), ("dcp", LEAST_BYTES), ("hf", LEAST_BYTES)]
)
def test_a_checkpoint_of_20_gb_is_converted_within_2_gib(tmp_path: Path, to: str, most_bytes: int) -> None:
    room = min(most_bytes, shutil.disk_usage(tmp_path).free - SPARED_BYTES - TENSOR_BYTES)
    if room < LEAST_BYTES:
        pytest.skip(f"the disk has no room for {LEAST_BYTES / GB:g} GB: set TMPDIR to one that has")
    n_tensors = -(-room // TENSOR_BYTES)
    source, target = source_of(tmp_path, n_tensors), tmp_path / "out"
    command = [str(Path(sys.executable).with_name("supervise")), "checkpoints", "convert", "--json", "--to", to, str(source), str(target)]
    try:
        done = subprocess.run([sys.executable, "-c", _MEASURED, *command], capture_output=True, text=True, check=False)  # noqa: S603
        assert done.returncode == 0, done.stderr
        answer, memory = done.stdout.splitlines()
        print(f"{to}: {json.loads(answer)['bytes'] / GB:.1f} GB within {int(memory) / MIB:.0f} MiB")  # noqa: T201  the measure
        assert json.loads(answer)["bytes"] == n_tensors * TENSOR_BYTES
        assert int(memory) < MOST_MEMORY_BYTES
    finally:
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
