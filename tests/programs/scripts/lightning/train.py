"""The form of Lightning's documentation without a CLI: Trainer.fit(ckpt_path="last") resumes; it starts the other ranks by itself."""

import argparse

import lightning
import toy
from lightning.pytorch.callbacks import ModelCheckpoint
from parts import Module, loader

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accum", type=int, default=1)
    args = parser.parse_args()
    saves = ModelCheckpoint(dirpath="checkpoints", filename="{epoch}-{step}", save_last=True, save_top_k=-1, every_n_epochs=1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=toy.STEPS,
        accumulate_grad_batches=args.accum,
        callbacks=[saves],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), loader(args.batch_size), ckpt_path="last")
