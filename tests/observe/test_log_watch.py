"""Reading what ranks write, while they write it: through rotation and floods, and without waiting for anybody."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.config import signatures
from supervisor.guardian.logs import KEPT, Appender, LogFile
from supervisor.observe import collect, log_watch
from supervisor.observe.anchor_scanner import scanner
from supervisor.observe.log_watch import LogWatch, StreamRead
from tests.support.figures import costs_at_most, within
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from supervisor.observe.log_watch import Signatures

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {mib}.00 MiB. GPU 0 has a total capacity of 79.15 GiB"
TRACEBACK = f'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    step()\n{OOM}\n'


@pytest.fixture(scope="module")
def known() -> Signatures:
    catalogue, _ = signatures.read()
    pair = catalogue, scanner(catalogue.anchors)
    return lambda: pair


@pytest.fixture
def watch(tmp_path: Path, known: Signatures) -> Iterator[LogWatch]:
    watching = LogWatch(tmp_path / "0001", known, time.time)
    watching.start()
    yield watching
    watching.stop()


def asked(read: tuple[StreamRead, ...]) -> list[int]:
    """Return the MiB asked for in each exception that was found, over all streams."""
    facts = (fact for stream in read for fact in stream.evidence if fact.name == "cuda_oom.torch")
    return [int(dict(fact.fields)["asked"]) >> 20 for fact in facts]


def test_streams_that_appear_later_are_read_and_named_by_their_files(watch: LogWatch, tmp_path: Path) -> None:
    directory = tmp_path / "0001"
    directory.mkdir()
    began = time.time()
    for name in ("rank-0.out", "rank-0.err", "rank-11.log", "agent.err", "rank-0.out.gz", "notes.txt"):
        (directory / name).write_text(TRACEBACK.format(mib=20))
    read = watch.finish(60)
    assert {(stream.rank, stream.name) for stream in read} == {(0, "out"), (0, "err"), (11, "both"), (-1, "err")}
    assert asked(read) == [20] * 4
    assert all(began <= fact.t <= time.time() for stream in read for fact in stream.evidence if fact.claim)
    assert all(stream.end.endswith(b"79.15 GiB\n") for stream in read)
    assert not any(stream.skipped or stream.gaps or stream.problem for stream in read)


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
def test_a_file_system_whose_clock_is_wrong_does_not_move_what_is_read_into_another_hour(
    watch: LogWatch, tmp_path: Path, ahead_s: float
) -> None:
    directory = tmp_path / "0001"
    directory.mkdir()
    wait_for(lambda: watch.passes > 1, "a look before it", 30)
    began = time.time()
    new = tmp_path / "new"
    new.write_text(TRACEBACK.format(mib=20))
    os.utime(new, (began + ahead_s, began + ahead_s))
    new.rename(directory / "rank-0.err")
    (stream,) = watch.finish(60)
    assert all(began - 1 <= fact.t <= time.time() for fact in stream.evidence if fact.claim)


def test_no_line_is_lost_where_the_guardian_rotates(watch: LogWatch, tmp_path: Path) -> None:
    appender = Appender(lambda: None)
    log = LogFile(str(tmp_path / "0001" / "rank-3.err"), 64 * 1024)
    filler = b"".join(b"step %d of the epoch\n" % step for step in range(1000))
    written = 0
    for mib in range(1, 41):  # more rotations between two looks would lose some: three of them are waited for
        data = filler + TRACEBACK.format(mib=mib).encode()
        written += len(data)
        appender.put(log, data)
        if mib % 8 == 0:
            wait_for(lambda: appender.idle, "the guardian's thread has written", 30)
            watch.read_now()
            wait_for(lambda: watch.bytes_passed == written, "a look at all of it", 30)  # noqa: B023  waited for in this round
    (stream,) = watch.finish(60)
    assert os.path.exists(f"{log.path}.4")  # noqa: PTH110  it was rotated
    assert (stream.skipped, stream.gaps) == (0, 0)
    assert stream.evidence[0].rank is None  # the file says which
    facts = [fact for fact in stream.evidence if fact.name == "exception"]
    assert [int(fact.text.split("allocate ")[1].split(".")[0]) for fact in facts] == list(range(1, 41))
    appender.close(log)


def test_lines_rotated_away_between_two_looks_are_reported(tmp_path: Path, known: Signatures) -> None:
    appender = Appender(lambda: None)
    log = LogFile(str(tmp_path / "rank-3.err"), 64 * 1024)

    def write(first: int, count: int) -> None:
        for mib in range(first, first + count):
            appender.put(log, TRACEBACK.format(mib=mib).encode().ljust(64 * 1024 - 1, b".") + b"\n")
        wait_for(lambda: appender.idle, "the guardian's thread has written", 30)

    write(1, 1)
    looked, goes_on = threading.Event(), threading.Event()

    def now() -> float:  # asked once for each file in each look: the second waits, and what follows is rotated meanwhile
        if looked.is_set():
            goes_on.wait(60)
        looked.set()
        return time.time()

    watch = LogWatch(tmp_path, known, now)
    watch.start()
    wait_for(lambda: watch.bytes_passed == 64 * 1024, "the first look", 30)
    write(2, KEPT + 1)
    goes_on.set()
    wait_for(lambda: watch.bytes_passed == (1 + KEPT) * 64 * 1024, "a look at all that is left", 60)
    (stream,) = watch.finish(60)
    assert asked((stream,)) == [1, *range(3, KEPT + 3)]
    assert stream.gaps == 1
    assert [fact.name for fact in collect.logs([stream], launches=False) if fact.source == "observer"] == ["skipped"]
    appender.close(log)


def test_a_flood_is_sampled_and_its_omitted_bytes_are_counted(watch: LogWatch, tmp_path: Path) -> None:
    directory = tmp_path / "0001"
    half = b"step 1 loss 0.5\n" * (2 << 20)
    (tmp_path / "flood").write_bytes(TRACEBACK.format(mib=1).encode() + half + TRACEBACK.format(mib=2).encode() + half)
    with (tmp_path / "flood").open("ab") as file:
        file.write(TRACEBACK.format(mib=3).encode())
    directory.mkdir()
    (tmp_path / "flood").rename(directory / "rank-0.out")  # there at once, so that one look meets all of it
    (stream,) = watch.finish(60)
    assert stream.skipped > 32 << 20
    assert asked((stream,)) == [1, 3]
    assert stream.end.endswith(b"79.15 GiB\n")


def test_the_rest_of_a_cut_line_is_not_taken_for_a_line(tmp_path: Path, known: Signatures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_watch, "LEAST_BYTES", 4096)
    monkeypatch.setattr(log_watch, "FILE_BYTES", 4096)
    quoted = f"a sample of the forum: {OOM.format(mib=9)}"
    start = len("a sample of the forum: ")
    tail = quoted[start:] + "\n" + "x" * (2048 - len(quoted[start:]) - 2) + "\n"
    (tmp_path / "rank-0.out").write_text("y\n" * 5000 + quoted[:start] + tail)
    watch = LogWatch(tmp_path, known, time.time)
    watch.start()
    (stream,) = watch.finish(60)
    assert stream.skipped == 10_000 + start - 2048
    assert not asked((stream,))


@pytest.mark.bench
def test_lines_that_all_look_like_failures_do_not_hold_the_verdict_up(watch: LogWatch, tmp_path: Path) -> None:
    (tmp_path / "0001").mkdir()
    for rank in range(8):
        (tmp_path / "0001" / f"rank-{rank}.err").write_text((OOM.format(mib=5) + "\n") * 20_000)
    began = time.monotonic()
    read = watch.finish(60)
    assert within(2, since=began)  # some 0.2 s on an idle machine; all of it would be half a minute
    assert len(read) == 8
    assert all(stream.end.endswith(b"79.15 GiB\n") and asked((stream,)) for stream in read)


def test_a_file_that_is_emptied_is_read_from_its_beginning(watch: LogWatch, tmp_path: Path) -> None:
    (tmp_path / "0001").mkdir()
    log = tmp_path / "0001" / "rank-0.out"
    log.write_text("step 1\n" * 1000 + TRACEBACK.format(mib=1))
    watch.read_now()
    wait_for(lambda: watch.bytes_passed == log.stat().st_size, "the first look", 30)
    log.write_text(TRACEBACK.format(mib=2))
    assert asked(watch.finish(60)) == [1, 2]


@pytest.mark.parametrize("kind", ["fifo", "link", "directory"])
def test_a_path_that_is_no_file_is_a_problem_and_not_waited_for(watch: LogWatch, tmp_path: Path, kind: str) -> None:
    directory = tmp_path / "0001"
    directory.mkdir()
    if kind == "fifo":
        os.mkfifo(directory / "rank-0.out")
    elif kind == "link":
        (directory / "rank-0.out").symlink_to("/dev/zero")
    else:
        (directory / "rank-0.out").mkdir()
    (directory / "rank-1.out").write_text(TRACEBACK.format(mib=4))
    read = {stream.rank: stream for stream in watch.finish(60)}
    assert "rank-0.out" in read[0].problem
    assert asked((read[1],)) == [4]


def test_signatures_that_cannot_be_read_raise_at_the_caller(tmp_path: Path) -> None:
    def none() -> Signatures:
        message = "no signatures"
        raise ValueError(message)

    (tmp_path / "rank-0.out").write_text("x\n")
    watch = LogWatch(tmp_path, none, time.time)  # type: ignore[arg-type]  # that is the fault
    watch.start()
    with pytest.raises(ValueError, match="no signatures"):
        watch.finish(60)


def test_a_disk_that_does_not_answer_holds_up_nobody_beyond_the_deadline(tmp_path: Path, known: Signatures) -> None:
    hangs = threading.Event()

    def stuck() -> float:
        hangs.wait(60)
        return time.time()

    (tmp_path / "rank-0.out").write_text("x\n")
    watch = LogWatch(tmp_path, known, stuck)
    watch.start()
    with pytest.raises(TimeoutError):
        watch.finish(0.05)
    hangs.set()


@pytest.mark.bench
def test_sixteen_quiet_files_cost_next_to_nothing(watch: LogWatch, tmp_path: Path) -> None:
    (tmp_path / "0001").mkdir()
    for rank in range(16):
        (tmp_path / "0001" / f"rank-{rank}.log").write_text("step 1\n")
    wait_for(lambda: watch.bytes_passed == 16 * 7, "all files have been read", 30)
    passes = watch.passes
    with costs_at_most(0.2, "3 looks; most of this is the waiting itself"):
        wait_for(lambda: watch.passes >= passes + 3, "three more passes")
