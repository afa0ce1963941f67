"""Deals the samples of a data set to ranks that take unequal shares of each global batch, and continues where it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Share(Protocol):
    """A rank's part of a global batch: `supervisor.worker.BatchPlan` is it."""

    @property
    def global_batch(self) -> int:
        """Samples of all ranks in one optimizer step."""

    @property
    def offset(self) -> int:
        """Where this rank's part begins in the global batch."""

    @property
    def samples(self) -> int:
        """Samples of this rank in one optimizer step."""


class UnevenSampler:
    """The indices of one rank, for a DataLoader: `DataLoader(data, batch_size=plan.micro_batch, sampler=UnevenSampler(len(data), plan))`.

    An epoch is the data set, shuffled by `seed` and the epoch's number, and cut into global batches; a rank has `plan.samples` of each,
    from `plan.offset` on. The last incomplete global batch is left out (`drop_last`), or filled up from the epoch's beginning. Each
    pass is an epoch: the present one, from its position on, then the next.

    The state counts samples of all ranks, so it also continues under another plan. It is behind a global batch from the moment in which
    this rank's last index of it is dealt. A DataLoader with worker processes asks ahead: set `position` in the state that you save then, to
    the optimizer steps of this epoch times `plan.global_batch`.
    """

    def __init__(self, size: int, plan: Share, shuffle: bool = True, seed: int = 0, drop_last: bool = False) -> None:  # noqa: FBT001, FBT002  as in torch's DistributedSampler
        if size < 1:
            raise ValueError(f"a data set without samples cannot be dealt: {size}")
        self._size, self._plan = size, plan
        self._shuffle, self._seed, self._drop_last = shuffle, seed, drop_last
        self.epoch, self._position = 0, 0

    def __len__(self) -> int:
        """Return how many indices this rank gets in a whole epoch."""
        return self._batches(0) * self._plan.samples

    def __iter__(self) -> Iterator[int]:
        """Yield the indices from the position to the end of the epoch; then the next epoch begins."""
        order = self._order()
        whole, samples, offset = self._plan.global_batch, self._plan.samples, self._plan.offset
        for _ in range(self._batches(self._position)):
            begin = self._position + offset
            for place in range(begin, begin + samples):
                if place == begin + samples - 1:
                    self._position += whole  # before it is dealt: the script saves while the generator is here
                yield order[place % self._size]
        self.set_epoch(self.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of another epoch. In the present epoch it has no effect."""
        if epoch != self.epoch:
            self.epoch, self._position = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """Return where it is, in samples of all ranks: the same on every rank."""
        return {"epoch": self.epoch, "position": self._position, "seed": self._seed, "size": self._size}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from there. Raises ValueError where the state is of another data set or seed: samples would come twice, or never."""
        for name, here in (("size", self._size), ("seed", self._seed)):
            if state[name] != here:
                raise ValueError(f"the sampler's state has {name} {state[name]}, and this sampler {here}")
        self.epoch, self._position = state["epoch"], state["position"]

    def _batches(self, position: int) -> int:
        left, whole = max(self._size - position, 0), self._plan.global_batch
        return left // whole if self._drop_last else -(-left // whole)

    def _order(self) -> list[int] | range:
        if not self._shuffle:
            return range(self._size)
        import torch  # noqa: PLC0415  the state and the length need none

        order: list[int] = torch.randperm(self._size, generator=torch.Generator().manual_seed(self._seed + self.epoch)).tolist()
        return order
