"""Shows what the kernel and the C library know of the process, from within."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import termios
import time

from observed import show

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.getenv.restype = ctypes.c_char_p
_FILES = (
    *("attr/current", "autogroup", "cgroup", "comm", "coredump_filter", "cpuset", "limits", "loginuid", "oom_adj", "oom_score_adj"),
    *("personality", "sessionid", "setgroups", "timens_offsets", "timers", "timerslack_ns", "uid_map"),
)
#: prctl(2): name and number of those that only read
_PRCTL = {
    "dumpable": 3,
    "keepcaps": 7,
    "timing": 13,
    "seccomp": 21,
    "securebits": 27,
    "timerslack": 30,
    "no_new_privs": 39,
    "thp_disable": 42,
}
_PRCTL_TO_MEMORY = {"death_signal": 2, "subreaper": 37}
_IOPRIO_GET = 252
_GET_MEMPOLICY = 239


def text(path: str) -> str:
    """Return a file's text, or why there is none."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a cheap probe
            return file.read().decode(errors="surrogateescape")
    except OSError as error:
        return f"error {error.errno}"


def descriptors() -> dict[str, list[object]]:
    """Return the open ones by number: what they lead to, their flags and their place."""
    rows: dict[str, list[object]] = {}
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the listing's own
        info = dict(line.split(":", 1) for line in text(f"/proc/self/fdinfo/{name}").splitlines() if ":" in line)
        kind = target.partition(":")[0] if target.startswith(("pipe:", "socket:")) else target
        rows[name] = [kind, info["flags"].strip(), info["pos"].strip(), os.get_inheritable(int(name))]
    return rows


def task(path: str, number: int) -> dict[str, object]:
    """Return what the scheduler knows of one thread."""
    fields = text(f"{path}/stat").rpartition(")")[2].split()
    return {
        "comm": text(f"{path}/comm"),
        "nice": os.getpriority(os.PRIO_PROCESS, number),
        "policy": os.sched_getscheduler(number),
        "affinity": sorted(os.sched_getaffinity(number)),
        "ioprio": _LIBC.syscall(_IOPRIO_GET, 1, number),
        "priority": fields[15:17],
        "rt_priority_policy": fields[37:39],
    }


def status() -> dict[str, str]:
    """Return the rows of /proc/self/status."""
    rows = (line.split(":", 1) for line in text("/proc/self/status").splitlines())
    return {name: value.strip() for name, value in rows if name != "SigQ"}  # signals that wait for anybody of this user


def prctl() -> dict[str, int]:
    """Return what prctl says."""
    values = {name: _LIBC.prctl(number, 0, 0, 0, 0) for name, number in _PRCTL.items()}
    for name, number in _PRCTL_TO_MEMORY.items():
        value = ctypes.c_int(-1)
        _LIBC.prctl(number, ctypes.byref(value), 0, 0, 0)
        values[name] = value.value
    return values


def terminal() -> list[object]:
    """Return what is known of the controlling terminal and the session."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR))
        has = "a terminal"
    except OSError as error:
        has = f"error {error.errno}"
    try:
        group: object = os.tcgetpgrp(0) == os.getpgrp()
    except OSError as error:
        group = f"error {error.errno}"
    stat = text("/proc/self/stat").rpartition(")")[2].split()
    sizes = []
    for fd in (0, 1, 2):
        try:
            sizes.append([*os.get_terminal_size(fd), os.ttyname(fd)[:9], termios.tcgetattr(fd)[:4]])
        except (OSError, termios.error) as error:
            sizes.append([str(error)])
    return [has, group, os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid(), stat[4], stat[5], sizes]


def environment() -> dict[str, object]:
    """Return the variables, and those that the C library has otherwise."""
    names = {**os.environ}
    other = {
        name: str(_LIBC.getenv(os.fsencode(name))) for name in names if _LIBC.getenv(os.fsencode(name)) != os.environb[os.fsencode(name)]
    }
    return {"variables": names, "order": list(names), "other in C": other}


policy = ctypes.c_int(-1)
_LIBC.syscall(_GET_MEMPOLICY, ctypes.byref(policy), 0, 0, 0, 0)
umask = os.umask(0o22)
os.umask(umask)
first_fd = os.open(os.devnull, os.O_RDONLY)
os.close(first_fd)
own = os.getpid()
show(
    cmdline=text("/proc/self/cmdline"),
    exe=os.readlink("/proc/self/exe"),
    files={name: text(f"/proc/self/{name}") for name in _FILES},
    status=status(),
    stat_tail=text("/proc/self/stat").rpartition(")")[2].split()[35:36],
    tasks=[task(f"/proc/self/task/{number}", int(number)) for number in sorted(os.listdir("/proc/self/task"))],
    namespaces={name: os.readlink(f"/proc/self/ns/{name}") for name in sorted(os.listdir("/proc/self/ns"))},
    descriptors=descriptors(),
    first_fd=first_fd,
    limits={name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")},
    umask=umask,
    prctl=prctl(),
    policy=policy.value,
    terminal=terminal(),
    parent=text(f"/proc/{os.getppid()}/cmdline"),
    cwd=[os.getcwd(), os.stat(".").st_ino, os.path.realpath("/proc/self/cwd")],
    root=os.readlink("/proc/self/root"),
    users=[os.getresuid(), os.getresgid(), os.getgroups()],
    environment=environment(),
    mask=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    pending=sorted(signal.sigpending()),
    timers=[signal.getitimer(which) for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)],
    wakeup=signal.set_wakeup_fd(-1),
    children=text(f"/proc/self/task/{own}/children"),
    zone=time.strftime("%Z"),
    clocks=[os.readlink("/proc/self/ns/time")],
    stdin=[sys.stdin.read(), sys.stdin.isatty()],
)
