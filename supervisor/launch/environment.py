"""Makes the environment and the arguments of one attempt's ranks, with the checkpoint to resume from.

Variables that begin with SUPERVISE_JOB_ go from us to the ranks and are never configuration. The agent itself gets two of them
(early_agent.py), and sets one for single ranks: how they buffer their output (agent/spawn.py).
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.agent.placeholders import filled
from supervisor.agent.step_agreement import BUDGET_VARIABLE
from supervisor.core.values import Struct
from supervisor.job.sd_notify import strip
from supervisor.launch import tracing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisor.config.settings import Settings
    from supervisor.core.actions import BeginAttempt
    from supervisor.core.model import CheckpointRef
    from supervisor.job.job import Job
    from supervisor.knobs.knob_set import AttemptCommand, ResumeWay

INSTRUMENT_DIR = Path(__file__).resolve().parent.parent / "instrument"

RESUME, STEP = "{resume}", "{step}"
#: Variables between the supervisor and an alert sink, or from a predecessor to its ranks.
_NOT_FOR_THE_JOB = ("SUPERVISE_ALERTS_", "SUPERVISE_JOB_")
#: Without it @hydra.main prints a shortened traceback and calls sys.exit(1): the exception reaches no hook, and Python prints none.
_HYDRA = "HYDRA_FULL_ERROR"


class ResumeHandover(Struct, frozen=True):
    """How an attempt gets its checkpoint: variables to set and to remove, arguments to append, words to replace in the command."""

    variables: dict[str, str]
    removed: tuple[str, ...]
    arguments: tuple[str, ...]
    words: dict[str, str]


def job_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that the job would have had without supervise: the supervisor's own, less its private variables."""
    return {key: value for key, value in strip(environ).items() if not key.startswith(_NOT_FOR_THE_JOB)}


def instrumentation(environ: Mapping[str, str], shim: str) -> dict[str, str]:
    """Return PYTHONPATH with the instrumentation first, and how far that is to reach; nothing where `shim` is "off"."""
    if shim == "off":
        return {}
    user_path = environ.get("PYTHONPATH")
    path = str(INSTRUMENT_DIR) if user_path is None else f"{INSTRUMENT_DIR}{os.pathsep}{user_path}"
    return {"PYTHONPATH": path, "SUPERVISE_JOB_SHIM": shim}


def attempt_variables(job: Job, action: BeginAttempt, applied: AttemptCommand, shim: str, *, own_torch: bool = False) -> dict[str, str]:
    """Return all that an attempt's ranks find in their environment beyond the user's own, but for what hands a checkpoint over.

    own_torch: they run the torch that is installed beside us.
    """
    own_variables = {
        "SUPERVISE_JOB_RUN": job.run_id,
        "SUPERVISE_JOB_ATTEMPT": str(action.attempt),
        "SUPERVISE_JOB_REASON": action.reason,
        "SUPERVISE_JOB_COOKIE": job.cookie,
        "SUPERVISE_JOB_DIR": str(job.scratch),
        BUDGET_VARIABLE: str(job.settings.guard.skips),
    }
    gpus = {"CUDA_VISIBLE_DEVICES": ",".join(action.gpus)} if action.gpus else {}
    hydra = {} if _HYDRA in job.environ else {_HYDRA: "1"}
    # what a plan sets may be one of the user's variables, PYTHONPATH among them: the instrumentation goes in front of it
    torch = _torch_version() if action.trace and own_torch else ""
    traces = tracing.variables(job.environ, job.log_dir(action.attempt), torch) if action.trace else {}
    changed = {**gpus, **traces, **hydra, **applied.environment}
    return changed | own_variables | instrumentation({**job.environ, **changed}, shim)


def _torch_version() -> str:
    """Return the version of the torch that is installed beside us, "" without one; torch is not imported."""
    from importlib import metadata  # noqa: PLC0415  only a traced attempt needs it

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def resume_handover(
    settings: Settings, command: Sequence[str], resume: CheckpointRef | None, way: ResumeWay | None = None
) -> ResumeHandover:
    """Return how the script gets `resume` by `way` (KnobSet.resume_way); with nothing to resume nothing is added.

    `command` is the user's own. It is a template only where checkpoints are declared and `{resume}` is in it: elsewhere
    `{step}` is the script's own (a file name's template, say). A variable of the user's keeps its value while there is nothing to resume.
    """
    is_placed = bool(settings.checkpoints.paths) and any(RESUME in word for word in command)
    if resume is None:
        nothing = ("SUPERVISE_JOB_RESUME_FROM", "SUPERVISE_JOB_RESUME_STEP")
        return ResumeHandover({}, nothing, (), {RESUME: "", STEP: ""} if is_placed else {})
    step = "" if resume.step is None else str(resume.step)
    words = {RESUME: resume.path, STEP: step}
    variables = {"SUPERVISE_JOB_RESUME_FROM": resume.path, "SUPERVISE_JOB_RESUME_STEP": step}
    arguments = [] if way is None else [filled(word, words) for word in shlex.split(way.args)]
    return ResumeHandover(variables, (), tuple(arguments), words if is_placed else {})
