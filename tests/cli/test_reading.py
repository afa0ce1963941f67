"""Logs in other encodings, and files that are no text."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from supervisor.cli.classify import reading
from supervisor.cli.classify.reading import Texture

if TYPE_CHECKING:
    from pathlib import Path

TEXT = "step 1 loss 2.3\nOSError: [Errno 28] No space left on device: 'größe'\n"


def read(path: Path) -> bytes:
    with reading.opened(path) as fd:
        return b"".join(reading.blocks(fd, str(path)))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8"])
def test_a_log_of_another_encoding_is_read_as_utf_8(tmp_path: Path, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", 37)  # cuts characters in two
    path = tmp_path / "a.log"
    path.write_bytes((TEXT * 50).encode(encoding))
    assert read(path).decode() == TEXT * 50


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"\0",
        b"\0" * 5000,
        TEXT.encode(),
        b"\0" * 3000 + TEXT.encode() * 90,
        TEXT.encode() + b"\0" * 5000,
        TEXT.encode("latin-1"),
    ],
)
def test_text_not_surely_in_another_encoding_stays(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(data)
    assert read(path) == data


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (bytes(range(256)) * 16, "it is not text"),
        (b"\0" * 5000, "it holds nothing but NULs"),
        (b"", ""),
        (TEXT.encode() + b"\0" * 5000, ""),
        (b"\x1b[31m 10%|#  | 1/10\r\x1b[0m" * 100, ""),
        ("Größe: 错误\n".encode("gb18030") * 100, ""),
    ],
    ids=["every byte", "NULs", "nothing", "a hole", "a progress bar", "GB 18030"],
)
def test_text_is_distinguished_from_what_is_not(data: bytes, problem: str) -> None:
    texture = Texture()
    texture.take(data)
    assert texture.problem == problem


def test_a_pipe_that_is_written_to_a_byte_at_a_time_is_known_as_well() -> None:
    out, into = os.pipe()
    try:
        first, rest = TEXT.encode("utf-16-le")[:1], TEXT.encode("utf-16-le")[1:]
        os.write(into, first)
        blocks = reading.blocks(out, "-")
        os.write(into, rest)
        os.close(into)
        assert b"".join(blocks).decode() == TEXT
    finally:
        os.close(out)
