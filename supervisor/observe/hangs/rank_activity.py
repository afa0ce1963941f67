"""The activity of one rank in one look: it waits in a collective, or is elsewhere, and where in the user's code. Pure.

A rank waits in a collective if torch's recorder has one of its that is not over, and its training thread waits: in torch's own code, or in
C below a line of the user's (`work.wait()` is C). A rank that issued a collective and then continued to something else does not wait in it.
Without the recorder the name of torch's function on the stack has to do, and there is no sequence number. So it is with gloo's `send`,
`recv` and `monitored_barrier`, which no recorder has. A rank in `init_process_group` or `new_group` waits as well: for all the others.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from supervisor.core.model import Phase
from supervisor.core.values import Struct, replace
from supervisor.observe.hangs.awaited import Awaited
from supervisor.observe.hangs.recorder import Collective, ProcessGroup

if TYPE_CHECKING:
    from supervisor.observe.hangs.frames import StackFrame, ThreadStack
    from supervisor.observe.hangs.look import ProcessLook, RankLook

_C10D = "torch/distributed/distributed_c10d.py"
#: Modules of torch in which a thread may stand without a collective, though one is under way.
_NO_WAIT = ("torch/utils/data/", "torch/multiprocessing/", "torch/serialization.py")
#: The compiler, and its files that run compiled code, or code that must not be compiled: all of FSDP's hooks go through eval_frame.
_COMPILER = ("torch/_dynamo/", "torch/_inductor/")
_RUNS_COMPILED = (
    "torch/_dynamo/eval_frame.py",
    "torch/_dynamo/external_utils.py",
    "torch/_inductor/output_code.py",
    "torch/_inductor/utils.py",
    "torch/_inductor/cudagraph_trees.py",
)
#: Functions of torch's that wait by themselves. Their operations on gloo are in no recorder, only on the stack.
_POINT_TO_POINT = frozenset({"send", "recv"})
_UNRECORDED = _POINT_TO_POINT | {"monitored_barrier"}
#: Functions of the standard library in which a main thread waits for another thread of its process.
_JOINS = {"join", "_wait_for_tstate_lock", "result", "wait", "_join", "_shutdown"}
AT_EXIT = "at its exit"
#: The activity and the phase that a library's function shows: (module, functions, text, phase). The first on the stack counts.
_ACTIVITIES: tuple[tuple[str, tuple[str, ...], str, Phase], ...] = (
    ("torch/utils/data/dataloader.py", (), "in DataLoader.__next__", Phase.DATA),
    ("torch/distributed/checkpoint/state_dict_saver.py", (), "in torch.distributed.checkpoint.save", Phase.CHECKPOINT),
    ("torch/distributed/checkpoint/state_dict_loader.py", (), "in torch.distributed.checkpoint.load", Phase.LOAD),
    ("torch/serialization.py", ("save", "_save", "_legacy_save"), "in torch.save", Phase.CHECKPOINT),
    ("torch/serialization.py", ("load", "_load", "_legacy_load"), "in torch.load", Phase.LOAD),
    ("torch/cuda/__init__.py", ("synchronize",), "in torch.cuda.synchronize", Phase.UNKNOWN),
    (_C10D, ("init_process_group",), "in init_process_group", Phase.INIT),
    (_C10D, ("new_group", "_new_group_with_tag"), "in new_group", Phase.INIT),
    ("torch/autograd/", ("backward", "_engine_run_backward"), "in backward", Phase.TRAIN),
    # the interpreter waits there for threads and processes that the script started
    ("threading.py", ("_shutdown",), AT_EXIT, Phase.UNKNOWN),
    ("multiprocessing/util.py", ("_exit_function",), AT_EXIT, Phase.UNKNOWN),
)


class ActivityKind(StrEnum):
    """The activity of a rank, as far as a diagnosis needs it."""

    GONE = "gone"
    STOPPED = "stopped"
    BLOCKED = "blocked"  # in state D, or in a system call on a file
    WAITS = "waits"  # in a collective
    ELSEWHERE = "elsewhere"
    UNKNOWN = "unknown"  # it could not be read


class RankActivity(Struct, frozen=True):
    """One rank. text: its activity, after "rank 7 is": `in DataLoader.__next__ (data.py:88)`. place: the user's file and line, "" unknown.

    group and collective: that it waits in. awaits: what else it waits for. at_exit: its script is over, and it waits for a thread or a
    process that the script started.
    """

    rank: int
    pid: int
    kind: ActivityKind
    text: str
    place: str = ""
    phase: Phase = Phase.UNKNOWN
    group: ProcessGroup | None = None
    collective: Collective | None = None
    awaits: tuple[Awaited, ...] = ()
    at_exit: bool = False


def rank_activity(look: RankLook) -> RankActivity:
    """Return what a rank does."""
    shown = _activity_of(look)
    is_shown = shown.kind in {ActivityKind.ELSEWHERE, ActivityKind.BLOCKED} and shown.phase is not Phase.DATA  # there its worker is named
    return replace(shown, awaits=look.process.awaits) if is_shown else shown


def _activity_of(look: RankLook) -> RankActivity:
    process = look.process
    thread = training_thread(process.stacks)
    frame = thread.user_frame if thread is not None else None
    place, phase = "" if frame is None else frame.place, look.phase or Phase.UNKNOWN
    if process.is_gone:
        text = "gone (exit code 0)" if look.left_with_0 else "gone"
        return RankActivity(look.rank, process.pid, ActivityKind.GONE, text, phase=phase)
    for held, how in ((ActivityKind.STOPPED, _stopped(process)), (ActivityKind.BLOCKED, _blocked(process))):
        if how is not None:
            return RankActivity(look.rank, process.pid, held, how, place, phase)
    if thread is None:
        reason = process.no_stacks or "it did not answer"
        return RankActivity(look.rank, process.pid, ActivityKind.UNKNOWN, f"at an unknown place ({reason})", phase=phase)
    text, shown = shown_activity(thread)
    if shown is Phase.INIT:
        return RankActivity(look.rank, process.pid, ActivityKind.WAITS, text, place, shown)
    waited = _waited(look, thread)
    if waited is not None:
        return RankActivity(look.rank, process.pid, ActivityKind.WAITS, f"in {waited[1].text}", place, phase, *waited)
    return _elsewhere(look, thread, place, phase)


def training_thread(stacks: tuple[ThreadStack, ...]) -> ThreadStack | None:
    """Return the thread that trains: the main thread, or, where that waits for another thread, the first that runs code of torch."""
    if not stacks:
        return None
    main = stacks[0]
    if waits_for_thread(stacks):
        return next((thread for thread in stacks[1:] if thread.find("torch/") is not None and thread.user_frame is not None), main)
    return main


def waits_for_thread(stacks: tuple[ThreadStack, ...]) -> bool:
    """Return whether the main thread waits for another thread of its process."""
    inner = stacks[0].innermost if stacks else None
    return inner is not None and inner.is_standard and inner.function in _JOINS


def shown_activity(thread: ThreadStack) -> tuple[str, Phase]:
    """Return what a stack shows, after "is", and the phase: the library's function that is known, else the user's own."""
    for frame in thread.frames:
        if _is_compiler(frame) and compiles(thread):
            return "compiling", Phase.TRAIN
        for module, functions, text, phase in _ACTIVITIES:
            if frame.module.startswith(module) and (not functions or frame.function in functions):
                return text, phase
        if not frame.is_library:
            return f"in {frame.function}", Phase.UNKNOWN
    inner = next((frame for frame in thread.frames if not frame.is_standard), thread.innermost)
    if inner is None:
        return "in no Python code", Phase.UNKNOWN
    return f"in {inner.function}" + ("" if inner.is_standard else f" of {inner.module}"), Phase.UNKNOWN


def compiles(thread: ThreadStack) -> bool:
    """Return whether torch compiles the model: that takes minutes in one line of the user's. DDP only imports the compiler."""
    outermost = next((frame for frame in reversed(thread.frames) if _is_compiler(frame)), None)
    return outermost is not None and outermost.function != "<module>"


def _is_compiler(frame: StackFrame) -> bool:
    return frame.module.startswith(_COMPILER) and not frame.module.startswith(_RUNS_COMPILED)


def _elsewhere(look: RankLook, thread: ThreadStack, place: str, phase: Phase) -> RankActivity:
    text, shown = shown_activity(thread)
    if text == AT_EXIT:
        return _at_exit(look)
    worker = _stuck_worker(look) if shown is Phase.DATA else None
    if place:
        text += f" ({place})"
    phase = shown if shown is not Phase.UNKNOWN else phase
    if worker is None:
        in_script = any(frame.function == "<module>" for frame in thread.frames)  # it gave up its group, and does more after that
        return RankActivity(
            look.rank, look.process.pid, ActivityKind.ELSEWHERE, text, place, phase, at_exit=look.script_over and not in_script
        )
    blocked = _blocked(worker)
    held = blocked or _stopped(worker)
    inner = training_thread(worker.stacks)
    frame = inner.user_frame if inner is not None else None
    where = f" in {frame.function} ({frame.place})" if frame is not None else ""
    does = f"is {held}{where}" if held is not None else f"is{where or ' at an unknown place'}"
    kind = ActivityKind.ELSEWHERE if blocked is None else ActivityKind.BLOCKED
    text += f", and its worker {worker.pid} {does}"
    return RankActivity(look.rank, look.process.pid, kind, text, place, phase)


def _at_exit(look: RankLook) -> RankActivity:
    """Return what a rank does whose script is over: a thread that does not end keeps its process."""
    frame = next((thread.user_frame for thread in look.process.stacks[1:] if thread.user_frame is not None), None)
    text, place = AT_EXIT, ""
    if frame is not None:
        text, place = f"{AT_EXIT}, and a thread of it is in {frame.function} ({frame.place})", frame.place
    return RankActivity(look.rank, look.process.pid, ActivityKind.ELSEWHERE, text, place, at_exit=True)


def _stuck_worker(look: RankLook) -> ProcessLook | None:
    """Return the loader worker that a rank waits for: one that is blocked or stopped, else one that runs code of the user's."""
    workers = [worker for worker in look.workers if not worker.is_gone]
    blocked = next((worker for worker in workers if _blocked(worker) is not None or _stopped(worker) is not None), None)
    if blocked is not None:
        return blocked
    # an idle worker waits for its next order, in the loop of torch that the user's code would be called from
    return next((worker for worker in workers if (thread := training_thread(worker.stacks)) is not None and _runs_users_code(thread)), None)


def _runs_users_code(thread: ThreadStack) -> bool:
    """Return whether a worker is below torch's loop in the dataset's code: a fork shows the frames of the rank above that loop."""
    for frame in thread.frames:
        if frame.module.startswith("torch/utils/data/_utils/fetch.py"):
            return True
        if frame.module.startswith("torch/utils/data/_utils/worker.py"):
            return False
    return False


def _stopped(process: ProcessLook) -> str | None:
    """Return by what a process is stopped, after "is"; None if it is not."""
    return {"T": "stopped (state T)", "t": "stopped by a debugger"}.get(process.state)


def _blocked(process: ProcessLook) -> str | None:
    """Return how a process is blocked, after "is"; None if it is not."""
    waits = process.waits
    if waits is None or (waits.state != "D" and waits.file is None):
        return None
    state = "in D state" if waits.state == "D" else f"in {waits.file.call}" if waits.file is not None else ""
    if waits.file is None:
        return f"blocked {state}" + (f" ({waits.wchan})" if waits.wchan else "")
    file = waits.file
    call = f" in {file.call}" if waits.state == "D" else ""
    mount = f" on {file.mount} ({file.fs_type})" if file.mount not in {"", "/"} else f" ({file.fs_type})" if file.fs_type else ""
    return f"blocked {state}{call} of {file.path}{mount}"


def _waited(look: RankLook, thread: ThreadStack) -> tuple[ProcessGroup, Collective] | None:
    """Return the collective that a rank waits in, with its group; None if it does not wait in one."""
    named, groups = _named(thread), look.collectives.groups
    if look.collectives.unreadable:
        return None if named is None else (ProcessGroup(""), _unnumbered(named))
    pending = [(group, group.pending) for group in groups]
    running = [(group, collective) for group, collective in pending if collective is not None]
    if named in _UNRECORDED and not any(_plain(collective.operation) == _plain(named) for _, collective in running):
        # the stack does not show the group: it is the only one, or unknown, and then the longest timeout of all counts
        longest_s = max((group.timeout_s for group in groups if group.timeout_s is not None), default=None)
        return groups[0] if len(groups) == 1 else ProcessGroup("", timeout_s=longest_s), _unnumbered(named)
    if not running or not _in_wait(look, thread):
        return None
    # of two groups, the one whose operation is on the stack; a point-to-point operation only where nothing else is under way
    running.sort(key=lambda pair: (named is None or _plain(pair[1].operation) != _plain(named), pair[1].is_p2p))
    return running[0]


def _unnumbered(operation: str) -> Collective:
    """Return a collective that only the stack shows."""
    return Collective(operation, 0, done=False, is_p2p=operation in _POINT_TO_POINT)


def _in_wait(look: RankLook, thread: ThreadStack) -> bool:
    """Return whether a thread waits in torch, or in C below a line that is not the standard library's."""
    inner: StackFrame | None = thread.innermost
    if inner is None or compiles(thread):
        return False
    if inner.module.startswith("torch/"):
        return not inner.module.startswith(_NO_WAIT) and thread.find("torch/utils/data/dataloader.py") is None
    waits = look.process.waits
    return waits is not None and waits.state == "S" and waits.wchan.startswith("futex") and not inner.is_standard


def _named(thread: ThreadStack) -> str | None:
    """Return the collective that the stack names: the innermost public function of torch's module; None without one."""
    for frame in thread.frames:
        if frame.module == _C10D and not frame.function.startswith("_") and frame.function not in {"init_process_group", "new_group"}:
            return frame.function
        if not frame.module.startswith("torch/"):
            return None
    return None


def _plain(operation: str) -> str:
    """Return a name that torch's functions and its recorder agree on: `all_gather_into_tensor` is recorded as `_allgather_base`."""
    return re.sub(r"[_]|base|into_tensor|tensor|single|object|list", "", operation).lower()
