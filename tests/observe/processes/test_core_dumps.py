"""A rank's core dump is found where the kernel puts it, and no other process's dump is taken for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisor.core.model import RankExit
from supervisor.job.clock import Clock
from supervisor.observe.processes import core_dumps

PID = 4242


def death(clock: Clock, *, core: bool = True, pid: int = PID) -> RankExit:
    return RankExit(3, pid, int((clock.now() - clock.at_monotonic_ns(0)) * 1e9), signal=11, core_dumped=core)


def kernel(tmp_path: Path, pattern: str, uses_pid: str = "0") -> str:
    directory = tmp_path / "kernel"
    directory.mkdir()
    (directory / "core_pattern").write_text(pattern + "\n")
    (directory / "core_uses_pid").write_text(uses_pid + "\n")
    return str(directory)


def fact_text(tmp_path: Path, pattern: str, uses_pid: str = "0") -> str:
    clock = Clock.start()
    (fact,) = core_dumps.evidence([death(clock)], tmp_path / "job [1]", clock, kernel(tmp_path, pattern, uses_pid))
    assert (fact.name, fact.rank, fact.claim) == (core_dumps.NAME, 3, None)
    return fact.text


@pytest.mark.parametrize(
    ("pattern", "uses_pid", "file"),
    [
        ("core", "0", "core"),
        ("core", "1", f"core.{PID}"),
        ("core.%p", "1", f"core.{PID}"),
        ("%e-%p-%t.core", "0", f"python3-{PID}-1760000000.core"),
        ("100%%-%h", "0", "100%-gpu-7"),
        ("dumps/core_%P_", "0", f"dumps/core_{PID}_"),
        ("core[%s]", "0", "core[11]"),
    ],
    ids=["plain", "with its pid", "pid once", "name and time", "percent", "in a directory", "brackets"],
)
def test_the_file_that_the_pattern_means(tmp_path: Path, pattern: str, uses_pid: str, file: str) -> None:
    core = tmp_path / "job [1]" / file
    core.parent.mkdir(parents=True)
    core.write_bytes(b"ELF")
    assert fact_text(tmp_path, pattern.replace("%P", str(PID)), uses_pid) == f"dumped core: {core}"


def test_an_absolute_pattern_leaves_the_working_directory(tmp_path: Path) -> None:
    core = tmp_path / f"core-{PID}"
    core.write_bytes(b"ELF")
    assert fact_text(tmp_path, f"{tmp_path}/core-%p") == f"dumped core: {core}"


@pytest.mark.parametrize("other", ["nothing", "older", "empty", "directory", "of another process", "link"])
def test_a_core_of_another_death_is_not_named(tmp_path: Path, other: str) -> None:
    core = tmp_path / "job [1]" / (f"core.{PID + 1}" if other == "of another process" else f"core.{PID}")
    core.parent.mkdir()
    if other == "directory":
        core.mkdir()
    elif other == "link":
        core.symlink_to(sys.executable)
    elif other != "nothing":
        core.write_bytes(b"" if other == "empty" else b"ELF")
    if other == "older":
        os.utime(core, (time.time() - 3600, time.time() - 3600))
    assert fact_text(tmp_path, "core.%p") == "dumped core"


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("|/usr/lib/systemd/systemd-coredump %P %u %g %s %t %c %h", f"dumped core: coredumpctl info {PID}"),
        ("|/usr/share/apport/apport -p%p -s%s", "dumped core, which the kernel gave to apport"),
        ("", "dumped core"),
    ],
    ids=["systemd", "another program", "none"],
)
def test_another_holder_of_the_core_is_named(tmp_path: Path, pattern: str, text: str) -> None:
    assert fact_text(tmp_path, pattern) == text


def test_the_core_of_a_rank_that_dumped_none_is_not_looked_for(tmp_path: Path) -> None:
    clock = Clock.start()
    assert core_dumps.evidence([death(clock, core=False)], tmp_path, clock, str(tmp_path / "no such")) == ()


@pytest.mark.process
def test_a_real_core_is_found_by_the_words_of_this_kernel(tmp_path: Path) -> None:
    clock = Clock.start()
    dying = "import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2); os.abort()"
    with subprocess.Popen([sys.executable, "-c", dying], cwd=tmp_path) as process:  # noqa: S603  ours
        _, status, _ = os.wait4(process.pid, 0)
        process.returncode = -6
    if not os.WCOREDUMP(status):
        pytest.skip("no core is dumped here: raise the hard limit (`ulimit -Hc`), and check kernel.core_pattern")
    (fact,) = core_dumps.evidence([death(clock, pid=process.pid)], tmp_path, clock)
    left = [path for path in tmp_path.iterdir() if path.is_file()]
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    if pattern.startswith(("|", "/")):
        pytest.skip("cores go to another place here: set kernel.core_pattern to a relative file name")
    assert [str(path) for path in left] == [dict(fact.fields)["path"]]
