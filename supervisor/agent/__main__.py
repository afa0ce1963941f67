"""`python -P supervisor/agent/__main__.py --link-fd N --output-fd M [...] -- <torchrun's arguments>`: a torchrun that asks first.

Exit codes: 0 after success, the code that the supervisor ordered, 2 after wrong arguments (torchrun's own), 1 after a failure of the agent
or the rendezvous, UNFIT if torch or the system does not have what we need (then nothing ran). Only torch parses torchrun's arguments.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import runpy
import socket
import sys
import traceback
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

if not __package__:
    # run by path. Not by way of sys.path: the torch may be another interpreter's, and a `supervisor` of others' (supervisord, a user's
    # own on PYTHONPATH) may be found there first
    _spec = PathFinder.find_spec("supervisor", [str(Path(__file__).resolve().parents[2])])
    if _spec is None:
        sys.exit(f"{__file__}: no package around it")
    _package = module_from_spec(_spec)
    sys.modules["supervisor"] = _package
    if _spec.loader is not None:  # without an __init__.py: supervisord took it away with itself
        _spec.loader.exec_module(_package)

from supervisor.agent import signals
from supervisor.agent.link import SupervisorLink
from supervisor.agent.messages import AgentFailed, AgentFinished, AgentHello, AgentUnfit
from supervisor.agent.selfcheck import UNFIT


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="supervisor/agent", allow_abbrev=False)
    parser.add_argument("--link-fd", type=int, required=True, help="stream socket to the supervisor")
    parser.add_argument("--output-fd", type=int, required=True, help="packet socket to the guardian, for the ranks' pipes")
    parser.add_argument("--grace-s", type=float, default=5.0, help="from TERM to KILL for the peers of a dead rank")
    streams = ["one", "two", "tty", "tty-out", "tty-err"]
    parser.add_argument("--streams", choices=streams, default="two", help="what our stdout and stderr are")
    parser.add_argument("--window", default="24x80", help="ROWSxCOLUMNS of the terminal")
    parser.add_argument("--entry", choices=["torchrun", "run", "launch"], default="torchrun", help="or python -m torch.distributed.NAME")
    parser.add_argument("torchrun", nargs=argparse.REMAINDER)
    return parser.parse_args()


def _socket(fd: int) -> socket.socket:
    os.set_inheritable(fd, False)  # noqa: FBT003  positional only
    return socket.socket(fileno=fd)


def main() -> int:
    """Run the job; returns the exit code."""
    ignore_signals = signals.guard()
    gc.disable()  # a collection during torch's import finds nothing, and costs a sixth of it
    options = _options()
    args: list[str] = options.torchrun[1:] if options.torchrun[:1] == ["--"] else options.torchrun
    link = SupervisorLink(_socket(options.link_fd))

    from supervisor.agent import selfcheck  # noqa: PLC0415  imports torch: after the signals are in our hands

    if why := selfcheck.no_torch():
        link.send(AgentFailed(0, why))
        sys.stderr.write(f"{why}\n")
        return 1
    misfits = selfcheck.missing() + selfcheck.no_pidfds()
    if misfits:
        link.send(AgentUnfit(0, tuple(misfits)))
        return UNFIT

    from supervisor.agent.attempt_controller import AttemptController  # noqa: PLC0415  imports torch, which fits

    controller = AttemptController(link, grace_s=options.grace_s, ignore_signals=ignore_signals)
    try:
        code = _run(controller, link, options, args)
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
        if not controller.attempt and code:
            link.send(AgentFailed(0, f"torchrun did not accept its arguments (exit code {code})", refused=True))
    except BaseException:  # noqa: BLE001  whatever torch raises: a rendezvous that failed, an executable that is not there
        link.send(AgentFailed(controller.attempt, traceback.format_exc()))
        traceback.print_exc()
        code = 1
    controller.finish()
    return code


def _run(controller: Any, link: SupervisorLink, options: argparse.Namespace, args: list[str]) -> int:  # noqa: ANN401  a Director, known after torch
    """Run torchrun from parsing to its end. Raises torch's own exceptions, SystemExit where the supervisor orders us to leave."""
    import torch  # noqa: PLC0415
    from torch.distributed import launch, run  # noqa: PLC0415
    from torch.distributed.elastic.utils.logging import get_logger  # noqa: PLC0415
    from torch.distributed.launcher import api  # noqa: PLC0415

    from supervisor.agent import elastic, selfcheck  # noqa: PLC0415
    from supervisor.agent.spawn import OutputChannel  # noqa: PLC0415

    entry = launch if options.entry == "launch" else run
    sys.argv[0] = "torchrun" if options.entry == "torchrun" else str(entry.__file__)  # what its usage message calls itself
    parsed = entry.parse_args(args)
    nnodes = run.parse_min_max_nnodes(parsed.nnodes)
    if getattr(parsed, "run_path", False):
        link.send(AgentUnfit(0, ("--run-path: the ranks are then forks of torchrun itself",)))
        return UNFIT
    rows, columns = (int(n) for n in options.window.split("x"))
    output = OutputChannel(_socket(options.output_fd), options.streams, (rows, columns))
    elastic.install(api, controller, output, nodes=nnodes[1])
    hello = AgentHello(
        0,
        pid=os.getpid(),
        nnodes=nnodes,
        nproc=run.determine_local_world_size(parsed.nproc_per_node),
        max_restarts=_given_max_restarts(run.get_args_parser(), args, launch=options.entry == "launch"),
        torch=str(torch.__version__),
        rdzv_backend="c10d" if parsed.standalone else parsed.rdzv_backend,
        tee=str(parsed.tee),
        versions=_versions(torch),
    )
    gc.freeze()
    gc.enable()
    link.send(hello)
    for line in selfcheck.missing(selfcheck.loaded()):
        sys.stderr.write(f"supervise: torch {torch.__version__} does not fit: {line}\n")
    controller.start()
    # not in torch's own log: every attempt has a store of its own in any case; this only keeps torch from serving a useless one
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    if options.entry == "launch":  # as `python -m` runs it, so that torch prints its deprecation in the same words
        del sys.modules[launch.__name__]
        sys.argv = [launch.__file__, *args]
        runpy.run_module(launch.__name__, run_name="__main__", alter_sys=True)
    else:
        if options.entry == "run":  # under `python -m` its log lines have no prefix
            vars(run)["logger"] = get_logger("__main__")
        run.run(parsed)  # type: ignore[no-untyped-call]  # torch is typed in part
    link.send(AgentFinished(controller.attempt))
    return 0


def _versions(torch: Any) -> dict[str, str]:  # noqa: ANN401  the module
    """Return the versions that the nodes of a job compare. A torch without CUDA has no NCCL."""
    versions = {"python": platform.python_version(), "torch": str(torch.__version__), "cuda": torch.version.cuda, "hip": torch.version.hip}
    nccl = torch.cuda.nccl.version() if hasattr(torch._C, "_nccl_version") else ()  # noqa: SLF001  torch's own function fails without it
    return {key: str(value) for key, value in (versions | {"nccl": ".".join(map(str, nccl))}).items() if value}


def _given_max_restarts(parser: argparse.ArgumentParser, args: list[str], *, launch: bool) -> int | None:
    """--max-restarts as the user gave it (argument or PET_MAX_RESTARTS), None where it is torch's default."""
    if launch:
        parser.add_argument("--use-env", "--use_env", action="store_true")
    if "PET_MAX_RESTARTS" not in os.environ:
        parser.set_defaults(max_restarts=None)
    given: int | None = parser.parse_args(args).max_restarts
    return given


if __name__ == "__main__":
    code = main()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            continue
    os._exit(code)  # threads may sit in C++ store waits, which destructors would join or trip over
