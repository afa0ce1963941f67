"""What is appended and locked: whole lines, one holder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from checkpointing.io import durable, staging

if TYPE_CHECKING:
    from pathlib import Path


def test_a_line_after_a_torn_one_begins_on_its_own(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    durable.append(str(file), b"one")
    with file.open("ab") as torn:
        torn.write(b"tw")
    durable.append(str(file), b"three")
    assert file.read_bytes() == b"one\ntw\nthree\n"
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_fifo_in_the_place_of_a_file_of_lines_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.jsonl")
    with pytest.raises(OSError, match="Invalid argument"):
        durable.append(str(tmp_path / "rows.jsonl"), b"one")


@pytest.mark.process
def test_the_lock_of_another_process_is_seen_and_ends_with_it(tmp_path: Path) -> None:
    holds = (
        "import os, sys; from checkpointing.io import durable; durable.lock(os.open(sys.argv[1], os.O_RDONLY));"
        " print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", holds, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:  # noqa: S603 -- this interpreter and the text above
        assert other.stdout is not None
        other.stdout.readline()
        fd = os.open(tmp_path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            durable.lock(fd)
        other.kill()
        other.wait()
        assert durable.lock(fd)
        os.close(fd)


def test_a_staged_directory_takes_no_name_that_is_in_use(tmp_path: Path) -> None:
    final = tmp_path / "copy"
    final.mkdir()
    with pytest.raises(FileExistsError), staging.new_directory(str(final)) as place:
        staging.put(place, is_replacing=False)
    assert os.listdir(tmp_path) == ["copy"]  # noqa: PTH208 -- names


def test_a_small_file_is_replaced_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    staging.write(str(file), b"old")
    staging.write(str(file), b"new", is_durable=False)
    assert (file.read_bytes(), os.listdir(tmp_path)) == (b"new", ["state.json"])  # noqa: PTH208 -- names


@pytest.mark.parametrize("name", ["ckpt", ".ckpt"])
def test_a_directory_being_removed_is_never_found_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / name / "data").mkdir(parents=True)
    monkeypatch.setattr(shutil, "rmtree", lambda _path: None)  # killed there
    staging.remove(str(tmp_path / name))
    (left,) = tmp_path.iterdir()
    assert staging.is_temporary(left.name)
