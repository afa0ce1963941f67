"""What `supervise` would do: the data of `supervise plan -- CMD`, and the lines at start that name what is enabled.

Nothing is run. The core itself is asked for its plans, one supposed failure after another.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkpointing import step_names
from checkpointing.formats import TORCH_SUFFIXES
from supervisor import strategies
from supervisor.classify.source.script import MOST_BYTES
from supervisor.config import loading, signatures
from supervisor.config.policy import to_policy
from supervisor.core import replicas
from supervisor.core.causes import CAUSE_TABLE
from supervisor.core.model import RESUME, Cause, CheckpointRef, Claim, Evidence, Gpu, Knob, PlanKind, ResumeKind, Verdict
from supervisor.core.values import Struct, replace
from supervisor.errors import ExitCode, SuperviseError, nearest
from supervisor.knobs import batch, bindings, job_knobs, programs, python_command, torchrun
from supervisor.launch import launchers
from supervisor.observe import script_reasons
from supervisor.observe.ranks.path_patterns import checkpoint_path, is_within, pattern_of
from supervisor.strategies import checkpoint, memory, network, repetition
from supervisor.strategies.situation import BATCH_KNOBS, Situation, option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisor.config.settings import Settings
    from supervisor.core.model import Policy
    from supervisor.core.replicas import Replica
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
#: What a rung needs before it can do anything: one of these knobs, each of them, or a setting.
_WANTS = {
    "halve_batch": tuple(sorted(BATCH_KNOBS)),
    "halve_workers": (memory.WORKERS,),
    "memory_knobs": tuple(memory.SWITCHES),
    "skip_window": (checkpoint.WINDOW,),
}
_SUFFIXES = (*TORCH_SUFFIXES, ".safetensors", ".bin", ".npz", ".tar")
_ANY = frozenset({"memory_knobs"})
#: Settings that have lines of their own.
_OWN = re.compile(r"recover\.|classify\.signature\[")
#: Causes of which a GPU is the culprit by itself.
_OF_A_GPU = frozenset({Cause.GPU_ECC, Cause.GPU_LOST, Cause.GPU_XID_OTHER, Cause.NVLINK})
#: Causes whose signatures say that they may pass by themselves; and how long a hang lasts until torch's own timeout ends it.
_TRANSIENT, _HANGS_FOR_S = frozenset({Cause.NCCL_TIMEOUT, Cause.HOST_OOM}), 600.0
#: Where the supposed failures are, and which checkpoints were made by then.
_STEP, _CHECKPOINTS = 310, (100, 200, 300)
_MOST_FAILURES = 12
#: What enables a knob that --knob does not.
_REMEDIES = {RESUME: "--resume-args '--YOUR-FLAG {resume}', or --resumes-itself"}
#: What a script's text has that takes the checkpoint from us: the variable, `checkpointing.load_latest` or `supervisor.worker.resume_from`.
_READS_CHECKPOINT = re.compile(rb"SUPERVISE_JOB_RESUME_FROM|\bload_latest\b|\bresume_from\b")
_NO_BATCH_CHANGE = "on CUDA OOM: the batch stays as it is (--no-batch-change)"


class _Step(Struct, frozen=True):
    """The answer to one of several equal failures."""

    strategy: str
    kind: str
    reason: str
    exit_code: int
    notes: tuple[str, ...]


def opening_lines(
    found: KnobSet,
    command: Sequence[str],
    environ: Mapping[str, str],
    overrides: Sequence[tuple[str, str]] = (),
) -> list[str]:
    """Return what a run that goes on has changed, and what happens to the batch on CUDA OOM: a line each, or none.

    overrides: what is changed already, by knob or env:NAME.
    """
    now = dict(overrides)
    new = [(knob, now[knob.name]) for knob in found.knobs if now.get(knob.name, knob.value) != knob.value]
    changed = ", ".join(f"{knob.how} {value}" for knob, value in new)
    goes_on = f"goes on with {changed} (you wrote {', '.join(knob.value or 'nothing' for knob, _ in new)})" if new else ""
    return [line for line in (goes_on, opening_line(found, command, environ, overrides=overrides)) if line]


def opening_line(  # noqa: PLR0911  one for each case
    found: KnobSet,
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    overrides: Sequence[tuple[str, str]] = (),
) -> str:
    """Return what happens to the batch of `command` on CUDA OOM; "" where no knob of it is known.

    overrides: what a run that goes on has changed already, by knob.
    """
    now = dict(overrides)
    known = {knob.name: replace(knob, value=now.get(knob.name, knob.value)) for knob in found.knobs}
    size, accum = known.get("batch_size"), known.get("grad_accum")
    if size is None and accum is None:
        return ""
    if not found.batch_change:
        return _NO_BATCH_CHANGE
    if size is not None and accum is None and found.batch_drift:
        half = batch.halved_alone(size, 0)
        changed = f"stays as it is: {half}" if isinstance(half, str) else f"{size.value}→{half}, and the global batch with it"
        return f"on CUDA OOM: {size.how} {changed}; --set restart.batch_drift=false forbids it"
    if size is None or accum is None:
        have, lack = (size.how, "grad_accum") if size is not None else (accum.how if accum else "", "batch_size")
        alone = ", --allow-batch-drift halves it alone, and the global batch with it" if size is not None else ""
        return f"on CUDA OOM: {have} stays as it is, because no {lack} is known: {option(lack, found.likely)} enables it{alone}"
    by = ", ".join(dict.fromkeys(programs.title(knob.by) for knob in (size, accum) if knob.by != "declared"))
    rest = f"{f' ({by})' if by else ''}; --no-batch-change forbids it"
    per_node, nodes = torchrun.size(_torchrun(command, environ), environ)
    divided = per_node * nodes // found.replica.size
    if not divided and (size.counts == "global" or accum.counts == "world"):
        how = size.how if size.counts == "global" else accum.how
        return f"on CUDA OOM: the micro-batch shrinks at the same global batch, if {how} divides by the ranks, not known yet{rest}"
    # where both count for each rank, one stands for all: a smaller micro-batch keeps the product whatever the number of ranks is
    old = batch.read(size, accum, divided or 1)
    new = batch.smaller(old) if isinstance(old, batch.Batch) else old
    if isinstance(new, str):
        return f"on CUDA OOM: the batch stays as it is: {new}"
    changes = ", ".join(f"{change.how} {change.old}→{change.new}" for change in batch.changes(new, size, accum))
    return f"on CUDA OOM: {changes}{rest}"


def resume_line(settings: Settings, found: KnobSet, programs_seen: Sequence[str] = (), command: Sequence[str] = ()) -> str:
    """Return what the next attempts resume from, and how the script gets it. programs_seen: those that a rank was seen to run before."""
    way = found.resume[0].knob if found.resume else None
    patterns = ", ".join(settings.checkpoints.paths)
    seen = "" if way is None or way.seen or way.by in programs_seen else f", once a rank is seen to train with {programs.title(way.by)}"
    if patterns:
        option = "SUPERVISE_JOB_RESUME_FROM" if way is None else way.how
        return f"resumes from the newest verified {patterns}, passed by {option}{seen}"
    if settings.job.resumes_itself or (way is not None and way.counts == ResumeKind.ITSELF):
        with_ = "" if way is None else f" with {way.how}{seen}"
        return f"the script resumes itself{with_}"
    if way is not None:
        return f"resumes with {way.how}{seen}"
    if fixed := _fixed_checkpoint(settings, found, command):
        return f"the command names the checkpoint with which each attempt begins: {fixed[0]}"
    without = [
        f"; {programs.title(unavailable_knob.by)}: {unavailable_knob.why}"
        for unavailable_knob in found.unavailable
        if unavailable_knob.knob == RESUME
    ]
    return (
        "no checkpoint is declared (--checkpoints): the script resumes as it does by itself; if it is not seen"
        f" to load one, an attempt that ran longer than {settings.restart.scratch_limit_s:.0f} s is not restarted{''.join(without)}"
    )


def network_line(policy: Policy, overrides: tuple[tuple[str, str], ...] = ()) -> str:
    """Return what network.allow permits, "" where it permits nothing. A rung whose variable the user set has no answer.

    overrides: what a run that goes on has changed already.
    """
    rungs = [name for name in policy.network.allow if not _users_own(name, policy)]
    theirs = [name for name in policy.network.allow if name not in rungs]
    parts = [", ".join(rungs) and f"{', '.join(rungs)} may act", ", ".join(theirs) and f"{', '.join(theirs)} may not: you set its variable"]
    now = network.in_words(network.still_permitted(overrides, policy))
    parts.append(now and f"goes on with {now}")
    return f"network (network.allow): {'; '.join(filter(None, parts))}" if policy.network.allow else ""


def _users_own(name: str, policy: Policy) -> bool:
    """Whether the user set every variable that a rung for networks would set."""
    variables = network.SOCKETS if name == "interface" else network.TRANSPORTS[name][:1] if name in network.TRANSPORTS else ()
    return bool(variables) and set(variables) <= {variable for variable, _ in policy.variables}


def replica_line(replica: Replica) -> str:
    """Return that only whole replicas of the model are used, "" where each rank has its own."""
    if replica.unread:
        return f"how many ranks share a copy of the model is not known ({replica.unread}): --model-parallel N gives it"
    words = replicas.in_words(replica.size, replica.source)
    return f"{words}: if GPUs or nodes are lost, only whole replicas train on" if replica.size > 1 else ""


def handover_warning(settings: Settings, found: KnobSet, command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return a warning if nothing shows how the script gets a declared checkpoint, or if the command names one for all; else ""."""
    if fixed := _fixed_checkpoint(settings, found, command):
        path, flag = fixed
        step = step_names.step_in(path)
        at = "" if step is None else f" at step {step.step}"
        instead = f"--checkpoints {shlex.quote(_pattern(settings, path))} --resume-args '{flag or '--YOUR-FLAG'} {{resume}}'"
        return f"each attempt begins{at}, because the command names {path}: what was made since is made again. {instead} passes the newest"
    given = found.resume or any("{resume}" in word for word in command)
    if not settings.checkpoints.paths or settings.resumes_itself or given:
        return ""
    script = programs.locate(command, environ.get("PATH"))
    if script.kind == "file":
        with contextlib.suppress(OSError), Path(settings.cwd, script.target).open("rb") as file:
            if _READS_CHECKPOINT.search(file.read(MOST_BYTES)):
                return ""
    return (
        f"nothing shows that {script.target or 'the command'} takes a checkpoint: it gets one in SUPERVISE_JOB_RESUME_FROM alone, and a"
        " restart begins from scratch if it does not read that. Add --resume-args '--YOUR-FLAG {resume}' (args below [knobs.resume]), or"
        " --resumes-itself if the script finds its own checkpoint"
    )


def _fixed_checkpoint(settings: Settings, found: KnobSet, command: Sequence[str]) -> tuple[str, str] | None:
    """Return the checkpoint that the command names for each attempt, and the option before it; None where an attempt may get another one.

    It is one by its name: that of a step, with the suffix of a checkpoint, or a directory.
    """
    if found.resume or settings.resumes_itself or any("{resume}" in word for word in command):
        return None
    for before, word in itertools.pairwise(["", *command]):
        flag, _, value = word.partition("=") if word.startswith("-") else (before if before.startswith("-") else "", "", word)
        path = os.path.join(settings.cwd, value)  # noqa: PTH118  text
        named = step_names.step_in(path)
        is_save = bool(value) and ((named is not None and named.sure) or step_names.names_save(path))
        if is_save and (os.path.isdir(path) or (step_names.suffix_of(path) in _SUFFIXES and os.path.isfile(path))):  # noqa: PTH112, PTH113  text
            return value, flag
    return None


def _pattern(settings: Settings, path: str) -> str:
    """Return the pattern of later checkpoints of a location, as a person would write it."""
    pattern = pattern_of(checkpoint_path(os.path.normpath(os.path.join(settings.cwd, path))))  # noqa: PTH118  text
    return (os.path.relpath(pattern, settings.cwd) if is_within(settings.cwd or "/", pattern) else pattern).replace("[0-9]*", "*")


def document(settings: Settings, command: Sequence[str], cause: str | None) -> dict[str, Any]:
    """Return the plan of `command` as data; with `cause` also the answers to that cause. Raises SuperviseError."""
    programs.require_command(command, os.environ)
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
    return _data(settings, command, knob_set, policy, _cause(cause) if cause else None)


def _cause(name: str) -> Cause:
    if name in list(Cause):
        return Cause(name)
    meant = nearest(name, list(Cause))
    hint = f"The nearest is {meant}; `supervise plan -- CMD` lists all." if meant else "`supervise plan -- CMD` lists all."
    raise SuperviseError(f"no such cause: {name}", hint=hint, exit_code=ExitCode.USAGE)


def sequence(cause: Cause, policy: Policy, ranks: int, nodes: int = 1) -> tuple[_Step, ...]:
    """Return the answers to equal failures of `cause` without progress between them, up to the stop.

    Supposed is the node that the command implies: `ranks` on each of `nodes` (0: not known), with a GPU each, of which one after another
    fails where the cause is a GPU's; a failure well beyond the first step, with good checkpoints before it where any are declared.
    """
    proof = Evidence("plan", "supposed", "supposed", claim=Claim(cause, 1.0))
    verdict = Verdict(cause, 1.0, "supposed", "supposed", transient=cause in _TRANSIENT, because=(proof,))
    good = tuple(CheckpointRef(f"step-{step}.pt", step, "supposed") for step in _CHECKPOINTS) if policy.checkpoints_declared else ()
    gpus = tuple(Gpu(index, f"GPU-{index}", "") for index in range(ranks))
    situation = Situation(
        t=0.0, verdict=verdict, policy=policy, first=None, step=_STEP, before_first_step=False, failures=(), attempts=1,
        knobs=policy.knobs, world_size=ranks * (nodes or 1), ranks=ranks, gpus=gpus, verified=good, known_good=len(good),
        resume=good[-1] if good else None,
    )  # fmt: skip
    steps: list[_Step] = []
    while len(steps) < _MOST_FAILURES:
        if cause in _OF_A_GPU:  # another one each time: the one before is out of use
            situation = replace(situation, gpu=next((gpu.uuid for gpu in situation.gpus if not gpu.quarantined), ""))
        answer = strategies.propose(situation)
        steps.append(_Step(answer.strategy, answer.kind.value, answer.reason, answer.exit_code, answer.notes))
        if answer.kind is PlanKind.STOP:
            break
        situation = situation.again(answer)
        situation = replace(situation, t=situation.t + _HANGS_FOR_S * (cause in repetition.HANGS))
    return tuple(steps)


def _data(settings: Settings, command: Sequence[str], found: KnobSet, policy: Policy, cause: Cause | None) -> dict[str, Any]:
    script = programs.locate(command, os.environ.get("PATH"))
    shown = json.loads(loading.show(settings, as_json=True))
    data: dict[str, Any] = {
        "command": list(command),
        "script": script.target,
        "script_is_here": script.kind != "file" or (Path(settings.cwd) / script.target).exists(),
        "in_your_script": _of_script(script, Path(settings.cwd), command),
        "programs": [programs.title(name) for name in found.programs],
        "warnings": list(launchers.ignored_options(command, os.environ)),
        "replica": {
            "size": found.replica.size,
            "source": found.replica.source,
            "unread": found.replica.unread,
            "one_gpu_less": _one_gpu_less(policy, command),
        },
        "on_cuda_oom": opening_line(found, command, os.environ) or _unknown_batch(found),
        "enabled": [_enabled(knob) for knob in found.knobs],
        "not_enabled": _not_enabled(found, resumes=settings.resumes_itself),
        "recover": [
            {"cause": row.cause, "set": dict(sets), "origin": row.place}
            for row, (_, sets) in zip(settings.recover, policy.recover, strict=True)
        ],
        "signatures": _users_signatures(settings),
        "settings": {key: one for key, one in shown.items() if key in MATTER or (one["origin"] != "default" and not _OWN.match(key))},
        "ladders": {
            one.value: [
                {"strategy": name, "does": strategies.summary(name), "missing": _missing(name, policy)}
                for name in strategies.ladder(one, policy)
            ]
            for one in Cause
            if one is not Cause.NONE and cause in (None, one)
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


def _users_signatures(settings: Settings) -> list[dict[str, Any]]:
    """Return the signatures of the user's own, with those that cannot be used."""
    if not settings.classify.signatures:
        return []
    catalogue, problems = signatures.configured(settings)
    ours = str(signatures.PACKAGED)
    rows = [
        {"id": row.id, "cause": row.cause.value, "where": list(row.where), "origin": row.origin, "problem": ""}
        for row in catalogue.rows
        if not row.origin.startswith(ours)
    ]
    return rows + [{"id": problem.id, "cause": "", "where": [], "origin": problem.origin, "problem": problem.text} for problem in problems]


def _one_gpu_less(policy: Policy, command: Sequence[str]) -> str:
    """Return what follows when one GPU of this node fails and is no spare, "" where the command does not say its ranks."""
    ranks, nodes = torchrun.size(_torchrun(command, os.environ), os.environ)
    if not ranks:
        return ""
    answer = sequence(Cause.GPU_LOST, policy, ranks, nodes)[0]
    code = f" ({answer.exit_code})" if answer.exit_code else ""
    return f"{answer.kind}{code}: {answer.reason.removeprefix('GPU 0 (GPU-0) failed: ').replace('GPU 0 (GPU-0)', 'it')}"


def _unknown_batch(found: KnobSet) -> str:
    if not found.batch_change:
        return _NO_BATCH_CHANGE
    return f"on CUDA OOM: the batch stays as it is: neither of its knobs is known: {memory.batch_options(found.likely)} enables it"


def _enabled(knob: Knob) -> dict[str, Any]:
    entry = {"knob": knob.name, "how": knob.how, "value": knob.value, "counts": knob.counts, "by": programs.title(knob.by)}
    return entry | ({} if knob.seen else {"when": "once a rank is seen to train with it"})


def _not_enabled(found: KnobSet, *, resumes: bool) -> list[dict[str, str]]:
    """Return every knob that is missing, with the option that would enable it. resumes: the script resumes without one."""
    there = {knob.name for knob in found.knobs}
    rows = [
        {
            "knob": unavailable_knob.knob,
            "why": f"{programs.title(unavailable_knob.by)}: {unavailable_knob.why}",
            "remedy": unavailable_knob.remedy,
        }
        for unavailable_knob in found.unavailable
    ]
    there |= {unavailable_knob.knob for unavailable_knob in found.unavailable} | ({RESUME} if resumes else set())
    missing = [name for name in bindings.NAMES if name not in there]
    return rows + [{"knob": name, "why": "not declared", "remedy": _REMEDIES.get(name, option(name, found.likely))} for name in missing]


def _missing(name: str, policy: Policy) -> str:
    """Return the knobs or options that a rung needs and does not have, "" if it has all."""
    there = {knob.name for knob in policy.knobs}
    wants = ("batch_size",) if name == "halve_batch" and policy.restart.batch_drift else _WANTS.get(name, ())
    if name == "halve_batch" and not policy.batch_change:
        return "--set knobs.batch_change=true"
    if name == "step_back" and not policy.checkpoints_declared:
        return "--checkpoints"
    if name in network.OPTIONAL and name not in policy.network.allow:
        return network.enabling(name)
    missing = [want for want in wants if want not in there]
    if name in _ANY and len(missing) < len(wants):
        return ""
    return (" or " if name in _ANY else ", ").join(missing)


def _torchrun(command: Sequence[str], environ: Mapping[str, str]) -> torchrun.Torchrun | None:
    return torchrun.recognise(command, path=environ.get("PATH"))


def _supposed(policy: Policy, ranks: int, nodes: int) -> str:
    """Return in words what `sequence` assumes."""
    where = f"{ranks} ranks here, a GPU each" if ranks else "an unknown number of ranks and GPUs: the command does not say it"
    world = "" if nodes == 1 or not ranks else f", {nodes} nodes" if nodes else ", one node of an unknown number"
    made = f"checkpoints of steps {', '.join(map(str, _CHECKPOINTS))}" if policy.checkpoints_declared else "no checkpoint"
    return f"{where}{world}; step {_STEP}, {made}"
