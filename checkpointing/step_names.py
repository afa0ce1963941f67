"""Reads the step in a file's name, by the rules in docs/reference/checkpoint-verdicts.md.

Pure: a path in, a `NamedStep` or None out. A name is weaker evidence than the content: an index, an epoch and a date look like steps
too, so a bare number is marked as not sure, and a number with a better reading than "step" is not a step.
"""

from __future__ import annotations

import re
from typing import Final

from checkpointing import markers
from checkpointing.model import NamedStep

_SUFFIX: Final = re.compile(r"(\.pt|\.pth|\.ckpt)(\.tar)?$", re.IGNORECASE)
_EXTENSION: Final = re.compile(r"\.[a-z][a-z0-9_]*$", re.IGNORECASE)
# The most reliable first. Lightning writes epoch=3-step=1200, DeepSpeed global_step1200, Megatron-LM iter_0001200.
_WORDS: Final = ("global_?steps?", "steps?", "iterations?", "iters?", "it")
_BEFORE: Final = tuple(re.compile(rf"(?<![a-z]){word}[-_=. ]?(\d{{1,18}})(?![\d.]*\d|[a-z])", re.IGNORECASE) for word in _WORDS)
_AFTER: Final = tuple(re.compile(rf"(?<![\d.a-z])(\d{{1,18}})[-_ ]?{word}(?![a-z])", re.IGNORECASE) for word in _WORDS)
# Words whose number is not a step, with that number.
_OTHER: Final = re.compile(
    r"(?<![a-z])(epochs?|ep|e|best|top|loss|acc|lr|bs|rank|shard|part|node|gpu|world(?:[-_]?size)?|tp|pp|dp|mp|v|version|run|seed|fold)"
    r"[-_=. ]?\d+(\.\d+)?",
    re.IGNORECASE,
)
_GLOBAL: Final = re.compile(r"global_?step", re.IGNORECASE)
_EPOCH: Final = re.compile(r"(?<![a-z])(epochs?|ep|e)[-_=. ]?\d", re.IGNORECASE)
_EPOCH_NUMBER: Final = re.compile(r"(?<![a-z])(?:epochs?|ep)[-_=. ]?(\d{1,9})(?![\d.]*\d|[a-z])", re.IGNORECASE)
_FRACTION: Final = re.compile(r"\d+\.\d+")
_SAVED: Final = re.compile(r"(?<![a-z])(checkpoint|ckpt|chkpt|model|save|snapshot|state)(?=\d)", re.IGNORECASE)
_SAVED_DIRECTORY: Final = re.compile(r"(?:checkpoint|ckpt|chkpt)[-_]?(\d{1,9})", re.IGNORECASE)
# A run's directory may count, too: max_steps1000, epochs50. Those words are plural, or say that they are a total.
_STEP_DIRECTORY: Final = re.compile(
    r"(?<![a-z])(?<!max[-_])(?<!total[-_])(?<!num[-_])(global_?step|step|iteration|iter|it)[-_=. ]?\d+(?![\d.]*\d|[a-z])|\d+[-_]?steps?$",
    re.IGNORECASE,
)
_EPOCH_DIRECTORY: Final = re.compile(
    r"((ckpt|chkpt|checkpoint|model|save|snapshot|state)[-_=. ]?)?(epoch|ep)[-_=. ]?\d+([-_=. ].*)?", re.IGNORECASE
)
_HOLDS_CHECKPOINTS: Final = re.compile(r"ckpt|chkpt|checkpoint|snapshot|saves?|steps?|epochs?", re.IGNORECASE)
_CHOICE: Final = re.compile(r"(best|last|latest|final|newest)([-_]v?\d+)?", re.IGNORECASE)  # Lightning writes last-v1.ckpt beside last.ckpt
_BARE: Final = re.compile(r"(?<![a-z0-9])\d+(?![a-z0-9])", re.IGNORECASE)
_DATE: Final = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])([0-2]\d|3[01])")
_TEMPORARY: Final = re.compile("|".join(row.form for row in markers.of(markers.MarkerKind.NAME)))
ASIDE: Final = ".supervise-aside"  # the directory of retention/aside.py
_MOST_DIGITS: Final = 9  # ten are a time stamp


def is_temporary(path: str) -> bool:
    """Return whether a name is that of an unfinished save: `*.tmp`, `*.tmp-77`, `.tmp-*`, `tmp-checkpoint-500`."""
    return _TEMPORARY.search(path.rstrip("/").rpartition("/")[2]) is not None


def is_set_aside(path: str) -> bool:
    """Return whether a path lies in a directory of files set aside, or is one: no checkpoint of the job."""
    return ASIDE in path.split("/")


def final_name(path: str) -> str | None:
    """Return the name under which a save that has a temporary name would end; None for any other name."""
    name = path.rpartition("/")[2]
    return _TEMPORARY.sub("", name) if is_temporary(name) else None


def names_save(path: str) -> bool:
    """Return whether a directory's name is that of one save: a step's, an epoch's, or a number in a directory for checkpoints."""
    directory, _, name = path.rstrip("/").rpartition("/")
    if _STEP_DIRECTORY.search(name) or _SAVED_DIRECTORY.fullmatch(name) or _EPOCH_DIRECTORY.fullmatch(name):
        return True
    is_number = name.isdecimal() and len(name) <= _MOST_DIGITS and not _DATE.fullmatch(name)
    return is_number and _HOLDS_CHECKPOINTS.search(directory.rpartition("/")[2]) is not None


def names_choice(name: str) -> bool:
    """Return whether a file is named as one of several saves that are kept: best.pt, last.ckpt. It is a checkpoint by itself."""
    stem = _SUFFIX.sub("", name)
    return _CHOICE.fullmatch(stem if stem != name else _EXTENSION.sub("", name)) is not None


def worded_step_in(name: str) -> int | None:
    """Return the step that a name gives beside a word for it ("step-20", "iter_100"), None for a bare number."""
    stem = _SUFFIX.sub("", name)
    return _worded(stem if stem != name else _EXTENSION.sub("", name))


def suffix_of(path: str) -> str:
    """Return the suffix in lower case, ".pth" for "x.pth.tar" and "" for none."""
    name = path.rpartition("/")[2]
    if match := _SUFFIX.search(name):
        return match[1].lower()
    match = _EXTENSION.search(name)
    return match[0].lower() if match else ""


def step_in(path: str) -> NamedStep | None:
    """Return the step that the file's name gives, else the one that its directory's name gives."""
    directory, _, name = path.rpartition("/")
    stem = _SUFFIX.sub("", name)
    stem = stem if stem != name else _EXTENSION.sub("", name)
    named = _step_in_stem(stem)
    if named is not None:
        return named
    # a directory's bare number may be anything (a run, a date); only these forms name the step of its files
    parent = directory.rpartition("/")[2]
    worded = _worded(parent)
    if worded is not None:
        return NamedStep(worded, sure=_of_the_run(parent))
    match = _SAVED_DIRECTORY.fullmatch(parent)
    return NamedStep(int(match[1]), sure=False) if match else None


def shown_step(path: str, step: int | None, content_step: int | None) -> int | None:
    """Return the step of a checkpoint for people: that of its content, else of a name that says "step".

    A bare number in the name orders checkpoints, and may be an index or an epoch: it is shown as no step.
    """
    if content_step is not None:
        return content_step
    named = step_in(path)
    return None if named is not None and not named.sure and named.step == step else step


def epoch_in(path: str) -> int | None:
    """Return the epoch that the file's name gives, the last one if it gives several."""
    name = path.rstrip("/").rpartition("/")[2]
    epochs = _EPOCH_NUMBER.findall(_SUFFIX.sub("", name))
    return int(epochs[-1]) if epochs else None


def _step_in_stem(stem: str) -> NamedStep | None:
    worded = _worded(stem)
    if worded is not None:
        return NamedStep(worded, sure=_of_the_run(stem))
    numbers = _BARE.findall(_SAVED.sub("", _FRACTION.sub("", _OTHER.sub("", stem))))
    if len(numbers) == 1 and len(numbers[0]) <= _MOST_DIGITS and not _DATE.fullmatch(numbers[0]):
        return NamedStep(int(numbers[0]), sure=False)
    return None


def _of_the_run(stem: str) -> bool:
    """Return whether the step in a name counts the whole run. Beside an epoch it may be the epoch's own, and only the content can tell."""
    return bool(_GLOBAL.search(stem)) or not _EPOCH.search(stem)


def _worded(stem: str) -> int | None:
    """Return the number beside the first of `_WORDS` that has one; the last such number, if the word is there twice."""
    for before, after in zip(_BEFORE, _AFTER, strict=True):
        steps = before.findall(stem) or after.findall(stem)
        if steps:
            return int(steps[-1])
    return None
