"""A rung of a ladder: its name, the function that proposes a plan, and what the docs say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.core.model import Plan
    from supervisor.strategies.situation import Situation

    Propose = Callable[[Situation], Plan | None]
    Missing = Callable[[Situation], str]


def nothing_missing(_situation: Situation) -> str:
    """Return nothing: most rungs need no knob."""
    return ""


class Rung(Struct, frozen=True):
    """One rung. `propose` returns None where it has no answer.

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
