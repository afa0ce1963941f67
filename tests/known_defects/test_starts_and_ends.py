"""What a whole run leaves behind: see the table of this package."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from supervisor.job.identity import job_dir_path
from tests.e2e.conftest import supervise  # noqa: F401  a fixture
from tests.known_defects import ONE_PASS, later, prepared
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.conftest import Supervised

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(300)]
DECLARED = ("--checkpoints", "ckpt/step-*.pt", "--resume-args", "--resume {resume}")


@later(ONE_PASS)
def test_a_start_that_restores_nothing_leaves_nothing_in_shared_memory(supervise: Callable[..., Supervised], tmp_path: Path) -> None:  # noqa: F811
    run = supervise(
        sys.executable,
        "-c",
        "",
        options=[*DECLARED, "--mirror", "s3://bucket"],
        AWS_ENDPOINT_URL_S3=f"http://127.0.0.1:{free_port()}",
        AWS_ACCESS_KEY_ID="key",
        AWS_SECRET_ACCESS_KEY="secret",  # noqa: S106  of no server
        AWS_DEFAULT_REGION="us-east-1",
    )
    prepared(run.exit_code(200) == 75, run.stderr)
    left = [place for state in tmp_path.glob("state/e2e/**/") if (place := job_dir_path(state)).exists()]
    for place in left:
        for file in place.iterdir():
            file.unlink()
        place.rmdir()
    assert left == []
