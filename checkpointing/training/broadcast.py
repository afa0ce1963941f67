"""One read for all ranks: rank 0 reads what each of them needs, and sends it.

Of a file, torch.load of each rank reads what rank 0 sends (`shared_file`); of a state that is the same on all ranks, the others get the
tensors that rank 0 loaded (`share_state`).

Rank 0 sends a file in pieces, in the order of the file, by a gloo group: first the last piece, with torch's zip directory, then
from the beginning on. torch.load reads a file almost in that order. A rank receives the next piece when its torch.load asks for it, and
keeps a few: so no rank needs the whole file in memory, and none runs ahead. A later request for a dropped piece reads the disk.

    rank 0   pread piece 7 ─ send ─┐                    torch.load reads piece 7 from memory
    rank 1                         └─ receive piece 7   torch.load reads piece 7 from memory

Every rank takes part to the last piece, also one whose torch.load failed: the others wait for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from checkpointing.training.ranks import group_timeout

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE_BYTES: Final = 16 << 20
_WHOLE: Final = (torch.Tensor, torch.nn.Parameter)
_MOST_KEPT: Final = 3  # pieces, beside the first and the last: zip records are read with a look at the one before


class BroadcastError(OSError):
    """A piece did not come: rank 0 could not read it, or a rank is gone."""


class SharedFile(io.RawIOBase):
    """A file that all ranks read, and rank 0 from the disk. Each rank must read it to its end, or call `finish`."""

    def __init__(self, path: str, n_bytes: int, rank: int, group: Any) -> None:  # noqa: ANN401 -- torch's; None: the default group
        """Take the file at `path`, of `n_bytes`. Reads and sends nothing yet."""
        super().__init__()
        self._path, self._n_bytes, self._rank, self._group = path, n_bytes, rank, group
        self._fd = -1  # opened by the first read from the disk
        count = max(1, -(-n_bytes // PIECE_BYTES))
        self._coming = [count - 1, *range(count - 1)]  # the numbers of the pieces, in the order in which they are sent
        self._coming.reverse()
        self._edges = frozenset((0, count - 1))
        self._kept: dict[int, memoryview] = {}
        self._at = 0
        #: Why no piece comes any more.
        self.failure: BroadcastError | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the offset of the next read, in bytes."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the offset of the next read, in bytes, and return it."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._n_bytes}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 -- whatever has bytes to write to
        """Fill the buffer from the offset on, up to the end of the file; return how many bytes. Raises BroadcastError, OSError."""
        target = memoryview(buffer).cast("B")
        end = min(self._n_bytes, self._at + len(target))
        n_read = 0
        while self._at < end:
            number, within = divmod(self._at, PIECE_BYTES)
            length = min(PIECE_BYTES - within, end - self._at)
            target[n_read : n_read + length] = self._piece(number)[within : within + length]
            self._at += length
            n_read += length
        return n_read

    def finish(self) -> None:
        """Send or receive the rest, so that the other ranks can continue. Raises BroadcastError."""
        while self._coming and self.failure is None:
            self._next_piece()

    def close(self) -> None:
        """Close the file."""
        self._kept.clear()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        super().close()

    def _piece(self, number: int) -> memoryview:
        while number not in self._kept and number in self._coming:
            self._next_piece()
        if number in self._kept:
            return self._kept[number]
        return memoryview(self._read(number))  # it was let go: every rank has the file

    def _next_piece(self) -> None:
        if self.failure is not None:
            raise self.failure
        number = self._coming.pop()
        content = bytearray(self._length(number) + 1)  # the last byte: 1 for a piece that could not be read
        view = memoryview(content)
        cause: OSError | None = None
        if self._rank == 0:
            try:
                view[:-1] = self._read(number)
            except OSError as error:
                view[-1], cause = 1, error
        try:
            torch.distributed.broadcast(torch.frombuffer(content, dtype=torch.uint8), 0, group=self._group)
        except RuntimeError as error:
            self._fail(f"a rank is gone: {str(error).strip().partition(chr(10))[0]}", error)
        if view[-1]:
            self._fail("rank 0 could not read it" if cause is None else f"it could not be read: {cause.strerror or cause}", cause)
        old = [other for other in self._kept if other not in self._edges]
        if len(old) >= _MOST_KEPT:
            del self._kept[old[0]]
        self._kept[number] = view[:-1]

    def _fail(self, why: str, cause: BaseException | None) -> None:
        self.failure = BroadcastError(why)
        raise self.failure from cause

    def _length(self, number: int) -> int:
        return min(PIECE_BYTES, self._n_bytes - number * PIECE_BYTES)

    def _read(self, number: int) -> bytes:
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        content = b""
        begin, length = number * PIECE_BYTES, self._length(number)
        while len(content) < length:
            piece = os.pread(self._fd, length - len(content), begin + len(content))
            if not piece:
                raise BroadcastError("it became shorter while it was read")
            content += piece
        return content


@contextlib.contextmanager
def _group() -> Iterator[Any]:
    """Yield what sends from the memory of the CPU: None for the default process group, where that can, else a gloo group of its own."""
    if "cpu:gloo" in torch.distributed.get_backend_config():
        yield None
        return
    group = torch.distributed.new_group(backend="gloo", timeout=group_timeout())
    try:
        yield group
    finally:
        torch.distributed.destroy_process_group(group)


@contextlib.contextmanager
def shared_file(path: str, n_bytes: int, rank: int) -> Iterator[SharedFile]:
    """Yield a file of `n_bytes` as all ranks read it; at the end each has taken part to the last piece. Raises BroadcastError.

    Every rank must call it at the same place, after a meeting. No GPU is used.
    """
    with _group() as group, SharedFile(path, n_bytes, rank, group) as file:
        try:
            yield file
        except Exception:
            if file.failure is not None:  # torch says something else of it
                raise file.failure from None
            raise
        finally:
            file.finish()


def form_of(state: Any) -> str:  # noqa: ANN401 -- a state of any form
    """Return a digest of what a state is made of, the same on ranks with the same; "" where rank 0 cannot load it for all.

    That is so where anything in it is a shard, or has a state of its own.
    """
    leaves, spec = tree_flatten(state)
    if any(isinstance(leaf, torch.Tensor) and type(leaf) not in _WHOLE for leaf in leaves):
        return ""
    if any(hasattr(leaf, "load_state_dict") or hasattr(leaf, "local_shards") for leaf in leaves):
        return ""
    forms = [f"{leaf.dtype} {tuple(leaf.shape)}" if isinstance(leaf, torch.Tensor) else type(leaf).__name__ for leaf in leaves]
    return hashlib.sha256(repr((str(spec), forms)).encode()).hexdigest()


def share_state(state: dict[str, Any], rank: int) -> dict[str, Any]:
    """Return the state of rank 0 on all ranks: its tensors are copied into those of the others, one after the other.

    Every rank must call it at the same place, with a state of the same form (`form_of`). Raises BroadcastError.
    """
    leaves, spec = tree_flatten(state)
    with _group() as group, torch.no_grad():
        try:
            others = [[leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]]
            torch.distributed.broadcast_object_list(others, 0, group=group, device=torch.device("cpu"))
            values = iter(others[0])
            for place, leaf in enumerate(leaves):
                if not isinstance(leaf, torch.Tensor):
                    leaves[place] = next(values)
                    continue
                content = torch.empty(leaf.shape, dtype=leaf.dtype, device="cpu") if rank else leaf.detach().cpu().contiguous()
                if content.numel():
                    torch.distributed.broadcast(content.reshape(-1).view(torch.uint8), 0, group=group)  # gloo knows few types of numbers
                if rank:
                    leaf.copy_(content)
        except RuntimeError as error:
            raise BroadcastError(f"a rank is gone: {str(error).strip().partition(chr(10))[0]}") from error
    shared: dict[str, Any] = tree_unflatten(leaves, spec)
    return shared
