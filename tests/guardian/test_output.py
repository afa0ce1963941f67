"""What the job writes: every byte passed through, kept in files within bounds, and never a reason for a rank to wait."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.few import few
from tests.support.figures import is_within, within
from tests.support.small_disks import small_disk
from tests.support.waiting import is_running

from .conftest import Side, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.process
MIB = 1024 * 1024


class Reader:
    """Reads a pipe to its end in a thread; `pace_s` makes it slow. `read` so far, `write_fd` for the other side."""

    def __init__(self, *, pace_s: float = 0.0, chunk: int = 65536) -> None:
        self._fd, self.write_fd = os.pipe()
        self.read = bytearray()
        self._pace_s, self._chunk = pace_s, chunk
        self._go = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go(self) -> None:
        """Begin to read."""
        self._go.set()

    def join(self) -> bytes:
        """Read to the end."""
        self.go()
        os.close(self.write_fd)
        self._thread.join(30)
        assert not self._thread.is_alive()
        return bytes(self.read)

    def _run(self) -> None:
        self._go.wait()
        while data := os.read(self._fd, self._chunk):
            self.read += data
            time.sleep(self._pace_s)
        os.close(self._fd)


def script(text: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(text)]


def finish(side: Side) -> None:
    assert side.wait("exited", timeout_s=60)["code"] == 0
    side.finish()
    side.process.kill()
    side.process.wait()


def test_stdout_and_stderr_pass_unchanged_and_apart_and_are_kept(side: Callable[..., Side]) -> None:
    out, err = Reader(), Reader()
    out.go(), err.go()
    driver = side(stdout=out.write_fd, stderr=err.write_fd)
    driver.run(
        script("""
        import os
        for n in range(2000):
            os.write(1, b"out %d\\xff\\xfe\\r" % n)
            os.write(2, b"err %d\\x00\\x80\\n" % n)
    """)
    )
    finish(driver)
    assert out.join() == b"".join(b"out %d\xff\xfe\r" % n for n in range(2000)) == (driver.logs() / "rank-0.out").read_bytes()
    assert err.join() == b"".join(b"err %d\x00\x80\n" % n for n in range(2000)) == (driver.logs() / "rank-0.err").read_bytes()


def test_order_is_kept_where_both_are_one_file(side: Callable[..., Side]) -> None:
    both = Reader()
    both.go()
    driver = side(stdout=both.write_fd, stderr=both.write_fd)
    driver.run(
        script("""
        import os
        for n in range(3000):
            os.write(1 + n % 2, b"%d\\n" % n)
    """)
    )
    finish(driver)
    assert both.join() == b"".join(b"%d\n" % n for n in range(3000))
    assert (driver.logs() / "rank-0.log").read_bytes() == bytes(both.read)


def test_a_line_of_ten_megabytes_arrives_whole(side: Callable[..., Side]) -> None:
    out = Reader()
    out.go()
    driver = side(stdout=out.write_fd)
    driver.run(script("import os; data = bytes(range(48, 58)) * 1_000_000\nwhile data: data = data[os.write(1, data):]"))
    finish(driver)
    assert out.join() == b"0123456789" * 1_000_000


@pytest.mark.bench
def test_an_unflushed_print_is_shown_at_once(side: Callable[..., Side]) -> None:
    read_fd, write_fd = os.pipe()
    driver = side(stdout=write_fd)
    driver.run(
        script("""
        import os, time
        for n in range(3):
            os.write(1, b"%d " % time.monotonic_ns())
            while not os.path.exists(f"seen-{n}"):
                time.sleep(0.01)
    """)
    )
    delays = []
    for n in range(3):
        data = os.read(read_fd, 100)
        delays.append((time.monotonic_ns() - int(data)) / 1e9)
        (driver.directory / f"seen-{n}").touch()
    assert is_within(sorted(delays)[1], 0.1)
    os.close(read_fd)
    os.close(write_fd)


def test_a_closed_stdout_is_reported_once_and_the_job_continues_captured(side: Callable[..., Side]) -> None:
    out = Reader()
    head = subprocess.Popen(["head", "-n", "1"], stdin=subprocess.PIPE, stdout=out.write_fd)  # noqa: S607
    assert head.stdin
    driver = side(stdout=head.stdin)
    head.stdin.close()
    driver.run(
        script("""
        import os, time
        os.write(1, b"first\\n")
        time.sleep(0.5)
        for n in range(500_000):
            os.write(1, b"line\\n")
    """)
    )
    finish(driver)
    assert head.wait(60) == 0
    assert out.join() == b"first\n"
    assert [event for event in driver.seen if event["ev"] == "stdout_closed"] == [{"ev": "stdout_closed", "stream": 1}]
    assert (driver.logs() / "rank-0.out").stat().st_size == 6 + 2_500_000


def test_a_slow_reader_slows_the_job_and_loses_nothing_while_stderr_flows(side: Callable[..., Side]) -> None:
    out, err = Reader(), Reader()
    err.go()
    driver = side(stdout=out.write_fd, stderr=err.write_fd)
    driver.run(
        script("""
        import os, threading
        def flood():
            for n in range(400_000):
                os.write(1, b"%09d\\n" % n)
        thread = threading.Thread(target=flood)
        thread.start()
        thread.join(1.0)
        assert thread.is_alive()
        os.write(2, b"stderr while stdout waits\\n")
        thread.join()
        os.write(1, b"the end\\n")
    """)
    )
    until(lambda: bytes(err.read) == b"stderr while stdout waits\n")
    driver.call("tails", 1)  # answered although stdout does not move
    assert {tail["name"] for tail in driver.wait("tails")["tails"]} == {"out", "err"}
    assert not [event for event in driver.seen if event["ev"] == "exited"]
    out.go()
    finish(driver)
    assert out.join() == b"".join(b"%09d\n" % n for n in range(400_000)) + b"the end\n"


@pytest.mark.parametrize("farewell", few(["finish", "end"]))
def test_output_unread_by_a_slow_reader_at_the_end_is_not_lost(side: Callable[..., Side], farewell: str) -> None:
    out = Reader(pace_s=0.01, chunk=4096)
    driver = side(stdout=out.write_fd)
    driver.run(script("import os; data = b'x' * 700_000\nwhile data: data = data[os.write(1, data):]"))
    assert driver.wait("exited")["code"] == 0
    if farewell == "finish":
        driver.finish()
    else:
        driver.call("end", "all", grace_s=1.0)
        driver.wait("ended")
    driver.process.kill()
    driver.process.wait()
    assert len(out.join()) == 700_000


def test_logs_are_rotated_within_the_attempt_and_bounded(side: Callable[..., Side]) -> None:
    driver = side(log_bytes=200_000)
    driver.run(script("import os\nfor n in range(300_000): os.write(1, b'%09d\\n' % n)"))
    finish(driver)
    files = sorted(path.name for path in driver.logs().iterdir() if path.suffix != ".times")
    assert files == ["rank-0.err", "rank-0.out", "rank-0.out.1", "rank-0.out.2", "rank-0.out.3", "rank-0.out.4"] or files == files[-5:]
    output = b"".join((driver.logs() / f"rank-0.out{end}").read_bytes() for end in (".4", ".3", ".2", ".1", ""))
    dropped = [event["dropped_bytes"] for event in driver.seen if event["ev"] == "output"]
    assert len(output) <= 5 * 100_000
    assert dropped or output.endswith(b"000299998\n000299999\n")
    assert dropped or output == b"".join(b"%09d\n" % n for n in range(300_000))[-len(output) :]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "size=2m") as directory:
        yield directory


def test_a_full_disk_costs_log_bytes_only_and_is_recovered_from(side: Callable[..., Side], disk: Path) -> None:
    out = Reader()
    out.go()
    driver = side(stdout=out.write_fd)
    stranger = disk / "stranger"
    driver.run(
        script("""
        import os, time
        data = b"y" * 999 + b"\\n"
        for n in range(8000):
            os.write(1, data)
        while not os.path.exists("go"):
            time.sleep(0.02)
        time.sleep(1.2)
        os.write(1, b"after\\n")
    """),
        log_dir=str(disk / "0001"),
    )
    output = driver.wait("output")
    assert "No space left" in output["log_errors"]
    assert output["dropped_bytes"] > 0
    until(lambda: len(out.read) == 8_000_000)
    driver.call("tails", 1)
    driver.wait("tails")
    log = disk / "0001" / "rank-0.out"
    os.truncate(log, 0)  # somebody makes room
    (driver.directory / "go").touch()
    finish(driver)
    text = log.read_bytes()
    assert text.endswith(b"bytes of this log were dropped\nafter\n")
    assert not stranger.exists()
    assert len(out.join()) == 8_000_006


def test_an_unwritable_log_directory_costs_log_bytes_only(side: Callable[..., Side]) -> None:
    out = Reader()
    out.go()
    driver = side(stdout=out.write_fd)
    (driver.directory / "file").touch()
    driver.run(script("print('words')"), log_dir=str(driver.directory / "file" / "0001"))
    finish(driver)
    assert out.join() == b"words\n"
    output = [event for event in driver.seen if event["ev"] == "output"][-1]
    assert (output["dropped_bytes"], "Not a directory" in output["log_errors"]) == (6, True)


@pytest.mark.bench
def test_a_hung_disk_and_a_flood_never_block_the_rank_and_memory_stays_bounded(side: Callable[..., Side]) -> None:
    out = Reader()
    out.go()
    driver = side(stdout=out.write_fd)
    driver.logs().mkdir()
    os.mkfifo(driver.logs() / "rank-0.out")  # opening it for writing blocks until somebody reads: a disk that does not answer
    began = time.monotonic()
    driver.run(script("import os; data = (b'z' * 1023 + b'\\n') * 64\nfor n in range(1280): os.write(1, data)"))
    assert driver.wait("exited", timeout_s=30)["code"] == 0
    assert within(15, since=began)
    status = Path(f"/proc/{driver.hello['pid']}/status").read_text()
    assert int(status.partition("VmHWM:")[2].split()[0]) < 80 * 1024
    losses = [event for event in driver.seen if event["ev"] == "output"] or [driver.wait("output")]  # the first may come before the end
    assert "does not answer" in losses[-1]["log_errors"]
    driver.call("tails", 1)
    driver.wait("tails")
    began = time.monotonic()
    driver.finish()
    assert within(2.5, since=began)
    losses = [event for event in driver.seen if event["ev"] == "output"]
    assert losses[-1]["dropped_bytes"] >= 1280 * 65536 - 33 * MIB
    driver.process.kill()
    driver.process.wait()
    assert len(out.join()) == 1280 * 65536


def test_kill_9_of_the_supervisor_ends_the_job_though_disk_and_stdout_hang(side: Callable[..., Side]) -> None:
    read_fd, write_fd = os.pipe()
    driver = side(stdout=write_fd)
    os.close(write_fd)
    driver.logs().mkdir()
    os.mkfifo(driver.logs() / "rank-0.out")
    pid = driver.run(script("import os\nwhile True: os.write(1, b'w' * 65536)"))["pid"]
    until(lambda: select.select([read_fd], [], [], 0)[0] != [])
    driver.process.kill()
    until(lambda: not Path(f"/proc/{pid}").exists() and not is_running(driver.hello["pid"]))
    os.close(read_fd)


def test_show_false_is_captured_only(side: Callable[..., Side]) -> None:
    out = Reader()
    out.go()
    driver = side(stdout=out.write_fd)
    driver.run(script("print('hidden')"), show=False)
    finish(driver)
    assert out.join() == b""
    assert (driver.logs() / "rank-0.out").read_bytes() == b"hidden\n"


def test_tails_hold_the_last_16_kib_of_each_stream_of_the_last_two_attempts(side: Callable[..., Side]) -> None:
    driver = side()
    for attempt in (1, 2, 3):
        driver.run(
            script(f"import sys; sys.stdout.write('\\0' * 50_000 + '{attempt}'); sys.stderr.write('\\x1b[0m\\udcff e{attempt}')"), attempt
        )
        driver.wait("exited")
    driver.call("tails", 7)
    tails = {(tail["attempt"], tail["name"]): tail["text"] for tail in driver.wait("tails", id=7)["tails"]}
    assert sorted(tails) == [(2, "err"), (2, "out"), (3, "err"), (3, "out")]
    assert tails[3, "out"] == "\0" * (16 * 1024 - 1) + "3"
    driver.call("tails", 8, attempt=3)
    assert {tail["attempt"] for tail in driver.wait("tails", id=8)["tails"]} == {3}


def test_stdin_is_the_commands_alone(side: Callable[..., Side]) -> None:
    read_fd, write_fd = os.pipe()
    out = Reader()
    out.go()
    driver = side(stdin=read_fd, stdout=out.write_fd)
    os.write(write_fd, b"question\n")
    os.close(write_fd)
    os.close(read_fd)
    driver.run(script("import sys; print(sys.stdin.read().upper())"))
    finish(driver)
    assert out.join() == b"QUESTION\n\n"
