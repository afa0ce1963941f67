"""The commands of `supervise checkpoints`.

In: click's values. Out: the exit code of what does the work, which is imported when it is asked for. What can fail is a SuperviseError of
its. `verify` and `latest` read no settings: they work on any directory, without a job. Nothing is kept.
"""

from __future__ import annotations

import click

from supervisor.invocation import add, given, options, shared


def add_to(group: click.Group) -> None:
    """Add the group to the group of all commands."""
    as_json = click.Option(["--json", "as_json"], is_flag=True, help="As JSON, one object on a line.")
    checkpoints = click.Group(
        "checkpoints", help="Look at checkpoints: what they are worth, which one a resume would take, and what was done."
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
        [as_json, click.Argument(["directory"], metavar="DIRECTORY")],
        "Say which checkpoint of a directory a resume would take, and why the newer ones are passed over.",
    )
    declared = options(lambda row: row.key == "checkpoints.paths")
    add(
        checkpoints,
        "ls",
        _ls,
        [*options(shared), *declared, as_json],
        "List a job's checkpoints, the places that were learned, and what was moved.",
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
    group.add_command(checkpoints)


def _verify(paths: tuple[str, ...], as_json: bool, **values: object) -> int:  # noqa: FBT001  click calls with keywords
    given(values).without_command()
    from supervisor.checkpointview import verify  # noqa: PLC0415  for this command only

    return verify(paths, as_json=as_json)


def _latest(directory: str, as_json: bool, **values: object) -> int:  # noqa: FBT001  click calls with keywords
    given(values).without_command()
    from supervisor.checkpointview import latest  # noqa: PLC0415  for this command only

    return latest(directory, as_json=as_json)


def _ls(as_json: bool, **values: object) -> int:  # noqa: FBT001  click calls with keywords
    invocation = given(values).without_command()
    settings = invocation.settings()
    from supervisor.checkpointlist import ls  # noqa: PLC0415  for this command only

    return ls(settings, invocation.job(settings), as_json=as_json)


def _show(path: str, as_json: bool, **values: object) -> int:  # noqa: FBT001  click calls with keywords
    invocation = given(values).without_command()
    settings = invocation.settings()
    from supervisor.checkpointlist import show  # noqa: PLC0415  for this command only

    return show(settings, invocation.job(settings), path, as_json=as_json)


def _undo(change: int | None, as_json: bool, **values: object) -> int:  # noqa: FBT001  click calls with keywords
    invocation = given(values).without_command()
    settings = invocation.settings()
    from supervisor.checkpointlist import undo  # noqa: PLC0415  for this command only

    return undo(settings, invocation.job(settings), change, as_json=as_json)


def _quarantine(path: str, reason: str, **values: object) -> int:
    invocation = given(values).without_command()
    settings = invocation.settings()
    from supervisor.checkpointlist import quarantine  # noqa: PLC0415  for this command only

    return quarantine(settings, invocation.job(settings), path, reason)
