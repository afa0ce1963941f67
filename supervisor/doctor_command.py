"""The command `doctor`: click's side of what health/ knows of this node, and of kernel logs that were saved.

In: click's values. Out: the exit code of what does the work, which is imported when it is asked for: 0, or 69 where something is to be
repaired before a job is started here. What can fail is a SuperviseError. Nothing is kept.
"""

from __future__ import annotations

import sys

import click

from supervisor.errors import ExitCode, SuperviseError
from supervisor.invocation import add


def add_to(group: click.Group) -> None:
    """Add it to the group of all commands."""
    add(
        group,
        "doctor",
        _doctor,
        [
            click.Option(["--kernel-log"], metavar="FILE|-", help="Judge a saved kernel log (dmesg, journalctl, syslog), not this node."),
            click.Option(["--json", "as_json"], is_flag=True, help="As JSON: with --kernel-log one object for each finding."),
        ],
        "Look at this node, or at a saved kernel log, and say what is wrong and what repairs it.",
    )


def _doctor(kernel_log: str | None, as_json: bool) -> int:  # noqa: FBT001  click calls with keywords
    click.get_current_context().obj.without_command()
    if kernel_log is None:
        raise SuperviseError(
            "nothing to look at: doctor",
            hint="Name a saved kernel log: `dmesg | supervise doctor --kernel-log -`.",
            exit_code=ExitCode.USAGE,
        )
    return _kernel_log(kernel_log, as_json=as_json)


def _kernel_log(path: str, *, as_json: bool) -> int:
    from health.kernellog import judgefile  # noqa: PLC0415  for this command only

    try:
        text = judgefile.read(path)
    except OSError as error:
        hint = "Name a file that can be read, or `-` for standard input: `dmesg | supervise doctor --kernel-log -`."
        raise SuperviseError(f"kernel log not readable: {path}: {error.strerror or error}", hint=hint, exit_code=ExitCode.USAGE) from error
    return judgefile.show(text, as_json=as_json, out=sys.stdout)
