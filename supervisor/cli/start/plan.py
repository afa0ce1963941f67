"""`supervise plan -- CMD`: what a recovery would change in CMD, the answer to each cause of a failure, and what fits into a GPU."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli import stdio
from supervisor.cli.invocation import BEFORE_CMD, JOB, Invocation, json_option, setting_options
from supervisor.errors import ExitCode, SuperviseError
from supervisor.report import plan_page, start_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.config.settings import Settings
    from supervisor.report.layout import FactPage
    from supervisor.view.job_view import JobView


#: For the probes of this node's GPUs: a person waits.
_DEADLINE_S = 5.0


@click.command(options_metavar=BEFORE_CMD)
@setting_options(*JOB, takes_command=True)
@click.option("--cause", metavar="CAUSE", help="Show the ladder of one cause, failure by failure, to the stop.")
@click.option("--fit", is_flag=True, help="Show which micro-batch fits into a GPU: by the newest checkpoint and what a run needed.")
@json_option
def command(invocation: Invocation, *, cause: str | None, fit: bool, as_json: bool) -> int:
    """It names options without effect, ranks without a GPU, and lines of the script at which ranks wait or race; then knobs and ladders.

    The options of a run stand before or after `plan`.
    """
    settings, words = invocation.settings_and_command()
    data = start_plan.document(settings, words, cause)
    data["warnings"] += _rank_places(settings, words)
    pages = plan_page.pages(data)
    if fit:
        data["fit"], page = _fit(settings, words)
        pages = [page]
    if as_json:
        stdio.write_json(data, indent=2)
    else:
        stdio.show(*pages)
    return 0


def _rank_places(settings: Settings, words: Sequence[str]) -> list[str]:
    """Return where the ranks of the command do not fit the GPUs of this node; nothing where there is none, as on a login node."""
    from supervisor.node.health_watch import has_gpus  # noqa: PLC0415  not for --help

    if not has_gpus(os.environ):
        return []
    from health.model import Ask  # noqa: PLC0415  as above
    from health.probing.runner import Runner  # noqa: PLC0415  as above
    from supervisor.launch import launchers  # noqa: PLC0415  as above
    from supervisor.node import rank_places  # noqa: PLC0415  as above

    with closing(Runner()) as runner:
        now = runner.sweep(rank_places.PROBES, Ask(deadline_s=_DEADLINE_S))
    planned = launchers.planned_ranks(words, os.environ, Path(settings.cwd))
    places = rank_places.findings(planned, os.environ, now, os.sched_getaffinity(0))
    return [f"{place.reason}: it does not start (78); write {place.command}" if place.blocks else place.reason for place in places]


def _fit(settings: Settings, words: Sequence[str]) -> tuple[dict[str, Any], FactPage]:
    """Return the estimate of a GPU's memory, as data and as a page. Raises SuperviseError where there is no verified checkpoint."""
    from checkpointing import discover, select, sizes  # noqa: PLC0415  not for a plan without --fit
    from supervisor.knobs import job_knobs, torchrun  # noqa: PLC0415  as above
    from supervisor.report import fit  # noqa: PLC0415  as above

    patterns = settings.checkpoints.paths
    if not patterns:
        raise SuperviseError(
            "cannot estimate the memory: no checkpoint is declared",
            hint="Name where they are: supervise --checkpoints 'DIR/*.pt' plan --fit -- CMD.",
            exit_code=ExitCode.USAGE,
        )
    chosen = select.newest(discover.find(patterns, settings.cwd, declared=True)).chosen
    if chosen is None:
        raise SuperviseError(
            f"cannot estimate the memory: {', '.join(patterns)}: no checkpoint there is verified good",
            hint="`supervise checkpoints verify PATH` shows why.",
        )
    view = _view(settings, words)
    per_node, nodes = torchrun.size(torchrun.recognise(words, path=os.environ.get("PATH")), os.environ)
    knob_set = job_knobs.find(settings, words, os.environ, Path(settings.cwd))
    knobs = view.policy.knobs if view else knob_set.knobs
    failures = [failure for incident in view.incidents for failure in incident.failures] if view else []
    world = (view.world_size if view else 0) or per_node * nodes
    data = fit.document(chosen.path, sizes.of_checkpoint(chosen.path), fit.measured(failures, knobs, world // knob_set.replica.size), world)
    return data, fit.page(data)


def _view(settings: Settings, words: Sequence[str]) -> JobView | None:
    """Return what the journal of this command's job has; None where it was not run yet."""
    from supervisor.cli.jobs.job_files import find_job, state_root, whole_view_of  # noqa: PLC0415  as above
    from supervisor.job import identity  # noqa: PLC0415  as above

    name = identity.job_name(settings.job.name, os.environ, Path(settings.cwd), words).name
    root = state_root(settings)
    return whole_view_of(find_job(root, name))[0] if (root / name).is_dir() else None
