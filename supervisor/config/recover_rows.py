"""The user's own rows of recovery: [recover.CAUSE] with `set`, what to change after a failure of that cause.

    [recover.cuda_oom]
    set = { batch_size = 8, grad_accum = 4, "env:MY_SCRIPT_MODE" = "careful" }

Writing a row is the consent to it. What it names is a knob (docs/guides/knobs.md) or a variable of the environment.
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
    from collections.abc import Iterable, Mapping

    from supervisor.core.model import Knob

_ENV = "env:"
#: Stands between the digest of a secret and its cause; no value of a user begins with a digest.
_OF_ROW: Final = f" of [{RECOVER_KEY}."
_CAUSES = tuple(cause.value for cause in Cause if cause is not Cause.NONE and cause not in FROM_OUTSIDE)
_KNOBS = tuple(name for name in bindings.NAMES if name != RESUME)
_WINDOW = re.compile(r"\d+:\d+")


def read(value: object, path: str, lines: Mapping[str, int]) -> dict[str, RecoverRow]:
    """Return the rows of a file by their causes. lines: of each key of the file. Raises SuperviseError for the first fault."""
    if not isinstance(value, dict):
        what = f"wrong type: {RECOVER_KEY} in {_at(path, lines, RECOVER_KEY)}: it is a section for each cause, not a value"
        raise SuperviseError(what, hint="Write [recover.CAUSE], with set = { KNOB = VALUE } below it.")
    return {cause: _row(cause, table, path, lines) for cause, table in value.items()}


def require_knobs(rows: Iterable[RecoverRow], knobs: Iterable[Knob]) -> None:
    """Raise SuperviseError if a row names a knob that the command does not have: it could never act."""
    there = {knob.name: knob for knob in knobs}
    for row in rows:
        for name, _ in row.sets:
            if name.startswith(_ENV):
                continue
            if name not in there:
                what = f"[{RECOVER_KEY}.{row.cause}] has no effect: the command has no knob {name} ({row.place})"
                raise SuperviseError(
                    what, hint=f"Declare it with --knob {name}=--YOUR-FLAG (docs/guides/knobs.md), or leave {name} out of the row."
                )
            if there[name].counts in {"derived", bindings.PLANNED}:
                what = f"[{RECOVER_KEY}.{row.cause}] has no effect: the program derives {name} by itself ({row.place})"
                raise SuperviseError(what, hint=f"Leave {name} out of the row: batch_size alone is set, and the program fits {name} to it.")


def without_secrets(rows: Iterable[RecoverRow]) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """Return what the rows set, by cause, as journal and reports have it: for a secret in a variable its digest and the row's name."""

    def shown(cause: str, name: str, value: str) -> str:
        from supervisor.classify import redact  # noqa: PLC0415  few have rows of their own

        line = f"{name.removeprefix(_ENV)}={value}"
        is_secret = name.startswith(_ENV) and redact.text(line) != line
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
    if cause not in _CAUSES:
        _refuse_cause(cause, place)
    unknown = sorted(set(table) - {"set"}) if isinstance(table, dict) else []
    sets = table.get("set") if isinstance(table, dict) else None
    if unknown:
        what = f"unknown setting: {key}.{unknown[0]} in {_at(path, lines, f'{key}.{unknown[0]}', key)}"
        raise SuperviseError(what, hint=f"Write set = {{ KNOB = VALUE }} below [{key}]; it has no other key.")
    if not isinstance(sets, dict) or not sets:
        what = f"wrong value: {key}.set in {place}: expected a table of knobs and variables that is not empty"
        raise SuperviseError(what, hint='Write it as in set = { batch_size = 8, "env:NAME" = "VALUE" }.')
    return RecoverRow(cause, tuple((name, _value(key, name, one, place)) for name, one in sets.items()), place)


def _refuse_cause(cause: str, place: str) -> NoReturn:
    if cause in list(Cause):
        what = f"no row can answer this cause: [{RECOVER_KEY}.{cause}] in {place}: no other attempt follows it in the same run"
        raise SuperviseError(what, hint="Leave the row out.")
    meant = nearest(cause, _CAUSES)
    what = f"unknown cause: [{RECOVER_KEY}.{cause}] in {place}" + (f": the nearest is {meant}" if meant else "")
    raise SuperviseError(what, hint=f"Write [{RECOVER_KEY}.{meant}]." if meant else "Write a name of docs/reference/causes.md.")


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
    elif name not in _KNOBS:
        meant = nearest(name, (*_KNOBS, f"{_ENV}{name}"))
        what = f"unknown knob: {name}: {key}.set in {place}: " + (
            f"the nearest is {meant}" if meant in _KNOBS else f"they are {', '.join(_KNOBS)}"
        )
        remedy = f"Write {meant}" if meant in _KNOBS else "Write one of these"
        raise SuperviseError(what, hint=f'{remedy}, or "{_ENV}NAME" for a variable of the environment.')
    else:
        right = plain and declaration.is_value(name, text) and (name != "skip_window" or _WINDOW.fullmatch(text))
        if right:
            return declaration.canonical(name, text)
        expected = _expected(name)
    raise SuperviseError(
        f"wrong value: {key}.set, {name} = {value!r} in {place}: expected {expected}"[:400], hint=f"Give {name} {expected}."
    )


def _expected(name: str) -> str:
    if name in bindings.LEAST:
        return f"a whole number from {bindings.LEAST[name]}"
    return "true, which turns it on" if name in bindings.SWITCHES else 'steps as in "100:120"'


def _at(path: str, lines: Mapping[str, int], *keys: str) -> str:
    """Return FILE:LINE of the first of these keys whose line is known, else the file."""
    return next((f"{path}:{lines[key]}" for key in keys if key in lines), path)
