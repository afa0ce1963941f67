"""Checks the value of a setting: its type, its range, and the form of some texts. A wrong one is an error with all three. Pure."""

from __future__ import annotations

import json
import math
import re
import shlex
from typing import TYPE_CHECKING, cast

from checkpointing.mirror.urls import KEYS_HINT, URL_FORM, has_keys, is_mirror_url
from supervisor.config.settings import JOB_NAME_FORM, is_job_name
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.config.settings import Origin
    from supervisor.core.setting_columns import SettingRow, Value

_BOOLS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_SHOWN = 200  # characters of a wrong value: it may be very long
_EXPECTED = {str: "a string", int: "an integer", float: "a number", bool: "true or false", tuple: "a list of strings"}
# A wrong value of these is not printed.
_MAY_HOLD_KEYS = frozenset({"checkpoints.mirror"})


def _splits(text: str) -> bool:
    try:
        shlex.split(text)
    except ValueError:
        return False
    return True


def _placeholders_are_ours(text: str) -> bool:
    # `${x}` is the script's own (Hydra), and so is JSON
    return set(re.findall(r"(?<!\$)\{(\w+)\}", text)) <= {"resume", "step"}


_Form = tuple[str, "Callable[[str], bool]"]
_HTTP: _Form = ("an http or https address", lambda text: text.startswith(("http://", "https://")))
#: The forms of some strings, and of each item of a list: the form's name, and its test.
_FORMS: dict[str, tuple[_Form, ...]] = {
    "job.name": ((JOB_NAME_FORM, is_job_name),),
    "checkpoints.mirror": (
        (f"places without keys in them ({KEYS_HINT})", lambda text: not has_keys(text)),
        (URL_FORM, is_mirror_url),
    ),
    "checkpoints.paths": (  # one that matches nothing would be found out after the first crash
        ("paths of this machine (--mirror takes s3://BUCKET/PREFIX)", lambda text: not re.match(r"[a-z][a-z0-9+.-]*://", text)),
        ("paths without variables: only a shell fills in $NAME", lambda text: not re.search(r"\$[A-Za-z_{]", text)),
        ("one pattern for each of {a,b}: only a shell splits these", lambda text: not re.search(r"\{[^{}/]*,[^{}/]*\}", text)),
    ),
    # which scheme is the sink's own matter (supervisor/alerts/sinks)
    "alerts.sink.url": (("an address such as https://HOST/PATH", lambda text: bool(re.match(r"[a-z][a-z0-9+.-]*://\S", text))),),
    "alerts.heartbeat_url": (_HTTP,),
    "alerts.sink.name": (
        ("a name of small letters, digits, '-' and '_'", lambda text: bool(re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,39}", text))),
    ),
    "knobs.resume.args": (
        ("words as a shell would read them (a quotation is not closed)", _splits),
        ("no placeholder but {resume}, the checkpoint's path, and {step}", _placeholders_are_ours),
    ),
    "knobs.resume.switch": (
        ("words as a shell would read them (a quotation is not closed)", _splits),
        ("words, not blanks", lambda text: not text or bool(text.strip())),
        ("words without a path (--resume-args takes {resume})", lambda text: "{resume}" not in text and "{step}" not in text),
    ),
}


def parsed(row: SettingRow, text: str, origin: Origin) -> Value:
    """Return the value that `text` (a variable or a flag) means."""
    value: object = text
    try:
        if row.kind is bool:
            value = _BOOLS.get(text.strip().lower(), text)
        elif row.kind in (int, float):
            value = row.kind(text)
        elif row.kind is tuple:
            value = tuple(shlex.split(text))
    except ValueError:
        value = text
    return checked_value(row, value, origin)


def checked_value(row: SettingRow, value: object, origin: Origin) -> Value:
    """Return `value` if the row allows it (an integer is a number). Raises SuperviseError naming all three."""
    given = value
    if row.kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = _as_float(value)
    expected = _EXPECTED[row.kind]
    if row.kind is tuple and isinstance(value, str):
        expected += f", as in [{json.dumps(cut(value), ensure_ascii=False)}]"
    # bool is an int to Python, and not to a person
    right = type(value) is row.kind and (row.kind is not tuple or all(isinstance(item, str) for item in cast("tuple[object, ...]", value)))
    if right and row.choices:
        expected, right = "one of " + ", ".join(row.choices), value in row.choices
    if right and isinstance(value, int | float) and row.minimum is not None and row.maximum is not None:
        expected += f", at least {row.minimum:g} and at most {row.maximum:.0f}"
        right = row.minimum <= value <= row.maximum
    for form, is_right in _FORMS.get(row.key, ()):
        if right and value and not all(is_right(entry) for entry in (value if isinstance(value, tuple) else (str(value),))):
            expected, right = form, False
    if right and any("\0" in item for item in (value if isinstance(value, tuple) else (str(value),))):
        expected, right = "text without a NUL character, which no path and no argument can hold", False
    if right and _is_empty(row, value, origin):
        expected, right = "something that is not empty", False
    if right:
        return cast("Value", value)
    shown = "(not shown)" if row.secret or row.key in _MAY_HOLD_KEYS else cut(repr(list(given) if isinstance(given, tuple) else given))
    raise SuperviseError(
        f"wrong value: {row.key} = {shown} from {origin}: expected {expected}",
        hint=f"Give {row.key} {expected}; its default is {row.default!r}.",
        exit_code=origin.exit_code,
    )


def _is_empty(row: SettingRow, value: object, origin: Origin) -> bool:
    """Whether a value is empty that must not be: `--job "$UNSET"`, or a pattern for files."""
    if row.key == "checkpoints.paths":
        return "" in cast("tuple[str, ...]", value)
    return value == "" and (origin.kind == "command line" or bool(row.default))


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def cut(text: str) -> str:
    """Return a text, cut where it is too long to be shown."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
