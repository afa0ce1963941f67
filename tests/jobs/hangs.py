# ruff: noqa: ANN401 -- torch is imported late, so its things have no types here
"""A gloo training that stands still, or looks as if it did, from one step on, in its first attempt only (`--pathology NAME --at N`).

HANGS stand still for ever, and a restart cures them. HEALTHY ones are slow in one place and continue by themselves. --long-s: how long they
take there, or, of a step, how long each takes. Gradients are exchanged by hand (light.py): the subject is where a rank stands. The loop is
made of epochs of --epoch-steps steps; a barrier ends each. The weights after N steps depend on N alone, so `--digest` of a recovered run is
that of an uninterrupted one.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import hashlib
import itertools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hang_names import HANGS, HEALTHY
from job_parts import Job, add_arguments
from light import light_sgd

if TYPE_CHECKING:
    from collections.abc import Iterator


#: Done by the culprit at its step, before it computes.
AT_ONE_STEP = ("one_sided", "python_loop", "c_loop", "c_wait", "pipe", "fuse", "frozen", "slow_load")


class Culprit:
    """What the rank --culprit does at the step --at: each method is a pathology."""

    def __init__(self, args: argparse.Namespace, dist: Any) -> None:
        """Hold what the pathologies need."""
        self.place: Path = args.place
        self.long_s: float = args.long_s
        self.dist = dist

    def one_sided(self) -> None:
        """Call a collective that the peers do not call: `if rank == 0: dist.barrier()`."""
        self.dist.barrier()

    def python_loop(self) -> None:
        """Never come to the end of a loop in Python."""
        while self.place:
            pass

    def c_loop(self) -> None:
        """Never come to the end of a loop in C, which holds the GIL and looks at no signal."""
        collections.deque(itertools.repeat(0), maxlen=0)

    def c_wait(self) -> None:
        """Wait in C with the GIL held for a lock that nobody releases, as an extension may that forks or calls back."""
        libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)  # the deadlock: no signal ends this wait

    def pipe(self) -> None:
        """Read from a named pipe into which nobody writes."""
        fifo = self.place / "fifo"
        os.mkfifo(fifo)
        descriptor = os.open(fifo, os.O_RDWR)  # with a writer, itself: to open it does not wait, to read it does
        os.read(descriptor, 1)

    def fuse(self) -> None:
        """Read a file of a file system whose server does not answer; the test stops the server once `reached` is there."""
        (self.place / "reached").touch()
        while not (self.place / "hung").exists():
            time.sleep(0.005)
        (self.place / "mnt" / "data").read_bytes()

    def frozen(self) -> None:
        """Write to a file system that is frozen: state D, which no signal ends."""
        (self.place / "reached").touch()
        while not (self.place / "hung").exists():
            time.sleep(0.005)
        (self.place / "mnt" / "more").write_bytes(b"x")

    def slow_load(self) -> None:
        """Read a file from a storage that takes `long_s` for it, a piece at a time."""
        file = self.place / "shard"
        pieces, piece = 96, 1 << 17
        file.write_bytes(bytes(pieces * piece))
        with file.open("rb", buffering=0) as shard:
            while shard.read(piece):
                time.sleep(self.long_s / pieces)


class Batches:
    """The user's dataset: item N is the number N. A worker that loads item `stuck_at` never returns."""

    def __init__(self, stuck_at: int) -> None:
        """Hold the item that is never had."""
        self.stuck_at = stuck_at

    def __len__(self) -> int:
        """Return a number that no test reaches."""
        return 1_000_000

    def __getitem__(self, item: int) -> int:
        """Return the item."""
        if item == self.stuck_at:
            time.sleep(1e6)  # the worker
        return item


class SlowFile:
    """A file on a storage that takes `long_s` for BYTES."""

    BYTES = 4 << 20

    def __init__(self, file: Any, long_s: float) -> None:
        """Hold the file."""
        self.file, self.long_s = file, long_s

    def write(self, data: Any) -> int:
        """Write a piece at a time."""
        whole, piece = memoryview(data), 1 << 17
        for begin in range(0, len(whole), piece):
            part = whole[begin : begin + piece]
            self.file.write(part)
            self.file.flush()
            time.sleep(self.long_s * len(part) / self.BYTES)
        return len(whole)

    def flush(self) -> None:
        """Do nothing: each piece is flushed."""


class Training:
    """One rank's training. `ill`: it is the first attempt; a pathology that hangs comes in no other."""

    def __init__(self, torch: Any, dist: Any, job: Job) -> None:
        """Build the model and take the checkpoint."""
        args = job.args
        self.torch, self.dist, self.job, self.args = torch, dist, job, args
        self.ill = os.environ.get("SUPERVISE_JOB_ATTEMPT", "1") == "1"
        self.name = args.pathology if self.ill or args.pathology in HEALTHY else "none"
        self.is_culprit = job.rank == args.culprit
        self.culprit = Culprit(args, dist)
        torch.manual_seed(7)
        self.model = torch.nn.Linear(8, 8)
        self.optimizer = None if self.name == "inference" else light_sgd(torch, self.model.parameters())
        self.step = 0
        if args.resume:
            content = torch.load(args.resume, weights_only=True)
            self.model.load_state_dict(content["model"])
            if self.optimizer:
                self.optimizer.load_state_dict(content["optimizer"])
            self.step = content["step"]

    def here(self, *names: str) -> bool:
        """Return whether the next step is the one at which this pathology, one of `names`, comes."""
        return self.name in names and self.step + 1 == self.args.at

    def epoch(self) -> Iterator[int]:
        """Yield the batches of this epoch, from the step that is made next. A rank may have one fewer than its peers."""
        last = min(self.args.steps, (self.step // self.args.epoch_steps + 1) * self.args.epoch_steps)
        batches: Any = iter(range(self.step, last))
        if self.name == "loader":
            data = Batches(self.args.at - 1 if self.is_culprit else -1)
            loader = self.torch.utils.data.DataLoader(data, batch_size=None, sampler=range(self.step, last), num_workers=1)
            batches = iter(loader)
        for batch in batches:
            if self.is_culprit and self.here("fewer"):
                return  # one batch fewer
            yield int(batch)

    def train(self, batch: int) -> None:
        """Make one step."""
        torch = self.torch
        self.job.before_step(self.step + 1)
        if self.name == "long_step":
            self.work()
        if self.is_culprit and self.here(*AT_ONE_STEP):
            getattr(self.culprit, self.name)()
        if self.is_culprit and self.here("evaluation_alone"):
            self.judge()
        inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(1000 * batch + self.job.rank))
        (self.model(inputs) - inputs).square().mean().backward()
        self.exchange()
        if self.optimizer:
            self.optimizer.step()
            self.optimizer.zero_grad()
        else:
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.sub_(parameter.grad, alpha=0.05)
                    parameter.grad = None
        self.step += 1
        self.job.after_step(self.step)

    def exchange(self) -> None:
        """Average the gradients, and share what rank 0 decides."""
        parts = list(self.model.parameters())
        try:
            for parameter in parts:
                self.dist.all_reduce(parameter.grad)
                parameter.grad /= self.dist.get_world_size()
            if self.is_culprit and self.here("swallowed"):
                self.metrics()["no such key"]
            self.dist.broadcast(self.torch.zeros(1), 0)
        except KeyError:
            pass  # the user's own mistake: this rank continues to the next step's all_reduce, one collective behind its peers

    def metrics(self) -> dict[str, int]:
        """Return what this script counts."""
        return {"step": self.step}

    def save(self) -> None:
        """Write a checkpoint, and the peers wait at a barrier."""
        if self.job.rank == 0:
            path = self.args.ckpt_dir / f"step-{self.step:06d}.pt"
            path.parent.mkdir(exist_ok=True)
            content = {"step": self.step, "model": self.model.state_dict()}
            if self.optimizer:
                content["optimizer"] = self.optimizer.state_dict()
            half = path.with_suffix(".tmp")
            if self.name == "stuck_save" and self.step >= self.args.at:
                time.sleep(1e6)  # the save
            with half.open("wb") as file:
                if self.name == "slow_save" and self.step >= self.args.at:
                    content["ballast"] = self.torch.zeros(SlowFile.BYTES, dtype=self.torch.uint8)
                    self.torch.save(content, SlowFile(file, self.args.long_s))
                else:
                    self.torch.save(content, file)
            half.replace(path)
        self.dist.barrier()

    def judge(self) -> None:
        """Compute for long, while the peers wait in the next all_reduce."""
        until = time.monotonic() + self.args.long_s
        while time.monotonic() < until:
            with self.torch.no_grad():
                self.model(self.torch.zeros(4096, 8))
            time.sleep(0.01)

    def work(self) -> None:
        """Compute for long without a step: micro-batches of one large step."""
        until = time.monotonic() + self.args.long_s
        while time.monotonic() < until:
            with self.torch.no_grad():
                self.model(self.torch.zeros(64, 8))
            time.sleep(0.01)

    def infer(self) -> None:
        """Never step, never call a collective: a batch of answers at a time, which computes for a quarter of it and waits for the rest."""
        step_s = self.args.step_ms / 1e3
        while self.step < self.args.steps:
            time.sleep(0.75 * step_s)
            until = time.thread_time() + 0.25 * step_s
            with self.torch.no_grad():
                while time.thread_time() < until:
                    self.model(self.torch.zeros(64, 8))
            self.step += 1
            self.job.after_step(self.step)

    def run(self) -> None:
        """Train up to --steps."""
        if self.name == "inference":
            self.infer()
        while self.step < self.args.steps:
            for batch in self.epoch():
                self.train(batch)
                if self.step % self.args.save_every == 0:
                    self.save()
            self.dist.barrier()


def main() -> None:
    """Run the job."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.set_defaults(steps=160, step_ms=20.0, save_every=20)
    parser.add_argument("--pathology", choices=(*HANGS, *HEALTHY), default="none")
    parser.add_argument("--at", type=int, default=112, help="the step that is not made, or is slow; of `fewer` the last of an epoch")
    parser.add_argument("--culprit", type=int, default=1)
    parser.add_argument("--long-s", type=float, default=3.0)
    parser.add_argument("--epoch-steps", type=int, default=20)
    parser.add_argument("--place", type=Path, default=Path.cwd(), help="where the pipe and the mount are")
    args = parser.parse_args()
    job = Job(args)
    job.start()

    import torch  # noqa: PLC0415  # the rank's pid is written before
    import torch.distributed as dist  # noqa: PLC0415

    dist.init_process_group("gloo")
    training = Training(torch, dist, job)
    training.run()
    digest = hashlib.sha256(b"".join(bytes(p.detach().flatten().view(torch.uint8).tolist()) for p in training.model.parameters()))
    job.end(digest.hexdigest())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
