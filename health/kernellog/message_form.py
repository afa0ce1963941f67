"""What one form of a kernel message is: the pattern, and what it means.

In: a message. Out: the Form that it has, and what its groups say; None for an ordinary message. Pure; nothing fails. The rows are in
gpuforms.py, hostforms.py, storageforms.py and netforms.py: one row for each form, and a test holds that each is exercised and documented.

Patterns are matched at the message's beginning. `role` tells the judge what a form is of a longer story: a `whole` is a finding by itself;
a `part` belongs to the whole that came just before or comes just after it, and is a finding where there is none; an `end` is the end of
what a whole began, and nothing without it; a `step` counts towards a limit (carrier losses).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from health.kernellog.model import Severity
from health.model import Repair

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Domain, bus, device and function as the drivers print them: without domain in old ones, without function in an Xid's.
PCI = r"(?P<pci>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"


class Role(Enum):
    """What a form is of a longer story."""

    WHOLE = auto()
    PART = auto()
    END = auto()
    STEP = auto()


@dataclass(frozen=True, slots=True)
class Form:
    """One form. anchor: a literal that each such message holds. sure: only where the line is marked as the kernel's."""

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
class Match:
    """A form, found, and what its groups say (those that say something)."""

    form: Form
    groups: Mapping[str, str]


def form(  # noqa: PLR0913, PLR0917  one column of a table each
    kind: str,
    code: str,
    anchor: str,
    pattern: str,
    severity: Severity,
    repair: Repair,
    meaning: str,
    role: Role = Role.WHOLE,
    *,
    sure: bool = False,
) -> Form:
    """Return a row."""
    return Form(kind, code, anchor, re.compile(pattern), severity, repair, meaning, role, sure)


def first(text: str, forms: Sequence[Form], *, sure: bool) -> Match | None:
    """Return the first form that a message has."""
    for row in forms:
        if row.anchor in text and (sure or not row.sure) and (match := row.pattern.match(text)):
            return Match(row, {key: value for key, value in match.groupdict().items() if value})
    return None
