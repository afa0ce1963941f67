"""Where no NVIDIA GPU is, each test here is skipped, and says so."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import ledgers_add_up, pytest_runtest_makereport, supervise

__all__ = ["ledgers_add_up", "pytest_runtest_makereport", "supervise"]


def listed() -> list[str]:
    """Return the UUIDs of what `nvidia-smi -L` names: GPUs, and MIG instances below them."""
    if shutil.which("nvidia-smi") is None or not Path("/dev/nvidiactl").exists():
        return []
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S607  as the user has it
    return [line.rpartition("UUID: ")[2].rstrip(")") for line in done.stdout.splitlines() if "UUID: " in line]


@pytest.fixture(scope="session")
def gpus() -> list[str]:
    """The UUIDs of this node's GPUs."""
    uuids = [uuid for uuid in listed() if uuid.startswith("GPU-")]
    if not uuids:
        pytest.skip("no NVIDIA GPU is here, nvidia-smi lists none: run it on a node that has one")
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[dev]")
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} cannot use the GPU that nvidia-smi lists: install a build for its driver")
    return uuids


@pytest.fixture(scope="session")
def mig() -> list[str]:
    """The UUIDs of MIG instances."""
    uuids = [uuid for uuid in listed() if uuid.startswith("MIG-")]
    if not uuids:
        pytest.skip("no MIG instance is here: `nvidia-smi mig` makes them, as root")
    return uuids


@pytest.fixture
def environment() -> dict[str, str]:
    """A user's environment, without what a supervisor around the tests gave."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SUPERVISE_")}
