"""The future steps of `supervise`: the data of `supervise plan -- CMD`.

Nothing is run. The core itself is asked for its plans, one supposed failure after another.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from supervisor import strategies
from supervisor.config import loading, signatures
from supervisor.config.policy import to_policy
from supervisor.core.causes import CAUSE_TABLE
from supervisor.core.model import RESUME, Cause, CheckpointRef, Claim, Evidence, FailureVerdict, Gpu, Knob, PlanKind
from supervisor.core.values import Struct, replace
from supervisor.errors import ExitCode, SuperviseError, nearest
from supervisor.knobs import bindings, command_file, job_knobs, programs, python_command, torchrun
from supervisor.knobs.bindings import option
from supervisor.launch import launchers
from supervisor.observe import script_reasons
from supervisor.report.opening_lines import oom_text, resume_line
from supervisor.strategies import network, repetition
from supervisor.strategies.situation import Situation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisor.config.settings import Settings
    from supervisor.core.model import Policy
    from supervisor.knobs.knob_set import KnobSet

#: Settings that are shown even if they have their defaults: a person wants to know them at 3 a.m.
MATTER = (
    "checkpoints.paths",
    "job.resumes_itself",
    "restart.max_attempts",
    "restart.intensity",
    "restart.scratch_limit_s",
    "gpus.minimum",
)
#: Settings that have lines of their own.
_OWN = re.compile(r"recover\.|classify\.signature\[")
#: Causes whose signatures say that they may pass by themselves; and how long a hang lasts until torch's own timeout ends it.
_TRANSIENT, _HANGS_FOR_S = frozenset({Cause.NCCL_TIMEOUT, Cause.HOST_OOM}), 600.0
#: Where the supposed failures are, and which checkpoints were made by then.
_STEP, _CHECKPOINTS = 310, (100, 200, 300)
_MOST_FAILURES = 12


class _Step(Struct, frozen=True):
    """The answer to one of several equal failures."""

    strategy: str
    kind: str
    reason: str
    exit_code: int
    notes: tuple[str, ...]


def document(settings: Settings, command: Sequence[str], cause: str | None) -> dict[str, Any]:
    """Return the plan of `command` as data; with `cause` also the answers to that cause. Raises SuperviseError."""
    command_file.require_command(command, os.environ)
    knob_set = job_knobs.find(settings, command, os.environ, Path(settings.cwd))
    launcher = torchrun.launcher(_torchrun(command, os.environ))
    policy = to_policy(
        settings,
        launcher,
        tuple(replace(knob, seen=True) for knob in knob_set.knobs),
        likely=knob_set.likely,
        environ=os.environ,
        replica=knob_set.replica,
    )
    return _data(settings, command, knob_set, policy, _cause(cause, settings) if cause else None)


def _cause(name: str, settings: Settings) -> Cause:
    names = (*Cause, *_own_causes(settings))
    if name in names:
        return Cause(name)
    likely = nearest(name, names)
    hint = f"The nearest is {likely}; `supervise plan -- CMD` lists all." if likely else "`supervise plan -- CMD` lists all."
    raise SuperviseError(f"no such cause: {name}", hint=hint, exit_code=ExitCode.USAGE)


def sequence(cause: Cause, policy: Policy, ranks: int, nodes: int = 1) -> tuple[_Step, ...]:
    """Return the answers to equal failures of `cause` without progress between them, up to the stop.

    Supposed is the node that the command implies: `ranks` on each of `nodes` (0: not known), with a GPU each, of which one after another
    fails where the cause is a GPU's; a failure well beyond the first step, with good checkpoints before it where any are declared.
    """
    proof = Evidence("plan", "supposed", "supposed", claim=Claim(cause, 1.0))
    verdict = FailureVerdict(cause, 1.0, "supposed", "supposed", transient=cause in _TRANSIENT, because=(proof,))
    good = tuple(CheckpointRef(f"step-{step}.pt", step, "supposed") for step in _CHECKPOINTS) if policy.checkpoints_declared else ()
    gpus = tuple(Gpu(index, f"GPU-{index}", "") for index in range(ranks))
    situation = Situation(
        t=0.0, verdict=verdict, policy=policy, first=None, step=_STEP, before_first_step=False, failures=(), attempts=1,
        knobs=policy.knobs, world_size=ranks * (nodes or 1), ranks=ranks, gpus=gpus, verified=good, known_good=len(good),
        resume=good[-1] if good else None,
    )  # fmt: skip
    steps: list[_Step] = []
    while len(steps) < _MOST_FAILURES:
        if CAUSE_TABLE[cause].of_gpu:  # another one each time: the one before is out of use
            situation = replace(situation, gpu=next((gpu.uuid for gpu in situation.gpus if not gpu.quarantined), ""))
        answer = strategies.propose(situation)
        steps.append(_Step(answer.strategy, answer.kind.value, answer.reason, answer.exit_code, answer.notes))
        if answer.kind is PlanKind.STOP:
            break
        situation = situation.again(answer)
        situation = replace(situation, t=situation.t + _HANGS_FOR_S * (cause in repetition.HANGS))
    return tuple(steps)


def _data(settings: Settings, command: Sequence[str], knob_set: KnobSet, policy: Policy, cause: Cause | None) -> dict[str, Any]:
    script = programs.locate(command, os.environ.get("PATH"))
    settings_rows = msgspec.to_builtins(loading.settings_shown(settings))
    data: dict[str, Any] = {
        "command": list(command),
        "script": script.target,
        "script_is_here": script.kind != "file" or (Path(settings.cwd) / script.target).exists(),
        "in_your_script": _of_script(script, Path(settings.cwd), command),
        "programs": [programs.title(name) for name in knob_set.programs],
        "warnings": list(launchers.ignored_options(command, os.environ)),
        "replica": {
            "size": knob_set.replica.size,
            "source": knob_set.replica.source,
            "unread": knob_set.replica.unread,
            "one_gpu_less": _one_gpu_less(policy, command),
        },
        "on_cuda_oom": oom_text(knob_set, command, os.environ),
        "resumes": resume_line(settings, knob_set, command=command),
        "enabled": [_enabled(knob) for knob in knob_set.knobs],
        "not_enabled": _not_enabled(knob_set, resumes=settings.resumes_itself),
        "recover": [
            {"cause": row.cause, "set": dict(sets), "origin": row.place}
            for row, (_, sets) in zip(settings.recover, policy.recover, strict=True)
        ],
        "signatures": _users_signatures(settings),
        "settings": {
            key: row for key, row in settings_rows.items() if key in MATTER or (row["origin"] != "default" and not _OWN.match(key))
        },
        "ladders": {
            row.value: [
                {"strategy": name, "does": strategies.summary(name), "missing": _missing(name, policy)}
                for name in strategies.ladder(row, policy)
            ]
            for row in (*Cause, *_own_causes(settings))
            if row is not Cause.NONE and cause in (None, row)
        },
    }
    if cause is not None:
        ranks, nodes = torchrun.size(_torchrun(command, os.environ), os.environ)
        steps = sequence(cause, policy, ranks, nodes)
        names = ("strategy", "kind", "reason", "exit_code", "notes")
        data["cause"] = {"name": cause.value, "meaning": CAUSE_TABLE[cause].meaning}
        data["supposed"] = _supposed(policy, ranks, nodes)
        data["sequence"] = [{name: getattr(step, name) for name in names} for step in steps]
    return data


def _of_script(script: programs.Script, cwd: Path, command: Sequence[str]) -> list[str]:
    """Return what the rules find in the script, or that it cannot be read, a line each."""
    if script.kind != "file":
        return []
    run, python = _torchrun(command, os.environ), python_command.split_python(command)
    interpreter = (run.interpreter if run is not None else python.interpreter if python is not None else "") or ""
    return script_reasons.of_plan(cwd / script.target, interpreter)


def _own_causes(settings: Settings) -> tuple[Cause, ...]:
    """Return the causes that only signatures of the user's name."""
    if not settings.classify.signatures:
        return ()
    return tuple(dict.fromkeys(row.cause for row in signatures.configured(settings)[0].rows if row.cause.is_own))


def _users_signatures(settings: Settings) -> list[dict[str, Any]]:
    """Return the signatures of the user's own, with those that cannot be used."""
    if not settings.classify.signatures:
        return []
    catalogue, problems = signatures.configured(settings)
    packaged = str(signatures.PACKAGED)
    rows = [
        {"id": row.id, "cause": row.cause.value, "where": list(row.where), "origin": row.origin, "problem": ""}
        for row in catalogue.rows
        if not row.origin.startswith(packaged)
    ]
    return rows + [{"id": problem.id, "cause": "", "where": [], "origin": problem.origin, "problem": problem.text} for problem in problems]


def _one_gpu_less(policy: Policy, command: Sequence[str]) -> str:
    """Return what follows when one GPU of this node fails and is not a spare, "" where the command does not say its ranks."""
    ranks, nodes = torchrun.size(_torchrun(command, os.environ), os.environ)
    if not ranks:
        return ""
    answer = sequence(Cause.GPU_LOST, policy, ranks, nodes)[0]
    code = f" ({answer.exit_code})" if answer.exit_code else ""
    return f"{answer.kind}{code}: {answer.reason.removeprefix('GPU 0 (GPU-0) failed: ').replace('GPU 0 (GPU-0)', 'it')}"


def _enabled(knob: Knob) -> dict[str, Any]:
    entry = {"knob": knob.name, "how": knob.how, "value": knob.value, "counts": knob.counts, "by": programs.title(knob.by)}
    return entry | ({} if knob.seen else {"when": "once a rank is seen to train with it"})


def _not_enabled(knob_set: KnobSet, *, resumes: bool) -> list[dict[str, str]]:
    """Return every knob that is missing, with the option that would enable it. resumes: the script resumes without one."""
    names = {knob.name for knob in knob_set.knobs}
    rows = [
        {
            "knob": unavailable_knob.knob,
            "why": f"{programs.title(unavailable_knob.by)}: {unavailable_knob.why}",
            "remedy": unavailable_knob.remedy,
        }
        for unavailable_knob in knob_set.unavailable
    ]
    names |= {unavailable_knob.knob for unavailable_knob in knob_set.unavailable} | ({RESUME} if resumes else set())
    missing = [name for name in bindings.NAMES if name not in names]
    likely = dict(knob_set.likely)
    return rows + [
        {
            "knob": name,
            "why": ("a flag's name alone proves nothing: give it if it means that" if name in likely else "no flag of the script is known")
            + ("; --resumes-itself, if the script finds its checkpoint by itself" if name == RESUME else ""),
            "remedy": option(name, likely.items()),
        }
        for name in missing
    ]


def _missing(name: str, policy: Policy) -> str:
    """Return the knobs or options that a step needs and does not have, "" if it has all."""
    there, step = {knob.name for knob in policy.knobs}, strategies.LADDER_STEPS[name]
    wants = ("batch_size",) if name == "halve_batch" and policy.restart.batch_drift else step.wants
    if name == "halve_batch" and not policy.batch_change:
        return "--set knobs.batch_change=true"
    if name == "step_back" and not policy.checkpoints_declared:
        return "--checkpoints"
    if name in network.OPTIONAL and name not in policy.network.allow:
        return network.enabling(name)
    missing = [want for want in wants if want not in there]
    if step.wants_one and len(missing) < len(wants):
        return ""
    return (" or " if step.wants_one else ", ").join(missing)


def _torchrun(command: Sequence[str], environ: Mapping[str, str]) -> torchrun.Torchrun | None:
    return torchrun.recognise(command, path=environ.get("PATH"))


def _supposed(policy: Policy, ranks: int, nodes: int) -> str:
    """Return in words what `sequence` assumes."""
    where = f"{ranks} ranks here, a GPU each" if ranks else "an unknown number of ranks and GPUs: the command does not say it"
    world = "" if nodes == 1 or not ranks else f", {nodes} nodes" if nodes else ", one node of an unknown number"
    checkpoints = f"checkpoints of steps {', '.join(map(str, _CHECKPOINTS))}" if policy.checkpoints_declared else "no checkpoint"
    return f"{where}{world}; step {_STEP}, {checkpoints}"
