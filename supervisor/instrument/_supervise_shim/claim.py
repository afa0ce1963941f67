"""Identifies this process, and claims a rank's slot for it.

The first process that claims a slot has it until it dies. After a failure here (no directory, another layout) the process keeps a private
heartbeat, and the supervisor knows less.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from . import layout
from .layout import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .heartbeat import HeartbeatWriter


class ProcessIdentity:
    """This process. `folder` is our entry in PYTHONPATH, `directory` the attempt's.

    `known_rank`: the supervisor declares it (mode rank), or RANK and LOCAL_RANK are both set. RANK alone is not enough: in a pod of
    Kubernetes' PyTorchJob it counts nodes, and stands in the launcher's environment too. mpirun's variables count if the parent does not
    have the same: `mpirun supervise -- ./run.sh` gives them to all that it starts.
    """

    def __init__(self, folder: str, directory: str, mode: str) -> None:
        self.folder = folder
        self.pid = os.getpid()
        self.start_ticks = layout.start_ticks_of(self.pid) or 0
        self.claimed = False
        self.enabled = True  # False in a forked child, which is not the rank
        self.identify(directory, mode)

    def identify(self, directory: str, mode: str) -> None:
        """Read from the environment which rank this is; a standby does so again when it becomes one."""
        env = os.environ
        self.directory = directory
        self.mode = mode
        self.known_rank = mode == "rank" or ("RANK" in env and "LOCAL_RANK" in env)
        self.local_rank = int(env.get("LOCAL_RANK") or 0)
        self.rank = int(env.get("RANK") or 0) if self.known_rank else 0
        by_mpi = None if self.known_rank else layout.mpi_rank(env)
        if by_mpi is not None and by_mpi != layout.mpi_rank(_environment_of(os.getppid())):
            self.known_rank = True
            self.rank, self.local_rank, _world_size = by_mpi

    def path(self, kind: str) -> str:
        """Return the path of this process's "error", "stacks" or "collectives" file."""
        return os.path.join(self.directory, layout.file_name(kind, self.local_rank if self.claimed else None, self.pid))  # noqa: PTH118 - pathlib costs 5 ms of start-up


def _environment_of(pid: int) -> dict[str, str]:
    """Return a process's environment; an empty one if it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - pathlib costs 5 ms of start-up
            pairs = (os.fsdecode(row).partition("=") for row in file.read().split(b"\0"))
            return {name: value for name, _, value in pairs}
    except OSError:
        return {}


def claim(identity: ProcessIdentity, beat: HeartbeatWriter) -> bool:
    """Take the rank's slot, if no living process has it. Each process tries once."""
    beat.wants_slot = None
    if not _take(os.path.join(identity.directory, f"claim-{identity.local_rank}"), identity.pid, identity.start_ticks):  # noqa: PTH118 - see above
        return False
    identity.claimed = True
    leave_environment(identity.folder)
    quiet(_move_in)(identity, beat)
    return True


def release(identity: ProcessIdentity, beat: HeartbeatWriter) -> None:
    """Give the slot up: another process may claim it."""
    beat.vacate()
    identity.claimed = False
    os.truncate(os.path.join(identity.directory, f"claim-{identity.local_rank}"), 0)  # noqa: PTH118 - see above


def join_environment(folder: str) -> None:
    """Have children instrumented, as a launcher's are."""
    user_path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = folder if user_path is None else f"{folder}{os.pathsep}{user_path}"
    os.environ["SUPERVISE_JOB_SHIM"] = "launcher"


def leave_environment(folder: str) -> None:
    """Make os.environ what the user's was, so that children are not instrumented."""
    os.environ.pop("SUPERVISE_JOB_SHIM", None)
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder in entries:
        entries.remove(folder)
        if entries:
            os.environ["PYTHONPATH"] = os.pathsep.join(entries)
        else:
            del os.environ["PYTHONPATH"]


def _take(path: str, pid: int, start_ticks: int) -> bool:
    """Write our pid into the claim file, if it names no living process. The lock is held only meanwhile: no child can inherit it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(fd)
        holder = os.read(fd, 64).split()
        if len(holder) == 2 and layout.start_ticks_of(int(holder[0])) == int(holder[1]):  # noqa: PLR2004 - pid and start ticks
            return False
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{pid} {start_ticks}\n".encode(), 0)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def _lock(fd: int) -> None:
    """Lock the claim file. A file system without locks (the state directory, where /dev/shm is too small) has to do without."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return


def _move_in(identity: ProcessIdentity, beat: HeartbeatWriter) -> None:
    fd = os.open(os.path.join(identity.directory, "heartbeat"), os.O_RDWR | os.O_CLOEXEC)  # noqa: PTH118 - see above
    try:
        memory = memoryview(mmap.mmap(fd, 0)).cast("q")
    finally:
        os.close(fd)
    words = layout.SLOT_BYTES // 8
    is_own_format = (memory[layout.HEAD_MAGIC], memory[layout.HEAD_VERSION]) == (layout.MAGIC, layout.VERSION)
    if is_own_format and 0 <= identity.local_rank < memory[layout.HEAD_SLOTS]:
        beat.move_to(memory[(1 + identity.local_rank) * words : (2 + identity.local_rank) * words])
