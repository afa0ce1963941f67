"""How much memory may still be taken, by files of /proc and of control groups as the kernel writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.observe.host.memory_room import MemoryRoom, rooms, shortage

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
MACHINE = f"MemTotal: {64 * GIB // 1024} kB\nMemFree: 1024 kB\nMemAvailable: {40 * GIB // 1024} kB\n" + "".join(
    f"{name}: 1 kB\n" for name in ("Buffers", "Cached", "Shmem", "Active", "Inactive")
)
V2 = "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "30 22 0:26 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory below which psutil and the control groups are read."""
    monkeypatch.setattr("psutil.PROCFS_PATH", str(tmp_path / "proc"))
    return tmp_path


def tree(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return str(root)


def test_every_level_of_the_control_groups_counts(kernel: Path) -> None:
    levels = rooms(tree(kernel, {
        "proc/meminfo": MACHINE, "proc/self/cgroup": "0::/slice/job/step", "proc/self/mountinfo": V2,
        "sys/fs/cgroup/slice/memory.max": str(32 * GIB), "sys/fs/cgroup/slice/memory.current": str(30 * GIB),
        "sys/fs/cgroup/slice/memory.stat": f"anon {10 * GIB}\ninactive_file {12 * GIB}\nactive_file {8 * GIB}",
        "sys/fs/cgroup/slice/job/memory.max": str(16 * GIB), "sys/fs/cgroup/slice/job/memory.current": str(15 * GIB),
        "sys/fs/cgroup/slice/job/step/memory.max": "max", "sys/fs/cgroup/slice/job/step/memory.current": str(14 * GIB),
    }))  # fmt: skip
    assert [(room.free // GIB, room.total // GIB, room.whose.removeprefix(str(kernel))) for room in levels] == [
        (40, 64, "the machine"), (1, 16, "/sys/fs/cgroup/slice/job"), (22, 32, "/sys/fs/cgroup/slice"),
    ]  # fmt: skip
    assert "slice/job has 1.0 GiB of 16.0 GiB free" in shortage(levels, 0, 8 * GIB)


def test_version_1_and_a_group_that_is_over_its_limit(kernel: Path) -> None:
    levels = rooms(tree(kernel, {
        "proc/meminfo": MACHINE, "proc/self/cgroup": "4:memory:/a\n0::/", "proc/self/mountinfo": V1,
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712", "sys/fs/cgroup/memory/memory.usage_in_bytes": "7",
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(GIB), "sys/fs/cgroup/memory/a/memory.usage_in_bytes": str(2 * GIB),
    }))  # fmt: skip
    assert [(room.free, room.total) for room in levels] == [(40 * GIB, 64 * GIB), (0, GIB)]


def test_the_real_machine_has_memory() -> None:
    [machine] = [room for room in rooms() if room.whose == "the machine"]
    assert 0 < machine.free <= machine.total


def test_without_proc_nothing_is_known(kernel: Path) -> None:
    assert rooms(str(kernel)) == ()


@pytest.mark.parametrize(
    ("free", "total", "needed", "part", "is_short"),
    [
        (20, 64, 4, 1.0, False),
        (20, 64, 13, 1.0, True),  # 7 would stay, 8 must
        (100, 1000, 1, 1.0, True),  # a tenth of a large machine is more than the 8
        (102, 1000, 1, 1.0, False),
        (5, 64, 0, 0.5, False),  # what runs is given up below half of it only
        (3, 64, 0, 0.5, True),
    ],
)
def test_a_shortage_is_reported_below_the_reserve_of_memory(free: int, total: int, needed: int, part: float, is_short: bool) -> None:  # noqa: FBT001
    roomy = MemoryRoom(1 << 50, 1 << 50, "another")
    text = shortage([roomy, MemoryRoom(free * GIB, total * GIB, "the machine")], needed * GIB, 8 * GIB, share=part)
    assert bool(text) is is_short
    assert not is_short or "the machine has" in text
