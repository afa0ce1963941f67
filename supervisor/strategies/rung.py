"""A rung of a ladder: a built-in one, or the function of an installed package.

A package's function is named "MODULE:FUNCTION". supervisor/config/plugins.py imports its module before the first decision and refuses a
name that cannot be imported. Nothing is imported here: a function that is not loaded has no answer, and the ladder goes on.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisor.core.model import Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.strategies.situation import Situation

    Propose = Callable[[Situation], Plan | None]
    Missing = Callable[[Situation], str]


def nothing_missing(_situation: Situation) -> str:
    """Return nothing: most rungs need no knob."""
    return ""


class PlugInError(Exception):
    """A rung of a package failed: the next rung decides, and the plan reports why."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One rung. `propose` returns None where it has no answer; that of a package may raise PlugInError.

    summary: one line for the docs and for `supervise plan`. changes_job: its plans may change the training, for the docs; what a plan
    really changes is situation.changes(plan). missing: if it had no answer for want of a knob, why, and the option that would enable it.
    """

    name: str
    propose: Propose
    summary: str
    changes_job: bool = False
    missing: Missing = nothing_missing


def is_plug_in(name: str) -> bool:
    """Whether a name is that of a plug-in's function."""
    module, colon, function = name.partition(":")
    return bool(colon and module and function)


def plug_in(name: str) -> Rung | None:
    """Return the plug-in's rung of that name, None if its module is not loaded or holds no such function."""
    module, _, function = name.partition(":")
    propose = getattr(sys.modules.get(module), function, None)
    if not callable(propose):
        return None

    def checked(situation: object) -> Plan | None:
        """Ask the plug-in. Raises PlugInError for whatever goes wrong within it."""
        try:
            plan = propose(situation)
        except Exception as error:  # a package's bug must not end a supervised job
            msg = f"{type(error).__name__}: {error}"[:300]
            raise PlugInError(msg) from error
        if plan is not None and not isinstance(plan, Plan):
            msg = f"it returned a {type(plan).__name__}, not a Plan"
            raise PlugInError(msg)
        return plan

    return Rung(name, checked, f"the plug-in {name}", changes_job=True)
