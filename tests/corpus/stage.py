"""One case of the corpus on stage: what it needs, how it is run without a trace on the host, and its log with neutral names.

A Case is a row of cases/*.toml, a Run its log and exit status. `lacks` names the needs that this machine does not meet; `Run.status` is
None for a case that outlives its limit. The directory made for a case, its mounts, its memory cgroup and its processes belong
to `run` and are gone when it returns: the processes live in a pid namespace of their own that ends with its first one, the mounts in a
mount namespace. A case with a memory limit shares the host's pid namespace, so that the kernel's record of it names the pids of its log.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
LOG_LIMIT_BYTES = 16 * 1024
MOUNT_NAMESPACE = ("--mount", "--propagation", "private")
PID_NAMESPACE = ("--pid", "--fork", "--kill-child", "--mount-proc")
#: How the namespaces are had: as root, or else as the root of a user namespace, where that is allowed.
UNSHARE = (("unshare",), ("unshare", "--user", "--map-root-user"))


@dataclass(frozen=True, slots=True)
class Case:
    """A run and what it is an example of.

    label: a cause of supervisor.core.model.Cause; "none" for a run that ends with 0. alt: answers that are right too. secondary: causes
    that its log speaks of and that merely followed. near_miss_of: the case that this one resembles and whose cause is not its own.
    script: the text of train.py. setup, run: bash, in the directory of the script; what setup prints is not part of the log.
    shows: words that prove that the fault struck. memory_mib: the limit of the cgroup that `run` stands in.
    """

    id: str
    label: str
    run: str
    shows: str
    script: str = ""
    setup: str = ""
    alt: list[str] = field(default_factory=list)
    secondary: list[str] = field(default_factory=list)
    near_miss_of: str = ""
    needs: list[str] = field(default_factory=list)
    memory_mib: int = 0
    limit_s: float = 90.0


@dataclass(frozen=True, slots=True)
class Run:
    """How a case went. status: the exit status, None where it was cut off at its limit. cut: the head of the log was left out."""

    log: str
    status: int | None
    seconds: float
    cut: bool


def lacks(case: Case) -> str:
    """What this machine lacks for the case, "" where nothing. A need: root, namespaces, memory cgroup, a program, a Python module."""
    needs = [*case.needs, *(["memory cgroup"] if case.memory_mib else [])]
    return ", ".join(need for need in needs if not _has(need))


@functools.cache
def _has(need: str) -> bool:
    if need == "root":
        return os.geteuid() == 0
    if need == "namespaces":
        return bool(_unshare())
    if need == "memory cgroup":
        return _memory_cgroup_parent() is not None
    return shutil.which(need) is not None or importlib.util.find_spec(need) is not None


@functools.cache
def _unshare() -> tuple[str, ...]:
    """The command that makes a mount namespace and a pid namespace here, () where none may be made."""
    for command in UNSHARE:
        probe = [*command, *MOUNT_NAMESPACE, *PID_NAMESPACE, "true"]
        if shutil.which("unshare") and subprocess.run(probe, capture_output=True, check=False).returncode == 0:  # noqa: S603  constants
            return command
    return ()


def run(case: Case) -> Run:
    """Run a case to its end, or to its limit, in a new directory."""
    with tempfile.TemporaryDirectory(prefix="corpus-", ignore_cleanup_errors=True) as scratch, _memory_cgroup(case.memory_mib) as procs:
        home = Path(scratch, "home")
        project = home / "proj"
        shutil.copytree(HERE / "project", project, ignore=shutil.ignore_patterns("__pycache__"))
        (project / "train.py").write_text(case.script)
        isolate = [*_unshare(), *MOUNT_NAMESPACE, *([] if procs else PID_NAMESPACE)] if _unshare() else []
        join = f"echo $$ > '{procs}' || exit 125" if procs else ":"
        # the shell stays: as first process of a pid namespace a job would be spared the signals that it sends itself
        shell = f"{{ :\n{case.setup}\n}} >/dev/null 2>&1\n{join}\n{case.run}\nexit $?\n"
        started = time.monotonic()
        log = Path(scratch, "log")
        with log.open("wb") as sink:
            process = subprocess.Popen(  # noqa: S603  commands of the checkout's own cases
                ["nice", "-n", "10", *isolate, "bash", "-c", shell],  # noqa: S607  found on PATH
                cwd=project,
                env=_environment(home),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status: int | None = process.wait(case.limit_s)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        text = neutral(log.read_bytes().decode(errors="surrogateescape"), home=home, cgroup=procs)
    tail, cut = _tail(text)
    return Run(tail, status, time.monotonic() - started, cut)


def _environment(home: Path) -> dict[str, str]:
    """Environment of a case: nothing of the caller's but PATH, and two ports that are free now."""
    with socket.socket() as first, socket.socket() as other:
        first.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        ports = {"PORT": str(first.getsockname()[1]), "PORT2": str(other.getsockname()[1])}
    path = f"{sys.prefix}/bin:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(home), "USER": "user", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", **ports}


def neutral(text: str, *, home: Path, cgroup: Path | None) -> str:
    """The log with neutral names in the place of this machine's: directories, host name and addresses, kernel release, cgroup."""
    names = [
        (str(home.resolve()), "/home/user"),
        (str(home), "/home/user"),
        (sys.prefix, "/home/user/venv"),
        (sys.base_prefix, "/usr/local"),
    ]
    if cgroup:
        names.insert(0, ("/" + str(cgroup.parent).split("/memory/", 1)[-1].removeprefix("/sys/fs/cgroup/"), "/job"))
    for our_word, neutral_word in names:
        text = text.replace(our_word, neutral_word)
    text = text.replace(os.uname().release, "6.18.0-amd64")
    host = socket.gethostname()
    words = {host: "node-1", socket.getfqdn(): "node-1", **dict.fromkeys(_addresses(host), "10.0.0.11")}
    for our_word, neutral_word in words.items():
        if our_word not in {"localhost", "127.0.0.1", "::1"}:
            text = re.sub(rf"(?<![\w./-]){re.escape(our_word)}(?![\w/-]|\.\w)", neutral_word, text)
    return text


def _addresses(host: str) -> set[str]:
    with contextlib.suppress(OSError):
        return {str(info[4][0]) for info in socket.getaddrinfo(host, None) if not str(info[4][0]).startswith("127.")}
    return set()


def _tail(text: str) -> tuple[str, bool]:
    """The last whole lines of a log that fit into the limit, and whether any were left out."""
    raw = text.encode(errors="surrogateescape")
    if len(raw) <= LOG_LIMIT_BYTES:
        return text, False
    return raw[-LOG_LIMIT_BYTES:].split(b"\n", 1)[-1].decode(errors="surrogateescape"), True


def _memory_cgroup_parent() -> Path | None:
    """The directory under which a memory cgroup can be made: our own one of v1, or the root of v2. None where there is no right to it."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            parent = Path("/sys/fs/cgroup/memory", path.lstrip("/"))
            return parent if os.access(parent, os.W_OK) and os.geteuid() == 0 else None
    root = Path("/sys/fs/cgroup")
    control = root / "cgroup.subtree_control"
    return root if os.geteuid() == 0 and control.exists() and "memory" in control.read_text() else None


@contextlib.contextmanager
def _memory_cgroup(limit_mib: int) -> Iterator[Path | None]:
    """A memory cgroup of its own: the file that a process joins by; None where no limit is wanted. All in it are killed at the end."""
    parent = _memory_cgroup_parent() if limit_mib else None
    if parent is None:
        yield None
        return
    group = parent / f"corpus-{os.getpid()}"
    group.mkdir()
    try:
        limit = next(file for name in ("memory.max", "memory.limit_in_bytes") if (file := group / name).exists())
        limit.write_text(str(limit_mib * 2**20))
        yield group / "cgroup.procs"
    finally:
        deadline = time.monotonic() + 10
        while (pids := (group / "cgroup.procs").read_text().split()) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.05)
        group.rmdir()
