"""Saves so that a kill at any moment leaves the old checkpoint or the new one, whole.

    save(state, "ckpt", step=step)                   ckpt/step-00000100.pt, written by rank 0
    save(state, "ckpt", step=step, sharded=True)     ckpt/step-00000100/, every rank's own part, through torch.distributed.checkpoint
    save(state, "ckpt/last.pt")                      exactly this file

In torch.distributed every rank must call it at the same place; outside, each process that calls it saves. A failure of one rank is raised
on all (checkpointing/training/ranks.py): there as it was, elsewhere as CheckpointingError. An error of the disk is a CheckpointingError
everywhere.
"""

from __future__ import annotations

import contextlib
import errno
import operator
import os
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any, Final

import torch

from checkpointing.io import durable, staging
from checkpointing.model import CheckpointingError
from checkpointing.training.ranks import Ranks, ranks

if TYPE_CHECKING:
    from torch.distributed.checkpoint.api import CheckpointException

    from checkpointing.io.staging import Staged

_NAME: Final = re.compile(r"step-(\d{8,18})(\.pt)?")
_MOST_STEPS: Final = 10**18  # what such a name has room for
_METADATA: Final = ".metadata"  # of DCP: without it a directory is not a checkpoint of `save`
_PROBE_BYTES: Final = 4 << 20
_FREE_SPACE: Final = "free space there, or save elsewhere; the checkpoints that were there are untouched"
_ELSEWHERE: Final = "give save a path that can be written to; the checkpoints that were there are untouched"
_NOT_SHARED: Final = "a sharded save needs a file system that all nodes share: give save a path on one, or save whole with sharded=False"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def save(  # noqa: PLR0913 -- each is a choice of its own, and all but two have a default
    state: Any,  # noqa: ANN401 -- whatever torch.save takes
    path: str | os.PathLike[str],
    *,
    step: int | None = None,
    sharded: bool = False,
    keep: int | None = None,
    timeout_s: float | None = None,
) -> str:
    """Save `state` atomically and durably, and return the absolute path on every rank.

    In torch.distributed every rank must call it: rank 0 writes the file; with `sharded` each rank writes its own part. A sharded save
    replaces a sharded checkpoint, and no other directory or file.

    path: the file or directory to write. With `step`, an integer from 0 on, the directory that holds it, which is made where it is missing;
    the name is step-00000100(.pt). keep: of the checkpoints with such names only the newest `keep` stay; the one just saved always does.
    timeout_s: seconds that ranks wait for one that does not come, after a warning; None is the time limit of the process group.

    Raises CheckpointingError where it is not saved, ranks do not come or another rank failed, and on the rank that failed its own error.

        save({"model": model.state_dict(), "step": step}, "ckpt", step=step, keep=3)
    """
    final = target_of(os.fspath(path), step, sharded=sharded)
    together = ranks(f"checkpoint was not saved: {final}", timeout_s, call="save")
    with together.together():
        if keep is not None and (keep < 1 or step is None):
            message = f"checkpoint was not saved: {final}: keep={keep} {'needs step=' if step is None else 'leaves none'}"
            raise CheckpointingError(message, hint="give keep= a number of at least 1, together with step=")
        if not sharded and has_shards(state):
            message = f"checkpoint was not saved: {final}: the state is in shards (DTensor), and this file would hold those of rank 0 alone"
            raise CheckpointingError(message, hint="give save sharded=True")
        if together.rank:
            _help(state, final, together, sharded=sharded)
            return final
        try:
            _make_room(final)
            if sharded:
                _refuse_a_stranger(final)
                _save_sharded(state, final, together)
            else:
                with staging.new_file(final) as place:
                    _write(state, place)
                    staging.put(place)
        except OSError as error:
            raise CheckpointingError(f"checkpoint was not saved: {final}: {error.strerror or error}", hint=_hint(error)) from error
        if keep is not None and step is not None:
            with contextlib.suppress(OSError):  # the checkpoint is there; a failed removal is tried again at the next save
                prune(os.path.dirname(final), keep, step)  # noqa: PTH120 -- paths are plain strings throughout the package
        together.meet()  # everybody continues when the checkpoint is there, and not before
    return final


def target_of(path: str, step: int | None, *, sharded: bool = False) -> str:
    """Return the absolute path that a save with these arguments writes."""
    path = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 -- as above
    if step is None:
        return path
    step = step_of(step, f"checkpoint was not saved: {path}")
    return os.path.join(path, f"step-{step:08d}" if sharded else f"step-{step:08d}.pt")  # noqa: PTH118 -- as above


def step_of(step: Any, failure: str) -> int:  # noqa: ANN401 -- whatever a script counts with
    """Return a step that a name has room for, from any kind of integer. Raises CheckpointingError that begins with `failure`."""
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if not 0 <= number < _MOST_STEPS:
        raise CheckpointingError(f"{failure}: step={step!r} is not a step", hint="give step= an integer of at least 0")
    return number


def has_shards(state: Any) -> bool:  # noqa: ANN401 -- as in save
    """Return whether any tensor of a state is a part of one that is spread over ranks."""
    tensor = sys.modules.get("torch.distributed.tensor")  # without it there are none
    if tensor is None:
        return False
    if isinstance(state, dict):
        return any(has_shards(value) for value in state.values())
    if isinstance(state, list | tuple):
        return any(has_shards(value) for value in state)
    return isinstance(state, tensor.DTensor) and state.device_mesh.size() > 1


def prune(directory: str, keep: int, step: int) -> list[str]:
    """Remove what `save` named in `directory`, except the `keep` newest up to `step`, and return the paths; later steps stay.

    A directory without DCP's `.metadata` is not of `save`, whatever its name.
    """
    saved: list[tuple[int, str]] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match and not entry.is_symlink() and int(match[1]) <= step and (match[2] or _is_sharded(entry.path)):
                saved.append((int(match[1]), entry.path))
    kept = set(sorted({at for at, _ in saved}, reverse=True)[:keep])
    gone = [path for at, path in sorted(saved) if at not in kept]
    for path in gone:
        with contextlib.suppress(FileNotFoundError):  # another process prunes there as well
            staging.remove(path)
    return gone


def _is_sharded(directory: str) -> bool:
    return os.path.isfile(f"{directory}/{_METADATA}")  # noqa: PTH113 -- as above


def _refuse_a_stranger(final: str) -> None:
    """Raise CheckpointingError where something has the name that is not just a sharded checkpoint."""
    if not os.path.lexists(final):
        return
    if os.path.isdir(final):  # noqa: PTH112 -- as above
        names = os.listdir(final)  # noqa: PTH208 -- as above
        strange = sorted(name for name in names if name != _METADATA and not name.endswith(".distcp"))
        if not strange:
            return
        why = f"it is a directory that holds {strange[0]}"
    else:
        why = "a file has that name"
    hint = "give save a directory of its own, or step= to have one made in this one; the file there is untouched"
    raise CheckpointingError(f"checkpoint was not saved: {final}: {why}, and is not replaced", hint=hint)


def _hint(error: OSError) -> str:
    return _FREE_SPACE if error.errno in _FULL else _ELSEWHERE


def _write(state: Any, place: Staged) -> None:  # noqa: ANN401 -- as in save
    """Let torch write the file by its name: through an open file it takes three times the CPU. Raises what torch or the disk says."""
    try:
        torch.save(state, place.path)
    except RuntimeError:
        # torch's writer says "unexpected pos" for any error of the disk: ask the disk again
        os.lseek(place.fd, 0, os.SEEK_END)
        for _ in range(2):
            os.write(place.fd, bytes(_PROBE_BYTES))
        os.fsync(place.fd)
        raise


def _help(state: Any, final: str, together: Ranks, *, sharded: bool) -> None:  # noqa: ANN401 -- as in save
    """Do the part of a rank other than 0: the same meetings as `_save_sharded`, and the last."""
    if sharded:
        temporary = together.meet().value
        _write_shards(state, temporary, final, together)
    together.meet()


def _save_sharded(state: Any, final: str, together: Ranks) -> None:  # noqa: ANN401 -- as in save
    with staging.new_directory(final) as place:
        together.meet(value=place.path)
        _write_shards(state, place.path, final, together)
        staging.put(place)


def _write_shards(state: Any, temporary: str, final: str, together: Ranks) -> None:  # noqa: ANN401 -- as in save
    """Let every rank write its part, which DCP syncs, and return when all have."""
    # a second of import that a whole save does not need
    from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415
    from torch.distributed.checkpoint.state_dict_saver import save as dcp_save  # noqa: PLC0415
    from torch.distributed.checkpoint.stateful import Stateful  # noqa: PLC0415

    # DCP would ask for these where the others wait for it without learning of an error
    parts = {name: value.state_dict() if isinstance(value, Stateful) else value for name, value in state.items()}
    # DCP makes the directory where it is missing: a rank on a disk of its own would save its part where nobody looks for it
    sees_it = os.path.isdir(temporary)  # noqa: PTH112 -- as above
    if not together.meet(vote=sees_it).yes:
        blind = "not every rank sees" if sees_it else f"rank {together.rank} does not see"
        raise CheckpointingError(f"checkpoint was not saved: {final}: {blind} what rank 0 writes there", hint=_NOT_SHARED)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # as asked for
            dcp_save(parts, checkpoint_id=temporary, no_dist=together.store is None)
    except CheckpointException as error:  # a BaseException, raised on all ranks where one failed
        cause = "; ".join(f"rank {rank}: {type(failure[0]).__name__}: {failure[0]}" for rank, failure in _first_few(error))
        left = os.statvfs(os.path.dirname(final))  # noqa: PTH120 -- as above
        cause += f" ({left.f_bavail * left.f_frsize >> 20} MiB are left there)"  # DCP's message for a full disk does not contain that
        raise CheckpointingError(f"checkpoint was not saved: {final}: {cause}", hint=_FREE_SPACE) from error
    together.meet()


def _first_few(error: CheckpointException) -> list[tuple[int, Any]]:
    return sorted(error.failures.items())[:3]


def _make_room(final: str) -> None:
    """Make the directory, and remove what saves that were killed left there."""
    parent = os.path.dirname(final) or "."  # noqa: PTH120 -- as above
    durable.make_directory(parent, 0o777)
    staging.sweep(parent)
