"""`supervise doctor`: checks this node, a saved kernel log, or several nodes."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Final

import click

from supervisor.cli import stdio
from supervisor.cli.doctor.nodes import check_nodes, node_options, refuse_without_nodes
from supervisor.cli.invocation import JOB, Invocation, setting_options
from supervisor.cli.progress import progress
from supervisor.errors import ExitCode, SuperviseError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from health import Doctor
    from supervisor.config.settings import Settings

#: How long declared checkpoints are listed: on a disk that is well a fraction of it.
_LISTED_S: Final = 5.0


@click.command()
@setting_options(*JOB)
@click.option("--kernel-log", metavar="FILE|-", help="Judge a saved kernel log (dmesg, journalctl, syslog) instead of this node.")
@node_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON: with --kernel-log one object for each finding.")
@click.option("--all", "in_full", is_flag=True, help="Show good results, too.")
@click.option("--watch", "watch_s", type=click.FloatRange(min=0.1), metavar="S", help="Check again every S seconds.")
@click.option("--fix", is_flag=True, help="First clear away what your jobs left on this node, where that is proven.")
def command(  # noqa: PLR0913  one for each option
    invocation: Invocation,
    *,
    kernel_log: str | None,
    nodes: bool,
    as_json: bool,
    in_full: bool,
    watch_s: float | None,
    fix: bool,
    **check: object,
) -> int:
    """The worst finding comes first. The exit code is 69 if anything of the node is FAILED: a prolog drains it. Taken ports do not count.

    --nodes finds the bad or slow one of several nodes: start it on each of them, with --nnodes, --node-rank and --master.
    """
    _refuse_both(
        {"--nodes": nodes, "--kernel-log": kernel_log is not None}, {"--watch": watch_s is not None, "--fix": fix, "--all": in_full}
    )
    if nodes:
        return check_nodes(check, as_json=as_json)
    refuse_without_nodes(check)
    if kernel_log is not None:
        return _kernel_log(kernel_log, as_json=as_json)
    settings = invocation.settings()
    if fix:
        from supervisor.cli.doctor import fix as doctor_fix  # noqa: PLC0415  for this option only

        with progress("clearing away what jobs left on this node", wanted=not as_json):
            for line in doctor_fix.fix(settings):
                stdio.say(line)
    from health import render  # noqa: PLC0415  for this command only

    with progress(wanted=not as_json) as bar:
        doctor = node_doctor(settings, lasting=watch_s is not None, show=bar.begin)
        return render.run(doctor, sys.stdout, as_json=as_json, in_full=in_full, watch_s=watch_s)


def node_doctor(settings: Settings, *, lasting: bool = False, show: Callable[[str], None] = lambda _text: None) -> Doctor:
    """Return what examines this node, and the paths and ports of the job that the settings name. The caller closes it.

    show: gets the subject of the wait, "" at the end.
    """
    from health import Ask, Doctor  # noqa: PLC0415  heavy: not for --help
    from supervisor.config.health import directories, thresholds  # noqa: PLC0415
    from supervisor.job import identity  # noqa: PLC0415
    from supervisor.launch import rendezvous_ports, slurm  # noqa: PLC0415

    command = settings.job.command
    environ = {**os.environ, **slurm.at_start(command, os.environ).variables}
    meeting = rendezvous_ports.of(command, environ)
    here = identity.working_directory()
    patterns = settings.checkpoints.paths
    paths = (*(str(path) for path in (here, here / settings.job.state_dir) if path.exists()), *directories(patterns, str(here)))
    ask = Ask(
        paths=tuple(dict.fromkeys(paths)),
        environ=dict(os.environ),
        hosts=meeting.hosts,
        ports=meeting.ports,
        need_bytes=_newest_bytes(patterns, str(here)),
        options={"names": {"several_nodes": rendezvous_ports.is_of_several_nodes(command, environ)}},
    )
    return Doctor(ask, limits=thresholds(settings), lasting=lasting, awaited=lambda names: show(_waiting(names)))


def _waiting(names: Sequence[str]) -> str:
    return f"waiting for {', '.join(names)}" if names else ""


def _newest_bytes(patterns: Sequence[str], cwd: str) -> int:
    """Return how much the newest checkpoint takes; 0 without one, or if the disk does not answer in time."""
    from checkpointing.discover import allocated_bytes, find  # noqa: PLC0415  for this command only
    from checkpointing.model import CheckpointingError  # noqa: PLC0415
    from checkpointing.ordering import Order  # noqa: PLC0415

    sizes: list[int] = []

    def look() -> None:
        with contextlib.suppress(CheckpointingError, OSError):
            sizes.extend(allocated_bytes(candidate) for candidate in Order().newest_candidates(find(patterns, cwd).candidates)[:1])

    if patterns:  # in a thread: a server that is gone never answers, and doctor is to report exactly that
        looking = threading.Thread(target=look, name="checkpoints", daemon=True)
        looking.start()
        looking.join(_LISTED_S)
    return sizes[0] if sizes else 0


def _refuse_both(instead: dict[str, bool], of_this_node: dict[str, bool]) -> None:
    """Raise SuperviseError (64) for two options of which one looks elsewhere and the other is about this node."""
    elsewhere = [option for option, is_given in instead.items() if is_given]
    others = [*elsewhere[1:], *(option for option, is_given in of_this_node.items() if is_given)]
    if elsewhere and others:
        hint = f"Leave one of them out: first `supervise doctor {others[0]}`, then `supervise doctor {elsewhere[0]}`."
        raise SuperviseError(
            f"{others[0]} cannot be combined with {elsewhere[0]}, which does not examine this node", hint=hint, exit_code=ExitCode.USAGE
        )


def _kernel_log(path: str, *, as_json: bool) -> int:
    from health.kernellog import file_report  # noqa: PLC0415  for this command only

    try:
        return file_report.report(path, sys.stdout, as_json=as_json)
    except (file_report.LogUnreadableError, file_report.LogFormError) as error:
        raise SuperviseError(str(error), hint=error.hint, exit_code=ExitCode.USAGE) from error
