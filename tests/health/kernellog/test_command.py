"""`supervise doctor --kernel-log`: one object for each finding and line, from a file or from standard input, and an exit code."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import preloaded

XID = "Apr 22 10:00:01 gpu-17 kernel: [449410.332316] NVRM: Xid (PCI:0000:3D:00 GPU-I:05): 79, pid=77, name=python3, GPU has fallen off"
ORDINARY = "Apr 22 10:00:00 gpu-17 kernel: [449409.332316] docker0: port 1(veth12ab34c) entered blocking state"

pytestmark = pytest.mark.process


def _doctor(*words: str, log: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return preloaded.command("doctor", *words, cwd=Path.cwd(), environ=os.environ, stdin=log)


def test_each_finding_is_one_json_object(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text(f"{ORDINARY}\n{XID}\n")
    done = _doctor("--kernel-log", str(log), "--json")
    (row,) = [json.loads(line) for line in done.stdout.splitlines()]
    wanted = {"kind": "xid", "code": 79, "pci": "0000:3d:00", "severity": "critical", "repair": "reboot", "line": XID, "line_number": 2}
    assert {key: row[key] for key in wanted} == wanted
    assert {key: row[key] for key in ("mig", "pid", "process", "host", "same_gpu")} == {
        "mig": "GPU-I:05",
        "pid": "77",
        "process": "python3",
        "host": "gpu-17",
        "same_gpu": "after_reset",
    }
    assert done.returncode == 69


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_standard_input_is_read(packed: bool) -> None:  # noqa: FBT001  a parameter
    log = f"{XID}\n".encode()
    done = _doctor("--kernel-log", "-", log=gzip.compress(log) if packed else log)
    assert done.returncode == 69
    assert b"critical  xid 79  0000:3d:00" in done.stdout
    assert b"repair: reboot" in done.stdout


def test_an_ordinary_log_is_0_and_says_nothing_to_programs() -> None:
    assert (_doctor("--kernel-log", "-", "--json", log=ORDINARY.encode()).stdout, _doctor("--kernel-log", "-").returncode) == (b"", 0)
    assert b"nothing in this log" in _doctor("--kernel-log", "-", log=ORDINARY.encode()).stdout


def test_a_log_without_a_message_is_not_reported_as_well() -> None:
    done = _doctor("--kernel-log", "-", log=b"\n")
    assert (done.returncode, b"proves nothing about the node" in done.stdout) == (0, True)


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_text_in_which_no_line_can_be_the_kernels_is_no_log_of_a_healthy_node(more: tuple[str, ...]) -> None:
    done = _doctor("--kernel-log", "-", *more, log=b"Apr 22 10:00:01 gpu-17 app[7]: hello\n")
    assert (done.returncode, b"proves nothing about the node" in done.stderr) == (64, True)


@pytest.mark.slow
def test_a_long_log_takes_little_memory(tmp_path: Path) -> None:
    log = tmp_path / "kern.log.gz"
    with gzip.open(log, "wb", 1) as packed:
        for _ in range(60):
            packed.write(bytes(1 << 20) + b"x" * (1 << 20))  # one line of 120 MiB
        packed.write(f"\n{XID}\n".encode())
    limited = "import resource, runpy; resource.setrlimit(resource.RLIMIT_DATA, (90 << 20,) * 2);"
    limited += " runpy.run_module('supervisor', None, '__main__')"
    command = [sys.executable, "-c", limited, "doctor", "--kernel-log", str(log), "--json"]
    done = subprocess.run(command, capture_output=True, timeout=100, check=False)  # noqa: S603  ours
    assert [json.loads(line)["line_number"] for line in done.stdout.splitlines()] == [2], done.stderr
    assert done.returncode == 69


@pytest.mark.parametrize(
    ("log", "cause", "hint"),
    [
        (gzip.compress(f"{XID}\n".encode() * 9)[:-12], b"its gzip is damaged", b"gzip -dc"),
        (lzma.compress(XID.encode()), b"packed by xz", b"xz -dc"),
        (b"LPKSHHRH" + bytes(200), b"a file of the journal", b"journalctl --file"),
        (bytes(range(128, 256)) * 40, b"it is not text", b"dmesg > FILE"),
    ],
    ids=["cut", "xz", "journal", "binary"],
)
def test_a_log_that_is_no_text_is_reported_with_a_command_that_makes_one(log: bytes, cause: bytes, hint: bytes) -> None:
    done = _doctor("--kernel-log", "-", log=log)
    assert done.returncode == 64
    assert cause in done.stderr
    assert hint in done.stderr


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1", "utf-8-sig"])
def test_a_log_in_another_encoding_is_read(encoding: str) -> None:
    assert _doctor("--kernel-log", "-", log=f"{ORDINARY} é\r\n{XID}\r\n".encode(encoding)).returncode == 69


def test_a_file_that_is_not_there_is_reported_with_what_helps(tmp_path: Path) -> None:
    done = _doctor("--kernel-log", str(tmp_path / "none.log"))
    assert done.returncode == 64
    assert b"No such file" in done.stderr
    assert b"dmesg | supervise doctor --kernel-log -" in done.stderr
