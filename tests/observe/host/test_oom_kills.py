"""The kernel's own count of those it killed for want of memory."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from health.probes import control_groups
from health.probes.control_groups import ControlGroup
from supervisor.observe.host import oom_kills
from supervisor.observe.host.oom_kills import GroupCounts
from tests.support.memory_group import memory_group

if TYPE_CHECKING:
    from collections.abc import Iterator


def _machine(tmp_path: Path, version: int, *, path: str, root: str = "/") -> Path:
    """Make files as /proc has them, and an empty hierarchy with a blank in its name; return its mount point."""
    mount = tmp_path / "the cgroup"
    mount.mkdir()
    point = "/the\\040cgroup"
    groups, mounts = tmp_path / "proc/self/cgroup", tmp_path / "proc/self/mountinfo"
    groups.parent.mkdir(parents=True)
    if version == 2:
        groups.write_text(f"0::{path}\n")
        mounts.write_text(
            f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:26 {root} {point} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
        )
    else:
        groups.write_text(f"9:name=systemd:/\n8:cpu,cpuacct:/elsewhere\n4:memory:{path}\n0::/\n")
        mounts.write_text(
            f"31 22 0:27 / {point}/no rw - cgroup cgroup rw,cpu,cpuacct\n32 22 0:28 {root} {point} rw shared:5 - cgroup cgroup rw,memory\n"
        )
    return mount


def _read(root: Path) -> dict[ControlGroup, GroupCounts]:
    return oom_kills.read(control_groups.read("memory", str(root)))


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
    mount = _machine(tmp_path, version, path=f"{root.rstrip('/')}/slurm/job_7", root=root)
    for level, kills in (("slurm/job_7", 1), ("slurm", 4)):
        _count(mount / level, version, kills, hits=10)
    before = _read(tmp_path)
    assert before == {
        ControlGroup(mount / "slurm/job_7", version, own=True): GroupCounts(1, 10),
        ControlGroup(mount / "slurm", version, own=False): GroupCounts(4, 10),
    }
    assert oom_kills.killed(before, before, 7.0) == oom_kills.short(before, before) == ()
    assert oom_kills.read(before) == before
    _count(mount / "slurm/job_7", version, 3, hits=25)
    _count(mount / "slurm", version, 5, hits=10)
    after = oom_kills.read(before)
    assert after == _read(tmp_path)
    own, above = oom_kills.killed(before, after, 7.0)
    assert own.t == 7.0
    assert (own.source, own.name, dict(own.fields)["kills"], dict(own.fields)["limit_hits"]) == ("cgroup", "oom_kill", "2", "15")
    assert above.name == "oom_kill_above"  # perhaps a neighbour's: no cause of ours


@pytest.mark.parametrize(
    ("version", "where", "name"),
    [
        (2, ("cgroup:[4026532458]", "/"), "oom_kill"),  # a container's: its root is its group, and the machine's has no such file
        (2, (control_groups.FIRST_NAMESPACE, "/"), "oom_kill"),
        (1, ("cgroup:[4026532458]", "/"), "oom_kill"),
        (1, (control_groups.FIRST_NAMESPACE, "/"), "oom_kill_above"),  # the whole machine
        (2, ("cgroup:[4026532458]", "/../.."), "oom_kill_above"),  # mounted from outside: a pod's, or the machine's
        (1, ("cgroup:[4026532458]", "/.."), "oom_kill_above"),
    ],
)
def test_a_root_is_our_own_group_unless_it_is_the_whole_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, where: tuple[str, str], name: str
) -> None:
    """`where`: our cgroup namespace, and the root of the mount as it is seen from there."""
    namespace, root = where
    monkeypatch.setattr(control_groups, "_namespace", lambda: namespace)
    mount = _machine(tmp_path, version, path="/", root=root)
    _count(mount, version, 1, hits=0)
    before = _read(tmp_path)
    _count(mount, version, 2, hits=0)
    assert [fact.name for fact in oom_kills.killed(before, _read(tmp_path), 7.0)] == [name]


def test_a_group_that_the_mount_does_not_reach_is_not_the_mounts(tmp_path: Path) -> None:
    mount = _machine(tmp_path, 2, path="/../elsewhere")
    _count(mount, 2, 1, hits=0)
    assert _read(tmp_path) == {ControlGroup(mount, 2, own=False): GroupCounts(1, 0)}


def test_each_kill_has_the_time_at_which_it_was_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = _machine(tmp_path, 2, path="/job")
    _count(mount / "job", 2, 3, hits=1)
    snapshot = control_groups.read("memory", str(tmp_path))
    monkeypatch.setattr(control_groups, "read", lambda _controller: snapshot)
    kills = oom_kills.OomKillCounter()
    _count(mount / "job", 2, 4, hits=2)
    kills.update(1000.0)
    _count(mount / "job", 2, 6, hits=9)
    kills.update(1000.5)  # too soon
    kills.update(1002.0)
    kills.update(1004.0)
    _count(mount / "job", 2, 7, hits=9)
    kills.update(1004.1, now=True)
    facts = kills.finish(1005.0)
    assert [(fact.name, fact.t, dict(fact.fields)["kills"]) for fact in facts] == [
        ("oom_kill", 1000.0, "1"),
        ("oom_kill", 1002.0, "2"),
        ("oom_kill", 1004.1, "1"),
    ]


def test_a_group_that_kills_without_end_is_no_list_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = _machine(tmp_path, 2, path="/job")
    _count(mount / "job", 2, 0, hits=0)
    snapshot = control_groups.read("memory", str(tmp_path))
    monkeypatch.setattr(control_groups, "read", lambda _controller: snapshot)
    kills = oom_kills.OomKillCounter()
    for n in range(1, 200):
        _count(mount / "job", 2, n, hits=n)
        kills.update(float(n), now=True)
    facts = kills.finish(200.0)
    assert [fact.t for fact in facts] == [float(n) for n in range(200 - oom_kills.MOST_KEPT, 200)]


def test_memory_that_ran_short_and_killed_nobody_is_reported(tmp_path: Path) -> None:
    mount = _machine(tmp_path, 2, path="/job")
    _count(mount / "job", 2, 0, hits=0)
    before = _read(tmp_path)
    _count(mount / "job", 2, 0, hits=7)
    after = _read(tmp_path)
    assert [(fact.name, dict(fact.fields)["limit_hits"]) for fact in oom_kills.short(before, after)] == [("limit_hit", "7")]
    assert oom_kills.killed(before, after, 7.0) == ()


@pytest.mark.parametrize("content", [b"", b"nonsense\n", b"0::/x\n4:memory:/x\n", b"\xff\xfe\n", b"0::/../..\n"])
def test_an_unreadable_cgroup_has_no_counts(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_bytes(content)
    (tmp_path / "proc/self/mountinfo").write_bytes(b"1 2 3 / / rw - cgroup2 cgroup2 rw\nshort\n")
    assert _read(tmp_path) == {}
    assert _read(tmp_path / "none") == {}


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A memory group of 64 MiB."""
    with memory_group(64) as group:
        yield group


@pytest.mark.process
def test_a_real_kill_is_counted(small_group: Path) -> None:
    watcher = (
        "import os, subprocess, sys\n"
        "from supervisor.observe.host import oom_kills\n"
        f"open({str(small_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        "kills = oom_kills.OomKillCounter()\n"
        "eats = 'x = b\"x\" * (200 << 20)'\n"
        "code = subprocess.run([sys.executable, '-c', eats]).returncode\n"
        "print(code, *(fact.name for fact in kills.finish(1.0)))\n"
    )
    done = subprocess.run(  # noqa: S603  our own code
        [sys.executable, "-c", watcher], capture_output=True, text=True, timeout=120, check=False, cwd=Path(__file__).parents[3]
    )
    code, *names = done.stdout.split()
    assert int(code) == -signal.SIGKILL, done
    assert names[0] == "oom_kill"
