"""Makes a standby look like the rank that starts cold: output, priority, environment, /proc (docs/explanation/restarts.md)."""
# ruff: noqa: PTH123,PTH208 - pathlib is imported where the rank imports it

from __future__ import annotations

import os
import sys

from .layout import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: As report.LOW_FDS, and above its descriptor: every number is free that is free in a cold start. From 128 on the kernel's table grows.
LOW_FDS = 116
MOST_OUTPUT_BYTES = 256 * 1024


class Priority:
    """The lowest priority that this process may take back by itself. `nice`, `oom`: the values to return to, "" while they are in force."""

    def __init__(self, nice: str, oom: str) -> None:
        self.nice = nice
        self.oom = oom

    @quiet
    def lower(self) -> None:
        """Lower it, less the part lowered before this process started anew."""
        if not self.oom:
            self.oom = quiet(_swap_oom_score)("1000") or "-"
        if self.nice:
            return
        self.nice = "-"
        before = os.getpriority(os.PRIO_PROCESS, 0)
        if _can_return(before):
            os.setpriority(os.PRIO_PROCESS, 0, 19)
            self.nice = str(before)
        elif os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # every process may go there and back
            self.nice = "batch"

    def restore(self) -> str:
        """Take that of the processor back, in every thread; return why that failed, or ""."""
        try:
            for task in [int(name) for name in os.listdir("/proc/self/task")]:
                if self.nice == "batch":
                    os.sched_setscheduler(task, os.SCHED_OTHER, os.sched_param(0))
                elif self.nice != "-":
                    os.setpriority(os.PRIO_PROCESS, task, int(self.nice))
        except OSError as error:
            return f"its priority cannot be taken back: {error}"
        return ""

    def restore_oom(self) -> str:
        """Be no longer the first that the kernel kills when memory is short; return why that failed, or ""."""
        try:
            if self.oom != "-":
                _swap_oom_score(self.oom)
        except OSError as error:
            return f"oom_score_adj cannot be taken back: {error}"
        return ""


def _can_return(nice: int) -> bool:
    """Whether a process may lower its priority and return: tried in a child, because the right depends on namespaces too."""
    child = os.fork()
    if child == 0:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, 19)
            os.setpriority(os.PRIO_PROCESS, 0, nice)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _swap_oom_score(text: str) -> str:
    with open("/proc/self/oom_score_adj", "r+b", buffering=0) as file:
        before = file.read().strip()
        file.write(text.encode())
    return before.decode()


class GarbageCollections:
    """Holds them up at a moment when nobody may wait for one: with torch loaded a full one takes 0.1 s."""

    def __init__(self) -> None:
        """Collect now, and not again before `go_on`."""
        gc: Any = sys.modules.get("gc")  # torch imports it
        self._gc = gc if gc is not None and gc.isenabled() else None
        if self._gc is not None:
            self._gc.collect()
            self._gc.disable()

    def go_on(self) -> None:
        """Collect as before."""
        if self._gc is not None:
            self._gc.enable()


class Title:
    """The command line and the environment that /proc shows for this process."""

    def __init__(self) -> None:
        with open("/proc/self/cmdline", "rb") as file:
            self.argv = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]

    @quiet
    def show(self, argv: list[str], env: dict[str, str] | None) -> None:
        """Show them. Without CONFIG_CHECKPOINT_RESTORE in the kernel nothing changes."""
        import ctypes  # noqa: PLC0415 - NEEDED

        libc = ctypes.CDLL(None, use_errno=True)
        libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
        libc.malloc.argtypes = [ctypes.c_size_t]
        libc.sbrk.argtypes = [ctypes.c_ssize_t]
        with open("/proc/self/stat", "rb") as file:
            fields = [b"", b"", *file.read().rpartition(b")")[2].split()]  # from here fields[n - 1] is proc(5)'s field n
        (code, code_end, stack), (data, data_end, brk) = map(int, fields[25:28]), map(int, fields[44:47])
        bounds = [int(field) for field in fields[47:51]]  # of the arguments, and of the environment
        for at, words in ((0, argv), (2, None if env is None else [f"{name}={value}" for name, value in env.items()])):
            if words is not None:
                text = b"".join(os.fsencode(word) + b"\0" for word in words)
                start = libc.malloc(len(text))  # stays for the life of the process, as the originals do
                ctypes.memmove(start, text, len(text))
                bounds[at : at + 2] = [start, start + len(text)]
        numbers = [code, code_end, data, data_end, brk, libc.sbrk(0), stack, *bounds, 0]  # as struct prctl_mm_map; the 0: auxv stays
        packed = b"".join(number.to_bytes(8, sys.byteorder) for number in numbers)
        packed += (0).to_bytes(4, sys.byteorder) + (0xFFFFFFFF).to_bytes(4, sys.byteorder)  # no size of auxv, no exe_fd
        libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_ulong]
        libc.prctl(35, 14, packed, len(packed), 0)  # PR_SET_MM, PR_SET_MM_MAP


def capture(number: int) -> int:
    """Send an output into memory; returns its descriptor."""
    import fcntl  # noqa: PLC0415 - as above

    memory = os.memfd_create("standby", os.MFD_CLOEXEC)
    high = fcntl.fcntl(memory, fcntl.F_DUPFD_CLOEXEC, LOW_FDS)
    os.close(memory)
    os.dup2(high, number)
    return high


def flush() -> None:
    """Write the prints that Python and the C library hold back."""
    import ctypes  # noqa: PLC0415 - standby.NEEDED

    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    ctypes.CDLL(None).fflush(None)


def printed_bytes() -> int:
    """Return how much was printed so far."""
    flush()
    return os.fstat(1).st_size + os.fstat(2).st_size


def replay(outputs: list[int], fds: dict[int, int]) -> None:
    """Take the descriptors of the rank, and write what the imports printed."""
    for number, fd in fds.items():
        os.dup2(fd, number)
        os.close(fd)
    for number, memory in enumerate(outputs, 1):
        rest = memoryview(os.pread(memory, MOST_OUTPUT_BYTES, 0))
        while rest:
            rest = rest[os.write(number, rest) :]
        os.close(memory)
    streams: list[Any] = [sys.stdin, sys.stdout, sys.stderr]
    for stream in streams:
        if stream is not None and not stream.write_through:  # which it is under -u
            always = stream is sys.stderr and sys.version_info >= (3, 9)
            stream.reconfigure(line_buffering=always or stream.isatty())


def drop_finders(record: dict[str, Any]) -> None:
    """Forget what the script's directories held: a rank that starts cold reads them anew."""
    for path in list(sys.path_importer_cache):
        if not path.startswith(tuple(record["directories"])):
            del sys.path_importer_cache[path]


def set_environment(env: dict[str, str]) -> None:
    """Make os.environ this one, in its order; equal entries stay at their address, for readers that look for argv there."""
    for name in [name for name in os.environ if name not in env]:
        del os.environ[name]
    for name, value in env.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    if list(os.environ) != list(env):
        os.environ.clear()
        os.environ.update(env)
    import posix  # noqa: PLC0415 - built in

    posix.environ.clear()
    posix.environ.update({os.fsencode(name): os.fsencode(value) for name, value in env.items()})


def private_kib() -> int:
    """Return the memory that this process shares with none, in KiB; 0 where the kernel does not report it."""
    try:
        with open("/proc/self/smaps_rollup", "rb") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith((b"Private_Clean:", b"Private_Dirty:")))
    except OSError:
        return 0
