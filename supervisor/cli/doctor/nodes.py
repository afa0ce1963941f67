"""`supervise doctor --nodes`: starts health/nodecheck in a process of its own, since it needs torch."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from supervisor.cli.progress import SECONDS, progress
from supervisor.errors import ExitCode, SuperviseError

if TYPE_CHECKING:
    from collections.abc import Callable

_ARGPARSE_REFUSED = 2
_LAST_PORT = 65535
_POLL_S = 0.1
#: Until there is a verdict: its deadline, and for the start of all ranks (health/nodecheck/__main__.py).
_LONGEST_S = 120.0
_NAMES = ("nnodes", "node_rank", "nproc_per_node", "master", "rehearse")


_COUNT = click.IntRange(min=0)
_OPTIONS = (
    click.option("--nodes", is_flag=True, help="Find the bad or slow node, GPU or link among several: start it on every node."),
    click.option("--nnodes", type=click.IntRange(min=1), metavar="N", help="With --nodes: the number of nodes."),
    click.option("--node-rank", type=_COUNT, metavar="N", help="With --nodes: the number of this node, from 0."),
    click.option("--nproc-per-node", type=_COUNT, metavar="N", help="With --nodes: ranks on this node (default: one for each GPU)."),
    click.option("--master", metavar="HOST:PORT", help="With --nodes: a free port of node 0."),
    click.option("--rehearse", multiple=True, metavar="FAULT", help="With --nodes: put in a fault, such as fail:5:0.2."),
)


def node_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options of the node check: `--nodes`, and those that go with it."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def check_nodes(values: dict[str, object], *, as_json: bool) -> int:
    """Run the check. Raises SuperviseError (64) where options lack, and what the check itself finds wrong it says itself."""
    spec = find_spec("health.nodecheck.__main__")
    if spec is None or spec.origin is None:
        raise SuperviseError("node check not found: health.nodecheck", hint="Install torch-supervise anew: `pip install -e .`.")
    _refuse_what_does_not_fit(values)
    argv = [sys.executable, "-P", spec.origin, *(["--json"] if as_json else [])]
    for name in _NAMES:
        value = values.get(name)
        for word in value if isinstance(value, tuple) else () if value is None else (value,):
            argv += ["--" + name.replace("_", "-"), str(word)]
    # its ranks print on this terminal, too
    with progress(wanted=not as_json, beside_output=True) as bar, subprocess.Popen(argv) as process:  # noqa: S603  our own module
        began = time.monotonic()
        try:
            while (code := process.poll()) is None:
                bar.at("node check: measuring, once it runs on every node", time.monotonic() - began, _LONGEST_S, SECONDS)
                time.sleep(_POLL_S)
        except BaseException:
            process.kill()
            raise
    return ExitCode.USAGE if code == _ARGPARSE_REFUSED else code


def _refuse_what_does_not_fit(values: dict[str, object]) -> None:
    nnodes, rank, master = (values.get(name) for name in ("nnodes", "node_rank", "master"))
    many = isinstance(nnodes, int) and nnodes > 1
    if many and (not master or rank is None):
        message = "--nnodes needs --node-rank and --master"
    elif isinstance(rank, int) and rank >= (nnodes if isinstance(nnodes, int) else 1):
        message = f"--node-rank {rank} is not below --nnodes {nnodes or 1}: the first node is 0"
    elif master and not _is_address(str(master)):
        message = f"--master {master} is not HOST:PORT"
    else:
        return
    all_ = nnodes if many else "N"
    hint = f"On each node: `supervise doctor --nodes --nnodes {all_} --node-rank N --master HOST:PORT`, HOST that of rank 0."
    raise SuperviseError(message, hint=hint, exit_code=ExitCode.USAGE)


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port[:6]) <= _LAST_PORT


def refuse_without_nodes(values: dict[str, object]) -> None:
    """Raise SuperviseError (64) where an option of the node check is given without --nodes."""
    for name in _NAMES:
        if values.get(name) not in (None, ()):
            option = "--" + name.replace("_", "-")
            raise SuperviseError(
                f"{option} requires --nodes", hint=f"Write `supervise doctor --nodes {option} …`.", exit_code=ExitCode.USAGE
            )
