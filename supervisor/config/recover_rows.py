"""The user's own rows of recovery: [recover.CAUSE] with `set`, what to change after a failure of that cause.

    [recover.cuda_oom]
    set = { batch_size = 8, grad_accum = 4, "--gradient-clip-val" = 1.0, "env:MY_SCRIPT_MODE" = "careful" }

Writing a row is the consent to it. Its subject is a knob (docs/guides/knobs.md), a flag of the command (knobs/row_flags.py), or a
variable of the environment. The cause may be one that only a signature of the user's names.
supervisor/strategies/users_row.py acts on the rows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NoReturn

from supervisor.config.recover_settings import RECOVER_KEY, RecoverRow
from supervisor.core.model import FROM_OUTSIDE, RESUME, Cause
from supervisor.errors import SuperviseError, nearest
from supervisor.knobs import bindings, declaration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from supervisor.classify.logs.rows import Problem
    from supervisor.core.model import Knob

_ENV = "env:"
#: The mark between the digest of a secret and its cause; no value of a user begins with a digest.
_OF_ROW: Final = f" of [{RECOVER_KEY}."
_CAUSES = tuple(cause.value for cause in Cause if cause is not Cause.NONE and cause not in FROM_OUTSIDE)
_KNOBS = tuple(name for name in bindings.NAMES if name != RESUME)
_WINDOW = re.compile(r"\d+:\d+")


def read(value: object, path: str, lines: Mapping[str, int]) -> dict[str, RecoverRow]:
    """Return the rows of a file by their causes. lines: of each key of the file. Raises SuperviseError for the first fault."""
    if not isinstance(value, dict):
        message = f"wrong type: {RECOVER_KEY} in {_at(path, lines, RECOVER_KEY)}: it is a section for each cause, not a value"
        raise SuperviseError(message, hint="Write [recover.CAUSE], with set = { KNOB = VALUE } below it.")
    return {cause: _row(cause, table, path, lines) for cause, table in value.items()}


def require_knobs(rows: Iterable[RecoverRow], knobs: Iterable[Knob], likely: Iterable[tuple[str, str]]) -> None:
    """Raise SuperviseError if a row names a knob that the command does not have: it could never act. likely: of KnobSet."""
    there = {knob.name: knob for knob in knobs}
    for row in rows:
        for name, _ in row.sets:
            if name.startswith(_ENV):
                continue
            if name not in there:
                message = f"[{RECOVER_KEY}.{row.cause}] has no effect: the command has no knob {name} ({row.place})"
                hint = f"Declare it with {bindings.option(name, likely)} (docs/guides/knobs.md), or leave {name} out of the row."
                raise SuperviseError(message, hint=hint)
            if there[name].counts in {"derived", bindings.PLANNED}:
                message = f"[{RECOVER_KEY}.{row.cause}] has no effect: the program derives {name} by itself ({row.place})"
                raise SuperviseError(
                    message, hint=f"Leave {name} out of the row: batch_size alone is set, and the program fits {name} to it."
                )


def without_secrets(rows: Iterable[RecoverRow]) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """Return what the rows set, by cause, as journal and reports have it: for a secret its digest and the row's name."""

    def shown(cause: str, name: str, value: str) -> str:
        from supervisor.classify import redact  # noqa: PLC0415  few have rows of their own

        line = f"{name.removeprefix(_ENV).removesuffix('=')}={value}"
        is_secret = (name.startswith(_ENV) or declaration.is_row_flag(name)) and redact.text(line) != line
        return f"{redact.digest(value)}{_OF_ROW}{cause}]" if is_secret else value

    return tuple((row.cause, tuple((name, shown(row.cause, name, value)) for name, value in row.sets)) for row in rows)


def with_values(rows: Iterable[RecoverRow], overrides: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return what an attempt sets, with the values that `without_secrets` left out. Raises SuperviseError if this node has no such row."""
    values = {(row.cause, name): value for row in rows for name, value in row.sets}

    def value_of(name: str, value: str) -> str:
        before, of_row, cause = value.partition(_OF_ROW)
        if not of_row or not before.startswith("<"):
            return value
        cause = cause.removesuffix("]")
        if (cause, name) not in values:
            raise SuperviseError(
                f"a row is missing: [{RECOVER_KEY}.{cause}] set {name} for this job, and this node's configuration has no such row",
                hint="Start every node with the same configuration.",
            )
        return values[cause, name]

    return tuple((name, value_of(name, value)) for name, value in overrides)


def _row(cause: str, table: object, path: str, lines: Mapping[str, int]) -> RecoverRow:
    key = f"{RECOVER_KEY}.{cause}"
    place = _at(path, lines, f"{key}.set", key)
    if cause not in _CAUSES and not _is_own_cause(cause):
        _refuse_cause(cause, place)
    unknown = sorted(set(table) - {"set"}) if isinstance(table, dict) else []
    sets = table.get("set") if isinstance(table, dict) else None
    if unknown:
        message = f"unknown setting: {key}.{unknown[0]} in {_at(path, lines, f'{key}.{unknown[0]}', key)}"
        raise SuperviseError(message, hint=f"Write set = {{ KNOB = VALUE }} below [{key}]; it has no other key.")
    if not isinstance(sets, dict) or not sets:
        message = f"wrong value: {key}.set in {place}: expected a table of knobs and variables that is not empty"
        raise SuperviseError(message, hint='Write it as in set = { batch_size = 8, "env:NAME" = "VALUE" }.')
    alone = tuple(name for name, value in sets.items() if value is True and name.startswith("-"))
    return RecoverRow(cause, tuple((name, _value(key, name, value, place)) for name, value in sets.items()), place, alone)


def require_causes(rows: Iterable[RecoverRow], known: Iterable[Cause], unused: Sequence[Problem] = ()) -> None:
    """Raise SuperviseError if a row answers a cause that nothing can find. known: the causes that the signatures in use name.

    unused: the signatures that are not in use, and why: one of them may be the one that was to name the cause.
    """
    named = set(known)
    for row in rows:
        if Cause(row.cause) not in named and Cause(row.cause).is_own:
            reasons = "; ".join(str(problem) for problem in unused)
            raise SuperviseError(
                f"[{RECOVER_KEY}.{row.cause}] has no effect: no signature in use names the cause {row.cause} ({row.place})"
                + (f"; {reasons}" if reasons else ""),
                hint="Correct the signature that is not in use."
                if reasons
                else f'Write a [[signature]] with cause = "{row.cause}" in a file of classify.signatures, or name a cause of '
                "docs/reference/causes.md here.",
            )


def has_own_causes(rows: Iterable[RecoverRow]) -> bool:
    """Whether a row answers a cause of the user's own."""
    return any(Cause(row.cause).is_own for row in rows)


def _is_own_cause(name: str) -> bool:
    """Whether a cause of the user's own may be called so: it does not look like a misspelt built-in one."""
    try:
        return Cause(name).is_own and not nearest(name, list(Cause), likeness=0.85)
    except ValueError:
        return False


def _refuse_cause(cause: str, place: str) -> NoReturn:
    if cause in list(Cause):
        message = f"no row can answer this cause: [{RECOVER_KEY}.{cause}] in {place}: no other attempt follows it in the same run"
        raise SuperviseError(message, hint="Leave the row out.")
    meant = nearest(cause, _CAUSES)
    message = f"unknown cause: [{RECOVER_KEY}.{cause}] in {place}" + (f": the nearest is {meant}" if meant else "")
    own = "Write a name of docs/reference/causes.md, or one of your own signatures: 3 to 40 small letters, digits and _."
    raise SuperviseError(message, hint=f"Write [{RECOVER_KEY}.{meant}]." if meant else own)


def _value(key: str, name: str, value: object, place: str) -> str:
    """Return the value of a knob or variable as the command gets it."""
    text = bindings.ON if value is True and name in bindings.SWITCHES else str(value)
    plain = isinstance(value, str | int | float) and (not isinstance(value, bool) or text == bindings.ON)
    if name.startswith(_ENV):
        wrong = declaration.wrong_variable(name.removeprefix(_ENV))
        if wrong:
            raise SuperviseError(f"wrong variable: {key}.set in {place}: {wrong}", hint=f"Leave {name} out of the row.")
        if plain and "\0" not in text:
            return text
        expected = "a text or a number"
    elif declaration.is_row_flag(name):
        wrong = _wrong_flag(name)
        if wrong:
            raise SuperviseError(
                f"wrong flag: {key}.set in {place}: {wrong}", hint='Write "--flag", or "key=" for Hydra, as the command has it.'
            )
        if value is True and name.startswith("-"):
            return bindings.ON
        text = str(value).lower() if isinstance(value, bool) else str(value)
        is_value = name.endswith("=") or not text.startswith("-") or declaration.is_number(text)
        if isinstance(value, str | int | float) and text.isprintable() and text and is_value and (value is not False or "=" in name):
            return text
        expected = "a text of one line that is not empty and does not begin with -, a number, or true, which writes the flag alone"
    elif name not in _KNOBS:
        meant = nearest(name, (*_KNOBS, f"{_ENV}{name}"))
        message = f"unknown knob: {name}: {key}.set in {place}: " + (
            f"the nearest is {meant}" if meant in _KNOBS else f"they are {', '.join(_KNOBS)}"
        )
        remedy = f"Write {meant}" if meant in _KNOBS else "Write one of these"
        raise SuperviseError(
            message, hint=f'{remedy}, "--flag" for a flag of the command, "key=" for one of Hydra\'s, or "{_ENV}NAME" for a variable.'
        )
    else:
        right = plain and declaration.is_value(name, text) and (name != "skip_window" or _WINDOW.fullmatch(text))
        if right:
            return declaration.canonical(name, text)
        expected = _expected(name)
    raise SuperviseError(
        f"wrong value: {key}.set, {name} = {value!r} in {place}: expected {expected}"[:400], hint=f"Give {name} {expected}."
    )


def _wrong_flag(name: str) -> str:
    """Return why a name is not a flag that a row can set, "" if it is one."""
    try:
        declaration.row_flag(name)
    except ValueError as error:
        return str(error)
    return ""


def _expected(name: str) -> str:
    if name in bindings.LEAST:
        return f"a whole number from {bindings.LEAST[name]}"
    return "true, which turns it on" if name in bindings.SWITCHES else 'steps as in "100:120"'


def _at(path: str, lines: Mapping[str, int], *keys: str) -> str:
    """Return FILE:LINE of the first of these keys whose line is known, else the file."""
    return next((f"{path}:{lines[key]}" for key in keys if key in lines), path)
