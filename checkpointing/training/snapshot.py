"""Snapshots of a training's state in shared memory: taken at the speed of memory, kept when the trainer is killed.

    with Snapshotter("ckpt", persist_every=10) as snapshotter:
        for step in range(start, steps):
            ...
            snapshotter.snapshot({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step=step)

A snapshot fills one of two slots of a segment (checkpointing/training/snapshot_layout.py). Every `persist_every`-th one is also written to
disk, to `<directory>/step-00000100.snapshot.pt`, by a process of its own (checkpointing/training/snapshot_writer.py). After a kill of the
trainer, `load_latest`, the supervisor or `python -m checkpointing.training.snapshot_writer` write the newest whole slot to disk.

In torch.distributed rank 0 alone takes snapshots, for replicas are equal; on other ranks every call does nothing. It is made for one
thread: the training loop calls; in a forked child every call does nothing. A thread of low priority computes the CRCs and starts the
writer; the lock is between those two.

The memory goes when the training ends as it should: at the end of the `with`, by `close()`, or at the exit of the interpreter. What is not
on disk yet is written first. An exception or the process's death leaves it for the next start.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import io
import mmap
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import torch

from checkpointing.io import durable, memory_room
from checkpointing.model import CheckpointingError
from checkpointing.training import snapshot_layout, snapshot_writer
from checkpointing.training.save import step_of
from checkpointing.training.snapshot_layout import Layout

_PROTOCOL: Final = 2  # torch.save's own
_NICE: Final = 10
_SLACK: Final = 65536
_CRC_PIECE_BYTES: Final = 4 << 20
_WRITER_S: Final = 3600.0
_LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class _Pickled:
    """A state taken apart as torch.save does it: the pickle, and the storages that it refers to by their number."""

    data: bytes
    storages: tuple[torch.UntypedStorage, ...]
    records: tuple[tuple[str, int, int], ...]  # (name, offset from the slot's data, bytes)
    size: int


@dataclass(slots=True)
class _Memory:
    """A segment of ours: mapped, locked, and all its pages present."""

    path: str
    layout: Layout
    fd: int
    map: mmap.mmap
    view: memoryview
    pinned_at: int = 0  # where CUDA knows it, the address of the mapping

    def free(self) -> None:
        """Return everything back. What still looks into the mapping keeps it until it lets go."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)  # noqa: PTH108 -- paths are plain strings throughout the package
        if self.pinned_at:
            torch.cuda.cudart().cudaHostUnregister(self.pinned_at)  # type: ignore[no-untyped-call]
        self.view.release()
        with contextlib.suppress(BufferError):
            self.map.close()
        os.close(self.fd)


class Snapshotter:
    """Takes snapshots for one directory. See the module's head; make one per training."""

    def __init__(
        self, directory: str | os.PathLike[str], *, persist_every: int = 0, keep: int = snapshot_writer.KEEP, shm: str = snapshot_layout.SHM
    ) -> None:
        """Make the directory where it is missing. `persist_every` 0: none goes to disk while the training lives; `keep` of them stay."""
        if keep < 1:
            raise CheckpointingError(f"snapshots cannot be taken: keep={keep} leaves none", hint="give keep= a number of at least 1")
        self._directory = os.path.realpath(os.fsdecode(directory))
        self._shm, self._persist_every, self._keep = shm, persist_every, keep
        self._memory: _Memory | None = None
        self._retired: _Memory | None = None  # the one before, until this one holds a snapshot
        self._taken = 0
        self._newest = -1  # the slot of the newest whole snapshot
        self._on_disk = 0  # the number of the newest that is
        self._problem = ""
        self._due = False  # the thread's own
        self._lock = threading.Lock()
        self._writer: tuple[subprocess.Popen[bytes], int, int] | None = None  # the process, its slot, the snapshot's number
        self._jobs: queue.SimpleQueue[tuple[_Memory, int, int, tuple[tuple[str, int, int], ...], bool] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._active = _rank() == 0
        if self._active:
            durable.make_directory(self._directory, 0o777)
            atexit.register(self._at_exit)

    def __enter__(self) -> Self:
        """Return the snapshotter itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        """Free the memory where the training ended as it should; else leave it for whoever writes it to disk."""
        if kind is None:
            self.close()
        else:
            self._finish()

    @property
    def problem(self) -> str:
        """What kept the newest attempt to write a snapshot to disk from it; "" where nothing did."""
        with self._lock:
            self._poll()
            return self._problem

    def prepare(self, state: Any) -> None:  # noqa: ANN401 -- whatever torch.save takes
        """Make room for a state like this one ahead of time: the first snapshot of a size takes much longer than the following."""
        if self._active and self._pid == os.getpid():
            self._room_for(_take_apart(state))

    def snapshot(self, state: Any, *, step: int) -> None:  # noqa: ANN401 -- whatever torch.save takes
        """Copy `state` into the older slot; it may be changed as soon as this returns. Raises CheckpointingError where there is no room."""
        if not self._active or self._pid != os.getpid():
            return
        step = step_of(step, f"snapshot was not made: {self._directory}")
        pickled = _take_apart(state)
        memory = self._room_for(pickled)
        with self._lock:
            self._poll()
            # the slot that a writer reads is left alone: then the other one is replaced again, and the writer's is the one that is whole
            index = 1 - (self._writer[1] if self._writer is not None else self._newest) if self._newest >= 0 else 0
            at = memory.layout.slots[index]
            snapshot_layout.invalidate(memory.view, at)
        _copy(pickled, memory, at + memory.layout.data)
        self._taken += 1
        meta = snapshot_layout.encode_meta(list(pickled.records), pickled.data)
        snapshot_layout.complete(memory.view, at, memory.layout, self._taken, step, time.time(), len(pickled.records), meta)
        self._newest = index
        if self._retired is not None:
            self._retired.free()
            self._retired = None
        due = self._persist_every > 0 and self._taken % self._persist_every == 0
        self._start_thread()
        self._jobs.put((memory, index, self._taken, pickled.records, due))

    def settle(self) -> None:
        """Wait until nothing goes on in the background: CRCs, and a write to disk."""
        self._finish()

    def close(self) -> None:
        """Wait for a write to disk that is under way, then free the memory. Snapshots not on disk are lost: the training is over."""
        self._finish()
        for memory in (self._memory, self._retired):
            if memory is not None and self._pid == os.getpid():
                memory.free()
        self._memory = self._retired = None
        atexit.unregister(self._at_exit)

    # memory

    def _room_for(self, pickled: _Pickled) -> _Memory:
        """Return a segment that this state fits into; a new one takes the old one's place when it holds a snapshot itself."""
        old = self._memory
        meta_bytes = len(snapshot_layout.encode_meta(list(pickled.records), pickled.data))
        if old is not None:
            layout = old.layout
            room = layout.data - layout.meta
            fits = pickled.size <= layout.data_bytes and meta_bytes <= room and 4 * len(pickled.records) <= layout.meta - layout.crcs
            if fits:
                return old
            self._finish()
        layout = snapshot_layout.Layout.of(self._directory, len(pickled.records), 2 * meta_bytes + _SLACK, pickled.size)
        if old is not None and (self._newest < 0 or not _fits_beside(layout, old, self._shm)):
            self._memory = None
            old.free()
            old = None
        self._memory = _allocate(layout, self._shm)
        self._retired = self._retired or old  # it holds the only snapshot until the new one has one
        self._newest = -1
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            _pin(self._memory)
        return self._memory

    # the thread

    def _start_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="checkpointing-snapshot", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)  # of this thread alone
        while (job := self._jobs.get()) is not None:
            memory, index, seq, records, due = job
            self._due = self._due or due  # what could not be written in its turn makes the next one due
            if (self._due or seq == self._taken) and self._sum(memory, index, seq, records) and self._due:
                self._write(memory, index, seq)

    def _sum(self, memory: _Memory, index: int, seq: int, records: tuple[tuple[str, int, int], ...]) -> bool:
        """Compute the CRCs of a slot; False where it was replaced meanwhile."""
        at = memory.layout.slots[index]
        crcs = []
        for _, offset, size in records:
            crc, begin = 0, at + memory.layout.data + offset
            for start in range(begin, begin + size, _CRC_PIECE_BYTES):
                if not self._holds(memory, index, seq):
                    return False
                with memory.view[start : min(begin + size, start + _CRC_PIECE_BYTES)] as piece:
                    crc = zlib.crc32(piece, crc)
            crcs.append(crc)
        with self._lock:
            if not self._holds(memory, index, seq):
                return False
            snapshot_layout.set_crcs(memory.view, at, memory.layout, seq, crcs)
        return True

    @staticmethod
    def _holds(memory: _Memory, index: int, seq: int) -> bool:
        return snapshot_layout.seq_of(memory.view, memory.layout.slots[index]) == seq

    def _write(self, memory: _Memory, index: int, seq: int) -> None:
        """Start a process that writes this slot to disk when the one before has ended, unless the slot is replaced or a newer one waits."""
        while seq == self._taken:
            with self._lock:
                self._poll()
                if not self._holds(memory, index, seq):
                    return
                if self._writer is None:
                    self._start_writer(memory, index, seq)
                    self._due = False
                    return
            time.sleep(_LOOK_S)

    def _start_writer(self, memory: _Memory, index: int, seq: int) -> None:
        """Called with the lock."""
        home = str(Path(__file__).parents[2])
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))}
        arguments = (memory.path, str(index), str(seq), str(_NICE), str(self._keep))
        words = [sys.executable, "-P", "-m", "checkpointing.training.snapshot_writer", "--segment", *arguments]
        try:
            process = subprocess.Popen(  # noqa: S603 -- ourselves
                words, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
        except OSError as error:
            self._problem = f"the writer could not be started: {error.strerror}"
        else:
            self._writer = (process, index, seq)

    def _poll(self) -> None:
        """Take note of a writer that ended. Called with the lock."""
        if self._writer is not None and self._writer[0].poll() is not None:
            process, _, seq = self._writer
            self._writer = None
            errors = process.stderr.read().decode(errors="replace").strip() if process.stderr is not None else ""
            if process.stderr is not None:
                process.stderr.close()
            self._problem = "" if process.returncode == 0 else errors or f"the writer ended with {process.returncode}"
            if process.returncode == 0:
                self._on_disk = max(self._on_disk, seq)

    def _finish(self) -> None:
        """Wait for the thread and the writer."""
        if self._pid != os.getpid():
            return  # a forked child: neither is its own
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        with self._lock:
            if self._writer is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._writer[0].wait(_WRITER_S)
                self._poll()

    def _at_exit(self) -> None:
        """End as the script did: an exception that nobody caught leaves the memory for the next start."""
        if self._pid != os.getpid() or self._memory is None:
            return
        self._finish()
        died = getattr(sys, "last_exc", None) is not None or getattr(sys, "last_value", None) is not None
        if died:
            return
        if self._on_disk < self._taken:
            # through the file system again, for closing a second descriptor gives up the lock: nothing else is left to be done here
            try:
                if snapshot_writer.persist(self._memory.path, keep=self._keep).problem:
                    return
            except OSError:  # a full disk: the memory stays for the next start
                return
        self.close()


# taking a state apart


class _Pickler(pickle.Pickler):
    """torch.save's pickler: the objects go into the pickle, the storages beside it. See torch/serialization.py, _save."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=_PROTOCOL)
        self.keys: dict[int, str] = {}
        self.storages: list[torch.UntypedStorage] = []

    def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:  # noqa: ANN401 -- pickle's
        if isinstance(obj, torch.storage.TypedStorage):
            storage: torch.UntypedStorage = obj._untyped_storage  # noqa: SLF001 -- as torch.save does; so are those below
            kind = getattr(torch, obj._pickle_storage_type())  # type: ignore[no-untyped-call] # noqa: SLF001
            count = obj._size()  # type: ignore[no-untyped-call] # noqa: SLF001
        elif isinstance(obj, torch.UntypedStorage):
            storage, kind, count = obj, torch.UntypedStorage, obj.nbytes()
        else:
            return None
        number = storage._cdata  # noqa: SLF001
        if number not in self.keys:
            self.keys[number] = str(len(self.storages))
            self.storages.append(storage)
        return ("storage", kind, self.keys[number], torch.serialization.location_tag(storage), count)


def _take_apart(state: Any) -> _Pickled:  # noqa: ANN401 -- whatever torch.save takes
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.dump(state)
    records, at = [], 0
    for number, storage in enumerate(pickler.storages):
        records.append((f"data/{number}", at, storage.nbytes()))
        at = snapshot_layout.up(at + storage.nbytes(), snapshot_layout.ALIGN)
    return _Pickled(buffer.getvalue(), tuple(pickler.storages), tuple(records), at)


def _copy(pickled: _Pickled, memory: _Memory, base: int) -> None:
    """Copy the storages: torch's own copy uses its threads, and from a GPU the copy engine where the memory is pinned."""
    devices = set()
    for storage, (_, offset, size) in zip(pickled.storages, pickled.records, strict=True):
        if not size:
            continue
        source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        target = torch.frombuffer(memory.map, dtype=torch.uint8, count=size, offset=base + offset)
        on_cpu = storage.device.type == "cpu"
        target.copy_(source, non_blocking=bool(memory.pinned_at) and not on_cpu)
        if not on_cpu:
            devices.add(storage.device)
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


# memory


def _allocate(layout: Layout, shm: str) -> _Memory:
    """Make a segment with all its pages, so that no snapshot waits for one and none ends in SIGBUS."""
    need = layout.size
    room, limit = memory_room.room_bytes(shm)
    if need > room:
        raise _no_room(layout, f"{limit} has {room / 2**30:.2f} GiB left")
    path = snapshot_layout.new_path(layout.directory, shm)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        snapshot_layout.lock(fd)
        os.posix_fallocate(fd, 0, need)
        memory = mmap.mmap(fd, need, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        os.unlink(path)  # noqa: PTH108 -- as above
        os.close(fd)
        raise _no_room(layout, error.strerror or str(error)) from error
    view = memoryview(memory)
    head = layout.encode()
    view[: len(head)] = head
    return _Memory(path, layout, fd, memory, view)


def _fits_beside(layout: Layout, old: _Memory, shm: str) -> bool:
    """Return whether there is room for a new segment with the old one still there. Raises CheckpointingError where not even without it."""
    room, limit = memory_room.room_bytes(shm)
    if layout.size > room + old.layout.size:
        raise _no_room(layout, f"{limit} has {(room + old.layout.size) / 2**30:.2f} GiB left, with the smaller two given back")
    return layout.size <= room


def _no_room(layout: Layout, cause: str) -> CheckpointingError:
    message = f"snapshot was not made: {layout.directory}: two slots need {layout.size / 2**30:.2f} GiB of shared memory: {cause}"
    return CheckpointingError(
        message, hint="enlarge it (mount -o remount,size=… /dev/shm; docker run --shm-size=…), or use checkpointing.save"
    )


def _pin(memory: _Memory) -> None:
    """Register the memory with CUDA; if CUDA refuses, copies are slower and nothing else."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory.map))
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    if int(runtime.cudaHostRegister(address, memory.layout.size, 0)) == 0:
        memory.pinned_at = address


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    try:
        return int(os.environ.get("RANK", "0"))
    except ValueError:
        return 0
