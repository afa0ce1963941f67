"""The command `doctor`: click's side of what health/ knows of this node, and of kernel logs that were saved.

In: click's values. Out: the exit code of what does the work, which is imported when it is asked for: 0, or 69 where something is to be
repaired before a job is started here. What can fail is a SuperviseError. Nothing is kept.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Final

import click

from supervisor.cli import stdio
from supervisor.cli.doctor.nodes import check_nodes, node_options, refuse_without_nodes
from supervisor.cli.invocation import add, given, options, shared
from supervisor.errors import ExitCode, SuperviseError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: How long declared checkpoints are listed: on a disk that is well a fraction of it.
_LISTED_S: Final = 5.0


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
    from supervisor.cli.import_guard import pin_our_packages  # noqa: PLC0415  for this command only

    pin_our_packages()
    nodes = bool(values.pop("nodes"))
    _refuse_both(
        {"--nodes": nodes, "--kernel-log": kernel_log is not None}, {"--watch": watch_s is not None, "--fix": fix, "--all": in_full}
    )
    if nodes:
        return check_nodes(values, as_json=as_json)
    refuse_without_nodes(values)
    if kernel_log is not None:
        return _kernel_log(kernel_log, as_json=as_json)
    settings = given(values).settings()
    if fix:
        from supervisor.cli.doctor import fix as doctor_fix  # noqa: PLC0415  for this option only

        for line in doctor_fix.fix(settings):
            stdio.say(line)
    from health import Ask, Doctor, render  # noqa: PLC0415
    from supervisor.config.health import directories, healthset  # noqa: PLC0415
    from supervisor.job import identity  # noqa: PLC0415
    from supervisor.launch import rendezvous  # noqa: PLC0415

    meeting = rendezvous.of(settings.job.command, os.environ)
    here = identity.working_directory()
    patterns = settings.checkpoints.paths
    paths = (*(str(path) for path in (here, here / settings.job.state_dir) if path.exists()), *directories(patterns, str(here)))
    ask = Ask(
        paths=tuple(dict.fromkeys(paths)),
        environ=dict(os.environ),
        hosts=meeting.hosts,
        ports=meeting.ports,
        need_bytes=_largest(patterns, str(here)),
    )
    chosen = healthset(settings)
    doctor = Doctor(ask, limits=chosen.limits, plugged=chosen.plugged, lasting=watch_s is not None)
    return render.run(doctor, sys.stdout, as_json=as_json, in_full=in_full, watch_s=watch_s)


def _largest(patterns: Sequence[str], cwd: str) -> int:
    """Return how large the largest checkpoint is that is there; 0 where none is, or where the disk does not tell in time."""
    from checkpointing.discover import find  # noqa: PLC0415  for this command only
    from checkpointing.model import CheckpointingError  # noqa: PLC0415

    sizes: list[int] = []

    def look() -> None:
        with contextlib.suppress(CheckpointingError, OSError):
            sizes.extend(found.identity.size for found in find(patterns, cwd).candidates)

    if patterns:  # in a thread: a server that is gone answers nobody, and that is what is to be told
        looking = threading.Thread(target=look, name="checkpoints", daemon=True)
        looking.start()
        looking.join(_LISTED_S)
    return max(sizes, default=0)


def _refuse_both(instead: dict[str, bool], of_this_node: dict[str, bool]) -> None:
    """Raise SuperviseError (64) where an option that looks elsewhere stands beside one that it would leave without a meaning."""
    given_ = [option for option, is_given in instead.items() if is_given]
    others = [*given_[1:], *(option for option, is_given in of_this_node.items() if is_given)]
    if given_ and others:
        hint = f"Leave one of them out: first `supervise doctor {others[0]}`, then `supervise doctor {given_[0]}`."
        raise SuperviseError(
            f"{given_[0]} does not look at this node: {others[0]} says nothing beside it", hint=hint, exit_code=ExitCode.USAGE
        )


def _kernel_log(path: str, *, as_json: bool) -> int:
    from health.kernellog import file_report  # noqa: PLC0415  for this command only

    try:
        return file_report.report(path, sys.stdout, as_json=as_json)
    except (file_report.LogUnreadableError, file_report.LogFormError) as error:
        raise SuperviseError(str(error), hint=error.hint, exit_code=ExitCode.USAGE) from error
