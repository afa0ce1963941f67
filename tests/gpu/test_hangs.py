"""What only a real GPU can prove of the detection of hangs: `make gpu`. Until it has, `warn` is the default where GPUs are visible."""

from __future__ import annotations

import re
import statistics
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

JOB = str(Path(__file__).with_name("hanging_training.py"))
pytestmark = pytest.mark.process
#: The limits of docs/explanation/hangs.md, made ten to a hundred times shorter.
SCALED = {
    "SUPERVISE_HANG_TRAIN_S": "3",
    "SUPERVISE_HANG_PHASE_S": "60",
    "_SUPERVISE_TEST_INTERVALS": "0.04",
}


@pytest.fixture
def run(tmp_path: Path, environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Give a function that runs the job to its end under these options."""

    def supervised(*words: str, options: tuple[str, ...] = (), more: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603  the program under test
            ["supervise", "--resumes-itself", *options, "--", "torchrun", "--standalone", "--nproc-per-node=1", JOB, *words],  # noqa: S607  as a user
            cwd=tmp_path,
            env=environment | SCALED | (more or {}),
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )

    return supervised


def look(directory: Path) -> str:
    """Return the text of the look that was kept beside the card."""
    return next(directory.glob(".supervise/*/nodes/*/incidents/0001/hang.txt")).read_text(encoding="utf-8")


@pytest.mark.parametrize("pathology", ["spin", "synchronize"])
def test_a_kernel_that_spins_at_full_utilisation_is_seen_and_ended(
    pathology: str, gpus: list[str], run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = run(f"--pathology={pathology}", options=("--on-hang", "restart"))
    assert gpus
    assert done.returncode == 0, done.stderr
    assert "Restarting as attempt 2" in done.stderr
    text = look(tmp_path)
    assert "hanging_training.py" in text
    assert ("synchronize" in text) is (pathology == "synchronize")


def test_where_a_gpu_is_visible_the_default_only_warns(gpus: list[str], environment: dict[str, str], tmp_path: Path) -> None:
    """It ends only because TERM comes: `timeout` stands for the person who reads the alert."""
    assert gpus
    words = [
        "timeout",
        "--signal=TERM",
        "120",
        "supervise",
        "--",
        "torchrun",
        "--standalone",
        "--nproc-per-node=1",
        JOB,
        "--pathology=spin",
    ]
    done = subprocess.run(words, cwd=tmp_path, env=environment | SCALED, capture_output=True, text=True, timeout=300, check=False)  # noqa: S603  ours
    assert "the default where GPUs are visible" in done.stderr
    assert "restarting" not in done.stderr


def test_an_evaluation_of_twenty_minutes_is_no_hang(gpus: list[str], run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Scaled by twenty, as the limits are: a minute for twenty."""
    assert gpus
    done = run("--pathology=evaluation", "--long-s=60", options=("--on-hang", "auto"))
    assert done.returncode == 0, done.stderr
    assert "restarting" not in done.stderr


def test_the_flight_recorder_costs_a_step_of_ten_milliseconds_next_to_nothing(
    gpus: list[str], run: Callable[..., subprocess.CompletedProcess[str]], record_property: Callable[[str, object], None]
) -> None:
    assert gpus
    medians: dict[str, list[float]] = {"on": [], "off": []}
    for _ in range(3):
        for name, more in (("on", {}), ("off", {"TORCH_FR_BUFFER_SIZE": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"})):
            done = run("--steps=300", more=more)
            assert done.returncode == 0, done.stderr
            times = [float(seconds) for seconds in re.findall(r"step \d+ ([\d.]+)", done.stdout)][20:]
            medians[name].append(statistics.median(times))
    on, off = (statistics.median(medians[name]) for name in ("on", "off"))
    record_property("flight_recorder_us_per_step", round((on - off) * 1e6, 1))
    assert on - off < 0.01 * off, medians
