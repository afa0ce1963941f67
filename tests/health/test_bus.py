"""GPUs on the bus against those that the driver has, in a tree as /sys and /dev show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from health import registry
from health.model import Ask, CheckResult, Reading, Readings, Repair, Result
from health.probes.gpu import driver, pci
from health.thresholds import Thresholds

if TYPE_CHECKING:
    from pathlib import Path

    from health.model import Json


def bus(root: Path, *gpus: str, switches: int = 0, gone: str = "", files: int | None = None) -> Ask:
    """Make GPUs at addresses (and functions beside them that are none), and return where to look."""
    devices = [(gpu, "0x030200") for gpu in gpus] + [(f"{gpu[:-1]}1", "0x040300") for gpu in gpus]
    devices += [(f"0000:c{number}:00.0", "0x068000") for number in range(switches)]
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    for address, kind in devices:
        device = root / "sys/bus/pci/devices" / address
        device.mkdir()
        for name, text in (("vendor", "0x10de"), ("class", kind), ("current_link_width", "16"), ("max_link_width", "16")):
            (device / name).write_text(text + "\n", "ascii")
        (device / "config").write_bytes(b"\xff" * 64 if address == gone else b"\xde\x10\x30\x23" + bytes(60))
    (root / "dev").mkdir()
    for number in range(len(gpus) if files is None else files):
        (root / f"dev/nvidia{number}").touch()
    (root / "dev/nvidiactl").touch()
    return Ask(root=str(root))


def seen(*gpus: str, init: int = 0, count: int | None = None) -> Readings:
    """Return what the driver would say."""
    rows = [Reading("nvml", "host", "nvml.init", {"code": init, "words": "words"})]
    rows.append(Reading("nvml", "host", "nvml.count", len(gpus) if count is None else count, "" if count != -1 else "refused"))
    rows += [Reading("nvml", f"gpu:GPU-{at}", "gpu.identity", {"index": at, "pci": gpu, "name": "FAKE"}) for at, gpu in enumerate(gpus)]
    return Readings(rows)


def result_of(check: str, now: Readings, before: Readings | None = None) -> CheckResult:
    results = list(registry.checks()[check](now, before, Thresholds()))
    assert len(results) == 1
    return results[0]


A, B, C = "0000:10:00.0", "0000:11:00.0", "0000:12:00.0"


@pytest.mark.parametrize(
    ("there", "known", "text", "files", "result", "words"),
    [
        ((A, B), (A, B), "", None, Result.OK, "2 GPUs"),
        ((A, B), (A,), "", None, Result.FAILED, f"unknown to the driver: {B}"),
        ((A, B), (A,), "", 1, Result.OK, "1 GPUs"),  # a container that is given one
        ((A, B), (A,), B, None, Result.FAILED, f"does not answer: {B}"),
        ((), (), "", None, Result.SKIPPED, "0 GPUs"),
    ],
    ids=["all", "hidden", "container", "off the bus", "none"],
)  # fmt: skip
def test_the_count(  # noqa: PLR0913, PLR0917 -- a table's columns
    there: tuple[str, ...], known: tuple[str, ...], text: str, files: int | None, result: Result, words: str, tmp_path: Path
) -> None:
    now = seen(*known) + Readings(pci.read(bus(tmp_path, *there, gone=text, files=files)))
    check_result = result_of("gpu_count", now)
    assert (check_result.result, check_result.blocks) == (result, result is Result.FAILED)
    assert words in check_result.reason


@pytest.mark.parametrize(
    "now",
    [Readings(list(seen())[:1]), seen(count=2), seen(A, count=2), seen(count=-1)],
    ids=["hung before the count", "before the first", "at the second", "no count"],
)
def test_a_driver_that_was_not_heard_out_has_lost_no_gpu(now: Readings, tmp_path: Path) -> None:
    ask = bus(tmp_path, A, B)
    for before in (None, seen(A, B)):
        result = result_of("gpu_count", now + Readings(pci.read(ask)), before)
        assert (result.subject, result.result, result.blocks) == ("host", Result.UNKNOWN, False)
    (tmp_path / f"sys/bus/pci/devices/{B}/config").write_bytes(b"\xff" * 64)
    result = result_of("gpu_count", now + Readings(pci.read(ask)), seen(A, B))
    assert (result.result, result.blocks) == (Result.FAILED, True), "the bus has a word of its own"


def test_each_gpu_that_is_not_there_is_named_once(tmp_path: Path) -> None:
    on_bus = Readings(pci.read(bus(tmp_path, A, B, C, gone=B)))
    check = registry.checks()["gpu_count"]
    errors = [Reading("nvml", "gpu:GPU-1", "gpu.errors", [{"code": 15}])]
    assert list(check(seen(A, B, C) + Readings(errors) + on_bus, None, Thresholds())) == [], "gpu_errors speaks of it"
    assert [result.subject for result in check(seen(A, B, C) + on_bus, None, Thresholds())] == ["gpu:GPU-1"]
    assert [result.subject for result in check(seen(A) + on_bus, None, Thresholds())] == [f"pci:{B}", f"pci:{C}"]
    nameless = [
        Reading("nvml", "gpu:#1", "gpu.identity", {"index": 1, "pci": "", "refused": "words"}),
        Reading("nvml", "gpu:#1", "gpu.errors", [{"code": 15}]),
        Reading("nvml", "host", "nvml.count", 2),
    ]
    assert len(list(check(seen(A) + Readings(nameless) + on_bus, None, Thresholds()))) == 1, "one of two without a name"
    three = Readings([Reading("nvml", "host", "nvml.count", 3)])
    assert list(check(seen(A, C) + Readings(nameless) + three + on_bus, seen(A, C, B), Thresholds())) == []


@pytest.mark.parametrize("refused", [False, True], ids=["not listed", "listed, and refused"])
def test_a_cgroup_that_gives_one_gpu_hides_the_others_and_loses_none(refused: bool, tmp_path: Path) -> None:  # noqa: FBT001 -- a parameter
    ask = bus(tmp_path, A, B, files=1)
    (tmp_path / "dev/nvidia1").symlink_to("nowhere")  # there, and not to be opened; root may open all else
    others = [Reading("nvml", "gpu:#1", "gpu.identity", {"index": 1, "pci": "", "name": "", "refused": "Insufficient Permissions"})]
    now = seen(A, count=1 + refused) + Readings(others * refused) + Readings(pci.read(ask))
    assert result_of("gpu_count", now).result is Result.OK
    assert [check.result for check in registry.checks()["gpu_errors"](now, None, Thresholds())][1:] == [Result.UNKNOWN] * refused
    assert {check.subject for check in registry.checks()["gpu_recovery"](now, None, Thresholds())} == {"gpu:GPU-0"}


@pytest.mark.parametrize(
    ("there", "code", "result", "words"),
    [
        ((A, B), 9, Result.FAILED, "2 GPUs are on the bus, and no driver is loaded"),
        ((A,), 12, Result.UNKNOWN, "1 GPU is on the bus, and its library is not there"),
        ((), 12, Result.SKIPPED, "no NVIDIA GPU is on the bus"),
        ((), 9, Result.SKIPPED, "no NVIDIA GPU is on the bus"),
        ((A,), 18, Result.FAILED, "different versions"),
    ],
)
def test_a_driver_that_is_not_there_is_a_fault_where_gpus_are(
    there: tuple[str, ...], code: int, result: Result, words: str, tmp_path: Path
) -> None:
    check_result = result_of("gpu_driver", seen(init=code) + Readings(pci.read(bus(tmp_path, *there))))
    assert check_result.result is result
    assert words in check_result.reason


def test_no_library_of_ours_is_no_fault_of_the_node(tmp_path: Path) -> None:
    now = Readings([Reading("nvml", "host", "nvml.init", problem="nvidia-ml-py cannot be imported: x")])
    assert result_of("gpu_driver", now + Readings(pci.read(bus(tmp_path, A)))).result is Result.UNKNOWN


def test_a_mismatch_names_the_loaded_module(tmp_path: Path) -> None:
    ask = bus(tmp_path, A)
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    (tmp_path / "sys/module/nvidia/version").write_text("570.86.15\n", "ascii")
    result = result_of("gpu_driver", seen(init=18) + Readings([*pci.read(ask), *driver.read(ask)]))
    assert "loaded module: 570.86.15" in result.evidence


def test_a_driver_that_is_loaded_and_not_given_to_a_container_is_no_fault_of_the_node(tmp_path: Path) -> None:
    ask = bus(tmp_path, A)
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    (tmp_path / "sys/module/nvidia/version").write_text("570.86.15\n", "ascii")
    first = seen(init=9) + Readings([*pci.read(ask), *driver.read(ask)])
    result = result_of("gpu_driver", first)
    assert (result.result, result.blocks) == (Result.UNKNOWN, False)
    assert "the driver 570.86.15 is loaded and may not be used from here" in result.reason
    assert result_of("gpu_driver", seen(init=9) + Readings(pci.read(ask)), before=first).result is Result.UNKNOWN, "a sample"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"kind": "xid", "code": 79, "pci": "0000:10:00", "age_s": 99.0}, []),
        ({"kind": "xid", "code": 79, "pci": "0000:10:00", "age_s": 9.0}, [Result.FAILED]),
        ({"kind": "xid", "code": 31, "pci": "0000:10:00", "age_s": 99.0}, [Result.FAILED]),
        ({"kind": "xid", "code": 79, "pci": "0000:11:00", "age_s": 99.0}, [Result.FAILED]),
        ({"kind": "xid", "code": 79, "pci": "0000:10:00", "age_s": None}, [Result.FAILED]),
    ],
    ids=["the same", "another time", "another code", "another gpu", "no time"],
)
def test_an_event_that_the_kernel_log_has_is_reported_once(row: dict[str, Json], expected: list[Result]) -> None:
    event: dict[str, Json] = {"kind": "xid", "data": 79, "t": 901.0, "pci": A}
    now = seen(A) + Readings(
        [Reading("nvml", "gpu:GPU-0", "gpu.events", [event]), Reading("kernel_log", "kernel", "kernel.findings", [row], t=1000.0)]
    )
    assert [check.result for check in registry.checks()["gpu_events"](now, None, Thresholds())] == expected


@pytest.mark.parametrize("running", [True, False])
def test_switches_need_a_manager(running: bool, tmp_path: Path) -> None:  # noqa: FBT001 -- a parameter
    ask = bus(tmp_path, A, switches=4)
    (tmp_path / "proc/77").mkdir(parents=True)
    (tmp_path / "proc/77/comm").write_text("nv-fabricmanage\n" if running else "bash\n", "ascii")
    results = list(registry.checks()["gpu_fabric"](seen(A) + Readings(driver.read(ask)), None, Thresholds()))
    assert [(result.result, result.repair) for result in results] == ([] if running else [(Result.FAILED, Repair.RESTART_DRIVER)])
