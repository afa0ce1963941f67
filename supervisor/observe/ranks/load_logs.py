"""Reads from the ranks' logs of loads within which load a rank died, or its last load (instrument/_supervise_shim/load_log.py).

A crash seconds after a load is not proof against the loaded file, nor is one within the load of another file (a base model, a data set).
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from supervisor.core.model import Evidence
from supervisor.instrument._supervise_shim.layout import loads_first
from supervisor.observe.ranks import save_logs
from supervisor.observe.ranks.path_patterns import checkpoint_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from supervisor.core.model import RankInfo


def evidence(directory: Path, ranks: Sequence[RankInfo]) -> tuple[Evidence, ...]:
    """Return for each rank the load that it did not end well (`loading`), else the last one before it trained (`loaded`).

    The path is as the script wrote it; `real` has it with all links followed, `checkpoint` what that is a part of. Raises OSError.
    """
    of_local = {rank.local_rank: rank.rank for rank in ranks}
    facts = []
    for file in sorted(directory.glob("loads-*.jsonl")):
        rank, (name, path) = save_logs.rank_of(file, of_local), _last(file.read_bytes().splitlines())
        if rank is not None and path:
            real = os.path.realpath(path)
            facts.append(Evidence("heartbeat", name, path, rank=rank, fields=(("real", real), ("checkpoint", checkpoint_path(real)))))
    return tuple(facts)


def _last(lines: Iterable[bytes]) -> tuple[str, str]:
    """Return what the last load came to ("loading" or "loaded"), and its path; "" where none is logged.

    One load may lie within another (Lightning's calls torch's): each end is that of the last beginning with its path.
    """
    open_loads: list[str] = []
    name, path = "", ""
    for line in lines:
        try:
            row = json.loads(line)
            if "loading" in row:
                open_loads.append(str(row["loading"]))
                continue
            ended, well, is_first = str(row["path"]), bool(row.get("complete", True)), loads_first(row.get("via", ""), int(row["steps"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # being written, or cut
        if ended in open_loads:
            del open_loads[len(open_loads) - 1 - open_loads[::-1].index(ended)]
        if is_first:
            name, path = ("loaded" if well else "loading"), ended
    return ("loading", open_loads[-1]) if open_loads else (name, path)
