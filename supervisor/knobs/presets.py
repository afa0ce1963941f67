"""What a well-known program's own flags arm, without a word of the user's.

In: the programs that were recognised, the script's text, its arguments, the environment. Out: knobs with their values, and for each
that stays unarmed the reason and the line that would arm it. Nothing can fail: what is not certain is not armed. Owns nothing.

Certain is a knob whose flag stands in the command, or in a file that the command names, or whose default is known; not one that
the script sets itself, that may be abbreviated, or that another flag gives another meaning. Batch size and accumulation are armed
together or not at all: one without the other cannot keep the global batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.core.model import Knob
from supervisor.knobs import config_files, declaration, job_knobs, syntax
from supervisor.knobs.job_knobs import Bound, Unarmed
from supervisor.knobs.script_analysis import ScriptText, read_script
from supervisor.knobs.syntax import DEEPSPEED_KEYS, DEEPSPEED_TOTAL, Env, FileKey, Flag

if TYPE_CHECKING:
    from supervisor.knobs.programs import KnobRow, Program, Recognised

_TOGETHER = ("batch_size", "grad_accum")


@dataclass(frozen=True, slots=True)
class Found:
    """The knobs that are armed, those that are not, and the names of the programs."""

    bound: tuple[Bound, ...]
    unarmed: tuple[Unarmed, ...]
    programs: tuple[str, ...]


class _NotArmedError(Exception):
    """Why a knob is not armed; `remedy` is the line that would arm it."""

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Ground:
    """What every knob is looked for in: the script's text, its arguments, those of its launcher, the environment, the working directory."""

    text: ScriptText
    argv: Sequence[str]
    head: Sequence[str]
    environ: Mapping[str, str]
    cwd: Path


def find(recognised: Sequence[Recognised], ground: Ground, taken: frozenset[str]) -> Found:
    """Return what the programs arm, beside the knobs in `taken`, which the user declared."""
    bound: dict[str, Bound] = {}
    unarmed: dict[str, Unarmed] = {}
    for one in recognised:
        for name, row in _rows(one.program).items():
            if name in taken or name in bound or name in unarmed:
                continue
            try:
                bound[name] = _seen(_bind(ground, one.program, name, row), seen=one.seen)
            except (_NotArmedError, config_files.EditError, OSError) as error:
                remedy = error.remedy if isinstance(error, _NotArmedError) else ""
                unarmed[name] = Unarmed(name, one.program.name, str(error), remedy or f"--knob {name}:VALUE=--FLAG")
    _keep_together(bound, unarmed, taken)
    return Found(tuple(bound.values()), tuple(unarmed.values()), tuple(one.program.name for one in recognised))


def _seen(bound: Bound, *, seen: bool) -> Bound:
    return replace(bound, knob=replace(bound.knob, seen=seen))


def _rows(program: Program) -> dict[str, KnobRow | None]:
    """Return the program's knobs; of one that goes by DeepSpeed's file alone there is no row."""
    return dict(program.knobs) if program.knobs else dict.fromkeys(DEEPSPEED_KEYS)


def _keep_together(bound: dict[str, Bound], unarmed: dict[str, Unarmed], taken: frozenset[str]) -> None:
    for name, other in (_TOGETHER, _TOGETHER[::-1]):
        if name in bound and other not in bound and other not in taken:
            lone = bound.pop(name)
            unarmed.setdefault(other, Unarmed(other, lone.knob.by, "its place is not known", f"--knob {other}=--FLAG"))
            unarmed[name] = Unarmed(name, lone.knob.by, f"{other} is not armed, and without it the global batch cannot be kept", "")


def _bind(ground: Ground, program: Program, name: str, row: KnobRow | None) -> Bound:
    words = (*ground.head, *ground.argv)
    blocked = next((word for word in program.blocks if syntax.has_flag(words, word) or word in ground.text.sets), None)
    if blocked is not None:
        raise _NotArmedError(f"{blocked} gives its numbers another meaning")
    of_file = _deepspeed(ground, program, name)
    if row is None:
        if of_file is None:
            flag = program.deepspeed[0] if program.deepspeed else ""
            raise _NotArmedError(
                f"the command has no {flag}, or its file leaves {DEEPSPEED_KEYS[name]} open", f"--knob {name}=deepspeed:FILE"
            )
        return of_file
    by_flag = _by_env(ground, program, name, row) if row.env else _by_flag(ground, program, name, row)
    if of_file is None:
        return by_flag
    if of_file.knob.value != by_flag.knob.value:
        raise _NotArmedError(f"{by_flag.knob.how} is {by_flag.knob.value} and {of_file.knob.how} is {of_file.knob.value}")
    return replace(by_flag, places=(*by_flag.places, *of_file.places), texts={**by_flag.texts, **of_file.texts})


def _by_env(ground: Ground, program: Program, name: str, row: KnobRow) -> Bound:
    value = ground.environ.get(row.env) or _default(ground, row, row.keyword)
    if not value or not declaration.is_value(name, value):
        raise _NotArmedError(f"what the script gives is not known, and ${row.env} is not set", f"--knob {name}=--FLAG")
    return _bound(program, name, row, value, Env(row.env))


def _by_flag(ground: Ground, program: Program, name: str, row: KnobRow) -> Bound:
    leaf = _leaf(row)
    # a script's constants are its defaults, and of a data module the loader that a rank trains with has the last word
    if leaf in ground.text.sets and row.default not in ("script", "datamodule"):
        raise _NotArmedError(f"the script sets {leaf} itself, in line {ground.text.sets[leaf]}")
    if program.file_alone and len(ground.argv) == 1 and ground.argv[0].endswith(tuple(syntax.FORMS)):
        return _by_file_alone(ground, program, name, row)
    value, flag = _given(ground, program, row)
    if value is None:
        for names in row.spellings:
            if (word := syntax.abbreviated(ground.argv, Flag(names))) is not None:
                raise _NotArmedError(f"{word} may be short for {names[0]}", f"write {names[0]} in full")
        value = _default(ground, row, leaf)
    if not value:
        raise _NotArmedError(
            f"the command has no {flag.names[0]}, and its default is not known", f"write {flag.names[0]} VALUE in the command"
        )
    if row.counts == "derived" and value.startswith("-"):
        raise _NotArmedError(f"{flag.names[0]} {value} follows the micro-batch", f"write {flag.names[0]} VALUE in the command")
    if not declaration.is_value(name, value):
        raise _NotArmedError(f"{flag.names[0]} {value} is {declaration.expected(name, only_value=True)}")
    return _bound(program, name, row, value, flag)


def _by_file_alone(ground: Ground, program: Program, name: str, row: KnobRow) -> Bound:
    """The whole configuration is one file: the command's only argument."""
    place = FileKey(syntax.Word(ground.argv[0]), _leaf(row))
    named = job_knobs.file_text(ground.argv, place, ground.cwd)
    value = (None if named is None else _value(named, place.key)) or _default(ground, row, place.key)
    if named is None or not value or not declaration.is_value(name, value):
        raise _NotArmedError(f"{ground.argv[0]} holds no number for it", f"write {place.key} into {ground.argv[0]}")
    job_knobs.require_writable(*named, place.key, value)
    knob = Knob(name, value, job_knobs.how(place, value), by=program.name, counts=row.counts)
    return Bound(knob, (place,), texts=dict([named]))


def _bound(program: Program, name: str, row: KnobRow, value: str, place: Flag | Env) -> Bound:
    is_derived = row.counts == "derived"
    how = job_knobs.how(place, value) + (f" {value}" if is_derived else "")
    knob = Knob(name, declaration.canonical(name, value), how, by=program.name, counts=row.counts)
    return Bound(knob, () if is_derived else (place,))


def _leaf(row: KnobRow) -> str:
    return row.spellings[0][0].lstrip("-").rpartition(".")[2].replace("-", "_")


def _given(ground: Ground, program: Program, row: KnobRow) -> tuple[str | None, Flag]:
    """Return the value and the flag that the command, or a file that it names, gives; None and the flag that would be written."""
    flags = [Flag(names, joined=row.joined) for names in row.spellings]
    on_line = [(value, flag) for flag in flags if (value := syntax.read(ground.argv, flag)) is not None]
    in_file = [hit for flag in flags if (hit := _in_config(ground, program, flag)) is not None]
    if row.default == "script" and not on_line:
        return _in_python(ground, flags[0])
    if len({flag.names for _, flag in on_line + in_file}) > 1:
        raise _NotArmedError(" and ".join(flag.names[0] for _, flag in on_line + in_file) + " are both given")
    if on_line and in_file:
        raise _NotArmedError(f"{on_line[0][1].names[0]} stands in the command and in a file that it names", "leave it out of the file")
    return next(iter(on_line + in_file), (None, flags[0]))


def _in_config(ground: Ground, program: Program, flag: Flag) -> tuple[str, Flag] | None:
    """Return what the file that the command names (--config) gives: it is overridden by the flag, behind it on the command line."""
    for config in program.configs:
        place = FileKey(Flag((config,)), flag.names[0].lstrip("-"))
        named = job_knobs.file_text(ground.argv, place, ground.cwd)
        value = None if named is None else _value(named, place.key)
        if value is not None:
            return value, replace(flag, joined=True)
    return None


def _value(named: tuple[str, str], key: str) -> str | None:
    """Return what stands at the key; a key that runs through no map is not there."""
    parts = key.split(".")
    for depth in range(1, len(parts)):
        try:
            job_knobs.key_in(*named, ".".join(parts[:depth]))
        except config_files.EditError:
            continue  # a map, as it should be
        return None
    return job_knobs.key_in(*named, key)


def _in_python(ground: Ground, flag: Flag) -> tuple[str | None, Flag]:
    """nanoGPT: the script's own constants, and those of the Python files among its arguments, the last of which counts."""
    name = flag.names[0].lstrip("-")
    value = ground.text.constants.get(name)
    for word in ground.argv:
        if "=" not in word and word.endswith(".py"):
            constants = read_script(ground.cwd / word).constants
            value = constants.get(name, value)
    return None if value is None else str(value), flag


def _default(ground: Ground, row: KnobRow, name: str) -> str | None:
    if row.default == "datamodule":
        number = ground.text.datamodule.get(name)
        return None if number is None else str(number)
    if row.default == "keyword":
        given = ground.text.keywords.get(name)
        return str(given) if given is not None else None if name in ground.text.keywords else "1"
    return row.default if row.default.isdecimal() else None


def _deepspeed(ground: Ground, program: Program, name: str) -> Bound | None:
    """Return the knob in DeepSpeed's file, where the command names one and it holds a number ("auto" is left to the Trainer's flags)."""
    if name not in DEEPSPEED_KEYS:
        return None
    for flag in program.deepspeed:
        place = FileKey(Flag((flag,)), DEEPSPEED_KEYS[name], deepspeed=True)
        named = job_knobs.file_text(ground.argv, place, ground.cwd)
        if named is None:
            continue
        value = job_knobs.key_in(*named, place.key)
        counts = "gpu" if name == "batch_size" else "rank"
        if value is None and name == "grad_accum" and (job_knobs.key_in(*named, DEEPSPEED_TOTAL) or "").isdecimal():
            total = FileKey(place.file, DEEPSPEED_TOTAL, deepspeed=True)
            asked = job_knobs.key_in(*named, DEEPSPEED_TOTAL) or ""
            return Bound(Knob(name, asked, job_knobs.how(total, ""), by=program.name, counts="derived"), ())
        if value is not None and declaration.is_value(name, value):
            return Bound(Knob(name, value, job_knobs.how(place, value), by=program.name, counts=counts), (place,), texts=dict([named]))
        if value is not None and value != "auto":
            raise _NotArmedError(f"{job_knobs.how(place, value)} is {value}, {declaration.expected(name, only_value=True)}")
    return None
