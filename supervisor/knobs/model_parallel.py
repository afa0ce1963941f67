"""Finds how many ranks hold one copy of the model together: by --model-parallel, else by the flags of a recognised program.

The flags of programs.toml are factors: tensor, pipeline and context (or sequence) parallelism multiply. Expert parallelism is not a factor:
it borrows the ranks of the others. FSDP and HSDP are data parallelism. A fact of the script's text alone counts at once, unlike a knob:
nothing is set by it.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from supervisor.core.nodes import replicas
from supervisor.core.nodes.replicas import ONE_RANK, Replica
from supervisor.errors import ExitCode, SuperviseError
from supervisor.knobs import bindings, config_files, launcher, torchrun
from supervisor.knobs.bindings import FileKey, Flag, Override
from supervisor.knobs.program_knobs import in_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from supervisor.config.settings import Settings
    from supervisor.knobs.launcher import LauncherCommand
    from supervisor.knobs.program_knobs import Lookup
    from supervisor.knobs.programs import Program

FLAG = "--model-parallel"
#: Factors in DeepSpeed's configuration (deepspeed.ai/docs/config-json; runtime/config.py reads the second).
_DEEPSPEED = ("tensor_parallel.autotp_size", "sequence_parallel_size")


def find(settings: Settings, programs: Sequence[Program], lookup: Lookup) -> Replica:
    """Return the ranks of a replica. Raises SuperviseError (78) where the setting and the program's flags differ."""
    declared = settings.job.model_parallel
    shown = next((replica for program in programs if (replica := _shown(program, lookup)) is not None), None)
    if not declared:
        return shown or ONE_RANK
    where = settings.origin("job.model_parallel")
    source = f"{FLAG} {declared}" if where.kind == "command line" else f"job.model_parallel = {declared} ({where})"
    if shown is not None and shown.source and shown.size != declared:
        raise SuperviseError(
            f"two sizes of a replica: {source}, and the command gives {shown.size} ({shown.source})",
            hint=f"Leave {FLAG} out, or correct one of them; --set knobs.program=none ignores the command's flags.",
            exit_code=ExitCode.CONFIG,
        )
    return Replica(declared, source)


def _shown(program: Program, lookup: Lookup) -> Replica | None:
    """Return what a program's flags and files say; None where they say nothing."""
    try:
        given = dict(_factors(program, lookup))
    except (config_files.EditError, OSError, ValueError) as error:
        return Replica(unread=str(error))
    if not given:
        return None
    wrong = next((f"{how} {value}" for how, value in given.items() if not torchrun.figure(value)), "")
    if wrong:
        return Replica(unread=f"{wrong} is not a number")
    values = {how: int(value) for how, value in given.items()}
    factors = {how: value for how, value in values.items() if value > 1} or values
    return Replica(prod(values.values()), " × ".join(f"{how} {value}" for how, value in factors.items()))  # noqa: RUF001 (the sign)


def _factors(program: Program, lookup: Lookup) -> Iterator[tuple[str, str]]:
    """Yield each factor that is given, as a person would write its place, and its text."""
    for names in program.model_parallel:
        if (row := _factor(program, lookup, names)) is not None:
            yield row
    for flag in program.deepspeed:
        for key in _DEEPSPEED:
            place = FileKey(Flag((flag,)), key, deepspeed=True)
            named = config_files.file_text(lookup.argv, place, lookup.cwd)
            value = None if named is None else config_files.key_in(*named, key)
            if value not in {None, "0"}:  # 0: it is off
                yield bindings.describe(place, value), value


def _factor(program: Program, lookup: Lookup, names: tuple[str, ...]) -> tuple[str, str] | None:
    """Return one factor from the command, else from a file that it names, else from a keyword in the script's text."""
    flag = Flag(tuple(name for name in names if name.startswith("-")))
    if flag.names and (value := bindings.read(lookup.argv, flag)) is not None:
        return flag.names[0], value
    for name in names:
        if not name.startswith("-") and (value := bindings.read(lookup.argv, Override(name))) is not None:
            return f"{name}=", value
        if name.startswith("-") and (row := in_config(lookup, program, Flag((name,)))) is not None:
            return f"{name.lstrip('-')} =", row[0]
    keywords = (lookup.text.keywords.get(name.rpartition(".")[2]) for name in names if "." in name and not name.startswith("-"))
    number = next((keyword for keyword in keywords if keyword), None)
    return None if number is None else (f"the script's {names[0].rpartition('.')[2]} =", str(number))


def require_whole(replica: Replica, lookup: Lookup, command: Sequence[str]) -> None:
    """Raise SuperviseError (78) where the ranks of the command are known, and hold no whole number of replicas."""
    elastic = torchrun.recognise(command, path=lookup.environ.get("PATH"))
    least, most = torchrun.least_nodes(elastic, lookup.environ), torchrun.most_nodes(elastic, lookup.environ)
    per_node = torchrun.size(elastic, lookup.environ)[0]
    if elastic is None:
        per_node, least, most = _launched(launcher.recognise(command, lookup.environ.get("PATH"))), 1, 1
    misfit = replicas.misfit(replica.size, per_node, least, most)
    if misfit is None:
        return
    why, option = misfit
    start = f"Start with {option}" if elastic is not None else f"Start {replicas.whole(per_node, replica.size) or replica.size} ranks"
    hint = f"{start}, or name the ranks of one replica: {FLAG} N."
    raise SuperviseError(f"{replicas.in_words(replica.size, replica.source)}, and {why}", hint=hint, exit_code=ExitCode.CONFIG)


def _launched(started: LauncherCommand) -> int:
    """Return the ranks that accelerate's or DeepSpeed's launcher starts on all nodes; 0: its command does not give them."""
    values = {option.key: option.value for option in started.options()}
    factors = [values.get("--num-processes", "")]  # accelerate's counts all nodes
    if started.name == "deepspeed":
        factors = [values.get("--num-gpus", ""), values.get("--num-nodes", "" if "--hostfile" in values else "1")]
    return prod(map(torchrun.figure, factors))
