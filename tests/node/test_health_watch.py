"""How this node is looked at for a job: the real probes over the fake NVML, the ledger's rule, and whom a finding concerns."""

from __future__ import annotations

import dataclasses
import os
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from health.model import HOST, Check, CheckResult, Reading, Readings, Repair, Result
from health.nvidia.precision import common_precision
from supervisor.config import signatures
from supervisor.core.model import Finding
from supervisor.core.values import replace
from supervisor.node import visible_gpus
from supervisor.node.gpu_quarantine import GpuQuarantine, QuarantinedGpu, is_well_again
from supervisor.node.health_watch import MOST_CHARACTERS, HealthWatch, finding_of, has_gpus, shown
from tests.support.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.fake_nvml import FakeNvml

UUID = "GPU-00000000-0000-4000-8000-{:012d}"


@pytest.fixture
def watch(fake_nvml: FakeNvml) -> Iterator[Callable[..., HealthWatch]]:
    """Give a function that makes a watch. probes: those of a look before an attempt; None: all, each of which is a process."""
    health_watches: list[HealthWatch] = []

    def make(
        on_change: Callable[[tuple[Finding, ...]], None] = lambda _findings: None,
        *,
        enabled: bool = True,
        command: tuple[str, ...] = (),
        probes: tuple[str, ...] | None = ("nvml",),
    ) -> HealthWatch:
        settings = SimpleNamespace(
            health=SimpleNamespace(enabled=enabled, evict_on=(), thresholds=()),
            checkpoints=SimpleNamespace(paths=()),
        )
        job: Any = SimpleNamespace(environ=fake_nvml.environ, settings=settings, cookie="", command=command)
        catalogue = signatures.read()[0]
        health_watches.append(HealthWatch(job, lambda: (catalogue, SimpleNamespace(hits=lambda _b: True)), on_change))  # type: ignore[arg-type,return-value]
        health_watches[-1].probes = health_watches[-1].probes if probes is None else probes
        return health_watches[-1]

    yield make
    for health_watch in health_watches:
        health_watch.close()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the GPUs be sampled twice a second, and whoever wants a look meanwhile await the end of the sample."""
    monkeypatch.setattr("supervisor.node.health_watch.SAMPLE_S", 0.5)
    monkeypatch.setattr("supervisor.node.health_watch._TURN_S", PATIENCE_S)


@pytest.mark.process
def test_a_look_names_what_blocks_and_a_gpu_by_the_name_that_it_had(fake_nvml: FakeNvml, watch: Callable[..., HealthWatch]) -> None:
    looks = watch(probes=None)
    first = looks.before((), 0)
    assert [finding for finding in first.findings if finding.blocks] == []
    assert first.problem == ""
    assert [gpu.uuid for gpu in visible_gpus.from_nvml(first.readings, {})] == [UUID.format(0), UUID.format(1)]
    half = Readings(reading for reading in first.readings if (reading.name, reading.subject) != ("gpu.identity", f"gpu:{UUID.format(1)}"))
    assert visible_gpus.from_nvml(half, {}) == (), "one that hung before the last"
    fake_nvml.set({"1.lost": 1})
    looks.probes = ("nvml",)
    second = looks.before((), 0)
    blocking = {finding.check: finding.gpu for finding in second.findings if finding.blocks}
    assert blocking["gpu_errors"] == UUID.format(1)


@pytest.mark.process
def test_the_precision_is_that_which_all_gpus_of_the_job_have(fake_nvml: FakeNvml, watch: Callable[..., HealthWatch]) -> None:
    fake_nvml.set({"1.capability": 75})
    readings = watch().before((), 0).readings
    first, second = (UUID.format(gpu) for gpu in (0, 1))
    assert visible_gpus.precision(readings, (first,)) == "bf16"
    assert visible_gpus.precision(readings, (first, second)) == "fp16"
    assert visible_gpus.precision(readings, ()) == "fp16", "any of the node's"
    assert visible_gpus.precision(readings, (first, "GPU-gone")) == ""
    assert visible_gpus.precision(Readings(), ()) == ""


@pytest.mark.parametrize(
    ("capabilities", "name"),
    [([(8, 0), (9, 0)], "bf16"), ([(10, 3)], "bf16"), ([(9, 0), (7, 5)], "fp16"), ([(7, 0), (6, 1)], "fp32"), ([], "")],
)
def test_a_number_format_needs_a_compute_capability(capabilities: list[tuple[int, int]], name: str) -> None:
    assert common_precision(capabilities) == name


@pytest.mark.process
def test_a_gpus_memory_is_judged_only_while_no_rank_of_ours_holds_it(
    fake_nvml: FakeNvml,
    watch: Callable[..., HealthWatch],
) -> None:
    fake_nvml.set({"0.procs": f"{os.getpid()}:{2 << 30}"})
    looks = watch()
    assert "gpu_memory" in {finding.check for finding in looks.before((), 0).findings}
    assert "gpu_memory" not in {finding.check for finding in looks.before((), 0, alone=False).findings}


@pytest.mark.process
@pytest.mark.usefixtures("often")
def test_changes_are_reported_once_with_what_is_well_again_and_a_failure_has_its_evidence(
    fake_nvml: FakeNvml,
    watch: Callable[..., HealthWatch],
) -> None:
    findings: list[Finding] = []
    looks = watch(findings.extend)
    looks.before((), 0)
    fake_nvml.set({"0.procs": f"{os.getpid()}:{2 << 30}"})  # a rank
    looks.begin()
    fake_nvml.set({"1.temperature": 95})
    wait_for(lambda: any(finding.check == "gpu_temperature" for finding in findings), "a change")
    fake_nvml.set({"1.temperature": 40, "0.ecc_unc_vol": 1})
    wait_for(
        lambda: {("gpu_temperature", "ok"), ("gpu_ecc", "failed")} <= {(finding.check, finding.result) for finding in findings},
        "both changes",
    )
    assert len([finding for finding in findings if finding.check == "gpu_temperature"]) == 2
    assert "gpu_memory" not in {finding.check for finding in findings}
    (fact,) = looks.after({UUID.format(0): 3})
    assert (fact.name, fact.rank, dict(fact.fields)["gpu_uuid"]) == ("ecc_uncorrected", 3, UUID.format(0))
    assert looks.uncorrected(UUID.format(0)) == 1
    assert looks.uncorrected("GPU-unknown") is None


@pytest.mark.process
def test_a_driver_that_hangs_after_a_failure_costs_the_verdict_a_second(fake_nvml: FakeNvml, watch: Callable[..., HealthWatch]) -> None:
    looks = watch()
    looks.before((), 0)
    fake_nvml.set({"all.hang_ms.nvmlDeviceGetFieldValues": 60_000})
    (fact,) = looks.after({})
    assert (fact.source, fact.name) == ("observer", "overdue")
    assert fact.text.startswith("nvml: ")


@pytest.mark.process
def test_readings_of_a_driver_before_it_hung_count(fake_nvml: FakeNvml, watch: Callable[..., HealthWatch]) -> None:
    looks = watch()
    looks.before((), 0)
    fake_nvml.set({"1.lost": 1, "0.hang_ms.nvmlDeviceGetTemperature": 60_000})
    assert [(fact.source, fact.name, fact.rank) for fact in looks.after({UUID.format(1): 3})] == [
        ("nvml", "lost", 3),
        ("observer", "overdue", None),
    ]


@pytest.mark.process
@pytest.mark.usefixtures("often")
def test_a_driver_that_hung_at_the_first_look_is_judged_by_what_moved_since_it_answered(
    fake_nvml: FakeNvml,
    watch: Callable[..., HealthWatch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("supervisor.node.health_watch.DEADLINE_S", 0.7)
    findings: list[Finding] = []
    looks = watch(findings.extend)
    fake_nvml.set({"0.hang_ms.nvmlDeviceGetRemappedRows": 60_000, "0.ecc_unc_vol": 2})
    assert any(finding.subject == "probe:nvml" for finding in looks.before((), 0).findings)
    fake_nvml.set({"0.hang_ms.nvmlDeviceGetRemappedRows": None})
    monkeypatch.setattr("supervisor.node.health_watch.DEADLINE_S", 8.0)
    looks.begin()
    wait_for(lambda: any(finding.check == "gpu_ecc" for finding in findings), "a sample")
    fake_nvml.set({"0.ecc_unc_vol": 3})
    wait_for(lambda: any((finding.check, finding.result) == ("gpu_ecc", "failed") for finding in findings), "what moved")
    [*_, finding] = [finding for finding in findings if finding.check == "gpu_ecc"]  # a busy machine has other findings
    assert "1 uncorrectable memory error since the job's start" in finding.reason


@pytest.mark.process
@pytest.mark.usefixtures("often")
def test_sampling_continues_after_a_failed_sample(
    fake_nvml: FakeNvml,
    watch: Callable[..., HealthWatch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed: list[int] = []

    def full() -> None:
        failed.append(1)
        raise OSError(24, "Too many open files")

    findings: list[Finding] = []
    looks = watch(findings.extend)
    looks.before((), 0)
    fake_nvml.set({"1.temperature": 95})
    with monkeypatch.context() as patch:
        patch.setattr("health.probing.runner.selectors.DefaultSelector", full)
        looks.begin()
        wait_for(lambda: failed, "a sample that fails")
    wait_for(lambda: any(finding.check == "gpu_temperature" for finding in findings), "a later one")


def test_each_event_is_news_of_its_own_and_a_state_is_news_once(watch: Callable[..., HealthWatch]) -> None:
    changes = watch()._changes  # noqa: SLF001  what a sample ends with
    oom = CheckResult("kernel_log", "kernel", Result.FAILED, "oom", event="oom global")
    disk = CheckResult("kernel_log", "kernel", Result.FAILED, "nvme0 is dead", event="nvme removed nvme0")
    hot = CheckResult("gpu_temperature", "gpu:GPU-a", Result.DEGRADED, "hot")
    assert [change.reason for change in changes([oom, hot])] == ["oom", "hot"]
    assert [change.reason for change in changes([oom, disk, dataclasses.replace(hot, reason="hotter")])] == ["nvme0 is dead"]
    assert [change.result for change in changes([dataclasses.replace(hot, result=Result.OK)])] == ["ok"]


def test_findings_beyond_the_limit_are_reported_the_next_time(watch: Callable[..., HealthWatch]) -> None:
    changes = watch()._changes  # noqa: SLF001  likewise
    many = [CheckResult("gpu_temperature", f"gpu:GPU-{n}", Result.DEGRADED, "hot") for n in range(50)]
    assert [len(changes(many)) for _ in range(3)] == [40, 10, 0]


@pytest.mark.process
def test_an_event_of_an_earlier_attempt_is_news_again_in_the_next(watch: Callable[..., HealthWatch]) -> None:
    looks = watch()
    xid = CheckResult("gpu_events", "gpu:GPU-a", Result.FAILED, "Xid 48", event="xid 48")
    assert len(looks._changes([xid])) == 1  # noqa: SLF001  likewise
    looks.before((), 0)
    assert len(looks._changes([xid])) == 1  # noqa: SLF001  likewise


def test_a_disabled_watch_looks_at_nothing(watch: Callable[..., HealthWatch]) -> None:
    off = watch(enabled=False)
    assert not off.enabled
    assert off.after({}) == ()


def test_the_nvml_library_is_found_on_the_library_path_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").touch()
    assert has_gpus({"LD_LIBRARY_PATH": f"/nowhere:{tmp_path}"})


@pytest.mark.process
def test_a_port_of_the_rendezvous_that_another_holds_is_reported_before_an_attempt(watch: Callable[..., HealthWatch]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        looks = watch(command=("python", "-m", "torch.distributed.run", f"--master-port={port}", "train.py"), probes=("ports",))
        (finding,) = [finding for finding in looks.before((), 0).findings if finding.check == "net_ports"]
    assert (finding.subject, finding.blocks) == (f"listen:{port}", False)
    assert f"port {port} is taken: process {os.getpid()} (" in finding.reason


def test_a_command_that_repairs_is_whole_or_is_left_out() -> None:
    short = "umount -l /data/a && mount /data/a"
    for command, expected in ((short, short), (f"umount -l {'/data' * 200}", Repair.DRAIN.words), ("", Repair.DRAIN.words)):
        result = CheckResult("disk_paths", "path:/data", Result.FAILED, "why" * 500, (), Repair.DRAIN, command)
        finding = finding_of(result)
        assert finding.command == expected
        assert len(finding.reason) == MOST_CHARACTERS


OF_A = Finding("gpu_errors", "gpu:GPU-a", "failed", "lost", blocks=True)
DRIVER = Finding("gpu_driver", "host", "failed", "differs", blocks=True)
SPACE = Finding("disk_space", "path:/d", "failed", "full", blocks=True)


@pytest.mark.parametrize(
    ("environ", "visible", "blocks"),
    [
        ({}, (), (OF_A, DRIVER, SPACE)),
        ({"CUDA_VISIBLE_DEVICES": "0"}, ("GPU-a",), (OF_A, DRIVER, SPACE)),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ("GPU-b",), (DRIVER, SPACE)),
        ({"CUDA_VISIBLE_DEVICES": ""}, (), (SPACE,)),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, (), (SPACE,)),
    ],
    ids=["all are the job's", "this one is", "another one is", "none is", "none in this container"],
)
def test_only_what_the_job_uses_holds_it_back(environ: dict[str, str], visible: tuple[str, ...], blocks: tuple[Finding, ...]) -> None:
    findings = shown((OF_A, DRIVER, SPACE), environ, visible)
    assert tuple(finding for finding in findings if finding.blocks) == blocks
    assert [finding.check for finding in findings] == ["gpu_errors", "gpu_driver", "disk_space"]


HELD = QuarantinedGpu("GPU-a", "0000:10:00.0", "ecc", "3 errors", 100.0, "job", "run", boot="then", errors=3)
WELL: dict[str, Any] = {
    "gpu.identity": {"index": 0, "pci": "0000:10:00.0"},
    "gpu.errors": [],
    "gpu.recovery_action": 0,
    "gpu.ecc_uncorrected_volatile": 0,
    "gpu.remapped_rows": [0, 1, 0, 0],
}


def seen(**otherwise: Any) -> Readings:  # noqa: ANN401  values of readings
    values = WELL | {f"gpu.{name}": value for name, value in otherwise.items()}
    rows = [Reading("nvml", "gpu:GPU-a", name, value, "" if value is not None else "not_supported") for name, value in values.items()]
    return Readings([*rows, Reading("nvml", HOST, "nvml.init", {"code": 0})])


@pytest.mark.parametrize(
    ("entry", "now", "boot", "well"),
    [
        (HELD, seen(), "then", True),
        (HELD, seen(), "now", True),
        (replace(HELD, errors=0), seen(), "now", True),
        (replace(HELD, errors=0), seen(), "then", False),
        (replace(HELD, errors=-1), seen(), "then", False),
        (replace(HELD, boot=""), seen(), "now", False),
        (HELD, seen(ecc_uncorrected_volatile=3), "now", False),
        (HELD, seen(recovery_action=1), "now", False),
        (HELD, seen(recovery_action=None), "now", False),
        (HELD, seen(remapped_rows=[0, 1, 1, 0]), "now", False),
        (HELD, seen(remapped_rows=[0, 1, 0, 1]), "now", False),
        (HELD, seen(retired_pending=1), "now", False),
        (HELD, seen(sram={"threshold_exceeded": True}), "now", False),
        (HELD, seen(errors=[{"code": 15}]), "now", False),
        (replace(HELD, uuid="GPU-b"), seen(), "now", False),
    ],
    ids=[
        *("errors are gone", "another boot", "another boot, no errors", "no reset was seen", "errors were not known", "an old row"),
        *("errors still", "a reset is due", "recovery not told", "a row waits", "a row failed", "a page waits", "SRAM", "lost"),
        "another GPU",
    ],
)
def test_a_gpu_is_back_in_use_only_where_it_was_reset_and_all_is_known_to_be_well(
    entry: QuarantinedGpu, now: Readings, boot: str, *, well: bool
) -> None:
    assert is_well_again(entry, now, boot) is well


def test_the_ledger_keeps_the_signs_of_a_reset_and_reads_rows_without_them(tmp_path: Path) -> None:
    ledger = GpuQuarantine(tmp_path, "node")
    ledger.quarantine(HELD)
    assert ledger.held(101.0) == (HELD,)
    old = ledger.path.read_text().replace(', "boot": "then", "errors": 3', "")
    ledger.path.write_text(old)
    assert ledger.held(101.0) == (replace(HELD, boot="", errors=-1),)
    assert ledger.clear("GPU-a", 102.0, "health") == (replace(HELD, boot="", errors=-1),)
    assert '"by": "health"' in ledger.path.read_text()


@pytest.mark.process
def test_a_check_that_fails_itself_is_reported_once(watch: Callable[..., HealthWatch]) -> None:
    looks = watch()

    def check(*_readings: object) -> list[CheckResult]:
        raise LookupError("rack")

    broken = Check("rack_water", "host", (), check, "the rack")
    looks._checks = {"rack_water": broken}  # noqa: SLF001  a check with a bug
    assert looks.before((), 0).problem == "check rack_water: the check itself failed: LookupError: rack"
    assert looks.before((), 0).problem == ""
