"""Hooks and wrapped functions for torch's modules and a few others, set right after the script's own import ran each of them.

torch itself is half-imported at that moment, so a hook touches its own module only; torch is never imported from here. A wrapped function
behaves as before, and shows as one frame more in a traceback. Names that are missing in a torch version are skipped.
"""
# ruff: noqa: ANN401 - the functions of torch that are wrapped take and return anything

from __future__ import annotations

import os
import sys
from time import time

from . import layout
from .layout import quiet, wrapped_as
from .stores import AgentStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType, TracebackType
    from typing import Any

    from .gates import Gates
    from .heartbeat import HeartbeatWriter
    from .load_log import LoadLog
    from .programs import ProgramRecognition
    from .save_log import SaveLog
    from .save_request import SaveRequests
    from .spawned import SpawnedRanks


#: Functions of torch.distributed that begin a collective, or send; those for objects call them.
COLLECTIVES = (
    *("all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "barrier", "gather", "scatter", "all_to_all", "all_to_all_single"),
    *("all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_single", "_all_gather_base"),
    *("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base"),
    *("send", "recv", "isend", "irecv"),
)


class TorchHooks:
    """The table of modules, and what each hook does."""

    def __init__(  # noqa: PLR0913,PLR0917 - whom the hooks report to
        self,
        beat: HeartbeatWriter,
        load_log: LoadLog,
        save_requests: SaveRequests,
        save_log: SaveLog,
        programs: ProgramRecognition,
        spawned: SpawnedRanks,
        group_began: Callable[[], None],
    ) -> None:
        self._beat = beat
        self._load_log = load_log
        self._save_requests = save_requests
        self._save_log = save_log
        self._programs = programs
        self._spawned = spawned
        self._group_began = group_began
        self._agent_store = AgentStore(beat.report_world)
        self._step_hook: Any = None  # the handle of our hook on the optimizers' steps

    def begin(self) -> None:
        """Take what this attempt brings: the agent's store."""
        self._agent_store.identify()

    def table(self) -> dict[str, Callable[[Any], None]]:
        """Describe the change and its module."""
        return {
            "threading": self._threads,
            "torch.optim.optimizer": self._optimizers,
            "torch.autograd": self._autograd,
            "torch.nn.modules.module": self._modules,
            "torch.utils.data.dataloader": self._data,
            "torch.serialization": self._serialization,
            "torch.distributed.constants": lengthen_timeouts,
            "torch.distributed.distributed_c10d": self._process_groups,
            "torch.distributed.rendezvous": self._agent_store.watch,
            "torch.distributed.fsdp.fully_sharded_data_parallel": self._fsdp,
            "torch.distributed.checkpoint.state_dict_saver": self._dcp_save,
            "torch.distributed.checkpoint.state_dict_loader": self._dcp_load,
            "torch.distributed.checkpoint.state_dict": self._dcp_state,
            "safetensors": self._safetensors,
            "safetensors.torch": self._safetensors_save,
            "lightning.fabric.utilities.cloud_io": self._lightning,
            "lightning_fabric.utilities.cloud_io": self._lightning,
            "torch.nn.modules.batchnorm": self._programs.watch_norms,
            "torch.multiprocessing.spawn": self._spawned.watch,
            "subprocess": self._spawned.watch_commands,
            "os": self._spawned.watch_exec,
            "jax": self._other_framework,
            "tensorflow": self._other_framework,
        }

    def _threads(self, module: Any) -> None:
        """See the end of the script: the interpreter then calls this first, before it waits for threads and before what atexit has."""
        _once(module, "_shutdown", self._beat.script_over)

    def _optimizers(self, module: Any) -> None:
        self._hook_steps(module)
        _once(module.Optimizer, "__init__", lambda: self._beat.flag(layout.FLAG_OPTIMIZER))

    def _modules(self, module: Any) -> None:
        """See the first evaluation: what only evaluates makes no optimizer."""
        _once(module.Module, "eval", self._ran)

    def _data(self, module: Any) -> None:
        _once(module.DataLoader, "__iter__", self._ran)
        _once(module._MultiProcessingDataLoaderIter, "__init__", lambda: self._beat.flag(layout.FLAG_LOADER))  # noqa: SLF001 (torch's, since 1.2)

    def _ran(self) -> None:
        self._beat.flag(layout.FLAG_RAN)

    def _hook_steps(self, module: Any) -> None:
        self._step_hook = module.register_optimizer_step_post_hook(self._beat.on_step)

    def _autograd(self, module: Any) -> None:
        """See every backward pass, under whatever name it was asked for.

        Both backward() and grad() go through this one; where it is missing (it is private), backward() has to do.
        """
        name = "_engine_run_backward" if hasattr(module, "_engine_run_backward") else "backward"
        announce(module, name, self._beat.on_backward)
        self._beat.flag(layout.FLAG_AUTOGRAD)

    def _serialization(self, module: Any) -> None:
        self._phased(module, "save", layout.CHECKPOINT, _second)
        self._phased(module, "load", layout.LOAD, _first)
        self._save_log.watch()

    def _process_groups(self, module: Any) -> None:
        self._phased(module, "init_process_group", layout.INIT)
        for name in COLLECTIVES:
            announce(module, name, self._beat.on_collective)
        inner = getattr(module, "destroy_process_group", None)
        if inner is None:
            return

        def destroy_process_group(group: Any = None) -> None:
            if group is None and sys.exc_info()[0] is None:  # of all, and in no `finally` of an exception
                self._beat.script_over()
            inner(group)

        module.destroy_process_group = wrapped_as(inner, destroy_process_group)

    def _fsdp(self, module: Any) -> None:
        """See whether FSDP gathers without a limit: then the parameters of many layers lie on the GPU at once."""
        inner = module.FullyShardedDataParallel.__init__

        def __init__(unit: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes that one's place
            inner(unit, *args, **kwargs)
            if getattr(unit, "limit_all_gathers", True) is False:
                self._beat.flag(layout.FLAG_UNLIMITED)

        module.FullyShardedDataParallel.__init__ = wrapped_as(inner, __init__)

    def _dcp_save(self, module: Any) -> None:
        for name in ("save", "async_save", "save_state_dict"):
            self._phased(module, name, layout.CHECKPOINT, _dcp_place, "dcp")

    def _dcp_load(self, module: Any) -> None:
        for name in ("load", "load_state_dict"):
            self._phased(module, name, layout.LOAD, _dcp_place, "dcp")

    def _dcp_state(self, module: Any) -> None:
        """Count no step where it fills an optimizer's state by stepping with a learning rate of 0: the checkpoint is loaded next."""
        name = "_init_optim_state"
        inner = getattr(module, name, None)
        if inner is None:
            return

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            hook, optimizer = self._step_hook, args[0] if args else kwargs.get("optim")
            was_empty = not getattr(optimizer, "state", True)
            if hook is not None:
                hook.remove()
            try:
                return inner(*args, **kwargs)
            finally:
                if was_empty:
                    self._beat.untrained_steps = 1  # the optimizer counts it, and so does what is saved of its state
                if hook is not None:
                    self._hook_steps(sys.modules["torch.optim.optimizer"])

        setattr(module, name, wrapped_as(inner, wrapper))

    def _safetensors(self, module: Any) -> None:
        self._phased(module, "safe_open", layout.LOAD, _first, "safetensors")  # load_file goes through it

    def _safetensors_save(self, module: Any) -> None:
        self._phased(module, "save_file", layout.CHECKPOINT, _second, "safetensors")

    def _lightning(self, module: Any) -> None:
        """Its state goes through torch.save into memory, and from there into a file."""
        self._phased(module, "_atomic_save", layout.CHECKPOINT, _second, "lightning")
        self._phased(module, "_load", layout.LOAD, _first, "lightning")

    def _other_framework(self, _module: Any) -> None:
        self._beat.flag(layout.FLAG_ELSEWHERE)

    def _phased(self, module: Any, name: str, phase: int, place: Callable[..., Any] | None = None, via: str = "torch") -> None:
        """Wrap a function so that the rank is in `phase` while it runs; `place` finds the target or the source among its arguments."""
        inner = getattr(module, name, None)
        if inner is None:
            return
        enter, leave, saves = self._beat.enter, self._beat.leave, phase == layout.CHECKPOINT
        find = quiet(place) if place is not None else None

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            before = enter(phase)
            complete, result, token, began = False, None, None, 0.0 if saves else time()
            if saves:
                self._save_requests.began()
                token = self._save_log.began(find and find(args, kwargs), via)
            elif find is not None:
                self._load_log.began(find(args, kwargs))
            try:
                result = inner(*args, **kwargs)
                complete = True
                return result
            finally:
                if saves:
                    self._ended(token, result, well=complete)
                leave(phase, _afterwards(phase, before) if complete else before)
                if complete:
                    self._ran()
                if complete and phase == layout.INIT:
                    self._agent_store.group_made()
                    self._group_began()
                if find is not None and not saves:
                    self._load_log.note(find(args, kwargs), complete, via, began)

        setattr(module, name, wrapped_as(inner, wrapper))

    @quiet
    def _ended(self, token: tuple[int, str] | None, result: Any, *, well: bool) -> None:
        """Log that a save ended; one that continues in the background gives a future back, or something that holds one."""
        future = getattr(result, "upload_completion", result)
        if well and callable(getattr(future, "add_done_callback", None)):
            future.add_done_callback(lambda done: self._over(token, well=quiet(done.exception)() is None))
        else:
            self._over(token, well=well)

    def _over(self, token: tuple[int, str] | None, *, well: bool) -> None:
        self._save_log.ended(token, well=well)
        self._save_requests.ended(well=well)


def announce(module: Any, name: str, begins: Callable[[], None]) -> None:
    """Have `begins` called at each call of a function: it costs little, and guards itself."""
    inner = getattr(module, name, None)
    if inner is None:
        return

    def announced(*args: Any, **kwargs: Any) -> Any:
        begins()
        return inner(*args, **kwargs)

    quiet(_leave_uncompiled)(announced.__code__, with_callees=False)
    quiet(_leave_uncompiled)(begins.__func__.__code__, with_callees=True)  # type: ignore[attr-defined]  # a bound method
    wrapped = wrapped_as(inner, announced)
    wrapped._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001 - called as it is; another way of tracing stays as it is
    setattr(module, name, wrapped)


def _leave_uncompiled(code: CodeType, *, with_callees: bool) -> None:
    """Have torch.compile pass over a function of the shim that a compiled one calls, as it passes over torch's own."""
    frames: Any = sys.modules["torch._C._dynamo.eval_frame"]
    if hasattr(frames, "skip_code"):  # before torch 2.7
        frames.skip_code(code)
        return
    action = frames._FrameAction  # noqa: SLF001 - torch._dynamo does the same, and is slow to import
    callees = action.SKIP if with_callees else action.DEFAULT
    frames.set_code_exec_strategy(code, frames._FrameExecStrategy(action.SKIP, callees))  # noqa: SLF001 - as above


def _once(owner: Any, name: str, seen: Callable[[], None]) -> None:
    """Have `seen` called at the first call of a function of `owner`; then all is as it was."""
    inner = getattr(owner, name)

    def once(*args: Any, **kwargs: Any) -> Any:
        if getattr(owner, name) is wrapped:
            setattr(owner, name, inner)
            quiet(seen)()
        return inner(*args, **kwargs)

    wrapped = wrapped_as(inner, once)
    setattr(owner, name, wrapped)


def lengthen_timeouts(module: Any) -> None:
    """Make torch's default timeout of process groups at least so long as the supervisor asks; one that a script passes stays.

    The defaults are taken from this module by all others, Lightning too, so it is changed before they import it.
    """
    seconds = os.environ.get(layout.GROUP_TIMEOUT, "")
    if not seconds:
        return
    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        old = getattr(module, name, None)
        if old is not None:  # None: built without NCCL
            setattr(module, name, max(old, type(old)(seconds=float(seconds))))


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the source: the first argument, whatever its name is."""
    return args[0] if args else next(iter(kwargs.values()))


def _second(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the target: the second argument, after the saved object."""
    return args[1] if len(args) > 1 else next(kwargs[name] for name in ("f", "filename", "filepath") if name in kwargs)


def _dcp_place(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the directory: an argument, or an attribute of the storage, which the older functions take after the state."""
    directory = kwargs.get("checkpoint_id")
    storage = kwargs.get("storage_writer") or kwargs.get("storage_reader") or (args[1] if len(args) > 1 else None)
    return directory if directory is not None else getattr(storage, "path", None)


class ImportWatcher:
    """A finder for sys.meta_path that finds nothing itself, but lets a hook see a module right after it ran.

    importing: called with the name of every module that is searched.
    """

    def __init__(self, table: dict[str, Callable[[Any], None]], importing: Callable[[str], None]) -> None:
        self._table = table
        self._importing = importing
        self.gates: Gates | None = None  # in a rank that was a standby, where its script sets what an import reads

    def install(self) -> None:
        """Begin to watch. A module that is imported already (a .pth file can do that) is hooked at once."""
        for name in [name for name in self._table if name in sys.modules]:
            self._fire(name, sys.modules[name])
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return what the other finders find; pass over those of the old kind (find_module alone), as Python itself does since 3.12."""
        self._importing(name)
        if self.gates is not None:
            spec = self.gates.spec(name)
            if spec is not None:
                return spec
        if name not in self._table:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            module_spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if module_spec is not None:
                self._tap(name, module_spec.loader)
                return module_spec
        return None

    @quiet
    def _tap(self, name: str, loader: Any) -> None:
        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # leaves the loader as it was
            loader.exec_module(module)
            self._fire(name, module)

        loader.exec_module = exec_module

    @quiet
    def _fire(self, name: str, module: ModuleType) -> None:
        hook = self._table.pop(name, None)
        if hook is not None:
            quiet(hook)(module)


def _afterwards(phase: int, before: int | None) -> int | None:
    """Return the phase after a function that ended well: the script continues setting up, and that is not importing any more.

    So the phase of a load ends with it: a failure before the first step, but after the load, is not proof against the loaded file.
    """
    return layout.INIT if phase in {layout.INIT, layout.LOAD} and before == layout.IMPORT else before


def died_in(trace: TracebackType | None) -> int | None:
    """Return the phase of the function that loads or saves a checkpoint, or in which the ranks meet, if an exception came out of one.

    It was left again as the exception went through.
    """
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_globals is globals() and frame.f_locals.get("phase") in {layout.LOAD, layout.CHECKPOINT, layout.INIT}:
            phase: int = frame.f_locals["phase"]
            return phase
        trace = trace.tb_next
    return None
