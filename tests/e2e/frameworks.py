"""The frameworks that are no dependencies of ours, for the tests that run them for real.

Where they cannot be imported here, they are installed, once in a session, into an environment of their own, which sees this one's torch;
where no package index can be reached either, the test is skipped.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

#: As checked in supervisor/knobs/programs.toml.
PACKAGES = {"transformers": "transformers==5.23.0", "lightning": "lightning==2.6.6", "jsonargparse": "jsonargparse[signatures]>=4.40"}


def variables(place: Path) -> dict[str, str]:
    """Return the variables with which a script finds the frameworks; they are installed below `place` where they are missing."""
    if all(find_spec(name) is not None for name in PACKAGES):
        return {}
    venv.create(place, with_pip=True)
    packages = place / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (packages / "torch_of_the_tests.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("-packages")))
    installing = [place / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--no-input", "-q", "install", *PACKAGES.values()]
    done = subprocess.run(installing, capture_output=True, text=True, timeout=600, check=False)  # noqa: S603  words of our own
    if done.returncode:
        pytest.skip(f"the frameworks are not installed, and cannot be: {done.stderr.strip().splitlines()[-1]}")
    return {"PYTHONPATH": str(packages)}
