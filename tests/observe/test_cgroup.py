"""The kernel's own count of those it killed for want of memory."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.observe import cgroup
from supervisor.observe.cgroup import GroupCounts
from tests.support.memory_group import memory_group

if TYPE_CHECKING:
    from collections.abc import Iterator


def _machine(tmp_path: Path, version: int, *, path: str, root: str = "/") -> tuple[Path, Path, Path]:
    """Make files as /proc has them, and an empty hierarchy with a blank in its name; return them and its mount point."""
    mount = tmp_path / "the cgroup"
    mount.mkdir()
    told = str(mount).replace(" ", "\\040")
    groups, mounts = tmp_path / "groups", tmp_path / "mounts"
    if version == 2:
        groups.write_text(f"0::{path}\n")
        mounts.write_text(
            f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:26 {root} {told} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
        )
    else:
        groups.write_text(f"9:name=systemd:/\n8:cpu,cpuacct:/elsewhere\n4:memory:{path}\n0::/\n")
        mounts.write_text(
            f"31 22 0:27 / {told}/no rw - cgroup cgroup rw,cpu,cpuacct\n32 22 0:28 {root} {told} rw shared:5 - cgroup cgroup rw,memory\n"
        )
    return groups, mounts, mount


def _count(directory: Path, version: int, kills: int, hits: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if version == 2:
        (directory / "memory.events").write_text(f"low 0\nhigh 0\nmax {hits}\noom {kills}\noom_kill {kills}\noom_group_kill 0\n")
    else:
        (directory / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")
        (directory / "memory.failcnt").write_text(f"{hits}\n")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("root", ["/", "/docker/3f4e"])
def test_our_group_and_those_above_it_are_counted_each_by_itself(tmp_path: Path, version: int, root: str) -> None:
    groups, mounts, mount = _machine(tmp_path, version, path=f"{root.rstrip('/')}/slurm/job_7", root=root)
    for level, kills in (("slurm/job_7", 1), ("slurm", 4)):
        _count(mount / level, version, kills, hits=10)
    before = cgroup.read(groups, mounts)
    assert before == {str(mount / "slurm/job_7"): GroupCounts(True, 1, 10), str(mount / "slurm"): GroupCounts(False, 4, 10)}  # noqa: FBT003  as it is told
    assert cgroup.killed(before, before, 7.0) == cgroup.short(before, before) == ()
    assert cgroup.again(before) == before
    _count(mount / "slurm/job_7", version, 3, hits=25)
    _count(mount / "slurm", version, 5, hits=10)
    after = cgroup.again(before)
    assert after == cgroup.read(groups, mounts)
    own, above = cgroup.killed(before, after, 7.0)
    assert own.t == 7.0
    assert (own.source, own.name, dict(own.fields)["kills"], dict(own.fields)["limit_hits"]) == ("cgroup", "oom_kill", "2", "15")
    assert above.name == "oom_kill_above"  # perhaps a neighbour's: no cause of ours


@pytest.mark.parametrize(
    ("version", "where", "name"),
    [
        (2, ("cgroup:[4026532458]", "/"), "oom_kill"),  # a container's: its root is its group, and the machine's has no such file
        (2, (cgroup.FIRST_NAMESPACE, "/"), "oom_kill"),
        (1, ("cgroup:[4026532458]", "/"), "oom_kill"),
        (1, (cgroup.FIRST_NAMESPACE, "/"), "oom_kill_above"),  # the whole machine
        (2, ("cgroup:[4026532458]", "/../.."), "oom_kill_above"),  # mounted from outside: a pod's, or the machine's
        (1, ("cgroup:[4026532458]", "/.."), "oom_kill_above"),
    ],
)
def test_a_root_is_our_own_group_unless_it_is_the_whole_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, where: tuple[str, str], name: str
) -> None:
    """`where`: our cgroup namespace, and the root of the mount as it is seen from there."""
    namespace, root = where
    monkeypatch.setattr(cgroup, "_namespace", lambda: namespace)
    groups, mounts, mount = _machine(tmp_path, version, path="/", root=root)
    _count(mount, version, 1, hits=0)
    before = cgroup.read(groups, mounts)
    _count(mount, version, 2, hits=0)
    assert [fact.name for fact in cgroup.killed(before, cgroup.read(groups, mounts), 7.0)] == [name]


def test_a_group_that_the_mount_does_not_reach_is_not_the_mounts(tmp_path: Path) -> None:
    groups, mounts, mount = _machine(tmp_path, 2, path="/../elsewhere")
    _count(mount, 2, 1, hits=0)
    assert cgroup.read(groups, mounts) == {str(mount): GroupCounts(False, 1, 0)}  # noqa: FBT003  as it is told


def test_each_kill_has_the_time_at_which_it_was_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, mounts, mount = _machine(tmp_path, 2, path="/job")
    _count(mount / "job", 2, 3, hits=1)
    found = cgroup.read(groups, mounts)
    monkeypatch.setattr(cgroup, "read", lambda: found)
    kills = cgroup.OomKillCounter()
    _count(mount / "job", 2, 4, hits=2)
    kills.look(1000.0)
    _count(mount / "job", 2, 6, hits=9)
    kills.look(1000.5)  # too soon
    kills.look(1002.0)
    kills.look(1004.0)
    _count(mount / "job", 2, 7, hits=9)
    kills.look(1004.1, now=True)
    facts = kills.finish(1005.0)
    assert [(fact.name, fact.t, dict(fact.fields)["kills"]) for fact in facts] == [
        ("oom_kill", 1000.0, "1"),
        ("oom_kill", 1002.0, "2"),
        ("oom_kill", 1004.1, "1"),
    ]


def test_a_group_that_kills_without_end_is_no_list_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, mounts, mount = _machine(tmp_path, 2, path="/job")
    _count(mount / "job", 2, 0, hits=0)
    found = cgroup.read(groups, mounts)
    monkeypatch.setattr(cgroup, "read", lambda: found)
    kills = cgroup.OomKillCounter()
    for n in range(1, 200):
        _count(mount / "job", 2, n, hits=n)
        kills.look(float(n), now=True)
    facts = kills.finish(200.0)
    assert [fact.t for fact in facts] == [float(n) for n in range(200 - cgroup.MOST_KEPT, 200)]


def test_memory_that_ran_short_and_killed_nobody_is_told(tmp_path: Path) -> None:
    groups, mounts, mount = _machine(tmp_path, 2, path="/job")
    _count(mount / "job", 2, 0, hits=0)
    before = cgroup.read(groups, mounts)
    _count(mount / "job", 2, 0, hits=7)
    after = cgroup.read(groups, mounts)
    assert [(fact.name, dict(fact.fields)["limit_hits"]) for fact in cgroup.short(before, after)] == [("limit_hit", "7")]
    assert cgroup.killed(before, after, 7.0) == ()


@pytest.mark.parametrize("content", [b"", b"nonsense\n", b"0::/x\n4:memory:/x\n", b"\xff\xfe\n", b"0::/../..\n"])
def test_what_cannot_be_read_has_no_counts(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "groups").write_bytes(content)
    (tmp_path / "mounts").write_bytes(b"1 2 3 / " + str(tmp_path).encode() + b" rw - cgroup2 cgroup2 rw\nshort\n")
    assert cgroup.read(tmp_path / "groups", tmp_path / "mounts") == {}
    assert cgroup.read(tmp_path / "none", tmp_path / "none") == {}


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A memory group of 64 MiB."""
    with memory_group(64) as group:
        yield group


@pytest.mark.process
def test_a_real_kill_is_counted(small_group: Path) -> None:
    watcher = (
        "import os, subprocess, sys\n"
        "from supervisor.observe import cgroup\n"
        f"open({str(small_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        "kills = cgroup.OomKillCounter()\n"
        "eats = 'x = b\"x\" * (200 << 20)'\n"
        "code = subprocess.run([sys.executable, '-c', eats]).returncode\n"
        "print(code, *(fact.name for fact in kills.finish(1.0)))\n"
    )
    done = subprocess.run(  # noqa: S603  our own code
        [sys.executable, "-c", watcher], capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).parents[2]
    )
    code, *names = done.stdout.split()
    assert int(code) == -signal.SIGKILL, done
    assert names[0] == "oom_kill"
