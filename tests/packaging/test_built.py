"""The wheel and the sdist as a user installs them: into a new environment, beside the job's torch, with no checkout in sight."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.packaging.environments import DEADLINE_S, PIP, ROOT, Environment, run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("built")]
#: What the package and all that it needs may take on the disk, pip's byte code included; torch is the job's.
MOST_BYTES = 75_000_000
#: Prints the bytes of all that is installed, pip itself apart.
BYTES = """
import importlib.metadata as m, os
distributions = [d for d in m.distributions() if d.metadata["Name"] not in {"pip", "setuptools"}]
files = {str(d.locate_file(f)) for d in distributions for f in d.files or ()}
print(sum(os.path.getsize(f) for f in files if os.path.exists(f)))
"""
#: Two ranks that save after each step. The second kills itself at step 3, the first time.
TRAIN = """
import argparse, os, pathlib, signal
import torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--resume")
resume = parser.parse_args().resume
dist.init_process_group("gloo")
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
done = 0
if resume:
    saved = torch.load(resume)
    model.load_state_dict(saved["model"])
    done = saved["step"]
print(f"begins after step {done}", flush=True)
for step in range(done + 1, 7):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "step": step}, f"new-{step}")
        os.rename(f"new-{step}", f"step_{step}.pt")
    dist.barrier()
    if step == 3 and dist.get_rank() == 1 and not resume:
        os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
"""
JOB = ("torchrun", "--standalone", "--nproc-per-node=2", "train.py")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The wheel and the sdist of this checkout."""
    directory = tmp_path_factory.mktemp("dist")
    run(PIP[0], "-m", "hatchling", "build", "-d", directory, cwd=ROOT)
    return {"wheel": next(directory.glob("*.whl")), "sdist": next(directory.glob("*.tar.gz"))}


@pytest.fixture
def fresh(tmp_path: Path) -> Environment:
    """An environment that has pip alone."""
    run(PIP[0], "-m", "venv", tmp_path / "venv")
    return Environment(tmp_path / "venv")


@pytest.fixture(scope="module")
def uv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command uv, from the package index."""
    place = tmp_path_factory.mktemp("uv")
    command = [*PIP, "install", "--only-binary=:all:", "--retries=0", f"--target={place}", "uv"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)  # noqa: S603 -- pip
    if done.returncode:
        pytest.skip(f"pip cannot install uv, which needs a package index: {done.stderr.strip()[-200:]}")
    return place / "bin/uv"


def files(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def recovers_from_a_kill(environment: Environment) -> None:
    """Train under what was installed: a rank is killed, and the job resumes and ends well."""
    work = environment.root / "work"
    work.mkdir(exist_ok=True)
    (work / "train.py").write_text(TRAIN)
    options = ("--state-dir", environment.root / "state", "--checkpoints", "step_*.pt", "--resume-args", "--resume {resume}")
    output = environment.run("supervise", *options, "--", *JOB)
    assert "begins after step 3" in output
    assert (work / "step_6.pt").exists()
    assert "hardware" not in (why := environment.run("supervise", "--state-dir", environment.root / "state", "why")), why
    assert "SIGKILL" in why or "killed" in why


def test_the_sdist_gives_the_same_wheel_and_holds_nothing_that_was_made_here(built: Mapping[str, Path], tmp_path: Path) -> None:
    with tarfile.open(built["sdist"]) as archive:
        names = archive.getnames()
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    run(PIP[0], "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "dist", cwd=source)
    assert files(next((tmp_path / "dist").glob("*.whl"))) == files(built["wheel"])
    inside = {name.partition("/")[2] for name in names}
    assert {"LICENSE", "CHANGELOG.md", "Makefile", "constraints.txt", "systemd/supervise@.service", "supervisor/py.typed"} <= inside
    assert [name for name in inside if name.endswith((".pyc", ".so", ".whl")) or "__pycache__" in name or ".venv" in name] == []


def test_a_wheel_by_pip_is_small_and_a_job_under_it_survives_a_kill(built: Mapping[str, Path], fresh: Environment) -> None:
    fresh.run("pip", "install", "-q", "-c", ROOT / "constraints.txt", built["wheel"])
    assert int(fresh.run("python", "-c", BYTES)) <= MOST_BYTES
    assert fresh.run("supervise", "--version").strip() == "supervise 0.1.0"
    assert "this node is fit for a job" in fresh.run("supervise", "doctor")
    fresh.link_torch()
    assert "No broken requirements" in fresh.run("pip", "check")
    recovers_from_a_kill(fresh)


def test_an_sdist_by_uv_leaves_the_torch_of_the_environment_alone(built: Mapping[str, Path], fresh: Environment, uv: Path) -> None:
    fresh.link_torch()
    before = fresh.run("pip", "freeze")
    run(uv, "pip", "install", "--quiet", "--python", fresh.bin / "python", built["sdist"])
    after = fresh.run("pip", "freeze").splitlines()
    assert set(before.splitlines()) <= set(after)
    assert "No broken requirements" in fresh.run("pip", "check")
    assert "6 * 7 is 42" in fresh.run("supervise", "--state-dir", fresh.root / "state", "--", "python", "-c", "print('6 * 7 is', 6 * 7)")
