"""A rung of a ladder: a built-in one, or the function of an installed package.

A package's function is named "MODULE:FUNCTION". supervisor/config/plugins.py imports its module before the first decision and refuses a
name that cannot be imported. Nothing is imported here: a function that is not loaded has no answer, and the ladder goes on.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from supervisor.core.model import Change, Plan
from supervisor.core.values import Struct, asdict, astuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.strategies.situation import Situation

    Propose = Callable[[Situation], Plan | None]
    Missing = Callable[[Situation], str]


def nothing_missing(_situation: Situation) -> str:
    """Return nothing: most rungs need no knob."""
    return ""


#: The fields of a Plan that a package can get wrong, by their type; those of tuples hold texts.
_TYPES: dict[type, tuple[str, ...]] = {
    str: ("reason", "next_rung", "alert", "alert_kind"),
    int: ("exit_code", "nproc", "least_nodes"),
    float: ("delay_s",),
    tuple: ("changes", "rejected", "exclude", "notes"),
}


class PlugInError(Exception):
    """A rung of a package failed: the next rung decides, and the plan reports why."""


class Rung(Struct, frozen=True):
    """One rung. `propose` returns None where it has no answer; that of a package may raise PlugInError.

    summary: one line for the docs and for `supervise plan`. changes_job: its plans may change the training, for the docs; what a plan
    really changes is situation.changes(plan). harmless: its changes leave the training as it is and need no consent. consented: the user
    wrote out what it changes, so it needs no sure verdict, but enabled knobs. missing: if it had no answer for want of a knob, why, and
    the option that would enable it.
    """

    name: str
    propose: Propose
    summary: str
    changes_job: bool = False
    harmless: bool = False
    consented: bool = False
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
        if plan is not None and (field := _mistyped(plan)):
            msg = f"{field} of its plan is of another type than core/model.py declares"
            raise PlugInError(msg)
        return plan

    return Rung(name, checked, f"the plug-in {name}", changes_job=True)


def _mistyped(plan: Plan) -> str:
    """Return the name of a field of another type than declared, "" if there is none: Python does not check what a package wrote."""
    values: dict[str, Any] = asdict(plan)
    changes = values["changes"] if isinstance(values["changes"], tuple) else (None,)
    values["changes"] = tuple(text for change in changes for text in (astuple(change) if isinstance(change, Change) else (None,)))
    values["nproc"] = 0 if plan.nproc is None else plan.nproc
    right = {
        str: lambda value: isinstance(value, str),
        int: lambda value: type(value) is int,
        float: lambda value: type(value) in {int, float},
        tuple: lambda value: isinstance(value, tuple) and all(isinstance(item, str) for item in value),
    }
    return next((name for kind, names in _TYPES.items() for name in names if not right[kind](values[name])), "")
