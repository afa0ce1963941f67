"""A step of a ladder: one function that proposes a plan, with its name, its effect in words, and its text for the docs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.core.model import Plan
    from supervisor.strategies.situation import Situation

    Propose = Callable[[Situation], Plan | None]
    Missing = Callable[[Situation], str]

StepFunction = TypeVar("StepFunction", bound="Propose")


def nothing_missing(_situation: Situation) -> str:
    """Return nothing: most steps need no knob."""
    return ""


class LadderStep(Struct, frozen=True):
    """One step of the ladders that name it."""

    name: str
    propose: Propose  # returns None where it has no answer
    summary: str  # one line for the docs and for `supervise plan`
    tried: str = ""  # its effect where it restarted, in words; "": it never restarts
    changes_job: bool = False  # its plans may change the training, for the docs; what a plan really changes is situation.changes(plan)
    harmless: bool = False  # its changes leave the training as it is and need no consent
    consented: bool = False  # the user wrote out its change, so it needs no sure verdict, but enabled knobs
    explained: bool = False  # its reason is at the terminal too: the failure does not show the action
    wants: tuple[str, ...] = ()  # the knobs without which it does nothing
    wants_one: bool = False  # one of `wants` is enough
    missing: Missing = nothing_missing  # if it had no answer for want of a knob: why, and the option that would enable it


#: Every step, by its name.
LADDER_STEPS: dict[str, LadderStep] = {}


def ladder_step(summary: str, *, name: str = "", **columns: Any) -> Callable[[StepFunction], StepFunction]:  # noqa: ANN401  LadderStep checks them
    """Register the function below it as the step of its name (or of `name`): the row of a ladder names it (core/causes).

    columns: of LadderStep, by name. Raises TypeError for one that it does not have, ValueError for a name that is taken.
    """

    def register(propose: StepFunction) -> StepFunction:
        step = LadderStep(name or propose.__name__, propose, summary, **columns)
        if LADDER_STEPS.setdefault(step.name, step) is not step:
            msg = f"two steps are called {step.name}"
            raise ValueError(msg)
        return propose

    return register
