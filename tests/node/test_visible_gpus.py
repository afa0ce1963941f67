"""Which GPUs a job sees, by what nvidia-smi says and by what the environment lets through."""

from __future__ import annotations

import stat
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.node import visible_gpus
from supervisor.node.visible_gpus import VisibleGpu
from tests.support.figures import within
from tests.support.waiting import is_running, wait_for

if TYPE_CHECKING:
    from pathlib import Path

A, B, C = (f"GPU-{name}-0000-0000-0000-000000000000" for name in ("aaaa1111", "bbbb2222", "bbbb3333"))
ALIKE = f"0, {A}, 00000000:3B:00.0, NVIDIA H100\n1, {B}, 00000000:5E:00.0, NVIDIA H100\n2, {C}, 00010000:86:00.0, NVIDIA H100\n"
MIXED = ALIKE.replace("H100", "T4", 1)


def smi(directory: Path, body: str) -> str:
    """Put an nvidia-smi that does `body` on a PATH of its own, and return that."""
    program = directory / "bin" / "nvidia-smi"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return f"{program.parent}:/usr/bin:/bin"


def seen(directory: Path, text: str, **environ: str) -> list[str]:
    path = smi(directory, f"cat <<'END'\n{text}END")
    return [gpu.uuid for gpu in visible_gpus.visible_gpus({"PATH": path, **environ})]


def test_each_has_the_number_that_nvidia_smi_shows_its_uuid_and_its_address(tmp_path: Path) -> None:
    path = smi(tmp_path, f'test "$1" = --query-gpu=index,uuid,pci.bus_id,name && cat <<END\n{ALIKE}END')
    assert visible_gpus.visible_gpus({"PATH": path}) == (
        VisibleGpu(0, A, "0000:3b:00.0"),
        VisibleGpu(1, B, "0000:5e:00.0"),
        VisibleGpu(2, C, "10000:86:00.0"),
    )
    assert visible_gpus.visible_gpus({"PATH": path, "CUDA_VISIBLE_DEVICES": "2,0"}) == (
        VisibleGpu(2, C, "10000:86:00.0"),
        VisibleGpu(0, A, "0000:3b:00.0"),
    )


@pytest.mark.parametrize(
    ("wanted", "texts"),
    [
        ("1", [B]),
        ("2,1", [C, B]),
        (" 0 , 1", [A, B]),
        ("", []),
        ("-1", []),
        ("0,-1,1", [A]),
        ("0,9,1", [A]),
        ("9" * 5000, []),
        (f"{C},0", [C, A]),
        ("GPU-aaaa", [A]),
        ("GPU-bbbb", []),
        ("MIG-1,0", []),
        ("1,1", []),
    ],
)
def test_the_visible_devices_are_read_as_cuda_reads_them(tmp_path: Path, wanted: str, texts: list[str]) -> None:
    assert seen(tmp_path, ALIKE, CUDA_VISIBLE_DEVICES=wanted) == texts


@pytest.mark.parametrize(
    ("container", "texts"),
    [("all", [A, B, C]), ("", [A, B, C]), ("void", [A, B, C]), ("none", []), ("6,7", [A, B, C]), (f"{C},{A}", [A, C])],
)
def test_a_containers_numbers_are_the_hosts_and_its_uuids_narrow(tmp_path: Path, container: str, texts: list[str]) -> None:
    assert seen(tmp_path, ALIKE, NVIDIA_VISIBLE_DEVICES=container) == texts


def test_where_cudas_order_is_not_known_no_number_is_guessed(tmp_path: Path) -> None:
    assert seen(tmp_path, MIXED) == []
    assert seen(tmp_path, MIXED, CUDA_VISIBLE_DEVICES="0,1") == []
    assert seen(tmp_path, MIXED, CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_VISIBLE_DEVICES="0,1") == [A, B]
    assert seen(tmp_path, MIXED, CUDA_VISIBLE_DEVICES=f"{C},{A}") == [C, A]


def test_a_lost_gpu_is_not_listed_and_the_others_are(tmp_path: Path) -> None:
    lost = "Unable to determine the device handle for GPU1: 0000:5E:00.0: GPU is lost. Reboot the system to recover this GPU\n"
    assert seen(tmp_path, ALIKE.splitlines(keepends=True)[0] + lost) == [A]


def test_without_a_driver_there_is_none(tmp_path: Path) -> None:
    assert visible_gpus.visible_gpus({"PATH": str(tmp_path)}) == ()
    broken = smi(tmp_path, "echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9")
    assert visible_gpus.visible_gpus({"PATH": broken}) == ()


@pytest.mark.process
@pytest.mark.parametrize("body", ["echo $$ > pid; exec sleep 60", "sleep 60 & echo $! > pid; wait"], ids=["itself", "what it wraps"])
@pytest.mark.bench
def test_a_driver_that_hangs_holds_nobody_up(tmp_path: Path, body: str) -> None:
    path, written = smi(tmp_path, f"cd {tmp_path}; {body}"), tmp_path / "pid"

    def is_asked() -> bool:
        """Return whether it came so far in the time that it has; on a busy machine its shell may not."""
        began = time.monotonic()
        assert visible_gpus.visible_gpus({"PATH": path}, deadline_s=0.5) == ()
        assert within(5, since=began)
        return written.exists() and written.read_text().endswith("\n")

    wait_for(is_asked, "nvidia-smi hangs")
    pid = int(written.read_text())
    wait_for(lambda: not is_running(pid), "the end of nvidia-smi", 10)


ENDS_FIRST = """
import pathlib, sys, threading, time
from supervisor.node import visible_gpus
threading.Thread(target=visible_gpus.visible_gpus, args=({"PATH": sys.argv[1]},), daemon=True).start()
while not (pathlib.Path(sys.argv[2]).exists() and pathlib.Path(sys.argv[2]).read_text().endswith("\\n")):
    time.sleep(0.01)
"""


@pytest.mark.process
def test_an_early_end_leaves_no_nvidia_smi_behind(tmp_path: Path) -> None:
    path = smi(tmp_path, f"sleep 60 & echo $! > {tmp_path}/pid; wait")
    subprocess.run([sys.executable, "-c", ENDS_FIRST, path, str(tmp_path / "pid")], timeout=120, check=True)  # noqa: S603  our own words
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not is_running(pid), "the end of nvidia-smi", 10)
