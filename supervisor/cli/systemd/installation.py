"""Writes the units, and what one job's unit needs, below a root directory.

    etc/systemd/system/*                                       the units
    etc/systemd/system/supervise@JOB.service.d/job.conf        User= and WorkingDirectory=
    etc/systemd/system/supervise-alert@JOB.service.d/job.conf  a link to it: the alert has the job's user and credentials
    etc/systemd/system/supervise-doctor.service.d/user.conf    User= of the first job, and for supervise-alert@doctor the same
    etc/supervise/JOB.env, doctor.env                          PATH: where supervise and the job's programs are

A unit that differs is replaced, and the old one is kept beside it with `.old`. A drop-in or environment file that is there stays.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING, Final

from checkpointing.io import staging
from supervisor.cli.systemd import CONFIGURATION
from supervisor.config.settings import JOB_NAME_FORM, is_job_name
from supervisor.core.values import dataclass
from supervisor.errors import ExitCode, SuperviseError

if TYPE_CHECKING:
    from collections.abc import Iterator

UNITS: Final = Path(__file__).parent / "units"
SYSTEM: Final = Path("etc/systemd/system")
_CONFIGURATION: Final = CONFIGURATION.relative_to("/")
#: They check a node, not a job, and run as nobody until a drop-in names their user.
_OF_DOCTOR: Final = ("supervise-doctor.service", "supervise-alert@doctor.service")
_MODE: Final = 0o644  # systemctl cat works for everybody


@dataclass(frozen=True, slots=True)
class JobUnit:
    """The facts of one job's unit."""

    job: str
    user: str
    directory: Path


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """One file, and what became of it: written, replaced, unchanged, kept."""

    path: Path
    outcome: str


def names() -> list[str]:
    """Return the names of the files that `supervise systemd print` prints."""
    return sorted(path.name for path in UNITS.iterdir())


def text(name: str) -> str:
    """Return a unit, or the example of a job's configuration. Raises SuperviseError (64) for another name."""
    if name not in names():
        hint = f"Name one of these: {', '.join(names())}."
        raise SuperviseError(f"no such unit: {name}", hint=hint, exit_code=ExitCode.USAGE)
    return (UNITS / name).read_text(encoding="utf-8")


def job_unit(job: str, user: str, directory: Path) -> JobUnit:
    """Return the facts of a job's unit. Raises SuperviseError (64) for those that no unit can have."""

    def refuse(what: str, hint: str) -> SuperviseError:
        return SuperviseError(what, hint=hint, exit_code=ExitCode.USAGE)

    if not is_job_name(job):
        raise refuse(f"not a job name: {job!r}: expected {JOB_NAME_FORM}", "Give another name.")
    if not user:
        raise refuse(f"no user for the job {job}", "Name the user that the job runs as with --user.")
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        raise refuse(f"no such user: {user}", "Name the user that the job runs as with --user.") from None
    if uid == 0:
        raise refuse(f"the job {job} would run as root", "Name the user that the job runs as with --user.")
    if not directory.is_dir():
        raise refuse(f"no such directory: {directory}", "Name the job's working directory with --directory.")
    return JobUnit(job, user, directory)


def install(root: Path, unit: JobUnit | None, bin_directory: Path) -> Iterator[WrittenFile]:
    """Write the files, and yield each. bin_directory: where `supervise` is. Raises OSError."""
    (root / SYSTEM).mkdir(parents=True, exist_ok=True)
    for name in names():
        if Path(name).suffix in {".service", ".timer"}:
            yield _replaced(root / SYSTEM / name, text(name))
    if unit is None:
        return
    path = f"PATH={bin_directory}:/usr/local/bin:/usr/bin:/bin\n"
    user = f"[Service]\nUser={unit.user}\n"
    drop_ins = root / SYSTEM / f"supervise@{unit.job}.service.d"
    yield _kept(root / _CONFIGURATION / f"{unit.job}.env", path)
    yield _kept(drop_ins / "job.conf", f"{user}WorkingDirectory={_escaped(unit.directory)}\n")
    # systemd ignores a link to a directory of drop-ins
    yield _linked(root / SYSTEM / f"supervise-alert@{unit.job}.service.d" / "job.conf", f"../{drop_ins.name}/job.conf")
    yield _kept(root / _CONFIGURATION / "doctor.env", path)
    for name in _OF_DOCTOR:
        yield _kept(root / SYSTEM / f"{name}.d" / "user.conf", user)


def _replaced(path: Path, content: str) -> WrittenFile:
    try:
        before = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        staging.write(str(path), content.encode(), _MODE)
        return WrittenFile(path, "written")
    if before == content:
        return WrittenFile(path, "unchanged")
    path.replace(path.with_name(f"{path.name}.old"))
    staging.write(str(path), content.encode(), _MODE)
    return WrittenFile(path, "replaced")


def _kept(path: Path, content: str) -> WrittenFile:
    if path.exists():
        return WrittenFile(path, "kept")
    path.parent.mkdir(parents=True, exist_ok=True)
    staging.write(str(path), content.encode(), _MODE)
    return WrittenFile(path, "written")


def _linked(path: Path, target: str) -> WrittenFile:
    if os.path.lexists(path):
        return WrittenFile(path, "kept")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return WrittenFile(path, "written")


def _escaped(directory: Path) -> str:
    """Return a path as a unit has it: `%` begins a specifier (systemd.unit(5))."""
    return str(directory).replace("%", "%%")
