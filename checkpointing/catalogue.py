"""The facts of a job's checkpoints on one node: the rows of `checkpoints/catalogue.jsonl` in the state directory (io/row_file.py).

Each table is beside its subject: the checkpoints rejected, verified, copied, mirrored, moved and removed, and those that wait for a mirror.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from checkpointing.io.row_file import RowFile

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME: Final = "catalogue.jsonl"


class CheckpointCatalogue(RowFile):
    """The rows of one job and node."""

    def __init__(self, directory: Path, *, is_writer: bool = False) -> None:
        """Read `directory`/catalogue.jsonl, which need not exist yet. `is_writer`: this process holds the job's lock."""
        super().__init__(directory / FILE_NAME, "the checkpoints' catalogue", is_writer=is_writer)
