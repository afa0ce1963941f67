"""Lightning as its documentation has it: ModelCheckpoint with save_last, and ckpt_path="last"."""

from __future__ import annotations

import argparse
import time
from typing import Any

import lightning
import torch
import torn_parts as job
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader


class Module(lightning.LightningModule):
    """The model; what a step gets depends on its number alone: Lightning does not keep the place in a plain loader."""

    def __init__(self, pace_s: float) -> None:
        super().__init__()
        self.inner = job.Model()
        self.pace_s = pace_s

    def on_train_start(self) -> None:
        """Tell from where."""
        job.resumed(self.trainer.global_step)

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        time.sleep(self.pace_s)
        loss: torch.Tensor = self.inner(batch * 0 + self.trainer.global_step % 97)["loss"]
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return an optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Saying(ModelCheckpoint):
    """Says when it saves."""

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  Lightning's own
        """Save where it is due."""
        due = trainer.global_step % job.EVERY == 0
        if due:
            job.saving(trainer.global_step)
        super().on_train_batch_end(trainer, *args, **kwargs)
        if due:
            job.saved(trainer.global_step)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--pace-s", type=float, default=0.0)
    args = parser.parse_args()
    saves = Saying(dirpath="out", filename="{step}", save_last=True, save_top_k=-1, every_n_train_steps=job.EVERY)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=args.steps,
        callbacks=[saves],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module(args.pace_s)
    trainer.fit(module, DataLoader([torch.ones(2)] * 100_000, batch_size=1), ckpt_path="last")  # type: ignore[arg-type]
    job.final(trainer.global_step, module.inner)


if __name__ == "__main__":
    main()
