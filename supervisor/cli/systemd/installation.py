"""Writes the units, and what one job's unit needs, below a root directory.

    etc/systemd/system/*                                       the units
    etc/systemd/system/supervise@JOB.service.d/job.conf        User= and WorkingDirectory=
    etc/systemd/system/supervise-alert@JOB.service.d/job.conf  a link to it: the alert has the job's user and credentials
    etc/systemd/system/supervise-doctor.service.d/user.conf    User= of the first job, and for supervise-alert@doctor the same
    etc/supervise/JOB.env, doctor.env                          PATH: where supervise and the job's programs are

A unit that differs is replaced, and the old one is kept as NAME.old. A drop-in or environment file that is there stays. People
put keys into environment files: only root may read them, and systemd reads them as root. The root directory may be that of an image: its
users count then, and its directories.
"""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from checkpointing.io import staging
from supervisor.cli.systemd import CONFIGURATION
from supervisor.config.settings import JOB_NAME_FORM, is_job_name
from supervisor.core.values import Struct
from supervisor.errors import ExitCode, SuperviseError

if TYPE_CHECKING:
    from collections.abc import Iterator

UNITS: Final = Path(__file__).parent / "units"
SYSTEM: Final = Path("etc/systemd/system")
_CONFIGURATION: Final = CONFIGURATION.relative_to("/")
#: They check a node, not a job, and run as nobody until a drop-in names their user.
_OF_DOCTOR: Final = ("supervise-doctor.service", "supervise-alert@doctor.service")
_MODE: Final = 0o644  # systemctl cat works for everybody
_SECRET_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o755  # whatever the umask is: nobody else may write here, and the job's user reads its configuration
_HOST: Final = Path("/")
_PASSWD: Final = "etc/passwd"  # noqa: S105  the file of users


class JobUnit(Struct, frozen=True):
    """The facts of one job's unit."""

    job: str
    user: str
    directory: Path


class WrittenFile(Struct, frozen=True):
    """One file, and what became of it: written, replaced, unchanged, kept, protected (others could read it)."""

    path: Path
    outcome: str


def names() -> list[str]:
    """Return the names of the files that `supervise print systemd` prints."""
    return sorted(path.name for path in UNITS.iterdir())


def text(name: str) -> str:
    """Return a unit, or the example of a job's configuration. Raises SuperviseError (64) for another name."""
    if name not in names():
        hint = f"Name one of these: {', '.join(names())}."
        raise SuperviseError(f"no such unit: {name}", hint=hint, exit_code=ExitCode.USAGE)
    return (UNITS / name).read_text(encoding="utf-8")


def job_unit(job: str, user: str, directory: Path, root: Path = _HOST) -> JobUnit:
    """Return the facts of a job's unit. Raises SuperviseError (64) for those that no unit below `root` can have."""

    def refuse(problem: str, hint: str) -> SuperviseError:
        return SuperviseError(problem, hint=hint, exit_code=ExitCode.USAGE)

    name_user = "Name the user that the job runs as with --user."
    if not is_job_name(job):
        raise refuse(f"not a job name: {job!r}: expected {JOB_NAME_FORM}", "Give another name.")
    if not user:
        raise refuse(f"no user for the job {job}", name_user)
    uid = _uid(user, root)
    if uid is None and is_host(root):
        raise refuse(f"no such user: {user}", name_user)
    if uid is None and (root / _PASSWD).exists():
        raise refuse(f"no such user in the image: {user}: not in {root / _PASSWD}", f"{name_user} It must be one of the image.")
    if uid == 0 or user == "root":
        raise refuse(f"the job {job} would run as root", name_user)
    if is_host(root) and not directory.is_dir():
        raise refuse(f"no such directory: {directory}", "Name the job's working directory with --directory.")
    return JobUnit(job, user, directory)


def unknown_in_image(unit: JobUnit, root: Path) -> list[str]:
    """Return a line for each fact of a unit that an image does not show: it may be there once the image runs. None for the host."""
    if is_host(root):
        return []
    lines = []
    if not (root / _PASSWD).exists():
        lines.append(
            f"{root / _PASSWD} is not there: whether the image has the user {unit.user} is not known; without it the unit ends with 217"
        )
    if not root.joinpath(*unit.directory.parts[1:]).is_dir():
        lines.append(
            f"the image has no directory {unit.directory}: the unit ends with 200 unless it is mounted there; --directory names another"
        )
    return lines


def is_host(root: Path) -> bool:
    """Whether this is the root directory of the running system."""
    return root.resolve() == _HOST


def _uid(user: str, root: Path) -> int | None:
    """Return a user's number, None if there is no such user: of the running system by all its sources, of an image by its etc/passwd."""
    if is_host(root):
        try:
            return pwd.getpwnam(user).pw_uid
        except KeyError:
            return None
    try:
        lines = (root / _PASSWD).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    rows = [line.split(":") for line in lines]
    return next((int(row[2]) for row in rows if row[0] == user and len(row) > 2 and row[2].isdecimal()), None)  # noqa: PLR2004  passwd(5)


def install(root: Path, unit: JobUnit | None, bin_directory: Path) -> Iterator[WrittenFile]:
    """Write the files, and yield each. bin_directory: where `supervise` is. Raises OSError."""
    for name in names():
        if Path(name).suffix in {".service", ".timer"}:
            yield _replaced(root / SYSTEM / name, text(name))
    if unit is None:
        return
    path = f"PATH={bin_directory}:/usr/local/bin:/usr/bin:/bin\n"
    user = f"[Service]\nUser={unit.user}\n"
    drop_ins = root / SYSTEM / f"supervise@{unit.job}.service.d"
    yield _protected(root / _CONFIGURATION / f"{unit.job}.env", path)
    yield _kept(drop_ins / "job.conf", f"{user}WorkingDirectory={_escaped(unit.directory)}\n")
    # systemd ignores a link to a directory of drop-ins
    yield _linked(root / SYSTEM / f"supervise-alert@{unit.job}.service.d" / "job.conf", f"../{drop_ins.name}/job.conf")
    yield _protected(root / _CONFIGURATION / "doctor.env", path)
    for name in _OF_DOCTOR:
        yield _kept(root / SYSTEM / f"{name}.d" / "user.conf", user)


def _replaced(path: Path, content: str) -> WrittenFile:
    try:
        before = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return _written(path, content, _MODE)
    if before == content:
        return WrittenFile(path, "unchanged")
    path.replace(path.with_name(f"{path.name}.old"))
    _written(path, content, _MODE)
    return WrittenFile(path, "replaced")


def _protected(path: Path, content: str) -> WrittenFile:
    """Write a file that nobody but its owner may read. Of one that is there only the mode changes; what a link leads to stays as it is."""
    try:
        before = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return _written(path, content, _SECRET_MODE)
    except OSError:
        if path.is_symlink():
            return WrittenFile(path, "kept")
        raise
    try:
        if stat.S_IMODE(os.fstat(before).st_mode) & ~_SECRET_MODE == 0:
            return WrittenFile(path, "kept")
        os.fchmod(before, _SECRET_MODE)
    finally:
        os.close(before)
    return WrittenFile(path, "protected")


def _kept(path: Path, content: str) -> WrittenFile:
    return WrittenFile(path, "kept") if os.path.lexists(path) else _written(path, content, _MODE)


def _linked(path: Path, target: str) -> WrittenFile:
    if os.path.lexists(path):
        return WrittenFile(path, "kept")
    _make_directory(path.parent)
    path.symlink_to(target)
    return WrittenFile(path, "written")


def _written(path: Path, content: str, mode: int) -> WrittenFile:
    """Write a file of exactly this mode."""
    _make_directory(path.parent)
    with staging.new_file(str(path), mode) as place:
        os.fchmod(place.fd, mode)  # the umask may have narrowed it
        os.write(place.fd, content.encode())
        staging.put(place)
    return WrittenFile(path, "written")


def _make_directory(path: Path) -> None:
    """Make a directory and those above it that are missing."""
    if path.is_dir():
        return
    _make_directory(path.parent)
    path.mkdir()
    path.chmod(_DIRECTORY_MODE)


def _escaped(directory: Path) -> str:
    """Return a path as a unit has it: `%` begins a specifier (systemd.unit(5))."""
    return str(directory).replace("%", "%%")
