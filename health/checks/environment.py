"""Checks of versions, variables and the code's revision on this node."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from health.checks import common
from health.model import HOST, CheckResult, Repair, Result, check

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from health.model import Readings
    from health.thresholds import Thresholds

_MAIN_VERSIONS = ("python", "torch", "cuda", "nccl", "driver", "kernel")
#: The oldest driver for each CUDA (minor version compatibility; CUDA release notes, table 2).
_OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}


@check(
    "env_versions",
    subject="host",
    needs=("environment",),
    reads="versions of Python, torch, CUDA, NCCL, the driver; torch is not imported",
    degraded="a driver is loaded, and torch is built without CUDA",
    failed="the driver is too old for torch's CUDA; unknown where a cuda-compat library is there for it",
)
def env_versions(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Which Python, torch, CUDA, NCCL and driver will the job run with? Also whether the driver is new enough for torch's CUDA."""
    unread = common.unread("env_versions", now, "env.versions", "versions")
    if unread is not None:
        yield unread
        return
    row = now.table("env.versions")
    evidence = tuple(f"{name} {row[name]}" for name in _MAIN_VERSIONS if row.get(name))
    cuda, driver = _major(row.get("cuda")), _major(row.get("driver"))
    oldest = _OLDEST_DRIVER.get(cuda) if cuda is not None else None
    if "torch" not in row:
        why = f"torch is not installed for {now.text('env.python')}: the job may have an interpreter of its own"
        yield CheckResult("env_versions", HOST, Result.UNKNOWN, why, evidence)
    elif driver is not None and oldest is not None and driver < oldest:
        why = f"torch is built for CUDA {row['cuda']}, which needs driver {oldest} or newer, and {row['driver']} is loaded"
        compat = now.text("env.compat")
        if (_major(compat.rpartition("/libcuda.so.")[2]) or 0) >= oldest:  # on GPUs of data centres, and not with every older driver
            look = ('python -c "import torch; torch.cuda.init()"',)
            yield CheckResult("env_versions", HOST, Result.UNKNOWN, f"{why}; {compat} may stand in for it", evidence, look=look)
            return
        yield CheckResult(
            "env_versions", HOST, Result.FAILED, why, evidence, Repair.CONFIGURE, "install a newer driver, or a torch for an older CUDA"
        )
    elif driver is not None and cuda is None and not row.get("hip"):
        why = f"a GPU driver is loaded, and torch {row['torch']} is built without CUDA"
        yield CheckResult("env_versions", HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, "pip install torch (a build with CUDA)")
    else:
        yield CheckResult("env_versions", HOST, Result.OK, ", ".join(evidence), evidence)


def _major(word: object) -> int | None:
    first = str(word).partition(".")[0] if isinstance(word, str) else ""
    return int(first) if first.isdecimal() else None


_TIMEOUT = "init_process_group(timeout=...) sets the time after which a collective is given up"
_GDR = "NCCL_NET_GDR_LEVEL limits GPU Direct RDMA, and is not needed where NCCL finds the distance by itself"
_CHECKS = "NCCL checks no arguments unless NCCL_CHECK_POINTERS asks for it"
#: Neither torch nor NCCL reads these; people set them all the same. NCCL's rules and their versions: its user guide, "Environment
#: Variables", of 2.31; its source asks for none of these names.
UNREAD_VARIABLES = {
    "NCCL_TIMEOUT": _TIMEOUT,
    "TORCH_DISTRIBUTED_TIMEOUT": _TIMEOUT,
    "NCCL_IB_CUDA_SUPPORT": f"NCCL 2.4 removed it: {_GDR}",
    "NCCL_IB_GDR_LEVEL": f"NCCL 2.4 renamed it: {_GDR}",
    "NCCL_SINGLE_RING_THRESHOLD": "NCCL 2.3 removed it, and chooses by itself",
    "NCCL_LL_THRESHOLD": "NCCL 2.5 removed it, and chooses the protocol by itself",
    "NCCL_TREE_THRESHOLD": "NCCL 2.5 removed it, and chooses the algorithm by itself",
    "NCCL_CHECKS_DISABLE": f"NCCL 2.2.12 replaced it: {_CHECKS}",
    "NCCL_CHECK_DISABLE": f"no version of NCCL did: {_CHECKS}",
}
#: torch still reads the old name, with a warning (ProcessGroupNCCL.hpp of 2.13).
RENAMED_VARIABLES = (
    "NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING",
    "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
)


def misleading(variables: Mapping[str, object]) -> Iterator[tuple[str, str, str]]:
    """Yield for each misleading variable: its name, its true effect, and the command that mends it."""
    for key in (key for key in UNREAD_VARIABLES if key in variables):
        yield key, f"does nothing: neither torch nor NCCL reads it; {UNREAD_VARIABLES[key]}", f"unset {key}"
    for key in (key for key in RENAMED_VARIABLES if key in variables):
        yield key, f"has an old name: torch's is TORCH_{key}", f"export TORCH_{key}={quote(str(variables[key]))} && unset {key}"


@check(
    "env_variables",
    subject="host",
    needs=("environment",),
    reads="variables of NCCL, torch and their like",
    degraded="one that nothing reads (`NCCL_TIMEOUT`, `NCCL_LL_THRESHOLD` since NCCL 2.5), or with an old name",
)
def env_variables(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Do the job's variables do what they seem to? Those that nothing reads are named, and those that were renamed."""
    unread = common.unread("env_variables", now, "env.variables", "variables")
    if unread is not None:
        yield unread
        return
    row = now.table("env.variables")
    results = [
        CheckResult("env_variables", HOST, Result.DEGRADED, f"{key}={row[key]} {words}", (), Repair.CONFIGURE, command)
        for key, words, command in misleading(row)
    ]
    evidence = tuple(f"{key}={value}" for key, value in row.items())
    yield from results or [
        CheckResult("env_variables", HOST, Result.OK, f"{len(evidence)} variables of NCCL, torch and their like are set", evidence)
    ]


@check(
    "env_slurm",
    subject="host",
    needs=("environment",),
    reads="in a job of Slurm, the step that `srun` started",
    degraded=(
        "outside of `srun`: [a preemption would be heard too late](slurm.md#what-the-start-tells); or fewer tasks than "
        "`SLURM_NTASKS_PER_NODE` promises a script"
    ),
)
def env_slurm(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Check that srun started this, in a job of Slurm, once for each task that a script may count on.

    A preemption signals steps when its grace begins, and a batch script when it ends.
    """
    unread = common.unread("env_slurm", now, "env.slurm", "the place in Slurm")
    if unread is not None:
        yield unread
        return
    row = now.table("env.slurm")
    if not row:
        yield CheckResult("env_slurm", HOST, Result.SKIPPED, "not in a job of Slurm")
    elif row["step"] and row["missing"]:
        yield CheckResult("env_slurm", HOST, Result.DEGRADED, str(row["missing"]), (), Repair.CONFIGURE, "give the step as many tasks")
    elif row["step"]:
        yield CheckResult("env_slurm", HOST, Result.OK, f"step {row['job']}.{row['step']} of Slurm")
    else:
        why = f"Slurm job {row['job']}, and outside of srun: a job that is started here hears of a preemption only at the end of its grace"
        yield CheckResult("env_slurm", HOST, Result.DEGRADED, why, (), Repair.CONFIGURE, "start the job with `srun supervise -- …`")


@check(
    "env_code",
    subject="host",
    needs=("environment",),
    reads="git's revision and changes",
    degraded="another than at the job's start",
)
def env_code(now: Readings, before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Which revision of the code will run, and is it the same as at the job's start? A restart on other code is another experiment."""
    unread = common.unread("env_code", now, "env.code", "the code's revision")
    if unread is not None:
        yield unread
        return
    row, old_row = now.table("env.code"), before.table("env.code") if before is not None else {}
    head, dirty = str(row.get("head"))[:12], common.number(row, "dirty") or 0
    state = f"{head} ({row.get('branch')})" + (f" and {dirty:.0f} files changed since" if dirty else "")
    evidence = (f"root {row.get('root')}",)
    if old_row and (old_row.get("head"), old_row.get("changed")) != (row.get("head"), row.get("changed")):
        why = f"the code is {state}, and was another when the job started ({str(old_row.get('head'))[:12]})"
        yield CheckResult(
            "env_code",
            HOST,
            Result.DEGRADED,
            why,
            evidence,
            look=(f"git -C {quote(str(row.get('root')))} diff {quote(str(old_row.get('head')))}",),
        )
    else:
        yield CheckResult("env_code", HOST, Result.OK, f"the code is {state}", evidence)
