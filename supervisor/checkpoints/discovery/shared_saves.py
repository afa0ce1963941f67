"""Notices several ranks of one node that save to one file: what one writes the other overwrites, and a reader may find half of each.

A directory that all ranks write together (DCP) does not count, nor is a save to a temporary name that is renamed. The two saves must be of
one moment of the training: equal optimizer steps, within `TOGETHER_S`. So a rank that takes over the saving later does not count either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Ranks that are about to save the same step are not farther apart.
TOGETHER_S = 30.0
#: So many paths are remembered.
MOST_PATHS = 64
_WHOLE_FILES = frozenset({"torch", "safetensors"})


@dataclass(frozen=True, slots=True)
class SharedSave:
    """Two ranks that saved to one file. ranks: their numbers on this node."""

    path: str
    ranks: tuple[int, int]


class SharedSaves:
    """Takes the lines of the save logs of one attempt after another."""

    def __init__(self) -> None:
        self._began: dict[str, dict[int, tuple[int, float]]] = {}  # path → rank → steps and time of its last save
        self._attempt = 0
        self._found: SharedSave | None = None
        self._is_reported = False

    def add(self, row: Mapping[str, Any], file: str, attempt: int) -> None:
        """Take a line of a rank's save log (`file`). Raises ValueError and TypeError for one that is not as we write it."""
        local = file.rpartition("-")[2].removesuffix(".jsonl")
        path = str(row["path"])
        is_whole_file = row.get("what") == "began" and row.get("via") in _WHOLE_FILES and path != "/dev/null"
        if self._found or not is_whole_file or not local.isdigit():
            return
        if attempt != self._attempt:
            self._attempt, self._began = attempt, {}
        rank, steps, t = int(local), int(row.get("steps", 0)), float(row["t"])
        others = self._began.pop(path, {})
        other = next((number for number, (at, t_) in others.items() if number != rank and at == steps and abs(t - t_) < TOGETHER_S), None)
        if other is not None:
            self._found = SharedSave(path, (min(rank, other), max(rank, other)))
        while len(self._began) >= MOST_PATHS:
            del self._began[next(iter(self._began))]
        self._began[path] = {**others, rank: (steps, t)}

    def take(self) -> SharedSave | None:
        """Return the findings, once in a run."""
        if self._found is None or self._is_reported:
            return None
        self._is_reported = True
        return self._found
