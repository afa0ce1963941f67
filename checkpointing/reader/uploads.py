"""The uploads of the reader process: a worker for each mirror, and the queue that they share."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from checkpointing.io.reader import CHUNK_BYTES, Throttle
from checkpointing.manifest import documents
from checkpointing.mirror.backends import S3Options
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.mirror.source import TransferControl
from checkpointing.model import Verdict
from checkpointing.reader.messages import Configure, MirrorAlert, SendCheckpoint
from checkpointing.reader.mirror_worker import MirrorWorker, Sending
from checkpointing.reader.part_buffer import PartBuffer, PartSink
from checkpointing.reader.upload_queue import UploadQueue
from checkpointing.retention import rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from checkpointing.reader.messages import CheckpointRead, ReadCheckpoint, ReaderEvent

_MIB: Final = 1 << 20
_JOIN_S: Final = 5.0


class Uploads:
    """Sends checkpoints to the mirrors, in threads of its own."""

    def __init__(self, configuration: Configure, emit: Callable[[ReaderEvent], None], stop: threading.Event) -> None:
        """Open the mirrors. Raises CheckpointingError, OSError; TypeError for unknown options of S3."""
        self._emit = emit
        self._stop = stop
        self._wake = threading.Condition()
        self._buffer = PartBuffer()
        self._passed: dict[str, list[Sending]] = {}  # by key: what a pass has begun to send, and nobody completes yet
        self._abandoning: list[threading.Thread] = []
        self._max_waiting_entries = configuration.most_waiting
        options = S3Options(**configuration.s3, connections=configuration.workers)
        backends = [open_backend(url, options) for url in configuration.mirrors]
        self._queue = UploadQueue()
        cap = configuration.bandwidth_mib_s * _MIB
        # small pieces, so that the cap holds over fractions of a second and a stop takes effect soon
        throttle = Throttle(cap, burst_bytes=CHUNK_BYTES, wait=stop.wait) if cap else None
        control = TransferControl(
            workers=configuration.workers,
            throttle=throttle.take if throttle is not None else lambda _n_bytes: None,
            pause=stop.wait,
            is_stopped=stop.is_set,
        )
        keep = rules.RetentionPolicy(configuration.keep, configuration.keep_every) if configuration.keep else None
        self.urls = tuple(backend.url for backend in backends)
        self._workers = [
            MirrorWorker(
                backend,
                self._queue,
                mirrors=self.urls,
                job=configuration.job,
                emit=emit,
                wake=self._wake,
                control=control,
                keep=keep,
                begun=self._sending,
                is_wanted=self._is_wanted,
            )
            for backend in backends
        ]
        self._threads = [threading.Thread(target=worker.run, name="worker", daemon=True) for worker in self._workers]

    def start(self) -> None:
        """Start to send what waits."""
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """End, after `stop` was set: unsent parts wait for the next process."""
        with self._wake:
            self._wake.notify_all()
        _join((*self._threads, *self._abandoning), _JOIN_S)

    def send(self, order: SendCheckpoint) -> None:
        """Hold a checkpoint, to be sent some time."""
        try:
            self._queue.add(order)
        except (ValueError, documents.ManifestDamaged) as error:
            message = f"cannot mirror: {order.path}: {error}"
            self._emit(MirrorAlert("refused", "", message, "report this: the manifest does not belong to it", order.path, order.id))
            return
        with self._wake:
            self._wake.notify_all()
        # a pin keeps the disk space of a file that the job has removed, so few may wait
        for old in self._queue.drop_waiting(self._max_waiting_entries, self.urls):
            trouble = next((worker.trouble for worker in self._workers if worker.trouble is not None), None)
            why, hint = trouble or ("the uploads are slower than the saves", "raise bandwidth_mib_s, or save less often")
            message = f"{old.order.path} is dropped from the mirror's queue, because newer checkpoints wait: {why}"
            self._emit(MirrorAlert("dropped", "", message, hint, old.order.path, old.order.id))

    def begun(self, order: ReadCheckpoint) -> PartSink | None:
        """Begin to send a checkpoint while it is read; None if no mirror takes anything now, or it waits already."""
        workers = [worker for worker in self._workers if worker.trouble is None]
        if not workers or any(entry.key == order.key for entry in self._queue.entries()):
            return None
        sink = PartSink(order.path, self._buffer)
        sendings = [worker.begin(order.path, order.key, sink.released) for worker in workers]
        sink.uploads = [sending.upload for sending in sendings]
        with self._wake:
            self._passed[order.key] = sendings
        return sink

    def passed(self, order: ReadCheckpoint, answer: CheckpointRead | None) -> None:
        """Keep the begun upload for the order to send it, or abandon it if the checkpoint is bad. answer: None if the read was given up."""
        if answer is not None and answer.manifest:
            return
        with self._wake:
            sendings = self._passed.pop(order.key, [])
        is_unknown = answer is not None and answer.verification is not None and answer.verification.verdict is Verdict.UNKNOWN
        # a checkpoint that was given up or could not be read may be read again: its parts are continued by the key
        if answer is not None and not is_unknown:
            self._abandon(sendings)

    def drop_passed(self, read_now: str = "") -> None:
        """Abandon the parts that a pass sent without need. read_now: the key of which a read begins, which continues."""
        with self._wake:
            goes_on = {read_now, *(entry.key for entry in self._queue.entries())}
            dropped = [self._passed.pop(key) for key in list(self._passed) if key not in goes_on]
        for sendings in dropped:
            self._abandon(sendings)

    def _abandon(self, sendings: list[Sending]) -> None:
        """Abandon uploads, in threads: no read waits for a mirror."""
        threads = [threading.Thread(target=sending.worker.abandon, args=(sending,), name="abandon", daemon=True) for sending in sendings]
        for thread in threads:
            thread.start()
        with self._wake:
            self._abandoning = [*threads, *(thread for thread in self._abandoning if thread.is_alive())]

    def _is_wanted(self, key: str) -> bool:
        with self._wake:
            return key in self._passed or any(entry.key == key for entry in self._queue.entries())

    def _sending(self, key: str, worker: MirrorWorker) -> Sending | None:
        """Return what a pass has begun of a checkpoint to one mirror, once; None for nothing."""
        with self._wake:
            sendings = self._passed.get(key, [])
            sending = next((sending for sending in sendings if sending.worker is worker), None)
            if sending is not None:
                sendings.remove(sending)
            if not sendings:
                self._passed.pop(key, None)
        return sending

    def finish(self, deadline_s: float) -> None:
        """End the pauses, and wait until every worker is idle, or until the time is up. One whose mirror is away tries on.

        Uploads that no one will complete are abandoned meanwhile.
        """
        until = time.monotonic() + deadline_s
        self.drop_passed()
        with self._wake:
            for worker in self._workers:
                worker.retry_now = True
            self._wake.notify_all()
            self._wake.wait_for(
                lambda: all(worker.is_waiting and not worker.retry_now and not worker.is_away for worker in self._workers), deadline_s
            )
        _join(self._abandoning, until - time.monotonic())


def _join(threads: Iterable[threading.Thread], within_s: float) -> None:
    until = time.monotonic() + within_s
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
