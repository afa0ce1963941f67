"""The lines that open a run, and the options that its end recommends: the enabled knobs of its command, and the checkpoint for a restart.

Each names the script's own flags where its command or its parser shows them (knobs/likely.py).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from checkpointing import step_names
from checkpointing.formats import TORCH_SUFFIXES
from supervisor.classify.source.script import MOST_BYTES
from supervisor.core.attempt.programs import DECLARED
from supervisor.core.model import RESUME, Cause, ResumeKind
from supervisor.core.nodes import replicas
from supervisor.core.units import span_text
from supervisor.core.values import replace
from supervisor.knobs import batch, programs, torchrun
from supervisor.knobs.bindings import option
from supervisor.observe.ranks.path_patterns import checkpoint_path, is_within, pattern_of
from supervisor.strategies import network
from supervisor.strategies.situation import BATCH_KNOBS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisor.config.settings import Settings
    from supervisor.core.model import CheckpointRef, Policy
    from supervisor.core.nodes.replicas import Replica
    from supervisor.core.state import JobState
    from supervisor.knobs.knob_set import KnobSet

_SUFFIXES = (*TORCH_SUFFIXES, ".safetensors", ".bin", ".npz", ".tar")
#: The sign in a script that takes its checkpoint from supervise: the variable, `checkpointing.load_latest` or `worker.resume_from`.
_READS_CHECKPOINT = re.compile(rb"SUPERVISE_JOB_RESUME_FROM|\bload_latest\b|\bresume_from\b")
_NOTHING = "nothing can be changed, because"
_BATCH_WORDS = {"batch_size": "batch size", "grad_accum": "gradient accumulation"}


def opening_lines(
    knob_set: KnobSet,
    command: Sequence[str],
    environ: Mapping[str, str],
    overrides: Sequence[tuple[str, str]] = (),
) -> list[str]:
    """Return what a run that continues has changed, and what happens to the batch on CUDA OOM: a line each, or none.

    overrides: the changes so far, by knob or env:NAME.
    """
    now = dict(overrides)
    new = [(knob, now[knob.name]) for knob in knob_set.knobs if now.get(knob.name, knob.value) != knob.value]
    changed = ", ".join(f"{knob.how} {value}" for knob, value in new)
    goes_on = f"continues with {changed} (you wrote {', '.join(knob.value or 'nothing' for knob, _ in new)})" if new else ""
    is_known = any(knob.name in BATCH_KNOBS for knob in knob_set.knobs)
    on_oom = f"on CUDA OOM: {oom_text(knob_set, command, environ, overrides=overrides)}" if is_known else ""
    return [line for line in (goes_on, on_oom) if line]


def oom_text(knob_set: KnobSet, command: Sequence[str], environ: Mapping[str, str], *, overrides: Sequence[tuple[str, str]] = ()) -> str:
    """Return what happens to the batch of `command` on CUDA OOM, or why nothing does. overrides: as in `opening_lines`."""
    now = dict(overrides)
    known = {knob.name: replace(knob, value=now.get(knob.name, knob.value)) for knob in knob_set.knobs}
    size, accum = known.get("batch_size"), known.get("grad_accum")
    if not knob_set.batch_change:
        return f"{_NOTHING} --no-batch-change forbids it"
    if size is not None and accum is None and knob_set.batch_drift:
        half = batch.halved_alone(size, 0)
        changed = f"stays as it is: {half}" if isinstance(half, str) else f"{size.value}→{half}, and the global batch with it"
        return f"{size.how} {changed}; --allow-batch-drift permits it"
    if size is None or accum is None:
        lack = [name for name, knob in (("batch_size", size), ("grad_accum", accum)) if knob is None]
        unknown = " and ".join(_BATCH_WORDS[name] for name in lack)
        enabling = " ".join(option(name, knob_set.likely) for name in lack)
        alone = f"; --allow-batch-drift halves {size.how} alone, and the global batch with it" if size is not None else ""
        return f"{_NOTHING} supervise does not know how the script gets its {unknown}: add {enabling}{alone}"
    by = ", ".join(dict.fromkeys(programs.title(knob.by) for knob in (size, accum) if knob.by != DECLARED))
    rest = f"{f' ({by})' if by else ''}; --no-batch-change forbids it"
    per_node, nodes = torchrun.size(torchrun.recognise(command, path=environ.get("PATH")), environ)
    divided = per_node * nodes // knob_set.replica.size
    if not divided and (size.counts == "global" or accum.counts == "world"):
        how = size.how if size.counts == "global" else accum.how
        return f"the micro-batch shrinks at the same global batch, if {how} divides by the ranks, not known yet{rest}"
    # where both count for each rank, one number is for all: a smaller micro-batch keeps the product whatever the number of ranks is
    old = batch.read(size, accum, divided or 1)
    new_batch = batch.smaller(old) if isinstance(old, batch.Batch) else old
    if isinstance(new_batch, str):
        return f"{_NOTHING} {new_batch}"
    changes = ", ".join(f"{change.how} {change.old}→{change.new}" for change in batch.changes(new_batch, size, accum))
    return f"{changes}{rest}"


def resume_line(settings: Settings, knob_set: KnobSet, programs_seen: Sequence[str] = (), command: Sequence[str] = ()) -> str:
    """Return what the next attempts resume from, and how the script gets it. programs_seen: those that a rank was seen to run before."""
    way = knob_set.resume[0].knob if knob_set.resume else None
    patterns = ", ".join(settings.checkpoints.paths)
    seen = "" if way is None or way.seen or way.by in programs_seen else f", once a rank is seen to train with {programs.title(way.by)}"
    if settings.job.resumes_itself or (way is not None and way.counts == ResumeKind.ITSELF):
        from_ = f" from {patterns}" if patterns else ""
        with_ = "" if way is None else f" with {way.how}{seen}"
        return f"the script resumes itself{from_}{with_}"
    if patterns:
        option = "SUPERVISE_JOB_RESUME_FROM" if way is None else way.how
        return f"resumes from the newest verified {patterns}, passed by {option}{seen}"
    if way is not None:
        return f"resumes with {way.how}{seen}"
    if fixed := _fixed_checkpoint(settings, knob_set, command):
        return f"the command names the checkpoint with which each attempt begins: {fixed[0]}"
    without = [
        f"; {programs.title(unavailable_knob.by)}: {unavailable_knob.why}"
        for unavailable_knob in knob_set.unavailable
        if unavailable_knob.knob == RESUME
    ]
    flag = dict(knob_set.likely).get(RESUME, "")
    passing = f"; --checkpoints PATTERN {flag} would pass it the newest" if flag.startswith("--resume-args") else ""
    return (
        "no --checkpoints given: after a crash the script starts again as it is; after "
        f"{span_text(settings.restart.scratch_limit_s)} of training it is not restarted unless it is seen to load its own checkpoint"
        " (--resumes-itself says that it does)"
        f"{passing}{''.join(without)}"
    )


def network_line(policy: Policy, overrides: tuple[tuple[str, str], ...] = ()) -> str:
    """Return what network.allow permits, "" where it permits nothing. A step whose variable the user set has no answer.

    overrides: what a run that continues has changed already.
    """
    ladder_steps = [name for name in policy.network.allow if not _users_own(name, policy)]
    theirs = [name for name in policy.network.allow if name not in ladder_steps]
    parts = [
        ", ".join(ladder_steps) and f"{', '.join(ladder_steps)} may act",
        ", ".join(theirs) and f"{', '.join(theirs)} may not: you set its variable",
    ]
    now = network.in_words(network.still_permitted(overrides, policy))
    parts.append(now and f"continues with {now}")
    return f"network (network.allow): {'; '.join(filter(None, parts))}" if policy.network.allow else ""


def _users_own(name: str, policy: Policy) -> bool:
    """Whether the user set every variable that a step for networks would set."""
    variables = network.SOCKETS if name == "interface" else (network.TRANSPORTS[name].variable,) if name in network.TRANSPORTS else ()
    return bool(variables) and set(variables) <= {variable for variable, _ in policy.variables}


def replica_line(replica: Replica) -> str:
    """Return that only whole replicas of the model are used, "" where each rank has its own."""
    if replica.unread:
        return f"how many ranks share a copy of the model is not known ({replica.unread}): --model-parallel N gives it"
    words = replicas.in_words(replica.size, replica.source)
    return f"{words}: if GPUs or nodes are lost, only whole replicas train on" if replica.size > 1 else ""


def handover_warning(settings: Settings, knob_set: KnobSet, command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return a warning if nothing shows how the script gets a declared checkpoint, or if the command names one for all; else ""."""
    if fixed := _fixed_checkpoint(settings, knob_set, command):
        path, flag = fixed
        step = step_names.step_in(path)
        at = "" if step is None else f" at step {step.step}"
        handover = f"--resume-args '{flag} {{resume}}'" if flag else option(RESUME, knob_set.likely)
        instead = f"--checkpoints {shlex.quote(_pattern(settings, path))} {handover}"
        return f"each attempt begins{at}, because the command names {path}: later steps are made again. {instead} passes the newest"
    given = knob_set.resume or any("{resume}" in word for word in command)
    if not settings.checkpoints.paths or settings.resumes_itself or given:
        return ""
    script = programs.locate(command, environ.get("PATH"))
    if script.kind == "file":
        with contextlib.suppress(OSError), Path(settings.cwd, script.target).open("rb") as file:
            if _READS_CHECKPOINT.search(file.read(MOST_BYTES)):
                return ""
    return (
        f"nothing shows that {script.target or 'the command'} takes a checkpoint: it gets one in SUPERVISE_JOB_RESUME_FROM alone, and a"
        f" restart begins from scratch if it does not read that. Add {option(RESUME, knob_set.likely)}, or --resumes-itself if the script"
        " finds its own checkpoint"
    )


def _fixed_checkpoint(settings: Settings, knob_set: KnobSet, command: Sequence[str]) -> tuple[str, str] | None:
    """Return the checkpoint that the command names for each attempt, and the option before it; None where an attempt may get another one.

    It is one by its name: that of a step, with the suffix of a checkpoint, or a directory.
    """
    if knob_set.resume or settings.resumes_itself or any("{resume}" in word for word in command):
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
    return _shown_pattern(settings, pattern_of(checkpoint_path(os.path.normpath(os.path.join(settings.cwd, path)))))  # noqa: PTH118  text


def _shown_pattern(settings: Settings, pattern: str) -> str:
    return (os.path.relpath(pattern, settings.cwd) if is_within(settings.cwd or "/", pattern) else pattern).replace("[0-9]*", "*")


def next_time(  # noqa: PLR0913  what a run showed
    settings: Settings,
    knob_set: KnobSet,
    command: Sequence[str],
    state: JobState,
    newest: CheckpointRef | None,
    *,
    saved: Sequence[str] = (),
) -> str:
    """Return the options that this run showed and that it was not given, as they stand on a command line; "" for none.

    newest: the newest verified checkpoint. saved: the patterns to which it was seen to save; where no attempt loaded from there, only a
    flag of the script shows that these are checkpoints. A program that resumes by an option of its own needs none of supervise's.
    """
    options: list[str] = []
    likely, way = dict(knob_set.likely), knob_set.resume[0].knob if knob_set.resume else None
    learned = saved[0] if len(saved) == 1 and RESUME in likely else ""
    pattern = _pattern(settings, newest.path) if newest is not None else _shown_pattern(settings, learned) if learned else ""
    if pattern and not settings.checkpoints.paths and (way is None or way.by == DECLARED):
        options.append(f"--checkpoints {shlex.quote(pattern)}")
    if pattern and way is None and not settings.resumes_itself and not any("{resume}" in word for word in command):
        options.append("--resumes-itself" if state.attempt.loaded is not None else likely.get(RESUME, ""))
    if any(failure.cause is Cause.CUDA_OOM for failure in state.run.failures) and {"batch_size", "grad_accum"} <= likely.keys():
        options += [likely["batch_size"], likely["grad_accum"]]
    return " ".join(filter(None, options))
