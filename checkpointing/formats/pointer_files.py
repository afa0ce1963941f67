"""Reads the small files in which a framework names its latest checkpoint, and judges them.

The framework's own loader believes such a file. A pointer that leads nowhere breaks a resume, even if every checkpoint is sound.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import Final

from checkpointing import markers
from checkpointing.io.reader import FileReader, NotRegular, Short

_MOST_BYTES: Final = 4096
_TAG: Final = re.compile(r"[^/\x00-\x1f]{1,255}")


@dataclass(frozen=True, slots=True)
class Pointer:
    """A pointer file: its name, its framework, and the name of the directory to which it points; `problem` says why it leads nowhere."""

    name: str
    format: str
    target: str
    problem: str = ""


def read(directory: str) -> Pointer | None:
    """Read the pointer of DeepSpeed (`latest`), Megatron or verl (`latest_checkpointed_iteration.txt`) in a directory."""
    for name, whose in {row.form: row.framework for row in reversed(markers.of(markers.MarkerKind.TRACKER))}.items():
        path = os.path.join(directory, name)  # noqa: PTH118 -- strings throughout the package
        try:
            text = _text(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except NotRegular as error:
            # a link or directory named "latest" is the user's own: DeepSpeed writes a file
            if error.what == "a directory":
                continue
            return Pointer(name, whose, "", f"{name} is {error.what}")
        return _resolve(directory, name, whose, text)
    return None


def _text(path: str) -> str:
    with FileReader(path) as source:
        try:
            return source.read(0, min(source.size, _MOST_BYTES)).decode("utf-8", "replace").strip()
        except Short:
            return ""


def _resolve(directory: str, name: str, whose: str, text: str) -> Pointer:
    if not text:
        return Pointer(name, whose, "", f"{name} is empty")
    target = text
    if whose == "megatron" and text != "release":
        if not text.isascii() or not text.isdigit():
            return Pointer(name, whose, "", f"{name} holds no number: {text[:40]!r}")
        names = [row.saves.format(int(text)) for row in markers.of(markers.MarkerKind.TRACKER) if row.form == name]
        target = next((name for name in names if os.path.isdir(os.path.join(directory, name))), names[0])  # noqa: PTH112, PTH118 -- as above
    if not _TAG.fullmatch(target) or target in (".", ".."):
        return Pointer(name, whose, "", f"{name} holds no name: {text[:40]!r}")
    path = os.path.join(directory, target)  # noqa: PTH118 -- strings throughout the package
    try:
        is_there = stat.S_ISDIR(os.stat(path).st_mode)  # noqa: PTH116 -- as above
    except (FileNotFoundError, NotADirectoryError):
        is_there = False
    return Pointer(name, whose, target, "" if is_there else f"{name} names {target}, which is not there")
