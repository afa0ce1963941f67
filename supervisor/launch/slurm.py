"""Reads the step of Slurm that this process runs in, and completes torchrun's options for several nodes from it.

Only options that neither the command nor torchrun's variables (PET_…) give are completed: the user's own always hold.
They become variables and not words. So the command stays the same, and a requeue on other nodes continues its run.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from health.probes import slurm
from supervisor.core.values import Struct, replace
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job.local_time import minute_text
from supervisor.knobs import torchrun
from supervisor.knobs.python_command import shim_mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: Ports of the rendezvous, one for each job: below those that the kernel gives out (from 32768), above most services.
_FIRST_PORT: Final = 20_000
_PORTS: Final = 10_000
#: Steps of one job are so far apart.
_STEP: Final = 1009
#: Options that only the static rendezvous reads: who gives one of them means that one, which is torchrun's default.
_STATIC: Final = ("node-rank", "master-addr", "master-port")
_NODES: Final = "SLURM_STEP_NODELIST"
_BRACKETS: Final = re.compile(r"\[([^][]*)\]")


class SlurmStep(Struct, frozen=True):
    """The step. nodes: their names in the order of their numbers, none where the list cannot be read; `size`: how many they are.

    node: the number of this one among them. tasks: how many the step has here. end_t: Unix seconds of the job's time limit, 0: unknown.
    requeued: so many times.
    """

    job: str
    step: str
    nodes: tuple[str, ...]
    size: int
    node: int
    tasks: int
    end_t: float = 0.0
    requeued: int = 0

    @property
    def name(self) -> str:
        """Its name, as Slurm prints it."""
        return f"{self.job}.{self.step}"

    @property
    def meeting(self) -> str:
        """The id of its rendezvous. A requeued job has another one: it may be on other nodes, and waits for none of before."""
        return f"{self.job}.{self.requeued}" if self.requeued else self.job

    @property
    def port(self) -> int:
        """The port of its rendezvous: on all nodes the same."""
        return _FIRST_PORT + (int(self.job) + _STEP * int(self.step)) % _PORTS


def step_of(environ: Mapping[str, str]) -> SlurmStep | None:
    """Return the step that srun started this process in; None elsewhere: in a batch script too."""
    job, step = slurm.place(environ)
    if not step or not job.isdecimal():
        return None
    nodes = _in_order(host_names(environ.get(_NODES, "")), environ)
    node = slurm.number(environ, "SLURM_NODEID")
    tasks = _repeated(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    return SlurmStep(
        job,
        step,
        nodes,
        slurm.number(environ, "SLURM_STEP_NUM_NODES", len(nodes) or 1),
        node,
        tasks[node] if node < len(tasks) else 1,
        float(slurm.number(environ, "SLURM_JOB_END_TIME")),
        slurm.number(environ, "SLURM_RESTART_COUNT"),
    )


def _in_order(nodes: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes of a step in the order of their numbers.

    Slurm lists them by name. In a step over the components of a heterogeneous job it counts the first component's nodes first: where that
    has n2, and the second has n1, the list is n[1-2], and n2 is node 0 (Slurm 22.05).
    """
    in_order = tuple(name for name in job_nodes(environ) if name in nodes) if slurm.components(environ) else nodes
    return in_order if len(in_order) == len(nodes) else nodes


def job_nodes(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of all nodes of the job, those of each component of a heterogeneous one; () outside of a job."""
    lists = [environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{component}", "") for component in range(slurm.components(environ))]
    return tuple(name for text in lists or [environ.get("SLURM_JOB_NODELIST", "")] for name in host_names(text))


def host_names(text: str) -> tuple[str, ...]:
    """Return the names of a list as Slurm writes it: n[01-03,7],login is n01, n02, n03, n7 and login. () for any other text."""
    words = re.findall(r"(?:[^][,]|\[[^][]*\])+", text)
    if ",".join(words) != text:
        return ()
    try:
        return tuple(name for word in words for name in _expanded(word))
    except ValueError:
        return ()


def _expanded(word: str) -> Iterator[str]:
    brackets = _BRACKETS.search(word)
    if brackets is None:
        yield word
        return
    for range_text in brackets[1].split(","):
        first, dash, last = range_text.partition("-")
        # the first number's width is that of all: [08-10] is 08, 09, 10
        for number in range(int(first), int(last) + 1) if dash else (int(first),):
            for rest in _expanded(word[brackets.end() :]):
                yield f"{word[: brackets.start()]}{number:0{len(first)}}{rest}"


def _repeated(text: str) -> tuple[int, ...]:
    """Return the numbers of a list as Slurm writes it: 2(x3),1 is 2, 2, 2 and 1."""
    groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return tuple(int(number) for number, times in groups for _ in range(int(times or 1)))


class SlurmStart(Struct, frozen=True):
    """The settings of a start by its place in Slurm. variables: complete torchrun's options. line: reports them; warning; "" for none."""

    variables: dict[str, str]
    line: str = ""
    warning: str = ""


def at_start(command: Sequence[str], environ: Mapping[str, str]) -> SlurmStart:
    """Return what Slurm's variables mean for a command. environ: the user's own."""
    start = _of_place(command, environ)
    # torchrun says to its ranks how many they are, and sets no store by Slurm's figures
    missing = "" if torchrun.recognise(command, path=environ.get("PATH")) is not None else slurm.missing_tasks(environ)
    lone = slurm.lone_task(environ) if shim_mode(command) == "rank" else ""
    warning = "; ".join(filter(None, (start.warning, lone or missing)))
    return replace(start, warning=warning, line="\n".join(filter(None, (start.line, _unused_components(environ)))))


def _of_place(command: Sequence[str], environ: Mapping[str, str]) -> SlurmStart:
    job, is_step = slurm.place(environ)
    if job and not is_step:
        return SlurmStart({}, warning=outside_warning(job))
    step = step_of(environ)
    launcher = torchrun.recognise(command, path=environ.get("PATH")) if step is not None else None
    if step is None or launcher is None:
        return SlurmStart({})
    misfit = _misfit(launcher, environ, step)
    if step.size == 1 or _runs_on_one_node(launcher, environ):
        return SlurmStart({}, warning=misfit)
    added = _completed(launcher, environ, step)
    options = " ".join(f"--{name}={value}" for name, value in added.items())
    ends = f"; the job's time ends at {minute_text(step.end_t)}" if step.end_t else ""
    line = f"Slurm step {step.name}, node {step.node} of {step.size}: torchrun gets {options}{ends}" if added else ""
    unread = not step.nodes and not _meets_elsewhere(launcher, environ)
    text = f"the nodes of Slurm step {step.name} cannot be read from {environ.get(_NODES, '')!r}: give torchrun --rdzv-endpoint"
    warning = "; ".join(filter(None, (text if unread else "", misfit)))
    return SlurmStart({torchrun.variable(name): value for name, value in added.items()}, line, warning)


def _misfit(command: torchrun.Torchrun, environ: Mapping[str, str], step: SlurmStep) -> str:
    """Return how torchrun's nodes do not fit those of the step, "" where they do, or where other steps may bring the rest."""
    is_given = torchrun.is_given(command, environ, "nnodes")
    least, most = torchrun.least_nodes(command, environ), torchrun.most_nodes(command, environ)
    if step.size > 1 and _runs_on_one_node(command, environ):
        return f"Slurm step {step.name} has {step.size} nodes, and by its options torchrun runs on one: each node trains by itself"
    if is_given and least > step.size and not _meets_elsewhere(command, environ):
        return (
            f"torchrun waits for {least} nodes (--nnodes), and Slurm step {step.name} has {step.size}: nobody starts the others; write"
            f" `srun --nodes={least} --ntasks-per-node=1 supervise …`"
        )
    if is_given and 0 < most < step.size:
        return f"torchrun takes {most} nodes (--nnodes), and Slurm step {step.name} has {step.size}: the others find no place"
    return ""


def _meets_elsewhere(command: torchrun.Torchrun, environ: Mapping[str, str]) -> bool:
    """Return whether the user says where torchrun's nodes meet."""
    return any(torchrun.is_given(command, environ, name) for name in ("rdzv-endpoint", "master-addr"))


def _unused_components(environ: Mapping[str, str]) -> str:
    """Return that the step leaves out nodes of a heterogeneous job, "" where it does not. That may be meant: they run another program."""
    step, nodes = step_of(environ), job_nodes(environ)
    if step is None or not slurm.components(environ) or step.size >= len(nodes):
        return ""
    groups = ",".join(str(component) for component in range(slurm.components(environ)))
    return (
        f"Slurm step {step.name} has {step.size} of the {len(nodes)} nodes of a heterogeneous job: `srun --het-group={groups} supervise …`"
        " would take all"
    )


def outside_warning(job: str) -> str:
    """Return the warning for a process of a job that is in no step of it."""
    return (
        f"Slurm job {job} runs this outside of srun: Slurm announces a preemption to the steps of a job alone, and its other nodes are not"
        " used; start it with `srun supervise …`"
    )


def _completed(command: torchrun.Torchrun, environ: Mapping[str, str], step: SlurmStep) -> dict[str, str]:
    """Return the options that complete a torchrun command, by name."""

    def is_given(name: str) -> bool:
        return torchrun.is_given(command, environ, name)

    backend = torchrun.option_value(command, environ, "rdzv-backend") or ("static" if any(map(is_given, _STATIC)) else "c10d")
    if backend == "static":  # torchrun's default
        head = {"master-addr": step.nodes[0], "master-port": str(step.port)} if step.nodes and not is_given("rdzv-endpoint") else {}
        meeting = {"node-rank": str(step.node), **head}
    else:  # an etcd is where the user has it
        head = {"rdzv-endpoint": f"{step.nodes[0]}:{step.port}"} if step.nodes and backend == "c10d" else {}
        meeting = {"rdzv-backend": backend, **head, "rdzv-id": step.meeting}
    options = {"nnodes": str(step.size), **meeting}
    return {name: value for name, value in options.items() if not is_given(name)}


def _runs_on_one_node(command: torchrun.Torchrun, environ: Mapping[str, str]) -> bool:
    """Return whether the user wants torchrun to run on one node."""
    is_one = torchrun.is_given(command, environ, "nnodes") and torchrun.most_nodes(command, environ) == 1
    return is_one or torchrun.is_standalone(command, environ)


def require_one_task(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Raise SuperviseError (64) where srun started this more than once on this node: one supervise looks after all ranks of a node."""
    step = step_of(environ)
    if step is None or step.tasks == 1:
        return
    arguments = torchrun.recognise(command, path=environ.get("PATH"))
    ranks = "torchrun …" if arguments is not None else f"torchrun --nproc-per-node={step.tasks} …"
    raise SuperviseError(
        f"cannot look after one rank of several: Slurm step {step.name} has {step.tasks} tasks here, each with its own supervise",
        hint=f"Start one on each node: `srun --ntasks-per-node=1 supervise -- {ranks}`. Jobs of their own need names of their own (--job).",
        exit_code=ExitCode.USAGE,
    )
