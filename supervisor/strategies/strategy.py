"""What a rung of a ladder is: a name, and a function from a situation to a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.core.model import Plan
    from supervisor.strategies.situation import Situation

    Propose = Callable[[Situation], Plan | None]
    Lacks = Callable[[Situation], str]


def nothing(_situation: Situation) -> str:
    """Return nothing: most strategies need no knob."""
    return ""


class PlugInError(Exception):
    """A strategy of a package failed: the next rung answers, and a person is told why."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One strategy. `propose` returns None where it has no answer; that of a package may raise PlugInError.

    changes_job: its plans may change the training itself, for the docs: whether consent stands before a plan is told by the plan
    (consent.changes). does: one line for docs and for
    `supervise plan`. lacks: what is told where it had no answer for want of a knob: why, and the line that would arm it.
    """

    name: str
    propose: Propose
    does: str
    changes_job: bool = False
    lacks: Lacks = nothing
