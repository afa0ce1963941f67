"""`python -m health.nodecheck`: a node check, as one rank of torchrun's, or of all ranks of this node, which it then starts itself.

The rank that leads prints the report. Every rank exits with 0, with 69 where anything is FAILED, or with 75 where no report could be had.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

if __name__ == "__main__" and not __package__:
    # run by path. Not by way of sys.path: a user's own package `health` may be found there first
    _spec = PathFinder.find_spec("health", [str(Path(__file__).resolve().parents[2])])
    if _spec is None or _spec.loader is None:
        sys.exit(f"{__file__}: no package around it")
    sys.modules["health"] = module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["health"])

from health.nodecheck import report, schedule
from health.nodecheck.liveness import Options, Peers
from health.nodecheck.model import Fault, FaultKind
from health.nodecheck.monitor import PipeReporter, WorkerMonitor, state_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from health.model import Json
    from health.nodecheck.measure import TorchStore

#: Nothing was found out: try again (sysexits: EX_TEMPFAIL).
NO_REPORT: Final = 75
_PR_SET_PDEATHSIG: Final = 1
_LEAVE_S: Final = 5.0
#: For torch to be loaded (over a network disk by many ranks at once: minutes), and for all to leave, beside the deadline.
_START_S: Final = 180.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Take part, or start all ranks of this node. Returns the exit code."""
    given = _parser().parse_args(arguments)
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return _start_ranks(given)
    options = Options(
        int(os.environ["WORLD_SIZE"]), given.deadline, trial_s=given.trial_timeout, rounds=given.rounds, faults=tuple(given.rehearse)
    )
    return _take_part(int(os.environ["RANK"]), options, as_json=given.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m health.nodecheck",
        description="Find the bad or slow node, GPU or link. Start it on every node: under torchrun, or by itself with --nnodes.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--deadline", type=float, default=60.0, metavar="S", help="there is a verdict by then (default 60)")
    parser.add_argument("--trial-timeout", type=float, default=8.0, metavar="S", help="for one operation of a pair (default 8)")
    parser.add_argument(
        "--rounds", type=int, default=schedule.ROUNDS, metavar="N", help=f"meetings of each rank (default {schedule.ROUNDS})"
    )
    kinds = ", ".join(f"{kind}:RANK:AMOUNT" if kind is not FaultKind.SLOW_LINK else f"{kind}:A-B:SECONDS" for kind in FaultKind)
    parser.add_argument("--rehearse", type=_fault, action="append", default=[], metavar="FAULT", help=f"put a fault in: {kinds}")
    own = parser.add_argument_group("without torchrun")
    own.add_argument("--nnodes", type=int, default=1, metavar="N")
    own.add_argument("--node-rank", type=int, default=0, metavar="N")
    own.add_argument("--nproc-per-node", type=int, default=0, metavar="N", help="default: the number of GPUs, or 1")
    own.add_argument("--master", default="", metavar="HOST:PORT", help="a free port of the node of rank 0; wanted with --nnodes")
    return parser


def _fault(text: str) -> Fault:
    try:
        return Fault.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


# --- one rank -------------------------------------------------------------------------------------------------------------------------


def _take_part(rank: int, options: Options, *, as_json: bool) -> int:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns that a peer is gone, and the trial looks for that
    try:
        import torch  # noqa: F401, PLC0415  before the fork, so that it is loaded once; it touches no GPU by itself
    except (ImportError, OSError) as error:  # OSError: a library of CUDA's that is not there
        sys.stderr.write(
            f"node check failed: rank {rank}: torch cannot be imported by {sys.executable}: {error}\nInstall it: `pip install torch`.\n"
        )
        return NO_REPORT

    read_end, write_end = os.pipe()
    pid = os.fork()  # no thread runs yet
    if not pid:
        os.close(read_end)
        _measure(rank, options, PipeReporter(write_end))
    os.close(write_end)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    monitor = None
    try:
        store = _store(options, serve=rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True")
        monitor = WorkerMonitor(rank, pid, read_end, store, options, first=os.environ.get("LOCAL_RANK", "0") == "0")
        outcome = monitor.watch()
        if outcome["told_by"] == rank:
            _print(outcome, as_json=as_json)
        _leave(store, rank, options)
    except (RuntimeError, TimeoutError) as error:  # torch's DistError is a RuntimeError
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        sys.stderr.write(
            f"node check failed: rank {rank}: {' '.join(str(error).split())[:300]}\nIs the node at {where} alive and reachable?\n"
        )
        return NO_REPORT
    finally:
        if monitor is not None:
            monitor.kill()
        else:
            os.kill(pid, signal.SIGKILL)
    return 0 if outcome["fit"] else report.UNFIT


def _store(options: Options, *, serve: bool) -> TorchStore:
    from health.nodecheck.measure import TorchStore  # noqa: PLC0415  torch

    run = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return TorchStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), serve=serve, run=run, timeout_s=options.join_s)


def _measure(rank: int, options: Options, reporter: PipeReporter) -> NoReturn:
    """Measure and report until the end. It runs in a process of its own, which ends here."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # its monitor's death ends it, also where it hangs
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # a timeout is raised, and does not end the process
        from health.nodecheck import measure, worker  # noqa: PLC0415  torch

        me = measure.member(rank, int(os.environ.get("LOCAL_RANK", "0")))
        store = _store(options, serve=False)
        store.put(f"member/{rank}", json.dumps(me.to_json()))
        peers = Peers(store, options)
        members = worker.wait_members(store, peers, options.world, reporter)
        shared = worker.is_shared(me, [*members.values()])
        meter = measure.Meter(store, me, reporter.step, measure.MeterOptions(shared, options.trial_s, options.faults))
        worker.take_part(worker.Participant(store, peers, me, meter, reporter), options)
        code = 0
    except BrokenPipeError:
        code = 0
    except BaseException:  # noqa: BLE001  whatever it was, this process ends here
        traceback.print_exc()
    finally:
        os._exit(code)  # no one else's exit handlers, and no waiting for threads that hang


def _leave(store: TorchStore, rank: int, options: Options) -> None:
    """Go once all have read the report: torchrun ends all when one ends in failure. Rank 0 may serve the store, so it goes last."""
    until = time.monotonic() + _LEAVE_S
    with contextlib.suppress(RuntimeError):  # the store is gone
        store.put(f"read/{rank}", "1")
        _wait_all(store, "read", options.world, until)
        store.put(f"left/{rank}", "1")
        if rank == 0:
            _wait_all(store, "left", options.world, until)


def _wait_all(store: TorchStore, word: str, world: int, until: float) -> None:
    for other in range(world):
        while not store.has(f"{word}/{other}") and time.monotonic() < until:
            time.sleep(0.05)


def _print(outcome: dict[str, Json], *, as_json: bool) -> None:
    sys.stdout.write(json.dumps(outcome) + "\n" if as_json else "".join(line + "\n" for line in report.lines(outcome)))
    sys.stdout.flush()


# --- all ranks of this node -----------------------------------------------------------------------------------------------------------


def _start_ranks(given: argparse.Namespace) -> int:
    """Start the ranks of this node as torchrun would. Returns what who has the report knows; NO_REPORT where a rank ended otherwise."""
    if given.nnodes > 1 and not given.master:
        sys.stderr.write("node check failed: --nnodes without --master: name a free port of the node of rank 0, HOST:PORT, on every node\n")
        return 2
    host, _, port = (given.master or f"127.0.0.1:{_free_port()}").rpartition(":")
    count = given.nproc_per_node or len([*Path("/proc/driver/nvidia/gpus").glob("*")]) or 1
    argv = [sys.executable, "-P", str(Path(__file__).resolve()), *sys.argv[1:]]
    ranks = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        for local in range(count):
            rank = given.node_rank * count + local
            numbers = {"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": given.nnodes * count, "MASTER_PORT": port}
            environ = {**os.environ, **{name: str(value) for name, value in numbers.items()}, "MASTER_ADDR": host}
            ranks.append(subprocess.Popen(argv, env=environ))  # noqa: S603  this very program
        until = time.monotonic() + given.deadline + _START_S
        codes = {_ended(process, until) for process in ranks}
        return report.UNFIT if report.UNFIT in codes else NO_REPORT if any(codes) else 0
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        for process in ranks:
            process.terminate()
        for process in ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)


def _ended(rank: subprocess.Popen[bytes], until: float) -> int:
    """Return the exit code of a rank; NO_REPORT of one that is not through by then: it hangs where the node check does not watch it yet."""
    try:
        return rank.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"node check failed: process {rank.pid} does not end: it is {state_of(rank.pid)}\n")
        return NO_REPORT


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(code: int) -> NoReturn:
    """End at once: what torch takes down on its way out takes seconds where many do it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _end(main())
