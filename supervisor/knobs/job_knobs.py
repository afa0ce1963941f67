"""Finds what may be changed in a job's command: the knobs that the user declared, and those of the program that it runs.

declaration.py parses one declaration, declared_knobs.py finds the declared knobs' values, program_knobs.py the knobs of a recognised
program, row_flags.py the flags that the user's rows name, model_parallel.py how many ranks share a copy of the model, resume.py how the
script gets its checkpoint, likely.py the options that would enable missing ones. knob_set.py holds the result and sets values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.model import RESUME
from supervisor.core.values import replace
from supervisor.knobs import bindings, conflicts, declared_knobs, likely, model_parallel, program_knobs, programs, resume, row_flags
from supervisor.knobs.knob_set import KnobSet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from supervisor.config.settings import Settings
    from supervisor.knobs.knob_set import BoundKnob


def find(settings: Settings, command: Sequence[str], environ: Mapping[str, str], cwd: Path) -> KnobSet:
    """Return the knobs of `command`. Raises SuperviseError for an impossible declaration, and for ranks in no whole replicas."""
    script = programs.locate(command, environ.get("PATH"))
    argv = tuple(command[script.at :])
    declared = declared_knobs.find(settings, argv, environ, cwd)
    text = programs.text_of(script, cwd)
    lookup = program_knobs.Lookup(text, argv, command[: script.at], environ, cwd)
    recognised = programs.recognise(script, text, settings.knobs.program)
    replica = model_parallel.find(settings, programs.layout_programs(recognised, text, settings.knobs.program), lookup)
    model_parallel.require_whole(replica, lookup, command)
    own_knobs = program_knobs.find(recognised, lookup, frozenset(declared))
    ways = resume.find(settings, recognised, lookup)
    bound = (*declared.values(), *own_knobs.bound)
    bound = (*bound, *row_flags.find(settings.recover, lookup, script, bound, ways.bound))
    exit_code = settings.origin("knobs.declared").exit_code
    conflicts.require_apart(bound, argv, cwd, exit_code)
    conflicts.require_whole_deepspeed(bound, argv, cwd, exit_code)
    has_way = bool(ways.bound) or settings.job.resumes_itself
    suggested = likely.options(argv, text, {entry.knob.name for entry in bound} | ({RESUME} if has_way else set()))
    conflicts.require_size_of_plan(bound, suggested, exit_code)
    knob_set = KnobSet(
        tuple(sorted(bound, key=_place_in_order)),
        (
            *own_knobs.unavailable,
            *(replace(missing, remedy=missing.remedy or bindings.option(RESUME, suggested)) for missing in ways.unavailable),
        ),
        own_knobs.programs,
        script.at,
        cwd,
        environ,
        settings.knobs.batch_change,
        settings.restart.batch_drift,
        ways.bound,
        suggested,
        replica,
    )
    knob_set.require_shares(exit_code)
    return knob_set


def _place_in_order(bound: BoundKnob) -> int:
    """Return a knob's place among the job's: the flags of the user's rows, which have no knob's name, after all others."""
    name = bound.knob.name
    return bindings.NAMES.index(name) if name in bindings.NAMES else len(bindings.NAMES)
