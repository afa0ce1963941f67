"""CRC-64/NVME of the whole and of each part, in one pass."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.io.reader import FileReader
from checkpointing.manifest import digest

if TYPE_CHECKING:
    from pathlib import Path


def by_definition(content: bytes) -> int:
    """CRC-64/NVME bit by bit, from its polynomial."""
    crc = (1 << 64) - 1
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x9A6C9329AC4BC9B5 if crc & 1 else 0)
    return crc ^ ((1 << 64) - 1)


def test_the_check_value_and_its_spellings() -> None:
    crc = digest.of_bytes(b"123456789")
    assert digest.to_hex(crc) == "ae8b14860a799888"
    assert digest.from_hex("ae8b14860a799888") == digest.from_base64(digest.to_base64(crc)) == crc


@given(st.binary(max_size=300))
def test_the_digest_is_the_crc_that_the_polynomial_defines(content: bytes) -> None:
    assert digest.of_bytes(content) == by_definition(content)


@given(st.binary(max_size=500), st.integers(1, 60), st.lists(st.integers(0, 70), max_size=20))
def test_parts_combine_into_the_whole_however_the_bytes_arrive(content: bytes, part_bytes: int, cuts: list[int]) -> None:
    hasher = digest.Hasher(part_bytes=part_bytes, sha256=True)
    rest = memoryview(content)
    for cut in cuts:
        hasher.update(rest[:cut])
        rest = rest[cut:]
    hasher.update(rest)
    checksums = hasher.digest()
    assert checksums.crc64nvme == digest.of_bytes(content)
    assert checksums.parts == tuple(digest.of_bytes(content[at : at + part_bytes]) for at in range(0, len(content), part_bytes))
    assert (checksums.n_bytes, checksums.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_a_file_is_read_once_and_a_range_of_it_alone(tmp_path: Path) -> None:
    content = bytes(range(256)) * 20_000
    (tmp_path / "file").write_bytes(content)
    with FileReader(str(tmp_path / "file")) as source:
        checksums = digest.of_source(source, part_bytes=1 << 20)
        assert digest.of_range(source, 77, 3_000_000) == digest.of_bytes(content[77:3_000_077])
    assert (checksums.crc64nvme, len(checksums.parts), checksums.sha256) == (digest.of_bytes(content), 5, "")


@pytest.mark.parametrize("text", ["", "ae8b", "AE8B14860A799888", "-e8b14860a799888", "ae8b14860a7998880"])
def test_a_text_that_is_no_digest_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="16 hexadecimal"):
        digest.from_hex(text)
