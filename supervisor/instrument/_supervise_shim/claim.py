"""Identifies this process, and claims a rank's slot for it.

Of two living processes that want one slot the stronger claim has it, and of equal ones the first: who trains, before a process that its
launcher numbered, before the command itself. So `python sweep.py` has slot 0 until the rank 0 that it starts says hello, and
`python train.py` gets its slot back from a server with RANK and LOCAL_RANK that it started before its first step.

After a failure here (no directory, another layout) the process keeps a private heartbeat, and the supervisor knows less.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys

from . import layout
from .layout import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from .heartbeat import HeartbeatWriter


#: How strong a claim is; 0: none. COMMAND: the job's own command, which trains or starts what trains.
COMMAND, NUMBERED, TRAINS = 1, 2, 3


class ProcessIdentity:
    """This process. `folder` is our entry in PYTHONPATH, `directory` the attempt's. `strength`: of its claim.

    `known_rank`: the supervisor declares it (mode rank), or RANK and LOCAL_RANK are both set; on the only or first node LOCAL_RANK and
    WORLD_SIZE are enough (Lightning's children). RANK alone is not: in a pod of Kubernetes' PyTorchJob it counts nodes, and is in
    the launcher's environment too. mpirun's variables count if the parent does not have the same: `mpirun supervise -- ./run.sh` gives
    them to all that it starts.
    """

    def __init__(self, folder: str, directory: str, mode: str) -> None:
        self.folder = folder
        self.pid = os.getpid()
        self.start_ticks = layout.start_ticks_of(self.pid) or 0
        self.strength = 0
        self.enabled = True  # False in a forked child, which is not the rank
        self.has_index = False  # torch.multiprocessing numbered it among those that one process started
        self.identify(directory, mode)

    def identify(self, directory: str, mode: str) -> None:
        """Read from the environment which rank this is; a standby does so again when it becomes one."""
        env = os.environ
        self.directory = directory
        self.mode = mode
        is_only_node = "WORLD_SIZE" in env and env.get("NODE_RANK", "0") == "0"
        numbered = "LOCAL_RANK" in env and ("RANK" in env or is_only_node)
        self.known_rank = mode == "rank" or numbered
        self.is_command = mode == "rank" and "LOCAL_RANK" not in env
        self.local_rank = int(env.get("LOCAL_RANK") or 0)
        self.rank = int(env.get("RANK") or (self.local_rank if numbered else 0)) if self.known_rank else 0
        by_mpi = None if self.known_rank else layout.mpi_rank(env)
        if by_mpi is not None and by_mpi != layout.mpi_rank(_environment_of(os.getppid())):
            self.known_rank = True
            self.rank, self.local_rank, _world_size = by_mpi

    @property
    def hands_on(self) -> bool:
        """Whether this process's children may be the ranks."""
        return self.is_command and self.strength != TRAINS

    @property
    def claimed(self) -> bool:
        """Whether this process has a slot, as far as it knows."""
        return self.strength > 0

    def set_rank(self) -> None:
        """Take the number that the script gave this process after its start: it was started by multiprocessing, without one."""
        if self.known_rank:
            return
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            self.rank = distributed.get_rank()
            if not self.has_index:  # without a local rank: right on one node, and on another a slot that nobody else has
                self.local_rank = int(os.environ.get("LOCAL_RANK") or self.rank)

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


def claim(identity: ProcessIdentity, beat: HeartbeatWriter, strength: int) -> bool:
    """Take the rank's slot, or keep it with a stronger claim; False if another living process has it whose claim is no weaker."""
    claimed_before = keeps(identity, beat)
    if not _take(identity, strength):
        return False
    identity.strength = strength
    beat.still_ours = None if strength == TRAINS else quiet(lambda: keeps(identity, beat))
    leave_environment(identity.folder)
    if strength == COMMAND:
        _hand_on(identity.folder)
    if not claimed_before:
        quiet(_move_in)(identity, beat)
    return True


def keeps(identity: ProcessIdentity, beat: HeartbeatWriter) -> bool:
    """Return whether the slot is still this process's, and leave it where another one took it: it is that one's heartbeat now."""
    if identity.strength in (0, TRAINS):
        return identity.claimed
    with open(_claim_file(identity), "rb") as file:  # noqa: PTH123 - pathlib costs 5 ms of start-up
        if file.read(64).split()[:2] == f"{identity.pid} {identity.start_ticks}".encode().split():
            return True
    beat.still_ours = None
    beat.lose(identity.pid, identity.start_ticks, identity.rank)
    identity.strength = 0
    return False


def release(identity: ProcessIdentity, beat: HeartbeatWriter) -> None:
    """Give the slot up: another process may claim it."""
    if keeps(identity, beat):
        beat.free_slot()
        beat.still_ours = None
        identity.strength = 0
        os.truncate(_claim_file(identity), 0)


def _claim_file(identity: ProcessIdentity) -> str:
    return os.path.join(identity.directory, f"claim-{identity.local_rank}")  # noqa: PTH118 - pathlib costs 5 ms of start-up


def _hand_on(folder: str) -> None:
    """Have children instrumented that inherit this process's environment; os.environ stays as the user's was."""
    for name, value in with_us(os.environ, folder).items():
        if os.environ.get(name) != value:
            os.putenv(name, value)


def with_us(environ: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return an environment in which a child is instrumented as a launcher's children are."""
    user_path = environ.get("PYTHONPATH")
    path = folder if user_path is None else f"{folder}{os.pathsep}{user_path}"
    return {**environ, "PYTHONPATH": path, "SUPERVISE_JOB_SHIM": "launcher"}


def leave_environment(folder: str) -> None:
    """Make the environment what the user's was, so that children are not instrumented."""
    os.environ.pop("SUPERVISE_JOB_SHIM", None)
    os.unsetenv("SUPERVISE_JOB_SHIM")
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder in entries:
        entries.remove(folder)
        if entries:
            os.environ["PYTHONPATH"] = os.pathsep.join(entries)
        else:
            del os.environ["PYTHONPATH"]
    elif "PYTHONPATH" in os.environ:
        os.putenv("PYTHONPATH", os.environ["PYTHONPATH"])
    else:
        os.unsetenv("PYTHONPATH")


def _take(identity: ProcessIdentity, strength: int) -> bool:
    """Write us into the claim file, if it names no living process with as strong a claim.

    The lock is held only meanwhile: no child can inherit it.
    """
    fd = os.open(_claim_file(identity), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(fd)
        words = [int(word) for word in os.read(fd, 64).split()]
        if len(words) == 3:  # noqa: PLR2004 - pid, start ticks and strength
            holder, holders_strength = words[:2], words[2]
            is_other = holder != [identity.pid, identity.start_ticks]
            if is_other and holders_strength >= strength and layout.start_ticks_of(holder[0]) == holder[1]:
                return False
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{identity.pid} {identity.start_ticks} {strength}\n".encode(), 0)
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
