"""The background reading of checkpoints: each byte once, as fast as the disk gives, and not while the job needs the disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from checkpointing.io.reader import CHUNK_BYTES, MOST_YIELD_S, BackgroundThrottle
from checkpointing.io.tree import ReadOptions
from checkpointing.manifest import check, digest
from checkpointing.model import Verdict
from checkpointing.verification import verify

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20


class Disk:
    """A clock that the disk's reads and the throttle's waits move."""

    def __init__(self, bytes_per_s: float) -> None:
        self.t, self.bytes_per_s, self.waited_s = 0.0, bytes_per_s, 0.0

    def clock(self) -> float:
        """Return the time in seconds."""
        return self.t

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.t += seconds
        self.waited_s += seconds

    def read(self, throttle: BackgroundThrottle, n_bytes: int) -> float:
        """Read so much in chunks; return the seconds that it took."""
        begun = self.t
        for _ in range(n_bytes // CHUNK_BYTES):
            throttle.take(CHUNK_BYTES)
            self.t += CHUNK_BYTES / self.bytes_per_s
        return self.t - begun


@pytest.mark.parametrize("bytes_per_s", [50e6, 200e6, 2e9, 20e9])
def test_the_rate_follows_the_disk(bytes_per_s: float) -> None:
    disk = Disk(bytes_per_s)
    throttle = BackgroundThrottle(clock=disk.clock, wait=disk.wait)
    assert disk.read(throttle, 1 << 30) == pytest.approx(1.1 * (1 << 30) / bytes_per_s, rel=0.02)


def test_a_disk_that_takes_no_time_is_read_without_a_pause() -> None:
    disk = Disk(float("inf"))
    disk.read(BackgroundThrottle(clock=disk.clock, wait=disk.wait), 1 << 30)
    assert disk.waited_s == pytest.approx(0, abs=1e-6)


def test_a_cap_holds() -> None:
    disk = Disk(2e9)
    assert disk.read(BackgroundThrottle(100e6, clock=disk.clock, wait=disk.wait), 1 << 30) == pytest.approx((1 << 30) / 100e6, rel=0.02)


def test_only_small_reads_happen_while_the_job_saves() -> None:
    disk = Disk(1e9)
    saves = [(0.0, 0.5), (20.0, 50.0)]
    throttle = BackgroundThrottle(is_busy=lambda: any(begin <= disk.t < end for begin, end in saves), clock=disk.clock, wait=disk.wait)
    assert disk.read(throttle, 16 * MIB) < 0.1, "a small checkpoint waits for nobody"
    disk.t = 20.0
    disk.read(throttle, 100 * MIB)
    assert disk.t >= 50.0


def test_a_job_that_saves_without_an_end_does_not_keep_its_checkpoints_from_being_verified() -> None:
    disk = Disk(1e9)
    throttle = BackgroundThrottle(is_busy=lambda: True, clock=disk.clock, wait=disk.wait)
    assert MOST_YIELD_S < disk.read(throttle, 1 << 30) < MOST_YIELD_S + 10


def test_a_lifted_throttle_waits_for_nobody() -> None:
    disk = Disk(1e9)
    throttle = BackgroundThrottle(1e6, is_busy=lambda: True, clock=disk.clock, wait=disk.wait)
    throttle.lift()
    disk.read(throttle, 1 << 30)
    assert disk.waited_s == 0


def bytes_read() -> int:
    """Return how many bytes this process has read by now."""
    return int(Path("/proc/self/io").read_text().split()[1])


def zip_file(directory: Path) -> Path:
    torch.save({"step": 5, "weights": torch.randn(1 << 20), "ids": torch.arange(1 << 20)}, directory / "step_5.pt")
    return directory / "step_5.pt"


def without_crcs(directory: Path) -> Path:
    path = directory / "step_5.pt"
    torch.save({"step": 5, "weights": torch.randn(8 << 20)}, path, _use_new_zipfile_serialization=False)
    return path


def tensors(directory: Path) -> Path:
    path = directory / "step_5.safetensors"
    save_file({"b": torch.randn(1 << 20), "a": torch.arange(1 << 20), "c": torch.randn(7)}, path)
    return path


def sharded(directory: Path) -> Path:
    import torch.distributed.checkpoint as dcp  # noqa: PLC0415  half a second that no other test needs

    path = directory / "step_5"
    dcp.save(
        {"weights": torch.randn(1 << 20), "more": torch.randn(1 << 19), "step": 5}, storage_writer=dcp.FileSystemWriter(path), no_dist=True
    )
    return path


def trainer(directory: Path) -> Path:
    path = directory / "checkpoint-5"
    path.mkdir()
    save_file({"weight": torch.randn(1 << 20)}, path / "model.safetensors")
    torch.save(
        {"state": {0: {"step": torch.tensor(5.0), "exp_avg": torch.randn(1 << 20)}}, "param_groups": [{"params": [0]}]},
        path / "optimizer.pt",
    )
    torch.save({"last_epoch": 5, "_step_count": 6}, path / "scheduler.pt")
    torch.save({"python": 1}, path / "rng_state.pth")
    (path / "trainer_state.json").write_text('{"global_step": 5, "epoch": 1.0}')
    return path


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("make", [zip_file, without_crcs, tensors, sharded, trainer])
def test_a_verification_and_its_digests_read_each_byte_once(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path)
    size = sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())
    expected = check.build(verify(str(path), own=True))
    before = bytes_read()
    reading = ReadOptions(follower=digest.Hashers().follower)
    verification = verify(str(path), reading=reading, own=True)
    assert verification.verdict is Verdict.VERIFIED, verification.reason
    manifest = check.build(verification, reading=reading)
    n_read = bytes_read() - before
    assert manifest.files == expected.files
    assert size <= n_read <= 1.05 * size, f"{n_read / size:.3f} times its size"
    assert check.check(str(path), manifest).verdict is Verdict.VERIFIED
