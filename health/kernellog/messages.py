"""The catalogue of kernel messages that report trouble: the rows of messages.toml, and the search for the one that a message fits.

It is TOML because a row is data: it is read in one piece, and the same file documents the columns. Nearly all messages of a log are
ordinary, so a row's literal is looked for before its pattern is tried.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from health.model import Repair, Severity

_FRAGMENT: Final = re.compile(r"\{([a-z_]+)\}")


class Role(StrEnum):
    """What a message is of a longer sequence; messages.toml explains each."""

    WHOLE = "whole"
    PART = "part"
    END = "end"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class Form:
    """One row. anchor: a literal that each such message holds. sure: only where the line is marked as the kernel's."""

    kind: str
    code: str
    anchor: str
    pattern: re.Pattern[str]
    severity: Severity
    repair: Repair
    meaning: str
    role: Role = Role.WHOLE
    sure: bool = False


@dataclass(frozen=True, slots=True)
class Recognised:
    """A message's form, and the values of the pattern's groups that took part."""

    form: Form
    groups: Mapping[str, str]


def _form(row: dict[str, Any], fragments: dict[str, str]) -> Form:
    return Form(
        row["kind"],
        row.get("code", ""),
        row["anchor"],
        re.compile(_expand(row["pattern"], fragments)),
        Severity(row["severity"]),
        Repair(row.get("repair", Repair.NONE)),
        row["meaning"],
        Role(row.get("role", Role.WHOLE)),
        row.get("sure", False),
    )


def _expand(pattern: str, fragments: dict[str, str]) -> str:
    """Return a pattern with its fragments in place; a fragment may hold others. Raises KeyError for a name that there is not."""
    while (expanded := _FRAGMENT.sub(lambda name: fragments[name[1]], pattern)) != pattern:
        pattern = expanded
    return pattern


def _load() -> tuple[Form, ...]:
    document = tomllib.loads(Path(__file__).with_name("messages.toml").read_text("utf-8"))
    return tuple(_form(row, document["fragments"]) for row in document["message"])


FORMS: Final = _load()
#: By code: the meaning of each message of an OOM kill, of which several make one finding.
OOM_MEANINGS: Final[Mapping[str, str]] = {form.code: form.meaning for form in FORMS if form.kind == "oom"}


def recognise(text: str, *, sure: bool = True) -> Recognised | None:
    """Return the first form that a message has, None for an ordinary message. sure: it is marked as the kernel's."""
    for form in FORMS:
        if form.anchor in text and (sure or not form.sure) and (match := form.pattern.match(text)):
            return Recognised(form, {key: value for key, value in match.groupdict().items() if value})
    return None
