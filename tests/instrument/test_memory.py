"""What a rank notes of its GPU's memory, with a stand-in for torch's allocator: real figures need a GPU (tests/gpu)."""
# ruff: noqa: D102 - the stand-in has torch's own functions

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from supervisor.instrument._supervise_shim import layout, memory
from supervisor.instrument._supervise_shim.claim import TRAINS, ProcessIdentity, claim
from supervisor.instrument._supervise_shim.heartbeat import HeartbeatWriter
from supervisor.observe import collect
from supervisor.observe.ranks import heartbeats
from supervisor.observe.ranks.heartbeats import GpuMemory
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

GIB = 1 << 30


class Allocator(types.ModuleType):
    """A stand-in for torch.cuda: what it has reserved, in GiB, and how often it was asked. Its functions are torch's."""

    def __init__(self) -> None:
        super().__init__("torch.cuda")
        self.initialized, self.reserved, self.asked = True, 70, 0

    def is_initialized(self) -> bool:
        return self.initialized

    def current_device(self) -> int:
        assert self.initialized, "this call would initialise CUDA"
        return 3

    def memory_stats_as_nested_dict(self) -> dict[str, Any]:
        assert self.initialized, "this call would initialise CUDA"
        self.asked += 1
        sizes = {"allocated_bytes": 60, "reserved_bytes": self.reserved, "inactive_split_bytes": 8}
        return {name: {"all": {"current": size * GIB, "peak": (size + 5) * GIB}} for name, size in sizes.items()}

    def host_memory_stats_as_nested_dict(self) -> dict[str, Any]:
        return {"allocated_bytes": {"current": 0}}

    def get_per_process_memory_fraction(self, device: int) -> float:
        assert device == 3
        return 0.9

    def get_device_properties(self, device: int) -> types.SimpleNamespace:
        assert device == 3
        return types.SimpleNamespace(total_memory=80 * GIB)


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    allocator = Allocator()
    monkeypatch.setitem(sys.modules, "torch.cuda", allocator)
    return allocator


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "attempt-0001" / "heartbeat"
    heartbeats.create(path, 1)
    return path


@pytest.fixture
def beat(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeartbeatWriter]:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "0")
    identity = ProcessIdentity("/nowhere", str(path.parent), "rank")
    beat = HeartbeatWriter(identity.pid, identity.start_ticks, identity.rank)
    assert claim(identity, beat, TRAINS)
    handle = register_optimizer_step_post_hook(beat.on_step)
    yield beat
    handle.remove()


def steps(count: int) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    optimizer = torch.optim.SGD([parameter], lr=0.01)
    for _ in range(count):
        optimizer.step()


def test_the_gpu_memory_is_read_at_the_end_of_few_steps(allocator: Allocator, beat: HeartbeatWriter, path: Path) -> None:
    steps(50)
    (seen,) = heartbeats.read(path)
    assert beat.steps == 50
    assert allocator.asked == 1
    assert seen.gpu_memory is not None
    assert seen.gpu_memory == GpuMemory(seen.gpu_memory.t_ns, 60 * GIB, 70 * GIB, 65 * GIB, 8 * GIB, 72 * GIB)
    assert seen.gpu_memory.unused == 10 * GIB
    assert seen.pinned == 0, "torch tells that none is pinned, which is another thing than that it does not tell"


def test_the_allocator_is_not_asked_before_the_script_has_initialised_cuda(allocator: Allocator, beat: HeartbeatWriter, path: Path) -> None:
    allocator.initialized = False
    steps(3)
    (seen,) = heartbeats.read(path)
    assert (beat.steps, seen.gpu_memory, seen.pinned, allocator.asked) == (3, None, None, 0)


@pytest.mark.parametrize("name", ["host_memory_stats_as_nested_dict", "get_per_process_memory_fraction"])
def test_a_figure_that_an_older_torch_lacks_is_absent(
    allocator: Allocator, beat: HeartbeatWriter, path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(Allocator, name, None)
    beat.sample_memory(0, at_once=True)
    (seen,) = heartbeats.read(path)
    assert seen.gpu_memory is not None
    assert (seen.pinned is None) == ("host" in name)
    assert seen.gpu_memory.limit == (72 if "host" in name else 80) * GIB
    assert allocator.asked == 1


def test_an_allocator_that_fails_costs_the_figures_and_no_step(
    allocator: Allocator, beat: HeartbeatWriter, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Allocator, "memory_stats_as_nested_dict", lambda _self: {"allocated_bytes": {}})
    steps(3)
    (seen,) = heartbeats.read(path)
    assert (beat.steps, seen.steps, seen.gpu_memory) == (3, 3, None)
    assert allocator.asked == 0


def test_without_cuda_there_is_no_figure_and_nearly_no_cost(path: Path) -> None:
    view = memoryview(bytearray(layout.SLOT_BYTES)).cast("q")
    memory.sample(view)
    assert not any(view)
    assert heartbeats.read(path) == ()


def test_a_failure_has_what_each_rank_held_as_evidence(allocator: Allocator, beat: HeartbeatWriter, path: Path) -> None:
    beat.sample_memory(0, at_once=True)
    beat.flag(layout.FLAG_UNLIMITED)
    facts = {fact.name: fact for fact in collect.beats(path, None)}  # type: ignore[arg-type]  # the clock is for the end of a script
    assert facts["gathers"].rank == facts["gpu_memory"].rank == 3
    assert facts["gpu_memory"].text == (
        "60.0 GiB allocated and 70.0 GiB reserved of 72.0 GiB, 65.0 GiB at most; 10.0 GiB reserved and not allocated, "
        "8.0 GiB of it in blocks that are used in part"
    )
    assert allocator.asked == 1


FSDP = """
import os, sys
import torch
from torch import distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
dist.init_process_group("gloo")
FullyShardedDataParallel(torch.nn.Linear(8, 8), limit_all_gathers=sys.argv[1] == "limited", device_id=torch.device("cpu"))
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["limited", "unlimited"])
def test_fsdp_that_gathers_without_a_limit_is_seen(path: Path, tmp_path: Path, how: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(FSDP))
    folder = Path(layout.__file__).parents[1]
    environ = os.environ | {
        "PYTHONPATH": str(folder), "SUPERVISE_JOB_SHIM": "rank", "SUPERVISE_JOB_DIR": str(path.parents[1]), "SUPERVISE_JOB_ATTEMPT": "1",
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    subprocess.run([sys.executable, str(script), how], env=environ, check=True)  # noqa: S603
    (seen,) = heartbeats.read(path)
    assert seen.unlimited == (how == "unlimited")
