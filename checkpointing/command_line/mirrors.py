"""The commands `push` and `restore`: copy to a mirror and back, by hand."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from checkpointing.command_line.progress import path_name
from checkpointing.manifest.digest import PART_BYTES
from checkpointing.mirror import client, restore
from checkpointing.mirror.stall import RestoreProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from checkpointing.command_line.output import Output
    from checkpointing.command_line.progress import ProgressBar
    from checkpointing.mirror.backends import Backend
    from checkpointing.mirror.source import TransferControl


def push(  # noqa: PLR0913 -- source, destinations and options of a copy
    paths: Sequence[str],
    backends: Sequence[Backend],
    job: str,
    out: Output,
    *,
    control: TransferControl,
    part_bytes: int = PART_BYTES,
) -> int:
    """Copy checkpoints to every mirror. Returns 0 if all arrived, 1 if a checkpoint is not whole."""
    worst = 0
    for path in (os.path.realpath(path) for path in paths):
        try:
            with out.progress(f"verifying {path_name(path)}") as progress:

                def show(phase: str, done: int, total: int, name: str = path_name(path), progress: ProgressBar = progress) -> None:
                    progress.at(f"{phase} {name}", done, total)

                for done in client.push(path, backends, job=job, control=control, part_bytes=part_bytes, progress=show):
                    row = {"path": path, "step": done.step, "mirror": done.mirror, "key": done.key, "bytes": done.n_bytes}
                    out.row(row, f"{path} -> {done.mirror}/{done.key}")
        except client.NotCopied as error:
            out.row({"path": path, "verdict": error.verdict, "reason": error.reason}, f"not pushed: {path}: {error.reason}")
            worst = 1
    return worst


def restore_newest(  # noqa: PLR0913 -- source, destination and options of a restore
    backends: Sequence[Backend],
    job: str,
    out: Output,
    *,
    into: str | None,
    workers: int = 4,
    refusal: Callable[[str], tuple[str, str] | None] = lambda _path: None,
) -> int:
    """Restore a job's newest whole checkpoint. Returns 0, or 1 if the mirrors are empty.

    `into` is the directory; None: the path at which it was saved, unless `refusal` returns a reason against that path.
    """
    with out.progress(f"looking for checkpoints of {job}") as progress:
        done = restore.newest(
            backends,
            job,
            into=into and os.path.abspath(into),  # noqa: PTH100 -- plain strings, as the package takes them
            workers=workers,
            refusal=refusal,
            progress=followed(progress, f"checkpoint of {job}", out),
        )
    if done is None:
        out.row({"path": None}, f"nothing to restore: the mirror holds no checkpoint of {job}")
        return 1
    print_restored(done, out)
    return 0


def followed(progress: ProgressBar, name: str, out: Output) -> RestoreProgress:
    """Return the display of a restore's progress: the entries of the mirror's lists, then the bytes of the checkpoint."""
    return RestoreProgress(
        out.warn,
        lambda done, total: progress.at(f"restoring {name}", done, total),
        lambda n_entries: progress.at("listing the mirror", n_entries, None, "entries"),
    )


def print_restored(done: restore.Restored, out: Output) -> None:
    """Print the restored checkpoint, and the reasons why newer ones were passed over."""
    passed = [{"key": key, "reason": reason} for key, reason in done.passed_over]
    row = {"path": done.path, "step": done.manifest.step, "mirror": done.url, "fetched_bytes": done.fetched_bytes, "passed_over": passed}
    lines = [f"passed over: {key}: {reason}" for key, reason in done.passed_over]
    source = "was there already" if not done.fetched_bytes and done.manifest.n_bytes else f"from {done.url}"
    out.row(row, "\n".join([*lines, f"{done.path} {source}, every byte as it was recorded"]))
