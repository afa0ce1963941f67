"""The model and the data that all programs with torch train: sample N is a function of N, and no two are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hook
import torch
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from collections.abc import Iterator

EVERY, STEPS = hook.EVERY, hook.STEPS


def model() -> torch.nn.Module:
    """Return a small network with the same weights each time."""
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def pair(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return input and target of a sample."""
    hook.sample(number)
    x = torch.sin(torch.arange(1, 9) * (0.1 + number % 97))
    return x, x.sum(0, keepdim=True) / 4


def pairs(first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `count` samples from `first` on, stacked."""
    rows = [pair(first + at) for at in range(count)]
    return torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])


class Data(Dataset):
    """So many samples."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        """Return how many there are."""
        return self.count

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return one."""
        return pair(number)


def weights(trained: torch.nn.Module) -> Iterator[float]:
    """Yield all weights as numbers."""
    for value in trained.state_dict().values():
        yield from value.detach().flatten().tolist()
