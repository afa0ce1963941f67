"""`health` alone: its public names, its example, and its command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import health
from health import Ask, Doctor, examine

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "library-health.md").read_text("utf-8")


def python(*words: str, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if key not in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE")}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=cwd, env=environ, input=stdin, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603 -- ours


def test_every_public_name_is_there_and_documented() -> None:
    assert set(health.__all__) <= set(dir(health))
    for name in health.__all__:
        assert getattr(health, name).__module__.startswith("health.")
        assert re.search(rf"`{name}\b", PAGE), f"docs/reference/library-health.md does not name {name}"
    with pytest.raises(AttributeError, match="diagnose"):
        health.diagnose  # noqa: B018 -- that it is asked for


def test_importing_it_imports_nothing_else(tmp_path: Path) -> None:
    code = "import sys; before = set(sys.modules); import health; print(sorted({*sys.modules} - before))"
    loaded = python("-c", code, cwd=tmp_path).stdout
    assert not re.search(r"health\.|torch|psutil|rich", loaded), loaded


@pytest.mark.slow
@pytest.mark.process
def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done = python("-c", example, cwd=tmp_path)
    assert done.returncode in (0, 69), done.stderr
    assert not done.stderr


@pytest.mark.slow
@pytest.mark.process
def test_a_doctor_that_lasts_judges_the_path_of_the_job_each_time(tmp_path: Path) -> None:
    assert any(result.subject == f"path:{tmp_path}" for result in examine(Ask(paths=(str(tmp_path),))).results)
    doctor = Doctor(Ask(), lasting=True)
    try:
        first, second = ({result.check for result in doctor.examine().results} for _ in range(2))
        assert first <= second, "with a baseline more can be judged"
    finally:
        doctor.close()


@pytest.mark.process
def test_the_command_prints_what_examine_returns_also_without_a_gpu(tmp_path: Path) -> None:
    done = python("-m", "health", "--json", cwd=tmp_path)
    diagnosis = json.loads(done.stdout)
    assert done.returncode == (0 if diagnosis["fit"] else 69)
    assert done.stderr == ""
    assert f"path:{tmp_path}" in {row["subject"] for row in diagnosis["results"]}
    of_gpus = {row["check"]: row["result"] for row in diagnosis["results"] if row["check"].startswith("gpu_")}
    assert of_gpus["gpu_driver"] == "ok" or set(of_gpus.values()) <= {"skipped", "unknown"}, "a GPU is here, or none"


def test_the_command_judges_a_saved_kernel_log(tmp_path: Path) -> None:
    line = "[5.000000] NVRM: Xid (PCI:0000:5e:00): 79, GPU has fallen off the bus.\n"
    done = python("-m", "health", "--json", "--kernel-log", "-", cwd=tmp_path, stdin=line)
    assert (done.returncode, json.loads(done.stdout)["code"]) == (69, 79)
    done = python("-m", "health", "--kernel-log", "no-such-file", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (64, "")
    assert "kernel log not readable: no-such-file" in done.stderr
    assert python("-m", "health", "--watch", "0", cwd=tmp_path).returncode == 2
