"""The command `supervise drill KIND -- CMD`: its options, and which drill they start."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import click

from supervisor.cli.drill import faults, resume
from supervisor.cli.drill.scratch_job import ScratchPlace
from supervisor.cli.drill.soak import run as soak
from supervisor.cli.invocation import JOB, Invocation, setting_options

if TYPE_CHECKING:
    from click import Context, Parameter


class _Positive(click.FloatRange):
    """A number above 0 that has an end: click takes nan and inf for numbers, and with them a drill would never be over."""

    def convert(self, value: float, param: Parameter | None, ctx: Context | None) -> float:
        """Return the number, or have click refuse it."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a number of hours, seconds or faults.", param, ctx)
        return number


_POSITIVE: Final = _Positive(min=0, min_open=True)
#: The step that a drill with a fault waits for.
_AT_STEP = 10


@click.command(options_metavar="[OPTIONS]")
@setting_options(*JOB, takes_command=True)
@click.option("--at-step", type=click.IntRange(min=1), metavar="N", help="Wait for this step (default: 10; resume: the first save).")
@click.option("--rank", type=click.IntRange(min=0), default=0, metavar="N", help="Put the fault into this rank (default: 0).")
@click.option("--patience-s", type=float, default=60.0, metavar="S", help="How long a hang or NaN may continue (default: 60).")
@click.option("--yes", is_flag=True, help="Drill also where the kernel (no Landlock) cannot keep CMD from writing into your own files.")
@click.option(
    "--deadline-s",
    type=_POSITIVE,
    default=1800.0,
    metavar="S",
    help="Give up after this long (default: 1800). Not for soak.",
)
@click.option(
    "--hours",
    type=_POSITIVE,
    default=1.0,
    metavar="H",
    help="For soak: all of it takes at most H hours (default: 1).",
)
@click.option(
    "--rate",
    type=_POSITIVE,
    default=12.0,
    metavar="R",
    help="For soak: R faults for each hour in which CMD trains (default: 12).",
)
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="For soak: the same draws as in an earlier soak, which printed N.")
@click.option("--scratch-dir", default="", metavar="DIR", help="Train in DIR (default: in the state directory).")
@click.option("--writable", multiple=True, metavar="DIR", help="CMD may also write in DIR. May be repeated.")
@click.argument("kind", metavar="KIND -- CMD...", type=click.Choice((*faults.KINDS, resume.KIND, soak.KIND)))
def command(  # noqa: PLR0913  one for each option
    invocation: Invocation,
    *,
    kind: str,
    at_step: int | None,
    rank: int,
    patience_s: float,
    yes: bool,
    deadline_s: float,
    hours: float,
    rate: float,
    seed: int | None,
    scratch_dir: str,
    writable: tuple[str, ...],
) -> int:
    """KIND is kill, hang, oom, nan, bitrot, preempt, resume or soak. CMD trains in a scratch directory, under a name of its own.

    The options of a run stand before or after `drill`.

    resume compares what a restarted job loads and its losses with the job before the kill.

    soak puts in random faults for hours, and compares the losses with those of a run without faults.
    """
    settings, words = invocation.settings_and_command()
    place = ScratchPlace(scratch_dir, writable, may_escape=yes)
    if kind == soak.KIND:
        return soak.drill(settings, words, soak.SoakOrder(hours, rate, seed, place))
    if kind == resume.KIND:
        return resume.drill(settings, words, resume.ResumeOrder(at_step or 1, rank, deadline_s, place))
    return faults.drill(settings, words, faults.DrillOrder(kind, at_step or _AT_STEP, rank, patience_s, deadline_s, place))
