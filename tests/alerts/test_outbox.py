"""The outbox: whole files or none, in order, capped, and readable by the next process."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

import pytest

from checkpointing.io import staging
from supervisor.alerts.outbox import DROPPED, Outbox, count_dropped

if TYPE_CHECKING:
    from pathlib import Path


def identifier(number: int) -> str:
    return f"{number:032x}"


def opened(path: Path, cap: int = 256) -> Outbox:
    outbox = Outbox(path, cap)
    outbox.load()
    return outbox


def waiting(path: Path) -> list[str]:
    return [kept.event_id for kept in Outbox(path).load()]


def test_what_is_put_is_there_for_the_next_process_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = opened(tmp_path / "outbox")
    monkeypatch.setattr("time.time_ns", lambda: 5)  # a clock that stands still, far behind
    for number in (3, 1, 2):
        outbox.put(identifier(number), b'{"n":%d}' % number)
    again = Outbox(tmp_path / "outbox")
    assert [(kept.event_id, kept.body) for kept in again.load()] == [(identifier(number), b'{"n":%d}' % number) for number in (3, 1, 2)]
    again.put(identifier(9), b"{}")
    assert waiting(tmp_path / "outbox") == [identifier(number) for number in (3, 1, 2, 9)]


def test_files_are_private_and_nothing_is_left_beside_them(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        opened(tmp_path / "outbox").put(identifier(1), b"{}")
    finally:
        os.umask(old)
    files = [path for path in (tmp_path / "outbox").rglob("*") if path.is_file()]
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o600]
    assert stat.S_IMODE((tmp_path / "outbox").stat().st_mode) == 0o700


def test_what_is_dropped_goes_and_is_counted_for_good(tmp_path: Path) -> None:
    outbox = opened(tmp_path)
    for number in range(5):
        outbox.put(identifier(number), b"{}")
    assert count_dropped(tmp_path) == (0, 0.0)
    outbox.drop([identifier(0), identifier(1)], 3)  # one of them had no file yet
    outbox.drop([], 1)
    assert waiting(tmp_path) == [identifier(number) for number in (2, 3, 4)]
    assert count_dropped(tmp_path)[0] == 4
    assert stat.S_IMODE((tmp_path / DROPPED).stat().st_mode) == 0o600


def test_sent_and_refused_are_remembered_and_not_sent_again(tmp_path: Path) -> None:
    outbox = opened(tmp_path)
    for number in (1, 2):
        outbox.put(identifier(number), b"{}")
    outbox.sent(identifier(1))
    outbox.refuse(identifier(2), b"{}", "status 404")
    again = Outbox(tmp_path)
    assert again.load() == []
    assert again.knows(identifier(1))
    assert again.knows(identifier(2))
    (letter,) = (tmp_path / "dead").iterdir()
    assert json.loads(letter.read_text())["reason"] == "status 404"


def test_what_cannot_be_read_is_set_aside(tmp_path: Path) -> None:
    outbox = opened(tmp_path)
    for number in (1, 2, 3, 4):
        outbox.put(identifier(number), b"{}")
    torn, empty, fifo, _ = sorted(path for path in tmp_path.iterdir() if path.is_file())
    torn.write_bytes(torn.read_bytes()[:-4])
    empty.write_bytes(b"")
    fifo.unlink()
    os.mkfifo(fifo)
    half = tmp_path / os.path.basename(staging.temporary_for("half-written.json"))  # noqa: PTH119
    half.write_bytes(b"{")
    os.utime(half, (0, 0))
    assert waiting(tmp_path) == [identifier(4)]
    assert len(list((tmp_path / "dead").iterdir())) == 3
    assert not half.exists()


def test_a_write_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = opened(tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        outbox.put(identifier(1), b"{}")
    assert [path for path in tmp_path.iterdir() if path.is_file()] == []
