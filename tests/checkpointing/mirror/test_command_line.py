"""`python -m checkpointing push` and `restore` against a real S3 server that only options, a profile or the environment name."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import torch

from tests.checkpointing.mirror import servers
from tests.checkpointing.mirror.process import IMPORTS, ROOT
from tests.support import preloaded

pytestmark = [pytest.mark.process, pytest.mark.s3]
PROFILE = f"[profile lab]\nregion = us-east-1\naws_access_key_id = {servers.KEY}\naws_secret_access_key = {servers.SECRET}\n"
KEYS = {"AWS_ACCESS_KEY_ID": servers.KEY, "AWS_SECRET_ACCESS_KEY": servers.SECRET}


def run(words: list[str], home: Path, environ: dict[str, str] | None = None, *, fork: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command with no AWS variable but these, and with ~/.aws in `home`. fork: of a process that has imported what it needs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    env = {**kept, "HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "PYTHONPATH": str(ROOT), **(environ or {})}
    if not fork:
        command = [sys.executable, "-m", "checkpointing", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)  # noqa: S603 -- ours
    return preloaded.command_text(*words, cwd=Path.cwd(), environ=env, imports=IMPORTS, module="checkpointing")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "ckpt" / "step_7.pt"
    path.parent.mkdir()
    torch.save({"step": 7, "model": torch.randn(3 << 20)}, path)
    return path


@pytest.mark.parametrize("named_by", ["options", *(pytest.param(by, marks=pytest.mark.slow) for by in ("profile", "environment"))])
def test_a_checkpoint_goes_to_a_server_and_comes_back(swift: servers.Server, tmp_path: Path, saved: Path, named_by: str) -> None:
    bucket = f"b{uuid.uuid4().hex[:16]}"
    swift.client().create_bucket(Bucket=bucket)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(PROFILE + (f"endpoint_url = {swift.endpoint}\n" if named_by == "profile" else ""))
    words, environ = {
        "options": (["--endpoint", swift.endpoint, "--region", "us-east-1", "--profile", "lab", "--path-style"], {}),
        "profile": (["--profile", "lab"], {}),
        "environment": ([], {**KEYS, "AWS_ENDPOINT_URL_S3": swift.endpoint}),
    }[named_by]
    of_job = ["--mirror", f"s3://{bucket}/pre", "--job", "llama", *words]
    sent = run(["push", str(saved), *of_job, "--part-mib", "5"], tmp_path, environ, fork=False)
    assert sent.returncode == 0, sent.stderr
    (key,) = [row["Key"] for row in swift.client().list_objects_v2(Bucket=bucket)["Contents"] if row["Key"].endswith(".pt")]
    assert swift.client().head_object(Bucket=bucket, Key=key)["ETag"].endswith('-3"'), "12 MiB in parts of 5"
    back = run(["restore", *of_job, "--to", str(tmp_path / "new")], tmp_path, environ, fork=False)
    assert back.returncode == 0, back.stderr
    assert (tmp_path / "new" / "step_7.pt").read_bytes() == saved.read_bytes()


def test_a_profile_that_does_not_exist_is_named(tmp_path: Path, saved: Path) -> None:
    done = run(["push", str(saved), "--mirror", "s3://bucket/pre", "--profile", "nothing"], tmp_path, KEYS)
    assert done.returncode == 1
    assert "The config profile (nothing) could not be found" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("size", ["4", "4097", "-5", "x"])
def test_a_part_that_s3_would_not_take_is_a_mistake_of_usage(tmp_path: Path, size: str) -> None:
    done = run(["push", "a.pt", "--mirror", str(tmp_path), "--part-mib", size], tmp_path)
    assert (done.returncode, "from 5 to 4096" in done.stderr) == (2, True)
