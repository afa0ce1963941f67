"""The marks by which frameworks tell a save that has not ended from a whole one, as one table.

A save is marked by its own name, by a file that is next to it until it has ended, or by the tracker: the file that names the newest
save, and that the framework writes last. Marked is not whole, even if every byte is there: the framework's own loader passes it over.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class MarkerKind(StrEnum):
    """Where a marker is."""

    # in the save's own name, such as `saves`; `form` is a pattern, and without what it matches the name is that of the ended save
    NAME = "name"
    BESIDE = "beside"  # a file beside the save; `form` has the save's name as {}
    TRACKER = "tracker"  # `form` is the file's name; `saves` are the names that it points to, with their number in braces


@dataclass(frozen=True, slots=True)
class Marker:
    """A row of the table. `source`: where the framework does so."""

    framework: str
    kind: MarkerKind
    form: str
    source: str
    saves: str = ""


MARKERS: Final = (
    Marker("scripts", MarkerKind.NAME, r"\.tmp(?:[-.].*)?$", "write to a temporary name, then os.replace", "NAME.tmp-77"),
    Marker("scripts", MarkerKind.NAME, r"\.partial$", "as wget and curl name unfinished files", "NAME.partial"),
    Marker("huggingface_hub", MarkerKind.NAME, r"\.incomplete$", "huggingface_hub/file_download.py", "BLOB.incomplete"),
    Marker("transformers", MarkerKind.NAME, r"^\.?tmp-", "transformers 4.36 to 4.39, trainer.py", "tmp-checkpoint-N"),
    Marker("nemo", MarkerKind.NAME, r"-unfinished$", "the marker itself is not a save", "NAME-unfinished"),
    Marker("nemo", MarkerKind.BESIDE, "{}-unfinished", "nemo/utils/callbacks/nemo_model_checkpoint.py: UNFINISHED_CHECKPOINT_SUFFIX"),
    Marker(
        "megatron",
        MarkerKind.TRACKER,
        "latest_checkpointed_iteration.txt",
        "megatron/training/checkpointing.py: get_checkpoint_tracker_filename",
        "iter_{:07d}",
    ),
    Marker(
        "verl",
        MarkerKind.TRACKER,
        "latest_checkpointed_iteration.txt",
        "verl/utils/checkpoint/checkpoint_manager.py: get_checkpoint_tracker_filename",
        "global_step_{:d}",
    ),
    Marker("deepspeed", MarkerKind.TRACKER, "latest", "deepspeed/runtime/engine.py: save_checkpoint(save_latest=True)", "global_step{:d}"),
)
#: Parts of a path by which people call unfinished files, or the place of their making. Too weak a mark to pass a checkpoint over.
_WORDS: Final = re.compile(
    r"(?:^|[._/-])(?:tmp|temp|stag(?:e|ed|ing)|part(?:ial)?|unfinished|incomplete|in_?progress|wip|saving|pending|torn|half)"
    r"(?:[._/-]|\d|$)",
    re.IGNORECASE,
)
#: NeMo's marker is named by the save without these, and is beside the directories of ranks.
_NEMO_SUFFIXES: Final = (".nemo", ".ckpt", "-EMA")
_NEMO_RANKS: Final = re.compile(r"mp_rank_\d+|tp_rank_\d+_pp_rank_\d+")
_MOST_LEVELS_UP: Final = 4  # verl: global_step_20/actor/model_world_size_2_rank_0.pt
_NUMBER: Final = re.compile(r"\{:0?\d*d\}")


def of(kind: MarkerKind) -> tuple[Marker, ...]:
    """Return the rows of a kind."""
    return tuple(row for row in MARKERS if row.kind is kind)


def may_be_unfinished(path: str) -> bool:
    """Return whether a word in a path says that what lies there is not finished: `stage/20/model.pt`, `tmp_20.pt`."""
    return _WORDS.search(path) is not None


def unfinished(path: str) -> str:
    """Return why the framework takes a save for unfinished, by a file next to it or beside its directory; "" if none is there."""
    for row in of(MarkerKind.BESIDE):
        for beside in _names(path):
            marker = row.form.format(beside)
            if os.path.isfile(marker):  # noqa: PTH113 -- paths are plain strings throughout the package (a directory is somebody's own)
                name = marker.rpartition("/")[2]
                return f"{name} lies next to it: to {row.framework} the save has not ended until that file is removed"
    return ""


def _names(path: str) -> list[str]:
    """Return the names by which a marker may stand beside a save: its own, that of its directory, and both as NeMo shortens them."""
    plain = path.rstrip("/")
    above, _, name = plain.rpartition("/")
    names = [plain, above]
    if _NEMO_RANKS.fullmatch(above.rpartition("/")[2]):
        names.append(f"{above.rpartition('/')[0]}/{name}")
    return list(dict.fromkeys(name for full_name in names for name in (full_name, _shortened(full_name)) if name))


def _shortened(path: str) -> str:
    for suffix in _NEMO_SUFFIXES:
        path = path.removesuffix(suffix)
    return path


def _tracker_of(path: str) -> tuple[str, str] | None:
    directory, _, name = path.rpartition("/")
    for row in of(MarkerKind.TRACKER):
        match = re.fullmatch(_NUMBER.sub(r"(\\d+)", row.saves), name)
        if match is not None and row.saves.format(int(match[1])) == name:
            return f"{directory}/{row.form}", name if row.framework == "deepspeed" else match[1].lstrip("0") or "0"
    return None


def missing_tracker(path: str) -> tuple[str, str] | None:
    """Return the tracker in which a framework would look for the save at `path`, or for the one of which that is a part.

    It comes with its would-be content. None if it is there, or if the name is that of no such save.
    """
    above = path.rstrip("/")
    for _ in range(_MOST_LEVELS_UP):
        tracker = _tracker_of(above)
        if tracker is not None:
            return None if os.path.lexists(tracker[0]) else tracker
        above = above.rpartition("/")[0]
    return None
