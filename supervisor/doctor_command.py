"""The command `doctor`: click's side of what health/ knows of this node, and of kernel logs that were saved.

In: click's values. Out: the exit code of what does the work, which is imported when it is asked for: 0, or 69 where something is to be
repaired before a job is started here. What can fail is a SuperviseError. Nothing is kept.
"""

from __future__ import annotations

import os
import sys

import click

from supervisor import stdio
from supervisor.errors import ExitCode, SuperviseError
from supervisor.invocation import add, given, options, shared
from supervisor.nodes_command import check_nodes, node_options, refuse_without_nodes


def add_to(group: click.Group) -> None:
    """Add it to the group of all commands."""
    add(
        group,
        "doctor",
        _doctor,
        [
            *options(shared),
            click.Option(["--kernel-log"], metavar="FILE|-", help="Judge a saved kernel log (dmesg, journalctl, syslog), not this node."),
            *node_options(),
            click.Option(["--json", "as_json"], is_flag=True, help="As JSON: with --kernel-log one object for each finding."),
            click.Option(["--all", "in_full"], is_flag=True, help="Also what is well."),
            click.Option(["--watch", "watch_s"], type=click.FloatRange(min=0.1), metavar="S", help="Look again every S seconds."),
            click.Option(
                ["--fix"], is_flag=True, help="First clear away what jobs of yours left behind on this node, where that is proven."
            ),
        ],
        "Look at this node, or at a saved kernel log, and say what is wrong and what repairs it.",
    )


def _doctor(
    kernel_log: str | None,
    watch_s: float | None,
    *,
    as_json: bool,
    in_full: bool,
    fix: bool,
    **values: object,
) -> int:
    click.get_current_context().obj.without_command()
    from supervisor.shadow import pin_our_packages  # noqa: PLC0415  for this command only

    pin_our_packages()
    if values.pop("nodes"):
        return check_nodes(values, as_json=as_json)
    refuse_without_nodes(values)
    if kernel_log is not None:
        return _kernel_log(kernel_log, as_json=as_json)
    settings = given(values).settings()
    if fix:
        from supervisor import doctorfix  # noqa: PLC0415  for this option only

        for line in doctorfix.fix(settings):
            stdio.say(line)
    from health import doctor  # noqa: PLC0415
    from health.model import Ask  # noqa: PLC0415
    from supervisor import identity  # noqa: PLC0415

    here = identity.working_directory()
    paths = (here, here / settings.job.state_dir)
    ask = Ask(paths=tuple(str(path) for path in paths if path.exists()), environ=dict(os.environ))
    looking = doctor.Doctor(ask, lasting=watch_s is not None)
    return doctor.run(looking, sys.stdout, as_json=as_json, in_full=in_full, watch_s=watch_s)


def _kernel_log(path: str, *, as_json: bool) -> int:
    from health.kernellog import judgefile  # noqa: PLC0415  for this command only

    try:
        text = judgefile.read(path)
    except OSError as error:
        hint = "Name a file that can be read, or `-` for standard input: `dmesg | supervise doctor --kernel-log -`."
        raise SuperviseError(f"kernel log not readable: {path}: {error.strerror or error}", hint=hint, exit_code=ExitCode.USAGE) from error
    return judgefile.show(text, as_json=as_json, out=sys.stdout)
