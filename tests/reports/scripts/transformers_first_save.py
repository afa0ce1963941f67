"""transformers' Trainer, killed in its very first save: after the weights, and before `training_args.bin` or the optimizer.

What lies there then is the newest checkpoint by its name, so the Trainer resumes from it, and raises because trainer_state.json is missing.
`--killed-before`: what it is about to save when the process dies, once.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Model(torch.nn.Module):
    """One layer, with the loss in the form of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Return the loss."""
        del labels
        return {"loss": self.layer(x).square().mean()}


def dies_once(owner: Any, name: str) -> None:  # noqa: ANN401 -- a module or the Trainer
    """Let the process be killed where a function is called for the first time."""
    inner = getattr(owner, name)

    def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 -- as the Trainer has it
        if not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return inner(*args, **kwargs)

    setattr(owner, name, wrapper)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--killed-before", choices=["arguments", "optimizer"], required=True)
    options = parser.parse_args()
    args = TrainingArguments(
        output_dir="out",
        use_cpu=True,
        max_steps=30,
        save_steps=10,
        per_device_train_batch_size=1,
        optim="sgd",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
    )
    data: Any = [{"x": torch.ones(2), "labels": torch.zeros(1)} for _ in range(64)]
    trainer = Trainer(model=Model(), args=args, train_dataset=data)
    dies_once(*((torch, "save") if options.killed_before == "arguments" else (trainer, "_save_optimizer_and_scheduler")))
    last = get_last_checkpoint("out") if Path("out").is_dir() else None
    sys.stdout.write(f"continues from {last}\n")
    sys.stdout.flush()
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()
