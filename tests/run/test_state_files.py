"""A FIFO in the place of a file of the state directory is refused by its name; nobody waits for a writer that never comes."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.io import durable
from supervisor.errors import SuperviseError
from supervisor.guardian import ownership
from supervisor.node.gpu_quarantine import GpuQuarantine
from supervisor.run import lock
from tests.support.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import StrPath


#: What is read, who reads it. A reader returns what it says of the FIFO, or raises.
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "the catalogue of checkpoints": ("catalogue.jsonl", lambda path: CheckpointCatalogue(path.parent, is_writer=True).problem),
    "the ledger of GPUs": (".gpus/n.jsonl", lambda path: GpuQuarantine(path.parents[1], "n").held(0.0)),
    "the lock, by who takes it": ("lock", lambda path: lock.acquire(path, job="j")),
    "the lock, by who looks": ("lock", lock.holder),
    "our processes": ("processes", lambda path: ownership.read_records(str(path))),
}


def _said(read: Callable[[Path], object], path: Path) -> str:
    """Return what a reader answers or raises of a FIFO. It runs in a thread, so that one that waits fails its own test only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    texts: list[str] = []

    def ask() -> None:
        try:
            texts.append(str(read(path) or ""))
        except SuperviseError as error:
            texts.append(error.message)
        except OSError as error:
            texts.append(str(error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if not texts and path.is_fifo():
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # let it go
    assert texts, "it waits for a writer"
    return texts[0]


@pytest.mark.parametrize("name", READERS)
def test_a_fifo_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    file, read = READERS[name]
    text = _said(read, tmp_path / file)
    assert "it is not a regular file" in text
    assert str(tmp_path / file) in text


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a FIFO", "a directory"])
def test_only_a_regular_file_is_read(tmp_path: Path, make: Callable[[StrPath], None]) -> None:
    (tmp_path / "whole").write_bytes(b"abc")
    assert (durable.read(str(tmp_path / "whole")), durable.read(str(tmp_path / "whole"), 2)) == (b"abc", b"ab")
    make(tmp_path / "other")
    before = open_descriptors()
    with pytest.raises(OSError, match="it is not a regular file"):
        durable.read(str(tmp_path / "other"))
    wait_for(lambda: open_descriptors() <= before, "it is closed; another test's thread may have one open just now")
