"""Which of a mirror's checkpoints is the newest, and which may go: the step decides, and not the time at which it was proven."""

from __future__ import annotations

import dataclasses
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from checkpointing.manifest import documents
from checkpointing.mirror import keys, listing, removal, restore
from checkpointing.mirror.backends import Backend, PermissionDenied
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.mirror.source import TransferControl
from checkpointing.reader.messages import CopyPruned, MirrorAlert, MirrorRecovered, SendCheckpoint
from checkpointing.reader.mirror_worker import MirrorWorker
from checkpointing.reader.upload_queue import UploadQueue
from checkpointing.retention.rules import RetentionPolicy
from tests.checkpointing.mirror.process import save, upload, waiting
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def backend(tmp_path: Path) -> Backend:
    """Hold step 600, then what was proven after it: step 500, and a best.pt without a step and was written last."""
    (tmp_path / "mirror").mkdir()
    backend = open_backend(str(tmp_path / "mirror"))
    for made_unix_s, (name, step) in enumerate((("step_600.pt", 600), ("step_500.pt", 500), ("best.pt", None)), 1000):
        path = tmp_path / "ckpt" / name
        made_of = documents.read(str(save(path, 1000, 0)))
        raw = documents.encode(dataclasses.replace(made_of, step=step, made_unix_s=made_unix_s))
        entry = waiting(str(path), raw)
        upload(backend, entry, TransferControl())
    return backend


def test_the_highest_step_is_restored_whatever_was_proven_after_it(tmp_path: Path, backend: Backend) -> None:
    done = restore.newest([backend], "job", into=str(tmp_path / "fresh"))
    assert done is not None
    assert os.path.basename(done.path) == "step_600.pt"  # noqa: PTH119 -- strings throughout the package
    assert [checkpoint.manifest.step for checkpoint in listing.newest_first(backend, "job")[0]] == [600, 500, None]


def order_of(path: Path, raw_manifest: bytes, step: int) -> SendCheckpoint:
    """Return the command to send a checkpoint."""
    entry = waiting(str(path), raw_manifest)
    return SendCheckpoint(keys.nonce_of(entry.manifest), str(path), raw_manifest.decode(), entry.held, float(step), entry.manifest.n_bytes)


def test_a_mirror_that_lets_nobody_remove_still_gets_checkpoints(tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Any] = []
    denied, real = True, type(backend).remove

    def remove(self: Backend, key: str, upload_id: str = "") -> None:
        if denied:
            raise PermissionDenied(f"cannot remove: {key}", hint="")
        real(self, key, upload_id)

    monkeypatch.setattr(type(backend), "remove", remove)
    wake, stop = threading.Condition(), threading.Event()

    queue = UploadQueue()
    worker = MirrorWorker(
        backend,
        queue,
        mirrors=(backend.url,),
        job="job",
        emit=events.append,
        wake=wake,
        control=TransferControl(is_stopped=stop.is_set),
        keep=RetentionPolicy(1),
    )
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        for step in (700, 800, 900):
            denied = step < 900
            path = tmp_path / "ckpt" / f"step_{step}.pt"
            queue.add(order_of(path, save(path, 1000, step).read_bytes(), step))
            with wake:
                wake.notify_all()
            wait_for(lambda: not queue.entries(), "the upload, without a pause of a minute before it")
    finally:
        wait_for(lambda: worker.is_waiting, "the end of tidying up")
        stop.set()
        with wake:
            wake.notify_all()
        thread.join()
    troubles = [(type(event), event.what) for event in events if isinstance(event, MirrorAlert | MirrorRecovered)]
    assert troubles == [(MirrorAlert, "tidy"), (MirrorRecovered, "tidy")]
    assert [checkpoint.manifest.step for checkpoint in listing.newest_first(backend, "job")[0]] == [900]


@pytest.mark.parametrize(
    ("policy", "left"),
    [(RetentionPolicy(1), [600]), (RetentionPolicy(2), [600, 500]), (RetentionPolicy(1, 500), [600, 500])],
    ids=["one", "two", "one-and-the-first-of-each-500"],
)
def test_a_mirror_lets_go_of_what_prune_says_would_go(backend: Backend, policy: RetentionPolicy, left: list[int]) -> None:
    would = [checkpoint.location.key for checkpoint in removal.may_go(listing.newest_first(backend, "job")[0], policy)]
    events: list[Any] = []
    worker = MirrorWorker(
        backend,
        None,  # type: ignore[arg-type] -- tidying up needs no queue
        mirrors=(backend.url,),
        job="job",
        emit=events.append,
        wake=threading.Condition(),
        control=TransferControl(),
        keep=policy,
    )
    worker._tidy("")  # noqa: SLF001 -- what is done after each upload
    assert [event.key for event in events if isinstance(event, CopyPruned)] == would
    assert [checkpoint.manifest.step for checkpoint in listing.newest_first(backend, "job")[0]] == left
