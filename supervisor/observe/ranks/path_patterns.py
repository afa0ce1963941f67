"""Finds the checkpoint that a path belongs to, and the pattern that later checkpoints of the same location match.

Text in, text out. A *checkpoint path* is a file, or the directory above it where that has the name of one save
(`checkpoint-500/optimizer.pt`, `epoch_3/model.pt`) or where the file is a part of one (`step-20/rank0/x.pt`, `epoch_3/optim/x.pt`). A file
that names a step of its own is not a part (`epoch_1/step-100.pt`), nor is `last.ckpt`. A *pattern* is that path with the numbers that grow
during a training replaced by `[0-9]*`, so that later checkpoints are found: `ckpt/step_100.pt` matches `ckpt/step_[0-9]*.pt`.

A number stays where it is part of a word (gpt2) or counts ranks, shards or versions. All numbers stay where the pattern would be too broad:
a name with more than three, or one with no word beside them in a directory whose name names no checkpoints (`cache/000123.pt`). Such
a name means itself alone.
"""

from __future__ import annotations

import re
from typing import Final

from checkpointing import step_names
from supervisor.classify.expressions import expression

_SUFFIX: Final = expression(r"(\.(pt|pth|ckpt|bin|safetensors|tar|distcp|npz|pkl))+$", re.IGNORECASE)
_NUMBER: Final = expression(r"\d+(?:\.\d+)*")
#: Words whose number grows, also where it is written without anything between.
_GROWS: Final = expression(
    r"(?<![a-z])(global_?steps?|steps?|iterations?|iters?|it|epochs?|ep|e|s|checkpoint|ckpt|chkpt|model|save|snapshot|state|loss|acc)$",
    re.IGNORECASE,
)
#: Words whose number distinguishes parts of one checkpoint, or trainings.
_STAYS: Final = expression(
    r"(?<![a-z])(rank|shard|part|node|gpu|world|tp|pp|dp|mp|v|version|run|seed|fold|of|lr|bs)[-_=. ]?$", re.IGNORECASE
)
_OF: Final = expression(r"-of-\d", re.IGNORECASE)
#: Directories in which a save's directory keeps the parts of one checkpoint: of ranks, FSDP's shards, weights and optimizer.
_INNER: Final = expression(
    r"([a-z]+_)*rank[-_]?[\d_]*|(node|host|shard|part|worker|gpu|tp|pp|dp)[-_]?\d+|pytorch_model_fsdp[_\d]*|distrib_optim[_\d]*"
    r"|opt(im|imizer)?(s|_?states?)?[_\d]*|sched(uler)?s?[_\d]*|(model|ema|weights|params|net|trainer|train|rng|data)(_?states?)?|states?|dist|\d+",
    re.IGNORECASE,
)
_LEVELS: Final = 3  # of such directories, one in another
_NAMES_CHECKPOINT: Final = expression(r"ckpt|chkpt|checkpoint|snapshot|save|step|epoch|model|weights", re.IGNORECASE)
_MOST_NUMBERS: Final = 3
_ANY: Final = "[0-9]*"
_MAGIC: Final = expression(r"[*?[]")


def checkpoint_path(path: str) -> str:
    """Return the path of the checkpoint that the file or directory at the absolute `path` is, or belongs to."""
    directory, _, name = path.rpartition("/")
    if step_names.names_save(path) and not _SUFFIX.search(path):
        return path
    if not step_names.names_save(directory) and step_names.worded_step_in(name) is not None:
        return path
    for _ in range(_LEVELS):
        above, _, inner = directory.rpartition("/")
        if step_names.names_save(directory):
            if directory == path.rpartition("/")[0] and step_names.names_choice(name):
                return path
            own, named = step_names.worded_step_in(inner), step_names.worded_step_in(name)
            return path if named is not None and named != own else directory
        if not _INNER.fullmatch(inner):
            break
        directory = above
    return path


def pattern_of(path: str) -> str:
    """Return the pattern (of absolute paths, for checkpointing.discover.find) that later checkpoints of the same location match."""
    directory, _, name = path.rpartition("/")
    suffix = _SUFFIX.search(name)
    stem, end = (name[: suffix.start()], suffix[0]) if suffix and suffix.start() else (name, "")
    spans = [match.span() for match in _NUMBER.finditer(stem) if _grows(stem, *match.span())]
    words = re.sub(r"[^A-Za-z]", "", _without(stem, spans, ""))
    too_broad = len(spans) > _MOST_NUMBERS or not (words or _NAMES_CHECKPOINT.search(directory.rpartition("/")[2]))
    return f"{escaped(directory)}/{escaped(name) if too_broad else _without(stem, spans, _ANY) + escaped(end)}"


def matches(pattern: str, path: str) -> bool:
    """Return whether `path` is a checkpoint of the location: a pattern also matches `step_100_ema.pt`, which is another one's."""
    return pattern_of(path) == pattern


def is_within(directory: str, path: str) -> bool:
    """Return whether a path is a directory, or lies below it. Both are absolute."""
    return f"{path}/".startswith(directory.rstrip("/") + "/")


def names_checkpoint(pattern: str) -> bool:
    """Return whether the name of a location, or of its directory, names checkpoints."""
    directory, _, name = pattern.rpartition("/")
    return bool(_NAMES_CHECKPOINT.search(name) or _NAMES_CHECKPOINT.search(directory.rpartition("/")[2]))


def _grows(stem: str, start: int, end: int) -> bool:
    before, after = stem[:start], stem[end:]
    if after[:1].isalpha() or _OF.match(after) or _STAYS.search(before):
        return False
    return not before[-1:].isalpha() or bool(_GROWS.search(before))


def _without(stem: str, spans: list[tuple[int, int]], instead: str) -> str:
    """Return the stem with the text at `spans` replaced; the rest is escaped where it is part of a pattern."""
    parts, at = [], 0
    for start, end in spans:
        parts += [escaped(stem[at:start]), instead]
        at = end
    return "".join([*parts, escaped(stem[at:])])


def has_wildcard(text: str) -> bool:
    """Return whether a pattern, or a part of one, has a wildcard."""
    return _MAGIC.search(text) is not None


def escaped(text: str) -> str:
    """Return the pattern that matches the text alone (glob.escape, which leaves slashes)."""
    return _MAGIC.sub(lambda match: f"[{match[0]}]", text)
