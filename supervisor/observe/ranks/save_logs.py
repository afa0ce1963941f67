"""Reads the logs of saves and loads that the ranks of an attempt write (instrument/_supervise_shim/save_log.py, load_log.py)."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from supervisor.observe.ranks.path_patterns import checkpoint_path, pattern_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def rows(log: bytes) -> Iterator[dict[str, Any]]:
    """Yield the rows of a log, each with a `path` and a time `t` in wall seconds (0: none was logged).

    A line is passed over where it is being written, or was cut because the memory was full.
    """
    for line in log.splitlines():
        try:
            row = json.loads(line)
            yield {**row, "t": float(row.get("t", 0.0)), "path": str(row["path"])}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue


def of_attempt(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of the saves of all ranks of an attempt."""
    for file in directory.glob("saves-*.jsonl"):
        yield from rows(file.read_bytes())


def most_saves(directory: Path) -> int:
    """Return how often one rank ended a save to one location in an attempt, at most: several files of one name, or one file again."""
    most = 0
    for file in directory.glob("saves-*.jsonl"):
        rounds: Counter[str] = Counter()  # of each path
        checkpoints: dict[str, set[str]] = {}  # of each location
        for row in rows(file.read_bytes()):
            if row.get("what") == "ended" and row.get("well"):
                path = checkpoint_path(row["path"])
                rounds[row["path"]] += 1
                checkpoints.setdefault(pattern_of(path), set()).add(path)
        most = max(most, *rounds.values(), *map(len, checkpoints.values()), 0)
    return most


def in_a_save(directory: Path) -> Iterator[tuple[int, str]]:
    """Yield the local rank and the path of each save in which a rank of an attempt was last, unless that save ended well."""
    for file in sorted(directory.glob("saves-*.jsonl")):
        last = next((row for row in reversed(list(rows(file.read_bytes()))) if row.get("what") in {"began", "ended"}), None)
        local = file.stem.rpartition("-")[2]
        if last is not None and not last.get("well") and local.isdigit():
            yield int(local), last["path"]


def steps_at(directory: Path, checkpoint: str) -> dict[int, int]:
    """Return how many steps each rank had made when it last wrote to a checkpoint in an attempt, by local rank."""
    steps: dict[int, int] = {}
    for file in directory.glob("saves-*.jsonl"):
        local = file.stem.rpartition("-")[2]
        saved_steps = [
            int(row["steps"]) for row in rows(file.read_bytes()) if "steps" in row and checkpoint_path(row["path"]) == checkpoint
        ]
        if saved_steps and local.isdigit():
            steps[int(local)] = max(saved_steps)
    return steps


def rank_of(file: Path, of_local: dict[int, int]) -> int | None:
    """Return the rank of a log; None of a process that never had a number."""
    local = file.stem.rpartition("-")[2]
    return of_local.get(int(local), int(local) if not of_local else None) if local.isdigit() else None
