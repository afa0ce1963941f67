"""transformers' Trainer as its examples use it: a checkpoint each few steps, and at the start on from the last one that is there."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import torn_parts as job
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Tells(TrainerCallback):  # type: ignore[misc]  # untyped here
    """Says where the training is, and takes its time for a step."""

    def __init__(self, pace_s: float) -> None:
        self.pace_s = pace_s

    def on_train_begin(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:  # noqa: ANN401  transformers' own
        """Tell from where."""
        job.resumed(state.global_step)

    def on_step_end(self, *_: Any, **__: Any) -> None:  # noqa: ANN401  as above
        """Pace."""
        time.sleep(self.pace_s)

    def on_save(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:  # noqa: ANN401  as above
        """Tell that it is saved."""
        job.saved(state.global_step)


class Saying(Trainer):  # type: ignore[misc]  # untyped here
    """Says that a save begins."""

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  as above
        job.saving(self.state.global_step)
        super()._save_checkpoint(*args, **kwargs)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--pace-s", type=float, default=0.0)
    known = parser.parse_args()
    args = TrainingArguments(
        output_dir="out",
        use_cpu=True,
        max_steps=known.steps,
        save_steps=job.EVERY,
        per_device_train_batch_size=1,
        optim="sgd",
        optim_args="momentum=0.9",
        learning_rate=0.1,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
    )
    data: Any = [{"x": torch.full((2,), float(at % 97)), "labels": torch.zeros(1)} for at in range(512)]
    model = job.Model()
    trainer = Saying(model=model, args=args, train_dataset=data, callbacks=[Tells(known.pace_s)])
    last = get_last_checkpoint("out") if Path("out").is_dir() else None
    trainer.train(resume_from_checkpoint=last)
    job.final(trainer.state.global_step, model)


if __name__ == "__main__":
    main()
