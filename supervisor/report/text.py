"""Foreign text made fit for one line of a terminal."""

from __future__ import annotations

_LONGEST = 1000


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
