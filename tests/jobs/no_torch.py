"""A job that "trains" by hashing and sleeping: what supervises it cannot tell, and it starts in a few hundredths of a second.

Its state after step n is a function of the seed and n alone, so a resumed run ends with the digest of an uninterrupted one. Its
checkpoints are zip files laid out as torch.save lays them out (torch.load reads them), with right CRCs.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pickle
import sys
import time
import zipfile
from pathlib import Path

from job_parts import Job, add_arguments, write_whole


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return the name of the checkpoint of `step`."""
    return directory / f"step-{step:06d}.pt"


def save(directory: Path, step: int, state: str, *, in_place: bool, pause_s: float, pad_bytes: int = 65536) -> None:  # noqa: PLR0913
    """Write the checkpoint of `step`, with a tensor of `pad_bytes`; `pause_s` is spent in the middle of it."""
    directory.mkdir(parents=True, exist_ok=True)
    final = checkpoint_path(directory, step)
    target = final if in_place else final.with_name(final.name + ".tmp")
    with target.open("wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"step": step, "state": state}, protocol=2))
        archive.writestr("archive/byteorder", "little")
        file.flush()
        time.sleep(pause_s)
        archive.writestr("archive/data/0", hashlib.sha256(state.encode()).digest() * (pad_bytes // 32))
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/.data/serialization_id", "0" * 40)
    if not in_place:
        descriptor = os.open(target, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        target.replace(final)


def load(path: Path) -> tuple[int, str]:
    """Return step and state of a checkpoint; raise zipfile.BadZipFile where it is torn."""
    with zipfile.ZipFile(path) as archive:
        content = pickle.loads(archive.read("archive/data.pkl"))  # noqa: S301  # written by save above
    return content["step"], content["state"]


class Peers:
    """Holds the ranks together, as a collective does: none makes a step before all have made the one before it, or after one died.

    Each rank has a file for each attempt with its pid and the number of its steps.
    """

    def __init__(self, place: Path, rank: int, step: int) -> None:
        """Tell the others of this rank."""
        place.mkdir(exist_ok=True)
        attempt, world = os.environ["SUPERVISE_JOB_ATTEMPT"], int(os.environ["WORLD_SIZE"])
        self._files = [place / f"{attempt}-{other}" for other in range(world)]
        self._own = self._files.pop(rank)
        self.announce(step)

    def announce(self, step: int) -> None:
        """Tell the others of a step."""
        write_whole(self._own, f"{os.getpid()} {step}".encode())

    def wait(self, step: int) -> None:
        """Await that all have made a step; exit if one is dead."""
        for file in self._files:
            while not file.exists():
                time.sleep(0.002)
            while True:
                pid, its_step = map(int, file.read_text().split())
                if its_step >= step:
                    break
                if not is_alive(pid):
                    sys.exit("a peer is gone")
                time.sleep(0.002)


def is_alive(pid: int) -> bool:
    """Return whether a process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def main() -> None:
    """Run the job."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.add_argument("--slow-save", type=int, help="--save-ms is spent in the save of this step alone, where nothing stands there yet")
    parser.add_argument("--all-save", action="store_true", help="not rank 0 alone: each has a directory of its own")
    parser.add_argument("--in-step", type=Path, help="a directory, by which no rank is ahead of another")
    args = parser.parse_args()
    job = Job(args)
    job.start()
    step, state = load(args.resume) if args.resume else (0, "seed")
    peers = Peers(args.in_step, job.rank, step) if args.in_step else None
    while step < args.steps:
        job.before_step(step + 1)
        if peers:
            peers.wait(step)
        step += 1
        state = hashlib.sha256(f"{state} {step}".encode()).hexdigest()
        job.after_step(step)
        if peers:
            peers.announce(step)
        stopping = job.term_seen
        if (args.all_save or job.rank == 0) and (stopping or (args.save_every and step % args.save_every == 0)):
            is_slow = args.slow_save is None or (step == args.slow_save and not checkpoint_path(args.ckpt_dir, step).exists())
            save(args.ckpt_dir, step, state, in_place=args.save_in_place, pause_s=args.save_ms / 1e3 if is_slow else 0.0)
        if stopping:
            return
    job.end(state)


if __name__ == "__main__":
    main()
