"""What an Xid asks for: by the catalogue, by its line's own registers, and by what happened before."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from health.kernellog.file_report import judge
from health.model import Repair
from health.nvidia import sxids, xid_registers, xids
from health.nvidia.xid_registers import RegisterVerdict

#: The codes in use, with NVIDIA's immediate action, or ours where the vendor's is a workflow (docs/reference/kernel-log.md).
IN_USE = list(csv.DictReader((Path(__file__).parent / "xids.csv").read_text("utf-8").splitlines()))
LINE = "[{t:.6f}] NVRM: Xid (PCI:0000:{bus}:00): {code}, pid=4711, name=python3, {rest}"
GPC = "Graphics SM Warp Exception on (GPC {}, TPC {}, SM 0): Out Of Range Address"
DAY = 86400.0


def _line(code: int, t: float = 1000.0, bus: str = "3d", rest: str = "Ch 00000008") -> str:
    return LINE.format(t=t, bus=bus, code=code, rest=rest)


def _judged(*lines: str) -> list[tuple[object, str, str]]:
    return [(event.code, event.severity.value, event.repair.value) for event in judge("\n".join(lines))]


@pytest.mark.parametrize("row", IN_USE, ids=lambda row: row["xid"])
def test_each_code_in_use_has_its_verdict(row: dict[str, str]) -> None:
    (event,) = judge(_line(int(row["xid"])))
    assert (event.code, event.pci, event.repair.value, event.same_gpu) == (int(row["xid"]), "0000:3d:00", row["repair"], row["same_gpu"])
    assert (event.severity.value in {"info", "warning"}) == (event.repair is Repair.NONE)


def test_the_table_of_verdicts_is_that_of_the_codes_in_use() -> None:
    assert {int(row["xid"]) for row in IN_USE} == set(xids.TABLE) - xids.UNUSED


@pytest.mark.parametrize("code", sorted(xids.UNUSED))
def test_a_code_that_is_not_in_use_is_for_support(code: int) -> None:
    assert _judged(_line(code)) == [(code, "critical", "drain")]


def test_a_code_that_nobody_knows_yet_is_found() -> None:
    assert _judged(_line(190)) == [(190, "critical", "reset_gpu")]


@pytest.mark.parametrize("code", sorted(sxids.TABLE))
def test_each_sxid_is_found_and_a_fatal_one_takes_a_reboot(code: int) -> None:
    head = f"[1.000000] nvidia-nvswitch3: SXid (PCI:0000:05:00.0): {code}, "
    (fatal,) = judge(f"{head}Fatal, Link 30 text")
    (harmless,) = judge(f"{head}Non-fatal, Link 30 text")
    assert (fatal.code, fatal.pci, fatal.repair, fatal.subject) == (code, "0000:05:00.0", Repair.REBOOT, "nvidia-nvswitch3")
    assert (harmless.code, harmless.repair) == (code, Repair.NONE)


def test_a_burst_is_one_event() -> None:
    storm = [_line(31, t=1000 + n * 20) for n in range(50)]
    (event,) = judge("\n".join(storm))
    assert (event.count, event.repair, dict(event.fields)["origin"]) == (50, Repair.RESTART_JOB, "either")


@pytest.mark.parametrize(("code", "window"), [(31, 180.0), (13, 15.0)])
def test_beyond_its_window_it_is_a_second_event(code: int, window: float) -> None:
    rest = GPC.format(7, 7) if code == 13 else "Ch 00000008"
    within = _judged(_line(code, 1000.0, rest=rest), _line(code, 1000.0 + window, rest=rest))
    beyond = _judged(_line(code, 1000.0, rest=rest), _line(code, 1001.0 + window, rest=rest))
    assert within == [(code, "error", "restart_job")]
    assert beyond == [(code, "critical", "drain")] * 2


def test_again_on_the_same_gpu_is_hardware_and_on_others_the_application() -> None:
    again = judge("\n".join([_line(31), _line(31, t=5000.0)]))
    spread = judge("\n".join([_line(31), _line(31, t=5000.0), _line(31, t=6000.0, bus="4d")]))
    assert {dict(event.fields)["origin"] for event in again} == {"hardware"}
    assert {(dict(event.fields)["origin"], event.repair) for event in spread} == {("app", Repair.RESTART_JOB)}


def test_a_day_later_is_not_again() -> None:
    assert _judged(_line(31), _line(31, t=1001.0 + DAY)) == [(31, "error", "restart_job")] * 2


def test_13_is_hardware_only_in_the_same_place() -> None:
    elsewhere = _judged(_line(13, rest=GPC.format(7, 7)), _line(13, t=5000.0, rest=GPC.format(1, 0)))
    assert elsewhere == [(13, "error", "restart_job")] * 2


def test_five_times_on_one_gpu_is_a_replacement() -> None:
    events = _judged(*(_line(119, t=1000.0 + 4000.0 * n) for n in range(5)))
    assert events == [(119, "critical", "replace")] * 5


@pytest.mark.parametrize("code", [43, 45, 137])
def test_an_echo_is_not_acted_on(code: int) -> None:
    events = judge("\n".join([_line(94), _line(code, t=1001.0)]))
    assert [(event.code, event.repair) for event in events] == [(94, Repair.RESTART_JOB), (code, Repair.NONE)]
    assert "Xid 94" in events[1].reason


def test_an_echo_on_a_peer_is_of_the_first_event_that_is_none() -> None:
    text = _line(154, t=1000.5, rest="GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)")
    events = judge(
        "\n".join([_line(94), text, _line(45, t=1001.0, bus="4d"), _line(43, t=1001.1, bus="5d"), _line(43, t=9000.0, bus="6d")])
    )
    assert [(event.code, event.repair) for event in events] == [
        (94, Repair.RESTART_JOB),
        (154, Repair.RESET_GPU),
        (45, Repair.NONE),
        (43, Repair.NONE),
        (43, Repair.RESTART_JOB),
    ]
    assert ["follows Xid 94" in event.reason for event in events] == [False, False, True, True, False]


def test_thousands_of_45_are_one_finding_that_asks_for_nothing() -> None:
    assert _judged(*(_line(45, t=1000.0 + n / 100) for n in range(3000))) == [(45, "info", "none")]


def test_a_newer_driver_says_what_45_follows() -> None:
    (event,) = judge(_line(45, rest="Ch 0000000c caused by previous Xid 145"))
    assert "Xid 145" in event.reason


def test_the_detail_of_48_asks_for_nothing_beside_it_and_for_a_reset_alone() -> None:
    assert _judged(_line(48), _line(172, t=1000.1)) == [(48, "critical", "reset_gpu"), (172, "info", "none")]
    assert _judged(_line(172)) == [(172, "critical", "reset_gpu")]


LINK5 = "{unit} {how} XC0 i0 Link 04 ({info:#010x} {status:#010x} 0x00000000 0x00000000)"


@pytest.mark.parametrize(
    ("code", "unit", "info", "status", "repair"),
    [
        (144, "SAW_MVB", 0x1, 0x1, "none"),
        (144, "SAW_MVB", 0x1, 0x2, "reset_gpu"),
        (144, "SAW_MVB", 0x1, 0x10, "reset_gpu"),
        (145, "RLW_REMAP", 0x4, 0x1, "restart_job"),
        (145, "RLW_REMAP", 0x4, 0x40, "reset_gpu"),
        (145, "RLW_REMAP", 0x4, 0x100, "none"),
        (145, "RLW_RSPCOL", 0x5, 0x2, "reset_gpu"),
        (145, "RLW_RXPIPE", 0x6, 0x1, "none"),
        (145, "RLW_RXPIPE", 0x86, 0x1, "reset_gpu"),
        (145, "RLW_RXPIPE", 0b00011000010, 0x4, "none"),
        (145, "RLW_RXPIPE", 0b10011000010, 0x4, "reset_gpu"),
        (145, "RLW_SRC_TRACK", 0x7, 0x1, "reset_gpu"),
        (145, "RLW_SRC_TRACK", 0x7, 0x4, "restart_job"),
        (145, "RLW_TAGSTATE", 0x8, 0x10000, "none"),
        (145, "RLW_TAGSTATE", 0x8, 0x20000, "reset_gpu"),
        (145, "RLW_CTRL", 0x3, 0x80000000, "none"),
        (146, "TLW_RX_PIPE0", 0xA, 0x4, "reset_gpu"),
        (146, "TLW_TX_PIPE1", 0xD, 0x2, "none"),
        (147, "TREX", 0xE, 0x1, "none"),
        (148, "NVLPW", 0xF, 0x80000000, "none"),
        (149, "NETIR_INT", 0x18, 0x0, "reset_gpu"),
        (149, "NETIR_LINK_DOWN", 0x11, 0x0, "reset_gpu"),
        (149, "NETIR_LINK_DOWN", 0b100110 << 20 | 0x11, 0x0, "none"),
        (149, "NETIR_LINK_DOWN", 0b101000 << 20 | 0x11, 0x0, "none"),
        (149, "NETIR_LINK_DOWN", 0b111111 << 20 | 0x11, 0x0, "reset_gpu"),
        (149, "NETIR_BER_EVENT", 0x13, 0x2, "none"),
        (149, "NETIR_MFDE_EVENT", 0x14, 0x3, "none"),
        (149, "NETIR_MFDE_EVENT", 0x14, 0x5, "reset_gpu"),
        (150, "MSE_WATCHDOG", 0x0, 0x0, "reset_gpu"),
        (145, "RLW_NEW", 0x9, 0x1, "reset_gpu"),
    ],
)
def test_the_registers_of_nvlink_5_decide(code: int, unit: str, info: int, status: int, repair: str) -> None:
    rest = LINK5.format(unit=unit, how="Fatal" if repair == "reset_gpu" else "Nonfatal", info=info, status=status)
    (event,) = judge(f"NVRM: Xid (PCI:0018:01:00): {code}, {rest}")
    assert (event.repair.value, dict(event.fields)["link"], dict(event.fields)["unit"]) == (repair, "04", unit)


@pytest.mark.parametrize(("to", "repair"), [("0x1 (GPU Reset Required)", "reset_gpu"), ("0x2 (Node Reboot Required)", "reboot")])
def test_the_action_announced_by_the_driver_overrides_unlisted_errors(to: str, repair: str) -> None:
    unknown = _line(145, rest=LINK5.format(unit="RLW_NEW", how="Nonfatal", info=9, status=1))
    follows = _line(145, t=1000.1, rest=LINK5.format(unit="RLW_REMAP", how="Nonfatal", info=4, status=1))
    text = _line(154, t=1001.0, rest=f"GPU recovery action changed from 0x0 (None) to {to}")
    assert {events[2] for events in _judged(unknown, follows, text)} == {repair}


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ("0x40800001, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", RegisterVerdict.IGNORE),
        ("0x2, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", RegisterVerdict.ECHO),
        ("0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", RegisterVerdict.INSPECT),
        ("0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0", RegisterVerdict.INSPECT),
        ("0x0, 0x0, 0x0, 0x10000, 0x0, 0x0, 0x0", RegisterVerdict.ECHO),
        ("0x600000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", RegisterVerdict.INSPECT),
    ],
)
def test_the_registers_of_74_are_read(words: str, verdict: RegisterVerdict) -> None:
    decoded = xid_registers.decode(74, f"NVLink: fatal error detected on link 14({words})")
    assert decoded is not None
    assert (decoded.verdict, decoded.link) == (verdict, "14")
