"""What only a real GPU can prove of a supervised job, the riskiest first: `make gpu`."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from health.model import Ask
from health.probing.runner import Runner
from supervisor.launch import tracing
from supervisor.node import visible_gpus

if TYPE_CHECKING:
    from collections.abc import Callable

JOB = str(Path(__file__).with_name("real_memory.py"))
pytestmark = pytest.mark.process


@pytest.fixture
def run(tmp_path: Path, environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Give a function that runs a job of one rank for each of `ranks` GPUs to its end."""

    def supervised(*words: str, ranks: int = 1, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        launcher = ["torchrun", "--standalone", f"--nproc-per-node={ranks}"]
        return subprocess.run(  # noqa: S603  the program under test
            ["supervise", *options, "--", *launcher, JOB, *words],  # noqa: S607  as a user starts it
            cwd=tmp_path,
            env=environment | {"_SUPERVISE_TEST_INTERVALS": "0.04"},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )

    return supervised


def test_a_gpu_that_is_really_out_of_memory_halves_the_batch(gpus: list[str], run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    import torch  # noqa: PLC0415  a node without a GPU does not wait for it

    free_mib = torch.cuda.mem_get_info(0)[0] >> 20
    per_sample = free_mib * 3 // 4 // 8  # 8 samples fit, 16 do not
    knobs = ("--knob", "batch_size=--batch-size", "--knob", "grad_accum=--accum")
    done = run("--batch-size", "16", "--accum", "1", "--mib-per-sample", str(per_sample), options=knobs)
    assert done.returncode == 0, done.stderr
    assert "Restarting as attempt 2 with --batch-size 16 -> 8, --accum 1 -> 2" in done.stderr
    assert re.findall(r"trained 0 \d+ (\d+) (\d+) 2", done.stdout) == [("8", "2")] * 5
    assert gpus


def test_the_gpus_are_listed_as_nvidia_smi_names_them(gpus: list[str]) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"} | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    seen = visible_gpus.visible_gpus(environ)
    assert [gpu.uuid for gpu in seen] == gpus
    assert all(Path("/sys/bus/pci/devices", gpu.pci).exists() for gpu in seen)
    assert visible_gpus.from_nvml(Runner().sweep(("nvml",), Ask()), environ) == seen


def test_a_gpu_named_by_its_uuid_is_the_one_that_torch_uses(gpus: list[str], environment: dict[str, str]) -> None:
    wanted = gpus[-1]
    environ = environment | {"CUDA_VISIBLE_DEVICES": wanted}
    assert [visible_gpu.uuid for visible_gpu in visible_gpus.visible_gpus(environ)] == [wanted]
    code = "import torch; print(torch.cuda.device_count(), torch.cuda.get_device_properties(0).uuid)"
    done = subprocess.run(["python", "-c", code], env=environ, capture_output=True, text=True, timeout=120, check=True)  # noqa: S603, S607  ours
    assert done.stdout.split() == ["1", wanted.removeprefix("GPU-")]


@pytest.mark.parametrize(("listed", "seen"), [("0,{count}", 1), ("0,0", 0), ("0,-1", 1), ("{count}", 0), ("0 {count}", 1)])
def test_cuda_shows_the_gpus_before_the_first_word_that_names_none(
    gpus: list[str], environment: dict[str, str], listed: str, seen: int
) -> None:
    there = visible_gpus.node_gpus(Runner().sweep(("nvml",), Ask()))
    text = listed.format(count=len(gpus))
    assert len(visible_gpus.choice(text, there).gpus) == seen
    code = "import torch; print(torch.cuda.device_count()); torch.cuda.set_device(torch.cuda.device_count())"
    environ = environment | {"CUDA_VISIBLE_DEVICES": text}
    done = subprocess.run(["python", "-c", code], env=environ, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603, S607  ours
    assert done.stdout.split() == [str(seen)]
    assert not seen or "CUDA error: invalid device ordinal" in done.stderr


def test_a_mig_instance_is_no_gpu_that_we_would_take_out_of_use(gpus: list[str], mig: list[str], environment: dict[str, str]) -> None:
    assert gpus
    assert visible_gpus.visible_gpus(environment | {"CUDA_VISIBLE_DEVICES": mig[0]}) == ()


def test_a_collective_that_hangs_leaves_the_flight_recorders_files(gpus: list[str], environment: dict[str, str], tmp_path: Path) -> None:
    if len(gpus) < 2:
        pytest.skip("a hang in NCCL needs two GPUs, and one is here: run it on a node that has two")
    directory = tmp_path / "traces"
    directory.mkdir()
    # what the attempt after a time-out of NCCL is given
    environ = environment | tracing.variables(environment, str(directory)) | {"SUPERVISE_JOB_ATTEMPT": "1"}
    words = ["torchrun", "--standalone", "--nproc-per-node=2", JOB, "--hang-at-step", "3"]
    done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)  # noqa: S603  ours
    assert done.returncode != 0
    assert [path.stat().st_size > 0 for path in directory.glob("flight-rank-*")], done.stderr
    assert list(directory.glob("nccl-*.log"))
