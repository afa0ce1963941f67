"""Every check of GPUs, end to end: a state of the fake library, the real nvidia-ml-py, the prober, the check's verdict."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from health import registry
from health.checks.gpu import presence
from health.judge import judge
from health.kernellog.correlate import Correlator
from health.kernellog.model import Entry
from health.model import Ask, Reading, Readings, Repair, Result, Severity
from health.probes.gpu import nvml, nvml_calls
from health.probing.runner import Runner
from health.thresholds import Thresholds
from supervisor.observe.hangs import devices
from supervisor.observe.hangs.diagnosis import compared, devices_text
from supervisor.observe.hangs.look import Look, ProcessLook, RankLook
from supervisor.observe.hangs.rank_progress import RankProgress
from supervisor.observe.hangs.recorder import Collective, ProcessGroup, RecordedCollectives
from tests.health.harmless_commands import are_apart
from tests.support import forked_prober
from tests.support.fake_nvml import FakeNvml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from health.model import CheckResult

AHEAD = ProcessGroup("0", last=(Collective("all_reduce", 41, done=True), Collective("all_reduce", 42, done=False)))
BEHIND = ProcessGroup("0", last=(Collective("all_reduce", 41, done=True),))
#: Of three ranks: one waits, the others did not come.
IN_TURN = tuple(RecordedCollectives((group,)) for group in (AHEAD, BEHIND, BEHIND))
GPU = "gpu:GPU-00000000-0000-4000-8000-{:012d}"
UUID = "GPU-00000000-0000-4000-8000-00000000000"


@pytest.fixture
def runner(fake_library: Path, fake_nvml: FakeNvml) -> Iterator[Runner]:
    runner = forked_prober.runner(fake_library, fake_nvml)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def one_prober(fake_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Runner]]:
    """Give a runner whose prober answers for all rows, and the file from which it reads the state of the GPUs."""
    state = tmp_path_factory.mktemp("rows") / "state"
    runner = Runner(environ=FakeNvml(fake_library, state).environ)
    yield state, runner
    runner.close()


#: Checks of what a prober reads once, such as the driver and what a GPU has: their rows have a prober of their own.
READ_ONCE = frozenset({"gpu_driver", "gpu_errors", "gpu_nvlink", "gpu_pairs", "gpu_temperature", "gpu_vbios"})


@dataclass(frozen=True)
class Row:
    """One state, and what one check says of one subject. before: the state when the job started. gpu: whose; None for the host."""

    check: str
    state: dict[str, object]
    result: Result
    reason: str
    repair: Repair = Repair.NONE
    before: dict[str, object] | None = None
    gpu: int | None = 0
    blocks: bool = False
    count: int = 4


OK, DEGRADED, FAILED, UNKNOWN, SKIPPED = Result.OK, Result.DEGRADED, Result.FAILED, Result.UNKNOWN, Result.SKIPPED
BUSY: dict[str, object] = {"all.busy": 97}
ROWS = (
    Row("gpu_driver", {}, OK, "driver 580.95.05 answers", gpu=None),
    Row("gpu_driver", {"init_error": 18}, FAILED, "of different versions", Repair.RESTART_DRIVER, gpu=None, blocks=True),
    Row("gpu_driver", {"init_error": 9}, SKIPPED, "no NVIDIA", gpu=None),
    Row("gpu_driver", {"init_error": 999}, UNKNOWN, "could not be opened", gpu=None),
    Row("gpu_errors", {}, OK, f"GPU 0 ({UUID}0, 0000:10:00.0) answers"),
    Row("gpu_errors", {"0.lost": 1}, FAILED, "it is lost", Repair.REBOOT, blocks=True, before={}),
    Row("gpu_errors", {"0.err.nvmlDeviceGetRemappedRows": 16}, FAILED, "must be reset", Repair.RESET_GPU, blocks=True),
    Row("gpu_errors", {"0.err.nvmlDeviceGetEccMode": 14}, DEGRADED, "InfoROM is corrupted", Repair.REPLACE),
    Row("gpu_errors", {"0.err.nvmlDeviceGetTemperature": 999}, UNKNOWN, "one call failed"),
    Row("gpu_errors", {"0.err.nvmlDeviceGetEccMode": 14, "0.err.nvmlDeviceGetTemperature": 999}, DEGRADED, "InfoROM", Repair.REPLACE),
    Row("gpu_recovery", {"0.field.230": 1, "0.err.nvmlDeviceGetTemperature": 999}, FAILED, "a reset", Repair.RESET_GPU, blocks=True),
    Row("gpu_errors", {"0.err.nvmlDeviceGetTemperature": 9}, FAILED, "not loaded any more", Repair.RESTART_DRIVER, blocks=True),
    Row("gpu_errors", {"0.err.nvmlDeviceGetTemperature": 18}, FAILED, "different versions", Repair.RESTART_DRIVER, blocks=True),
    Row("gpu_errors", {"1.lost": 1}, OK, "answers"),
    Row("gpu_errors", {"0.err.nvmlDeviceGetTemperature": 8}, FAILED, "too little power", Repair.DRAIN, blocks=True),
    Row("gpu_errors", {"0.err.nvmlDeviceGetTemperature": 11}, FAILED, "interrupts do not arrive", Repair.REBOOT, blocks=True),
    Row("gpu_recovery", {}, OK, "none needed"),
    Row("gpu_recovery", {"old_driver": 1}, SKIPPED, "does not report"),
    Row("gpu_recovery", {"0.field.230": 1}, FAILED, "reset of the GPU", Repair.RESET_GPU, blocks=True),
    Row("gpu_recovery", {"0.field.230": 2}, FAILED, "reboot of the node", Repair.REBOOT, blocks=True),
    Row("gpu_recovery", {"0.field.230": 3}, DEGRADED, "drain its peers", Repair.DRAIN),
    Row("gpu_recovery", {"0.field.230": 4}, DEGRADED, "once the job is over", Repair.RESET_GPU),
    Row("gpu_recovery", {"0.field.230": 5}, DEGRADED, "IMEX", Repair.RESTART_DRIVER),
    Row("gpu_recovery", {"0.field.230": 6}, FAILED, "reset of the bus", Repair.REBOOT, blocks=True),
    Row("gpu_recovery", {"0.field.230": 7}, FAILED, "whole system", Repair.REBOOT, blocks=True),
    Row("gpu_recovery", {"0.field.230": 42}, DEGRADED, "do not know (42)", Repair.DRAIN),
    Row("gpu_count", {}, OK, "4 GPUs", gpu=None),
    Row(
        "gpu_count",
        {"count": 3},
        FAILED,
        f"GPU 3 ({UUID}3, 0000:13:00.0): it was there when the job started",
        Repair.REBOOT,
        before={"count": 4},
        gpu=3,
        blocks=True,
    ),
    Row("gpu_ecc", {}, OK, "no uncorrectable"),
    Row(
        "gpu_ecc",
        {"0.ecc_unc_vol": 2, "0.ecc_unc_agg": 9},
        FAILED,
        "2 uncorrectable memory errors since the job's start",
        Repair.RESET_GPU,
        before={"0.ecc_unc_agg": 7},
    ),
    Row("gpu_ecc", {"0.ecc_unc_vol": 1}, DEGRADED, "since the driver was loaded", Repair.RESET_GPU),
    Row("gpu_ecc", {"0.ecc_unc_vol": 1}, DEGRADED, "since the driver was loaded", Repair.RESET_GPU, before={"0.ecc_unc_vol": 1}),
    Row("gpu_ecc", {"0.ecc_unc_agg": 9}, OK, "no uncorrectable", before={"0.ecc_unc_agg": 9}),
    Row("gpu_ecc", {"0.ecc_cor_vol": 60_000}, DEGRADED, "corrected in", before={}),
    Row("gpu_ecc", {"0.ecc_cor_vol": 60_000}, OK, "no uncorrectable", before={"0.ecc_cor_vol": 59_999}),
    Row("gpu_ecc", {"0.ecc": 0}, SKIPPED, "ECC is off"),
    Row("gpu_ecc", {"0.err.nvmlDeviceGetTotalEccErrors": 3}, SKIPPED, "does not report"),
    Row("gpu_ecc", {"0.err.nvmlDeviceGetTotalEccErrors": 4}, UNKNOWN, "not permitted"),
    Row("gpu_sram", {}, OK, "below the vendor's threshold"),
    Row("gpu_sram", {"0.sram_exceeded": 1, "0.sram_agg": 700}, FAILED, "more errors of its SRAM", Repair.REPLACE),
    Row("gpu_remap", {}, OK, "0 rows remapped"),
    Row("gpu_remap", {"0.remap_pending": 1, "0.remap_unc": 1}, DEGRADED, "reset at the next restart", Repair.RESET_GPU),
    Row("gpu_remap", {"0.remap_failure": 1, "0.remap_pending": 1}, FAILED, "could not be remapped", Repair.REPLACE),
    Row("gpu_remap", {"0.remap_unc": 512}, FAILED, "512 rows", Repair.REPLACE),
    Row("gpu_remap", {"0.remap_cor": 6, "0.remap_unc": 5}, DEGRADED, "11 rows"),
    Row("gpu_remap", {"0.err.nvmlDeviceGetRemappedRows": 3, "0.mig": 1}, SKIPPED, "does not report"),
    Row("gpu_remap", {"absent.nvmlDeviceGetRemappedRows": 1}, SKIPPED, "does not report"),
    Row("gpu_retired", {"all.retired.0": 1, "all.retired.1": 2, "all.retired_pending": 0}, OK, "3 pages"),
    Row("gpu_retired", {"all.retired.0": 1, "all.retired.1": 2, "0.retired_pending": 1}, DEGRADED, "waits", Repair.RESET_GPU),
    Row("gpu_retired", {"all.retired.0": 9, "all.retired.1": 2}, DEGRADED, "11 pages"),
    Row("gpu_retired", {"all.retired.0": 40, "all.retired.1": 20}, FAILED, "60 pages", Repair.REPLACE),
    Row("gpu_nvlink", {}, OK, "18 NVLinks are up"),
    Row("gpu_nvlink", {"0.nvlink.7": 0}, FAILED, "NVLink 7 is down, other GPUs have more", Repair.RESET_GPU),
    Row("gpu_nvlink", {"all.nvlink.7": 0}, FAILED, "NVLink 7 is down since the job started", Repair.RESET_GPU, before={}),
    Row("gpu_nvlink", {"all.nvlink.7": 0}, OK, "17 of 18"),
    Row("gpu_nvlink", {f"{gpu}.nvlink.{link}": 0 for link in range(18) for gpu in (0, 1)}, OK, "no NVLink is in use"),
    Row("gpu_nvlink", {f"0.nvlink.{link}": 0 for link in range(18)}, DEGRADED, "all other GPUs have some up", Repair.RESET_GPU),
    Row("gpu_nvlink", {f"0.nvlink.{link}": 0 for link in range(18)}, FAILED, "is down since the job started", Repair.RESET_GPU, before={}),
    Row("gpu_nvlink", {"0.field.162.3": 2}, DEGRADED, "link 3 went down and came back 2 times", Repair.RESET_GPU, before={}),
    Row("gpu_nvlink", {"0.field.163.3": 500}, DEGRADED, "link 3: 500 replays or CRC errors", Repair.RESET_GPU, before={"0.field.163.3": 0}),
    Row("gpu_nvlink", {"0.field.163.3": 500}, OK, "18 NVLinks", before={"0.field.163.3": 495}),
    Row("gpu_nvlink", {"0.field.215.3": 1}, DEGRADED, "came back 1 times", Repair.RESET_GPU, before={"0.field.215.3": 0}),
    Row("gpu_fabric", {}, OK, "part of the fabric"),
    Row("gpu_fabric", {"0.fabric_state": 2}, FAILED, "in progress", Repair.RESTART_DRIVER),
    Row("gpu_fabric", {"0.fabric_state": 1}, FAILED, "not started", Repair.RESTART_DRIVER),
    Row("gpu_fabric", {"0.fabric_summary": 2, "0.fabric_mask": 0x10}, DEGRADED, "unhealthy: a route is unhealthy", Repair.DRAIN),
    Row("gpu_fabric", {"0.fabric_mask": 0x500}, DEGRADED, "configured wrongly", Repair.DRAIN),
    Row("gpu_fabric", {"fabric_version": 2}, OK, "part of the fabric"),
    Row("gpu_pairs", {}, OK, "6 pairs", gpu=None),
    Row(
        "gpu_pairs",
        {"pair.1.2.nvlink": 5},
        DEGRADED,
        f"GPU 1 ({UUID}1, 0000:11:00.0) and GPU 2 ({UUID}2, 0000:12:00.0): no NVLink",
        Repair.CONFIGURE,
        gpu=None,
    ),
    Row("gpu_pairs", {"pair.1.2.read": 1}, DEGRADED, "no peer-to-peer (status 1)", Repair.CONFIGURE, gpu=None),
    Row("gpu_pairs", {f"pair.{a}.{b}.nvlink": 5 for a, b in ((0, 2), (0, 3), (1, 2), (1, 3))}, OK, "as the node is wired", gpu=None),
    Row(
        "gpu_pairs",
        {f"pair.{other}.3.level": 50 for other in range(3)},
        DEGRADED,
        f"GPU 3 ({UUID}3, 0000:13:00.0): no sibling nearer than across sockets, and all others have one (switches)",
        Repair.CONFIGURE,
        gpu=None,
    ),
    Row("gpu_pairs", {f"pair.{a}.{b}.level": 50 for a, b in ((0, 2), (0, 3), (1, 2), (1, 3))}, OK, "as the node is wired", gpu=None),
    Row("gpu_pcie", {}, OK, "x16"),
    Row("gpu_pcie", {"0.pcie_width": 8}, DEGRADED, "8 lanes of 16", Repair.REPLACE),
    Row("gpu_pcie", {"0.pcie_gen": 1, "0.busy": 90}, DEGRADED, "generation 1 of 5 under load", Repair.RESET_GPU),
    Row("gpu_pcie", {"0.pcie_gen": 1, "0.busy": 0}, OK, "x16"),
    Row("gpu_replays", {"0.pcie_replays": 100}, DEGRADED, "100 PCIe replays a minute", Repair.REPLACE, before={"0.pcie_replays": 0}),
    Row("gpu_replays", {"0.pcie_replays": 100}, OK, "few", before={"0.pcie_replays": 98}),
    Row("gpu_temperature", {}, OK, "41 °C"),
    Row("gpu_temperature", {"0.temperature": 88}, DEGRADED, "slows itself down at 89", Repair.DRAIN),
    Row("gpu_temperature", {"0.err.nvmlDeviceGetTemperatureThreshold": 3}, SKIPPED, "does not report at which temperature it slows down"),
    Row("gpu_temperature", {"0.err.nvmlDeviceGetTemperatureThreshold": 3, "0.field.82": 60}, OK, "its driver does not report"),
    Row("gpu_temperature", {"0.err.nvmlDeviceGetTemperatureThreshold": 3, "0.margin": 46}, OK, "41 °C"),
    Row("gpu_temperature", {"0.err.nvmlDeviceGetTemperatureThreshold": 3, "0.margin": 2}, DEGRADED, "itself down at 43 °C", Repair.DRAIN),
    Row("gpu_temperature", {"0.field.82": 96}, DEGRADED, "its memory is at 96", Repair.DRAIN),
    Row("gpu_temperature", {"0.field.82": 90, "all.temperature_limit.2": 0}, OK, "41 °C"),
    Row("gpu_throttle", {}, OK, "not held back"),
    Row("gpu_throttle", {"0.throttle": 0x4}, OK, "not held back"),
    Row("gpu_throttle", {"0.throttle": 0x48}, DEGRADED, "a slowdown by hardware, heat (hardware): check its cooling", Repair.DRAIN),
    Row("gpu_throttle", {"0.throttle": 0x80}, DEGRADED, "a power brake: check its power", Repair.DRAIN),
    Row("gpu_throttle", {"0.throttle": 0x80, "absent.nvmlDeviceGetCurrentClocksEventReasons": 1}, DEGRADED, "a power brake", Repair.DRAIN),
    Row("gpu_throttle", {"0.field.270": 10**12, "0.throttle": 0}, DEGRADED, "heat (hardware)", Repair.DRAIN, before={"0.field.270": 0}),
    Row("gpu_throttle", {"0.field.270": 1, "0.throttle": 0x40}, OK, "not held back", before={"0.field.270": 0}),
    Row("gpu_clocks", BUSY, OK, "100%"),
    Row("gpu_clocks", {**BUSY, "0.clock": 800}, DEGRADED, "40% of its clock under load, its siblings at 100%", Repair.RESET_GPU),
    Row("gpu_clocks", {**BUSY, "all.clock": 800}, OK, "40%"),
    Row("gpu_power", {}, OK, "700 W"),
    Row("gpu_power", {"0.power_limit": 400_000}, DEGRADED, "limited to 400 W", Repair.CONFIGURE),
    Row("gpu_persistence", {}, OK, "on"),
    Row("gpu_persistence", {"0.persistence": 0}, DEGRADED, "off", Repair.CONFIGURE),
    Row("gpu_mig", {}, OK, "off"),
    Row("gpu_mig", {"0.mig": 1}, DEGRADED, "off on other GPUs of this node", Repair.CONFIGURE),
    Row("gpu_mig", {"all.mig": 1}, OK, "on"),
    Row("gpu_mig", {"0.mig": 0, "0.mig_pending": 1}, DEGRADED, "after a reset", Repair.RESET_GPU),
    Row("gpu_vbios", {}, OK, "one kind and VBIOS", gpu=None),
    Row(
        "gpu_vbios",
        {"2.vbios": "96.00.61.00.02"},
        DEGRADED,
        f"GPU 2 ({UUID}2, 0000:12:00.0): VBIOS 96.00.61.00.02",
        Repair.CONFIGURE,
        gpu=None,
    ),
    Row("gpu_vbios", {"2.name": "FAKE A100"}, DEGRADED, "2 kinds", gpu=None),
    Row("gpu_memory", {}, OK, "nobody else"),
    Row("gpu_memory", {"0.procs": f"{os.getpid()}:{2 << 30}"}, DEGRADED, "2.0 GiB are held by others"),
    Row("gpu_memory", {"0.procs": f"{os.getpid()}:{8 << 20}"}, OK, "nobody else"),
    Row("gpu_memory", {"0.procs": f"4194304:{2 << 30}"}, DEGRADED, "hidden from here: of another container"),
    Row("gpu_memory", {"0.memory_used": 9 << 30}, DEGRADED, "by no visible process"),
    Row("gpu_memory", {"0.err.nvmlDeviceGetComputeRunningProcesses_v3": 3}, SKIPPED, "does not report"),
)


def result_of(results: tuple[CheckResult, ...], check: str, gpu: int | None) -> CheckResult:
    subject = "host" if gpu is None else GPU.format(gpu)
    there = [result for result in results if result.check == check and result.subject == subject]
    assert len(there) == 1, [result for result in results if result.check == check]
    return there[0]


@pytest.mark.process
@pytest.mark.parametrize("row", ROWS, ids=[f"{number:02d}-{row.check}-{row.result}" for number, row in enumerate(ROWS)])
def test_a_state_is_judged(row: Row, fake_library: Path, one_prober: tuple[Path, Runner], tmp_path: Path) -> None:
    state, runner = one_prober
    with contextlib.ExitStack() as own:
        if row.check in READ_ONCE:
            state = tmp_path / "state"
            runner = own.enter_context(contextlib.closing(forked_prober.runner(fake_library, FakeNvml(fake_library, state))))
        is_judged(row, FakeNvml(fake_library, state), runner, tmp_path)


def is_judged(row: Row, fake_nvml: FakeNvml, runner: Runner, tmp_path: Path) -> None:
    """Fail where the check of a row says something else of its state."""
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)  # the node's own bus is none of the fake's
    ask, probes, before = Ask(root=str(tmp_path)), ("nvml", "pci", "driver"), None
    fake_nvml.set(gpus=row.count)
    if row.before is not None:
        fake_nvml.set(row.before)
        before = runner.sample(probes, ask)
    fake_nvml.set(row.state)
    results = judge(runner.sample(probes, ask), before)
    outcome = result_of(results, row.check, row.gpu)
    assert (outcome.result, outcome.repair, outcome.blocks) == (row.result, row.repair, row.blocks), outcome
    assert row.reason in outcome.reason
    assert outcome.result in {OK, SKIPPED, UNKNOWN} or outcome.evidence or outcome.command or outcome.look
    assert are_apart(outcome), outcome


def test_every_check_of_gpus_has_a_row_for_health_and_one_for_the_fault() -> None:
    mine = {name for name in registry.checks() if name.startswith("gpu_")} - {"gpu_events"}  # below: it needs a session that listens
    for good in (True, False):
        assert {row.check for row in ROWS if (row.result is OK) == good} == mine


@pytest.mark.process
def test_a_healthy_node_is_healthy(fake_nvml: FakeNvml, runner: Runner) -> None:
    fake_nvml.set(gpus=8)
    results = judge(runner.sweep(("nvml", "pci", "driver"), Ask()))
    assert {result.result for result in results} == {OK}
    assert len({result.subject for result in results if result.subject.startswith("gpu:")}) == 8


@pytest.mark.process
@pytest.mark.parametrize(
    "state",
    [
        pytest.param({"all.err.nvmlDeviceGetTotalEccErrors": 3, "all.err.nvmlDeviceGetRemappedRows": 3, "all.err.nvmlDeviceGetEccMode": 3,
                      "all.err.nvmlDeviceGetMigMode": 3, "all.nvlinks": 0, "all.err.nvmlDeviceGetSramEccErrorStatus": 3,
                      "all.err.nvmlDeviceGetGpuFabricInfoV": 3, "all.name": "FAKE GeForce RTX 4090"}, id="geforce"),
        pytest.param({"old_driver": 1, "absent.nvmlDeviceGetSramEccErrorStatus": 1, "absent.nvmlDeviceGetGpuFabricInfoV": 1,
                      "absent.nvmlDeviceGetCurrentClocksEventReasons": 1, "absent.nvmlDeviceGetMigMode": 1}, id="old driver"),
        pytest.param({"all.mig": 1, "all.err.nvmlDeviceGetRemappedRows": 3, "all.err.nvmlDeviceGetUtilizationRates": 3}, id="mig"),
        pytest.param({"all.err.nvmlDeviceGetFieldValues": 3}, id="no fields"),
    ],
)  # fmt: skip
def test_a_value_unknown_to_a_gpu_is_no_fault(state: dict[str, object], fake_nvml: FakeNvml, runner: Runner) -> None:
    fake_nvml.set(state)
    results = judge(runner.sweep(("nvml", "pci", "driver"), Ask()))
    assert {result.result for result in results} <= {OK, SKIPPED}, [result for result in results if result.result not in {OK, SKIPPED}]
    assert result_of(results, "gpu_temperature", 1).result is OK


@pytest.mark.process
def test_every_call_may_be_unknown(fake_nvml: FakeNvml, runner: Runner) -> None:
    versioned = {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetP2PStatus", "nvmlDeviceGetName",
                 "nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetNvLinkErrorCounter", "nvmlDeviceGetSramEccErrorStatus"}  # fmt: skip
    for function in {name for row in nvml_calls.ROWS for name in row.functions} | versioned:
        for code in (3, 13):
            fake_nvml.set({f"all.err.{function}": code})
            outcome = runner.sample(("nvml",), Ask()).table("probe.outcome", "probe:nvml")
            assert outcome["state"] == "answered", (function, code, outcome)
            fake_nvml.set({f"all.err.{function}": None})


@pytest.mark.process
def test_a_gpu_that_cannot_be_looked_up_is_named_by_what_it_was(fake_nvml: FakeNvml, runner: Runner) -> None:
    before = runner.sample(("nvml", "pci", "driver"), Ask())
    fake_nvml.set({"1.lost": 1, "1.err.nvmlDeviceGetHandleByIndex_v2": 999})
    runner.sample(("nvml",), Ask())  # the session learns that it must open the library anew
    results = judge(runner.sample(("nvml", "pci", "driver"), Ask()), before)
    outcome = result_of(results, "gpu_errors", 1)
    assert (outcome.result, outcome.repair, outcome.blocks) == (FAILED, Repair.REBOOT, True)
    assert result_of(results, "gpu_errors", 0).result is OK
    fresh = judge(Runner(environ=fake_nvml.environ).sweep(("nvml", "pci", "driver"), Ask()))
    assert [result.subject for result in fresh if result.result is FAILED] == ["gpu:#1"]


@pytest.mark.process
def test_a_gpu_that_stays_lost_does_not_open_the_library_again_and_again(fake_nvml: FakeNvml, runner: Runner, tmp_path: Path) -> None:
    fake_nvml.set({"calls": tmp_path / "calls"})
    runner.sample(("nvml",), Ask())
    fake_nvml.set({"1.lost": 1})
    for _ in range(10):
        assert result_of(judge(runner.sample(("nvml",), Ask())), "gpu_errors", 1).result is FAILED
    fake_nvml.set({"1.lost": None, "0.err.nvmlDeviceGetTemperature": 999})
    for _ in range(10):
        results = judge(runner.sample(("nvml",), Ask()))
        assert result_of(results, "gpu_errors", 0).result is UNKNOWN
    fake_nvml.set({"0.err.nvmlDeviceGetTemperature": None})
    for _ in range(2):
        assert result_of(judge(runner.sample(("nvml",), Ask())), "gpu_errors", 0).result is OK
    calls = (tmp_path / "calls").read_text().split()
    assert calls.count("Init") <= 6
    assert calls.count("EventSetFree") == calls.count("EventSetCreate") - 1


def test_an_xid_means_the_same_from_the_driver_and_from_the_kernels_log() -> None:
    """Only the number is known in both: a line that ends behind it."""
    for code in range(1, 200):
        event = Readings((Reading("nvml", "gpu:a", "gpu.events", [{"kind": "xid", "data": code, "t": 1.0}]),))
        (result,) = presence.gpu_events(event, None, Thresholds())
        log = Correlator()
        log.take(Entry(f"NVRM: Xid (PCI:0000:3d:00): {code}, ", t=1.0))
        (logged,) = log.findings()
        failed = logged.severity is Severity.CRITICAL
        assert (result.result is FAILED, result.result is OK) == (failed, logged.severity is Severity.INFO), code
        assert result.repair is logged.repair
        assert logged.meaning in result.reason


@pytest.mark.process
@pytest.mark.parametrize(
    ("event", "result", "words"),
    [
        ("0:8:79", FAILED, "Xid 79: GPU_HAS_FALLEN_OFF_THE_BUS: the GPU is not reachable"), ("0:8:31", DEGRADED, "Xid 31"),
        ("0:8:45", OK, "Xid 45"), ("0:8:99999", FAILED, "newer than this table"), ("0:2:0", FAILED, "uncorrectable memory error"),
    ],
)  # fmt: skip
def test_an_event_is_heard_by_who_listens(event: str, result: Result, words: str, fake_nvml: FakeNvml, runner: Runner) -> None:
    runner.sample(("nvml",), Ask())
    fake_nvml.set({"events": event})
    deadline = time.monotonic() + 30
    while not (now := runner.sample(("nvml",), Ask())).of("gpu.events"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    outcome = result_of(judge(now), "gpu_events", 0)
    assert outcome.result is result
    assert words in outcome.reason
    assert not runner.sample(("nvml",), Ask()).of("gpu.events"), "each is told once"


def test_pending_events_are_returned_before_the_driver_is_asked_anything() -> None:
    listening = nvml.session()
    listening._events.pending.append((GPU.format(0), {"kind": "xid", "data": 79}))  # noqa: SLF001  as its thread does
    assert next(listening.read(Ask())).value == [{"kind": "xid", "data": 79}]


@pytest.mark.process
def test_the_power_and_memory_use_of_the_ranks_gpus_are_evidence_of_a_hang(fake_nvml: FakeNvml, runner: Runner) -> None:
    """All are busy, as NCCL's kernels that wait are; one draws a fraction of its limit."""
    fake_nvml.set({"all.busy": 100, "0.power": 92_000, "0.memory_busy": 1, "1.power": 640_000, "1.memory_busy": 57})
    readings = runner.sample(("nvml",), Ask())
    look = Look(0.0, tuple(RankLook(number, number, ProcessLook(100 + number, 1), collectives=IN_TURN[number]) for number in (0, 1, 2)))
    gpu_of = {number: GPU.format(number).removeprefix("gpu:") for number in (0, 1)}

    def shown(of: Readings, culprits: list[int], t: float) -> str:
        named = devices.named(look, of, gpu_of, t)
        return devices_text(compared(named, named, RankProgress()), culprits)

    assert shown(readings, [1], time.time()) == (
        "rank 1: GPU 1, draws 640 of 700 W, its memory busy 57 % of the time, last over: all_reduce (seq 41); "
        "rank 0: GPU 0, draws 92 of 700 W, its memory busy 1 % of the time, in all_reduce (seq 42); rank 2: last over: all_reduce (seq 41)"
    )
    assert shown(readings, [1], time.time() + 100) == "", "of another time"
    assert shown(Readings(), [], time.time()) == ""


@pytest.mark.process
def test_a_process_that_holds_memory_is_a_leftover_or_a_stranger(fake_nvml: FakeNvml, runner: Runner) -> None:
    environ = {**os.environ, "SUPERVISE_JOB_COOKIE": "c00kie"}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environ) as holder:
        fake_nvml.set({"0.procs": f"{holder.pid}:{4 << 30}"})

        def outcome(ask: Ask) -> CheckResult:
            return result_of(judge(runner.sweep(("nvml",), ask)), "gpu_memory", 0)

        assert outcome(Ask(cookie="c00kie")).repair is Repair.RESTART_JOB
        assert "held by others" in outcome(Ask(cookie="another")).reason
        holder.communicate(b"\n", timeout=20)


@pytest.mark.process
def test_a_state_is_seen_while_the_session_lasts(fake_nvml: FakeNvml, runner: Runner) -> None:
    before = runner.sample(("nvml",), Ask())
    fake_nvml.set({"1.ecc_unc_vol": 1})
    assert result_of(judge(runner.sample(("nvml",), Ask()), before), "gpu_ecc", 1).result is FAILED
    assert Readings.from_json(before.to_json()).to_json() == before.to_json()
