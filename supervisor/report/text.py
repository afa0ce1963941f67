"""Foreign text made fit for one line of a terminal."""

from __future__ import annotations

import re

_LONGEST = 1000
#: Characters that move the cursor, retitle the window or turn the rest of a line round (Unicode TR9); \t and \n do not.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escaped(line: str) -> str:
    """Return supervise's own line, which may quote foreign text, with escapes for bytes that are not UTF-8 or that a terminal obeys."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), line.encode("utf-8", "backslashreplace").decode())


def clean(text: str, *, is_whole: bool = False) -> str:
    """Return one line of foreign text, fit to be shown: no escape sequences, no control characters, no secrets.

    is_whole: however long it is, as a command or a path must be that somebody copies.
    """
    from supervisor.classify import redact  # noqa: PLC0415  their patterns take 25 ms, for which a start would wait
    from supervisor.classify.logs.text import one_line  # noqa: PLC0415  as above

    shown = redact.text(one_line(text))
    return shown if is_whole else cut(shown, _LONGEST)


def cut(line: str, width: int) -> str:
    """Shorten in the middle: the beginning shows the kind, and the end of a path or a message which one."""
    if len(line) <= width:
        return line
    tail = width // 3
    return f"{line[: width - tail - 5]} ... {line[-tail:]}"
