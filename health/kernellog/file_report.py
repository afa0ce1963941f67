"""Judges a saved kernel log, read as it comes, so that a log of any length takes little memory."""

from __future__ import annotations

import codecs
import errno
import gzip
import json
import os
import sys
import zlib
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader, FileIO, StringIO, TextIOWrapper
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

from health.kernellog import parse
from health.kernellog.correlate import Correlator
from health.kernellog.model import LogFinding
from health.model import SEVERITIES, Repair, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO


FOUND: Final = 69
_GZIP: Final = b"\x1f\x8b"
#: First bytes of logs in another form.
_OTHERS: Final = {
    b"\xfd7zXZ": ("it is packed by xz", "Unpack it: `xz -dc {path} | supervise doctor --kernel-log -`."),
    b"(\xb5/\xfd": ("it is packed by zstd", "Unpack it: `zstd -dc {path} | supervise doctor --kernel-log -`."),
    b"BZh": ("it is packed by bzip2", "Unpack it: `bzip2 -dc {path} | supervise doctor --kernel-log -`."),
    b"PK\x03\x04": ("it is a zip archive", "Unpack it: `unzip -p {path} | supervise doctor --kernel-log -`."),
    b"__": ("it is in journalctl's export format", "Save text: `journalctl -k > FILE`."),
    b"LPKSHHRH": (
        "it is a file of the journal",
        "Let journalctl read it: `journalctl --file {path} -k | supervise doctor --kernel-log -`.",
    ),
}
#: The largest share of bytes that are not UTF-8. A log in another encoding has a few such letters.
_FOREIGN_SHARE: Final = 0.1
_BEGINNING: Final = 8192
_SHOWN: Final = 160
_COMMANDS: Final = {
    Repair.RESET_GPU: "nvidia-smi --gpu-reset -i GPU, once nothing runs on it",
    Repair.RESTART_DRIVER: "restart what uses the GPUs, then reload the driver or reboot",
    Repair.REBOOT: "reboot the node",
    Repair.DRAIN: "take no more work on this node (GPU) until it is inspected",
    Repair.REPLACE: "have the part replaced",
    Repair.CONFIGURE: "change the setting that is named",
    Repair.RESTART_JOB: "start the job again",
}


class LogUnreadableError(Exception):
    """A file that cannot be read. hint: what to name instead."""

    hint: Final = "Name a file that can be read, or `-` for standard input: `dmesg | supervise doctor --kernel-log -`."


class LogFormError(ValueError):
    """A file that is not a text of a log. hint: the command that makes one of it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class LogReport:
    """The result for a saved log. messages: the number of lines that can be the kernel's. forgotten: older findings, only counted."""

    findings: tuple[LogFinding, ...]
    messages: int
    forgotten: Mapping[Severity, int] = field(default_factory=dict)


@contextmanager
def opened(path: str) -> Iterator[TextIO]:
    """Open a file as text; gzip is unpacked. Raises OSError and LogFormError, also during a read."""
    with _bytes_of(path) as data:
        begins = data.peek()
        for magic, (kind, hint) in _OTHERS.items():
            if begins.startswith(magic):
                raise LogFormError(kind, hint.format(path=path))
        if begins.startswith(_GZIP):
            try:
                with gzip.GzipFile(fileobj=data) as unpacked:
                    yield _text(unpacked, unpacked.peek(_BEGINNING))
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise LogFormError(
                    f"its gzip is damaged: {error}",
                    f"Judge the readable part: `gzip -dc {quote(str(path))} | supervise doctor --kernel-log -`.",
                ) from error
        else:
            yield _text(data, begins)


def _bytes_of(path: str) -> BufferedReader:
    if path != "-":
        return Path(path).open("rb")
    if sys.stdin is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return BufferedReader(FileIO(sys.stdin.fileno(), closefd=False))


def _text(data: BufferedReader | gzip.GzipFile, begins: bytes) -> TextIO:
    utf_16 = begins[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    if not utf_16 and begins.decode("utf-8", "replace").count("\ufffd") > _FOREIGN_SHARE * len(begins):
        raise LogFormError("it is not text", "Save one: `dmesg > FILE`, or `journalctl -k > FILE`.")
    return TextIOWrapper(data, "utf-16" if utf_16 else "utf-8", "replace", newline="\n")


class _Noted:
    """A stream of text that notes whether it had any text."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.has_text = False

    def read(self, most: int) -> str:
        return self._note(self._stream.read(most))

    def readline(self, most: int) -> str:
        return self._note(self._stream.readline(most))

    def _note(self, text: str) -> str:
        self.has_text = self.has_text or bool(text.strip())
        return text


def report(path: str, out: TextIO, *, as_json: bool) -> int:
    """Print what a saved log shows, as JSON one object a line; `-` is standard input. Return 69 for a critical finding, else 0.

    Raises LogUnreadableError, LogFormError; OSError where nothing can be printed.
    """
    name = "standard input" if path == "-" else path or "''"
    try:
        with opened(path) as stream:
            judged = judge_stream(stream)
    except OSError as error:
        raise LogUnreadableError(f"kernel log not readable: {name}: {error.strerror or error}") from error
    except LogFormError as error:
        raise LogFormError(f"no text of a kernel log: {name}: {error}", error.hint) from error
    return show(judged, as_json=as_json, out=out)


def judge(text: str) -> tuple[LogFinding, ...]:
    """Return the findings of a log's text, in its order. Raises LogFormError."""
    return _judged(_Noted(StringIO(text))).findings


def judge_stream(stream: TextIO) -> LogReport:
    """Judge a log as it is read. Raises OSError, LogFormError; that also of a text in which no line can be the kernel's."""
    noted = _Noted(stream)
    judged = _judged(noted)
    if noted.has_text and not judged.messages:
        hint = "Save one: `dmesg > FILE`, or `journalctl -k > FILE`."
        raise LogFormError("no line of it can be the kernel's, so it proves nothing about the node", hint)
    return judged


def _judged(stream: parse.Source) -> LogReport:
    correlator, messages = Correlator(), 0
    try:
        for entry in parse.streamed(stream):
            correlator.take(entry)
            messages += 1
    except parse.LogTooLongError as error:
        raise LogFormError(str(error), "Save it one object a line: `journalctl -k -o json > FILE`.") from error
    return LogReport(correlator.findings(), messages, correlator.forgotten)


def show(judged: LogReport, *, as_json: bool, out: TextIO) -> int:
    """Print the findings of a saved log. Returns the exit code. Raises OSError where nothing can be printed."""
    findings, forgotten = judged.findings, sum(judged.forgotten.values())
    if as_json:
        out.writelines(json.dumps(finding.to_json(), ensure_ascii=False) + "\n" for finding in findings)
    elif not judged.messages:
        out.write("this log has no kernel message, so it proves nothing about the node\n")
    else:
        out.write(_as_text(findings))
    if forgotten:
        counts = ", ".join(
            f"{judged.forgotten[severity]} {severity.value}" for severity in reversed(SEVERITIES) if judged.forgotten.get(severity)
        )
        note = f"{forgotten} older findings are not shown ({counts}): judge the log in parts to see them"
        print(note, file=sys.stderr if as_json else out)
    critical = judged.forgotten.get(Severity.CRITICAL) or any(finding.severity is Severity.CRITICAL for finding in findings)
    return FOUND if critical else 0


def _as_text(findings: Sequence[LogFinding]) -> str:
    if not findings:
        return "nothing in this log needs attention\n"
    written = []
    for finding in sorted(findings, key=lambda finding: -SEVERITIES.index(finding.severity)):
        where = " ".join(word for word in (finding.pci, finding.subject) if word)
        again = f" ({finding.count} lines)" if finding.count > 1 else ""
        written.append(f"{finding.severity.value:8}  {finding.kind} {finding.code}  {where}{again}\n")
        written.append(f"          {finding.meaning}{'; ' + finding.reason if finding.reason else ''}\n")
        if finding.repair in _COMMANDS:
            written.append(f"          repair: {finding.repair.value}: {_COMMANDS[finding.repair]}\n")
        when = " (time unknown)" if finding.t is None else ""
        written.append(f"          line {finding.number}{when}: {finding.line.strip()[:_SHOWN]}\n")
    return "".join(written)
