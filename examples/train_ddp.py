"""Train a small character-level transformer with DistributedDataParallel, so that it can be interrupted anywhere and resumed bit for bit.

It reads the source of Python's own standard library (nothing is downloaded) and knows nothing of any supervisor:

    python examples/train_ddp.py --steps 200
    torchrun --standalone --nproc-per-node=2 examples/train_ddp.py --steps 200 --ckpt-dir ckpt
    torchrun --standalone --nproc-per-node=2 examples/train_ddp.py --steps 200 --ckpt-dir ckpt --resume ckpt/step-00000100.pt

What makes the resumed run equal to the uninterrupted one: the checkpoint holds the model, the optimizer, the schedule, the position in
the data and the state of every random generator of every rank; which characters a step sees depends on that position alone; and only
deterministic kernels are used. What makes the checkpoint trustworthy: it is written beside its final name, flushed to the disk and
then renamed, so that no file with a checkpoint's name was ever half written by us.
"""

# ruff: noqa: D102, D105 -- methods that torch names need no sentence each
from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import random
import signal
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with this, and reads it once

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler

numpy_random: Any = None
with contextlib.suppress(ImportError):  # torch runs without numpy; then there is no random state of it to keep either
    from numpy import random as numpy_random

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 64  # characters that the model sees at once
VOCABULARY = 128  # ASCII
RNG_BYTES = 1 << 17  # room for one rank's random states as JSON text


def parse_arguments() -> argparse.Namespace:
    """Return the command line's settings; the defaults make a step of some ten milliseconds on one core."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=400, help="optimizer steps in all")
    parser.add_argument("--batch-size", type=int, default=4, help="sequences per rank and micro-batch")
    parser.add_argument("--grad-accum", type=int, default=1, help="micro-batches per optimizer step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0, help="DataLoader worker processes per rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus-bytes", type=int, default=1_000_000)
    parser.add_argument("--ckpt-dir", type=Path, default=Path("ckpt"))
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints; the last step is always saved")
    parser.add_argument("--keep", type=int, default=3, help="checkpoints to keep")
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--step-ms", type=float, default=0, help="the least time of a step, so that a person can watch so small a model")
    parser.add_argument(
        "--on-term", choices=("save", "end"), default="save", help="save: a checkpoint of the last step first; end: at once"
    )
    parser.add_argument("--resume", type=Path, help="checkpoint to continue from")
    return parser.parse_args()


# --- data ---------------------------------------------------------------------------------------------------------------------------


def read_corpus(limit_bytes: int) -> Tensor:
    """Return the ASCII text of the standard library's modules, in alphabetical order, as uint8 [at most `limit_bytes`]."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += bytes(byte for byte in path.read_bytes() if byte < VOCABULARY)
        if len(text) >= limit_bytes:
            break
    return torch.frombuffer(text[:limit_bytes], dtype=torch.uint8)


class Blocks(Dataset[Tensor]):
    """Non-overlapping pieces of the corpus, each BLOCK characters and the one that follows: uint8 [BLOCK + 1]."""

    def __init__(self, corpus: Tensor) -> None:
        self.corpus = corpus

    def __len__(self) -> int:
        return (len(self.corpus) - 1) // BLOCK

    def __getitem__(self, index: int) -> Tensor:
        return self.corpus[index * BLOCK : (index + 1) * BLOCK + 1]


class ResumableBatches(Sampler[list[int]]):
    """This rank's micro-batches, without end, from a position counted in samples over all ranks.

    The order of the samples depends on the seed alone. So a resumed run sees what the interrupted one would have seen, also where
    the batch size, the accumulation or the number of ranks was changed in between.
    """

    def __init__(self, length: int, batch_size: int, *, position: int, seed: int) -> None:
        self.length, self.batch_size, self.position, self.seed = length, batch_size, position, seed
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def __iter__(self) -> Iterator[list[int]]:
        epoch, order = -1, torch.empty(0)
        for start in range(self.position + self.rank * self.batch_size, sys.maxsize, self.world_size * self.batch_size):
            batch = []
            for sample in range(start, start + self.batch_size):
                if sample // self.length != epoch:
                    epoch = sample // self.length
                    order = torch.randperm(self.length, generator=torch.Generator().manual_seed(self.seed * 1_000_003 + epoch))
                batch.append(int(order[sample % self.length]))
            yield batch


# --- model --------------------------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """One pre-norm transformer layer with four heads; [batch, BLOCK, width] in and out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm_2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, dim=-1))
        # Written out, because the fused attention kernels of CUDA are not all deterministic in the backward pass.
        future = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=x.device).triu(1)
        weights = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(future, float("-inf")).softmax(-1)
        x = x + self.dropout(self.out((weights @ v).transpose(1, 2).flatten(-2)))
        mixed: Tensor = x + self.dropout(self.down(functional.gelu(self.up(self.norm_2(x)))))
        return mixed


class CharTransformer(nn.Module):
    """[batch, BLOCK] characters in, [batch, BLOCK, VOCABULARY] logits of the next ones out."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, width), nn.Embedding(BLOCK, width)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, characters: Tensor) -> Tensor:
        x = self.token(characters) + self.place(torch.arange(BLOCK, device=characters.device))
        logits: Tensor = self.head(self.norm(self.layers(x)))
        return logits


# --- random states ------------------------------------------------------------------------------------------------------------------


def seed_rng(seed: int) -> None:
    """Seed this rank's random generators."""
    torch.manual_seed(seed)
    random.seed(seed)
    if numpy_random:
        numpy_random.seed(seed)  # noqa: NPY002  # the legacy state is the one that libraries draw from unasked


def rng_state(device: torch.device) -> str:
    """Return the state of this rank's random generators as JSON, so that a checkpoint needs no unpickling of arbitrary objects."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state().tolist()}
    if numpy_random:
        name, keys, *rest = numpy_random.get_state()  # noqa: NPY002  # as above
        state["numpy"] = [name, keys.tolist(), *rest]
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device).tolist()
    return json.dumps(state)


def restore_rng(text: str, device: torch.device) -> None:
    """Set this rank's random generators to what `rng_state` returned."""
    state = json.loads(text)
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))
    if numpy_random and "numpy" in state:
        numpy_random.set_state(tuple(state["numpy"]))  # noqa: NPY002  # as above
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(torch.tensor(state["cuda"], dtype=torch.uint8), device)


def gather_texts(text: str, device: torch.device) -> list[str]:
    """Return every rank's text, on every rank. A collective: all ranks must call it."""
    mine = torch.tensor(list(text.ljust(RNG_BYTES).encode()), dtype=torch.uint8, device=device)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return [bytes(each.tolist()).decode() for each in everyone]


# --- checkpoints --------------------------------------------------------------------------------------------------------------------


def save_atomically(content: dict[str, Any], path: Path) -> None:
    """Write `content` so that, whenever we die, `path` is either not there or whole."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the rename itself lasts only from here on
    finally:
        os.close(directory)


def step_of(path: Path) -> int:
    """Return the step that a checkpoint's name tells."""
    return int(path.stem.removeprefix("step-"))


def prune(directory: Path, newest: int, keep: int) -> None:
    """Remove our own older checkpoints, all but the last `keep` up to step `newest`."""
    own_files = sorted((path for path in directory.glob("step-*.pt") if step_of(path) <= newest), key=step_of)
    for path in own_files[: -max(keep, 1)]:
        path.unlink(missing_ok=True)


def model_digest(model: nn.Module) -> str:
    """Return the SHA-256 of all parameters: equal digests mean bit-equal models."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(bytes(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).tolist()))
    return digest.hexdigest()


# --- training -----------------------------------------------------------------------------------------------------------------------


def start_distributed() -> torch.device:
    """Join the process group that torchrun describes in the environment, or make one of our own for a single process."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    backend = "gloo"
    if device.type == "cuda":
        backend = "nccl"
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]  # a lazy name
    return device


def say(text: str) -> None:
    """Print a line, once for all ranks and at once."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def learning_rate(step: int, steps: int) -> float:
    """Return the factor on the peak rate: twenty steps of warm-up, then half a cosine down to a tenth."""
    return min((step + 1) / 20, 0.55 + 0.45 * math.cos(math.pi * min(step / steps, 1.0)))


@dataclass
class Training:
    """All that a checkpoint has to bring back, the random states apart. `position` counts samples over all ranks."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    corpus_digest: str
    step: int = 0
    position: int = 0

    def load(self, path: Path, device: torch.device) -> None:
        """Continue from the checkpoint at `path`; leave with a message where it belongs to another text."""
        content = torch.load(path, map_location="cpu", weights_only=True)
        if content["corpus"] != self.corpus_digest:
            sys.exit(f"cannot resume from {path}: it was trained on another text (another Python, or another --corpus-bytes)")
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.schedule.load_state_dict(content["schedule"])
        self.step, self.position = content["step"], content["position"]
        if dist.get_rank() < len(content["rng"]):  # a rank that was not there before keeps its fresh seed
            restore_rng(content["rng"][dist.get_rank()], device)

    def save(self, directory: Path, device: torch.device, *, keep: int) -> None:
        """Write the checkpoint of this step on rank 0. A collective: all ranks must call it after the same step."""
        rng = gather_texts(rng_state(device), device)
        if dist.get_rank() == 0:
            content = {
                "step": self.step,
                "position": self.position,
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "schedule": self.schedule.state_dict(),
                "rng": rng,
                "corpus": self.corpus_digest,
            }
            save_atomically(content, directory / f"step-{self.step:08d}.pt")
            prune(directory, self.step, keep)
        dist.barrier()  # no rank may continue, or leave, before the checkpoint that it counts on is there


def build(args: argparse.Namespace, device: torch.device, corpus: Tensor) -> Training:
    """Make a training at step 0, with equal weights on all ranks."""
    torch.manual_seed(args.seed)
    model = CharTransformer(args.width, args.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, args.steps))
    return Training(model, optimizer, schedule, hashlib.sha256(bytes(corpus.tolist())).hexdigest())


def wrap(model: nn.Module, device: torch.device) -> DistributedDataParallel:
    """Return `model` under DDP, past the one pass in which DDP is unlike itself.

    After the first backward pass DDP lays its gradient buckets out anew, and with more than two ranks the place of a gradient in its
    bucket decides in which order the ranks' shares are added. So that pass is made here, before the first step and before a resume.
    """
    parallel = DistributedDataParallel(model)
    parallel(torch.zeros(1, BLOCK, dtype=torch.long, device=device)).sum().backward()
    parallel.zero_grad()
    return parallel


def loader_from(position: int, args: argparse.Namespace, corpus: Tensor) -> DataLoader[Tensor]:
    """Return this rank's micro-batches from `position` on, without end: uint8 [batch, BLOCK + 1]."""
    dataset = Blocks(corpus)
    return DataLoader(
        dataset,
        batch_sampler=ResumableBatches(len(dataset), args.batch_size, position=position, seed=args.seed),
        num_workers=args.workers,
        generator=torch.Generator(),  # else each new iterator would draw from the generator that dropout draws from
    )


def train(args: argparse.Namespace, device: torch.device) -> bool:
    """Train up to `args.steps`; return False where SIGTERM ended it earlier, with a checkpoint of the last step made."""
    corpus = read_corpus(args.corpus_bytes)
    training = build(args, device, corpus)
    parallel = wrap(training.model, device)
    seed_rng(args.seed + dist.get_rank())  # other dropout on each rank
    if args.resume:
        training.load(args.resume, device)
    term_seen: list[int] = []
    if args.on_term == "save":
        signal.signal(signal.SIGTERM, lambda signum, _frame: term_seen.append(signum))
    batches = iter(loader_from(training.position, args, corpus))
    origin = f"resumed from {args.resume}" if args.resume else "started"
    say(f"{origin} at step {training.step}: {dist.get_world_size()} ranks on {device.type}")

    began, timed_from = time.perf_counter(), training.step
    while training.step < args.steps:
        earliest_end = time.perf_counter() + args.step_ms / 1e3
        loss_sum = torch.zeros((), device=device)
        for micro in range(args.grad_accum):
            block = next(batches).to(device, torch.long)
            parallel.require_backward_grad_sync = micro == args.grad_accum - 1  # the ranks exchange gradients once per step
            logits = parallel(block[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), block[:, 1:].flatten()) / args.grad_accum
            loss.backward()
            loss_sum += loss.detach()
        training.optimizer.step()
        training.schedule.step()
        training.optimizer.zero_grad()
        training.step += 1
        training.position += args.batch_size * args.grad_accum * dist.get_world_size()
        time.sleep(max(0.0, earliest_end - time.perf_counter()))

        # A signal reaches the ranks at different moments: only an agreement makes all of them stop after the same step.
        agreed = torch.stack([loss_sum / dist.get_world_size(), torch.full_like(loss_sum, len(term_seen))])
        dist.all_reduce(agreed)
        loss_value, stopping = float(agreed[0]), bool(agreed[1] > 0)
        last = stopping or training.step == args.steps
        if last or training.step % args.log_every == 0:
            milliseconds = (time.perf_counter() - began) / (training.step - timed_from) * 1e3
            say(f"step {training.step}/{args.steps} loss {loss_value:.4f} {milliseconds:.1f} ms/step")
            began, timed_from = time.perf_counter(), training.step
        if last or training.step % args.save_every == 0:
            training.save(args.ckpt_dir, device, keep=args.keep)
        if stopping and training.step < args.steps:
            say(f"stopped by SIGTERM after step {training.step}, checkpoint saved")
            return False
    say(f"done: step {training.step} model sha256 {model_digest(training.model)}")
    return True


def main() -> int:
    """Train as the command line says; return the process's exit code."""
    args = parse_arguments()
    torch.use_deterministic_algorithms(mode=True)
    args.ckpt_dir.mkdir(parents=True, exist_ok=True)
    device = start_distributed()
    finished = train(args, device)
    dist.destroy_process_group()
    return 0 if finished else 128 + signal.SIGTERM  # an unfinished training must not look like a finished one


if __name__ == "__main__":
    sys.exit(main())
