"""Which findings hold an attempt back, and how many ranks begin without the GPUs that are ill."""

from __future__ import annotations

import pytest

from supervisor.core import preflight
from supervisor.core.actions import Quarantine, Say
from supervisor.core.model import Finding, Gpu, Launcher, Policy
from supervisor.core.state import JobState

THREE = tuple(Gpu(index, f"GPU-{index}", f"0000:1{index}:00.0") for index in range(3))
#: A GPU that was lost before the job started has no name.
LOST = Finding("gpu_errors", "gpu:#3", "failed", "GPU 3: it is lost", blocks=True)
RESET = Finding("gpu_recovery", "gpu:#3", "failed", "GPU 3: a reset is due", blocks=True)
ON_THE_BUS = Finding("gpu_count", "pci:0000:14:00.0", "failed", "on the bus, and not seen", blocks=True)


@pytest.mark.parametrize(
    ("found", "there"), [((LOST,), 4), ((LOST, RESET), 4), ((LOST, ON_THE_BUS), 5)], ids=["one", "one for two reasons", "two"]
)
def test_a_gpu_that_is_ill_for_two_reasons_is_one_gpu(found: tuple[Finding, ...], there: int) -> None:
    policy = Policy(launcher=Launcher.ELASTIC, min_gpus=1, batch_drift=True, health=True)
    judged = preflight.judged(JobState(policy=policy, gpus=THREE, checked=found), 0.0)
    assert judged.stop is None
    assert any(f"3 of {there} ranks" in one.text for one in judged.actions if isinstance(one, Say))


def test_a_gpu_that_is_not_needed_is_told_of_once() -> None:
    state = JobState(policy=Policy(launcher=Launcher.ELASTIC, health=True), gpus=THREE, checked=(LOST,), wanted=3)
    judged = preflight.judged(state, 0.0)
    assert judged.stop is None
    assert [one.text for one in judged.actions if isinstance(one, Say)] == ["health: GPU 3: it is lost; the job goes on"]
    assert not any(isinstance(one, Quarantine) for one in judged.actions)
    assert preflight.judged(judged.state, 1.0).actions == ()
