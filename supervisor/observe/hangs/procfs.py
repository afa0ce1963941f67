"""Reads what the kernel knows of one process: its state, its counters, and the file that its main thread waits for.

psutil reads neither the counters of a thread nor wait channels, kernel stacks and system calls. An unreadable value is empty: the kernel
stack is root's, and the system call is for those who may trace the process. Nothing here asks a file system, which may be the one that
does not answer: the path comes from the link of the descriptor, the mount from `fdinfo` and `mountinfo`.
"""

from __future__ import annotations

import os
import platform
import re

from supervisor.core.values import Struct

#: The system calls that wait for a file, by number: the name, and whether the first argument is a descriptor of it.
_X86_64 = {
    0: ("read", True), 1: ("write", True), 2: ("open", False), 3: ("close", True), 4: ("stat", False), 5: ("fstat", True),
    6: ("lstat", False), 17: ("pread64", True), 18: ("pwrite64", True), 19: ("readv", True), 20: ("writev", True), 72: ("fcntl", True),
    73: ("flock", True), 74: ("fsync", True), 75: ("fdatasync", True), 78: ("getdents", True), 82: ("rename", False),
    83: ("mkdir", False), 87: ("unlink", False), 217: ("getdents64", True), 257: ("openat", True), 262: ("newfstatat", True),
    277: ("sync_file_range", True), 295: ("preadv", True), 296: ("pwritev", True), 306: ("syncfs", True), 332: ("statx", True),
}  # fmt: skip
_AARCH64 = {
    63: ("read", True), 64: ("write", True), 57: ("close", True), 67: ("pread64", True), 68: ("pwrite64", True), 65: ("readv", True),
    66: ("writev", True), 25: ("fcntl", True), 32: ("flock", True), 82: ("fsync", True), 83: ("fdatasync", True), 61: ("getdents64", True),
    56: ("openat", True), 79: ("newfstatat", True), 80: ("fstat", True), 267: ("syncfs", True), 291: ("statx", True), 69: ("preadv", True),
}  # fmt: skip
CALLS = {"x86_64": _X86_64, "aarch64": _AARCH64}.get(platform.machine(), {})
#: System calls that wait for something else than a file (awaited.py), by number.
_OTHER_CALLS = {
    "x86_64": {
        7: "poll", 23: "select", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 61: "wait4",
        230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 270: "pselect6", 271: "ppoll", 281: "epoll_wait", 288: "accept",
        441: "epoll_wait",
    },
    "aarch64": {
        22: "epoll_wait", 72: "pselect6", 73: "ppoll", 95: "waitid", 115: "clock_nanosleep", 202: "accept", 203: "connect", 206: "sendto",
        207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 242: "accept", 260: "wait4", 441: "epoll_wait",
    },
}.get(platform.machine(), {})  # fmt: skip
#: Calls that take a path: by name, the number of the argument that points to it.
_PATH_ARGUMENT = {"open": 0, "stat": 0, "lstat": 0, "rename": 0, "mkdir": 0, "unlink": 0, "openat": 1, "newfstatat": 1, "statx": 1}
#: Wait channels of objects that are not files on a disk, though they may have a path.
_NO_FILE = re.compile(r"pipe|fifo|partner|tty|sock|skb|unix|tcp|inet|eventfd|inotify|poll|futex")
_LONGEST_PATH = 4096
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class ProcessCounters(Struct, frozen=True):
    """Counters that only grow. `main_` is of the main thread: other threads of torch wake up now and then in a rank that hangs.

    switches: voluntary context switches. read_bytes and written_bytes: as io_bytes counts them, and main_bytes is their sum of the main
    thread; -1: they may not be read. children_cpu_s: of the processes that it started, that ended, and that it waited for.
    """

    t: float
    cpu_s: float
    main_cpu_s: float
    main_switches: int
    read_bytes: int
    written_bytes: int
    main_bytes: int = -1
    children_cpu_s: float = 0.0


class FileWait(Struct, frozen=True):
    """The file that a system call waits for. mount: its mount point, fs_type: `nfs4`, `fuse.sshfs`; "" where they are unknown."""

    call: str
    path: str
    mount: str = ""
    fs_type: str = ""


class ThreadWait(Struct, frozen=True):
    """The reason of the main thread's wait, as the kernel shows it.

    state: the letter of /proc/PID/stat, "" if the process is gone. wchan: the kernel's function that it sleeps in, "" running or unknown.
    call: name or number of the system call, with its arguments. stack: the kernel's functions, the innermost first.
    """

    state: str
    wchan: str = ""
    call: str = ""
    stack: tuple[str, ...] = ()
    file: FileWait | None = None
    arguments: tuple[int, ...] = ()


def counters(pid: int, t: float) -> ProcessCounters | None:
    """Return the counters of a process at the time `t`, None if it is gone."""
    whole, main = _stat(f"/proc/{pid}/stat"), _stat(f"/proc/{pid}/task/{pid}/stat")
    if whole is None or main is None:
        return None
    switches = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", text(f"/proc/{pid}/task/{pid}/status"), re.MULTILINE)
    return ProcessCounters(
        t,
        _cpu_s(whole),
        _cpu_s(main),
        int(switches[1]) if switches else 0,
        *(io_bytes(pid) or (-1, -1)),
        sum(io_bytes(f"{pid}/task/{pid}") or (-1,)),
        (int(whole[13]) + int(whole[14])) * _TICK_S,
    )


def io_bytes(of: int | str) -> tuple[int, int] | None:
    """Return the bytes that a process (or the thread `PID/task/TID`) has read, and those that it has written; None: they may not be read.

    By system calls, also of pipes, and from and to a disk by memory maps (proc_pid_io(5)). Bytes that a call reads from a disk count twice.
    """
    rows = dict(re.findall(r"^(\w+): (\d+)$", text(f"/proc/{of}/io"), re.MULTILINE))
    try:
        return int(rows["rchar"]) + int(rows["read_bytes"]), int(rows["wchar"]) + int(rows["write_bytes"])
    except KeyError:
        return None


def moved_bytes(pid: int) -> int | None:
    """Return the sum of both."""
    read_and_written = io_bytes(pid)
    return None if read_and_written is None else sum(read_and_written)


def waits(pid: int) -> ThreadWait:
    """Return what the main thread of a process does now."""
    thread = f"/proc/{pid}/task/{pid}"
    fields = _stat(f"{thread}/stat")
    if fields is None:
        return ThreadWait("")
    state, wchan = fields[0], text(f"{thread}/wchan")
    wchan = "" if wchan == "0" else wchan
    stack = tuple(re.findall(r"\] ([^\s+]+)", text(f"{thread}/stack")))
    call, arguments = _call(text(f"{thread}/syscall"))
    # of a stopped thread the kernel shows the call that it came out of, or would continue with: it waits for nothing but a signal
    file = None if state in {"R", "T", "t"} else _file(pid, call, arguments, wchan, stack)
    return ThreadWait(state, wchan, call, stack, file, arguments)


def descriptors(pid: int) -> list[int]:
    """Return the numbers of a process's descriptors, in order; none where they may not be read."""
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - hundreds of small files at a time
    except OSError:
        return []


def opened(pid: int, fd: int) -> tuple[int, bool]:
    """Return how far a process has read or written what a descriptor of its is of, and whether it has that open for writing."""
    info = text(f"/proc/{pid}/fdinfo/{fd}")
    position = re.search(r"^pos:\s+(\d+)", info, re.MULTILINE)
    flags = re.search(r"^flags:\s+(\d+)", info, re.MULTILINE)
    return int(position[1]) if position else 0, bool(flags and int(flags[1], 8) & os.O_ACCMODE)


def command_name(pid: int) -> str:
    """Return the name of the main thread; reading the command line could wait for a lock that a stuck process holds."""
    return text(f"/proc/{pid}/comm")


def environment(pid: int) -> dict[str, str]:
    """Return the variables with which a process began; none where they may not be read."""
    return dict(row.split("=", 1) for row in text(f"/proc/{pid}/environ").split("\0") if "=" in row)


def executable(pid: int) -> str:
    """Return the path of the program that a process runs, "" where it may not be read."""
    return link(f"/proc/{pid}/exe")


def _file(pid: int, call: str, arguments: tuple[int, ...], wchan: str, stack: tuple[str, ...]) -> FileWait | None:
    """Return the file that a call waits for; None if it waits for a pipe, a socket, a terminal, or nothing of the kind."""
    takes_fd = next((has_fd for name, has_fd in CALLS.values() if name == call), None)
    if takes_fd is None or any(_NO_FILE.search(name) for name in (wchan, *stack[:2])):
        return None
    path, mount_id = "", ""
    if call in _PATH_ARGUMENT:
        path = opened_path(pid, call, arguments)
    else:
        path = link(f"/proc/{pid}/fd/{arguments[0]}")
        mount_number = re.search(r"^mnt_id:\s+(\d+)", text(f"/proc/{pid}/fdinfo/{arguments[0]}"), re.MULTILINE)
        mount_id = mount_number[1] if mount_number else ""
    if not path.startswith("/") or path.startswith(("/dev/", "/proc/", "/memfd:", "/dmabuf:")):
        return None
    mount, fs_type = mount_of(text(f"/proc/{pid}/mountinfo"), path, mount_id)
    return FileWait(call, path, mount, fs_type)


def opened_path(pid: int, call: str, arguments: tuple[int, ...]) -> str:
    """Return the absolute path that a call takes by name; "" for a call that takes none, or where it may not be read."""
    if call not in _PATH_ARGUMENT:
        return ""
    path = string(pid, arguments[_PATH_ARGUMENT[call]])
    if path.startswith("/"):
        return path
    is_below = _PATH_ARGUMENT[call] > 0 and arguments[0] < 2**31  # AT_FDCWD is negative
    at = link(f"/proc/{pid}/fd/{arguments[0]}") if is_below else link(f"/proc/{pid}/cwd")
    return f"{at}/{path}".rstrip("/") if at else ""


def mount_of(mountinfo: str, path: str, mount_id: str = "") -> tuple[str, str]:
    """Return mount point and file system type of a path, by the number of its mount or by the longest mount point that it is below."""
    best = ("", "")
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:  # noqa: PLR2004 - the mount point is the fifth
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        if mount_id and fields[0] == mount_id:
            return point, after.split()[0]
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        if not mount_id and is_above and len(point) >= len(best[0]):  # of two at one point the later hides the earlier
            best = (point, after.split()[0])
    return best


def _call(line: str) -> tuple[str, tuple[int, ...]]:
    """Return name (or number) and arguments of the line in /proc/PID/syscall; "" for a thread that is in none."""
    words = line.split()
    if len(words) < 7 or words[0] == "-1":  # noqa: PLR2004 - a number and six arguments; "running" has none
        return "", ()
    number = int(words[0])
    name = CALLS[number][0] if number in CALLS else _OTHER_CALLS.get(number, words[0])
    return name, tuple(int(word, 16) for word in words[1:7])


def string(pid: int, address: int) -> str:
    """Return the text at an address of a process's memory, "" where it may not be read."""
    page = 4096 - address % 4096  # the next page may not be mapped
    data = memory(pid, address, page)
    if data and b"\0" not in data:
        data += memory(pid, address + page, _LONGEST_PATH)
    return os.fsdecode(data.partition(b"\0")[0])


def memory(pid: int, address: int, size: int) -> bytes:
    """Return so many bytes of a process's memory, or as many as there are; none where they may not be read."""
    try:
        fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(fd, size, address)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(fd)


def _cpu_s(fields: list[str]) -> float:
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def _stat(path: str) -> list[str] | None:
    """Return the fields after the name: state, parent, ...; None if it is gone."""
    line = text(path)
    return line[line.rindex(")") + 2 :].split() if ")" in line else None


def text(path: str) -> str:
    """Return the text of a file of /proc, "" where it may not be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - hundreds of small files at a time
            return file.read().strip()
    except OSError:
        return ""


def link(path: str) -> str:
    """Return what a link of /proc leads to, "" where it may not be read; asks no file system."""
    try:
        return os.readlink(path)  # noqa: PTH115 - a name that may be no path
    except OSError:
        return ""
