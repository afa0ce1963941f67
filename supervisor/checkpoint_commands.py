"""The commands of `supervise checkpoints`.

In: click's values. Out: the exit code of what does the work, which is imported when it is asked for. What can fail is a SuperviseError of
its. `verify` and `latest` read no settings: they work on any directory, without a job. Nothing is kept.
"""

from __future__ import annotations

import click

from supervisor.invocation import add, given


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
    group.add_command(checkpoints)


def _verify(paths: tuple[str, ...], as_json: bool, **values: object) -> int:  # noqa: FBT001  click calls with keywords
    given(values).without_command()
    from supervisor.checkpointview import verify  # noqa: PLC0415  for this command only

    return verify(paths, as_json=as_json)


def _latest(directory: str, as_json: bool, **values: object) -> int:  # noqa: FBT001  click calls with keywords
    given(values).without_command()
    from supervisor.checkpointview import latest  # noqa: PLC0415  for this command only

    return latest(directory, as_json=as_json)
