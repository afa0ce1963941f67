"""What a spool and an upload find of an earlier process, or of a later version: taken, removed as a leftover, or left alone."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import closing
from pathlib import Path

import pytest

from checkpointing.manifest import digest, documents
from checkpointing.mirror import keys
from checkpointing.mirror.backends import Bytes
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.mirror.spool import Spool, SpoolEntry
from checkpointing.mirror.upload import TransferControl, upload
from tests.checkpointing.mirror.process import save


def spooled(home: Path) -> SpoolEntry:
    path = home / "ckpt" / "step_1.pt"
    described = save(path, 1000, 1)
    with closing(Spool(str(home / "spool"))) as spool:
        return spool.add(str(path), 1, described.read_bytes())


def newer(raw: bytes) -> bytes:
    changed = raw.replace(b'"reader":1', f'"reader":{documents.VERSION + 1}'.encode())
    assert changed != raw
    return changed


def test_an_entry_of_a_later_version_is_left_with_its_pins(tmp_path: Path) -> None:
    entry = spooled(tmp_path)
    document = Path(entry.directory, "manifest.json")
    document.write_bytes(newer(entry.raw_manifest))
    with closing(Spool(str(tmp_path / "spool"))) as spool:
        assert spool.entries() == ()
    assert document.read_bytes() == newer(entry.raw_manifest)
    assert os.listdir(f"{entry.directory}/pins") == ["0"]  # noqa: PTH208 -- strings throughout the package


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE], ids=["io", "files"])
def test_an_entry_that_cannot_be_read_now_is_there_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    entry = spooled(tmp_path)
    real = os.open

    def failing(name: str, flags: int, mode: int = 0o777) -> int:
        if str(name).endswith("entry.json"):
            raise OSError(number, os.strerror(number), name)
        return real(name, flags, mode)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", failing)
        with closing(Spool(str(tmp_path / "spool"))) as spool:
            assert spool.entries() == ()
    with closing(Spool(str(tmp_path / "spool"))) as spool:
        assert [one.id for one in spool.entries()] == [entry.id]


def test_a_file_system_without_locks_holds_a_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(_fd: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    entry = spooled(tmp_path)
    with closing(Spool(str(tmp_path / "spool"))) as spool:
        assert [one.id for one in spool.entries()] == [entry.id]


@pytest.mark.parametrize("lost", ["entry.json", "manifest.json"])
def test_an_entry_that_was_never_whole_is_a_leftover(tmp_path: Path, lost: str) -> None:
    entry = spooled(tmp_path)
    Path(entry.directory, lost).unlink()
    with closing(Spool(str(tmp_path / "spool"))) as spool:
        assert spool.entries() == ()
    assert not Path(entry.directory).exists()


def test_a_manifest_of_a_later_version_in_the_mirror_is_left_and_believed(tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    backend = open_backend(str(tmp_path / "mirror"))
    entry = spooled(tmp_path)
    key, raw = keys.key_of(entry.manifest) + keys.MANIFEST, newer(entry.raw_manifest)
    backend.put(key, Bytes(raw, digest.of_bytes(raw)))
    with closing(Spool(str(tmp_path / "spool"))) as spool:
        assert upload(backend, entry, spool.log(entry, backend.url), TransferControl()) == keys.key_of(entry.manifest)
    assert b"".join(backend.read(key, 0, len(raw))) == raw
