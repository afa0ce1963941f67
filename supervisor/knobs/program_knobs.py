"""The knobs that a recognised program's own flags enable, without a declaration.

A knob is enabled only if its value is sure: its flag is in the command or in a file that the command names, or its default is known.
It is unavailable if the script sets it itself, if its flag may be abbreviated, or if another flag changes its meaning. Batch size and
accumulation are enabled together or not at all: one without the other cannot keep the global batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.core.model import Knob
from supervisor.core.values import Struct, replace
from supervisor.knobs import bindings, config_files, declaration
from supervisor.knobs.bindings import DEEPSPEED_KEYS, DEEPSPEED_TOTAL, Env, FileKey, Flag
from supervisor.knobs.knob_set import BoundKnob, NotEnabledError, UnavailableKnob
from supervisor.knobs.script_analysis import ScriptText, read_script

if TYPE_CHECKING:
    from supervisor.knobs.programs import KnobRow, Program, RecognisedProgram

_TOGETHER = ("batch_size", "grad_accum")


class ProgramKnobs(Struct, frozen=True):
    """The enabled and the unavailable knobs of the recognised programs, and the programs' names."""

    bound: tuple[BoundKnob, ...]
    unavailable: tuple[UnavailableKnob, ...]
    programs: tuple[str, ...]


class Lookup(Struct, frozen=True):
    """The sources of a knob's value: the script's text, its arguments, those of its launcher, the environment, the working directory."""

    text: ScriptText
    argv: Sequence[str]
    head: Sequence[str]
    environ: Mapping[str, str]
    cwd: Path


def find(recognised: Sequence[RecognisedProgram], lookup: Lookup, taken: frozenset[str]) -> ProgramKnobs:
    """Return the programs' knobs, beside those in `taken`, which the user declared."""
    bound: dict[str, BoundKnob] = {}
    unavailable: dict[str, UnavailableKnob] = {}
    for recognised_program in recognised:
        for name, row in _rows(recognised_program.program).items():
            if name in taken or name in bound or name in unavailable:
                continue
            try:
                bound[name] = _seen(_bind(lookup, recognised_program.program, name, row), seen=recognised_program.seen)
            except (NotEnabledError, config_files.EditError, OSError) as error:
                remedy = error.remedy if isinstance(error, NotEnabledError) else ""
                unavailable[name] = UnavailableKnob(
                    name, recognised_program.program.name, str(error), remedy or f"--knob {name}:VALUE=--FLAG"
                )
    _keep_together(bound, unavailable, taken)
    return ProgramKnobs(
        tuple(bound.values()), tuple(unavailable.values()), tuple(recognised_program.program.name for recognised_program in recognised)
    )


def _seen(bound: BoundKnob, *, seen: bool) -> BoundKnob:
    return replace(bound, knob=replace(bound.knob, seen=seen))


def _rows(program: Program) -> dict[str, KnobRow | None]:
    """Return the program's knobs; of one that goes by DeepSpeed's file alone there is no row."""
    return dict(program.knobs) if program.knobs else dict.fromkeys(DEEPSPEED_KEYS)


def _keep_together(bound: dict[str, BoundKnob], unavailable: dict[str, UnavailableKnob], taken: frozenset[str]) -> None:
    for name, other in (_TOGETHER, _TOGETHER[::-1]):
        if name in bound and other not in bound and other not in taken:
            lone = bound.pop(name)
            unavailable.setdefault(other, UnavailableKnob(other, lone.knob.by, "its place is not known", f"--knob {other}=--FLAG"))
            unavailable[name] = UnavailableKnob(
                name, lone.knob.by, f"{other} is not enabled, and without it the global batch cannot be kept", ""
            )


def _bind(lookup: Lookup, program: Program, name: str, row: KnobRow | None) -> BoundKnob:
    words = (*lookup.head, *lookup.argv)
    blocked = next((word for word in program.blocks if bindings.has_flag(words, word) or word in lookup.text.sets), None)
    if blocked is not None:
        raise NotEnabledError(f"{blocked} gives its numbers another meaning")
    of_file = _deepspeed(lookup, program, name)
    if row is None:
        if of_file is None:
            flag = program.deepspeed[0] if program.deepspeed else ""
            raise NotEnabledError(
                f"the command has no {flag}, or its file leaves {DEEPSPEED_KEYS[name]} open", f"--knob {name}=deepspeed:FILE"
            )
        return of_file
    unused = next((needed for needed in row.needs if needed not in lookup.text.used), None)
    if unused is not None and lookup.text.used:
        raise NotEnabledError(f"the script does not use {unused}")
    by_flag = _by_env(lookup, program, name, row) if row.env else _by_flag(lookup, program, name, row)
    if of_file is None:
        return by_flag
    if of_file.knob.value != by_flag.knob.value:
        raise NotEnabledError(f"{by_flag.knob.how} is {by_flag.knob.value} and {of_file.knob.how} is {of_file.knob.value}")
    return replace(by_flag, places=(*by_flag.places, *of_file.places), texts={**by_flag.texts, **of_file.texts})


def _by_env(lookup: Lookup, program: Program, name: str, row: KnobRow) -> BoundKnob:
    value = lookup.environ.get(row.env) or _default(lookup, row, row.keyword)
    if not value or not declaration.is_value(name, value):
        raise NotEnabledError(f"what the script gives is not known, and ${row.env} is not set", f"--knob {name}=--FLAG")
    return _bound(program, name, row, value, Env(row.env))


def _by_flag(lookup: Lookup, program: Program, name: str, row: KnobRow) -> BoundKnob:
    leaf = _leaf(row)
    # a script's constants are its defaults, and of a data module the loader that a rank trains with has the last word
    if leaf in lookup.text.sets and row.default not in ("script", "datamodule"):
        raise NotEnabledError(f"the script sets {leaf} itself, in line {lookup.text.sets[leaf]}")
    if program.file_alone and len(lookup.argv) == 1 and lookup.argv[0].endswith(tuple(bindings.FORMS)):
        return _by_file_alone(lookup, program, name, row)
    value, flag = _given(lookup, program, row)
    if value is None:
        for names in row.spellings:
            if (word := bindings.abbreviated(lookup.argv, Flag(names))) is not None:
                raise NotEnabledError(f"{word} may be short for {names[0]}", f"write {names[0]} in full")
        value = _default(lookup, row, leaf)
    if not value:
        raise NotEnabledError(
            f"the command has no {flag.names[0]}, and its default is not known", f"write {flag.names[0]} VALUE in the command"
        )
    if row.counts == "derived" and value.startswith("-"):
        raise NotEnabledError(f"{flag.names[0]} {value} follows the micro-batch", f"write {flag.names[0]} VALUE in the command")
    if not declaration.is_value(name, value):
        raise NotEnabledError(f"{flag.names[0]} {value} is {declaration.expected(name, only_value=True)}")
    return _bound(program, name, row, value, flag)


def _by_file_alone(lookup: Lookup, program: Program, name: str, row: KnobRow) -> BoundKnob:
    """Return a knob whose place is in the command's only argument, a file with the whole configuration."""
    place = FileKey(bindings.Word(lookup.argv[0]), _leaf(row))
    named = config_files.file_text(lookup.argv, place, lookup.cwd)
    value = (None if named is None else _value(named, place.key)) or _default(lookup, row, place.key)
    if named is None or not value or not declaration.is_value(name, value):
        raise NotEnabledError(f"{lookup.argv[0]} holds no number for it", f"write {place.key} into {lookup.argv[0]}")
    config_files.require_writable(*named, place.key, value)
    knob = Knob(name, value, bindings.describe(place, value), by=program.name, counts=row.counts)
    return BoundKnob(knob, (place,), texts=dict([named]))


def _bound(program: Program, name: str, row: KnobRow, value: str, place: Flag | Env) -> BoundKnob:
    is_derived = row.counts == "derived"
    how = bindings.describe(place, value) + (f" {value}" if is_derived else "")
    knob = Knob(name, declaration.canonical(name, value), how, by=program.name, counts=row.counts)
    return BoundKnob(knob, () if is_derived else (place,))


def _leaf(row: KnobRow) -> str:
    return row.spellings[0][0].lstrip("-").rpartition(".")[2].replace("-", "_")


def _given(lookup: Lookup, program: Program, row: KnobRow) -> tuple[str | None, Flag]:
    """Return the value and the flag that the command, or a file that it names, gives; None and the flag that would be written."""
    flags = [Flag(names, joined=row.joined) for names in row.spellings]
    on_line = [(value, flag) for flag in flags if (value := bindings.read(lookup.argv, flag)) is not None]
    in_file = [hit for flag in flags if (hit := in_config(lookup, program, flag)) is not None]
    if row.default == "script" and not on_line:
        return _in_python(lookup, flags[0])
    if len({flag.names for _, flag in on_line + in_file}) > 1:
        raise NotEnabledError(" and ".join(flag.names[0] for _, flag in on_line + in_file) + " are both given")
    if on_line and in_file:
        raise NotEnabledError(f"{on_line[0][1].names[0]} is in the command and in a file that it names", "leave it out of the file")
    return next(iter(on_line + in_file), (None, flags[0]))


def in_config(lookup: Lookup, program: Program, flag: Flag) -> tuple[str, Flag] | None:
    """Return what the file that the command names (--config) gives: it is overridden by the flag, after it on the command line."""
    for config in program.configs:
        place = FileKey(Flag((config,)), flag.names[0].lstrip("-"))
        named = config_files.file_text(lookup.argv, place, lookup.cwd)
        value = None if named is None else _value(named, place.key)
        if value is not None:
            return value, replace(flag, joined=True)
    return None


def _value(named: tuple[str, str], key: str) -> str | None:
    """Return the value at the key, None if the key runs through something that is not a map."""
    parts = key.split(".")
    for depth in range(1, len(parts)):
        try:
            config_files.key_in(*named, ".".join(parts[:depth]))
        except config_files.EditError:
            continue  # a map, as it should be
        return None
    return config_files.key_in(*named, key)


def _in_python(lookup: Lookup, flag: Flag) -> tuple[str | None, Flag]:
    """nanoGPT: the script's own constants, and those of the Python files among its arguments, the last of which counts."""
    name = flag.names[0].lstrip("-")
    value = lookup.text.constants.get(name)
    for word in lookup.argv:
        if "=" not in word and word.endswith(".py"):
            constants = read_script(lookup.cwd / word).constants
            value = constants.get(name, value)
    return None if value is None else str(value), flag


def _default(lookup: Lookup, row: KnobRow, name: str) -> str | None:
    if row.default == "datamodule":
        number = lookup.text.datamodule.get(name)
        return None if number is None else str(number)
    if row.default == "keyword":
        given = lookup.text.keywords.get(name)
        return str(given) if given is not None else None if name in lookup.text.keywords else "1"
    return row.default if row.default.isdecimal() else None


def _deepspeed(lookup: Lookup, program: Program, name: str) -> BoundKnob | None:
    """Return the knob in DeepSpeed's file, where the command names one and it holds a number ("auto" is left to the Trainer's flags)."""
    if name not in DEEPSPEED_KEYS:
        return None
    for flag in program.deepspeed:
        place = FileKey(Flag((flag,)), DEEPSPEED_KEYS[name], deepspeed=True)
        named = config_files.file_text(lookup.argv, place, lookup.cwd)
        if named is None:
            continue
        value = config_files.key_in(*named, place.key)
        counts = "gpu" if name == "batch_size" else "rank"
        if value is None and name == "grad_accum" and (config_files.key_in(*named, DEEPSPEED_TOTAL) or "").isdecimal():
            total = FileKey(place.file, DEEPSPEED_TOTAL, deepspeed=True)
            asked = config_files.key_in(*named, DEEPSPEED_TOTAL) or ""
            return BoundKnob(Knob(name, asked, bindings.describe(total, ""), by=program.name, counts="derived"), ())
        if value is not None and declaration.is_value(name, value):
            return BoundKnob(
                Knob(name, value, bindings.describe(place, value), by=program.name, counts=counts), (place,), texts=dict([named])
            )
        if value is not None and value != "auto":
            raise NotEnabledError(f"{bindings.describe(place, value)} is {value}, {declaration.expected(name, only_value=True)}")
    return None
