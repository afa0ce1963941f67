"""An unprivileged container as clusters start them, out of namespaces: `words(...)` stands in front of a command. Needs root.

    uid      54321, which /etc/passwd does not have; no capability, none to be had (no_new_privs)
    pids     a namespace of its own: the command is process 1, and sees no process of the host
    /dev     null, zero, full, random, urandom, tty, pts, and no kmsg
    /dev/shm 64 MiB, as Docker and Kubernetes give
    memory   the limit of a control group, which is all that /sys/fs/cgroup shows of memory
    $HOME    a directory that cannot be written
    seccomp  ptrace and what else Docker's profile refuses: EPERM; `deny` names more

The files that the starting user may write stay writable: its uid is 54321 in there.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

UID = 54321
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
#: System calls by name: their numbers on x86-64 and on arm64.
CALLS = {
    "ptrace": (101, 117),
    "syslog": (103, 116),
    "perf_event_open": (298, 241),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
}
REFUSED = ("ptrace", "syslog", "perf_event_open", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd")
_MS_RDONLY, _MS_NOSUID, _MS_REMOUNT, _MS_BIND, _MS_MOVE, _MS_REC = 1, 2, 32, 4096, 8192, 16384
_CLONE_NEWUSER, _MNT_DETACH = 0x10000000, 2
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_JOIN = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'


def words(home: os.PathLike[str], group: os.PathLike[str], deny: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the words in front of a command. `home`: an existing directory, $HOME; `group`: a memory group (memory_group.py)."""
    apart = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--ipc", "--cgroup")
    join = ("sh", "-c", _JOIN, "sh", str(group))
    return (*join, *apart, sys.executable, "-I", "-S", __file__, str(home), str(group), ",".join((*REFUSED, *deny)))


def _checked(result: int, operation: str) -> None:
    if result:
        sys.exit(f"{operation}: {os.strerror(ctypes.get_errno())}")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:  # noqa: PTH123  as started by -S: nothing heavier
        file.write(text)


def _enter(home: str, group: str, deny: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
        _checked(libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()), f"mount {target}")

    # /dev is made in the place of the home, and moved
    mount("tmpfs", home, "tmpfs", _MS_NOSUID, "mode=755,size=64k")
    for name in DEVICES:
        _write(f"{home}/{name}", "")
        mount(f"/dev/{name}", f"{home}/{name}", "", _MS_BIND)
    for name in ("pts", "shm"):
        os.mkdir(f"{home}/{name}")  # noqa: PTH102  as above
    mount("/dev/pts", f"{home}/pts", "", _MS_BIND | _MS_REC)
    mount("tmpfs", f"{home}/shm", "tmpfs", _MS_NOSUID, "mode=1777,size=64m")
    for name, target in (("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(target, f"{home}/{name}")  # noqa: PTH211  as above
    mount(home, "/dev", "", _MS_MOVE)
    mount("proc", "/proc", "proc", _MS_NOSUID)
    is_v1 = os.path.exists(f"{group}/memory.limit_in_bytes")  # noqa: PTH110  as above
    groups = "/sys/fs/cgroup/memory" if is_v1 else "/sys/fs/cgroup"
    mount(group, home, "", _MS_BIND)
    _checked(libc.umount2(groups.encode(), _MNT_DETACH), f"umount {groups}")
    mount(home, groups, "", _MS_MOVE)
    mount("tmpfs", home, "tmpfs", _MS_NOSUID, "mode=755,size=64k")
    mount("tmpfs", home, "tmpfs", _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID, "")
    uid, gid = os.geteuid(), os.getegid()
    _checked(libc.unshare(_CLONE_NEWUSER), "unshare a user namespace")
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{UID} {uid} 1")
    _write("/proc/self/gid_map", f"{UID} {gid} 1")
    _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _refuse(libc, deny)


def _refuse(libc: ctypes.CDLL, calls: list[str]) -> None:
    """Have the kernel answer EPERM to these system calls (seccomp(2), a filter in classic BPF)."""
    machine = {"x86_64": 0, "aarch64": 1}.get(platform.machine())
    if machine is None:
        sys.exit(f"no table of system calls for {platform.machine()}")
    load, equal, answer = 0x20, 0x15, 0x06
    numbers = [CALLS[name][machine] for name in calls]
    rows = [(load, 0, 0, 0), *((equal, len(numbers) - at, 0, number) for at, number in enumerate(numbers))]
    rows += [(answer, 0, 0, 0x7FFF0000), (answer, 0, 0, 0x00050000 | errno.EPERM)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *row) for row in rows))
    program = struct.pack("<HxxxxxxQ", len(rows), ctypes.addressof(code))
    _checked(libc.prctl(_PR_SET_SECCOMP, 2, program, 0, 0), "seccomp")


if __name__ == "__main__":
    _enter(sys.argv[1], sys.argv[2], sys.argv[3].split(","))
    os.execvp(sys.argv[4], sys.argv[4:])  # noqa: S606  no shell is the point
