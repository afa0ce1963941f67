"""The report on a disk without room for the next checkpoints."""

from __future__ import annotations

import pytest

from checkpointing.retention.free_space import Forecast, Room
from supervisor.checkpoints import retention

MIB = 1 << 20


@pytest.mark.parametrize(
    ("forecast", "text"),
    [
        (Forecast("/ckpt", Room.SHORT, 2 * MIB, 0, 0), "/ckpt is full (0 bytes free): the next checkpoint (2 MiB) will not fit"),
        (
            Forecast("/ckpt", Room.SHORT, 2 * MIB, 1, 3 * MIB),
            "/ckpt is nearly full (3 MiB free): the next checkpoint (2 MiB) fits, and the one after it will not",
        ),
        (
            Forecast("/ckpt", Room.SHORT, 2 * MIB, 0, 9 * MIB, "no more files fit: the disk has no inodes left"),
            "the next checkpoint (2 MiB) will not fit into /ckpt: no more files fit: the disk has no inodes left",
        ),
    ],
    ids=["full", "room for one", "no inodes"],
)
def test_which_checkpoint_will_not_fit_and_why(forecast: Forecast, text: str) -> None:
    assert retention._shortage_text(forecast) == text  # noqa: SLF001  what the alert says
