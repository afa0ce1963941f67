"""The catalogue of kernel messages that report trouble: the rows of messages.toml, and the search for the row that a message fits.

Nearly all messages of a log are ordinary, so a row's literal is searched for before its pattern is tried.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

from health.model import Repair, Severity
from health.nvidia import xids

_FRAGMENT: Final = re.compile(r"\{([a-z_]+)\}")


class Role(StrEnum):
    """The role of a message in a sequence of messages; messages.toml explains each."""

    WHOLE = "whole"
    PART = "part"
    END = "end"
    STEP = "step"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class Form:
    """One row. anchor: a literal that each such message holds. sure: only where the line is marked as the kernel's. name: see `named`."""

    kind: str
    code: str
    name: str
    anchor: str
    expression: str
    severity: Severity
    repair: Repair
    meaning: str
    role: Role = Role.WHOLE
    sure: bool = False

    @property
    def pattern(self) -> re.Pattern[str]:
        """The matcher of such a message from its beginning; compiled at the first use, which most forms never see."""
        return _compiled(self.expression)


@cache
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


@dataclass(frozen=True, slots=True)
class KernelMatch:
    """A message's form, and the values of the groups that matched."""

    form: Form
    groups: Mapping[str, str]


def _form(row: dict[str, Any], fragments: dict[str, str]) -> Form:
    return Form(
        row["kind"],
        row.get("code", ""),
        row.get("name", ""),
        row["anchor"],
        _expand(row["pattern"], fragments),
        Severity(row["severity"]),
        Repair(row.get("repair", Repair.NONE)),
        row["meaning"],
        Role(row.get("role", Role.WHOLE)),
        row.get("sure", False),
    )


def _expand(pattern: str, fragments: dict[str, str]) -> str:
    """Return a pattern with its fragments in place; a fragment may hold others. Raises KeyError for an unknown name."""
    while (expanded := _FRAGMENT.sub(lambda name: fragments[name[1]], pattern)) != pattern:
        pattern = expanded
    return pattern


@cache
def _document() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("messages.toml").read_text("utf-8"))


@cache
def forms() -> tuple[Form, ...]:
    """Return the rows that a log is searched for, in their order."""
    return tuple(_form(row, _document()["fragments"]) for row in _document()["message"] if row.get("role") != Role.JOB)


@cache
def named() -> dict[str, tuple[Form, ...]]:
    """Return by name the messages that a signature of a job's failure can be built on.

    The Xids of one part and effect have a name of their own: "xid.memory.gpu" are those that need a reset for an error of the memory.
    """
    fragments = _document()["fragments"]
    forms: dict[str, list[Form]] = {}
    for row in _document()["message"]:
        if "name" in row:
            forms.setdefault(row["name"], []).append(_form(row, fragments))
        elif row["kind"] == "xid":
            forms |= {name: [_form(row, fragments | {"xid": codes})] for name, codes in _xids_by_effect().items()}
    return {name: tuple(rows) for name, rows in forms.items()}


def _xids_by_effect() -> dict[str, str]:
    """Return a pattern of the codes of each part and effect, by name. A code that the table does not know is unlisted."""
    codes: dict[str, list[str]] = {}
    for code, entry in xids.TABLE.items():
        codes.setdefault(f"xid.{entry.part}.{entry.effect}", []).append(str(code))
    unlisted = f"xid.{xids.GpuPart.OTHER}.{xids.Effect.UNLISTED}"
    listed = "|".join(code for name, group in codes.items() if name != unlisted for code in group)
    return {name: f"(?:{'|'.join(group)})" for name, group in codes.items()} | {unlisted: rf"(?!(?:{listed})\b)\d{{1,3}}"}


def oom_meaning(code: str) -> str:
    """Return the meaning of a message of an OOM kill, of which several make one finding."""
    return next(form.meaning for form in forms() if (form.kind, form.code) == ("oom", code))


def recognise(text: str, *, sure: bool = True) -> KernelMatch | None:
    """Return the first form that a message fits, None for an ordinary message. sure: it is marked as the kernel's."""
    for form in forms():
        if form.anchor in text and (sure or not form.sure) and (match := form.pattern.match(text)):
            return KernelMatch(form, {key: value for key, value in match.groupdict().items() if value})
    return None
