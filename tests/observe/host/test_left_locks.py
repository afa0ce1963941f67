"""The lock of a killed build is named, with its age and the command; one that somebody holds or that is not this run's is not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.observe.host import left_locks
from supervisor.observe.host.job_files import Begun
from supervisor.report.text import clean

if TYPE_CHECKING:
    from pathlib import Path

BUILDS = {"": ".cache/torch_extensions", "XDG_CACHE_HOME": "torch_extensions", "TORCH_EXTENSIONS_DIR": ""}
BUILD = "import sys; from torch.utils.file_baton import FileBaton as B; assert B(sys.argv[1]).try_acquire(); print(1, flush=True); input()"


def evidence(environ: dict[str, str], *begun_ago_s: float) -> list[str]:
    now = time.time()
    begun = [Begun(number, now - ago_s) for number, ago_s in enumerate(begun_ago_s, 1)]
    return [fact.text for fact in left_locks.evidence(environ, begun)]


@pytest.mark.parametrize("variable", BUILDS)
@pytest.mark.parametrize("depth", ["fused_adam", "py311_cu128/fused adam"])
def test_the_lock_of_a_build_that_is_gone_is_named_wherever_torch_builds(tmp_path: Path, variable: str, depth: str) -> None:
    environ = {"HOME": str(tmp_path), **({variable: str(tmp_path)} if variable else {})}
    lock = tmp_path / BUILDS[variable] / depth / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    (text,) = evidence(environ, 60)
    pattern = rf"a build was killed, and each later one waits for the file {re.escape(str(lock))} \([\d.]+ s old; no process has it open; "
    assert re.fullmatch(pattern + r"left by attempt 1, which is over\)", text)
    facts = left_locks.evidence(environ, [Begun(1, time.time() - 60)])
    assert left_locks.remedy(facts) == (f"rm {lock}" if " " not in str(lock) else f"rm '{lock}'")
    assert lock.exists(), "it is never removed"


@pytest.mark.parametrize(
    "name", [b"a b", b"$(touch other)", b"'q' \"d\"", b"nl\nrm other", b"esc\x1b[31m", b"\xff\xfeb", b"-r", "ü\u202e".encode()]
)
def test_the_command_removes_just_the_lock_whatever_its_directory_is_called_and_wherever_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    lock = tmp_path / os.fsdecode(name) / "lock"
    lock.parent.mkdir()
    lock.touch()
    (tmp_path / "other").touch()
    command = left_locks.remedy(left_locks.evidence({"TORCH_EXTENSIONS_DIR": "."}, [Begun(1, time.time() - 60)]))
    assert command == clean(command, is_whole=True), "a page shows all of it, as it is"
    subprocess.run(["bash", "-c", command], cwd="/", check=True)  # noqa: S603, S607  what a person would paste
    assert not lock.exists()
    assert [path.name for path in tmp_path.iterdir()] in ([lock.parent.name, "other"], ["other", lock.parent.name])


def test_a_lock_that_this_run_did_not_leave_is_not_named(tmp_path: Path) -> None:
    environ = {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    assert evidence(environ, 60) == [], "no build"
    (tmp_path / "a").mkdir()
    lock = tmp_path / "a" / "lock"
    lock.touch()
    os.utime(lock, (time.time() - 90, time.time() - 90))
    assert evidence(environ, 60) == [], "older than the run: whose it is, is not known"
    assert evidence(environ) == [], "no attempt"
    lock.unlink()
    lock.mkdir()
    assert evidence(environ, 60) == []


@pytest.mark.process
@pytest.mark.slow
def test_a_build_that_runs_keeps_its_lock_to_itself(tmp_path: Path) -> None:
    environ = {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    (tmp_path / "a").mkdir()
    lock = tmp_path / "a" / "lock"
    words = [sys.executable, "-c", BUILD, str(lock)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as build:  # noqa: S603  our own interpreter
        assert build.stdout is not None
        assert build.stdout.readline() == b"1\n"
        assert evidence(environ, 60) == []
        build.kill()
    assert len(evidence(environ, 60)) == 1
