"""Checks whether the installed torch still has the form that the agent needs, and whether the system has pidfds.

It checks names, the arguments that are passed or must be accepted, and whether torch still *calls* the overridden methods (the names in a
function's byte code): an override that is never called would fail in silence. A torch that cannot be imported is an answer too.

The rows are all that this package touches of torch's elastic code; tests/agent/test_contract.py holds them against stored signatures of
several versions. Where a row does not fit or there are no pidfds, stock torchrun runs the command. ROUNDS are what dynamic_rounds.py
touches of the dynamic rendezvous: where one of them does not fit, torch's own rules hold there.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from dataclasses import dataclass
from types import CodeType

from supervisor.errors import TORCH_BUILDS

#: The agent's exit code if it refused to run because torch does not have this form, or the system has no pidfds.
UNFIT = 79
RUN = "torch.distributed.run"
LAUNCH = "torch.distributed.launch"
LAUNCHER = "torch.distributed.launcher.api"
SERVER = "torch.distributed.elastic.agent.server.api"
LOCAL = "torch.distributed.elastic.agent.server.local_elastic_agent"
PROCESSES = "torch.distributed.elastic.multiprocessing.api"
HANDLER = "torch.distributed.elastic.multiprocessing.subprocess_handler"
RENDEZVOUS = "torch.distributed.elastic.rendezvous.api"
DYNAMIC = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
C10D = "torch.distributed"


@dataclass(frozen=True, slots=True)
class TorchRequirement:
    """A name of torch's: `accepts` are arguments it must take, `calls` names its code must still use."""

    module: str
    name: str
    accepts: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()


ROWS: tuple[TorchRequirement, ...] = (
    TorchRequirement(RUN, "get_args_parser"),
    TorchRequirement(RUN, "run", ("args",), ("elastic_launch",)),
    TorchRequirement(LAUNCH, "main", ("args",)),
    TorchRequirement(LAUNCH, "parse_args", ("args",)),
    TorchRequirement(LAUNCHER, "launch_agent", calls=("LocalElasticAgent", "rdzv_handler", "shutdown")),
    TorchRequirement(LAUNCHER, "elastic_launch.__call__", calls=("launch_agent",)),
    TorchRequirement(LOCAL, "LocalElasticAgent.__init__", ("spec", "logs_specs", "start_method", "log_line_prefix_template")),
    TorchRequirement(
        LOCAL,
        "LocalElasticAgent._start_workers",
        ("worker_group",),
        ("start_processes", "_remaining_restarts", "use_agent_store", "master_port"),
    ),
    TorchRequirement(LOCAL, "LocalElasticAgent._stop_workers", ("worker_group",), ("_shutdown",)),
    TorchRequirement(LOCAL, "LocalElasticAgent._monitor_workers", ("worker_group",), ("_pcontext", "wait")),
    TorchRequirement(LOCAL, "LocalElasticAgent._shutdown", (), ("_pcontext", "close")),
    TorchRequirement(SERVER, "SimpleElasticAgent.run", (), ("_invoke_run", "_shutdown")),
    TorchRequirement(
        SERVER,
        "SimpleElasticAgent._invoke_run",
        (),
        (
            "_initialize_workers",
            "_monitor_workers",
            "_exit_barrier",
            "_remaining_restarts",
            "_restart_workers",
            "num_nodes_waiting",
            "monitor_interval",
        ),
    ),
    TorchRequirement(SERVER, "SimpleElasticAgent._initialize_workers", ("worker_group",), ("_rendezvous", "_start_workers")),
    TorchRequirement(SERVER, "SimpleElasticAgent._restart_workers", ("worker_group",), ("_stop_workers", "_initialize_workers")),
    TorchRequirement(
        SERVER,
        "SimpleElasticAgent._rendezvous",
        ("worker_group",),
        ("rdzv_handler", "next_rendezvous", "bootstrap_store_info", "master_port"),
    ),
    TorchRequirement(SERVER, "SimpleElasticAgent._exit_barrier"),
    TorchRequirement(SERVER, "RunResult", ("state",)),
    TorchRequirement(SERVER, "WorkerState.FAILED"),
    TorchRequirement(SERVER, "WorkerState.HEALTHY"),
    TorchRequirement(SERVER, "WorkerSpec", ("args", "max_restarts", "monitor_interval", "rdzv_handler")),
    TorchRequirement(PROCESSES, "get_subprocess_handler", ("entrypoint", "args", "env", "stdout", "stderr", "local_rank_id")),
    TorchRequirement(PROCESSES, "SubprocessContext._start", calls=("get_subprocess_handler",)),
    TorchRequirement(PROCESSES, "PContext.start", calls=("_terminate_process_handler", "_start")),
    TorchRequirement(
        HANDLER,
        "SubprocessHandler.__init__",
        ("entrypoint", "args", "env", "stdout", "stderr", "local_rank_id"),
        ("_stdout", "_stderr", "_popen"),
    ),
    TorchRequirement(HANDLER, "SubprocessHandler._popen", ("args", "env")),
    TorchRequirement(RENDEZVOUS, "RendezvousHandler.next_rendezvous"),
    TorchRequirement(RENDEZVOUS, "RendezvousHandler.num_nodes_waiting"),
    TorchRequirement(RENDEZVOUS, "RendezvousHandler.use_agent_store"),
    TorchRequirement(RENDEZVOUS, "RendezvousInfo", ("store", "rank", "world_size", "bootstrap_store_info")),
    TorchRequirement(C10D, "TCPStore"),
    TorchRequirement(C10D, "Store.compare_set"),
    TorchRequirement(C10D, "Store.check"),
    TorchRequirement(C10D, "Store.add"),
    TorchRequirement(C10D, "Store.get"),
    TorchRequirement(C10D, "Store.set"),
    TorchRequirement(C10D, "TCPStore.host"),
    TorchRequirement(C10D, "TCPStore.port"),
    TorchRequirement(C10D, "PrefixStore.underlying_store"),
)

ROUNDS: tuple[TorchRequirement, ...] = (
    TorchRequirement(DYNAMIC, "DynamicRendezvousHandler.__init__", (), ("_op_executor", "_state_holder")),
    TorchRequirement(
        DYNAMIC, "DynamicRendezvousHandler.next_rendezvous", (), ("_op_executor", "run", "_RendezvousExitOp", "_RendezvousJoinOp")
    ),
    TorchRequirement(
        DYNAMIC, "_DistributedRendezvousOpExecutor.run", ("state_handler", "deadline"), ("_RendezvousContext", "sync", "_settings")
    ),
    TorchRequirement(DYNAMIC, "_BackendRendezvousStateHolder.__init__", (), ("_settings",)),
    TorchRequirement(DYNAMIC, "_BackendRendezvousStateHolder.state"),
    TorchRequirement(DYNAMIC, "_BackendRendezvousStateHolder.sync", (), ("_sanitize",)),
    TorchRequirement(
        DYNAMIC, "_BackendRendezvousStateHolder._sanitize", (), ("last_heartbeats", "keep_alive_interval", "keep_alive_max_attempt")
    ),
    TorchRequirement(DYNAMIC, "_RendezvousContext", ("node", "state", "settings")),
    TorchRequirement(
        DYNAMIC,
        "_RendezvousState.__init__",
        (),
        ("participants", "last_heartbeats", "wait_list", "complete", "closed", "deadline"),
    ),
    TorchRequirement(DYNAMIC, "_RendezvousExitOp.__call__", ("ctx", "deadline"), ("participants",)),
    TorchRequirement(DYNAMIC, "_RendezvousJoinOp.__call__", ("ctx", "deadline"), ("participants", "complete", "deadline")),
    TorchRequirement(DYNAMIC, "_Action.MARK_RENDEZVOUS_COMPLETE"),
    TorchRequirement(DYNAMIC, "RendezvousSettings", ("min_nodes", "max_nodes", "timeout", "keep_alive_interval", "keep_alive_max_attempt")),
    TorchRequirement(DYNAMIC, "RendezvousTimeout", ("join", "last_call")),
)


def no_torch() -> str:
    """Return why torch cannot be imported at all, and what helps; "" where it can. Stock torchrun could not run then either."""
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError as e:
        if e.name == "torch":
            return f"ModuleNotFoundError: No module named 'torch': install it with: {sys.executable} -m pip install torch ({TORCH_BUILDS})"
        return f"{type(e).__name__}: {e}: torch cannot be imported by {sys.executable}"
    except Exception as e:  # noqa: BLE001  a torch that breaks on import breaks in any way it likes
        return f"{type(e).__name__}: {e}: torch cannot be imported by {sys.executable}"
    return ""


def no_pidfds() -> list[str]:
    """Why this system gives no pidfd, of which the agent holds one for each rank: Linux before 5.3, or a sandbox that forbids the call."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return [f"pidfd_open: {error.strerror}"]
    return []


def missing(rows: tuple[TorchRequirement, ...] = ROWS) -> list[str]:
    """Return the parts of torch that do not fit, as "module:name: why"."""
    misfits = [(row, _misfit(row)) for row in rows]
    return [f"{row.module}:{row.name}: {why}" for row, why in misfits if why]


def _names(code: CodeType) -> set[str]:
    """Every name that a function's code uses, comprehensions and inner functions included."""
    used = {*code.co_names, *code.co_varnames, *code.co_freevars}
    return used.union(*(_names(c) for c in code.co_consts if isinstance(c, CodeType)))


def _misfit(row: TorchRequirement) -> str:
    try:
        there: object = importlib.import_module(row.module)
    except Exception as e:  # noqa: BLE001  a torch that breaks on import breaks in any way it likes
        return f"{type(e).__name__}: {e}"
    for part in row.name.split("."):
        if not hasattr(there, part):
            return "there is no such name"
        there = getattr(there, part)
    if row.accepts:
        try:
            parameters = inspect.signature(there).parameters  # type: ignore[arg-type]  # a row with arguments names a callable
        except (TypeError, ValueError) as e:
            return f"no signature: {e}"
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            lost = [name for name in row.accepts if name not in parameters]
            if lost:
                return f"does not take {', '.join(lost)}"
    if row.calls:
        code = getattr(inspect.unwrap(there), "__code__", None)  # type: ignore[arg-type]  # a row with calls names a function
        used = _names(code) if code else set()
        lost = [name for name in row.calls if name not in used]
        if lost:
            return f"does not use {', '.join(lost)}"
    return ""
