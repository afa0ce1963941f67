"""The form of minGPT-ddp: settings by Hydra, a snapshot with the finished epoch, torchrun to start again."""

import os
from pathlib import Path

import hook
import hydra
import torch
import toy
from omegaconf import DictConfig
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

STEPS_OF_EPOCH = toy.STEPS // 8


class Trainer:
    """Trains for so many epochs, and saves every so many."""

    def __init__(self, config: DictConfig, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.config, self.model, self.optimizer = config, model, optimizer
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.epochs_run = 0
        self._load_snapshot()
        self.ddp = DistributedDataParallel(model)

    def _load_snapshot(self) -> None:
        try:
            with Path(self.config.snapshot_path).open("rb") as file:
                snapshot = torch.load(file, map_location="cpu")
        except FileNotFoundError:
            print("Snapshot not found. Training model from scratch")  # noqa: T201  as the example's own
            return
        self.model.load_state_dict(snapshot["model_state"])
        self.optimizer.load_state_dict(snapshot["optimizer_state"])
        self.epochs_run = snapshot["finished_epoch"]

    def _save_snapshot(self, epoch: int) -> None:
        snapshot = {"model_state": self.model.state_dict(), "optimizer_state": self.optimizer.state_dict(), "finished_epoch": epoch}
        hook.save(epoch * STEPS_OF_EPOCH)
        torch.save(snapshot, self.config.snapshot_path)

    def _run_epoch(self, epoch: int) -> None:
        accum, size = self.config.grad_accum, self.config.batch_size
        for number in range(STEPS_OF_EPOCH):
            step = epoch * STEPS_OF_EPOCH + number
            for micro in range(accum):
                x, y = toy.pairs(((step * accum + micro) * self.world + self.rank) * size, size)
                hook.batch(len(x))
                hook.loss((self.ddp(x) - y).square().mean() / accum, step + 1).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if number + 1 == STEPS_OF_EPOCH and self.rank == 0 and (epoch + 1) % self.config.save_every == 0:
                self._save_snapshot(epoch + 1)
            hook.step(step + 1)

    def train(self) -> None:
        """Run what is left of the epochs."""
        for epoch in range(self.epochs_run, self.config.max_epochs):
            self._run_epoch(epoch)


@hydra.main(version_base=None, config_path=".", config_name="train_cfg")
def main(cfg: DictConfig) -> None:
    """Train as the settings say."""
    hook.start()
    init_process_group(backend="gloo")
    model = toy.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.optimizer_config.learning_rate)
    Trainer(cfg.trainer_config, model, optimizer).train()
    hook.final(cfg.trainer_config.max_epochs * STEPS_OF_EPOCH, toy.weights(model))
    destroy_process_group()


if __name__ == "__main__":
    main()
