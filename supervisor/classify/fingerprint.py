"""Fingerprints of failures: equal for two occurrences of one failure, different for two failures.

A fingerprint is cause, exception type, message, innermost frames of the user's code, and phase. Values that differ between two occurrences
are removed first: numbers, dates, addresses, ranks, pids, steps, ports, temporary paths. Line numbers too: they change with every edit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify import redact
from supervisor.classify.expressions import expression
from supervisor.classify.logs.tracebacks import frames_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.classify.logs.tracebacks import Frame
    from supervisor.core.model import Cause

FRAMES = 3
MOST_CHARACTERS = 120

#: Paths of code that is not the user's.
_LIBRARY = expression(r"(?:/(?:site|dist)-packages/|/lib(?:64)?/python\d|^<|/torch/|/_supervise_shim/|/pyenv/versions/)")
_PATH = expression(r"(?<![\w.])(?:~|\.{1,2})?(?:/[^\s'\"/:,;()\[\]<>]+)*/(?P<name>[^\s'\"/:,;()\[\]<>]*)")
_HEX = expression(r"\b0x[0-9a-fA-F]+\b|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b|\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{7,}\b")
_NUMBER = expression(
    r"(?:(?<![\w#.)\]])[-+])?[\d#]+(?:[.,:_-][\d#]+)*(?:[eE][-+]?[\d#]+)?"
)  # after _HEX, which matches long decimal numbers too
#: Generated names only ("temperature" and "torch_dtype" distinguish two bugs): tempfile's eight characters, also after the prefixes of
#: torchelastic and multiprocessing; mktemp(1)'s; torch's shared memory, named by pid and numbers.
_TEMPORARY = expression(r"\b(?:(?:tmp|torchelastic_|pymp-)[a-z0-9_]{8}|tmp\.[A-Za-z0-9]{6,12}|torch_\d[\d_]*)(?![A-Za-z0-9_])")
_DAYS, _MONTHS = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)", "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_DATE = expression(rf"\b(?:{_DAYS},? +(?:\d{{1,2}} +)?{_MONTHS}|{_MONTHS}(?= +\d))\b")
#: A data file keeps the first word of its name: "shard-aab.tar" and "shard-xyz.tar" fail for one bug.
_DATA_FILE = expression(
    r"\b(?P<word>[A-Za-z0-9#]+)[-_.][\w#.-]*\.(?P<kind>tar|gz|zst|parquet|arrow|npy|npz|jsonl|tfrecord|mds|bin|idx|jpe?g|png|webp|wav|flac|mp4)\b"
)
_MACHINE = expression(r"\b(?P<what>gpu|node|host|worker|machine|server)[-_][A-Za-z0-9]\b")
_SPACE = expression(r"\s+")


def fingerprint(cause: Cause, kind: str, detail: str, frames: Iterable[str] = (), phase: str = "") -> str:
    """Return the fingerprint. kind: exception type or signal; detail: a signature's id, or the message; frames: see frames_of."""
    known = "" if phase in {"", "unknown"} else phase
    # first: without its digits a secret is no longer recognised. Another node may have another key
    shown = normalised(redact.MARKED.sub("<hidden>", redact.text(detail)))
    return ":".join(field for field in (cause.value, kind, shown, *frames, known) if field)


def normalised(text: str) -> str:
    """Return the first line without the values that differ between two occurrences."""
    line = text.strip().split("\n", 1)[0]
    line = _PATH.sub(lambda match: match["name"], line)
    line = _TEMPORARY.sub("tmp", line)  # before _HEX, which may take a part of a name
    line = _DATE.sub("#", line)
    line = _HEX.sub("#", line)
    line = _DATA_FILE.sub(r"\g<word>-#.\g<kind>", line)
    line = _MACHINE.sub(r"\g<what>-#", line)
    line = _NUMBER.sub("#", line)
    return _SPACE.sub(" ", line)[:MOST_CHARACTERS].strip().replace(":", ";")


def frames_of(traceback: str) -> tuple[str, ...]:
    """Return the innermost frames as file:function, outermost first: of the user's code, or of any code if there is none."""
    frames = frames_in(traceback)
    return tuple(f"{frame.path.rsplit('/', 1)[-1]}:{frame.function}".rstrip(":") for frame in (_own(frames) or frames)[-FRAMES:])


def place_of(traceback: str) -> Frame | None:
    """Return the innermost frame of the user's code, None if there is none."""
    own = _own(frames_in(traceback))
    return own[-1] if own else None


def _own(frames: list[Frame]) -> list[Frame]:
    return [frame for frame in frames if not _LIBRARY.search(frame.path)]
