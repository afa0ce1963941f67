"""The form of torch's tutorial on fault tolerance: a Trainer, a snapshot with the epochs that were run, torchrun to start again."""

import argparse
import os
from pathlib import Path

import hook
import torch
import toy
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

STEPS_OF_EPOCH = toy.STEPS // 8


class Trainer:
    """Trains for so many epochs, and saves every so many."""

    def __init__(self, model: torch.nn.Module, data: DataLoader, optimizer: torch.optim.Optimizer, save_every: int, snapshot: Path) -> None:
        self.rank = int(os.environ["LOCAL_RANK"])
        self.model, self.data, self.optimizer = model, data, optimizer
        self.save_every, self.snapshot, self.epochs_run = save_every, snapshot, 0
        if snapshot.exists():
            self._load_snapshot()
        self.ddp = DistributedDataParallel(self.model)

    def _load_snapshot(self) -> None:
        snapshot = torch.load(self.snapshot)
        self.model.load_state_dict(snapshot["MODEL_STATE"])
        self.epochs_run = snapshot["EPOCHS_RUN"]
        print(f"Resuming training from snapshot at Epoch {self.epochs_run}")  # noqa: T201  the tutorial's own line

    def _save_snapshot(self, epoch: int) -> None:
        hook.save((epoch + 1) * len(self.data))
        torch.save({"MODEL_STATE": self.model.state_dict(), "EPOCHS_RUN": epoch + 1}, self.snapshot)

    def _run_epoch(self, epoch: int) -> None:
        self.data.sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(self.data):
            step = epoch * len(self.data) + number + 1
            hook.batch(len(x))
            self.optimizer.zero_grad()
            hook.loss((self.ddp(x) - y).square().mean(), step).backward()
            self.optimizer.step()
            if number + 1 == len(self.data) and self.rank == 0 and (epoch + 1) % self.save_every == 0:
                self._save_snapshot(epoch)
            hook.step(step)

    def train(self, most: int) -> None:
        """Run what is left of the epochs."""
        for epoch in range(self.epochs_run, most):
            self._run_epoch(epoch)


def main() -> None:
    """Train as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("total_epochs", type=int)
    parser.add_argument("save_every", type=int)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    hook.start()
    init_process_group(backend="gloo")
    data = toy.Data(STEPS_OF_EPOCH * 8 * 2)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=False, sampler=DistributedSampler(data), num_workers=args.workers)
    model = toy.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    Trainer(model, loader, optimizer, args.save_every, Path("snapshot.pt")).train(args.total_epochs)
    hook.final(args.total_epochs * len(loader), toy.weights(model))
    destroy_process_group()


if __name__ == "__main__":
    main()
