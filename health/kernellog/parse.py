"""Reads saved kernel logs in every common format, and yields the messages that may be the kernel's.

The formats: records of /dev/kmsg, `dmesg` with any of its options, `journalctl` short, iso, monotonic, full, unix, cat or JSON, syslog
files with and without host, RFC 5424, rsyslog's `#012` for a newline. A line that names another facility, program tag or transport is left
out. A line without marks may be the kernel's; its `sure` is False.

A line in another dress (a collector's prefix, a date in another language) is read where the kernel's own mark is in it; its time is
unknown.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from health.kernellog.model import Entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LONGEST_LINE = 12288
#: The bytes of a row of JSON: a message of LONGEST_LINE bytes that are not text is a list of numbers there.
LONGEST_ROW = 1 << 20
#: A document of JSON, of several lines, is held as a whole: this much of it, in characters.
LONGEST_DOCUMENT = 1 << 26
#: A log without years begins in one that has a 29th of February.
_SOME_YEAR = 2000
_HALF_A_YEAR_S = 180 * 86400
#: No time that a log can mean.
_FOR_EVER_S = 1e12

#: A line of a record's dictionary, as /dev/kmsg gives it after the message.
_DICTIONARY = re.compile(r" [A-Z_]+=")
_COLOURS = re.compile(r"\x1b\[[0-9;]*[mK]")
#: dmesg -H, where the minute is a new one; and a time of ISO 8601 in brackets.
_MINUTE = re.compile(r"\[(?P<mon>[A-Z][a-z]{2}) ?(?P<d>\d{1,2}) (?P<clock>\d\d:\d\d)\] ")
_BRACKETED = re.compile(r"\[(?=\d{4}-\d\d-\d\dT)([^\]]+)\] ")
_KMSG = re.compile(r"(?P<pri>\d{1,4}),\d+,(?P<us>\d{1,18}),[^;]{1,80};(?P<rest>.*)")
_PRI = re.compile(r"<(?P<pri>\d{1,3})>(?:1 )?")
_LEVEL = re.compile(
    r"(?P<facility>kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|res\d+|local\d) *:"
    r"(?:emerg|alert|crit|err|warn|notice|info|debug) *: "
)
_CALLER = r"(?: ?\[ *[TC]\d+\])? ?"  # CONFIG_PRINTK_CALLER
_UPTIME = re.compile(r"\[ *(?P<s>\d{1,12}\.\d{3,6})\]" + _CALLER)
_DELTA = re.compile(r"\[ *(?P<sign>[+<])? *(?P<s>\d{1,12}\.\d{6})>?\] ")
_CTIME = re.compile(
    r"\[(?:[^\W\d]{2,5}\.? )?(?P<mon>[^\W\d]{3,9})\.? +(?P<d>\d{1,2}) (?P<clock>\d\d:\d\d:\d\d)(?:\.\d+)? (?P<y>\d{4})\]" + _CALLER
)
_ISO = re.compile(
    r"(?:[^\W\d]{1,5}\.? )?(?P<date>\d{4}-\d\d-\d\d)[T ](?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<us>\d{1,9}))?"
    r"(?: ?(?P<zone>Z|[+-]\d\d:?\d\d)| [A-Z]{2,5}(?=\s))?\s+"
)
_DMESG_ISO = re.compile(r"(?:[a-z0-9]+ *:[a-z]+ *: )?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]\d\d:\d\d ")
_SYSLOG = re.compile(r"(?P<mon>[^\W\d]{3,5})\.? +(?P<d>\d{1,2}) (?:(?P<y>\d{4}) )?(?P<clock>\d\d:\d\d:\d\d)(?:\.(?P<us>\d+))?\s+")
_UNIX = re.compile(r"(?P<s>\d{9,10}\.\d{3,6}) (?=\S+ \S+)")
_TAG = re.compile(r"(?:(?P<host>[^\s:\[\]]+|\.\.\.) +)?(?P<tag>kernel|[Kk]ern(?:el)?\[\d+\]|kernel\[\d*\]):(?= |\S) ?")
_RFC5424 = re.compile(r"(?P<host>\S+) kernel (?:-|\d+) \S+ (?:-|\[[^\]]*\]) (?:\ufeff)?")
_OTHERS = re.compile(r"(?P<host>[\w.@-]+) (?P<tag>[\w./@()-]+?)(?:\[(?P<pid>\d+)\])?: (?P<text>.*)")
#: Messages whose beginning looks like a host and a program.
_DRIVER = re.compile(r"(?:nvme|mlx\d_core|pcieport|amdgpu|nvidia|EDAC|XFS|BTRFS|EXT4-fs|NETDEV|INFO:|watchdog:) ")
#: Marks of the kernel's after a time or a prefix of unknown form: its tag, the time of dmesg, or a date in brackets.
_UNREAD = re.compile(
    r"(?:(?:[^:]|(?<=\d):(?=\d\d)){1,120}? kernel: ?|[^\[]{1,80}?(?=\[ *\d{1,12}\.\d{6}\] )|\[[^\[\]]{0,40}\d\d:\d\d:\d\d[^\[\]]{0,20}\] ?)"
    r"(?:\[ *(?:\d{1,12}\.\d{6}|[TC]\d+)\] ?)*"
)
#: Only the driver's messages begin so. In a line of unknown form, the text before one is left out.
_OWN = re.compile(r"(?<=[\s\])}>|;,])(?:NVRM: |nvidia-nvswitch\d*: )")
_OF_A_PROGRAM = re.compile(r"[\w./@()-]+(?:\[\d+\])?: ?$")
_NETWORKD = re.compile(r"(?P<nic>\S+): (?:Lost|Gained) carrier")
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
_BLANK = "\ufeff \t\r\n\x1e"
_COUNT = re.compile(r"\d{1,18}")
_OBJECT = re.compile(r'\{\s*"')
_MONTHS = {name: number for number, name in enumerate(re.findall("...", "janfebmaraprmayjunjulaugsepoctnovdec"), 1)}


class Source(Protocol):
    """Where a log's text comes from."""

    def read(self, most: int, /) -> str:
        """Return so many characters, fewer at the end."""

    def readline(self, most: int, /) -> str:
        """Return a line, or so much of it; "" at the end."""


class LogTooLongError(ValueError):
    """A log that must be held in memory as a whole, and is too long."""


def entries(text: str) -> Iterator[Entry]:
    """Yield the kernel's messages of a whole file, in its order."""
    return streamed(io.StringIO(text))


def streamed(stream: Source) -> Iterator[Entry]:
    """Yield the kernel's messages of a stream, in its order, however long it is: only a document of JSON is held as a whole.

    Raises OSError, and LogTooLongError of a document longer than LONGEST_DOCUMENT.
    """
    number = 0
    while (first := stream.readline(LONGEST_ROW)) and not first.strip(_BLANK):
        number += 1
    if _is_document(first):
        text = first + stream.read(LONGEST_DOCUMENT)
        if len(text) > LONGEST_DOCUMENT:
            raise LogTooLongError(f"a document of JSON of more than {LONGEST_DOCUMENT >> 20} MiB")
        yield from _of_json(text, number + 1)
    else:
        yield from Lines(number).all(_lines(stream, first))


def _is_document(first: str) -> bool:
    """Return whether a text is JSON over several lines, by its first line."""
    start = first.strip(_BLANK)
    if start not in {"{", "["} and start[:2] != "[{" and _OBJECT.match(start) is None:
        return False
    value = _decoded(start)
    return not isinstance(value, dict) or "dmesg" in value


def _lines(stream: Source, line: str) -> Iterator[str]:
    """Yield `line` and those after it; a longer one than LONGEST_ROW is cut."""
    while line:
        yield line.replace("\x00", "")  # what a crash leaves in a file
        while line and not line.endswith("\n"):
            line = stream.readline(LONGEST_ROW)
        line = stream.readline(LONGEST_ROW)


@dataclass(frozen=True, slots=True)
class _Head:
    """The rest of a line, and the text before it."""

    text: str
    t: float | None = None
    uptime: float | None = None
    sure: bool = False
    dated: bool = False
    host: str = ""


class Lines:
    """Reads lines in their order, because a time may be a difference to the line before, and years may be missing."""

    def __init__(self, number: int = 0) -> None:
        """Prepare. number: of lines that are behind already."""
        self._t: float | None = None
        self._year = _SOME_YEAR
        self._number = number

    def all(self, lines: Iterable[str]) -> Iterator[Entry]:
        """Yield what each line gives."""
        for line in lines:
            entry = self.read(line)
            if entry is not None:
                yield entry

    def read(self, line: str) -> Entry | None:
        """Return the kernel's message in a line, None where there is none."""
        self._number += 1
        if _OBJECT.match(row := line.strip(_BLANK)):
            return next(iter(_json_entry(_decoded(row), row, self._number)), None)
        raw = line.rstrip("\r\n ")[:LONGEST_LINE]
        raw = _COLOURS.sub("", raw) if "\x1b" in raw else raw
        if not raw or _DICTIONARY.match(raw):
            return None
        text = raw.lstrip("\ufeff\x1e \t")
        if match := _KMSG.match(text):
            since = int(match["us"]) / 1e6
            return None if int(match["pri"]) >> 3 else self._made(_Head(_unescaped(match["rest"]), since, since, sure=True), raw)
        head = _marked(_Head(text))
        if head is not None:
            head = _tagged(self._stamped(head))
        if head is not None and not head.sure:
            head = _of_unknown_form(head)
        return None if head is None else self._made(head, raw)

    def _made(self, head: _Head, raw: str) -> Entry:
        if head.t is not None:
            self._t = head.t
        return Entry(_first(head.text), raw, self._number, head.t, head.uptime, head.sure, head.host)

    def _stamped(self, head: _Head) -> _Head:  # noqa: PLR0911  one for each way to write a time
        """Take the time off the beginning."""
        text, t, dated = self._time(head.text)
        if dated:
            return replace(head, text=text, t=t, dated=True)
        if match := _UPTIME.match(text):
            since = float(match["s"])
            return replace(head, text=text[match.end() :], t=since, uptime=since, sure=True, dated=True)
        if match := _DELTA.match(text):
            t = (self._t or 0.0) + float(match["s"]) if match["sign"] else float(match["s"])
            return replace(head, text=text[match.end() :], t=t, sure=True, dated=True)
        if match := _MINUTE.match(text):
            t = self._wall(match["mon"], match["d"], f"{match['clock']}:00", None, None)
            return replace(head, text=text[match.end() :], t=t, sure=True, dated=True)
        if match := _BRACKETED.match(text):
            t = self._time(f"{match[1]} ")[1]
            return replace(head, text=text[match.end() :], t=t, sure=True, dated=True)
        if match := _CTIME.match(text):
            t = self._wall(match["mon"], match["d"], match["clock"], match["y"], None)
            return replace(head, text=text[match.end() :], t=t, sure=True, dated=True)
        return head

    def _time(self, text: str) -> tuple[str, float | None, bool]:
        """Take a wall time off the beginning; return the rest, the time, and whether there was one."""
        if match := _ISO.match(text):
            zone = (match["zone"] or "Z").replace("Z", "+00:00")
            try:
                t = datetime.fromisoformat(f"{match['date']}T{match['clock']}{zone}").timestamp()
            except ValueError:
                return text, None, False
            return text[match.end() :], t + _fraction(match["us"]), True
        if match := _SYSLOG.match(text):
            return text[match.end() :], self._wall(match["mon"], match["d"], match["clock"], match["y"], match["us"]), True
        if match := _UNIX.match(text):
            return text[match.end() :], float(match["s"]), True
        return text, None, False

    def _wall(self, month: str, day: str, clock: str, year: str | None, us: str | None) -> float | None:
        """Return the time of a date; None of a month that is not in English."""
        number = _MONTHS.get(month.lower()[:3])
        if number is None:
            return None
        try:
            t = datetime.fromisoformat(f"{year or self._year}-{number:02d}-{int(day):02d}T{clock}").replace(tzinfo=UTC).timestamp()
        except ValueError:
            return None
        if year is None and self._t is not None and self._t - t > _HALF_A_YEAR_S:  # a new year began
            self._year += 1
            return self._wall(month, day, clock, year, us) if self._year < _SOME_YEAR + 100 else t
        return t + _fraction(us)


def _marked(head: _Head) -> _Head | None:
    """Take facility and level off the beginning; None of another facility than the kernel's."""
    text, sure = head.text, _DMESG_ISO.match(head.text) is not None  # nobody else writes a comma before the fraction, and no host
    if match := _PRI.match(text):
        if int(match["pri"]) >> 3:
            return None
        text, sure = text[match.end() :], True
    if match := _LEVEL.match(text):
        if match["facility"] != "kern":
            return None
        text, sure = text[match.end() :], True
    return replace(head, text=text, sure=sure)


def _tagged(head: _Head) -> _Head | None:
    """Take host and program off the beginning; None of another program's."""
    if match := _RFC5424.match(head.text) or _TAG.match(head.text):
        text, uptime = head.text[match.end() :], head.uptime
        if since := _UPTIME.match(text):
            text, uptime = text[since.end() :], float(since["s"])
        return replace(head, text=text, uptime=uptime, sure=True, host=match.groupdict().get("host") or head.host)
    if head.dated and not head.sure and not _DRIVER.match(head.text) and (match := _OTHERS.match(head.text)):
        if match["tag"] == "systemd-networkd" and _NETWORKD.match(match["text"]):
            return replace(head, text=match["text"], sure=True, host=match["host"])
        return None
    return head


def _of_unknown_form(head: _Head) -> _Head | None:
    """Take off the text before a mark of the kernel's, or before a message of the GPU driver's; None of one that a program quotes."""
    if not head.dated and (match := _UNREAD.match(head.text)):
        return replace(head, text=head.text[match.end() :], sure=True)
    own = _OWN.search(head.text)
    if own is None:
        return head
    return None if _OF_A_PROGRAM.search(head.text[: own.start()]) else replace(head, text=head.text[own.start() :])


def _fraction(digits: str | None) -> float:
    return float(f"0.{digits}") if digits else 0.0


def _unescaped(text: str) -> str:
    """Return what /dev/kmsg escaped."""
    return _ESCAPED.sub(lambda escape: chr(int(escape[1], 16)), text) if "\\x" in text else text


def _decoded(text: str) -> Any:  # noqa: ANN401  whatever JSON holds
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _of_json(text: str, number: int) -> Iterator[Entry]:
    """Yield what JSON values, one after another, hold: `journalctl -o json`, json-pretty, json-seq, `dmesg --json`."""
    decoder, at, seen = json.JSONDecoder(), 0, 0
    while True:
        while at < len(text) and text[at] in _BLANK + ",":
            at += 1
        if at >= len(text):
            return
        number += text.count("\n", seen, at)
        seen = at
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):  # a line that was cut
            end = text.find("\n", at)
            if end < 0:
                return
            at = end
            continue
        yield from _json_entry(value, text[at:end], number)
        at = end


def _json_entry(value: Any, raw: str, number: int) -> Iterator[Entry]:  # noqa: ANN401  whatever JSON holds
    """Yield the messages of a row of journalctl's or of dmesg's."""
    rows = value.get("dmesg", value) if isinstance(value, dict) else value
    if isinstance(rows, list):
        for row in rows:
            yield from _json_entry(row, json.dumps(row), number)
    elif isinstance(rows, dict):
        line = raw if "\n" not in raw else json.dumps(rows)
        entry = _of_dmesg(rows, line, number) if "msg" in rows else _of_journal(rows, line, number)
        if entry is not None:
            yield entry


def _of_dmesg(row: dict[str, Any], line: str, number: int) -> Entry | None:
    pri, t = row.get("pri", 0), row.get("time")
    if not isinstance(pri, int) or pri >> 3 or row.get("fac", "kern") != "kern":
        return None
    since = float(t) if isinstance(t, int | float) and abs(t) < _FOR_EVER_S else None
    return Entry(_first(str(row["msg"])), line, number, since, since)


def _of_journal(row: dict[str, Any], line: str, number: int) -> Entry | None:
    message = row.get("MESSAGE")
    if isinstance(message, list):  # bytes that are not text
        message = bytes(byte for byte in message if isinstance(byte, int) and 0 <= byte < 256).decode("utf-8", "replace")  # noqa: PLR2004  a byte
    if not isinstance(message, str):
        return None
    transport, facility, tag = (row.get(key) for key in ("_TRANSPORT", "SYSLOG_FACILITY", "SYSLOG_IDENTIFIER"))
    us = str(row.get("__REALTIME_TIMESTAMP", ""))
    since = str(row.get("_SOURCE_MONOTONIC_TIMESTAMP", row.get("_SOURCE_BOOTTIME_TIMESTAMP", "")))
    t = _seconds(us)
    host = str(row.get("_HOSTNAME", ""))
    if tag == "systemd-networkd" and transport != "kernel":
        return Entry(message, line, number, t, None, host=host) if _NETWORKD.match(message) else None
    is_marked = transport is not None or facility is not None or tag == "kernel"
    if not is_marked or (transport or "kernel") != "kernel" or str(facility or 0) != "0":
        return None
    return Entry(_first(message), line, number, t, _seconds(since), host=host)


def _seconds(us: str) -> float | None:
    """Return the seconds of a count of microseconds, None for another text."""
    return int(us) / 1e6 if _COUNT.fullmatch(us) else None


def _first(message: str) -> str:
    """Return a message's first line, without rsyslog's marks for the others."""
    return message.replace("#012", "\n").split("\n", 1)[0].strip()
