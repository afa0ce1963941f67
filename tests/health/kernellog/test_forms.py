"""Every form of a kernel message that is known is found with its code, address, severity and repair, in every writer's dress."""

from __future__ import annotations

import json
import tomllib
from io import StringIO
from pathlib import Path

import pytest

from health.kernellog import parse
from health.kernellog.file_report import LogFormError, judge, judge_stream, report, show
from health.kernellog.messages import forms, recognise
from tests.support.figures import Figures, costs_at_most

HERE = Path(__file__).parent
SAMPLES = [json.loads(line) for line in (HERE / "samples.jsonl").read_text("utf-8").splitlines()]
#: "kind code pci | message": a message of each form that no sample has.
FORMS_LINES = (HERE / "forms.txt").read_text("utf-8").splitlines()
#: Five times what it takes.
SLOWEST_S = 10.0
RELATIVES = tomllib.loads((HERE / "relatives.toml").read_text("utf-8"))["case"]


def _words(text: str) -> list[list[object]]:
    return [[event.kind, event.code, event.pci, event.severity.value, event.repair.value] for event in judge(text)]


@pytest.mark.parametrize("number", range(len(SAMPLES)))
def test_a_line_from_a_real_node_is_judged(number: int) -> None:
    sample = SAMPLES[number]
    assert _words(sample["line"]) == sample["found"], sample["line"]


@pytest.mark.parametrize("number", range(len(RELATIVES)))
def test_a_relative_is_judged(number: int) -> None:
    case = RELATIVES[number]
    words = [" ".join(str(part) or "-" for part in row) for row in _words(case["line"])]
    assert words == case["found"], case["line"]


@pytest.mark.parametrize("number", range(len(FORMS_LINES)))
def test_a_form_is_found_with_its_code_and_address(number: int) -> None:
    wanted, _, message = FORMS_LINES[number].partition(" | ")
    for dress in (
        "[90000.100000] {}",
        "Apr 22 10:00:01 gpu-17 kernel: {}",
        "3,7,90000100000,-;{}",
        "2026-04-22T10:00:01+02:00 n1 kernel: {}",
    ):
        (event,) = judge(dress.format(message))
        assert f"{event.kind} {event.code} {event.pci or '-'}" == wanted, message
        assert event.meaning


def test_a_link_that_comes_and_goes_is_recognised_by_each_drivers_words() -> None:
    words = ("mlx5_core 0000:5e:00.0 ens1f0np0: Link {}", "ixgbe 0000:01:00.0 eno1: NIC Link is {}", "r8169 0000:01:00.0 eth0: Link is {}")
    for word in words:
        down, up = ("down", "up") if "Link {}" in word and "is" not in word else ("Down", "Up")
        lines = [f"[{90000 + n}.100000] {word.format(up if n % 2 else down)}" for n in range(6)]
        (event,) = judge("\n".join(lines))
        assert (event.kind, event.code, event.reason) == ("netdev", "flapping", "3 times within 1 h")
        assert judge("\n".join(lines[:4])) == ()


def test_a_lustre_server_that_answers_again_is_a_warning() -> None:
    lost = next(line.partition(" | ")[2] for line in FORMS_LINES if line.startswith("lustre connection_lost"))
    back = "Lustre: scratch-OST0001-osc-ffff8a1b2c3d4e5f: Connection restored to scratch-OST0001 (at 10.0.9.1@o2ib)"
    (event,) = judge(f"[90000.100000] {lost}\n[90030.100000] {back}")
    assert (event.severity.value, event.reason) == ("warning", "over after 30 s")


def test_every_form_is_exercised() -> None:
    messages = [case["line"] for case in (*SAMPLES, *RELATIVES)]
    messages += [f"[1.000000] {line.partition(' | ')[2]}" for line in FORMS_LINES]
    messages += [
        "[1.000000] Lustre: scratch-OST0001-osc-ffff8a1b2c3d4e5f: Connection restored to scratch-OST0001 (at 10.0.9.1@o2ib)",
        "[1.000000] mlx5_core 0000:5e:00.0 ens1f0np0: Link down",
    ]
    matches = [recognise(entry.text, sure=entry.sure) for text in messages for entry in parse.entries(text)]
    events = {id(match.form) for match in matches if match is not None}
    assert [f"{row.kind} {row.code} {row.pattern.pattern}" for row in forms() if id(row) not in events] == []


@pytest.mark.parametrize("cut", [7, 20, 41])
def test_cut_or_foreign_lines_raise_no_error(cut: int) -> None:
    for case in (*SAMPLES, *RELATIVES):
        judge(case["line"][:-cut])
        judge(case["line"][cut:])
    judge("\x00\xff" * 1000 + "\n" + "[" * 5000 + "\n{" + '"a":' * 500)


@pytest.mark.bench
def test_a_large_ordinary_log_is_judged_quickly() -> None:
    line = "Apr 22 06:30:11 gpu-17 kernel: [120011.100000] docker0: port 1(veth12ab34c) entered blocking state\n"
    with costs_at_most(SLOWEST_S):
        assert judge(line * (50_000 if Figures.asserted else 5_000)) == ()


FELL_OFF = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
NINES = "9" * 5000


@pytest.mark.parametrize(
    "text",
    [
        f"6,1,{NINES},-;{FELL_OFF}",
        f"[{NINES}.123456] {FELL_OFF}",
        f"[²²²²².²²²²²²] NVRM: Xid (PCI:0000:3b:00): ²{NINES}, x",
        json.dumps({"MESSAGE": FELL_OFF, "_TRANSPORT": "kernel", "__REALTIME_TIMESTAMP": NINES, "_SOURCE_MONOTONIC_TIMESTAMP": "²"}),
        f'{{"dmesg": [{{"pri": 3, "time": {NINES[:400]}, "msg": "{FELL_OFF}"}}, {{"pri": 3, "time": 1e999, "msg": "{FELL_OFF}"}}]}}',
        "[" * 200_000,
        '{"a":' * 100_000,
        '[{"a":' + "[" * 100_000,
    ],
    ids=["kmsg", "uptime", "superscript", "journal", "dmesg", "deep-list", "deep-row", "deep-document"],
)
def test_numbers_and_depths_that_nobody_means_fail_nothing(text: str) -> None:
    events = judge(f"{text}\n[5.000000] NVRM: Xid (PCI:0000:5e:00): 79, GPU has fallen off the bus.\n")
    json.dumps([event.to_json() for event in events], allow_nan=False)


def test_a_document_that_is_too_long_to_be_held_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "LONGEST_DOCUMENT", 1000)
    row = json.dumps({"MESSAGE": FELL_OFF, "_TRANSPORT": "kernel"})
    with pytest.raises(parse.LogTooLongError, match="JSON"):
        list(parse.entries("{\n" + row[1:] + "\n" * 1000))
    assert len(list(parse.entries(f"{row}\n" * 100))) == 100  # of rows, one after another, no more than one is held


XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."
#: What stands before a message, in the forms of other countries and collectors.
FOREIGN = {
    "byte order mark": "\ufeff[  123.456789] ",
    "byte order mark, syslog": "\ufeffNov 22 19:51:14 host kernel: ",
    "dmesg -T zh": "[日 11月 22 19:51:14 2026] ",
    "dmesg -T ko": "[일 11월 22 19:51:14 2026] ",
    "dmesg -T hu": "[v nov 22 19:51:14 2026] ",
    "dmesg -T vi": "[CN Th11 22 19:51:14 2026] ",
    "dmesg -T fr in latin-1": "[dim. f\ufffdvr. 22 19:51:14 2026] ",
    "dmesg -T with the caller": "[CN Th11 22 19:51:14 2026] [T1234] ",
    "journalctl ja": "11月 22 19:51:14 host kernel: ",
    "journalctl vi": "Thg 11 22 19:51:14 host kernel: ",
    "journalctl fr in latin-1": "f\ufffdvr. 22 19:51:14 host kernel: ",
    "journalctl short-full zh": "日 2026-11-22 19:51:14 CST host kernel: ",
    "a clock of twelve hours": "11/22/2026 07:51:14 PM host kernel: ",
    "pdsh": "gpu-17: [  123.456789] ",
    "talosctl": "10.0.0.7: kern: warning: [2026-11-22T19:51:14.291660856Z]: ",
    "a collector's own": "2026/11/22 19:51:14.123 | node7 | ",
}


@pytest.mark.parametrize("head", FOREIGN.values(), ids=FOREIGN)
def test_a_message_of_the_driver_is_found_whatever_precedes_it(head: str) -> None:
    assert [(event.kind, event.code) for event in judge(head + XID_79)] == [("xid", 79)]


@pytest.mark.parametrize("head", ["Nov 22 19:51:14 host app[12]: ", "11月 22 19:51:14 host app[12]: ", "train.py: saw: "])
def test_a_kernel_line_quoted_by_another_program_is_not_the_kernels(head: str) -> None:
    assert judge(head + XID_79) == ()


@pytest.mark.parametrize("name", ["dmesg -T zh", "dmesg -T with the caller", "journalctl ja", "a clock of twelve hours", "pdsh"])
def test_behind_the_kernels_mark_any_message_counts_and_its_time_is_unknown(name: str) -> None:
    out = StringIO()
    judged = judge_stream(StringIO(f"{FOREIGN[name]}nvme nvme4: starting error recovery\n{FOREIGN[name]}a message that nobody knows\n"))
    assert (judged.messages, [(finding.kind, finding.code, finding.t) for finding in judged.findings]) == (
        2,
        [("nvme", "connection_lost", None)],
    )
    show(judged, as_json=False, out=out)
    assert "line 1 (time unknown): " in out.getvalue()


def test_a_prefix_of_unknown_form_is_searched_in_linear_time() -> None:
    with costs_at_most(SLOWEST_S):
        for line in ("1:11:11" * 1500, "[" * 12_000, "[ 1" * 4000, " kernel" * 1500, "x" * 80 + "[ 1.1" * 2000):
            judge(f"{line}\n" * 20)


def test_journalctls_export_format_is_refused_with_the_command_that_saves_text(tmp_path: Path) -> None:
    (tmp_path / "saved").write_text(f"__CURSOR=s=1\n_TRANSPORT=kernel\nSYSLOG_FACILITY=0\nMESSAGE={XID_79}\n\n")
    with pytest.raises(LogFormError, match="it is in journalctl's export format") as refused:
        report(str(tmp_path / "saved"), StringIO(), as_json=False)
    assert "journalctl -k > FILE" in refused.value.hint
