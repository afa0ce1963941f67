"""The training of tests/jobs/soak.py in one process and, but for a NaN, without torch: killed, it trains again within tenths of a second.

Its state is a digest of the seeds and of all steps so far, so `reference` computes it anew. The files `limit`, `seeds` and --nan-file are
those of soak.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from job_parts import Job, add_arguments, write_whole
from no_torch import checkpoint_path, load, save

from supervisor import worker

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The state in memory, once the numbers of the training are none.
NAN = "nan"


def after(state: str, step: int, seeds: Sequence[tuple[int, int]]) -> str:
    """Return the state after `step`, made from the one before it."""
    seed = [seed for first, seed in seeds if first < step][-1]
    return hashlib.sha256(f"{state} {seed} {step}".encode()).hexdigest()


def reference(seeds: Sequence[tuple[int, int]], every: int, last: int) -> dict[int, str]:
    """Return step to state of every checkpoint that an undisturbed training saves up to step `last`."""
    state, states = "begin", {}
    for step in range(1, last + 1):
        state = after(state, step, seeds)
        if step % every == 0:
            states[step] = state
    return states


def saved(path: Path) -> tuple[int, str]:
    """Return step and state of a checkpoint."""
    return load(path)


def save_nan(path: Path, step: int) -> None:
    """Write a checkpoint whose tensor holds no number: torch writes it, for such a pickle is not written by hand."""
    import torch  # noqa: PLC0415  for a strike alone

    target = path.with_name(f"{path.name}.tmp")
    torch.save({"step": step, "weights": torch.full((4096,), torch.nan)}, target)
    target.replace(path)


def main() -> None:
    """Run the job."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.add_argument("--pad-kib", type=int, default=16)
    parser.add_argument("--nan-file", type=Path, help="where this file stands, it is removed and the state becomes NaN")
    args = parser.parse_args()
    job = Job(args)
    job.start()
    seeds = [(first, seed) for first, seed in json.loads(Path("seeds").read_text())]
    step, state = load(args.resume) if args.resume else (0, "begin")
    over = False
    while not over:
        job.before_step(step + 1)
        step += 1
        if state == NAN:
            msg = f"loss is nan at step {step}"
            raise FloatingPointError(msg)
        state = after(state, step, seeds)
        worker.heartbeat(step)
        job.after_step(step)
        if step % args.save_every == 0:
            limit = Path("limit")
            over = limit.exists() and float(limit.read_text()) <= step
            is_nan = args.nan_file is not None and args.nan_file.exists() and not over
            pause_s = args.save_ms / 1e3
            if is_nan:
                state = NAN
                save_nan(checkpoint_path(args.ckpt_dir, step), step)
                args.nan_file.unlink(missing_ok=True)
            else:
                save(args.ckpt_dir, step, state, in_place=args.save_in_place, pause_s=pause_s, pad_bytes=args.pad_kib * 1024)
    write_whole(Path("digest"), f"{step} {state}".encode())


if __name__ == "__main__":
    main()
