"""The number of steps of the whole training, from several sources. Pure.

The script's own report counts first. Else the total is the end of the log's count (`step 10/120`), if that is a count of the training's
steps; or an option of the command (`--max_steps 120`); or the number of epochs, if the log shows how many steps an epoch has. A total that
the steps contradict does not count. If the log may count the steps of one epoch or of all epochs, the total is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from supervisor.core.values import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.classify.step_counts import StepCount

#: Options, and keys of the form `trainer.max_steps=`, that set the number of optimizer steps; without their dashes, and "_" for "-".
STEP_OPTIONS: Final = frozenset(
    {
        *("max_steps", "steps", "num_steps", "n_steps", "total_steps", "train_steps", "training_steps", "max_train_steps"),
        *("num_train_steps", "num_training_steps", "num_iterations", "iterations", "max_iterations", "train_iterations"),
        *("num_iters", "train_iters", "max_iters", "iters"),
    }
)
#: Options that set the number of epochs, in the same form.
EPOCH_OPTIONS: Final = frozenset({"epochs", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs", "train_epochs", "total_epochs"})
#: The log's newest line may be so many steps old, or this part of the total; and so many steps ahead of the heartbeats.
_LATE_STEPS, _LATE_PART, _AHEAD_STEPS = 100, 0.1, 5


class StepTotal(Struct, frozen=True):
    """The step with which the training ends. source: where that is known from, in words."""

    steps: int
    source: str


def step_total(
    step: int | None, *, is_relative: bool, reported: int | None, count: StepCount | None, command: Sequence[str]
) -> StepTotal | None:
    """Return the total; None: it is not known. step: the present one; count: the newest count in the log."""
    if reported is not None:
        return StepTotal(reported, "reported by the script")
    totals = []
    if count is not None and (total := _of_count(count, step, option(command, EPOCH_OPTIONS))) is not None:
        totals.append(total)
    asked = option(command, STEP_OPTIONS)
    if asked is not None and step is not None and not is_relative:
        totals.append(StepTotal(asked[1], f"from {asked[0]}"))
    fitting = [total for total in totals if step is None or total.steps >= step]
    return max(fitting, key=lambda total: total.steps, default=None)


def option(command: Sequence[str], names: frozenset[str]) -> tuple[str, int] | None:
    """Return the last of these options in a command, as it is written, and its number; None: there is none with a number above 0."""
    last = None
    for place, word in enumerate(command):
        key, equals, value = word.partition("=")
        name = key.lstrip("-").rpartition(".")[2].replace("-", "_").lower()
        if name not in names or not (equals or key.startswith("-")):
            continue
        value = value if equals else command[place + 1] if place + 1 < len(command) else ""
        number = _whole(value)
        if number is not None and number > 0:
            last = (f"{key}={value}" if equals else f"{key} {value}"), number
    return last


def _whole(text: str) -> int | None:
    try:
        number = float(text.replace("_", ""))
    except ValueError:
        return None
    return int(number) if number.is_integer() and abs(number) < 1e15 else None  # noqa: PLR2004  a larger number does not count steps


def _of_count(count: StepCount, step: int | None, asked: tuple[str, int] | None) -> StepTotal | None:
    """Return the total that a line of the log shows. asked: the epochs that the command sets."""
    done, of = count.done, count.total
    epochs = count.epochs or (asked[1] if asked is not None else None)
    if step is None:
        return None if epochs is not None and epochs > 1 else StepTotal(of, f"from its log ({count.text})")
    is_whole = _is_at(step, done, of)
    if epochs is None or epochs == 1:
        return StepTotal(of, f"from its log ({count.text})") if is_whole else None
    if count.epoch is not None:
        before = [number for number in (count.epoch - 1, count.epoch) if number >= 0]  # epochs count from 1, or from 0
    else:
        before = [max(0, step - done + _AHEAD_STEPS) // of]
    is_of_epoch = any(_is_at(step, number * of + done, of) for number in before)
    if is_whole == is_of_epoch:  # both fit in the first epoch, or neither fits: what the log counts is not known
        return None
    return StepTotal(of, f"from its log ({count.text})") if is_whole else StepTotal(epochs * of, f"{epochs} epochs of {of} steps")


def _is_at(step: int, counted: int, of: int) -> bool:
    return -_AHEAD_STEPS <= step - counted <= max(_LATE_STEPS, _LATE_PART * of)
