"""The form of transformers' examples: TrainingArguments from the command line. With AUTO=1 it finds its last checkpoint by itself."""

import os
import sys
from pathlib import Path

import hook
import torch
import toy
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Model(torch.nn.Module):
    """The model with the loss that the Trainer asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = toy.model()
        self.step = 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss."""
        hook.batch(len(x))
        return {"loss": hook.loss((self.inner(x) - labels).square().mean(), self.step + 1)}


class Samples(torch.utils.data.Dataset):
    """The samples under the names that the model takes."""

    def __len__(self) -> int:
        """Return how many there are."""
        return 320

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        """Return one."""
        x, y = toy.pair(number)
        return {"x": x, "labels": y}


class Hook(TrainerCallback):
    """Calls the hook."""

    def on_train_begin(self, args, state, control, **more) -> None:  # noqa: ANN001, ANN003, ARG002  transformers' own
        """Note where it begins."""
        more["model"].step = state.global_step

    def on_step_end(self, args, state, control, **more) -> None:  # noqa: ANN001, ANN003, ARG002  as above
        """Log the step; the save comes next."""
        more["model"].step = state.global_step
        if state.global_step % args.save_steps == 0:
            hook.save(state.global_step)
        hook.step(state.global_step)


def main() -> None:
    """Train as the flags say."""
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    hook.start()
    last = get_last_checkpoint(args.output_dir) if os.environ.get("AUTO") and Path(args.output_dir).is_dir() else None
    model = Model()
    trainer = Trainer(model=model, args=args, train_dataset=Samples(), callbacks=[Hook()])
    trainer.train(resume_from_checkpoint=last or args.resume_from_checkpoint)
    hook.final(trainer.state.global_step, toy.weights(model.inner))


if __name__ == "__main__":
    sys.exit(main())
