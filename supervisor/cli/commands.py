"""The commands that stand beside a run: `gpus`, `checkpoints`, `plan`, `drill` and `doctor`; two have files of their own.

In: click's values. Out: the exit code of what does the work, which is imported when it is asked for. What can fail is a SuperviseError of
its. Nothing is kept.
"""

from __future__ import annotations

import click

from supervisor.cli.checkpoints import commands
from supervisor.cli.doctor import command as doctor_command
from supervisor.cli.invocation import add, commanded, given, options, running, shared


def add_to(group: click.Group) -> None:
    """Add them to the group of all commands."""
    as_json = click.Option(["--json", "as_json"], is_flag=True, help="As JSON.")
    gpus = click.Group("gpus", invoke_without_command=True, no_args_is_help=False, help="Show the GPUs that are kept out of use, and why.")
    gpus.callback = _gpus
    gpus.params = [*options(shared), as_json]
    add(gpus, "ls", _gpus_ls, [*options(shared), as_json], "List this node's GPUs, and which are kept out of use, since when and why.")
    which = click.Argument(["gpu"], metavar="UUID|all")
    add(gpus, "clear", _gpus_clear, [*options(shared), which], "Put a GPU (or all) back into use, once it is repaired or replaced.")
    group.add_command(gpus)
    commands.add_to(group)
    cause = click.Option(["--cause"], metavar="CAUSE", help="The ladder of one cause only, and what it would do failure by failure.")
    add(
        group,
        "plan",
        _plan,
        [*options(shared), *options(running), cause, as_json],
        "Show, without running it, what a recovery may change of CMD, and what each cause of a failure would be answered with.",
    )
    add(
        group,
        "drill",
        _drill,
        [
            *options(shared),
            *options(running),
            click.Option(["--at-step"], type=click.IntRange(min=1), default=10, help="Once this step is made (default: 10)."),
            click.Option(["--rank"], type=click.IntRange(min=0), default=0, help="The rank that it happens to (default: 0)."),
            click.Option(["--patience-s"], type=float, default=60.0, help="How long a hang or NaN may go unnoticed (default: 60)."),
            click.Option(["--finish"], is_flag=True, help="Let the job run on after the recovery was shown."),
            click.Option(
                ["--yes"], is_flag=True, help="nan and bitrot: what they do to the checkpoints that the command writes is all right."
            ),
            click.Argument(["kind"], metavar="KIND -- CMD...", type=click.Choice(("kill", "hang", "oom", "nan", "bitrot", "preempt"))),
        ],
        "Run CMD with one fault in it (KIND: kill, hang, oom, nan, bitrot or preempt), and report what was recovered and what it cost.",
    )
    doctor_command.add_to(group)


def _gpus(as_json: bool, **values: object) -> int:  # noqa: FBT001  click calls with keywords
    context = click.get_current_context()
    context.obj = given(values)
    return 0 if context.invoked_subcommand is not None else _gpus_ls(as_json, **values)


def _gpus_ls(as_json: bool, **values: object) -> int:  # noqa: FBT001
    settings = given(values).without_command().settings()
    from supervisor.cli.gpus import ls  # noqa: PLC0415  for this command only

    return ls(settings, as_json=as_json)


def _gpus_clear(gpu: str, **values: object) -> int:
    settings = given(values).without_command().settings()
    from supervisor.cli.gpus import clear  # noqa: PLC0415  for this command only

    return clear(settings, gpu)


def _plan(cause: str | None, as_json: bool, **values: object) -> int:  # noqa: FBT001  click calls with keywords
    settings, command = commanded(given(values))
    from supervisor.cli.plan import plan  # noqa: PLC0415  for this command only

    return plan(settings, command, cause, as_json=as_json)


def _drill(  # noqa: PLR0913, PLR0917  one for each option, by name
    kind: str,
    at_step: int,
    rank: int,
    patience_s: float,
    finish: bool,  # noqa: FBT001  click calls with keywords
    yes: bool,  # noqa: FBT001
    **values: object,
) -> int:
    settings, command = commanded(given(values))
    from supervisor.cli.import_guard import pin_our_packages  # noqa: PLC0415  for what runs a job only

    pin_our_packages()
    from supervisor.cli.drill import Order, drill  # noqa: PLC0415

    return drill(settings, command, Order(kind, at_step, rank, patience_s, finish, yes))
