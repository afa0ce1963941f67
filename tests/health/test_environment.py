"""What a job will run on: versions, variables and code, here and across nodes."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from health import registry
from health.checks import environment as checked
from health.checks import node_environments
from health.model import HOST, NOT_SUPPORTED, Ask, CheckResult, Json, Reading, Readings, Repair, Result
from health.probes import environment, slurm
from health.thresholds import Thresholds
from tests.health.harmless_commands import are_apart

OK, DEGRADED, FAILED, UNKNOWN, SKIPPED = Result.OK, Result.DEGRADED, Result.FAILED, Result.UNKNOWN, Result.SKIPPED


@dataclass(frozen=True, slots=True)
class Row:
    """Readings, and the expected result."""

    check: str
    read: Mapping[str, Json]
    result: Result
    words: str
    repair: Repair = Repair.NONE
    before: Mapping[str, Json] | None = None
    problem: str = ""


def versions(**more: Json) -> dict[str, Json]:
    row: dict[str, Json] = {"python": "3.11.7", "torch": "2.9.0", "cuda": "12.8", "nccl": "2.27.3", "driver": "570.1", "kernel": "6.8"}
    return {"env.versions": {key: value for key, value in {**row, **more}.items() if value}}


FEW = slurm.missing_tasks({"SLURM_NTASKS": "1", "SLURM_NTASKS_PER_NODE": "2"})


def code(head: str = "a" * 40, changed: str = "") -> dict[str, Json]:
    return {"env.code": {"root": "/code", "head": head, "branch": "main", "dirty": 2 if changed else 0, "changed": changed}}


TABLE = [
    Row("env_versions", versions(), OK, "torch 2.9.0, cuda 12.8, nccl 2.27.3, driver 570.1"),
    Row("env_versions", versions(driver="515.65"), FAILED, "needs driver 525 or newer, and 515.65 is loaded", Repair.CONFIGURE),
    Row("env_versions", versions(cuda="13.0", driver="570.1"), FAILED, "needs driver 580", Repair.CONFIGURE),
    Row("env_versions", {**versions(cuda="13.0", driver="570.1"), "env.compat": "/c/compat/libcuda.so.580.65.06"}, UNKNOWN, "may stand in"),
    Row(
        "env_versions",
        {**versions(cuda="13.0", driver="570.1"), "env.compat": "/c/compat/libcuda.so.575.1"},
        FAILED,
        "needs driver 580",
        Repair.CONFIGURE,
    ),
    Row("env_versions", versions(cuda="", driver="570.1"), DEGRADED, "built without CUDA", Repair.CONFIGURE),
    Row("env_versions", versions(cuda="", driver=""), OK, "torch 2.9.0"),
    Row("env_versions", versions(torch=""), UNKNOWN, "torch is not installed"),
    Row("env_versions", {}, UNKNOWN, "not read"),
    Row("env_variables", {"env.variables": {"NCCL_DEBUG": "INFO"}}, OK, "1 variables"),
    Row("env_variables", {"env.variables": {"NCCL_TIMEOUT": "1800"}}, DEGRADED, "NCCL_TIMEOUT=1800 does nothing", Repair.CONFIGURE),
    Row("env_variables", {"env.variables": {"TORCH_DISTRIBUTED_TIMEOUT": "9"}}, DEGRADED, "does nothing", Repair.CONFIGURE),
    Row("env_variables", {"env.variables": {"NCCL_LL_THRESHOLD": "0"}}, DEGRADED, "NCCL 2.5 removed it", Repair.CONFIGURE),
    Row("env_variables", {"env.variables": {"NCCL_BLOCKING_WAIT": "1"}}, DEGRADED, "torch's is TORCH_NCCL_BLOCKING_WAIT", Repair.CONFIGURE),
    Row("env_slurm", {"env.slurm": {}}, SKIPPED, "not in a job of Slurm"),
    Row("env_slurm", {"env.slurm": {"job": "7100", "step": "0", "missing": ""}}, OK, "step 7100.0 of Slurm"),
    Row(
        "env_slurm", {"env.slurm": {"job": "7100", "step": "", "missing": ""}}, DEGRADED, "job 7100, and outside of srun", Repair.CONFIGURE
    ),
    Row(
        "env_slurm", {"env.slurm": {"job": "7100", "step": "0", "missing": FEW}}, DEGRADED, "SLURM_NTASKS_PER_NODE says 2", Repair.CONFIGURE
    ),
    Row("env_slurm", {}, UNKNOWN, "not read"),
    Row("env_code", code(), OK, "the code is aaaaaaaaaaaa (main)"),
    Row("env_code", code(changed="f00"), OK, "and 2 files changed since"),
    Row("env_code", code(changed="f00"), OK, "2 files", before=code(changed="f00")),
    Row("env_code", code(changed="f00"), DEGRADED, "was another when the job started", before=code()),
    Row("env_code", code("b" * 40), DEGRADED, "was another when the job started (aaaaaaaaaaaa)", before=code()),
    Row("env_code", {}, SKIPPED, "not visible here", problem=NOT_SUPPORTED),
    Row("env_code", {}, UNKNOWN, "dubious ownership", problem="git: fatal: dubious ownership"),
]


def results_of(check: str, now: Readings, before: Readings | None = None) -> list[CheckResult]:
    return list(registry.checks()[check](now, before, Thresholds()))


def readings(read: Mapping[str, Json]) -> Readings:
    return Readings(Reading("environment", HOST, name, value) for name, value in read.items())


@pytest.mark.parametrize("row", TABLE, ids=[f"{at}-{row.check}" for at, row in enumerate(TABLE)])
def test_the_table(row: Row) -> None:
    now = readings(row.read)
    if row.problem:
        now += Readings([Reading("environment", HOST, "env.code", None, row.problem)])
    [result] = results_of(row.check, now, None if row.before is None else readings(row.before))
    assert (result.result, result.repair, result.blocks) == (row.result, row.repair, False), result
    assert row.words in result.reason
    assert are_apart(result), result


def node(mtu: int = 9000, **changes: Json) -> Readings:
    """Return what one node of a job reads. changes: versions, and NCCL_* variables."""
    variables: dict[str, Json] = {key: value for key, value in changes.items() if key.startswith(("NCCL_", "CUDA_"))}
    row: dict[str, Json] = {key: value for key, value in changes.items() if key not in variables and key != "head"}
    head = str(changes.get("head", "a" * 40))
    return readings({**versions(**row), **code(head), "env.variables": variables}) + Readings([
        Reading("ethernet", "nic:eth0", "nic.state", {"carrier": True, "virtual": False, "mtu": mtu}),
        Reading("ethernet", "nic:eth1", "nic.state", {"carrier": None, "virtual": False, "mtu": 1500}),
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("other", "result", "words"),
    [
        (node(), OK, "4 nodes have the same environment"),
        (node(CUDA_VISIBLE_DEVICES="0,1"), OK, "same environment"),
        (node(torch="2.8.0"), FAILED, "version of torch is not the same on all nodes: n3: 2.8.0; 3 of 4 have 2.9.0"),
        (node(nccl="2.21.5"), FAILED, "version of nccl"),
        (node(driver="560.9"), DEGRADED, "version of driver"),
        (node(numpy="2.0"), DEGRADED, "version of numpy is not the same on all nodes: n3: 2.0; 3 of 4 have unset"),
        (node(NCCL_ALGO="Ring"), DEGRADED, "NCCL_ALGO is not the same on all nodes: n3: Ring; 3 of 4 have unset"),
        (node(head="b" * 40), DEGRADED, "the code's revision is not the same on all nodes: n3: bbbbbbbbbbbb"),
        (node(1500), DEGRADED, "MTU of eth0 is not the same on all nodes: n3: 1500; 3 of 4 have 9000"),
    ],
    ids=["same", "own", "torch", "nccl", "driver", "package", "variable", "code", "mtu"],
)
def test_a_difference_across_nodes_is_shown_with_its_nodes(other: Readings, result: Result, words: str) -> None:
    nodes = {f"n{at}": node() for at in range(3)}
    [check_result] = results_of("env_nodes", node() + node_environments.merge_nodes({**nodes, "n3": other}))
    assert (check_result.result, check_result.subject) == (result, HOST)
    assert words in check_result.reason


def test_a_node_alone_is_not_compared() -> None:
    [result] = results_of("env_nodes", node() + node_environments.merge_nodes({"n0": node()}))
    assert result.result is SKIPPED


def test_every_check_of_the_environment_is_held_here() -> None:
    assert {row.check for row in TABLE} | {"env_nodes"} == {name for name in registry.checks() if name.startswith("env_")}


def test_versions_are_those_of_this_interpreter_and_torch_is_not_imported() -> None:
    script = """import sys; from health.model import Ask; from health.probes import environment
versions = [reading.value for reading in environment.read(Ask()) if reading.name == "env.versions"][0]
print(versions["torch"], "torch" in sys.modules, "numpy" in sys.modules)"""
    done = subprocess.run(  # noqa: S603 -- ours
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True, cwd=Path(__file__).parents[2]
    )
    assert done.stdout.split() == [importlib.metadata.version("torch"), "False", "False"]
    now = Readings(environment.read(Ask()))
    assert now.table("env.versions")["python"] == platform.python_version()
    assert now.text("env.python") == sys.executable


def test_variables_listed_as_ignored_by_torch_are_in_none_of_its_files() -> None:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.submodule_search_locations
    root = Path(spec.submodule_search_locations[0])
    header = root / "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"
    if not header.exists():
        pytest.skip("this torch has no C++ headers: install a wheel of pytorch.org")
    sources = [header, *root.joinpath("distributed").glob("*.py"), root / "lib/libtorch_python.so"]
    for file in filter(Path.exists, sources):
        data = file.read_bytes()
        for name in checked.UNREAD_VARIABLES:
            assert f'"{name}"'.encode() not in data
            assert f"\0{name}\0".encode() not in data
    text = header.read_text("utf-8")
    for name in checked.RENAMED_VARIABLES:
        assert f'"{name}"' in text, "read under its old name still"
        assert f'"TORCH_{name}"' in text


def test_the_newest_library_for_an_older_driver_is_found_and_the_driver_s_own_is_none(tmp_path: Path) -> None:
    def library(directory: str, version: str) -> None:
        (tmp_path / directory).mkdir(parents=True)
        (tmp_path / directory / f"libcuda.so.{version}").touch()
        (tmp_path / directory / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")

    def read(**environ: str) -> str:
        return Readings(environment.read(Ask(root=str(tmp_path), environ={"LD_LIBRARY_PATH": "/own", **environ}))).text("env.compat")

    library("own", "590.1")
    assert read() == ""
    library("usr/local/cuda-12.8/compat", "570.99")
    assert read().endswith("/cuda-12.8/compat/libcuda.so.570.99")
    library("opt/compat", "580.65.06")
    assert read(LD_LIBRARY_PATH="/own::/opt/compat").endswith("/opt/compat/libcuda.so.580.65.06")


def test_variables_of_others_and_secrets_are_not_read() -> None:
    environ = {"NCCL_DEBUG": "INFO", "AWS_SECRET_ACCESS_KEY": "x", "NVIDIA_API_KEY": "x", "HOME": "/root", "OMP_NUM_THREADS": "4"}
    assert Readings(environment.read(Ask(environ=environ))).value("env.variables") == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"}


@pytest.mark.process
def test_the_code_is_read_from_a_real_work_tree(tmp_path: Path) -> None:
    program = shutil.which("git")
    if program is None:
        pytest.skip("git is not installed (Debian: apt-get install git)")
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}

    def git(*words: str) -> None:
        command = [program or "git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e", *words]
        subprocess.run(command, check=True, capture_output=True, timeout=120, env=environ)  # noqa: S603 -- git

    def read() -> Readings:
        return Readings(reading for reading in environment.read(Ask(options={"code": str(tmp_path)})) if reading.name == "env.code")

    assert read().problem("env.code") == NOT_SUPPORTED, "no work tree"
    git("init", "-b", "trunk")
    (tmp_path / "train.py").write_text("print(1)\n", "ascii")
    git("add", "train.py")
    git("commit", "-m", "first")
    clean = read()
    row = clean.table("env.code")
    assert (row["root"], row["branch"], row["dirty"], row["changed"]) == (str(tmp_path), "trunk", 0, "")
    (tmp_path / "train.py").write_text("print(2)\n", "ascii")
    dirty = read()
    assert (dirty.table("env.code")["head"], dirty.table("env.code")["dirty"]) == (row["head"], 1)
    [result] = results_of("env_code", dirty, clean)
    assert result.result is DEGRADED


@pytest.mark.process
def test_all_that_git_is_asked_has_one_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "git").write_text("#!/bin/sh\nsleep 0.6; echo /a; echo b; echo c\n", "ascii")
    (tmp_path / "git").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(environment, "_GIT_S", 1.0)
    (code,) = [reading for reading in environment.read(Ask(options={"code": str(tmp_path)})) if reading.name == "env.code"]
    assert code.problem.startswith("git: ")
    assert "timed out" in code.problem
