"""Checks whether the installed torch still has the form that the agent needs, and whether the system has pidfds.

It checks names, the arguments that are passed or must be accepted, and whether torch still *calls* the overridden methods (the names in a
function's byte code): an override that is never called would fail in silence. A torch that cannot be imported is an answer too.

The rows are all that this package touches of torch's elastic code; tests/agent/test_contract.py holds them against stored signatures of
several versions. Where a row does not fit or there are no pidfds, stock torchrun runs the command. ROUNDS are what dynamic_rounds.py
touches of the dynamic rendezvous: where one of them does not fit, torch's own rules hold there. OTHERS are the private names elsewhere, in
the ranks and in the libraries: without one of them something small is lost, and the agent names it.

`python -m supervisor.agent.selfcheck` prints what of the installed torch does not fit. It exits with 79 where stock torchrun would run.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from dataclasses import dataclass
from types import CodeType
from typing import Any

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
    """A name of torch's: `accepts` are arguments it must take, `calls` names its code must still use.

    `name`, and each of `calls`, may hold names of several versions, as "new|old". `without`: what is lost where the row does not fit.
    """

    module: str
    name: str
    accepts: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    without: str = ""


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

_STEPS = "no optimizer step is seen: no progress, and no hang of a rank"
_STANDBY = "restarts are cold: what the imports do is not known"
_SECOND_GROUP = "a second process group, or a store of the script's own, can fail as under torchrun"
_ANSWER = "the report of a hang does not say which collective each rank is in, but with NCCL"
_AGREE = "ranks of a script that calls our functions do not agree through the agent's store"
_COMPILE = "torch.compile breaks a graph at a collective that is watched"
_CONVERT = "`checkpoints convert` does not write this format"
_DRILL = "`supervise drill` does not put in this fault"

OTHERS: tuple[TorchRequirement, ...] = (
    TorchRequirement("torch.optim.optimizer", "register_optimizer_step_post_hook", without=_STEPS),
    TorchRequirement("torch.autograd", "_engine_run_backward|backward", without="no backward pass is seen"),
    TorchRequirement("torch.autograd", "_profiler_enabled", without="a trace takes away the events of a script that profiles itself"),
    TorchRequirement("torch.cuda", "_queued_calls", without=_STANDBY),
    TorchRequirement("torch.cuda", "_initialized", without="the parts of a step are timed without the GPU"),
    TorchRequirement("torch.utils._device", "CURRENT_DEVICE", without=_STANDBY),
    TorchRequirement(
        "torch.nn.modules.batchnorm", "_BatchNorm.__init__", without="a smaller micro-batch changes batch norms without a word"
    ),
    TorchRequirement("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter.__init__", without="loader workers are unknown"),
    TorchRequirement("torch.multiprocessing.spawn", "start_processes", without="ranks that a script spawns are unknown"),
    TorchRequirement("torch.multiprocessing.spawn", "_wrap", ("fn", "i"), without="ranks that a script spawns are unknown"),
    TorchRequirement(
        "torch.distributed.rendezvous",
        "_create_c10d_store",
        ("hostname", "port", "rank", "world_size"),
        ("_agent_store_serves|_torchelastic_use_agent_store",),  # torch 2.14 asks in a function of its own
        _SECOND_GROUP,
    ),
    TorchRequirement("torch.distributed.rendezvous", "_torchelastic_use_agent_store", without=_SECOND_GROUP),
    TorchRequirement("torch.distributed.distributed_c10d", "_world.pg_map", without=_ANSWER),
    TorchRequirement("torch.distributed.distributed_c10d", "_world.pg_names", without=_ANSWER),
    TorchRequirement("torch.distributed.distributed_c10d", "_world.pg_group_ranks", without=_ANSWER),
    TorchRequirement("torch.distributed.distributed_c10d", "_get_default_group", without=_AGREE),
    TorchRequirement("torch.distributed.distributed_c10d", "_get_default_store", without=_AGREE),
    TorchRequirement("torch.distributed", "ProcessGroup._get_backend", without=_ANSWER),
    TorchRequirement("torch.distributed", "ProcessGroup._device_types", without=_ANSWER),
    TorchRequirement("torch._C._distributed_c10d", "Backend.Options._timeout", without="the limit of a process group is not known"),
    TorchRequirement("torch._C._distributed_c10d", "_dump_fr_trace_json", without=_ANSWER),
    TorchRequirement("torch._C._dynamo.eval_frame", "_FrameAction|skip_code", without=_COMPILE),
    TorchRequirement(
        "torch._C._dynamo.eval_frame",
        "_FrameExecStrategy|skip_code",
        without=_COMPILE,
    ),
    TorchRequirement("torch.distributed.elastic.rendezvous.dynamic_rendezvous", "_delay", without="a start is 0.3 s slower"),
    TorchRequirement(
        "torch.distributed.checkpoint.state_dict",
        "_init_optim_state",
        without="a DCP checkpoint that fills an optimizer is taken for a step",
    ),
    TorchRequirement("torch.distributed.checkpoint.filesystem", "_StorageInfo", without=_CONVERT),
    TorchRequirement("torch.distributed.tensor", "DTensor._local_tensor", without="FSDP's sharded state dicts are not converted"),
    TorchRequirement("torch.storage", "_dtype_to_storage_type_map", without=_CONVERT),
    TorchRequirement("torch._utils", "_rebuild_tensor_v2", without=_CONVERT),
    TorchRequirement("torch._utils", "_rebuild_tensor_v3", without=_CONVERT),
    TorchRequirement("torch.utils._pytree", "tree_flatten", without="the state of one rank is not sent to the others"),
    TorchRequirement("torch.utils._pytree", "tree_unflatten", without="the state of one rank is not sent to the others"),
    TorchRequirement("torch.serialization", "_save", without=_DRILL),
    TorchRequirement("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", without=_DRILL),
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
    """Return the parts of torch that do not fit, as "module:name: why: the loss"."""
    misfits = [(row, _misfit(row)) for row in rows]
    return [": ".join(filter(None, (f"{row.module}:{row.name}", why, row.without))) for row, why in misfits if why]


def loaded(rows: tuple[TorchRequirement, ...] = OTHERS) -> tuple[TorchRequirement, ...]:
    """Return the rows whose module is imported already: to look at them costs no import."""
    return tuple(row for row in rows if row.module in sys.modules)


def main() -> int:
    """Print a line for each row that does not fit, then which torch it is."""
    if why := no_torch():
        sys.stderr.write(f"{why}\n")
        return UNFIT
    unfit = missing() + no_pidfds()
    small = missing(ROUNDS) + missing(OTHERS)
    for line in unfit + small:
        sys.stdout.write(f"does not fit: {line}\n")
    torch, count = importlib.import_module("torch"), len(ROWS) + len(ROUNDS) + len(OTHERS)
    runs = "stock torchrun would run the command" if unfit else "supervise's agent runs the command"
    sys.stdout.write(f"torch {torch.__version__}: {count - len(unfit) - len(small)} of {count} names fit; {runs}\n")
    return UNFIT if unfit else 0


def _names(code: CodeType) -> set[str]:
    """Every name that a function's code uses, comprehensions and inner functions included."""
    used = {*code.co_names, *code.co_varnames, *code.co_freevars}
    return used.union(*(_names(c) for c in code.co_consts if isinstance(c, CodeType)))


def _named(module: object, name: str) -> tuple[Any] | None:
    """Return what the module has by a dotted name, in a tuple; None where it has nothing of that name."""
    there: Any = module
    for part in name.split("."):
        if not hasattr(there, part):
            return None
        there = getattr(there, part)
    return (there,)


def _misfit(row: TorchRequirement) -> str:
    try:
        module: object = importlib.import_module(row.module)
    except Exception as e:  # noqa: BLE001  a torch that breaks on import breaks in any way it likes
        return f"{type(e).__name__}: {e}"
    named = next(filter(None, (_named(module, name) for name in row.name.split("|"))), None)
    if named is None:
        return "there is no such name"
    (there,) = named
    if row.accepts:
        try:
            parameters = inspect.signature(there).parameters
        except (TypeError, ValueError) as e:
            return f"no signature: {e}"
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            lost = [name for name in row.accepts if name not in parameters]
            if lost:
                return f"does not take {', '.join(lost)}"
    if row.calls:
        code = getattr(inspect.unwrap(there), "__code__", None)
        used = _names(code) if code else set()
        lost = [names for names in row.calls if used.isdisjoint(names.split("|"))]
        if lost:
            return f"does not use {', '.join(lost)}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
