"""Finds how a script gets the checkpoint that it resumes from: as the user declares it, or as a recognised program takes it.

Nothing is found for a program unless the script's text shows that it uses the option. Where the command gives the option already, the
user decides. A declared way (--resume-args, --resume-switch, {resume} in the command, --resumes-itself) comes before every program's.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from supervisor.core.model import Knob
from supervisor.knobs import bindings, config_files
from supervisor.knobs.bindings import RESUME, Flag
from supervisor.knobs.knob_set import BoundResume, UnavailableKnob
from supervisor.knobs.program_knobs import in_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.config.settings import Settings
    from supervisor.knobs.program_knobs import Lookup
    from supervisor.knobs.programs import Program, RecognisedProgram, ResumeRow

#: What a script gets: the checkpoint's path; a switch, with which it finds the checkpoint; nothing, because it finds it by itself.
PATH, SWITCH, ITSELF = "path", "switch", "itself"
_OFF = frozenset({"0", "false", "no", "off"})
_YOURS = "--resume-args '--YOUR-FLAG {resume}'"


@dataclass(frozen=True, slots=True)
class ResumeWays:
    """What was found, the first of `bound` before the others. unavailable: of recognised programs, each with the reason."""

    bound: tuple[BoundResume, ...] = ()
    unavailable: tuple[UnavailableKnob, ...] = ()


class _NoWayError(Exception):
    """Why a program gets nothing; `remedy` is the option that would change that."""

    def __init__(self, why: str, remedy: str = _YOURS) -> None:
        super().__init__(why)
        self.remedy = remedy


def find(settings: Settings, recognised: Sequence[RecognisedProgram], lookup: Lookup) -> ResumeWays:
    """Return the ways of a command."""
    declared = declared_way(settings)
    if declared is not None:
        return ResumeWays((declared,))
    if settings.job.resumes_itself or (settings.checkpoints.paths and any("{resume}" in word for word in lookup.argv)):
        return ResumeWays()
    bound: list[BoundResume] = []
    unavailable: list[UnavailableKnob] = []
    for one in recognised:
        if one.program.resume is None:
            continue
        try:
            way = _bind(one.program, one.program.resume, lookup)
            bound.append(replace(way, knob=replace(way.knob, seen=one.seen)))
        except (_NoWayError, config_files.EditError, OSError) as error:
            remedy = error.remedy if isinstance(error, _NoWayError) else _YOURS
            unavailable.append(UnavailableKnob(RESUME, one.program.name, str(error), remedy))
    return ResumeWays(tuple(bound), () if bound else tuple(unavailable))


def declared_way(settings: Settings) -> BoundResume | None:
    """Return the way of [knobs.resume]; None if nothing is declared."""
    knob = settings.knobs.resume
    if not knob.hands_over:
        return None
    args = " ".join(part for part in (knob.args, knob.switch, f"{shlex.quote(knob.flag)} {{resume}}" if knob.flag else "") if part)
    how = " ".join(part for part in (args, f"${knob.env}" if knob.env else "") if part)
    return BoundResume(Knob(RESUME, "", how, counts=knob.hands_over), args, knob.env)


def _bind(program: Program, row: ResumeRow, lookup: Lookup) -> BoundResume:
    if row.itself:
        return _by_itself(program, row, lookup)
    flag = Flag(row.flags)
    given = bindings.read(lookup.argv, flag)
    in_file = None if given is not None else in_config(lookup, program, flag)
    value = bindings.read(lookup.argv, Flag((row.value_of,))) if row.value_of else None
    if given is not None and value and given == value:
        return _way(program, f"{flag.names[0]} {given}", ITSELF)
    if given is not None or in_file is not None:
        where = "the command" if given is not None else "a file that the command names"
        raise _NoWayError(f"{flag.names[0]} stands in {where}, which decides", "leave it out there")
    if (word := bindings.abbreviated(lookup.argv, flag)) is not None:
        raise _NoWayError(f"{word} may be short for {flag.names[0]}", f"write {flag.names[0]} in full")
    _require_shown(program, row, lookup)
    if row.value_of and not value:
        raise _NoWayError(f"the command has no {row.value_of}", f"write {row.value_of} VALUE in the command")
    args = row.args.replace("{value}", shlex.quote(value)) if value else row.args
    return replace(_way(program, args, PATH if "{resume}" in args else SWITCH), args=args, files=row.files)


def _require_shown(program: Program, row: ResumeRow, lookup: Lookup) -> None:
    """Raise _NoWayError unless the text of the script, and its command, show that the program would use what is appended."""
    if program.file_alone and len(lookup.argv) == 1 and lookup.argv[0].endswith(tuple(bindings.FORMS)):
        raise _NoWayError(f"beside another argument the script would not read {lookup.argv[0]}", f"write all of {lookup.argv[0]} as flags")
    if row.subcommand and row.subcommand not in lookup.argv[:1]:
        raise _NoWayError(f"the command does not begin with {row.subcommand}")
    missing = [one for one in row.shows if one not in lookup.text.shows]
    if missing:
        raise _NoWayError(f"the script's text does not show {' and '.join(missing)}")


def _by_itself(program: Program, row: ResumeRow, lookup: Lookup) -> BoundResume:
    for name in row.itself:
        given = bindings.read(lookup.argv, Flag((name,)))
        in_file = None if given is not None else in_config(lookup, program, Flag((name,)))
        value = given if in_file is None else in_file[0]
        if value is not None and value.lower() not in _OFF:
            return _way(program, name, ITSELF)
    why = f"{row.itself[0]} is not on, neither in the command nor in a file that it names"
    raise _NoWayError(why, f"write {row.itself[0]} in the command")


def _way(program: Program, how: str, hands_over: str) -> BoundResume:
    return BoundResume(Knob(RESUME, "", how, by=program.name, counts=hands_over))
