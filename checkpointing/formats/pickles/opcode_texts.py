"""Reads the arguments of opcodes that are lines of text (protocol 0).

pickletools undoes the escapes in them. An escape that Python does not know makes it warn, in the process of a reader of a file that is
no pickle at all; no pickler writes such a line, so it is refused before.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import io
    from collections.abc import Callable
    from pickletools import ArgumentDescriptor

#: The escapes of a bytes literal: docs.python.org/3/reference/lexical_analysis.html, November 2026. An octal number has one byte.
_TEXT: Final = re.compile(rb"""(?:[^\\]|\\(?:[\\'"abfnrtv\n]|x[0-9a-fA-F]{2}|[0-3][0-7]{0,2}|[4-7][0-7]?(?![0-7])))*""", re.DOTALL)


def reader_of(argument: ArgumentDescriptor | None) -> Callable[[io.BytesIO], Any] | None:
    """Return the reader of an opcode's argument in a stream; None: it has none. The reader raises ValueError for wrong bytes."""
    if argument is None or not argument.name.startswith("stringnl"):
        return None if argument is None else argument.reader
    read, n_lines = argument.reader, 2 if argument.name.endswith("pair") else 1

    def read_text(stream: io.BytesIO) -> Any:  # noqa: ANN401 -- as pickletools has it
        at = stream.tell()
        if not all(_TEXT.fullmatch(stream.readline()) for _ in range(n_lines)):
            raise ValueError("a text in it has an escape that Python does not know")
        stream.seek(at)
        return read(stream)

    return read_text
