"""A job that saves checkpoints of some MiB until the file `limit` names a step: the job of tests/e2e/test_checkpoint_kills.py.

Before a checkpoint gets its name, a line of the file `saves` says its step and the SHA-256 of its bytes; after it has its name, a line of
`done` says its step. With --how=zip no hook sees a save. With --how=hooked it goes through the module torch.serialization of the directory
`stand-in`, which the test makes: the hooks see it there, so that older ones may be removed, and the job starts as soon.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import pickle
import random
import sys
import zipfile
from pathlib import Path
from typing import cast

from job_parts import Job, add_arguments, append

MIB = 1 << 20


def write(content: dict[str, object], target: Path) -> None:
    """Write a file as torch.save lays it out."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"step": content["step"]}, protocol=2))
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/data/0", cast("bytes", content["pad"]))
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/.data/serialization_id", "0" * 40)


def save(directory: Path, step: int, n_bytes: int, how: str) -> None:
    """Write a checkpoint with bytes that no other step has."""
    directory.mkdir(parents=True, exist_ok=True)
    final = directory / f"step-{step:06d}.pt"
    target = final.with_name(final.name + ".tmp")
    content: dict[str, object] = {"step": step}
    content["pad"] = random.Random(step).randbytes(MIB) * (n_bytes // MIB)  # noqa: S311 -- a pattern, no secret
    if how == "hooked":
        from torch import serialization  # noqa: PLC0415 -- see above

        serialization.save(content, target)
    else:
        write(content, target)
    append(Path("saves"), step, hashlib.sha256(target.read_bytes()).hexdigest())
    target.replace(final)
    append(Path("done"), step)


def limit() -> float:
    """Return the step at which the job ends."""
    try:
        return float(Path("limit").read_text())
    except FileNotFoundError:
        return math.inf


def main() -> None:
    """Run the job."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.add_argument("--mib", type=int, default=8, help="of each checkpoint")
    parser.add_argument("--how", choices=("hooked", "zip"), default="zip")
    args = parser.parse_args()
    sys.path.insert(0, "stand-in")
    job, step = Job(args), 0
    job.start()
    if args.resume:
        step = int(args.resume.stem.removeprefix("step-"))
        args.resume.read_bytes()
    while step < limit():
        step += 1
        job.before_step(step)
        job.after_step(step)
        if step % args.save_every == 0:
            save(args.ckpt_dir, step, args.mib * MIB, args.how)


if __name__ == "__main__":
    main()
