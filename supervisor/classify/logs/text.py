"""Cleans lines of logs: removes colours, control characters and prefixes, and reads rank and node from the prefixes.

Prefixes nest, so they are removed in a loop: `[default0]:[rank0]: Traceback …` is torchrun's --tee around torch's own prefix.
A doubtful prefix stays: a wrong rank is worse than no rank.
"""

from __future__ import annotations

import re
from collections import Counter

from supervisor.classify.expressions import expression
from supervisor.core.values import Struct

#: In a longer line, or an exception, only this many bytes around a hit are searched.
LONGEST_LINE = 12288

_ESCAPES = expression(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = expression(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_BREAKS = expression(r"[\t\n\r\u2028\u2029]+")
#: They turn round what follows them in the line, our own words too (Unicode TR9, "explicit directional formatting characters").
_TURNS = expression(r"[\u202a-\u202e\u2066-\u2069]")

# Each removes one prefix; the groups are rank and node. Sources: torchrun --tee, torch.distributed (TORCH_SHOW_RANK_PREFIX), mpirun
# --tag-output, Ray's driver log, srun --label, kubectl/docker logs --timestamps and the CRI log format, ts(1) and CI systems, pdsh and
# DeepSpeed's runner.
_PREFIXES = (
    expression(r"\[(?:default|trainer|worker)(?P<rank>\d{1,6})\]:"),
    expression(r"\[rank(?P<rank>\d{1,6})\]:\s?"),
    expression(r"\[rank: (?P<rank>\d{1,6})\]\s"),
    expression(r"\[\d{1,9},(?P<rank>\d{1,6})\]<std(?:err|out|diag)>:"),
    expression(r"\((?:[\w.<>:-]+ )+?pid=\d+(?:, ip=(?P<node>[\w.:-]+))?\)\s?"),
    expression(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d) (?:std(?:out|err) [FP] )?"),
    expression(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?=\s*(?:File \"|Traceback|[\w.]*(?:Error|Exception): |what\(\): ))"),
    expression(r" {0,4}(?P<rank>\d{1,5}): (?=\s*(?:File \"|Traceback|\[|[\w.]*(?:Error|Exception)\b|[A-Za-z^~+|]|\s{2}))"),
    expression(
        r"(?P<node>(?=[a-z0-9.-]*\d)(?!slurmstepd|python|lib|ld-|cuda|gpu|nvme|nvidia|step|epoch|iter|worker\d|process)"
        r"[a-z0-9][a-z0-9.-]{1,62}): (?!line \d)(?=\s*(?:File \"|Traceback|\[|\w))"
    ),
)
_MOST_PREFIXES = 4
#: NCCL writes host:pid:tid [gpu] before its own lines. It stays in the text, because rows match it; node and GPU are read from it.
_NCCL = expression(r"(?P<node>[A-Za-z0-9][\w.-]*):\d+:\d+ \[(?P<gpu>\d+)\] ")
_DOCKER = expression(r'\{"log":"((?:[^"\\]|\\.)*)"')
_JSON_ESCAPE = expression(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_HANDLER = expression(r'\s*"message": "(?P<exception>(?:[^"\\]|\\.)*)",?')
_JSON_CHARACTERS = {'"': '"', "\\": "\\", "/": "/", "b": "", "f": "", "n": "", "r": "", "t": "\t"}

# A line of the kernel's log in the forms of dmesg, journalctl, syslog and /dev/kmsg. In /dev/kmsg only facility 0 is the kernel
# (the first number is facility * 8 + level): any process may write the others.
_KMSG = expression(r"(?P<prefix>\d{1,4}),\d+,\d+,[^;]{1,80};(?P<text>.*)", re.DOTALL)
_DMESG = expression(
    r"(?:kern +:\w+ *: )?(?:\[\s*(?:[+\d]\d*\.\d{6}|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? \d{4})\]"
    r"|(?<=: )\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]\d\d:\d\d) (?P<text>.*)",
    re.DOTALL,
)
_SYSLOG = expression(
    r"(?:(?:<\d{1,3}>)?(?:[A-Z][a-z]{2} )?(?:[^\W\d]{3,5}\.? [ \d]\d (?:\d{4} )?\d\d:\d\d:\d\d(?:\.\d+)?(?: \d{4})?"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?) (?P<node>[\w.-]+) |)"
    r"kernel: (?:\[\s*\d+\.\d{6}\] )?(?P<text>.*)",
    re.DOTALL,
)
_BARE = expression(
    r"\s*(?P<text>(?:NVRM: |nvidia-nvswitch\d*: |nvidia-nvlink: |Memory cgroup out of memory: |"
    r"Out of memory: Killed process |oom-kill:|oom_reaper: |"
    r"\S+ invoked oom-killer: |EXT4-fs |XFS \(|BTRFS |blk_update_request: |I/O error, dev |Buffer I/O error |nvme nvme?\d|mlx5_core |"
    r"nfs: server |LustreError: |pcieport |mce: \[Hardware Error\]|EDAC ).*)",
    re.DOTALL,
)

# Printed settings, help and commands, which report no event: a usage text and its options, `set -x`, a shell prompt, an argparse
# Namespace, Megatron's dotted table of arguments, a quoted value of a key, an exported variable. The pattern scans a name once, or at
# most 200 characters of it: a line may be one word of ten thousand characters.
_ECHO = expression(
    r"""\s*(?:usage:\s
    |-{1,2}[A-Za-z][\w-]*+(?:[ =,]|$)
    |(?<![\s])\+{1,4}\s(?!\s|Exception\sGroup)
    |[\w.@~/:-]*+[$#>]\s+(?:[\w./-]+\s+-|(?:python|torchrun|accelerate|deepspeed|srun|sbatch|export|mpirun|env)\b)
    |(?:\w+\()?Namespace\(
    |[\w.-]{1,200}\s?\.{3,}\s?\S
    |(?:-\s)?["']?(?!(?:error|fatal|warning|what|message|msg|log|reason|exception|detail|rsync)\b|[a-z0-9_.]{0,200}(?:error|exception|timeout)\b)[a-z][a-z0-9_.-]*+["']?\s*[:=]\s*["'\[{]
    |export\s+\w+=
    |(?:[Cc]ommand|cmd|argv|args|Launching|Running(?:\scommand)?|entrypoint)\s*[:=]\s
    )""",
    re.VERBOSE,
)
#: A record of a logger in key=value form (Go's and Kubernetes' logs) is not one of them.
_RECORD = expression(r"(?:time|ts|t)=\S{1,64} (?:level|lvl)=")
_OPTIONS = expression(r"(?:^|\s)--[a-z][\w-]+(?:[= ]|$)")
#: A line with so many options is a command.
_OPTIONS_OF_A_COMMAND = 3


#: The tail of a progress bar (tqdm): "[02:38<01:08,  2.74s/it, loss=2.3]". A bar ends no line, so the last words of a process, of its shell
#: or of its scheduler stand after it.
_BAR_TAIL = expression(r"\[(?:\d{1,4}:){1,3}\d\d(?:<[\d:?, ]{1,24})?, {0,3}[^\]\n]{0,400}\]")
_RATES = ("/s", "s/")


class Line(Struct, frozen=True):
    """One line. kernel: the message if the line is of the kernel's log, else None. echo: it is a printed setting, help or command."""

    text: str
    rank: int | None = None
    node: str = ""
    gpu: str = ""
    kernel: str | None = None
    echo: bool = False


def plain(line: str) -> str:
    """Return a text without escape sequences and control characters. Tabs and line ends stay."""
    return _CONTROL.sub("", _ESCAPES.sub("", line)).rstrip() if line else line


def one_line(foreign: str) -> str:
    """Return a text that is safe in one line of a terminal or of a protocol: plain, valid UTF-8, with a space for each tab and line end."""
    return _BREAKS.sub(" ", _TURNS.sub("", plain(foreign.encode("utf-8", "replace").decode("utf-8")))).strip()


def read(data: bytes, *, whole: bool = True) -> Line:
    """Return a line without its prefixes. whole: the data begins where the line begins, so prefixes may stand there."""
    text = plain(data.decode("utf-8", "replace"))
    if not whole:
        return Line(behind_bars(text))
    if text.startswith('{"log":"') and (match := _DOCKER.match(text)):
        text = plain(_JSON_ESCAPE.sub(_unescaped, match[1]))
    rank: int | None = None
    node = ""
    if (match := _SYSLOG.fullmatch(text)) and match["node"]:  # first: the time would match a prefix below
        return Line(text, node=match["node"], kernel=match["text"])
    for _ in range(_MOST_PREFIXES):
        match = next((prefix_match for prefix in _PREFIXES if (prefix_match := prefix.match(text))), None)
        if match is None:
            break
        groups = match.groupdict()
        if groups.get("rank") is not None:
            rank = int(groups["rank"])
        if groups.get("node"):
            node = groups["node"]
        text = text[match.end() :]
    kernel, host = kernel_message(text)
    if match := _NCCL.match(text):
        return Line(text, rank, match["node"], match["gpu"])
    text = behind_bars(text)
    return Line(text, rank, node or host, kernel=kernel, echo=is_echo(text))


#: The parts of a prefix: a time, a tag in brackets, "host process[pid]:", "name |".
_DATE = r"(?:[A-Z][a-z]{2} {1,2}\d{1,2}|\d{2,4}[-/.]\d{1,2}[-/.]\d{1,4})"
_TIME = rf"(?:{_DATE}[T ,]{{1,2}})?\d{{1,2}}:\d\d(?::\d\d(?:[.,]\d{{1,9}})?)?(?:Z|[+-]\d\d:?\d\d)?:?"
_TAG = (
    r"(?!\[rank|\[default)(?:\[[^\[\]\n]{1,80}\]:?|<[^<>\n]{1,60}>:?|\([^()\n]{1,60}\):?"
    r"|(?:[\w.-]{1,64} )?[\w./@-]{1,64}\[\d{1,10}\]:|[\w./@-]{1,64} {0,24}\|)"
)
_SHARED = expression(rf"(?:(?:{_TIME}|{_TAG})(?: |(?=\[|$))){{1,4}}")
_OF_A_FAILURE = expression(
    r"\s{0,8}(?:(?:\w[\w.]*(?:Error|Exception): )?Traceback \(most recent call last\)|File \"[^\"\n]{1,1024}\", line \d"
    r"|(?:[A-Za-z_]\w*\.){0,8}[A-Z]\w*(?:Error|Exception|Interrupt|OutOfMemory)(?:: |$)"
    r"|(?:Killed|Terminated|Aborted|Segmentation fault|Bus error)(?: \(core dumped\))?\s*$|slurmstepd: error: |terminate called |\[rank\d)"
)
_FIGURES = expression(r"\d+")
#: So many of a log's first lines are read, and so large a share of them must have the prefix.
FIRST_LINES = 64
LEAST_LINES = 4
LEAST_SHARE = 0.5


class SharedPrefixes:
    """The prefix that most lines of a log share, whatever it is, learned from its first lines: equal but for its figures."""

    def __init__(self) -> None:
        """Begin with none."""
        self._counts: Counter[str] = Counter()
        self._seen = 0
        self._known: tuple[re.Pattern[str], ...] = ()

    def learn(self, data: bytes) -> None:
        """Look at the lines of a block, as long as few have been seen."""
        if self._seen >= FIRST_LINES:
            return
        for raw in data[: FIRST_LINES * 512].splitlines()[: FIRST_LINES - self._seen]:
            if not (shown := plain(raw[:512].decode("utf-8", "replace"))).strip():
                continue
            self._seen += 1
            if match := _SHARED.match(shown):
                self._counts[_FIGURES.sub("0", match[0])] += 1
        least = max(LEAST_LINES, LEAST_SHARE * self._seen)
        shapes = (shape for shape, count in self._counts.items() if count >= least)
        self._known = tuple(expression(r"\d+".join(map(re.escape, shape.split("0")))) for shape in shapes)

    def without(self, line: str) -> str | None:
        """Return a line without that prefix, None if it has none."""
        return next((line[match.end() :] for prefix in self._known if (match := prefix.match(line))), None)


def is_of_a_failure(line: str) -> bool:
    """Whether a line is of a traceback, or reports how a process ended."""
    return _OF_A_FAILURE.match(line) is not None


#: How a line calls itself an error: a logger's level in its many forms, or the words of who prints one.
_ERROR = expression(
    r"\b(?:ERROR|CRITICAL|FATAL|SEVERE)\b|^[EF]\d{4} \d\d:|\[(?:error|critical|fatal) {0,8}\]|\blevel=(?:error|critical|fatal)\b"
    r"|\"(?:level|levelname|severity|lvl)\": ?\"(?:error|critical|fatal)\""
    r"|(?i:\b(?:failed|failure|failing|gave up|giving up|could not|couldn't|unable to)\b)",
)


def is_error(text: str) -> bool:
    """Whether a line calls itself an error."""
    return _ERROR.search(text[:LONGEST_LINE]) is not None


def behind_bars(text: str) -> str:
    """Return the text after the progress bars of a line, the line itself if nothing follows, or if it has none."""
    if "]" not in text or not any(rate in text for rate in _RATES):
        return text
    end = max((match.end() for match in _BAR_TAIL.finditer(text)), default=0)
    return text[end:].lstrip() or text


def kernel_message(text: str) -> tuple[str | None, str]:
    """Return the kernel's message, None if this is not a line of the kernel's log, and the host, "" if the line names none."""
    if match := _KMSG.fullmatch(text):
        return (match["text"], "") if int(match["prefix"]) >> 3 == 0 else (None, "")
    if match := _DMESG.fullmatch(text):
        return match["text"], ""
    if match := _SYSLOG.fullmatch(text):
        return match["text"], match["node"] or ""
    if match := _BARE.fullmatch(text):
        return match["text"], ""
    return None, ""


def error_handler_exception(text: str) -> str:
    """Return the exception in the JSON that torchelastic's error handler logs, else "".

    Training data may be JSON too. So the caller checks that the line before ends in `"message": {`.
    """
    match = _HANDLER.fullmatch(text)
    return _JSON_ESCAPE.sub(_unescaped, match["exception"].partition("\\n")[0]) if match else ""


def is_echo(text: str) -> bool:
    """Whether a line prints the job's configuration, help or command line. Such a line may name a failure that never happened."""
    if _RECORD.match(text):
        return False
    return _ECHO.match(text) is not None or len(_OPTIONS.findall(text[:LONGEST_LINE])) >= _OPTIONS_OF_A_COMMAND


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else _JSON_CHARACTERS[match[2]]
