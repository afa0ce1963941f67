"""The form of Lightning's documentation with LightningCLI: a model, a data module, everything else by flags."""

import lightning
import torch
from lightning.pytorch.cli import LightningCLI
from parts import Module, loader


class Data(lightning.LightningDataModule):
    """Ten steps an epoch."""

    def __init__(self, batch_size: int = 8) -> None:
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self) -> torch.utils.data.DataLoader:
        """Return the loader."""
        return loader(self.batch_size)


if __name__ == "__main__":
    LightningCLI(Module, Data, save_config_callback=None)
