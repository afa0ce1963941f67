"""The scanner finds what the standard library's search finds, in any bytes and from any thread."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.classify.logs.match import read_text
from supervisor.classify.logs.scanner import PlainScanner
from supervisor.config import signatures
from supervisor.observe.anchor_scanner import PLAIN_BYTES, HyperScanner, UpgradingScanner, made_apart, scanner
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

CATALOGUE, _ = signatures.read()
AWKWARD = ("CUDA Error: out", "Error", "out of", "a\0bcd", "(.*)[x]\\d", "été — λ", "aaaa", "aaaaa")


def fast(anchors: Sequence[str]) -> HyperScanner:
    pytest.importorskip("hyperscan", reason="hyperscan is not installed: pip install hyperscan, for x86_64 and aarch64")
    hyper = scanner(anchors)
    assert isinstance(hyper, HyperScanner)
    return hyper


def lines_of(hits: Sequence[tuple[int, int]], block: bytes) -> set[tuple[int, int]]:
    return {(index, block.count(b"\n", 0, end)) for index, end in hits}


def test_every_anchor_of_ours_is_found_where_it_ends() -> None:
    hyper_scanner = fast(CATALOGUE.anchors)
    for index, anchor in enumerate(CATALOGUE.anchors):
        block = b"before " + anchor.encode() + b" after"
        assert (index, len(block) - len(b" after")) in hyper_scanner.hits(block), anchor


@given(st.lists(st.one_of(st.binary(max_size=20), st.sampled_from([text.encode() for text in AWKWARD]), st.just(b"\n")), max_size=30))
def test_in_any_bytes_the_same_anchors_stand_on_the_same_lines(parts: list[bytes]) -> None:
    block = b"".join(parts)
    assert lines_of(fast(AWKWARD).hits(block), block) == lines_of(PlainScanner(AWKWARD).hits(block), block)


def test_hits_come_by_offset() -> None:
    block = " ".join(sorted(CATALOGUE.anchors, key=lambda anchor: anchor[::-1])).encode()
    ends = [end for _, end in fast(CATALOGUE.anchors).hits(block)]
    assert ends == sorted(ends)
    assert len(ends) >= len(CATALOGUE.anchors)


def test_one_scanner_serves_many_threads() -> None:
    shared = fast(("needle",))
    counts: list[int] = []

    def scan() -> None:
        counts.extend(len(shared.hits(b"hay needle " * 2000)) for _ in range(50))

    threads = [threading.Thread(target=scan) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [2000] * 200


def test_other_threads_run_while_a_block_is_scanned() -> None:
    shared, block = fast(CATALOGUE.anchors), b"hay " * (48 << 20)
    turns: list[float] = []
    over = threading.Event()

    def spin() -> None:
        while not over.is_set():
            turns.append(time.monotonic())

    other = threading.Thread(target=spin)
    other.start()
    while not turns:
        over.wait(0.001)
    began = time.monotonic()
    shared.hits(block)
    ended = time.monotonic()
    over.set()
    other.join()
    # a scan that held the interpreter's lock would leave at most the two ends
    middle = [t for t in turns if began + (ended - began) / 4 < t < ended - (ended - began) / 4]
    assert len(middle) > 10


def test_without_hyperscan_the_answers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    log = b'step 1\nTraceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nOSError: [Errno 28] No space left on device\n'
    with_it = read_text(log, CATALOGUE, scanner(CATALOGUE.anchors))
    monkeypatch.setitem(sys.modules, "hyperscan", None)
    plain = scanner(CATALOGUE.anchors)
    assert isinstance(plain, PlainScanner)
    assert read_text(log, CATALOGUE, plain) == with_it


def test_no_anchors_are_never_found() -> None:
    assert list(scanner(()).hits(b"anything")) == []


# --- compiled by a child

#: Prints by how many KiB the peak of a fresh interpreter grows while it makes our scanner, once that is as fast as it gets.
PEAK = """
import hyperscan, sys, time
from supervisor.config import signatures
from supervisor.observe import anchor_scanner
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
anchors = signatures.read()[0].anchors
before = peak()
scanner = getattr(anchor_scanner, sys.argv[1])(anchors)
scanner.hits(b"x" * 131072)
while isinstance(getattr(scanner, "now", None), anchor_scanner.PlainScanner):
    time.sleep(0.001)
print(peak() - before)
"""

MUCH = bytes(PLAIN_BYTES)


def improved(scanner: UpgradingScanner) -> HyperScanner:
    until = time.monotonic() + 30
    while not isinstance(scanner.now, HyperScanner):
        assert time.monotonic() < until
        time.sleep(0.001)
    return scanner.now


def peak_kib(how: str) -> int:
    done = subprocess.run([sys.executable, "-P", "-c", PEAK, how], capture_output=True, check=True, timeout=120)  # noqa: S603  ours
    return int(done.stdout)


@pytest.mark.process
def test_a_scanner_compiled_by_a_child_finds_the_same_and_nobody_waits_for_it() -> None:
    here = fast((*CATALOGUE.anchors, *AWKWARD))
    block = b"\n".join(anchor.encode() for anchor in (*CATALOGUE.anchors, *AWKWARD))
    scanner = made_apart((*CATALOGUE.anchors, *AWKWARD))
    assert lines_of(scanner.hits(block), block) == lines_of(here.hits(block), block)
    assert isinstance(scanner.now, PlainScanner)  # so little output is not worth a child
    scanner.hits(MUCH)
    assert lines_of(improved(scanner).hits(block), block) == lines_of(here.hits(block), block)


@pytest.mark.process
def test_a_child_compiles_it_so_that_our_own_peak_stays_low() -> None:
    pytest.importorskip("hyperscan", reason="hyperscan is not installed: pip install hyperscan, for x86_64 and aarch64")
    apart, here = peak_kib("made_apart"), peak_kib("scanner")
    assert apart < here / 2, (apart, here)


@pytest.mark.process
@pytest.mark.parametrize("does", ["exit 1", "head -c 5000 /dev/zero", None], ids=["fails", "answers with something else", "is not there"])
def test_a_child_that_compiles_nothing_is_done_without(tmp_path: Path, does: str | None) -> None:
    pytest.importorskip("hyperscan", reason="hyperscan is not installed: pip install hyperscan, for x86_64 and aarch64")
    python = tmp_path / "python"
    if does is not None:
        python.write_text(f"#!/bin/sh\n{does}\n")
        python.chmod(0o755)
    scanner = made_apart(("needle",), str(python))
    scanner.hits(MUCH)
    assert improved(scanner).hits(b"a needle") == [(0, 8)]


def test_without_hyperscan_the_slower_search_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hyperscan", None)
    scanner = made_apart(("needle",))
    scanner.hits(MUCH)
    for thread in threading.enumerate():
        if thread.name == "scanner":
            thread.join()
    assert isinstance(scanner.now, PlainScanner)
    assert list(scanner.hits(b"a needle")) == [(0, 8)]


@pytest.mark.process
def test_a_child_that_still_compiles_does_not_outlive_us(tmp_path: Path) -> None:
    started = tmp_path / "started"
    endless = tmp_path / "python"
    endless.write_text(f"#!/bin/sh\necho $$ > {started}.new\nmv {started}.new {started}\nexec sleep 600\n")
    endless.chmod(0o755)
    scanner = made_apart(("needle",), str(endless))
    scanner.hits(MUCH)
    wait_for(started.exists, "the child")
    scanner.close()
    assert not Path("/proc", started.read_text().strip()).exists()
    assert [hit[0] for hit in scanner.hits(b"a needle")] == [0]  # it stays what it was
