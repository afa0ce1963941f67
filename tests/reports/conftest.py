"""What the tests of reports share: `supervise` runs, and the commands that start a script of `scripts/` on two ranks, or on one."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.e2e.conftest import frameworks, supervise  # noqa: F401  fixtures

SCRIPTS = Path(__file__).parent / "scripts"
#: What a user declares for the training of `scripts/training.py`.
DECLARED = ("--checkpoints", "ckpt/step-*.pt", "--resume-args", "--resume {resume}")
#: Checkpoints are looked at often, since these trainings take seconds: `supervise(..., **OFTEN)`.
OFTEN = {"_SUPERVISE_TEST_INTERVALS": "0.04"}


def torchrun(script: str, *arguments: str, ranks: int = 2) -> list[str]:
    """Return the command that runs a script of `scripts/` under torchrun on one node."""
    return ["torchrun", "--standalone", f"--nproc-per-node={ranks}", str(SCRIPTS / script), *arguments]


def alone(script: str, *arguments: str) -> list[str]:
    """Return the command that runs a script of `scripts/` as one process: where neither a launcher nor a peer is the subject."""
    return [sys.executable, str(SCRIPTS / script), *arguments]
