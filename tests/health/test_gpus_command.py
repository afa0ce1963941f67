"""`supervise nodes gpus`: the node's GPUs as NVML names them, on a fake of its library."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.job import identity
from supervisor.node.gpu_quarantine import GpuQuarantine, QuarantinedGpu
from tests.support import preloaded

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.support.fake_nvml import FakeNvml

pytestmark = pytest.mark.process
UUID = "GPU-00000000-0000-4000-8000-00000000000"


def gpus(place: Path, fake: FakeNvml, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    given = ("nodes", "gpus", *words, "--state-dir", str(place / "jobs"))
    return preloaded.command_text(*given, cwd=place, environ={**fake.environ, **environ})


@pytest.mark.slow
def test_a_gpu_has_one_number_and_cuda_s_is_named_as_such(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    fake_nvml.set({"0.field.230": 1}, gpus=4)
    ledger = GpuQuarantine(tmp_path / "jobs", identity.node_name())
    ledger.quarantine(QuarantinedGpu(f"{UUID}3", "0000:13:00.0", "xid 79", "NVRM: Xid 79", time.time(), "bert", "run-1"))
    environ = {"CUDA_VISIBLE_DEVICES": "2,0"}
    done = gpus(tmp_path, fake_nvml, **environ)
    assert done.returncode == 0, done.stderr
    gpus_now, wrong, names = (part.splitlines() for part in done.stdout.split("\n\n"))
    assert re.match(r"-- 4 \S+", gpus_now[0]), "all are of one model"
    assert gpus_now[1].split()[:4] == ["GPU", "CUDA", "state", "memory"]
    assert [line.split()[:3] for line in gpus_now[2:]] == [["0", "1", "FAILED"], ["1", "-", "in"], ["2", "0", "in"], ["3", "-", "OUT"]]
    assert "OUT OF USE" in gpus_now[5]
    assert re.match(r"0 +failed +gpu_recovery: the driver asks for a reset", wrong[2])
    assert re.match(r"3 +out of use +since .* for job bert: xid 79 \(NVRM: Xid 79\)", wrong[-1])
    assert [line.split() for line in names[2:6]] == [
        ["0", f"{UUID}0", "0000:10:00.0"],
        ["1", f"{UUID}1", "0000:11:00.0"],
        ["2", f"{UUID}2", "0000:12:00.0"],
        ["3", f"{UUID}3", "0000:13:00.0"],
    ]
    assert "supervise nodes clear" in names[-1]
    document = json.loads(gpus(tmp_path, fake_nvml, "--json", **environ).stdout)
    assert document["answered"] is True
    assert [(row["index"], row["cuda"], row["in_use"]) for row in document["gpus"]] == [
        (0, 1, True),
        (1, None, True),
        (2, 0, True),
        (3, None, False),
    ]
    assert document["gpus"][0]["memory_bytes"] > 0
    assert document["gpus"][0]["findings"][0]["check"] == "gpu_recovery"


def test_a_driver_that_hangs_or_refuses_is_not_taken_for_a_node_without_gpus(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    fake_nvml.set({"init_error": 18}, gpus=2)
    done = gpus(tmp_path, fake_nvml)
    assert (done.returncode, "NVML error 18" in done.stdout) == (1, True)
    assert "no GPU is here" not in done.stdout
    fake_nvml.set({"init_error": 9})
    done = gpus(tmp_path, fake_nvml)
    assert (done.returncode, done.stdout) == (0, "no GPU is here, and none is out of use\n")


@pytest.mark.slow
def test_a_driver_that_hangs_ends_at_the_deadline(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    fake_nvml.set({"1.hang_ms.nvmlDeviceGetUUID": 60000}, gpus=2)
    done = gpus(tmp_path, fake_nvml)
    assert (done.returncode, "NVML did not answer in time" in done.stdout) == (1, True), done.stdout
