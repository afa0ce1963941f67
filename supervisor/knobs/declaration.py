"""Parses the declaration of a knob, from --knob, SUPERVISE_KNOBS or the configuration: NAME[:COUNTS][:VALUE]=WHERE."""

from __future__ import annotations

import re

from supervisor.core.model import RESUME
from supervisor.core.values import Struct
from supervisor.knobs.bindings import (
    COUNTS,
    DEEPSPEED_KEYS,
    FORMS,
    KEY,
    LEAST,
    NAMES,
    ON,
    OVERRIDE,
    PLANNED,
    SWITCHES,
    VARIABLES,
    Binding,
    Env,
    FileKey,
    Flag,
    Override,
    Pair,
    Placeholder,
    Shares,
    Word,
)

_DEEPSPEED = "deepspeed:"
_ENV = "env:"
_PLAN = "plan:"
#: SPEED or SPEED@MEMORY.
_GPU = re.compile(r"(\d+(?:\.\d+)?)(?:@(\d+(?:\.\d+)?))?")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")
#: Variables of supervise, of the launcher and of the system: another value there breaks the job.
_RESERVED = re.compile(
    r"SUPERVISE_\w+|TORCHELASTIC_\w+|((LOCAL|GROUP|ROLE|NODE)_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|CUDA_VISIBLE_DEVICES"
    r"|PYTHON(PATH|HOME|STARTUP)|PATH|HOME|LD_\w+"
)


class KnobDeclaration(Struct, frozen=True):
    """`NAME[:COUNTS][:VALUE]=WHERE`. value: "" if none is given; on: the text that turns a switch on."""

    name: str
    binding: Binding
    value: str = ""
    counts: str = ""
    on: str = ""


def parse(text: str) -> KnobDeclaration:
    """Return the declaration in `text`. Raises ValueError, whose text is the cause."""
    left, equals, where = text.partition("=")
    name, *options = left.strip().split(":")
    if name not in NAMES:
        raise ValueError(f"there is no knob {name!r}: they are {', '.join(NAMES)}")
    if name == RESUME:
        raise ValueError("resume has options of its own: --resume-args '--resume {resume}', or [knobs.resume] in the configuration")
    if not equals or not where.strip():
        raise ValueError(f"nothing says where {name} is set, as {name}=--flag does")
    value, counts = "", ""
    for option in options:
        if option in COUNTS.get(name, ()):
            counts = option
        elif not value and is_value(name, option):
            value = option
        else:
            raise ValueError(f"{option!r} is {expected(name)}, before the first =")
    place, on = _split_on(where.strip()) if name in SWITCHES else (where.strip(), "")
    bound = binding(place, name)
    if isinstance(bound, Shares) != (counts == PLANNED):
        raise ValueError("a plan is declared as grad_accum:planned:GLOBAL_BATCH=plan:SPEED@MEMORY,SPEED@MEMORY")
    return KnobDeclaration(name, bound, value, counts or COUNTS.get(name, ("",))[0], on)


def is_value(name: str, text: str) -> bool:
    """Return whether the knob can hold this value."""
    if name in LEAST:
        return text.isascii() and text.isdigit() and int(text) >= LEAST[name]
    return text == ON if name in SWITCHES else bool(text)


def is_number(text: str) -> bool:
    """Return whether a command's parser takes the text for a number: a value may then begin with -."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def canonical(name: str, text: str) -> str:
    """Return the value in its normal form: a number without leading zeros."""
    return str(int(text)) if name in LEAST and is_value(name, text) else text


def expected(name: str, *, only_value: bool = False) -> str:
    """Return in words what a wrong text is not: a value of the knob or, unless `only_value`, another option before its place."""
    words = [] if only_value else list(COUNTS.get(name, ()))
    if name in LEAST:
        words.append(f"a whole number from {LEAST[name]}")
    return f"neither of {', '.join(words)}" if len(words) > 1 else f"not {words[0]}" if words else "not known"


def _split_on(where: str) -> tuple[str, str]:
    """Split `=VALUE` off a switch's place. Without a value, a flag is turned on by itself (""), and all else by "true"."""
    place, equals, on = where.rpartition("=")
    if not equals:
        return where, "" if where.startswith("-") and ":" not in where else "true"
    hydra = not place.startswith(("-", _ENV)) and ":" not in place
    return (f"{place}=" if hydra else place), on


def binding(where: str, name: str) -> Binding:
    """Return the place that `where` names (docs/guides/knobs.md). Raises ValueError."""
    if where == f"{{{name}}}":
        return Placeholder(name)
    if where.startswith(_ENV):
        return _env(where.removeprefix(_ENV), name)
    if where.startswith(_PLAN):
        return _shares(where.removeprefix(_PLAN))
    if where.startswith(_DEEPSPEED):
        return _deepspeed(where.removeprefix(_DEEPSPEED), name)
    if len(where.split()) > 1:
        return _pair(where, name)
    return _flag(where) if where.startswith("-") else _key_somewhere(where)


def is_row_flag(name: str) -> bool:
    """Whether a name in a row [recover.CAUSE] is meant as a flag of the command, and as no knob."""
    return name.startswith("-") or name.endswith("=")


def row_flag(name: str) -> Flag | Override:
    """Return the place that the name of such a flag means. Raises ValueError, whose text is the cause."""
    place = binding(name, name)
    if not isinstance(place, Flag | Override):
        raise ValueError(f"{name!r} is not a flag of the command: declare a knob for it")  # noqa: TRY004  a person wrote it
    return place


def wrong_variable(variable: str) -> str:
    """Return why a plan may not set this variable of the ranks, "" if it may."""
    if not _VARIABLE.fullmatch(variable):
        return f"{variable!r} is not a name of a variable"
    return f"${variable} is set by the launcher, the system or us" if _RESERVED.fullmatch(variable) else ""


def _env(variable: str, name: str) -> Env:
    if not _VARIABLE.fullmatch(variable):
        raise ValueError(f"{variable!r} is not a name of a variable")
    if _RESERVED.fullmatch(variable) and variable != VARIABLES.get(name):
        alternative = f"; the script may read ${VARIABLES[name]}" if name in VARIABLES else ""
        raise ValueError(f"${variable} cannot carry a {name} to the script{alternative}")
    return Env(variable)


def _shares(text: str) -> Shares:
    gpus = [_GPU.fullmatch(gpu.strip()) for gpu in text.split(",")]
    speeds = tuple(float(gpu[1]) for gpu in gpus if gpu is not None)
    memories = tuple(float(gpu[2] or 0) for gpu in gpus if gpu is not None)
    if len(speeds) < len(gpus) or not all(speeds) or (any(memories) and not all(memories)):
        raise ValueError(f"{text!r} is not a list of SPEED@MEMORY or SPEED, one for each GPU, such as 2.5@80,1@32")
    return Shares(speeds, memories)


def _deepspeed(file: str, name: str) -> FileKey:
    if name not in DEEPSPEED_KEYS:
        raise ValueError(f"DeepSpeed's file holds {' and '.join(DEEPSPEED_KEYS)}, not {name}")
    return FileKey(_file(file), DEEPSPEED_KEYS[name], deepspeed=True)


def _pair(where: str, name: str) -> Pair:
    flag, _, template = where.partition(" ")
    template = template.strip().replace(f"{{{name}}}", "{}")
    if not _FLAG.fullmatch(flag) or template.count("{}") != 1 or " " in template:
        raise ValueError(f"{where!r} is not a flag with a value that holds {{{name}}}")
    return Pair(flag, template)


def _flag(where: str) -> Flag | FileKey:
    flag, colon, key = where.partition(":")
    if not _FLAG.fullmatch(flag.removesuffix("=")):
        raise ValueError(f"{flag!r} is not a flag")
    if colon:
        return FileKey(_file(flag), _key(key))
    return Flag((flag.removesuffix("="),), joined=flag.endswith("="))


def _key_somewhere(where: str) -> Override | FileKey:
    override = OVERRIDE.fullmatch(where)
    if override is not None and not override["value"]:
        return Override(override["key"], override["prefix"])
    path, colon, key = where.rpartition(":")
    if colon:
        return FileKey(_file(path), _key(key))
    raise ValueError(f"{where!r} is not a place: --flag, env:NAME, plan:SPEEDS, {{NAME}}, key= (Hydra), FILE:key or --config:key")


def _file(text: str) -> Flag | Word:
    if _FLAG.fullmatch(text):
        return Flag((text,))
    if not text.endswith(tuple(FORMS)):
        raise ValueError(f"{text!r} is neither a flag nor a file of a known form ({', '.join(FORMS)})")
    return Word(text)


def _key(text: str) -> str:
    if not KEY.fullmatch(text):
        raise ValueError(f"{text!r} is not a dotted key")
    return text
