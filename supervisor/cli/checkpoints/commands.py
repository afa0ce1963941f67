"""The commands of `supervise checkpoints`.

In: click's values. Out: the exit code of what does the work, which is imported when it is asked for. What can fail is a SuperviseError of
its. `verify` reads no settings: it works on any directory, without a job. Nothing is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from supervisor.cli.invocation import add, given, options, shared
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from supervisor.config.settings import Row, Settings


def add_to(group: click.Group) -> None:
    """Add the group to the group of all commands."""
    as_json = click.Option(["--json", "as_json"], is_flag=True, help="As JSON, one object on a line.")
    checkpoints = click.Group(
        "checkpoints",
        no_args_is_help=False,
        help="Look at checkpoints: what they are worth, which one a resume would take, and what was done.",
    )
    add(
        checkpoints,
        "verify",
        _verify,
        [as_json, click.Argument(["paths"], metavar="PATHS...", nargs=-1, required=True)],
        "Say whether each checkpoint is good: a file, its directory, or a directory that holds several. Runs no pickle, changes nothing.",
    )
    add(
        checkpoints,
        "latest",
        _latest,
        [*options(shared), as_json, click.Argument(["directory"], metavar="DIRECTORY")],
        "Say which checkpoint of a directory a resume would take, and why the newer ones are passed over.",
    )
    declared = options(lambda row: row.key == "checkpoints.paths")
    add(
        checkpoints,
        "ls",
        _ls,
        [*options(shared), *declared, *options(_of_mirror), as_json],
        "List a job's checkpoints, the places that were learned, and what was moved; with --mirror what the mirrors hold of it.",
    )
    path = click.Argument(["path"], metavar="PATH")
    add(checkpoints, "show", _show, [*options(shared), as_json, path], "Show all that is known of one checkpoint of a job.")
    number = click.Argument(["change"], metavar="[CHANGE]", required=False, type=click.IntRange(min=1))
    add(checkpoints, "undo", _undo, [*options(shared), as_json, number], "Move back what was moved aside, all or one change of `ls`.")
    reason = click.Option(["--reason"], metavar="TEXT", default="a person said so", help="Why, for those who ask later.")
    add(
        checkpoints,
        "quarantine",
        _quarantine,
        [*options(shared), reason, path],
        "Never hand out a checkpoint again, as it is now; the file stays where it is.",
    )
    _add_mirrored(checkpoints, as_json)
    group.add_command(checkpoints)


def _add_mirrored(checkpoints: click.Group, as_json: click.Option) -> None:
    """Add the commands that reach the copies in a mirror."""
    mirrors = [*options(shared), *options(_of_mirror), as_json]
    add(
        checkpoints,
        "push",
        _push,
        [*mirrors, click.Argument(["paths"], metavar="PATHS...", nargs=-1, required=True)],
        "Bring checkpoints to every mirror.",
    )
    wanted = click.Argument(["wanted"], metavar="STEP|NAME|ID")
    into = click.Argument(["into"], metavar="[INTO]", required=False, default=".")
    add(checkpoints, "pull", _pull, [*mirrors, wanted, into], "Bring one checkpoint of a job from the mirror into a directory.")
    to = click.Option(["--to"], metavar="DIRECTORY", help="Where to (default: where it was saved).")
    add(checkpoints, "restore", _restore, [*mirrors, to], "Bring the newest whole checkpoint of a job back from the mirror.")
    add(
        checkpoints,
        "prune",
        _prune,
        [
            *mirrors,
            *options(lambda row: row.key in ("checkpoints.keep", "checkpoints.keep_every")),
            click.Option(["--mirror-keep"], type=click.IntRange(min=1), help="Keep this many of the newest in each mirror."),
            click.Option(["--dry-run"], is_flag=True, help="Only say what would be removed."),
        ],
        "Remove a job's older copies: ours, and with --mirror-keep those in its mirrors. Never the newest.",
    )


def _verify(paths: tuple[str, ...], as_json: bool, **values: object) -> int:  # noqa: FBT001  click calls with keywords
    given(values).without_command()
    from supervisor.cli.checkpoints.verify import verify  # noqa: PLC0415  for this command only

    return verify(paths, as_json=as_json)


def _latest(directory: str, as_json: bool, **values: object) -> int:  # noqa: FBT001  click calls with keywords
    invocation = given(values).without_command()
    settings = invocation.settings_to_read_with()
    from supervisor.cli.checkpoints.listing import records_of  # noqa: PLC0415  for this command only
    from supervisor.cli.checkpoints.verify import latest  # noqa: PLC0415  as above

    return latest(directory, records_of(settings, invocation.job(settings), directory), as_json=as_json)


def _of_mirror(row: Row) -> bool:
    """Whether a setting's option says which mirror, and whose checkpoints in it."""
    return row.key in ("checkpoints.mirror", "checkpoints.restore_from")


def _ls(as_json: bool, **values: object) -> int:  # noqa: FBT001  click calls with keywords
    invocation = given(values).without_command()
    settings = invocation.settings()
    if "checkpoints.mirror" in invocation.flags:
        from supervisor.cli.checkpoints.mirror import listing  # noqa: PLC0415  loads what speaks to S3

        return listing(*_job_of(values), as_json=as_json)
    from supervisor.cli.checkpoints.listing import ls  # noqa: PLC0415  for this command only

    return ls(settings, invocation.job(settings), as_json=as_json)


def _show(path: str, as_json: bool, **values: object) -> int:  # noqa: FBT001  click calls with keywords
    invocation = given(values).without_command()
    settings = invocation.settings()
    from supervisor.cli.checkpoints.listing import show  # noqa: PLC0415  for this command only

    return show(settings, invocation.job(settings), path, as_json=as_json)


def _undo(change: int | None, as_json: bool, **values: object) -> int:  # noqa: FBT001  click calls with keywords
    invocation = given(values).without_command()
    settings = invocation.settings()
    from supervisor.cli.checkpoints.listing import undo  # noqa: PLC0415  for this command only

    return undo(settings, invocation.job(settings), change, as_json=as_json)


def _quarantine(path: str, reason: str, **values: object) -> int:
    invocation = given(values).without_command()
    settings = invocation.settings()
    from supervisor.cli.checkpoints.listing import quarantine  # noqa: PLC0415  for this command only

    return quarantine(settings, invocation.job(settings), path, reason)


def _push(paths: tuple[str, ...], as_json: bool, **values: object) -> int:  # noqa: FBT001  click calls with keywords
    settings, job = _job_of(values)
    from supervisor.cli.checkpoints.mirror import push  # noqa: PLC0415  for this command only

    return push(settings, job, paths, as_json=as_json)


def _pull(wanted: str, into: str, as_json: bool, **values: object) -> int:  # noqa: FBT001  click calls with keywords
    settings, job = _job_of(values)
    from supervisor.cli.checkpoints.mirror import pull  # noqa: PLC0415  for this command only

    return pull(settings, job, wanted, into, as_json=as_json)


def _restore(to: str | None, as_json: bool, **values: object) -> int:  # noqa: FBT001  click calls with keywords
    settings, job = _job_of(values)
    from supervisor.cli.checkpoints.mirror import restore_newest  # noqa: PLC0415  for this command only

    return restore_newest(settings, job, to, as_json=as_json)


def _prune(mirror_keep: int | None, dry_run: bool, as_json: bool, **values: object) -> int:  # noqa: FBT001  click calls with keywords
    settings, job = _job_of(values)
    from supervisor.cli.checkpoints.prune import prune  # noqa: PLC0415  for this command only

    return prune(settings, job, mirror_keep, dry_run=dry_run, as_json=as_json)


def _job_of(values: dict[str, object]) -> tuple[Settings, str]:
    """Return the settings, and the job that is meant: as it was said, else the most recent one here. Raises SuperviseError (64)."""
    invocation = given(values).without_command()
    settings = invocation.settings()
    job = invocation.job(settings)
    if job is None:
        from supervisor.cli.job_files import find_job, state_root  # noqa: PLC0415  for these commands only

        try:
            job = find_job(state_root(settings), None).job
        except SuperviseError as error:
            hint = "Say whose checkpoints are meant with --job NAME; where it is wrong, the mirror's jobs are named."
            raise SuperviseError(error.message, hint=hint, exit_code=error.exit_code) from error
    return settings, job
