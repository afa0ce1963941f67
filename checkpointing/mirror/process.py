"""Uploads checkpoints to mirrors, as a process: `python -P -m checkpointing.mirror.process`, with the lines of JSON of messages.py.

It runs beside the training and must not slow it: low priority, a cap on bandwidth, pages dropped from the cache, and memory that does not
grow with the size of a checkpoint. A request is on disk (checkpointing/mirror/spool.py) before it is acknowledged. After a kill at any byte
the next process continues. It ends at the end of stdin, so it does not outlive its supervisor.

Exit code 0 after stop or the end of stdin; 78 if the configuration is wrong; 75 after an alert "held": a later start may succeed, because
the process that has the spool ends with its own supervisor.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from checkpointing.io.reader import CHUNK_BYTES, Throttle
from checkpointing.manifest import documents as manifests
from checkpointing.mirror.backends import Backend, S3Options
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.mirror.spool import Spool, SpoolBusy
from checkpointing.mirror.upload import TransferControl
from checkpointing.mirror.worker import MirrorWorker
from checkpointing.model import CheckpointingError
from checkpointing.retention import rules

if TYPE_CHECKING:
    from typing import TextIO

    from checkpointing.mirror.messages import MirrorAlert, MirrorCommand, MirrorConfiguration, MirrorEvent

_NICE: Final = 15
_MIB: Final = 1 << 20
_CONFIG_EXIT: Final = 78
_HELD_EXIT: Final = 75
_SPOOL_ENTRIES: Final = 3
_JOIN_S: Final = 5.0


class MirrorProcess:
    """Owns the workers, the spool and the output. One per process."""

    def __init__(self, row: MirrorConfiguration, out: TextIO) -> None:
        """Configure. Raises CheckpointingError, OSError; KeyError, TypeError or ValueError if the configuration is incomplete or wrong."""
        self._out = out
        self._writing = threading.Lock()
        self._wake = threading.Condition()
        self._stop = threading.Event()
        self._max_waiting_entries = int(row.get("spool_entries") or _SPOOL_ENTRIES)
        self._spool = Spool(str(row["spool"]))
        options = S3Options(**row.get("s3", {}), connections=int(row.get("workers", 4)))
        backends: list[Backend] = [open_backend(str(url), options) for url in row["mirrors"]]
        cap = row.get("bandwidth_mib_s")
        # small pieces, so that the cap holds over fractions of a second and a stop takes effect soon
        throttle = Throttle(float(cap) * _MIB, burst_bytes=CHUNK_BYTES, wait=self._stop.wait) if cap else None
        control = TransferControl(
            workers=int(row.get("workers", 4)),
            throttle=throttle.take if throttle is not None else lambda _n_bytes: None,
            pause=self._stop.wait,
            is_stopped=self._stop.is_set,
        )
        keep = rules.RetentionPolicy(n_kept, row.get("keep_every")) if (n_kept := row.get("keep")) else None
        self._urls = tuple(backend.url for backend in backends)
        self._workers = [
            MirrorWorker(
                backend,
                self._spool,
                mirrors=self._urls,
                job=str(row["job"]),
                emit=self.emit,
                wake=self._wake,
                control=control,
                keep=keep,
            )
            for backend in backends
        ]

    def emit(self, event: MirrorEvent) -> None:
        """Write an event. A closed pipe is ignored: stdin ends at the same time."""
        with self._writing, contextlib.suppress(BrokenPipeError):
            self._out.write(json.dumps(event) + "\n")
            self._out.flush()

    def serve(self, lines: TextIO) -> None:
        """Execute the commands until the lines end."""
        self.emit({"ev": "ready", "mirrors": list(self._urls), **self._spool.left()})
        threads = [threading.Thread(target=worker.run, name="worker", daemon=True) for worker in self._workers]
        threads.append(threading.Thread(target=self._report_idle, name="idle", daemon=True))
        for thread in threads:
            thread.start()
        for line in lines:
            try:
                command: MirrorCommand = json.loads(line)
                if command["cmd"] == "stop":
                    break
                if command["cmd"] == "mirror":
                    self._take(command["path"], command["step"], command["manifest"])
                elif command["cmd"] == "retry":
                    self._retry_now()
                elif command["cmd"] == "finish":
                    self._retry_now()
                    self._wait_idle(float(command["deadline_s"]))
                    break
            except (ValueError, KeyError, TypeError) as error:
                message = f"cannot follow a command: {line.strip()[:200]}: {type(error).__name__}: {error}"
                self._refuse(message, "report this: the supervisor wrote a wrong command", "")
        self._stop.set()
        with self._wake:
            self._wake.notify_all()
        until = time.monotonic() + _JOIN_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        self.emit({"ev": "stopped", **self._spool.left()})

    def _take(self, path: str, step: int | None, manifest: str) -> None:
        try:
            entry = self._spool.add(path, step, manifest.encode("ascii"))
        except (OSError, manifests.ManifestDamaged) as error:
            self._refuse(f"cannot mirror: {path}: {error}", "check that the path exists and that the manifest belongs to it", path)
            return
        with self._wake:
            self._wake.notify_all()
        self.emit({"ev": "spooled", "path": path, "step": step, "id": entry.id, "pin": entry.how, **self._spool.left()})
        # a pin keeps the disk space of a file that the job has removed, so few may wait
        for old in self._spool.drop_waiting(self._max_waiting_entries, self._urls):
            trouble = next((worker.trouble for worker in self._workers if worker.trouble is not None), None)
            why, hint = trouble or ("the uploads are slower than the saves", "raise bandwidth_mib_s, or save less often")
            message = f"{old.path} is dropped from the mirror's queue, because newer checkpoints wait: {why}"
            dropped: MirrorAlert = {"ev": "alert", "what": "dropped", "mirror": "", "message": message, "hint": hint}
            self.emit({**dropped, "path": old.path, "id": old.id})

    def _retry_now(self) -> None:
        with self._wake:
            for worker in self._workers:
                worker.retry_now = True
            self._wake.notify_all()

    def _wait_idle(self, deadline_s: float) -> None:
        """Wait until every worker is idle and none has a pending retry, or until the time is up. One whose mirror is away tries on."""
        with self._wake:
            self._wake.wait_for(
                lambda: all(worker.is_waiting and not worker.retry_now and not worker.is_away for worker in self._workers), deadline_s
            )

    def _refuse(self, message: str, hint: str, path: str) -> None:
        alert: MirrorAlert = {"ev": "alert", "what": "refused", "mirror": "", "message": message, "hint": hint}
        self.emit({**alert, "path": path, "left": len(self._spool.entries())})

    def _report_idle(self) -> None:
        """Emit `idle` each time all workers have become idle.

        The number of waits is compared, so a worker that worked only for a moment counts too.
        """
        reported = 0
        while True:
            with self._wake:
                while not self._stop.is_set() and (self._n_waits() == reported or not all(worker.is_waiting for worker in self._workers)):
                    self._wake.wait()
                reported = self._n_waits()
            if self._stop.is_set():
                return
            self.emit({"ev": "idle", **self._spool.left()})

    def _n_waits(self) -> int:
        return sum(worker.n_waits for worker in self._workers)


def main() -> int:
    """Run the process; return its exit code."""
    os.nice(_NICE)  # the I/O priority follows it, where the scheduler has one
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of a library must not mix with the events
    try:
        mirror = MirrorProcess(json.loads(sys.stdin.readline()), out)
    except (CheckpointingError, OSError, ValueError, KeyError, TypeError) as error:
        hint = error.hint if isinstance(error, CheckpointingError) else "report this: the first line must be a configuration"
        held = isinstance(error, SpoolBusy)
        message = error.message if isinstance(error, SpoolBusy) else f"cannot mirror: {error}"
        alert: MirrorAlert = {"ev": "alert", "what": "held" if held else "refused", "mirror": "", "message": message, "hint": hint}
        out.write(json.dumps(alert) + "\n")
        out.flush()
        return _HELD_EXIT if held else _CONFIG_EXIT
    mirror.serve(sys.stdin)
    out.flush()
    os._exit(0)  # a thread may still wait for a mirror that does not answer


if __name__ == "__main__":
    sys.exit(main())
