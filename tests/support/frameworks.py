"""The frameworks that are no dependencies of this project, for the tests that run them for real.

Each family is installed once, below `.frameworks` of the repository, into an environment that sees this one's torch and keeps it.
Where no package index can be reached, the test is skipped, with pip's reason.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".frameworks"
#: As checked in supervisor/knobs/programs.toml.
FAMILIES = {
    "huggingface": ("transformers==5.23.0", "trl==1.16.0", "accelerate==1.15.0"),
    "lightning": ("lightning==2.6.6", "jsonargparse[signatures]>=4.40"),
    "hydra": ("hydra-core==1.3.8",),
    # the services' own clients, November 2026
    "alerts": ("slack_sdk==3.47.0", "pagerduty==7.2.0"),
}


def variables(*families: str) -> dict[str, str]:
    """Return the variables with which a script finds these families; what is missing is installed first."""
    return {"PYTHONPATH": ":".join(str(_installed(family)) for family in families)} if families else {}


def node_package(wanted: str) -> Path:
    """Return the directory of a package of npm (`NAME@VERSION`); one process at a time installs it. The test is skipped where it cannot."""
    place = CACHE / "node" / wanted
    name = wanted.rpartition("@")[0]
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "node.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / ".ready").exists():
            place.mkdir(parents=True, exist_ok=True)
            npm = shutil.which("npm") or pytest.skip("npm is not installed (Debian: apt-get install npm)")
            done = subprocess.run(  # noqa: S603  words of our own
                [npm, "install", "--silent", "--no-save", "--legacy-peer-deps", "--ignore-scripts", "--prefix", str(place), wanted],
                capture_output=True, text=True, timeout=300, check=False,
            )  # fmt: skip
            if done.returncode:
                pytest.skip(f"npm cannot install {wanted}, which needs a package index: {(done.stdout + done.stderr).strip()[-300:]}")
            (place / ".ready").touch()
    return place / "node_modules" / name


def _installed(family: str) -> Path:
    """Return the directory of a family's packages; one process at a time installs it."""
    CACHE.mkdir(exist_ok=True)
    place = CACHE / family
    packages = place / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    wanted = json.dumps([*FAMILIES[family], f"torch=={version('torch')}", sys.version])
    ready = place / ".ready"
    with (CACHE / f"{family}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists() or ready.read_text() != wanted:
            shutil.rmtree(place, ignore_errors=True)
            venv.create(place, with_pip=True)
            (packages / "torch_of_the_tests.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("-packages")))
            constraints = place / "constraints.txt"
            others = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("torch==")]
            constraints.write_text("\n".join([*others, f"torch=={version('torch')}", ""]))
            pip = [place / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--no-input", "-q", "install"]
            done = subprocess.run(  # noqa: S603  words of our own
                [*pip, "-c", constraints, *FAMILIES[family]], capture_output=True, text=True, timeout=900, check=False
            )
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
                pytest.skip(f"pip cannot install {family}, which needs a package index: {reason}")
            ready.write_text(wanted)
    return packages
