"""The sweep at the next start: four proofs together, or the process is named and left."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from supervisor.guardian.ownership import ProcessRecord, end_recorded, read_records, record_process
from supervisor.job.identity import boot_id
from tests.support.waiting import is_running

from .conftest import read_pid, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process
COOKIE = "d" * 32


@pytest.fixture
def leftover(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], ProcessRecord]]:
    code = textwrap.dedent("""
        import os, time
        if os.fork() == 0:
            os.setsid()
            with open("below", "w") as file:
                file.write(f"{os.getpid()}\\n")
        open(f"up{os.getpid()}", "w").close()
        time.sleep(600)
    """)
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "SUPERVISE_JOB_COOKIE": COOKIE}, cwd=tmp_path)  # noqa: S603
    until((tmp_path / f"up{process.pid}").exists)
    below = read_pid(tmp_path / "below")
    record_process(str(tmp_path / "processes"), process.pid, boot_id(), COOKIE, "agent")
    yield process, read_records(str(tmp_path / "processes"))[0]
    for pid in (process.pid, below):
        if is_running(pid):
            os.kill(pid, 9)
    process.wait()


def test_a_proven_process_is_ended_with_all_its_descendants(
    leftover: tuple[subprocess.Popen[bytes], ProcessRecord], tmp_path: Path
) -> None:
    process, record = leftover
    below = read_pid(tmp_path / "below")
    result = end_recorded([record, record], boot_id())
    assert (result.ended, result.left) == (tuple(sorted((process.pid, below))), ())
    assert not is_running(process.pid)
    assert not is_running(below)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"boot_id": "another"}, False), ({"start_ticks": 1}, False), ({"cookie": "e" * 32}, True)],
    ids=["another boot", "another process with its pid", "without the cookie"],
)
def test_incomplete_proof_is_left(leftover: tuple[subprocess.Popen[bytes], ProcessRecord], change: dict[str, str], *, named: bool) -> None:
    process, record = leftover
    for name, value in change.items():
        setattr(record, name, value)
    result = end_recorded([record], boot_id())
    assert result.ended == ()
    assert [left.pid for left in result.left] == ([process.pid] if named else [])
    assert process.poll() is None


def test_the_record_survives_a_torn_line_and_a_missing_file(tmp_path: Path) -> None:
    file = str(tmp_path / "processes")
    assert read_records(file) == ()
    record_process(file, os.getpid(), boot_id(), COOKIE, "guardian")
    record_process(file, 2**22 + 1, boot_id(), COOKIE, "nobody")
    with (tmp_path / "processes").open("a") as torn:
        torn.write('{"pid": 12, "sta')
    assert [record.pid for record in read_records(file)] == [os.getpid()]
