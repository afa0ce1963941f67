"""The words of a job on a cluster: the options of `supervise`, as the printing command got them, and CMD for several nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisor.config.settings import ROWS
from supervisor.errors import ExitCode, SuperviseError
from supervisor.knobs import torchrun

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from supervisor.cli.invocation import Invocation
    from supervisor.core.setting_columns import SettingRow


def option_words(invocation: Invocation, *, without: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the options of a command line again: --config, the flags, each --set; without the keys in `without`."""
    config = () if invocation.config is None else ("--config", invocation.config)
    given = [row for row in ROWS if row.key in invocation.flags and row.key not in without]
    assigned = [text for text in invocation.assignments if text.partition("=")[0].strip() not in without]
    flags = (word for row in given for word in _words_of(row, invocation.flags[row.key]))
    return (*config, *flags, *(word for text in assigned for word in ("--set", text)))


def _words_of(row: SettingRow, value: Any) -> Iterator[str]:  # noqa: ANN401  click's value: a text, a truth or several texts
    if row.kind is bool:
        yield row.flag
    else:
        for text in value if isinstance(value, (tuple, list)) else (value,):
            yield from (row.flag, str(text))


def over_nodes(command: Sequence[str], options: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return CMD in three parts: its first words, those for several nodes, and its other words.

    options: torchrun's, by name; those of CMD stay as they are. A command that is not torchrun gets none. Raises SuperviseError (64) for
    `torchrun --standalone`, which is one node.
    """
    launch = torchrun.recognise(command)
    if launch is None:
        return tuple(command), (), ()
    if options:
        refuse_standalone(command)
    own = torchrun.own_arguments(launch)
    given = {word.partition("=")[0].lstrip("-").replace("_", "-") for word in own if word.startswith("--")}
    added = tuple(f"--{name}={value}" for name, value in options.items() if name not in given)
    return launch.head, added, launch.args


def refuse_standalone(command: Sequence[str]) -> None:
    """Raise SuperviseError (64) for `torchrun --standalone`, which is one node."""
    launch = torchrun.recognise(command)
    if launch is not None and torchrun.is_standalone(launch, {}):
        raise SuperviseError("torchrun --standalone runs on one node", hint="Leave --standalone out, or --nodes.", exit_code=ExitCode.USAGE)
