"""Reads the lines that launchers, shells and schedulers print when a process ends: exit code or signal, and rank if they name it.

Such a line gives evidence of source "exit", as if the supervisor had seen the end itself. But `t` is 0: the order in a launcher's table
does not show which process ended first.
"""

from __future__ import annotations

import re

from supervisor.classify.exits import SIGNAL_NUMBERS
from supervisor.core.model import Evidence
from supervisor.core.values import Struct

#: What a shell prints for a child that died of a signal (bash, dash), and srun for a task.
_SHELL = {
    "Killed": 9,
    "Segmentation fault": 11,
    "Aborted": 6,
    "Bus error": 7,
    "Terminated": 15,
    "Floating point exception": 8,
    "Illegal instruction": 4,
    # bash in Chinese: common in published training logs
    "已杀死": 9,
    "段错误": 11,
    "已放弃": 6,
    "已中止": 6,
    "总线错误": 7,
    "已终止": 15,
    "浮点数例外": 8,
    "非法指令": 4,
}
WORDS = tuple(_SHELL)
_SHELL_WORDS = "|".join(WORDS)
#: zsh's words in its notice of a job's end.
_ZSH = {
    "killed": 9,
    "segmentation fault": 11,
    "abort": 6,
    "bus error": 7,
    "terminated": 15,
    "floating point exception": 8,
    "illegal hardware instruction": 4,
}
_SIGNALS = _SHELL | _ZSH


class _FooterRow(Struct, frozen=True):
    """A form of line. anchors: every such line contains one of them. anywhere: it need not begin the line."""

    anchors: tuple[str, ...]
    pattern: re.Pattern[str]
    anywhere: bool = False


# Sources: torch/distributed/elastic/multiprocessing/{api,errors}.py, torch/multiprocessing/spawn.py, deepspeed/launcher/launch.py,
# python3 subprocess.CalledProcessError, bash(1), srun(1), mpirun(1), time(1), Lightning's subprocess launcher. Gaps are bounded: a line
# may be twelve thousand characters of anything.
_ROWS = (
    _FooterRow(
        ("exitcode",),
        re.compile(r"failed \(exitcode: (?P<code>-?\d{1,10})\) local_rank: (?P<local>\d{1,6}) \(pid: (?P<pid>\d{1,10})\)"),
        anywhere=True,
    ),
    _FooterRow(("exitcode",), re.compile(r"\s{0,40}exitcode {1,8}: (?P<code>-?\d{1,10}) \(pid: (?P<pid>\d{1,10})\)")),
    _FooterRow(
        ("traceback : Signal ", "traceback : signal "),
        re.compile(r"\s{0,40}traceback : [Ss]ignal (?P<signal>\d{1,3}) \(SIG\w{1,10}\) received by PID (?P<pid>\d{1,10})"),
    ),
    _FooterRow(
        ("terminated with",),
        re.compile(
            r"(?:^|: )(?:process|Process|Worker process) \d{1,10} (?:was )?terminated with "
            r"(?:signal (?P<name>SIG\w{1,10})|exit code (?P<code>-?\d{1,10}))"
        ),
        anywhere=True,
    ),
    _FooterRow(("return code",), re.compile(r"\bexits with return code = (?P<code>-?\d{1,10})\s*$"), anywhere=True),
    _FooterRow(
        ("non-zero exit status", "<Signals."),
        re.compile(r"returned non-zero exit status (?P<code>\d{1,3})\b|died with <Signals\.(?P<name>SIG\w{1,10}): \d{1,3}>"),
        anywhere=True,
    ),
    _FooterRow(
        ("terminated with",),
        re.compile(r"(?:^|\[rank: (?P<rank>\d{1,6})\] )Child process with PID \d{1,10} terminated with code (?P<code>-?\d{1,10})"),
        anywhere=True,
    ),
    _FooterRow(
        ("srun: error: ",),
        re.compile(
            r"srun: error: (?P<node>[\w.-]{1,255}): tasks? (?P<rank>\d{1,6})[\d,-]{0,4096}: "
            r"(?:Exited with exit code (?P<code>\d{1,3})|(?P<word>[A-Z][a-z ]{1,40}?)(?: \(core dumped\))?\s*$)"
        ),
    ),
    _FooterRow(
        tuple(_SHELL),
        re.compile(
            r"(?:-?(?:ba|da|z)?sh|[\w./-]{1,512}\.sh|/[\w./-]{1,512}): (?:line )?\d{1,6}: {1,8}(?:(?P<pid>\d{1,10}) )?"
            rf"(?P<word>{_SHELL_WORDS})"
        ),
    ),
    _FooterRow(
        tuple(_SHELL),
        re.compile(rf"\s{{0,8}}(?P<word>{_SHELL_WORDS})(?: ?[(（](?:core dumped|核心已转储|吐核)[)）])?\s*$"),  # noqa: RUF001 (as it is printed)
    ),
    # a shell's notice of the end of a job: bash's "[1]+  Killed   python train.py", zsh's "[1]    7120 killed     python train.py"
    _FooterRow(
        (*_SHELL, *(f" {word}" for word in _ZSH)),
        re.compile(
            rf"\[\d{{1,4}}\](?:[+-] {{1,8}}|  ?[+-]? {{1,8}}(?P<pid>\d{{1,10}}) )(?P<word>{_SHELL_WORDS}|{'|'.join(_ZSH)})"
            r"(?: \(core dumped\))?(?: {2,}|\s*$)"
        ),
    ),
    _FooterRow(
        ("exited on signal ",),
        re.compile(
            r"\b(?:mpirun|mpiexec|prterun) .{0,80}?\brank (?P<rank>\d{1,6})\b.{0,300}?\bexited on signal (?P<signal>\d{1,3})\b",
        ),
        anywhere=True,
    ),
    # the line of a shell's script, wherever it stands: a progress bar does not end its own line
    _FooterRow(tuple(_SHELL), re.compile(rf": line \d{{1,6}}: {{1,8}}(?P<pid>\d{{1,8}}) (?P<word>{_SHELL_WORDS})\b"), anywhere=True),
    _FooterRow(("exit code",), re.compile(r"Process finished with exit code (?P<code>-?\d{1,3})\b(?!\d)")),
    # time(1), and programs that print the same
    _FooterRow(
        ("signal ",),
        re.compile(r"(?:[Cc]ommand|[Pp]rocess|[Jj]ob) (?:was )?(?:exited|terminated|killed) (?:with|by|on) signal (?P<signal>\d{1,2})\b"),
    ),
    _FooterRow(
        ("exited with", "terminated with"),
        re.compile(
            r"(?:[Cc]ommand|[Pp]rocess|[Jj]ob) (?:exited|terminated) with "
            r"(?:exit code|exit status|code|status|non-zero status) (?P<code>\d{1,3})\b"
        ),
    ),
)
#: Every line that reports an end contains one of these.
ANCHORS = tuple(dict.fromkeys(anchor for row in _ROWS for anchor in row.anchors))
_NOTICE = re.compile(rf": line \d{{1,6}}: {{1,8}}(?:(?P<pid>\d{{1,8}}) )?(?P<word>{_SHELL_WORDS})\b(?: \(core dumped\))?")
_CLOSING_SIGNAL = re.compile(r"\bSending process (?P<pid>\d{1,10}) closing signal SIG\w{1,10}\s*$")
_RANK = re.compile(r"\s*rank\s*: (?P<rank>\d{1,6}) \(local_rank: \d+\)")
#: A shell's exit code for a child that died of a signal is this plus the signal.
_SHELL_BASE = 128
_LARGEST_SIGNAL = 64


def read(line: str) -> tuple[Evidence, ...]:
    """Return how a process ended, () if the line reports no end."""
    for row in _ROWS:
        if not any(anchor in line for anchor in row.anchors):
            continue
        match = row.pattern.search(line) if row.anywhere else row.pattern.match(line)
        if match is not None:
            return _fact(match, line)
    return ()


def without_command(line: str) -> str:
    """Return a shell's notice of an end without the command that it quotes at any length; "" for any other line."""
    match = _NOTICE.search(line) if any(word in line for word in _SHELL) else None
    return line[: match.end()] if match else ""


def member(line: str) -> Evidence | None:
    """Return the process that torchrun sends a closing signal to, which proves that it is a rank; None for any other line."""
    match = _CLOSING_SIGNAL.search(line)
    return Evidence("log", "member", line.strip()[:200], free_text=True, fields=(("pid", match["pid"]),)) if match else None


def rank_of(line: str) -> int | None:
    """Return the rank in a row of torchrun's table; the row after it has its exit code."""
    match = _RANK.fullmatch(line.rstrip())
    return int(match["rank"]) if match else None


def signal_of(code: int) -> int | None:
    """Return the signal of an exit code: 9 for Python's -9 and for a shell's 137. None if the program chose the code."""
    if code < 0:
        return -code
    return code - _SHELL_BASE if _SHELL_BASE < code <= _SHELL_BASE + _LARGEST_SIGNAL else None


def _fact(match: re.Match[str], line: str) -> tuple[Evidence, ...]:
    groups = match.groupdict()
    signum: int | None = None
    code: int | None = None
    if groups.get("name") is not None:
        signum = SIGNAL_NUMBERS.get(groups["name"])
    elif groups.get("word") is not None:
        signum = _SIGNALS.get(groups["word"].strip())
    elif groups.get("signal") is not None:
        signum = int(groups["signal"])
    elif groups.get("code") is not None:
        code = int(groups["code"])
        signum = signal_of(code)
    if signum is None and code is None:
        return ()
    rank = int(groups["rank"]) if groups.get("rank") is not None else None
    name, number = ("signal", str(signum)) if signum is not None else ("exit_code", str(code))
    known = ((key, groups[key]) for key in ("pid", "local") if groups.get(key) is not None)
    fields = (("line", line.strip()[:200]), *known)
    return (Evidence("exit", name, number, rank=rank, node=groups.get("node") or "", fields=fields),)
