"""Finds Python tracebacks in logs that several ranks write at once.

A Finder keeps one open traceback for each rank, so interleaved lines with `[rank3]:` or `3: ` prefixes do not mix. A traceback whose first
lines are missing is recognised by the form of its frames. Chained exceptions, exception groups, the boxes of `rich` and an `Original
Traceback` inside another message (DataLoader workers, spawned processes) all become exceptions in printed order.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from supervisor.classify import exits
from supervisor.classify.exception_table import OF_VALUES
from supervisor.classify.expressions import expression
from supervisor.classify.logs.text import Line
from supervisor.core.values import Struct, field

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_OPEN = 512
MOST_FRAMES = 64
MOST_RAISED = 16
MOST_MESSAGE_LINES = 60
MOST_MESSAGE_CHARACTERS = 8192
LONGEST_MESSAGE_LINE = 4096
#: Characters that all open tracebacks hold together. Above this the Finder closes the oldest.
MOST_HELD = 2 << 20
#: The cost of a frame besides its texts, in characters.
_FRAME_COST = 100
#: Lines that may count as source code of a traceback before the Finder closes it.
MOST_SOURCE_LINES = 200
#: Lines between a line of _IGNORED or _OF_A_THREAD and its traceback.
MOST_LINES_BETWEEN = 2

#: The text before a header in its line is more than a prefix from so many characters on.
LONGEST_PREFIX = 60

_HEADER = expression(r"(?P<before>.*?)(?:Exception Group )?Traceback \(most recent call last\)", re.DOTALL)
_FRAME = expression(r'(?P<indent>\s*)File "(?P<path>[^"\n]{1,1024})", line (?P<line>\d{1,9})(?:, in (?P<function>.{1,256}))?\s*$')
_KIND = (
    r"(?:[A-Za-z_][\w]*\.|<locals>\.){0,12}[A-Za-z_]\w*"  # pkg.module.outer.Type
    r"(?:\([A-Za-z_][\w.]*\))?"  # RayTaskError(OutOfMemoryError)
)
_RAISED = expression(rf"(?P<kind>{_KIND})(?:: (?P<message>.*)|:)?$", re.DOTALL)
#: The sign of an exception's class name: a capital letter, or such a word. Else it is the rest of a frame that a terminal folded.
_NAMED = expression(r"(?:^|\.)_*(?:\w*[A-Z]\w*|\w*(?:error|timeout|exception|interrupt|exit))(?:\([\w.]+\))?$")
# Without a frame above it, a line is an exception only if its name is that of one.
_BARE = expression(
    r"(?P<kind>(?:[A-Za-z_]\w*\.){0,12}[A-Z]\w*(?:Error|Exception|Interrupt|Timeout|Exit|Failure|OutOfMemory)(?:\([A-Za-z_][\w.]*\))?"
    r"|(?:[a-z_]\w*\.){1,12}(?:[a-z]*error|timeout)"  # socket.gaierror, struct.error
    r"|(?:[a-z_]\w*\.){1,12}(?:errors?|_?exceptions?)\.[A-Z]\w*)"  # omegaconf.errors.MissingMandatoryValue
    r"(?:: ?(?P<message>.*)|:?)$",
    re.DOTALL,
)
#: What Python prints between an exception that was handled, or that another one was raised `from`, and the next of the chain.
HANDLED = "During handling of the above exception, another exception occurred:"
DIRECT = "The above exception was the direct cause of the following exception:"
_CHAIN = (HANDLED, DIRECT)
_GROUP_MARGIN = expression(r"\s*(?:\||\+-[+-]*(?: \d+ -+)?(?=$|-)|\+(?= Exception Group))\s?")
#: Lines before a traceback that ended nothing: of a finalizer, of logging itself, of an exit handler.
_IGNORED = ("Exception ignored in", "--- Logging error ---", "Error in atexit.", "Exception ignored on")
#: threading prints this before the traceback of a thread; the program continues.
_OF_A_THREAD = "Exception in thread "
_OF_TRACKERS = expression(r"[/\\](?:wandb|mlflow|tensorboard\w*|comet_ml|neptune|clearml|aim|swanlab)[/\\]")
#: pytest puts this before the lines of an exception.
_PYTEST = "E   "
_FIGURES = expression(r"\d+")
_BOX = expression(r"^\s*│(?P<inside>.*?)│?\s*$")
_BOX_EDGE = expression(r"^\s*[╭╰][─ ]")
_BOX_FRAME = expression(r"\s*(?P<path>(?:/|<|\.{0,2}/|[A-Za-z]:\\|~|\w[\w./-]*\.py)[^:│]*):(?P<line>\d+) in (?P<function>[\w<>.]+)")
#: multiprocessing puts these around a child's traceback.
_QUOTES = '"""'
# Lines that never belong to a message: of loggers and launchers, progress bars, C++ reports.
_FOREIGN = expression(
    r"\[?\d{4}-\d\d-\d\d[T _]\d\d:\d\d|\d\d:\d\d:\d\d|\[?[EWIF]\d{4} \d\d:|\[[A-Z]+\] |(?:ERROR|WARNING|INFO|DEBUG|CRITICAL)\b"
    r"|terminate called|Fatal Python error|={10,}|-{20,}|\*{10,}|\s*\d{1,3}%\||srun: |slurmstepd: "
    r"|\w+:\d+:\d+ \[\d\] NCCL |Epoch\b|Exception (?:in thread|ignored in) |\{'loss'"
    r"|\[W|\[E|wandb: |Current thread|Thread 0x|\[rank\d|Sending process|make: |\++ "
)


class Frame(Struct, frozen=True):
    """One frame, as printed."""

    path: str
    line: int
    function: str


def frames_in(trace: str) -> list[Frame]:
    """Return the frames of a traceback's text."""
    return [_frame(match) for line in trace.splitlines() if (match := _FRAME.match(line))]


def before_header(line: str) -> str:
    """Return the text of a line before the header of a traceback, "" if it is no more than a prefix."""
    match = _HEADER.match(line) if "Traceback (most recent call last" in line else None
    return match["before"] if match and len(match["before"]) >= LONGEST_PREFIX else ""


def calls(frames: Iterable[Frame]) -> str:
    """Return frames in the form that a row's `frames` pattern searches: "path:function", one a line."""
    return "\n".join(f"{frame.path}:{frame.function}" for frame in frames).replace("\\", "/")


def up_to_root(trace: str) -> tuple[str, str]:
    """Return the root that the last exception of a traceback was raised `from`, and the traceback up to its end; ("", "") if none."""
    chain = direct_causes(trace)
    while chain and any(exits.refers_elsewhere(text) for text, _ in chain):
        del chain[0]
    if not chain:
        return "", ""
    text, part = chain[0]
    return text, trace[: len(trace) - len(trace.rpartition(HANDLED)[2]) + len(part)]


def direct_causes(trace: str) -> list[tuple[str, str]]:
    """Return the exceptions that the last one of a printed traceback was raised `from`, the root first, each with its part of the text.

    An exception that the program handled is left out, with those that it was raised `from`.
    """
    *parts, _ = trace.rpartition(HANDLED)[2].split(DIRECT)
    causes = []
    for trace_part in parts:
        finder = Finder()
        for number, line in enumerate(trace_part.splitlines(), start=1):
            finder.feed(Line(line), number)
        raised = [printed_exception for traceback in finder.finish() for printed_exception in traceback.raised]
        causes += [(raised[-1].text, trace_part)] if raised else []
    return causes


class PrintedException(Struct, frozen=True):
    """One exception. kind: its type with modules. message: its lines. line: the line of the log where it was printed.

    caused_next: the next one of its chain was raised `from` it.
    """

    kind: str
    message: str
    line: int
    frames: tuple[Frame, ...] = ()
    caused_next: bool = False

    @property
    def text(self) -> str:
        """As Python prints it."""
        return f"{self.kind}: {self.message}" if self.message else self.kind


class Traceback(Struct, frozen=True):
    """A chain of exceptions in printed order; the last one ended the program. `raised` is empty if the stream ended within the frames.

    whole: its first line was seen. thread: it ended a thread other than the main one.
    """

    raised: tuple[PrintedException, ...]
    rank: int | None
    node: str
    first_line: int
    last_line: int
    whole: bool
    t: float = 0.0
    thread: bool = False

    @property
    def is_of_a_tracker(self) -> bool:
        """Whether it is of a thread of a tracking service's client, which never ends the program."""
        return self.thread and any(_OF_TRACKERS.search(frame.path) for raised in self.raised for frame in raised.frames)

    @property
    def root(self) -> PrintedException:
        """The exception that the last one was raised `from`, or the last one itself.

        One that was handled is not a root, nor is one that only says that another process failed.
        """
        first = len(self.raised) - 1
        while first > 0 and self.raised[first - 1].caused_next and not exits.refers_elsewhere(self.raised[first - 1].text):
            first -= 1
        return self.raised[first]


class _Open(Struct):
    """A traceback of which more lines may come."""

    rank: int | None
    node: str
    first_line: int
    whole: bool
    t: float
    last_line: int = 0
    indent: str = ""
    prefix: re.Pattern[str] | None = None
    frames: list[Frame] = field(default_factory=list)
    raised: list[PrintedException] = field(default_factory=list)
    kind: str = ""
    message: list[str] = field(default_factory=list)
    raised_line: int = 0
    colon: bool = True
    blank: bool = False
    idle: int = 0
    box: bool = False
    ignored: bool = False
    thread: bool = False
    held: int = 0  # characters


class Finder:
    """Finds the tracebacks of one stream. It holds at most MOST_OPEN of them, of bounded length."""

    def __init__(self) -> None:
        """Begin with none."""
        self._open: dict[tuple[int | None, str], _Open] = {}
        self._held = 0
        self._done: list[Traceback] = []
        self._ignored: tuple[tuple[int | None, str], int] = ((None, ""), -MOST_LINES_BETWEEN - 1)
        self._threads: tuple[tuple[int | None, str], int] = self._ignored  # of the last line that names a failed thread

    @property
    def reading(self) -> bool:
        """Whether the next lines may belong to a traceback."""
        return bool(self._open)

    def raises(self, line: Line, number: int) -> bool:
        """Whether a line already fed is the "Type: message" of a traceback that continues."""
        now = self._open.get(_key(line))
        return now is not None and now.raised_line == number

    def take(self) -> list[Traceback]:
        """Return the tracebacks that ended since the last call."""
        done, self._done = self._done, []
        return done

    def finish(self) -> list[Traceback]:
        """End the stream. Return the remaining tracebacks, also those that its end cut off."""
        for key in list(self._open):
            self._close(key, cut=True)
        return self.take()

    def feed(self, line: Line, number: int, t: float = 0.0) -> bool:
        """Take a line. True if it belongs to a traceback and reports no failure itself: a header, a frame, source code."""
        quoted = self._feed(line, number, t)
        while self._held > MOST_HELD:
            self._close(next(iter(self._open)))
        now = self._open.get(_key(line))
        return quoted or (now is not None and now.ignored)

    def _feed(self, line: Line, number: int, t: float) -> bool:
        key = _key(line)
        text = line.text
        now = self._open.get(key)
        if now is not None and not now.kind and now.idle == 0 and "│" not in text:
            text = _GROUP_MARGIN.sub("", text, count=4) if text.lstrip().startswith(("|", "+")) else text
        header = _HEADER.match(text) if "Traceback (most recent call last" in text else None
        if text.startswith(_IGNORED):
            self._ignored = (key, number)
        if text.startswith(_OF_A_THREAD):
            self._threads = (key, number)
        if header is not None:
            self._header(key, line, number, t, header["before"])
            return True
        if now is None:
            return self._start(key, line, text, number, t)
        if now.prefix is not None and (before := now.prefix.match(text)):
            text = text[before.end() :]
        now.last_line = number
        if now.box:
            return self._boxed(key, now, text, number)
        if text.lstrip().startswith(("|", "+")):
            text = _GROUP_MARGIN.sub("", text, count=4)
        return self._message(key, now, line, text, number, t) if now.kind else self._body(key, now, text, number)

    def _header(self, key: tuple[int | None, str], line: Line, number: int, t: float, before: str) -> None:
        now = self._open.get(key)
        if now is not None and now.kind and _nested(before, now.message):
            self._flush(now)
        elif now is not None and not (now.raised and not now.kind and not now.frames):  # else it is chained to the one before
            self._close(key)
            now = None
        if now is None:
            now = self._begin(key, line, number, t, whole=True)
            now.ignored = self._ignored[0] == key and 0 <= number - self._ignored[1] <= MOST_LINES_BETWEEN
            now.thread = self._threads[0] == key and 0 <= number - self._threads[1] <= MOST_LINES_BETWEEN
        now.box = "╭" in before
        now.prefix = _prefix(before) if before.strip(" \t|+-") and not now.box else None
        now.indent = "" if now.box or now.prefix else before[: len(before) - len(before.lstrip())]
        now.idle = 0
        now.blank = False

    def _begin(self, key: tuple[int | None, str], line: Line, number: int, t: float, *, whole: bool) -> _Open:
        if len(self._open) >= MOST_OPEN:
            self._close(next(iter(self._open)))
        now = self._open[key] = _Open(line.rank, line.node, number, whole, t, number)
        return now

    def _start(self, key: tuple[int | None, str], line: Line, text: str, number: int, t: float) -> bool:
        """Take a line outside tracebacks: a frame of one whose first lines are missing, an exception alone, or neither."""
        if '", line ' in text and (frame := _FRAME.match(text)):
            now = self._begin(key, line, number, t, whole=False)
            now.indent = frame["indent"][2:]
            self._add(now, _frame(frame))
            return True
        if not line.echo and (bare := _BARE.match(text.removeprefix(_PYTEST))):
            now = self._begin(key, line, number, t, whole=False)
            self._raise(now, bare, number)
        return False

    def _body(self, key: tuple[int | None, str], now: _Open, text: str, number: int) -> bool:
        """Take a line after a header or a frame."""
        if '", line ' in text and (frame := _FRAME.match(text)):
            self._add(now, _frame(frame))
            now.idle = 0
            return True
        bare = text.removeprefix(now.indent)
        if not text.strip():
            return True
        raised = _RAISED.match(bare) if bare[0] not in " \t" else None
        if raised and _NAMED.search(raised["kind"]) and (now.frames or raised["message"] is not None):
            self._raise(now, raised, number)
            return False
        now.idle += 1
        if now.idle > MOST_SOURCE_LINES or (bare[0] not in " \t^~" and _FOREIGN.match(bare)):
            if now.idle > MOST_SOURCE_LINES:
                self._close(key)
            return False
        return bare[0] in " \t^~" or bare.startswith("[Previous line repeated")

    def _message(  # noqa: PLR0913, PLR0917 (a line, and where it is)
        self, key: tuple[int | None, str], now: _Open, line: Line, text: str, number: int, t: float
    ) -> bool:
        """Take a line after "Type: message": more of the message, the link to the next exception of the chain, or the end."""
        if text.startswith(_CHAIN, len(text) - len(text.lstrip())):
            self._flush(now, caused_next=DIRECT in text)
            now.idle = 1
            return True
        bare = text.removeprefix(now.indent)
        if not bare.strip():
            now.blank = True
            return False
        if bare.strip() == _QUOTES:
            return False
        if '", line ' in text and (frame := _FRAME.match(text)) and not now.blank:
            self._flush(now)  # the frame of a SyntaxError, or a traceback within the message
            self._add(now, _frame(frame))
            now.indent = frame["indent"][2:]
            return True
        quoted = now.whole and not now.blank and now.kind in OF_VALUES and now.message != [""] and _BARE.match(bare) is not None
        indented = bare[0] in " \t"
        complete = now.message == [""] and not now.colon
        ended = complete or (
            _FOREIGN.match(bare)
            or (now.blank and not indented and any(now.message))
            or (_BARE.match(bare) and not quoted)
            or len(now.message) >= MOST_MESSAGE_LINES
        )
        if ended:
            self._close(key)
            return self._start(key, line, text, number, t)
        now.blank = False
        room = MOST_MESSAGE_CHARACTERS - sum(map(len, now.message))
        now.message.append(bare[: max(0, min(room, LONGEST_MESSAGE_LINE))])
        self._hold(now, len(now.message[-1]))
        return quoted

    def _boxed(self, key: tuple[int | None, str], now: _Open, text: str, number: int) -> bool:
        """Take a line of a box of `rich`, or the line after it."""
        if box := _BOX.match(text):
            if (frame := _BOX_FRAME.match(box["inside"])) and len(now.frames) < MOST_FRAMES:
                self._add(now, Frame(frame["path"].strip(), int(frame["line"]), frame["function"]))
            return True
        if _BOX_EDGE.match(text):
            return True
        now.box = False
        return self._body(key, now, text, number)

    def _raise(self, now: _Open, match: re.Match[str], number: int) -> None:
        now.kind = match["kind"]
        now.colon = match.end("kind") < match.end()
        now.message = [(match["message"] or "")[:MOST_MESSAGE_CHARACTERS]]
        self._hold(now, len(now.message[0]))
        now.raised_line = number
        now.last_line = number
        now.blank = False
        now.idle = 0

    def _add(self, now: _Open, frame: Frame) -> None:
        if len(now.frames) >= MOST_FRAMES:
            self._hold(now, -_cost(now.frames.pop(1)))  # the outermost and the innermost frames explain most
        now.frames.append(frame)
        self._hold(now, _cost(frame))

    def _hold(self, now: _Open, characters: int) -> None:
        now.held += characters
        self._held += characters

    def _flush(self, now: _Open, *, caused_next: bool = False) -> None:
        """End the current exception, not the chain."""
        if now.kind:
            message = "\n".join(now.message)[:MOST_MESSAGE_CHARACTERS].rstrip()
            if len(now.raised) >= MOST_RAISED:
                last = now.raised.pop()
                self._hold(now, -len(last.message) - sum(map(_cost, last.frames)))
            now.raised.append(PrintedException(now.kind, message, now.raised_line, tuple(now.frames), caused_next))
        now.kind = ""
        now.message = []
        now.frames = []
        now.blank = False

    def _close(self, key: tuple[int | None, str], *, cut: bool = False) -> None:
        now = self._open.pop(key)
        self._held -= now.held
        unfinished = cut and now.whole and not now.kind and not now.raised
        self._flush(now)
        if (now.raised or unfinished) and not now.ignored:
            self._done.append(Traceback(tuple(now.raised), now.rank, now.node, now.first_line, now.last_line, now.whole, now.t, now.thread))


def _key(line: Line) -> tuple[int | None, str]:
    return line.rank, line.node if line.rank is None else ""


def _frame(match: re.Match[str]) -> Frame:
    return Frame(match["path"], int(match["line"]), (match["function"] or "").strip())


def _cost(frame: Frame) -> int:
    return len(frame.path) + len(frame.function) + _FRAME_COST


def _prefix(before: str) -> re.Pattern[str]:
    """Return a pattern for the logger's prefix before the header, with any digits: it may stand before the other lines too."""
    return expression(_FIGURES.sub(r"\\d+", re.escape(before.rstrip())) + f"[ ]{{0,{len(before) - len(before.rstrip())}}}")


def _nested(before: str, message: list[str]) -> bool:
    """Whether a header is within the message of the exception before it."""
    last = next((line for line in reversed(message) if line.strip()), "").strip()
    return before.strip() in {"Original", "Remote"} or last.endswith(":") or last == _QUOTES
