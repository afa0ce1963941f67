"""The form of accelerate's documentation on checkpoints: save_state to a directory for each, --resume_from_checkpoint, skipped batches."""

import argparse
from pathlib import Path

import hook
import torch
import toy
from accelerate import Accelerator
from torch.utils.data import DataLoader

EPOCHS, STEPS_OF_EPOCH = 2, toy.STEPS // 2


def main() -> None:
    """Train as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--resume_from_checkpoint", default=None)
    parser.add_argument("--output_dir", default="out")
    args = parser.parse_args()
    hook.start()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.gradient_accumulation_steps)
    inner = toy.model()
    model, optimizer, data = accelerator.prepare(
        inner,
        torch.optim.AdamW(inner.parameters(), lr=1e-2),
        DataLoader(toy.Data(STEPS_OF_EPOCH * 8), batch_size=args.batch_size, shuffle=False),
    )
    micro = len(data) // STEPS_OF_EPOCH
    step = 0
    if args.resume_from_checkpoint:
        accelerator.load_state(args.resume_from_checkpoint)
        step = int(Path(args.resume_from_checkpoint).name.removeprefix("step_"))
    for epoch in range(step // STEPS_OF_EPOCH, EPOCHS):
        done = step - epoch * STEPS_OF_EPOCH
        for x, y in accelerator.skip_first_batches(data, done * micro) if done else data:
            hook.batch(len(x))
            with accelerator.accumulate(model):
                accelerator.backward(hook.loss((model(x) - y).square().mean(), step + 1))
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                step += 1
                if step % toy.EVERY == 0:
                    hook.save(step)
                    accelerator.save_state(f"{args.output_dir}/step_{step}")
                hook.step(step)
    hook.final(step, toy.weights(inner))
    accelerator.end_training()


if __name__ == "__main__":
    main()
