"""`supervise print torchrun`: a script that starts CMD by torchrun, on this node alone or on several like it (docs/guides/clusters.md)."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

import click

from supervisor.cli.invocation import BEFORE_CMD, JOB, Invocation, setting_options
from supervisor.cli.printing.job_words import option_words
from supervisor.cli.printing.node_facts import NodeFacts, print_for_this_node
from supervisor.errors import ExitCode, SuperviseError
from supervisor.knobs import torchrun
from supervisor.knobs.python_command import shim_mode, split_python

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: The port of torchrun's own rendezvous on the first node.
_PORT: Final = 29400
#: With one of them CMD says itself on how many nodes it runs.
_PLACING: Final = ("standalone", "nnodes", "rdzv-backend", "rdzv-endpoint", "master-addr", "node-rank")
_RANKS: Final = "nproc-per-node"


@click.command(options_metavar=BEFORE_CMD)
@setting_options(*JOB, takes_command=True)
def print_command(invocation: Invocation) -> int:
    """CMD is `python train.py …` or `torchrun … train.py …`; without it train.py. The options of a run stand before `--`."""
    return print_for_this_node(lambda facts: script(facts, option_words(invocation), invocation.command or ("train.py",)))


def script(facts: NodeFacts, options: Sequence[str], command: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the script. options: of supervise. Raises SuperviseError (64) for a command that is not a Python program."""
    launch = _launch(command)
    supervise = shlex.join(["supervise", *options, "--"])
    head, rest = shlex.join(launch.head), shlex.join(launch.args)
    ranks = "" if torchrun.is_given(launch, {}, _RANKS) else f" --{_RANKS}={facts.ranks}"
    yield "#!/bin/bash"
    yield f"# torchrun on {facts.title()}"
    if ranks:
        yield "# one rank for each GPU" if facts.gpus else "# print it on a node of the job: here one rank is all that is known to fit"
    for line in facts.loaders():
        yield f"# {line}"
    if len(facts.numa_nodes) > 1:
        yield "# The GPUs hang on several NUMA nodes: where `torchrun --help` shows it, --numa-binding=node keeps each rank near its GPU."
    if any(torchrun.is_given(launch, {}, option) for option in _PLACING):
        yield f"exec {supervise} {head}{ranks} {rest}"
        return
    yield "# This node alone. With NNODES and HEAD (the name of the first node), started on each of them: several nodes like it."
    yield 'if [ "${NNODES:-1}" = 1 ]; then'
    yield f"    exec {supervise} {head} --standalone{ranks} {rest}"
    yield "fi"
    yield "# the first node serves the rendezvous, at torchrun's own port"
    meeting = f'--rdzv-backend=c10d --rdzv-endpoint="${{HEAD:?the name of the first node}}:{_PORT}"'
    yield f'exec {supervise} {head} --nnodes="$NNODES"{ranks} {meeting} {rest}'


def _launch(command: Sequence[str]) -> torchrun.Torchrun:
    """Return CMD as torchrun starts it. Raises SuperviseError (64) for any other program."""
    launch = torchrun.recognise(command)
    if launch is not None:
        return launch
    python = split_python(command)
    if python is None and command[0].endswith(".py"):
        return torchrun.Torchrun(("torchrun",), tuple(command), "torchrun", None)
    if python is None or python.kind not in {"script", "module"} or shim_mode(command) == "launcher":
        raise SuperviseError(
            f"not a Python program that torchrun could start: {shlex.join(command[:3])}",
            hint="Write it as in `supervise print torchrun -- python train.py --lr=1`.",
            exit_code=ExitCode.USAGE,
        )
    is_plain = python.interpreter in {"python", "python3"} and not python.flags
    head = ("torchrun",) if is_plain else (python.interpreter, *python.flags, "-m", "torch.distributed.run")
    program = ("-m", python.target) if python.kind == "module" else (python.target,)
    return torchrun.Torchrun(head, (*program, *python.arguments), "torchrun", None)
