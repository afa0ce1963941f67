"""The real library on a real GPU, where one is at hand: what the fake promises is what NVML says."""

from __future__ import annotations

from pathlib import Path

import pytest

from health.judge import judge
from health.model import Ask, Readings, Result
from health.probing.runner import OUTCOME, Runner

PROBES = ("nvml", "pci", "driver")
pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def swept() -> Readings:
    now = Runner().sweep(PROBES, Ask())
    if now.table("nvml.init").get("code") != 0 or not now.of("gpu.identity"):
        pytest.skip("no NVIDIA GPU is here: run it on a node that has one")
    return now


def test_the_library_answers_in_time(swept: Readings) -> None:
    assert swept.table(OUTCOME, "probe:nvml")["state"] == "answered"


def test_a_gpu_is_described_as_it_is(swept: Readings) -> None:
    for subject in swept.subjects("gpu:"):
        assert subject.startswith("gpu:GPU-")
        assert Path("/sys/bus/pci/devices", str(swept.table("gpu.identity", subject)["pci"])).exists()
        assert 5 < (swept.number("gpu.temperature_c", subject) or 0) < 110
        assert (swept.value("gpu.recovery_action", subject) or 0) in range(8)
        capability = swept.value("gpu.compute_capability", subject)
        assert isinstance(capability, list)
        assert (5, 0) <= tuple(capability) < (20, 0)
        total = swept.table("gpu.memory", subject)["total"]
        assert isinstance(total, int)
        assert total > 1 << 30


def test_no_check_trips_over_what_it_says(swept: Readings) -> None:
    assert [result for result in judge(swept, swept) if "the check itself failed" in result.reason or "was not read" in result.reason] == []


def test_a_gpu_that_answers_is_not_lost(swept: Readings) -> None:
    assert {result.result for result in judge(swept) if result.check in {"gpu_driver", "gpu_count"}} == {Result.OK}


def test_a_session_that_lasts_says_the_same(swept: Readings) -> None:
    runner = Runner()
    first, second = (runner.sample(PROBES, Ask()) for _ in range(2))
    runner.close()
    names = [
        {(row.subject, row.name) for row in sweep if row.probe == "nvml" and row.name != "gpu.events"} for sweep in (swept, first, second)
    ]
    assert names[0] == names[1] == names[2]
