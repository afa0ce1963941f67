"""What both programs with Lightning have: the module and the loader."""

import hook
import lightning
import torch
import toy
from torch.utils.data import DataLoader


class Module(lightning.LightningModule):
    """The model as Lightning wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = toy.model()

    def setup(self, stage: str) -> None:
        """Fail where a program fails before it trains."""
        del stage
        hook.start()

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the loss."""
        x, y = batch
        hook.batch(len(x))
        return hook.loss((self.inner(x) - y).square().mean(), self.global_step + 1)

    def on_train_batch_end(self, outputs: object, batch: object, batch_idx: int) -> None:
        """Log the optimizer's steps; at the end of an epoch a save comes next."""
        del outputs, batch
        if (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0:
            if self.global_step % toy.EVERY == 0:
                hook.save(self.global_step)
            hook.step(self.global_step)

    def on_train_end(self) -> None:
        """Log the end."""
        hook.final(self.global_step, toy.weights(self.inner))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return an optimizer."""
        return torch.optim.SGD(self.parameters(), lr=1e-2)


def loader(batch_size: int) -> DataLoader:
    """Return a loader of ten steps for two ranks with micro-batches of 8."""
    return DataLoader(toy.Data(toy.EVERY * 8 * 2), batch_size=batch_size, shuffle=False)
