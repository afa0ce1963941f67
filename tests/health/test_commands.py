"""The commands that a result offers are pasted by a person, often as root: every name in them is one word of a shell, and none harms."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from health import registry
from health.model import HOST, Reading, Readings, Repair, Result
from health.thresholds import Thresholds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from health.model import CheckResult, Json

GIB = 1 << 30
#: Names of one word, as a shell must not read them.
HOSTILE = ("/data/My Drive", "/mnt/x;reboot", "/mnt/$(reboot)", "/mnt/`id`", "/mnt/it's", "/mnt/a&b")


def results(check: str, read: Mapping[tuple[str, str], Json], before: Mapping[tuple[str, str], Json] | None = None) -> list[CheckResult]:
    """Return what a check says of these readings, by name and subject."""

    def readings(of: Mapping[tuple[str, str], Json]) -> Readings:
        return Readings(Reading("test", subject, name, value, t=100.0) for (name, subject), value in of.items())

    return list(registry.checks()[check](readings(read), readings(before) if before is not None else None, Thresholds()))


def offered(results: list[CheckResult]) -> list[str]:
    return [command for result in results for command in (result.command, *result.look) if command]


def of_path(name: str) -> list[list[CheckResult]]:
    """Return what is said of a path that is stale, hung, full, without inodes, slow, read-only or denied; and of others with this name."""
    subject = f"path:{name}"
    mount: dict[tuple[str, str], Json] = {("path.mount", subject): {"kind": "nfs", "source": "srv:/x", "point": name}}

    def space(**more: Json) -> dict[tuple[str, str], Json]:
        row = {"total": 1000 * GIB, "free": 500 * GIB, "inodes": 1000, "inodes_free": 900, "read_only": False, "need": 0}
        return {("path.space", subject): {**row, **more}, **mount}

    return [
        results("disk_paths", {("path.state", subject): {"errno": "ESTALE"}, **mount}),
        results("disk_paths", {("path.state", subject): {"hung": True, "pid": 7}, **mount}),
        results("disk_paths", {("path.state", subject): {"error": "Permission denied"}, **mount}),
        results("disk_space", space(free=GIB)),
        results("disk_space", space(inodes_free=1)),
        results("disk_writes", space(read_only=True)),
        results("disk_writes", {**space(), ("path.write", subject): {"error": "no", "errno": "EACCES"}}),
        results("disk_writes", {**space(), ("path.write", subject): {"error": "no", "errno": "ENOSPC"}}),
        results("disk_writes", {**space(), ("path.write", subject): {"seconds": 90.0, "bytes": 1, "sync_s": 1.0}}),
        results("host_cgroup", {("cgroup.memory", HOST): {"limit": 100, "used": 99, "path": name}}),
        results("host_cgroup", {("cgroup.cpu", HOST): {"quota": 2.0, "periods": 10, "throttled": 9, "path": name}}),
        results("host_cgroup", {("cgroup.pids", HOST): {"limit": 100, "used": 99, "path": name}}),
        results("host_core", {("host.core", HOST): {"directory": name}, ("host.limits", HOST): {"core": [None, None]}}),
        results(
            "env_code",
            {("env.code", HOST): {"root": name, "head": "b" * 40}},
            {("env.code", HOST): {"root": name, "head": "a" * 40}},
        ),
        results("net_names", {("name.resolved", f"name:{name}"): {"seconds": 60.0, "addresses": ["10.0.0.1"]}}),
        results("net_reach", {("peer.answer", f"peer:{name}:29500"): {"seconds": 60.0}}),
        results(
            "net_ethernet",
            {
                ("nic.names", HOST): [name],
                ("nic.state", f"nic:{name}"): {"virtual": False, "loopback": False, "up": True, "carrier": False},
            },
        ),
    ]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_in_a_command_is_one_word_of_a_shell(name: str) -> None:
    for result in of_path(name):
        commands = offered(result)
        assert any(name in word for command in commands for word in shlex.split(command)), (result, "the name stands in it")
        for command in commands:
            for word in shlex.split(command):
                assert name in word or not any(part in word for part in ("reboot", "id`", "Drive", "it's", "a&b")), command


@pytest.mark.parametrize("point", ["/", "/usr", "/var/", "/dev/shm"])  # noqa: S108  a mount point
def test_a_mount_point_of_the_system_is_never_unmounted(point: str) -> None:
    subject = f"path:{point}"
    mount: Json = {"kind": "nfs", "source": "srv:/root", "point": point}
    (result,) = results("disk_paths", {("path.state", subject): {"errno": "ESTALE"}, ("path.mount", subject): mount})
    assert "umount" not in result.command
    assert result.command.startswith("reboot")


def test_a_path_whose_mount_point_is_not_known_is_not_unmounted() -> None:
    (result,) = results("disk_paths", {("path.state", "path:/data/run/ckpt"): {"errno": "ESTALE"}})
    assert (result.result, result.command) == (Result.FAILED, "")


def test_a_file_system_that_the_kernel_found_damaged_is_not_made_writable_again() -> None:
    space: dict[str, Json] = {"total": 1000 * GIB, "free": 500 * GIB}
    mount: dict[tuple[str, str], Json] = {("path.mount", "path:/data"): {"kind": "ext4", "source": "/dev/sdb", "point": "/data"}}
    now: dict[tuple[str, str], Json] = {("path.space", "path:/data"): {**space, "read_only": True}, **mount}
    (mounted_so,) = results("disk_writes", now)
    (damaged,) = results("disk_writes", now, {("path.space", "path:/data"): {**space, "read_only": False}, **mount})
    assert mounted_so.command == "mount -o remount,rw /data"
    assert damaged.repair is Repair.DRAIN
    assert "remount" not in damaged.command
    assert "fsck" in damaged.command


@pytest.mark.parametrize(("available", "swapped", "is_safe"), [(60, 120, False), (60, 55, False), (400, 20, True)])
def test_swap_is_switched_off_only_where_what_is_in_it_fits_into_memory(available: int, swapped: int, is_safe: bool) -> None:  # noqa: FBT001
    row: Json = {"total": 512 * GIB, "available": available * GIB, "swap_total": 128 * GIB, "swap_free": (128 - swapped) * GIB}
    (result,) = results("host_memory", {("host.memory", HOST): row})
    assert result.result is Result.DEGRADED
    assert (result.command == "swapoff -a") is is_safe
    assert "swapoff" not in result.command or is_safe
