"""The request of a launcher's command to this node: its number of ranks, and their GPUs (torchrun, accelerate, DeepSpeed, srun).

Read as each launcher reads it: torch/distributed/run.py, accelerate 1.15 (commands/launch.py, utils/launch.py) and DeepSpeed 0.18
(launcher/runner.py, launcher/launch.py). A program that starts its ranks by itself (torch.multiprocessing, a shell's script) says nothing.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from supervisor.core.values import Struct, replace
from supervisor.knobs import bindings, launcher, launcher_options, torchrun
from supervisor.knobs.python_command import shim_mode
from supervisor.launch import slurm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisor.knobs.launcher_options import LauncherOption

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
#: accelerate's flags and kinds of a configuration (`distributed_type`) with which it starts a rank for each GPU.
_MULTI: Final = ("--multi-gpu", "--use-deepspeed", "--use-fsdp", "--use-megatron-lm")
_MULTI_TYPES: Final = ("MULTI_GPU", "DEEPSPEED", "FSDP", "MEGATRON_LM")
#: Options with which the launcher itself puts each rank on CPUs beside its GPU.
_BINDING: Final = ("--numa-binding", "--enable-cpu-affinity", "--bind-cores-to-rank", "--bind-core-list")
_HOSTFILE: Final = "/job/hostfile"
_SLOTS: Final = re.compile(r"(\S+)\s+slots=(\d+)")
_MOST_BYTES: Final = 4 << 20


class PlannedRanks(Struct, frozen=True):
    """The ranks that a command starts on this node.

    ranks: None is one for each GPU that is visible, 0 is unknown. how: the words that say so, "" where it is the launcher's default.
    option: the words before the number of ranks where a person writes it. nodes: over which that number counts.
    devices: the list of GPUs that the launcher makes visible (ALL: each), None where it leaves CUDA_VISIBLE_DEVICES as it is; place: what
    is before that list where a person writes it. excluded: numbers of GPUs that it leaves out. needs_several: it starts one rank alone
    where one GPU is visible. binds: it puts its ranks on CPUs by itself. problem: why its configuration could not be read.
    """

    launcher: str
    ranks: int | None
    how: str = ""
    option: str = ""
    nodes: int = 1
    devices: str | None = None
    place: str = f"{VISIBLE}="
    excluded: tuple[str, ...] = ()
    needs_several: bool = False
    binds: bool = False
    problem: str = ""

    def written(self, ranks: int) -> str:
        """Return what a person writes for so many ranks on each node."""
        return f"{self.option}{ranks * self.nodes}"


#: `PlannedRanks.devices`: the launcher makes all GPUs visible, whatever the environment says.
ALL: Final = "all"
#: A command of which nothing is known.
UNKNOWN: Final = PlannedRanks("the command", 0)


def ignored_options(command: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a warning for each option, or variable of torchrun's, that has no effect because the command gives another value after it."""
    started = launcher.recognise(command, environ.get("PATH"))
    options = started.options()
    warnings = launcher_options.ignored(started.name, options)
    return (*warnings, *_overridden(options, environ)) if started.name == "torchrun" else warnings


def planned_ranks(command: Sequence[str], environ: Mapping[str, str], cwd: Path, host: str = "") -> PlannedRanks:
    """Return what a command asks of this node. host: this one's name, by default its own. Reads the launcher's configuration, and waits."""
    started = launcher.recognise(command, environ.get("PATH"))
    options, flags = started.options(), started.words()
    values = {option.key: option.value for option in options}
    if started.name == "torchrun":
        ranks = _of_torchrun(options, environ)
    elif started.name == "accelerate":
        ranks = _of_accelerate(values, flags, environ, cwd)
    elif started.name == "deepspeed":
        ranks = _of_deepspeed(values, environ, cwd, host or socket.gethostname())
    else:
        ranks = _of_tasks(command, environ)
    return replace(ranks, binds=any(word.startswith(_BINDING) for word in flags))


def _overridden(options: Sequence[LauncherOption], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a warning for each of torchrun's variables of which the command gives the option with another value."""
    warnings = []
    for variable, value in environ.items():
        key = f"--{variable.removeprefix('PET_').lower().replace('_', '-')}"
        given = [option for option in options if launcher_options.is_same(option.key, key)] if variable.startswith("PET_") else []
        if given and given[-1].value != value:
            warnings.append(
                f"{variable}={value} has no effect: the command gives torchrun {given[-1].text};"
                f" unset {variable}, or leave {given[-1].name} out"
            )
    return tuple(warnings)


def _of_torchrun(options: Sequence[LauncherOption], environ: Mapping[str, str]) -> PlannedRanks:
    option = "--nproc-per-node"
    variable = torchrun.variable(option[2:])
    given = [given_option.value for given_option in options if launcher_options.is_same(given_option.key, option)]
    text = given[-1] if given else environ.get(variable, "")
    if not text:
        return PlannedRanks("torchrun", 1, option=f"{option}=")
    how = f"{option if given else variable}={text}"
    return PlannedRanks("torchrun", None if text == "gpu" else torchrun.figure(text), how, f"{option}=")


def _of_tasks(command: Sequence[str], environ: Mapping[str, str]) -> PlannedRanks:
    """Return the ranks that srun started beside this one, each with a supervise of its own."""
    step = slurm.step_of(environ)
    if step is None or step.tasks == 1 or shim_mode(command) != "rank":
        return UNKNOWN
    return PlannedRanks("srun", step.tasks, f"{step.tasks} tasks of step {step.name}", "--ntasks-per-node=")


def _of_accelerate(values: Mapping[str, str], flags: set[str], environ: Mapping[str, str], cwd: Path) -> PlannedRanks:
    if "--cpu" in flags:
        return UNKNOWN
    file = _accelerate_file(values.get("--config-file", ""), environ, cwd)
    try:
        config = _accelerate_config(file)
    except _Unreadable as error:
        return PlannedRanks("accelerate", 0, problem=str(error))
    is_multi = any(flag in flags for flag in _MULTI)
    kind = config.get("distributed_type", "")
    if config.get("use_cpu") == "true" or (kind and not is_multi and kind not in (*_MULTI_TYPES, "NO")):
        return UNKNOWN
    total, how, option = _value("num_processes", values, config, file)
    nodes = max(torchrun.figure(_value("num_machines", values, config, file)[0]), 1)
    listed, _, place = _value("gpu_ids", values, config, file)
    ranks = torchrun.figure(total) // nodes if total else 0 if config else None
    return PlannedRanks(
        "accelerate",
        1 if kind == "NO" and not is_multi else ranks,
        how,
        option,
        nodes,
        devices=None if listed in ("", ALL) else listed,
        place=f"{VISIBLE}=" if listed in ("", ALL) else place,
        needs_several=not config and not is_multi,
    )


class _Unreadable(Exception):  # noqa: N818  (it is caught where it is raised)
    """Why a launcher's configuration could not be read."""


def _accelerate_file(given: str, environ: Mapping[str, str], cwd: Path) -> Path:
    """Return the configuration that accelerate reads, whether it is there or not."""
    if given:
        return cwd / os.path.expanduser(given)  # noqa: PTH111  (Path's raises for an unknown user)
    cache = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "/")) / ".cache")
    return Path(environ.get("HF_HOME") or cache / "huggingface") / "accelerate" / "default_config.yaml"


def _accelerate_config(file: Path) -> dict[str, str]:
    """Return the single values of accelerate's configuration, none where it has no such file. Raises _Unreadable."""
    from supervisor.knobs import config_files  # noqa: PLC0415  few commands have one

    try:
        if not file.is_file():
            return {}
        with file.open("rb") as source:
            text = source.read(_MOST_BYTES).decode("utf-8")
        form = bindings.FORMS.get(file.suffix, "yaml")
        keys = ("num_processes", "num_machines", "gpu_ids", "distributed_type", "use_cpu")
        return {key: value for key in keys if (value := config_files.value_at(text, form, key)) is not None}
    except (OSError, UnicodeDecodeError, config_files.EditError) as error:
        raise _Unreadable(f"{file} cannot be read, so the ranks of accelerate are not compared with the GPUs: {error}") from error


def _value(name: str, values: Mapping[str, str], config: Mapping[str, str], file: Path) -> tuple[str, str, str]:
    """Return a value of accelerate's, the words that give it, and those with which another is written: the command's holds."""
    option = f"--{name}"
    given = values.get(option.replace("_", "-"), "")
    if given or name not in config:
        return given, f"{option}={given}" if given else "", f"{option}="
    return config[name], f"{name}: {config[name]} in {file}", f"{name}: "


def _of_deepspeed(  # noqa: PLR0911  one for each way to name slots
    values: Mapping[str, str], environ: Mapping[str, str], cwd: Path, host: str
) -> PlannedRanks:
    if environ.get("DS_ACCELERATOR", "cuda") != "cuda":
        return UNKNOWN
    slots = _hostfile(cwd / (values.get("--hostfile") or _HOSTFILE))
    mine = next((name for name in slots if name.partition(".")[0] == host.partition(".")[0]), "") if slots else "localhost"
    count = values.get("--num-gpus") or values.get("--num-accelerators") or ""
    filters = {name: _slots_of(values.get(f"--{name}", ""), mine) for name in ("include", "exclude")}
    if not mine or (values.get("--include") and filters["include"] is None):
        return UNKNOWN  # this node has no part in it
    if torchrun.figure(count):
        option = "--num_gpus" if "--num-gpus" in values else "--num_accelerators"
        return PlannedRanks("deepspeed", torchrun.figure(count), f"{option}={count}", f"{option}=", devices=ALL)
    if included := filters["include"]:
        listed = ",".join(included)
        return PlannedRanks(
            "deepspeed", len(included), f"--include {values['--include']}", "--num_gpus=", devices=listed, place=f"--include={mine}:"
        )
    if excluded := filters["exclude"]:
        return PlannedRanks("deepspeed", None, f"--exclude {values['--exclude']}", "--num_gpus=", devices=ALL, excluded=excluded)
    if slots:
        return PlannedRanks("deepspeed", slots[mine], f"slots={slots[mine]} in the hostfile", "--num_gpus=", devices=ALL)
    listed = environ.get(VISIBLE, "")
    if listed and not values.get("--include") and not values.get("--exclude"):
        numbers = listed.split(",")
        problem = "" if all(map(str.isdecimal, map(str.strip, numbers))) else f"DeepSpeed reads numbers alone, and not {VISIBLE}={listed}"
        return PlannedRanks("deepspeed", len(numbers), f"{VISIBLE}={listed}", "--num_gpus=", devices=listed, problem=problem)
    return PlannedRanks("deepspeed", None, devices=ALL if values.get("--include") or values.get("--exclude") else None)


def _hostfile(file: Path) -> dict[str, int]:
    """Return the slots of each host; none where there is no such file, or DeepSpeed refuses it."""
    try:
        lines = file.read_text("utf-8", "replace").splitlines() if file.is_file() else []
    except OSError:
        return {}
    return {match[1]: torchrun.figure(match[2]) for line in lines if (match := _SLOTS.match(line.strip()))}


def _slots_of(text: str, host: str) -> tuple[str, ...] | None:
    """Return the slots of this host in a filter such as worker-0@worker-1:0,2: () is all of them, None: it is not named."""
    for entry in text.split("@"):
        name, _, slots = entry.partition(":")
        if name and name == host:
            return tuple(slot.strip() for slot in slots.split(",") if slot.strip())
    return None
