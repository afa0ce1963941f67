"""The grammar of an end: how launchers, shells and schedulers tell that a process ended, with which exit code or signal, and of which rank.

    end   = who … verb … code            worker 3 (pid 5120) crashed with exit code -11
          | who … exit code              rank 2: exitcode=-9
          | who: words                   srun: error: n1: task 0: Segmentation fault (core dumped)
          | verb … code                  Exited with exit code 2.
          | who verb                     The actor is dead
    who   = rank, worker, process, PID, task, container, …, or a quoted command
    verb  = died, crashed, exited, failed, was killed, …
    code  = "exit code", "return code", "status" … number | "signal" number | SIGNAL | the words of a shell

A supposed end ("if a worker exits with code 1") does not count, nor does an exit code of 0. What a launcher prints in another form
has a pattern in `LAUNCHERS`; a shell's notice is in `_NOTICES`. An end gives evidence of source "exit", as if the supervisor had seen
it. But `t` is 0: the order in a launcher's table does not show which process ended first.
"""

from __future__ import annotations

import re
from itertools import islice

from supervisor.classify.exits import END_SIGNALS, SIGNAL_NUMBERS
from supervisor.classify.expressions import expression
from supervisor.core.model import Evidence
from supervisor.core.values import Struct

#: Lines of a shell about a child that died of a signal (bash, dash), and srun for a task.
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
_ZSH = {"abort": 6, "illegal hardware instruction": 4}
_ZSH_WORDS = ("killed", "segmentation fault", "bus error", "terminated", "floating point exception", *_ZSH)
_SIGNALS = {word.lower(): signum for word, signum in (_SHELL | _ZSH | {"segfault encountered": 11}).items()}

_WHO = (
    r"\b(?:(?:local_)?ranks?|workers?|actors?|(?:sub)?process(?:es)?|pid|child(?:ren)?|tasks?(?:\(s\))?|pods?|containers?|nodes?|jobs?|commands?|programs?"
    r"|applications?|scripts?|trainers?|learners?|engines?|replicas?|executors?)(?:\b|(?<=\))|(?=[_\d]))"
)
#: Words for an end for good, then words after which a program may continue: these need an exit code, or a signal.
_ENDS = r"die[sd]|dead|crash(?:es|ed)|exit(?:s|ed)|ended|terminated|killed|abort(?:s|ed)"
_MEETS = r"receive[sd]|caught|got"
_VERB = rf"\b(?:{_ENDS}|{_MEETS}|fail(?:s|ed)|return(?:s|ed)|finished|stopped|completed|quit)\b"
_GAP = r"(?:\W{1,6}(?:\w{1,16}|SIG\w+)){0,6}?\W{0,8}"
_CODE = expression(
    r"(?P<noun>\b(?:exit|return)[ _-]?(?:code|status|value|string)|\b(?<![\w.-])rc|\b(?<!error )(?<!status )(?:code|status)|(?<=returned))"
    r"[\s:='\"(]{1,6}(?:of |is |was |by )?(?:code )?(?P<code>-?\d{1,10})(?!\.?\d|%|/|\w)"
    r"|\bsignals?[\s:=#(]{1,4}(?P<signal>\d{1,2})(?!\.?\d|\w)|\b(?-i:(?P<name>SIG[A-Z]{2,6}[12]?))\b"
    r"|(?P<word>segmentation fault|bus error|floating point exception|illegal instruction|(?:aborted|killed)(?= ?\(core dumped)"
    r"|(?<=[:)] )(?:killed|terminated|aborted)(?=\s*$))",
    re.IGNORECASE,
)
_BEFORE = expression(rf"(?:(?P<end>\b(?:{_ENDS})\b)|(?P<meets>\b(?:{_MEETS})\b)|{_VERB}){_GAP}$", re.IGNORECASE)
_LAST_WHO = expression(rf".*(?P<who>{_WHO})", re.IGNORECASE | re.DOTALL)
_NEXT_WHO = expression(rf"[^.;\n]{{0,24}}?{_WHO}", re.IGNORECASE)
#: Nothing but marks, times and a level is before a verb that begins a report.
_NOTHING = expression(r"(?:[\W\d_T]|\b(?:ERROR|FATAL|CRITICAL|WARNING|INFO|Z)\b){0,80}", re.IGNORECASE)
_QUOTED = expression(r"['\"\])>][,:]?(?: (?:was|has|is))?\s*$")
#: Words of a sentence that reports no end, but speaks of one.
_SUPPOSED = expression(
    r"(?<![\w./-])(?:if|when(?:ever)?|unless|until|should|would|could|may|might|can(?:not)?|will|never|not|no|n't|expect\w*|test\w*|mock\w*"
    r"|simulat\w*|pretend\w*|example|likely|allow\w*|ignor\w*|max|min|successfully)(?![\w./-])",
    re.IGNORECASE,
)
#: Ray's list of all that may have happened; a loader's worker, which signatures know.
_OF_OTHERS = ("root causes", "DataLoader worker")
_OTHERWISE = expression(r"[^.;]{0,48}?\b(?:or|if|when|unless|as (?:asked|expected|requested))\b", re.IGNORECASE)
_SENTENCE = expression(r".*[.;!?]\s", re.DOTALL)
#: Ends without a code, by words that leave no doubt.
_WITHOUT_CODE = expression(
    rf"(?<!\b0 ){_WHO}(?:[ #:=-]{{1,3}}[\w./]{{1,40}}){{0,4}}? (?:has |have |was |were |is |are )?"
    r"(?P<end>(?:(?:exited|terminated|died) |exits )(?:unexpectedly|abnormally|prematurely)"
    r"|died|dead|crashed|(?:was|been) lost|(?:has|have) failed(?! to\b| \d))\b",
    re.IGNORECASE,
)
_REACH, _NEAR = 240, 64
#: Codes looked at in one line.
_MOST = 8

_RANK_OF = expression(r"(?:(?<!local_)(?<!local )\brank|^srun: error: [\w.-]{1,255}: tasks?)[ :=#]{1,3}(?P<rank>\d{1,6})\b", re.IGNORECASE)
_LOCAL_OF = expression(r"\blocal[_ ]rank[ :=#]{1,3}(?P<local>\d{1,6})\b", re.IGNORECASE)
_PID_OF = expression(r"\bpid[ :=#]{1,3}(?P<pid>[1-9]\d{0,9})\b", re.IGNORECASE)
_NODE_OF = expression(r"(?:^srun: error: |\bon (?:node|host) )(?P<node>[\w.-]{1,255})\b")


class LauncherRow(Struct, frozen=True):
    """A printed end: its program, its subject, and its words. pattern: for words that are not sentences of the grammar."""

    name: str
    whose: str
    words: str
    pattern: re.Pattern[str] | None = None
    anchors: tuple[str, ...] = ()


#: Sources: torch/distributed/elastic/multiprocessing/{api,errors}.py, torch/multiprocessing/spawn.py, deepspeed/launcher/launch.py,
#: composer/cli/launcher.py, python3 subprocess.CalledProcessError, Lightning's subprocess launcher, mpirun(1), MPICH's and Intel's
#: mpiexec.hydra, srun(1), scontrol(1), bsub(1), qstat(1B), kubectl(1), docker-ps(1), systemd.exec(5), time(1). Gaps are bounded: a line
#: may be twelve thousand characters of anything.
LAUNCHERS = (
    LauncherRow("torchrun", "a rank, by its place on the node", "failed (exitcode: -11) local_rank: 0 (pid: 41000) of binary: python"),
    LauncherRow(
        "torchrun's table",
        "the rank that the row before names",
        "  exitcode  : -9 (pid: 41000)",
        expression(r"\s{0,40}exitcode {1,8}: (?P<code>-?\d{1,10}) \(pid: (?P<pid>\d{1,10})\)"),
        ("exitcode",),
    ),
    LauncherRow(
        "torchrun's table",
        "the rank that rows before name",
        "  traceback : Signal 6 (SIGABRT) received by PID 2886",
        expression(r"\s{0,40}traceback : [Ss]ignal (?P<signal>\d{1,3}) \(SIG\w{1,10}\) received by PID (?P<pid>\d{1,10})"),
        ("traceback : ",),
    ),
    LauncherRow("accelerate", "the command, often another launcher", "Command '['torchrun', 'train.py']' returned non-zero exit status 3."),
    LauncherRow("accelerate", "the command, often another launcher", "Command '['python', 'train.py']' died with <Signals.SIGSEGV: 11>."),
    LauncherRow("DeepSpeed", "a rank", "[launch.py:321:sigkill_handler] ['python', '-u', 'train.py'] exits with return code = -9"),
    LauncherRow("composer", "a rank, by its number", "ERROR:composer.cli.launcher:Rank 3 crashed with exit code -11."),
    LauncherRow("torch.multiprocessing.spawn", "a child, by its index", "process 1 terminated with signal SIGSEGV"),
    LauncherRow("Lightning", "a rank", "[rank: 1] Child process with PID 4063 terminated with code -11."),
    LauncherRow("Ray", "an actor's worker; its list of root causes is not evidence", "Worker exits with an exit code 139."),
    LauncherRow("Ray", "an actor; the reason is elsewhere", "The actor is dead because its worker process has died."),
    LauncherRow("JAX", "a task of another host; the reason is in that host's log", "The remote task has failed, was preempted or crashed."),
    LauncherRow("Open MPI, PRRTE", "a rank", "mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 9 (Killed)."),
    LauncherRow(
        "Open MPI's and MPICH's tables",
        "the process that the rows before name",
        "=   EXIT CODE: 139",
        expression(r"[=\s]{1,40}(?i:exit (?:code|status): {1,8}(?P<code>-?\d{1,10})|killed by signal: {1,8}(?P<signal>\d{1,3}))\b"),
        ("EXIT CODE", "Exit code", "Exit Code", "EXIT STATUS", "KILLED BY SIGNAL"),
    ),
    LauncherRow(
        "MPICH's hydra", "the whole application", "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)"
    ),
    LauncherRow(
        "MPI_Abort",
        "a rank that ended all the others by itself",
        "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD",
        expression(r"MPI_ABORT was invoked on rank (?P<rank>\d{1,6})\b"),
        ("MPI_ABORT was",),
    ),
    LauncherRow("srun", "a task, which is a rank", "srun: error: gpu-9: tasks 2-3: Exited with exit code 1"),
    LauncherRow("srun", "a task, which is a rank", "srun: error: gpu-9: task 0: Segmentation fault (core dumped)"),
    LauncherRow(
        "Slurm's scontrol and sacct",
        "the job",
        "   JobState=FAILED Reason=NonZeroExitCode ExitCode=0:9",
        expression(r".{0,400}?\bExitCode=(?P<code>\d{1,3}):(?P<signal>\d{1,2})\b"),
        ("ExitCode=",),
    ),
    LauncherRow("LSF", "the job", "Exited with exit code 2."),
    LauncherRow("LSF", "the job", "Exited by signal 9."),
    LauncherRow(
        "PBS",
        "the job; 256 and the number of the signal",
        "Exit_status=271",
        expression(r"\s{0,40}Exit_status ?= ?(?P<code>-?\d{1,3})\b"),
        ("Exit_status",),
    ),
    LauncherRow("Kubernetes", "a container", "command terminated with exit code 137"),
    LauncherRow(
        "Kubernetes",
        "a container, in its lastState",
        '          "exitCode": 137,',
        expression(r"\s{0,80}\"?(?:exitCode\"?|Exit Code): {1,8}(?P<code>\d{1,3}),?\s*$"),
        ("exitCode", "Exit Code"),
    ),
    LauncherRow(
        "Docker",
        "a container",
        "Exited (137) 3 minutes ago",
        expression(r".{0,400}?\bExited \((?P<code>\d{1,3})\) .{0,40}\bago\b"),
        ("Exited (",),
    ),
    LauncherRow(
        "systemd",
        "a service",
        "train.service: Main process exited, code=killed, status=9/KILL",
        expression(r".{0,400}?\bcode=(?:(?:killed|dumped), status=(?P<signal>\d{1,2})|exited, status=(?P<code>\d{1,3}))/"),
        ("code=killed", "code=dumped", "code=exited"),
    ),
    LauncherRow(
        "supervisord",
        "a program",
        "WARN exited: trainer (terminated by SIGKILL; not expected)",
        expression(
            r".{0,80}?\bexited: [\w:.-]{1,80} \((?:terminated by (?P<name>SIG\w{1,10})|exit status (?P<code>\d{1,3}))"
            r"(?: \(core dumped\))?; not expected\)"
        ),
        ("; not expected",),
    ),
    LauncherRow("SageMaker", "the command", "ExitCode -9", expression(r"\s{0,8}ExitCode (?P<code>-?\d{1,3})\s*$"), ("ExitCode ",)),
    LauncherRow("Flux", "a task", "flux-job: task(s) Killed"),
    LauncherRow("time", "the command", "Command terminated by signal 9"),
    LauncherRow("UCX's handler", "its own process", "[node1:812  :0:812] Caught signal 11 (Segmentation fault: address not mapped)"),
    LauncherRow(
        "the handlers of Abseil and glog",
        "its own process",
        "*** SIGBUS received at time=1730000000 on cpu 3 ***",
        expression(r".{0,80}?\*\*\* (?P<name>SIG\w{1,10}) (?:\(@[^)]{1,40}\) )?received (?:at time=|by PID (?P<pid>\d{1,10}))"),
        ("*** SIG",),
    ),
    LauncherRow(
        "Open MPI's handler",
        "its own process",
        "[node1:00812] Signal: Floating point exception (8)",
        expression(r".{0,80}?\bSignal: [A-Z][\w ]{1,40} \((?P<signal>\d{1,2})\)"),
        ("Signal: ",),
    ),
    LauncherRow(
        "the handlers of Python and torch",
        "its own process",
        "Fatal Python error: Segmentation fault",
        expression(
            r"(?:.{0,400}\])?(?:Fatal Python error: |!{7} )(?P<word>Segmentation fault|Floating point exception|Segfault encountered\b)"
        ),
        ("Fatal Python error: ", "!!! Segfault"),
    ),
)
_PATTERNS = tuple(row for row in LAUNCHERS if row.pattern is not None)
#: Notices of shells; bash's with a line of its script, at the beginning or after a progress bar, which does not end its own line; alone;
#: and that of a job: bash's "[1]+  Killed   python train.py", zsh's "[1]    7120 killed     python train.py" and "zsh: killed     python".
_NOTICES = (
    expression(
        r"(?:.*: line \d{1,6}: {1,8}(?P<pid>\d{1,10}) |(?:-?(?:ba|da|z)?sh|[\w./-]{1,512}\.sh|/[\w./-]{1,512}): (?:line )?\d{1,6}: {1,8})"
        rf"(?P<word>{_SHELL_WORDS})"
    ),
    expression(rf"\s{{0,8}}(?P<word>{_SHELL_WORDS})(?: ?[(（](?:core dumped|核心已转储|吐核)[)）])?\s*$"),  # noqa: RUF001 (as it is printed)
    expression(
        rf"\[\d{{1,4}}\](?:[+-] {{1,8}}|  ?[+-]? {{1,8}}(?P<pid>\d{{1,10}}) )(?P<word>{_SHELL_WORDS}|{'|'.join(_ZSH_WORDS)})"
        r"(?: \(core dumped\))?(?: {2,}|\s*$)"
    ),
    expression(rf"zsh: (?P<word>{'|'.join(_ZSH_WORDS)})(?: \(core dumped\))? {{2,}}\S"),
)
_OF_SHELLS = (*_SHELL, *(f" {word}" for word in _ZSH_WORDS))
_OF_SENTENCES = (
    *(f"{first}{between}{second}" for first in ("exit", "return") for between in (" ", "") for second in ("code", "status")),
    *("exit_code", "Exit code", "EXIT STRING", "with code", "with status", "zero status", "zero code", " rc=", "returned -", "returned 1"),
    *("signal ", "signal: ", "signal=", "Signal ", "SIGNAL", "SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGTERM"),
    *("SIGINT", "segmentation fault", "bus error", "crashed", "died", " dead", "s failed", "ve failed", "unexpectedly", "abnormally"),
)
#: Every line that reports an end contains one of these.
ANCHORS = tuple(dict.fromkeys((*(anchor for row in _PATTERNS for anchor in row.anchors), *_OF_SHELLS, *_OF_SENTENCES)))
_NOTICE = expression(rf": line \d{{1,6}}: {{1,8}}(?:(?P<pid>\d{{1,8}}) )?(?P<word>{_SHELL_WORDS})\b(?: \(core dumped\))?")
_CLOSING_SIGNAL = expression(r"\bSending process (?P<pid>\d{1,10}) closing signal SIG\w{1,10}\s*$")
_RANK = expression(r"\s*rank\s*: (?P<rank>\d{1,6}) \(local_rank: \d+\)")
#: A shell's exit code for a child that died of a signal is this plus the signal; PBS's is the other.
_BASES = (128, 256)
_LARGEST_SIGNAL = 64
#: The codes of Windows for the same, by their lower 32 bits.
_WINDOWS = {0xC0000005: 11, 0xC0000409: 6, 0xC000001D: 4, 0xC000013A: 2}


def read(line: str) -> tuple[Evidence, ...]:
    """Return how a process ended, () if the line reports no end."""
    if not any(anchor in line for anchor in ANCHORS):
        return ()
    for row in _PATTERNS:
        if row.pattern is not None and any(anchor in line for anchor in row.anchors) and (match := row.pattern.match(line)):
            return _fact(match.groupdict(), line, line)
    if any(word in line for word in _OF_SHELLS):
        for notice in _NOTICES:
            if match := notice.match(line):
                return _fact(match.groupdict(), line, line)
    return _sentence(line)


def _sentence(line: str) -> tuple[Evidence, ...]:
    """Return the end that a sentence reports."""
    if any(words in line for words in _OF_OTHERS):
        return ()
    sentence = _without_words(line)
    for code in islice(_CODE.finditer(sentence), _MOST):
        before = sentence[max(0, code.start() - _REACH) : code.start()]
        before = before[(match.end() if (match := _SENTENCE.match(before)) else 0) :]
        behind = sentence[code.end() : code.end() + _NEAR]
        if _is_end(code, before, behind) and not _SUPPOSED.search(before) and not _OTHERWISE.match(behind):
            return _fact(code.groupdict(), line, sentence)
    if (match := _WITHOUT_CODE.search(sentence)) and not _SUPPOSED.search(sentence[max(0, match.start() - _NEAR) : match.end()]):
        return _fact({}, line, sentence, match["end"].lower())
    return ()


def _without_words(line: str) -> str:
    """Return the line without the words of a command that it quotes as Python's list: `--save_strategy=no` supposes nothing."""
    begin = line.find("['")
    end = line.find("']", begin) if begin >= 0 else -1
    return line if end < 0 else line[: begin + 1] + line[end + 1 :]


def _is_end(code: re.Match[str], before: str, behind: str) -> bool:
    """Whether a code belongs to a verb and a process, or to a process right before it."""
    noun = (code["noun"] or "").lower()
    own_word = noun.startswith(("exit", "return")) and noun != "returned"
    verb = _BEFORE.search(before[-_NEAR:])
    if verb is None:
        near = _LAST_WHO.match(before[-_NEAR:])
        gap = before[-_NEAR:][near.end() :] if near else ""
        if code["word"]:
            return near is not None and re.fullmatch(r"[ #\d,-]{0,64}:? (?:was |is )?", gap) is not None
        return near is not None and own_word and re.fullmatch(r"[ :=#(),-]{0,4}[\w./]{0,40}[ :=#(),-]{0,4}", gap) is not None
    if noun == "" and code["code"] and signal_of(int(code["code"])) is None:
        return False  # "returned 1": a value
    if noun in {"code", "status", "rc"} and verb["end"] is None:
        return False
    if verb["meets"] and (noun or _signal_in(code.groupdict()) in END_SIGNALS):
        return False  # a handler of TERM may continue
    head = before[: max(0, len(before) - _NEAR) + verb.start()]
    head = head[head.rfind("|") + 1 :]  # after the name of a logger
    return bool(_LAST_WHO.match(head) or _QUOTED.search(head) or _NOTHING.fullmatch(head) or _NEXT_WHO.match(behind))


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
    """Return the signal of an exit code: 9 for Python's -9, for a shell's 137 and for PBS's 265. None if the program chose the code."""
    if (signum := _WINDOWS.get(code & 0xFFFFFFFF)) is not None:
        return signum
    if code < 0:
        return -code
    return next((code - base for base in _BASES if base < code <= base + _LARGEST_SIGNAL), None)


def _signal_in(groups: dict[str, str | None]) -> int | None:
    """Return the signal that a match names, by its name, a shell's words or its number."""
    if name := groups.get("name"):
        return SIGNAL_NUMBERS.get(name)
    if word := groups.get("word"):
        return _SIGNALS.get(word.strip().lower())
    return int(groups.get("signal") or 0) or None


def _fact(groups: dict[str, str | None], line: str, sentence: str, end: str = "failed") -> tuple[Evidence, ...]:
    """Return the evidence of an end; () for an exit code of 0. sentence: what names rank, pid and node. end: the verb, without a code."""
    code = int(code_text) if (code_text := groups.get("code")) else None
    signum = _signal_in(groups)
    if signum is None and code is not None:
        signum = signal_of(code)
    if (signum is None and code == 0) or (groups.get("name") and signum is None):
        return ()
    name, number = ("signal", str(signum)) if signum is not None else ("end", end) if code is None else ("exit_code", str(code))
    near = {**{key: match[key] for form, key in _PLACES if (match := form.search(sentence))}, **{k: v for k, v in groups.items() if v}}
    fields = (("line", line.strip()[:200]), *((key, near[key]) for key in ("pid", "local") if key in near))
    return (Evidence("exit", name, number, rank=int(near["rank"]) if "rank" in near else None, node=near.get("node", ""), fields=fields),)


_PLACES = ((_RANK_OF, "rank"), (_LOCAL_OF, "local"), (_PID_OF, "pid"), (_NODE_OF, "node"))
