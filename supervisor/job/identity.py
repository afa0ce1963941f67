"""Finds the job's name, its run, its node and the directories of its files.

An error about a name or directory names the option that helps.

    <state_dir>/<job>/nodes/<hostname>/      files that are kept (node_state)
    /dev/shm/supervise-<uid>-<digest>/       files that may be lost: heartbeats, stacks, error files (job_dir)
"""

from __future__ import annotations

import calendar
import contextlib
import glob
import hashlib
import json
import os
import re
import secrets
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from health.probes.slurm import job_id
from supervisor.config.settings import JOB_NAME_FORM, is_job_name
from supervisor.errors import ExitCode, SuperviseError
from supervisor.guardian import process_tree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SHM = Path("/dev/shm")  # noqa: S108  checked below: a directory of this user, and no symbolic link
#: Heartbeats and stacks of a large node need about as much; a full /dev/shm is not a place for them.
_SHM_NEEDED_BYTES = 1 << 20
#: The page of the newest look at ranks that stood still: in an attempt's directory, and where `look_path` keeps it.
LOOK_FILE = "hang.txt"
#: A run is named for the second in which it began, in UTC.
_RUN_TIME = "%Y%m%dT%H%M%S"
#: After these exit codes only a person starts the job again: it was done, must be changed, or must go to another node.
_FINAL = frozenset({ExitCode.DONE, ExitCode.DETERMINISTIC, ExitCode.BAD_NODE, ExitCode.CONFIG})
#: The exit codes of `systemctl stop`, Ctrl-C and a closed terminal: a person ended the run, so the next start is a new run.
_STOPPED_BY_PERSON = frozenset({128 + 1, 128 + 2, 128 + 15})


#: How the scratch directory of a drill is called, in which its own job has its state.
DRILL_PREFIX: Final = ".drill-"
#: The origin of a job's name that follows from its command.
BY_COMMAND: Final = "working directory and command"


@dataclass(frozen=True, slots=True)
class JobName:
    """A job's name, a directory name at the same time, and where it came from."""

    name: str
    origin: str


@dataclass(frozen=True, slots=True)
class RunDecision:
    """Whether this start opens a new run, with fresh budgets, or continues the last one; `reason` is for the log."""

    kind: Literal["new", "continue"]
    reason: str


@dataclass(frozen=True, slots=True)
class ProcessId:
    """The lasting identity of a process. `pid` counts within `pid_namespace`; it and `start_ticks` (clock ticks) within `boot_id`."""

    hostname: str
    machine_id: str
    boot_id: str
    pid_namespace: int
    pid: int
    start_ticks: int


def job_name(configured: str, environ: Mapping[str, str], cwd: Path, command: Sequence[str]) -> JobName:
    """Return the job's name: --job, else the Slurm job, else working directory and command. Raises SuperviseError (78).

    Under systemd the unit says `--job %i`: an instance's name is not in its environment.
    """
    if configured:
        if not is_job_name(configured):
            raise SuperviseError(f"not a job name: {configured!r}: expected {JOB_NAME_FORM}", hint="Give another name with --job.")
        return JobName(configured, "--job")
    slurm = job_id(environ)
    if is_job_name(slurm):
        return JobName(f"slurm-{slurm}", "SLURM_JOB_ID")
    return JobName(_name_of(cwd, command), BY_COMMAND)


def known_job_name(configured: str, environ: Mapping[str, str]) -> str | None:
    """Return the job's name if it is known without the job's command, else None: for commands that only read. Raises as job_name."""
    if configured or environ.get("SLURM_JOB_ID"):
        name = job_name(configured, environ, Path("/"), ())
        return name.name if name.origin != BY_COMMAND else None
    return None


def _name_of(cwd: Path, command: Sequence[str]) -> str:
    digest = command_digest([os.path.realpath(cwd), *command])[:8]
    legible = re.sub(r"[^A-Za-z0-9._-]+", "-", cwd.name).strip("-._")[:40]
    return f"{legible or 'job'}-{digest}"


def job_of_another_command(root: Path, name: JobName) -> tuple[str, float] | None:
    """Return the last job of the same directory and another command, and when it was last written to (Unix seconds).

    None where the job is not new, or its name does not follow from its command. `root`: the state directory. Raises nothing.
    """
    prefix, _, digest = name.name.rpartition("-")
    if name.origin != BY_COMMAND or (root / name.name).exists():
        return None
    seen: list[tuple[float, str]] = []
    for journal in root.glob(f"{glob.escape(prefix)}-{'[0-9a-f]' * len(digest)}/nodes/*/journal.jsonl"):
        with contextlib.suppress(OSError):
            seen.append((journal.stat().st_mtime, journal.parents[2].name))
    return (max(seen)[1], max(seen)[0]) if seen else None


def command_digest(command: Sequence[str]) -> str:
    """Return a digest of the arguments: equal commands, equal digests. It hides nothing."""
    return hashlib.sha256(json.dumps(list(command)).encode()).hexdigest()


def decide_run(last_exit: int | None, environ: Mapping[str, str], *, ended: bool) -> RunDecision:
    """Decide whether this start continues the job's last run. `ended`: the journal has an end record for it, with code `last_exit`.

    A run without an end (crash, power), or with a request for requeueing, continues. One with a final exit code never does. After any other
    code it continues only if a machine starts it: Slurm's requeue, or systemd's Restart=.
    """
    if not ended:
        return RunDecision("continue", "the last supervisor left without an end record")
    if last_exit == ExitCode.REQUEUE:
        return RunDecision("continue", "the last run ended with 75 (requeue)")
    if last_exit in _FINAL:
        return RunDecision("new", f"the last run ended with {last_exit}")
    if environ.get("SLURM_RESTART_COUNT", "0") not in ("", "0"):
        return RunDecision("continue", "requeued by Slurm (SLURM_RESTART_COUNT)")
    # SYSTEMD_EXEC_PID is the pid of the service's own process: a shell below some unit has another pid
    if environ.get("SYSTEMD_EXEC_PID") == str(os.getpid()) and last_exit not in _STOPPED_BY_PERSON:
        return RunDecision("continue", f"started by systemd after exit {last_exit}")
    return RunDecision("new", f"started again after exit {last_exit}")


def new_run_id() -> str:
    """Return a name for a run: UTC time to the second, and four digits against two starts within one."""
    return f"{time.strftime(_RUN_TIME, time.gmtime())}-{secrets.token_hex(2)}"


def run_began_t(run_id: str) -> float:
    """Return the second for which `new_run_id` named a run, in Unix seconds; 0 for another name."""
    try:
        return float(calendar.timegm(time.strptime(run_id.partition("-")[0], _RUN_TIME)))
    except ValueError:
        return 0.0


def working_directory() -> Path:
    """Return the working directory. Raises SuperviseError (78) if it was deleted or may not be read."""
    try:
        return Path.cwd()
    except OSError as error:
        cause = "it was deleted" if isinstance(error, FileNotFoundError) else error.strerror
        raise SuperviseError(
            f"no working directory: {cause}", hint="Change to a directory that exists (`cd`), then start supervise again."
        ) from error


def node_ledger(root: Path, node: str) -> Path:
    """Return where the ledger of a node is, of a state directory: its GPUs that are out of use, and whether it is excluded."""
    return root / ".gpus" / f"{node}.jsonl"


def node_name() -> str:
    """Return this node's host name, fit for a directory's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", os.uname().nodename).strip("-.") or "localhost"


def this_process() -> ProcessId:
    """Return this process's identity. Unknown fields are empty, or 0."""
    pid = os.getpid()
    return ProcessId(
        hostname=node_name(),
        machine_id=_first_line("/etc/machine-id"),
        boot_id=boot_id(),
        pid_namespace=_inode("/proc/self/ns/pid"),
        pid=pid,
        start_ticks=start_ticks(pid) or 0,
    )


def boot_id() -> str:
    """Return the kernel's id of this boot, "" if unknown."""
    return _first_line("/proc/sys/kernel/random/boot_id")


def start_ticks(pid: int) -> int | None:
    """Return when a living process started, in clock ticks since boot; None if there is no such process, or only its zombie."""
    process = process_tree.read(pid)
    return process.start_ticks if process is not None and process.state not in "ZX" else None


def node_state(state_dir: str, cwd: Path, job: str, node: str) -> Path:
    """Return where the job's files of this node are, whether they exist or not."""
    return cwd / state_dir / job / "nodes" / node


def state_root(node_state: Path) -> Path:
    """Return the state directory that all jobs share, by the one of a job on this node."""
    return node_state.parents[2]


def is_drill(node_state: Path) -> bool:
    """Return whether a job is that of a drill, by the directory of its files."""
    return any(segment.startswith(DRILL_PREFIX) for segment in node_state.parts)


def job_files(node_state: Path) -> Path:
    """Return the directory of a job's files of all nodes, by the one of this node."""
    return node_state.parents[1]


def attempt_dir(scratch: str | Path, attempt: int) -> Path:
    """Return where an attempt's ranks write what we read: heartbeats, error files, stacks. scratch: the run's."""
    return Path(scratch) / f"attempt-{attempt:04d}"


def incident_dir(node_state: Path, number: int) -> Path:
    """Return where an incident's card and evidence are kept, whether they exist or not."""
    return node_state / "incidents" / f"{number:04d}"


def look_path(node_state: Path, attempt: int, incident: int = 0) -> Path:
    """Return the file of the newest look at ranks that stood still: beside the card of `incident`, with the attempt's logs if that is 0."""
    parent = incident_dir(node_state, incident) if incident else node_state / "attempts" / f"{attempt:04d}"
    return parent / LOOK_FILE


def make_node_state(state_dir: str, cwd: Path, job: str, node: str) -> Path:
    """Make the directories of node_state, 0700, and return the last. Raises SuperviseError (78) naming the part that cannot be made."""
    root = cwd / state_dir
    # a group may share the root. Each directory below belongs to one user; every start checks that
    _make(root, owners={0, os.geteuid()}, others=stat.S_IWOTH)
    for directory in (root / job, root / job / "nodes", root / job / "nodes" / node):
        _make(directory, owners={os.geteuid()})
    path = node_state(state_dir, cwd, job, node)
    probe = path / f".writable-{os.getpid()}"
    try:
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as error:
        raise _state_error(path, error.strerror or "not writable") from error
    return path


def is_gone(directory: Path) -> bool:
    """Return whether a directory was removed. False if the disk does not answer: the start itself will report that."""
    try:
        return not stat.S_ISDIR(directory.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def job_dir_path(state: Path, shm: Path = SHM) -> Path:
    """Return the path in `shm` for a state directory; it need not exist. Raises OSError if `state` does not exist."""
    status = state.stat()
    digest = hashlib.sha256(f"{status.st_dev}:{status.st_ino}:".encode() + os.fsencode(state)).hexdigest()[:16]
    return shm / f"supervise-{os.geteuid()}-{digest}"


def make_job_dir(state: Path, shm: Path = SHM) -> Path:
    """Make the directory for the files of the running job, in memory if possible, else in `state`. Mode 0700, this user's alone.

    Its name depends on the state directory's identity: it is the same after a restart, and differs in a container that shares
    /dev/shm. Another user's directory of that name, or a link, is left alone. Raises SuperviseError (78) if neither place will do.
    """
    path = job_dir_path(state, shm)
    try:
        space = os.statvfs(shm)
        roomy = space.f_bavail * space.f_frsize >= _SHM_NEEDED_BYTES
        if roomy:
            path.mkdir(mode=0o700, exist_ok=True)
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == 0o700:  # noqa: PLR2004  rwx------
                return path
    except OSError:
        pass  # no /dev/shm, or none for us
    fallback = state / "shm"
    _make(fallback, owners={os.geteuid()})
    return fallback


def _make(path: Path, owners: set[int], others: int = stat.S_IWGRP | stat.S_IWOTH) -> None:
    try:
        path.mkdir(mode=0o700, exist_ok=True, parents=True)
        status = path.stat()
    except FileExistsError:
        raise _state_error(path, f"a {'symbolic link that leads nowhere' if path.is_symlink() else 'file'} is in the way") from None
    except OSError as error:
        raise _state_error(path, error.strerror or "cannot be made") from error
    if status.st_uid not in owners:
        raise _state_error(path, f"it belongs to uid {status.st_uid}, and we are {os.geteuid()}")
    if status.st_mode & others and not status.st_mode & stat.S_ISVTX:
        raise _state_error(path, f"others may write it (mode {stat.S_IMODE(status.st_mode):04o}; `chmod go-w` helps)")


def _state_error(path: Path, cause: str) -> SuperviseError:
    return SuperviseError(f"no state directory: {path}: {cause}", hint="Give a directory that you alone may write with --state-dir.")


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino  # noqa: PTH116  as /proc/self is a link of its own kind, kept plain
    except OSError:
        return 0
