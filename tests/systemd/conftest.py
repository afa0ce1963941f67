"""A booted systemd, and the units in it."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
UNITS = ROOT / "supervisor/cli/systemd/units"
UID = 4242
_NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True)
class Machine:
    """A systemd of ours; `pid` is its PID 1 as seen from here."""

    pid: int

    def run(self, *command: str, timeout: float = 60, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command in there, as root."""
        enter = ["nsenter", "--target", str(self.pid), "--all", *command]
        environ = os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}  # root's
        return subprocess.run(enter, env=environ, input=stdin, text=True, capture_output=True, timeout=timeout, check=False)  # noqa: S603 - our own

    def write(self, path: str, text: str) -> None:
        """Make a file in there, readable for all."""
        process = self.run("sh", "-c", 'mkdir -p "$(dirname "$1")" && cat > "$1"', "sh", path, stdin=text)
        assert process.returncode == 0, process.stderr

    def unit(self, name: str, command: list[str], bin_dir: str, *, drop_in: str) -> str:
        """Set up an instance of the unit as README.md says, and give its name."""
        self.write(f"/etc/supervise/{name}.toml", f"[job]\ncommand = {command!r}\n")
        self.write(f"/etc/supervise/{name}.env", f"PATH={bin_dir}:/usr/bin:/bin\n")
        self.write(f"/etc/systemd/system/supervise@{name}.service.d/here.conf", f"[Service]\n{drop_in}\n")
        assert self.run("systemctl", "daemon-reload").returncode == 0
        return f"supervise@{name}.service"

    def installed(self, name: str, config: str, bin_dir: str, directory: str) -> str:
        """Set up an instance of the unit by `supervise systemd install`, and give its name."""
        done = self.run(f"{bin_dir}/supervise", "systemd", "install", name, "--user", "trainer", "--directory", directory)
        assert done.returncode == 0, done.stderr
        self.write(f"/etc/supervise/{name}.toml", config)
        return f"supervise@{name}.service"

    def show(self, unit: str) -> dict[str, str]:
        """Give what `systemctl show` tells."""
        lines = self.run("systemctl", "show", unit).stdout.splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def journal(self, unit: str, *options: str) -> str:
        """Return the unit's output."""
        return self.run("journalctl", "--no-pager", "--output=cat", "--unit", unit, *options).stdout

    def as_user(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in there as the job's user, in a directory that has nothing to do with the job."""
        return self.run("runuser", "-u", "trainer", "--", "env", "-C", "/", *command)


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """Boot, hand out, kill."""
    with booted() as booted_machine:
        yield booted_machine


@pytest.fixture
def boot() -> Callable[..., contextlib.AbstractContextManager[Machine]]:
    """Boot a machine of the test's own."""
    return booted


@contextlib.contextmanager
def booted(files: Mapping[str, str] = MappingProxyType({}), keep: Path | None = None) -> Iterator[Machine]:
    """Boot, hand out, kill. Skips where that cannot be done: not root, no systemd, no cgroup2, a kernel that forbids it.

    files: their text by their path inside; a target behind "-> " makes a link. keep: the directory of what survives (boot.sh).
    """
    missing = [tool for tool in ("unshare", "nsenter", "systemctl") if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing or not Path("/lib/systemd/systemd").exists():
        pytest.skip(f"boots a systemd: run as root, with {missing or 'systemd'} installed (Debian: apt-get install systemd util-linux)")
    hierarchy = next((Path(mount[4]) for mount in _mounts() if "cgroup2" in mount[mount.index("-") + 1 :][:1]), None)
    if hierarchy is None:
        pytest.skip("needs a mounted cgroup2 hierarchy: mount -t cgroup2 none DIRECTORY")
    if any(Path(place).is_relative_to("/tmp") for place in (ROOT, sys.prefix)):  # noqa: S108 -- not written to
        pytest.skip("the checkout lies below /tmp, and a unit with PrivateTmp= has a /tmp of its own: run it elsewhere")
    with tempfile.TemporaryDirectory() as scratch:
        cgroup = hierarchy / f"supervise-test-{os.getpid()}-{next(_NUMBERS)}"
        cgroup.mkdir()
        try:
            yield from _booted(Path(scratch), cgroup, files, keep)
        finally:
            _remove(cgroup)


def _booted(scratch: Path, cgroup: Path, more: Mapping[str, str], keep: Path | None) -> Iterator[Machine]:
    (scratch / "root").mkdir()
    files = scratch / "files"
    system = files / "etc/systemd/system"
    system.mkdir(parents=True)
    for unit in UNITS.glob("supervise*"):
        shutil.copy(unit, system)
    for name, text in more.items():
        path = files / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            path.symlink_to(text.removeprefix("-> "))
        else:
            path.write_text(text)
    for name, line in (("passwd", f"trainer:x:{UID}:{UID}::/var/lib/trainer:/bin/sh\n"), ("group", f"trainer:x:{UID}:\n")):
        (files / "etc" / name).write_text(Path("/etc", name).read_text() + line)
    stand_in = files / "opt/stand-in"
    stand_in.mkdir(parents=True)
    shutil.copy(HERE / "supervise-stand-in", stand_in / "supervise")
    reached = (Path(sys.executable), Path(sys.executable).resolve(), ROOT / "x", Path(psutil.__file__).resolve())
    opened = {str(parent) for path in reached for parent in path.parents}
    console = (scratch / "console").open("w+")
    boot = subprocess.Popen(  # noqa: S603 - our own script
        [HERE / "boot.sh", scratch / "root", files, cgroup],
        env=os.environ | {"OPEN": ":".join(sorted(opened)), "KEEP": "" if keep is None else str(keep)},
        stdout=console,
        stderr=console,
    )
    try:
        until = time.monotonic() + 200
        while not (children := psutil.Process(boot.pid).children()) or not _is_up(Machine(children[0].pid)):
            assert boot.poll() is None, f"no boot: {(scratch / 'console').read_text()}"
            assert time.monotonic() < until, f"no boot in time: {(scratch / 'console').read_text()[-4000:]}"
            time.sleep(0.1)
        yield Machine(children[0].pid)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(boot.pid).children():
                child.kill()
        boot.kill()
        boot.wait()
        console.close()


def _is_up(machine: Machine) -> bool:
    try:
        name = Path(f"/proc/{machine.pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):  # a command of boot.sh, which has ended
        return False
    if name != "systemd":
        return False
    return machine.run("systemctl", "is-system-running").stdout.strip() in {"running", "degraded"}


def _mounts() -> list[list[str]]:
    return [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def _remove(cgroup: Path) -> None:
    """Remove the cgroup and those below it once the kernel has taken the last dead process out of them."""
    until = time.monotonic() + 10
    while cgroup.exists() and time.monotonic() < until:
        for path, _, _ in os.walk(cgroup, topdown=False):
            with contextlib.suppress(OSError):
                Path(path).rmdir()
        time.sleep(0.05)
    assert not cgroup.exists(), "processes are left in the booted machine's cgroup"
