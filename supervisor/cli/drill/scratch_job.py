"""The job of a drill that trains in a scratch directory: the refusals before it, its place, and its own settings."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from checkpointing.discover import find
from supervisor.checkpoints.discovery import record as discovery_record
from supervisor.checkpoints.records import DIRECTORY
from supervisor.cli.drill import scratch_directory
from supervisor.cli.drill.drilled_job import DrilledJob, require_steps
from supervisor.config.alert_settings import Alerts
from supervisor.core.values import Struct
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import identity
from supervisor.knobs import command_file, torchrun
from supervisor.observe.ranks.path_patterns import is_within

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from checkpointing.command_line.progress import ProgressBar
    from supervisor.cli.drill.scratch_directory import ScratchDirectory
    from supervisor.config.settings import Settings


class ScratchPlace(Struct, frozen=True):
    """Where the scratch directory is to be, "": in the state directory; further directories that the command may write.

    may_escape: the drill also runs where the kernel cannot keep the command from writing elsewhere.
    """

    scratch_dir: str
    writable: tuple[str, ...]
    may_escape: bool = False


def refuse(settings: Settings, command: Sequence[str], place: ScratchPlace, drill: str) -> None:
    """Raise SuperviseError (64) if the job could write outside of a scratch directory, or needs other nodes. drill: its name."""
    cwd_path = identity.working_directory()
    command_file.require_command(command, os.environ)
    require_steps(settings)
    nodes = torchrun.most_nodes(torchrun.recognise(command, path=os.environ.get("PATH")), os.environ)
    if nodes > 1:
        raise SuperviseError(
            f"{drill} runs on this node alone, and the command waits for {nodes} nodes",
            hint="Give torchrun --nnodes=1 for the drill: the resume is the same.",
            exit_code=ExitCode.USAGE,
        )
    cwd = os.path.realpath(cwd_path)
    _require_out_of_reach(cwd, "the working directory lies")
    for path in (str(cwd_path / path) for path in place.writable):
        real = os.path.realpath(path)
        if is_within(real, cwd) or is_within(cwd, real):
            raise SuperviseError(
                f"--writable {path}: the drill trains in links to the working directory, and would write the originals there",
                hint="Name a directory outside. --checkpoints 'DIR/*.pt' leaves the checkpoints that lie there out of the drill.",
                exit_code=ExitCode.USAGE,
            )
    absolute = next((path for path in settings.checkpoints.paths if path.startswith(("/", "~"))), None)
    if absolute is not None:
        raise SuperviseError(
            f"the checkpoints are declared at an absolute path, where the drill writes nothing: {absolute}",
            hint="Let the command save below its working directory for the drill, and declare that: --checkpoints 'DIR/*.pt'.",
            exit_code=ExitCode.USAGE,
        )
    shared = next((word for word in command if scratch_directory.SHARED_MEMORY in word), None)
    if shared is not None:
        raise SuperviseError(
            f"the command names a path in shared memory, which the drill cannot keep it from writing: {shared}",
            hint="Let the command save below its working directory for the drill.",
            exit_code=ExitCode.USAGE,
        )


def make_scratch(settings: Settings, state: Path, place: ScratchPlace) -> ScratchDirectory:
    """Make a scratch directory without the job's known checkpoints. state: the node state of the real job. Raises SuperviseError."""
    cwd, root = identity.working_directory(), identity.state_root(state)
    discovered = (location.pattern for location in discovery_record.read_locations(state / DIRECTORY) if location.kind != "seen")
    checkpoints = find((*settings.checkpoints.paths, *discovered), str(cwd)).candidates
    for checkpoint in checkpoints:
        _require_out_of_reach(checkpoint.path, "a checkpoint of this job lies")
    parent = cwd / place.scratch_dir if place.scratch_dir else root
    writable = tuple(str(cwd / path) for path in place.writable)
    return scratch_directory.make(parent, cwd, checkpoints, writable, excluded=(root,), may_escape=place.may_escape)


def real_state(settings: Settings, command: Sequence[str]) -> tuple[str, Path]:
    """Return the name of the job that is drilled, and its state on this node."""
    cwd = identity.working_directory()
    name = identity.job_name(settings.job.name, dict(os.environ), cwd, command).name
    return name, identity.make_node_state(settings.job.state_dir, cwd, name, identity.node_name())


def job_in(  # noqa: PLR0913, PLR0917  what runs, where, and how it is shown
    scratch: ScratchDirectory,
    settings: Settings,
    command: Sequence[str],
    name: str,
    bar: ProgressBar,
    prepare: Callable[[], None] = lambda: None,
) -> DrilledJob:
    """Return the drill's job of this name, in the scratch directory: a state directory of its own there, no mirror and no alert.

    prepare: called in each child before it enters the scratch directory.
    """
    own = dataclasses.replace(
        settings,
        job=dataclasses.replace(settings.job, name=name, state_dir=str(scratch.state)),
        checkpoints=dataclasses.replace(settings.checkpoints, mirror=()),
        alerts=Alerts(),
        cwd=str(scratch.work),
    )
    state = identity.make_node_state(own.job.state_dir, identity.working_directory(), name, identity.node_name())

    def enter() -> None:
        prepare()
        scratch.enter()

    return DrilledJob(own, command, state, identity.make_job_dir(state), enter, bar)


def _require_out_of_reach(path: str, subject: str) -> None:
    """Raise SuperviseError if a path lies where the drill's command may write."""
    place = scratch_directory.writable_above(path)
    if place:
        raise SuperviseError(
            f"{subject} where the drill cannot keep the command from writing: {path}, below {place}",
            hint="Run the drill with a copy of your directory in another place, or set the variable of that cache to another place.",
            exit_code=ExitCode.USAGE,
        )
