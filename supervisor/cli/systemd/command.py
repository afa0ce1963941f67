"""`supervise systemd install`, `run` and `alert`: the units, and what they start."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from supervisor.cli import stdio
from supervisor.cli.invocation import JOB, Invocation, setting_options
from supervisor.cli.systemd import CONFIGURATION
from supervisor.core.values import replace
from supervisor.errors import ExitCode, SuperviseError
from supervisor.report.table import Column, Table

if TYPE_CHECKING:
    from supervisor.config.settings import Settings

#: With these supervise ends a run that it gave up, and alerts itself.
_GIVEN_UP: Final = frozenset({ExitCode.DETERMINISTIC, ExitCode.BAD_NODE})


@click.command()
@setting_options()
@click.argument("job", metavar="[JOB]", required=False)
@click.option("--user", metavar="USER", help="The user that the job runs as; default: the one who called sudo.")
@click.option("--directory", metavar="DIR", default=".", help="The job's working directory; default: the current one.")
@click.option(
    "--root", metavar="DIR", default="/", help="Install below DIR, the root directory of an image: USER and --directory are the image's."
)
def install_command(_invocation: Invocation, *, job: str | None, user: str | None, directory: str, root: str) -> int:
    """With JOB also its user, its directory and PATH. To be run as root. Your own files are kept; a changed unit is kept as NAME.old."""
    from supervisor.cli.systemd import installation  # noqa: PLC0415  not for --help

    unit = None
    if job is not None:
        unit = installation.job_unit(job, user or os.environ.get("SUDO_USER", ""), Path(directory).absolute(), Path(root))
        for line in installation.unknown_in_image(unit, Path(root)):
            stdio.say(f"warning: {line}")
    try:
        files = installation.install(Path(root), unit, Path(sys.executable).parent)
        stdio.show(Table((Column("what"), Column("file", copied=True)), tuple((file.outcome, str(file.path)) for file in files)))
    except OSError as error:
        words = shlex.join([str(Path(sys.executable).parent / "supervise"), *sys.argv[1:]])
        problem = f"cannot install the units: {error.filename or root}: {error.strerror}"
        raise SuperviseError(problem, hint=f"Run it as root: sudo {words}") from error
    if installation.is_host(Path(root)):
        _reload_systemd()
    for line in _next_steps(job, Path(root, *CONFIGURATION.parts[1:])):
        stdio.write(sys.stdout, line)
    return 0


@click.command()
@setting_options()
@click.argument("job", metavar="JOB")
def run_command(invocation: Invocation, *, job: str) -> int:
    """The file has the job's command as `command` under [job]. A job does not run as root.

    The exit code is that of `supervise -- CMD`, but 65 where that is the program's own: systemd would start the unit again.
    """
    if os.geteuid() == 0:
        hint = f"Set User= in a drop-in: sudo systemctl edit supervise@{job}"
        raise SuperviseError("a unit's job does not run as root", hint=hint)
    settings, words = _of_job(invocation, job).settings_and_command()
    from supervisor.report.terminal import terminal_of  # noqa: PLC0415  as below
    from supervisor.run.start import run  # noqa: PLC0415  the heavy part, not needed for --help

    return _unit_code(run(settings, list(words), terminal_of(settings)))


@click.command()
@setting_options(*JOB)
@click.argument("job", metavar="JOB")
def alert_command(invocation: Invocation, *, job: str) -> int:
    """Alert each sink of /etc/supervise/JOB.toml, unless supervise itself alerted. Exits with 1 if a sink did not take it."""
    from supervisor.cli import alerts  # noqa: PLC0415  not for --help

    settings = _of_job(invocation, job).settings_to_read_with()  # a wrong configuration may be why the unit failed
    unit = os.environ.get("MONITOR_UNIT", f"supervise@{job}.service")
    if _is_reported(settings, job):
        stdio.say(f"{unit}: supervise alerted already that it gave up")
        return 0
    return alerts.send_unit_failed(settings, job, unit, _what_failed(unit))


def _unit_code(code: int) -> int:
    """Return a unit's exit code for that of a run that supervise ended: the run was given up if it is the program's own."""
    return int(ExitCode.DETERMINISTIC) if 0 < code < ExitCode.USAGE else code


def _of_job(invocation: Invocation, job: str) -> Invocation:
    """Return the invocation of a unit's supervise."""
    from supervisor.config.settings import is_job_name  # noqa: PLC0415  not for --help

    if not is_job_name(job):
        raise SuperviseError(f"not a job name: {job!r}", hint="Name the job as in supervise@JOB.", exit_code=ExitCode.USAGE)
    return replace(invocation, flags={**invocation.flags, "job.name": job}, config=invocation.config or str(CONFIGURATION / f"{job}.toml"))


def _what_failed(unit: str) -> str:
    """Return what systemd reports of the failed unit. From version 251 on it passes these variables to what OnFailure= starts."""
    result, code, status = (os.environ.get(f"MONITOR_{name}", "") for name in ("SERVICE_RESULT", "EXIT_CODE", "EXIT_STATUS"))
    return f"{unit} failed" + (f": {result}, {code} {status}".rstrip() if result else "")


def _is_reported(settings: Settings, job: str) -> bool:
    """Whether supervise itself gave the unit's run up, and each sink took its alerts. One too many is better than none."""
    from supervisor.cli.jobs.job_files import find_job, state_root, view_of  # noqa: PLC0415
    from supervisor.report import kept_alerts  # noqa: PLC0415  not for --help

    status = os.environ.get("MONITOR_EXIT_STATUS", "")
    if os.environ.get("MONITOR_EXIT_CODE") != "exited" or status not in {str(int(code)) for code in _GIVEN_UP}:
        return False
    try:
        place = find_job(state_root(settings), job)
        view, _ = view_of(place)
    except SuperviseError:
        return False
    if view.run is None or view.end is None or str(_unit_code(view.end.exit_code)) != status:
        return False
    given_up = bool(view.incidents) and view.incidents[-1].outcome == "given_up"
    return given_up and not kept_alerts.summary(place.directory, view.run.run_id)


def _reload_systemd() -> None:
    try:
        done = subprocess.run(["systemctl", "daemon-reload"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S607  root's PATH
        failed = done.stderr.strip() if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        failed = str(error)
    if failed:
        stdio.say(f"warning: systemd did not read the units: {failed}; run `systemctl daemon-reload`")


def _next_steps(job: str | None, configuration: Path) -> list[str]:
    if job is None:
        return ["next: supervise systemd install JOB --user USER --directory DIR"]
    config = configuration / f"{job}.toml"
    write = [] if config.exists() else [f"next: write {config}; `supervise print systemd job.toml` shows an example"]
    return [
        *write,
        f"{'then' if write else 'next'}: sudo systemctl enable --now supervise@{job}",
        "each day: sudo systemctl enable --now supervise-doctor.timer checks this node",
    ]
