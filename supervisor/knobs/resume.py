"""Finds how a script gets the checkpoint that it resumes from: as the user declares it, or as a recognised program takes it.

Nothing is found for a program unless the script's text, or the command, shows that it uses the option. If the command gives the option
already, the user decides. A declared way (--resume-args, --resume-switch, {resume} in the command, --resumes-itself) comes before every
program's.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from supervisor.core.model import RESUME, Knob, ResumeKind
from supervisor.core.values import Struct, replace
from supervisor.knobs import bindings, config_files
from supervisor.knobs.bindings import Flag
from supervisor.knobs.knob_set import NotEnabledError, ResumeWay, UnavailableKnob
from supervisor.knobs.program_knobs import in_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.config.settings import Settings
    from supervisor.knobs.program_knobs import Lookup
    from supervisor.knobs.programs import Program, RecognisedProgram, ResumeRow

_PLACEHOLDERS = ("{resume}", "{step}")
_OFF = frozenset({"0", "false", "no", "off"})


class ResumeWays(Struct, frozen=True):
    """The ways of a command, the preferred one first; `unavailable`: those of recognised programs that are not enabled, if no way is."""

    bound: tuple[ResumeWay, ...] = ()
    unavailable: tuple[UnavailableKnob, ...] = ()


def find(settings: Settings, recognised: Sequence[RecognisedProgram], lookup: Lookup) -> ResumeWays:
    """Return the ways of a command. A remedy of "" is that of every script: an option with its own flag."""
    declared = declared_way(settings)
    if declared is not None:
        return ResumeWays((declared,))
    if settings.job.resumes_itself:
        return ResumeWays()
    if settings.checkpoints.paths and any("{resume}" in word for word in (*lookup.head, *lookup.argv)):
        return ResumeWays((ResumeWay(Knob(RESUME, "", "{resume}", counts=ResumeKind.PATH)),))
    bound: list[ResumeWay] = []
    unavailable: list[UnavailableKnob] = []
    for recognised_program in recognised:
        if recognised_program.program.resume is None:
            continue
        try:
            way = _bind(recognised_program.program, recognised_program.program.resume, lookup)
            bound.append(replace(way, knob=replace(way.knob, seen=recognised_program.seen)))
        except (NotEnabledError, config_files.EditError, OSError) as error:
            remedy = error.remedy if isinstance(error, NotEnabledError) else ""
            unavailable.append(UnavailableKnob(RESUME, recognised_program.program.name, str(error), remedy))
    return ResumeWays(tuple(bound), () if bound else tuple(unavailable))


def declared_way(settings: Settings) -> ResumeWay | None:
    """Return the way of [knobs.resume]; None if nothing is declared."""
    knob = settings.knobs.resume
    if knob.kind is None:
        return None
    args = " ".join(words for words in (knob.args, knob.switch) if words)
    return ResumeWay(Knob(RESUME, "", args, counts=knob.kind), args)


def _bind(program: Program, row: ResumeRow, lookup: Lookup) -> ResumeWay:
    blocked = next((word for word in row.blocks if bindings.has_flag(lookup.argv, word)), None)
    if blocked is not None:
        raise NotEnabledError(f"with {blocked} it begins anew from the weights of a checkpoint", f"leave {blocked} out")
    if row.itself:
        return _by_itself(program, row, lookup)
    flag = Flag(row.flags)
    given = bindings.read(lookup.argv, flag)
    in_file = None if given is not None else in_config(lookup, program, flag)
    value = bindings.read(lookup.argv, Flag((row.value_of,))) if row.value_of else None
    if given is not None and value and given == value:
        return _way(program, f"{flag.names[0]} {given}", ResumeKind.ITSELF)
    if given is not None or in_file is not None:
        where = "the command" if given is not None else "a file that the command names"
        raise NotEnabledError(f"{flag.names[0]} is in {where}, which decides", "leave it out there")
    if (word := bindings.abbreviated(lookup.argv, flag)) is not None:
        raise NotEnabledError(f"{word} may be short for {flag.names[0]}", f"write {flag.names[0]} in full")
    _require_shown(program, row, lookup)
    if row.value_of and not value:
        raise NotEnabledError(f"the command has no {row.value_of}", f"write {row.value_of} VALUE in the command")
    if value and any(word in value for word in _PLACEHOLDERS):
        raise NotEnabledError(f"{row.value_of} {value} holds a placeholder of --resume-args")
    if "--" in lookup.argv:
        raise NotEnabledError("an option after `--` has no effect", "leave `--` out")
    args = row.args.replace("{value}", shlex.quote(value)) if value else row.args
    return replace(_way(program, args, ResumeKind.PATH if "{resume}" in args else ResumeKind.SWITCH), args=args, files=row.files)


def _require_shown(program: Program, row: ResumeRow, lookup: Lookup) -> None:
    """Raise NotEnabledError unless the text of the script, and its command, show that the program would use the appended words."""
    if program.file_alone and len(lookup.argv) == 1 and lookup.argv[0].endswith(tuple(bindings.FORMS)):
        raise NotEnabledError(
            f"beside another argument the script would not read {lookup.argv[0]}", f"write all of {lookup.argv[0]} as flags"
        )
    if row.subcommand and row.subcommand not in lookup.argv[:1]:
        raise NotEnabledError(f"the command does not begin with {row.subcommand}")
    missing = [sign for sign in row.shows if sign not in lookup.text.shows]
    if missing:
        raise NotEnabledError(f"the script's text does not show {' and '.join(missing)}")


def _by_itself(program: Program, row: ResumeRow, lookup: Lookup) -> ResumeWay:
    for name in row.itself:
        given = bindings.read(lookup.argv, Flag((name,)))
        in_file = None if given is not None else in_config(lookup, program, Flag((name,)))
        value = given if in_file is None else in_file[0]
        if value is not None and value.lower() not in _OFF:
            return _way(program, name, ResumeKind.ITSELF)
    why = f"{row.itself[0]} is not on, neither in the command nor in a file that it names"
    raise NotEnabledError(why, f"write {row.itself[0]} in the command")


def _way(program: Program, how: str, kind: ResumeKind) -> ResumeWay:
    return ResumeWay(Knob(RESUME, "", how, by=program.name, counts=kind))
