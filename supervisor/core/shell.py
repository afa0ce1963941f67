"""A word as a shell takes it, for the commands that people are shown. Pure."""

from __future__ import annotations

import shlex
from typing import Final

#: In $'…', which bash, zsh and ksh read.
_ESCAPES: Final = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\", "'": "\\'"}


def quoted(word: str) -> str:
    """Return a word as a shell takes it, with nothing in it that a terminal would obey or that would begin another line."""
    if word.isprintable():
        return shlex.quote(word)
    return f"$'{''.join(map(_escaped, word))}'"


def _escaped(letter: str) -> str:
    if letter in _ESCAPES or letter.isprintable():
        return _ESCAPES.get(letter, letter)
    return "".join(f"\\x{byte:02x}" for byte in letter.encode("utf-8", "surrogateescape"))
