# ruff: noqa: ANN401, PLC0415 -- what a kind of job does not use is not imported, and so has no types here
"""A rank of bench/restart.py: an all-reduce loop, bare DDP with AdamW, the same in a script as the demo's, or an HF Trainer.

It writes a line for each step, and never ends. In: allreduce, ddp, demo or hf; --step-ms; --go-on, for a job that is restarted again and
again: its steps continue where the last ones ended, so each restart is progress. An all-reduce loop has no optimizer, so it reports its
steps. Out: `progress`, with rank, step, CLOCK_MONOTONIC ns and pid of each step.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from pathlib import Path
from typing import Any

RANK = int(os.environ["RANK"])


class Steps:
    """Writes the steps of this rank, and takes the time of one."""

    def __init__(self, step_ms: float, *, reports: bool, go_on: bool) -> None:
        self._file = os.open("progress", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._step_s = step_ms / 1e3
        self._heartbeat: Any = None
        self._step = 0
        if reports:
            from supervisor import worker

            self._heartbeat = worker.heartbeat
        if go_on:
            with contextlib.suppress(FileNotFoundError, IndexError):
                self._step = int(Path("progress").read_text(encoding="ascii").splitlines()[-1].split()[1])

    def done(self) -> None:
        """Note a step that was made."""
        self._step += 1
        os.write(self._file, f"{RANK} {self._step} {time.monotonic_ns()} {os.getpid()}\n".encode())
        if self._heartbeat is not None:
            self._heartbeat(self._step)
        time.sleep(self._step_s)


def allreduce(steps: Steps) -> None:
    """Add up a small tensor over the ranks."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    value = torch.ones(1024)
    while True:
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        steps.done()


def ddp(steps: Steps) -> None:
    """Train two layers in DistributedDataParallel with AdamW."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters())
    while True:
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.done()


def demo(steps: Steps) -> None:
    """As ddp, in a script that begins as examples/train_ddp.py and others do: it sets things before it imports torch."""
    import warnings

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    warnings.filterwarnings("ignore", category=FutureWarning)
    ddp(steps)


def hf(steps: Steps) -> None:
    """Train a small model with transformers' Trainer on a data set of datasets'."""
    import torch
    from datasets import Dataset
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
            return {"loss": (self.layer(x) - labels).square().mean()}

    class Written(TrainerCallback):
        def on_step_end(self, *_args: Any, **_more: Any) -> None:
            steps.done()

    data = Dataset.from_dict({"x": [[float(n)] * 4 for n in range(512)], "labels": [[0.0]] * 512}).with_format("torch")
    options: dict[str, Any] = {"use_cpu": True, "max_steps": 10_000_000, "per_device_train_batch_size": 8}
    args = TrainingArguments(output_dir="hf", save_strategy="no", report_to=[], logging_strategy="no", disable_tqdm=True, **options)
    Trainer(model=Model(), args=args, train_dataset=data, callbacks=[Written()]).train()


JOBS = {"allreduce": allreduce, "ddp": ddp, "demo": demo, "hf": hf}


def main() -> None:
    """Train until somebody ends it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--go-on", action="store_true")
    args = parser.parse_args()
    JOBS[args.job](Steps(args.step_ms, reports=args.job == "allreduce", go_on=args.go_on))


if __name__ == "__main__":
    main()
