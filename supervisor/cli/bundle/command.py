"""`supervise bundle`: one file with all that explains an incident, without secrets, for a helper."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from supervisor.cli import stdio
from supervisor.cli.invocation import JOB, Invocation, setting_options
from supervisor.cli.jobs.job_files import find_job, show_problems, state_root, whole_view_of
from supervisor.cli.progress import progress
from supervisor.core.units import bytes_text, timestamp
from supervisor.report.table import Column, Table

if TYPE_CHECKING:
    from health.doctor import Diagnosis
    from supervisor.cli.bundle.archive import BundleContents, BundleMember
    from supervisor.cli.bundle.sources import BundleSubject
    from supervisor.config.settings import Settings

_MIB: Final = 1 << 20
_DEFAULT_MIB: Final = 64


@click.command()
@setting_options(*JOB)
@click.argument("incident", metavar="[INCIDENT]", required=False, type=click.IntRange(min=1))
@click.option("-o", "--output", metavar="FILE", help="Write FILE (default: a name with job, incident and time, in the working directory).")
@click.option("--max-mib", type=click.IntRange(min=1), default=_DEFAULT_MIB, show_default=True, metavar="N", help="Put in at most N MiB.")
@click.option("--stacks", is_flag=True, help="Ask the ranks that run for their stacks, by a signal; they continue.")
@click.option("--dry-run", is_flag=True, help="List what would go in, and write nothing.")
def command(  # noqa: PLR0913  one for each option
    invocation: Invocation, *, incident: int | None, output: str | None, max_mib: int, stacks: bool, dry_run: bool
) -> int:
    """INCIDENT is a number that the card and `supervise status` show (default: the last). Secrets are digests.

    It holds the card, the evidence, the journal around the incident, the last 2 MiB of each rank's output, the settings, the versions, and
    what `supervise doctor` and `nvidia-smi -q` find now.
    """
    settings = invocation.settings_to_read_with()
    subject = _subject(settings, invocation.job(settings), incident)
    now = time.time()
    contents, about = collect(settings, subject, max_mib * _MIB, now, asks_stacks=stacks)
    stdio.show(_listed(contents))
    if not dry_run:
        number = f"-{subject.incident.number:04d}" if subject.incident is not None else ""
        folder = f"supervise-bundle-{subject.place.job}{number}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}"
        path = Path(output or f"{folder}.tar.gz").absolute()
        size = contents.write(path, folder, about)
        stdio.write(sys.stdout, f"wrote {path} ({bytes_text(size)}); look through it before you send it")
    return 0


def collect(
    settings: Settings, subject: BundleSubject, most_bytes: int, now: float, *, asks_stacks: bool
) -> tuple[BundleContents, dict[str, Any]]:
    """Return the bundle's members, and the head of its manifest. made: wall seconds."""
    from supervisor.cli.bundle import sources  # noqa: PLC0415  heavy: not for --help
    from supervisor.cli.bundle.archive import BundleContents  # noqa: PLC0415
    from supervisor.cli.bundle.known import known_secrets  # noqa: PLC0415
    from supervisor.job import digest_key, identity  # noqa: PLC0415

    digest_key.use(identity.job_files(subject.place.directory))  # what the journal and the other members share has one digest
    view, place = subject.view, subject.place
    processes = [view.run.pid, *(rank.pid for rank in view.ranks)] if view.run is not None and view.end is None else []
    contents = BundleContents(known_secrets(settings, os.environ, processes), most_bytes)
    with progress("examining this node and reading the job's files"):
        sources.fill(contents, subject, settings, lambda: _diagnosis(settings), asks_stacks=asks_stacks)
    about = {
        "job": place.job,
        "node": place.node,
        "examined": identity.node_name(),
        "incident": subject.incident.number if subject.incident is not None else None,
        "run_id": subject.incident.run_id if subject.incident is not None else view.run.run_id if view.run else None,
        "attempt": subject.attempt,
        "made": timestamp(now),
    }
    return contents, about


def _subject(settings: Settings, job: str | None, number: int | None) -> BundleSubject:
    """Return what the bundle is about. Raises SuperviseError (64) if there is no such job or incident."""
    from supervisor.cli.bundle import sources  # noqa: PLC0415  heavy: not for --help

    place = find_job(state_root(settings), job)
    view, _ = whole_view_of(place)
    show_problems(view)
    return sources.find_subject(place, view, number)


def _diagnosis(settings: Settings) -> Diagnosis:
    from contextlib import closing  # noqa: PLC0415

    from supervisor.cli.doctor.command import node_doctor  # noqa: PLC0415

    with closing(node_doctor(settings)) as doctor:
        return doctor.examine()


def _listed(contents: BundleContents) -> Table:
    """Return what goes in and what does not, and as the last row how much it is."""
    columns = (Column("size", right=True), Column("file"), Column("note"))
    rows = [(bytes_text(len(member.content)), member.name, _note(member)) for member in contents.members]
    rows += [("left out", name, why) for name, why in contents.left_out]
    most = bytes_text(contents.most_bytes)
    total, hidden = sum(len(member.content) for member in contents.members), sum(member.hidden for member in contents.members)
    return Table(columns, (*rows, (bytes_text(total), "in all", f"at most {most}; {hidden} secrets are digests")))


def _note(member: BundleMember) -> str:
    return ", ".join([f"{member.hidden} digests"] * bool(member.hidden) + ["its end only"] * member.is_cut)
