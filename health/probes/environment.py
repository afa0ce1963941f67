"""Reads the job's environment: versions, variables, and the code's revision, all without importing any of it.

Reads importlib.metadata and torch/version.py of the interpreter that runs this, /sys/module/nvidia, ask.environ, the file
ask.options["script"], git in ask.options["code"] (default: the working directory). Yields, of `host`:

    env.versions   a table: python, kernel, driver, torch, torch_git, cuda, nccl, packages by name
    env.compat     a library of CUDA's for an older driver (cuda-compat): its path; "" for none
    env.python     the interpreter: the supervisor's own, which a job may not share
    env.variables  those of PREFIXES and NAMES in ask.environ, but for those named like a secret
    env.slurm      job, step: their numbers, of a job of Slurm; step "" outside of srun; missing: how its tasks do not fit, "" where they do
    env.script     path, digest: of the job's script, where one is named
    env.code       root, head, branch, dirty (how many files), changed (a digest of what differs from head)
"""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Final

from health.model import HOST, NOT_SUPPORTED, Json, Reading
from health.probes import slurm, system_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from health.model import Ask

NAME: Final = "environment"
PREFIXES: Final = ("NCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "FI_", "OMP_", "CUDA_", "NVIDIA_", "PYTORCH_", "TORCH_DISTRIBUTED_")
NAMES: Final = (
    "TP_SOCKET_IFNAME",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "TORCH_CPP_LOG_LEVEL",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "CUBLAS_WORKSPACE_CONFIG",
)
_LINKER: Final = ("LD_LIBRARY_PATH",)
#: The packages of a training step; `nvidia-*` are torch's own CUDA libraries.
PACKAGES: Final = (
    "accelerate",
    "apex",
    "datasets",
    "deepspeed",
    "flash-attn",
    "lightning",
    "megatron-core",
    "numpy",
    "safetensors",
    "tokenizers",
    "transformer-engine",
    "transformers",
    "triton",
    "xformers",
)
_LIBRARIES: Final = ("nvidia-nccl-", "nvidia-cudnn-", "nvidia-cuda-runtime-", "nvidia-cublas-")
#: The time for all questions to git: less than this probe's deadline.
_GIT_S: Final = 3.0


def read(ask: Ask) -> Iterator[Reading]:
    """Yield the facts, the code last: a work tree on a slow disk takes long."""
    yield Reading(NAME, HOST, "env.python", sys.executable)
    yield Reading(NAME, HOST, "env.versions", _versions(ask))
    yield Reading(NAME, HOST, "env.compat", _compat(ask))
    yield Reading(NAME, HOST, "env.variables", {**selected(ask.environ)})
    job, step = slurm.place(ask.environ)
    yield Reading(NAME, HOST, "env.slurm", {"job": job, "step": step, "missing": slurm.missing_tasks(ask.environ)} if job else {})
    script = ask.options.get("script")
    if isinstance(script, str):
        yield _script(script)
    place = ask.options.get("code")
    yield _code(place if isinstance(place, str) else os.getcwd())  # noqa: PTH109 -- a name


def selected(environ: Mapping[str, str]) -> dict[str, str]:
    """Return those variables of a job that are read."""
    return {key: value for key, value in sorted(environ.items()) if (key in NAMES or key.startswith(PREFIXES)) and not _secret(key)}


def needed(environ: Mapping[str, str]) -> dict[str, str]:
    """Return all of a job's variables that this probe reads."""
    return selected(environ) | {key: environ[key] for key in (*_LINKER, *slurm.NAMES) if key in environ}


def _secret(key: str) -> bool:
    return any(word in key for word in ("KEY", "TOKEN", "SECRET", "PASSWORD"))


def _versions(ask: Ask) -> dict[str, Json]:
    versions: dict[str, Json] = {"python": platform.python_version(), "kernel": platform.release()}
    driver = system_files.text(ask.at("/sys/module/nvidia/version"))
    if driver:
        versions["driver"] = driver
    from importlib import metadata  # noqa: PLC0415  1 MiB, and a supervisor imports this module for `needed` alone

    versions |= _torch()
    for distribution in metadata.distributions():
        # a broken installation has directories without a name
        name = str(distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name in PACKAGES or name.startswith(_LIBRARIES):
            versions.setdefault(name, distribution.version)  # the first on the path is the one that is imported
        if name.startswith("nvidia-nccl-"):
            versions.setdefault("nccl", distribution.version)
    return versions


def _compat(ask: Ask) -> str:
    """Return the newest libcuda that is in for the driver's, where the linker may find it. Its name ends in its version."""
    library_path = ask.environ.get("LD_LIBRARY_PATH") or os.environ.get("LD_LIBRARY_PATH", "")
    places = [Path(ask.at(word)) for word in library_path.split(":") if word.startswith("/")]
    for pattern in ("cuda*/compat", "cuda*/compat/lib"):
        places += sorted(Path(ask.at("/usr/local")).glob(pattern))
    files = (file.resolve() for place in places for file in place.glob("libcuda.so.1") if "compat" in file.resolve().parts)
    return str(max(files, key=lambda file: _numbers(file.name), default=""))


def _numbers(name: str) -> list[int]:
    return [int(word) for word in name.split(".") if word.isdecimal()]


def _torch() -> dict[str, Json]:
    """Return the assignments of torch/version.py; importing torch takes seconds and memory."""
    spec = PathFinder.find_spec("torch")
    places = spec.submodule_search_locations if spec is not None else None
    versions: dict[str, Json] = {}
    for place in places or ():
        try:
            tree = ast.parse(Path(place, "version.py").read_text("utf-8", "replace"))
        except (OSError, SyntaxError):
            continue
        for line in tree.body:
            target = line.target if isinstance(line, ast.AnnAssign) else line.targets[0] if isinstance(line, ast.Assign) else None
            value = getattr(line, "value", None)
            if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                key = {"__version__": "torch", "git_version": "torch_git"}.get(target.id, target.id)
                if key in ("torch", "torch_git", "cuda", "hip"):
                    versions[key] = value.value
    return versions


def _script(path: str) -> Reading:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 -- a name, as the command has it
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return Reading(NAME, HOST, "env.script", None, f"{path}: {error.strerror}")
    return Reading(NAME, HOST, "env.script", {"path": path, "digest": digest})


def _code(directory: str) -> Reading:
    program = shutil.which("git")
    if program is None:
        return Reading(NAME, HOST, "env.code", None, "git is not here")
    until = time.monotonic() + _GIT_S
    try:
        answer = _git(until, program, directory, "rev-parse", "--show-toplevel", "HEAD", "--abbrev-ref", "HEAD").split("\n")
        changed = _git(until, program, directory, "status", "--porcelain", "--untracked-files=no")
        difference = _git(until, program, directory, "diff", "HEAD", "--no-ext-diff", "--no-textconv") if changed else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        return Reading(NAME, HOST, "env.code", None, f"git: {error}")
    except subprocess.CalledProcessError as error:
        words = str(error.stderr).strip().splitlines()[:1]
        missing = any("not a git repository" in word for word in words)
        return Reading(NAME, HOST, "env.code", None, NOT_SUPPORTED if missing else f"git: {''.join(words)[:200]}")
    value: dict[str, Json] = {"root": answer[0], "head": answer[1], "branch": answer[2] if len(answer) > 2 else ""}  # noqa: PLR2004 -- three answers
    value |= {"dirty": len(changed.splitlines()), "changed": hashlib.sha256(difference.encode()).hexdigest()[:16] if difference else ""}
    return Reading(NAME, HOST, "env.code", value)


def _git(until: float, program: str, directory: str, *words: str) -> str:
    """Return git's answer. It writes nothing, not even its index, and reads no tree of another user (safe.directory)."""
    done = subprocess.run(  # noqa: S603 -- git, found on the PATH
        [program, "-C", directory, "-c", "core.fsmonitor=false", *words],
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=max(0.0, until - time.monotonic()),
        check=True,
    )
    return done.stdout.rstrip("\n")
