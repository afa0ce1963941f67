"""The ranks of one node, played by a program that stands in the interpreter's place: how the check ends is one of its three codes."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from health.nodecheck import __main__ as command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def _end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rank: str) -> int:
    program = tmp_path / "rank"
    program.write_text(f"#!/bin/sh\n{rank}\n", "utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return command.main(["--nproc-per-node", "2", "--deadline", "0"])


@pytest.mark.parametrize(
    ("rank", "code"),
    [
        ("exit 0", 0),
        ("exit 69", 69),
        ("kill -9 $$", 75),
        ("kill -15 $$", 75),
        ("exit 1", 75),
        ("exit 69$RANK", 75),
        ("[ $RANK = 0 ] && exit 69; exit 75", 69),
    ],
    ids=["well", "unfit", "killed", "ended", "crashed", "foreign-code", "one-knows"],
)
def test_only_documented_codes_come_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rank: str, code: int) -> None:
    assert _end(monkeypatch, tmp_path, rank) == code


def test_a_rank_that_never_ends_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_START_S", 0.3)
    assert _end(monkeypatch, tmp_path, "exec sleep 50") == 75
    assert "does not end: it is waiting" in capsys.readouterr().err
