"""Reads the end of a log: whether training continued, with losses that are not numbers, whether another run began, what its last words are.

Only the last lines are read (match.TAIL_BYTES), so a log of any size costs the same.
"""

from __future__ import annotations

import re

from supervisor.classify.expressions import expression
from supervisor.classify.logs import footers, text
from supervisor.classify.logs.rows import ANY_CAUSE
from supervisor.core.model import Cause, Claim, Evidence
from supervisor.core.values import replace

_COUNTERS = r"(?:iter|it|step|iteration|epoch|batch|global_step|update|num_updates|episode|round|minibatch|trial)"
_METRICS = (
    r"(?:(?:\b|_)(?:loss\d?|lr|it/s|s/it|tok|tokens?|grad|gnorm|ms|eta|time|samples|nll|ppl|perplexity|acc|acc1|accuracy|reward|return|mfu|"
    r"bpc|bpb|elbo|kl|iou|miou|dice|f1|wer|cer|bleu|auc|mse|mae|psnr|fid|value)\b)"
)
_PROGRESS = expression(
    r"\d{1,3}%\|.{0,60}\| *[\d.,]+[kKMG]?/"
    rf"|\b{_COUNTERS}s?\b\W{{0,8}}\d+.{{0,160}}{_METRICS}"
    rf"|\b{_COUNTERS}\b\W{{0,8}}\d+\W{{1,4}}(?:of|over|out of)?\W{{0,3}}\d+\b"
    r"|\"(?:GET|POST|PUT) [^\"]{1,200} HTTP/[\d.]+\" 2\d\d\b"
    r"|^\W{0,8}\d+/\d+ \[[=>. ]{10,40}\]"
    r"|['\"]loss['\"]: ?(?:[\d.]|nan)|(?:\b|_)(?:loss|nll|ppl|perplexity|acc|accuracy|m?iou|bleu|wer|auc)\W{1,4}(?:\d|nan\b)",
    re.IGNORECASE,
)
#: A bar that is named for other work than training, and a line that says that a number stopped the training, are not steps of one.
_OTHER_WORK = expression(
    r"(?i:^\W{0,8}(?:\w+\W{1,3}){0,4}?(?:loading|downloading|fetching|map(?:ping)?|tokeniz\w+|filter\w*|generating|resolving|extracting|"
    r"casting|sav(?:ing|e)|preprocess\w*|encoding|reading|building|compil\w+|captur\w+|writing|uploading|computing checksums|packing|"
    r"grouping)\b.{0,80}?\d{1,3}%\|)|(?i:\b(?:anomaly|aborting|halting|diverged|terminating|exploded)\b)"
)

#: So many of the last reported losses must be no number.
LAST_LOSSES = 3
LAST_BYTES = 8192
NAN_WEIGHT = 0.6
_NAN = expression(r"(?:\b|_)loss\d?['\"]?\W{1,4}nan\b", re.IGNORECASE)
#: A validation's loss is NaN where there is no validation set, beside the training's that is a number.
_FINITE = expression(r"loss\d?['\"]?\W{1,4}\d", re.IGNORECASE)
#: So many different lines in a row are a run's beginning.
EQUAL_LINES = 4


def tells_progress(line: str) -> bool:
    """Whether a line reports a step of training."""
    return _PROGRESS.search(line) is not None and _OTHER_WORK.search(line) is None


def trained_on_without_number(tail: bytes, number: int, rank: int | None, t: float) -> list[Evidence]:
    """Return the evidence that the last steps reported a loss that is not a number, and the program trained on.

    t: when the last line came, 0 if only the order of the lines is known.
    """
    end = tail[-LAST_BYTES:]
    if b"nan" not in end.lower():
        return []
    shown = [text.plain(line.decode("utf-8", "replace")) for line in end.replace(b"\r", b"\n").split(b"\n")]
    last = [line for line in shown if tells_progress(line)][-LAST_LOSSES:]
    if len(last) < LAST_LOSSES or not all(_NAN.search(line) and not _FINITE.search(line) for line in last):
        return []
    claim = Claim(Cause.NAN_LOSS, NAN_WEIGHT, transient=False, consequence_of=(ANY_CAUSE,))
    return [Evidence("log", "nan_loss.trained_on", last[0][:200], rank, t or float(number), free_text=True, line=number, claim=claim)]


#: A good end, in the last lines of a program: its own words, its trainer's, its launcher's. A shell's "done" does not count.
_DONE = r"(?i:finished|completed?|done|succeeded|ended)"
_WORK = r"(?i:(?:pre-?)?training|fine-?tuning|eval(?:uation)?|fit(?:ting)?|validation|testing|epochs?|steps?|iterations?|experiment|run)"
_WELL = expression(
    r"(?!.*(?i:\b(?:fail|error|abort|not|without|unsuccessful|killed|crash|exception|interrupt)))(?:[\d\[\]:., +TZ/-]{0,64}\W)?(?:"
    r"(?:\W{0,4}\w+\W{1,3}){0,3}?"
    rf"(?i:training|fine-?tuning|eval(?:uation)?|fit(?:ting)?|validation|testing)\W+(?:(?:run|loop|is|was|has|successfully)\W+){{0,2}}{_DONE}\b"
    rf"|.{{0,60}}?\b(?:[Aa]ll )?\d+ {_WORK} {_DONE}\b"
    rf"|.{{0,60}}?\b{_DONE} (?:with )?(?:the )?(?:all )?(?:\d+ )?(?i:training|fine-?tuning|pre-?training|fitting|evaluation|all epochs)\b"
    r"|.{0,60}?`?Trainer\.fit`? stopped: `?max_(?:epochs|steps|time)=[^\s`]{1,20}`? reached"
    r"|.{0,60}?\bCOMPLETED +0:0\b|=* ?\d+ passed\b.{0,40} in [\d.]+s|# Out of bounds values : 0 OK"
    r"|.{0,8}['\"]?train_runtime['\"]?\W{1,4}[\d.]"
    r"|.{0,60}?\b(?i:training|total training)(?: time)?(?: took|:| was)? ?(?:\d+:\d\d|\d+(?:\.\d+)? ?(?:s|sec|min|h|hours?))"
    r"|.{0,60}?\b(?i:reached|hit) (?i:the )?(?i:max(?:imum)?|target|total)[ _](?:number of )?(?i:steps|epochs|iterations|tokens)\b"
    r"|.{0,60}?\b(?i:early stopping|stopped early)\b.{0,80}"
    r"|.{0,60}?\b(?i:(?:final|last) (?:model|checkpoint|weights)) (?i:saved|written)"
    r"|.{0,40}?\b(?i:saved|wrote) (?i:the )?(?i:final|last) \w+"
    r"|.{0,80}?\b(?i:exit(?:ed|s)?|finished) (?:with )?(?:exit )?(?:code|status)[ :=]*0\b"
    r"|.{0,80}?\b(?i:exits? successfully)"
    r"|.{0,80}?\b(?i:(?:job|workers?|worker group|run) (?:successfully (?:finished|completed)|succeeded|(?:finished|completed) success))"
    r")"
)
#: Each of its forms holds one of these: looking for them first costs a tenth of trying the forms at every line of every rank.
_IN_ANY = (
    *("finish", "complete", "done", "succe", "ended", "stopped", "passed", "out of bounds", "train_runtime", "training", "reached", "hit "),
    *("early stopping", "saved", "wrote", "written", "exit"),
)
LAST_LINES = 12
LONGEST_GOOD_END = 200


def ended_well(tail: bytes, number: int, rank: int | None, t: float) -> list[Evidence]:
    """Return the evidence that the program reported a good end in its last lines.

    t: when the last line came, 0 if only the order of the lines is known.
    """
    before = tail.rstrip()
    number -= tail.count(b"\n", len(before))
    for line in reversed(before.split(b"\n")[-LAST_LINES:]):
        shown = text.plain(line[:LONGEST_GOOD_END].decode("utf-8", "replace"))
        lowered = shown.lower()
        if any(word in lowered for word in _IN_ANY) and _WELL.match(shown):
            return [Evidence("log", "ended_well", shown[:200], rank, t or float(number), free_text=True, line=number)]
        number -= 1
    return []


def begun_again(tail: bytes, number: int, last: int) -> list[Evidence]:
    """Return the evidence that a new run began after the last traceback: the same lines follow it that stood before it.

    A file may hold several runs (nohup.out, a log that is appended to). The lines of a run's beginning are equal in all of them; those
    of a run that continues hold numbers that grow.
    """
    if not last:
        return []
    lines = [line.strip() for line in tail.split(b"\n")]
    first = number - len(lines) + 1
    if last < first:
        return []
    before = [line for line in lines[: last - first + 1] if line]
    after = [line for line in lines[last - first + 1 :] if line][:EQUAL_LINES]
    if any(b"Traceback (most" in line or line.startswith(b'File "') for line in after):
        return []  # of another rank that failed alike
    if len(set(after)) < EQUAL_LINES or not any(before[i : i + EQUAL_LINES] == after for i in range(len(before))):
        return []
    return [Evidence("log", "begun_again", after[0][:200].decode("utf-8", "replace"), line=last, free_text=True)]


#: The last words of a shell about its child, after whatever the child wrote last: that ended no line.
_LAST_WORDS = expression(rf"\S.{{0,400}}?(?P<notice>(?:{'|'.join(footers.WORDS)}) ?\(core dumped\))\s*$")


def last_words(tail: bytes, number: int, rank: int | None) -> list[Evidence]:
    """Return how the process ended, if a shell's notice is at the end of the log's last line, after other output.

    Elsewhere such a text may be anything, a sample of the training data too.
    """
    lines = tail.rstrip().split(b"\n")
    at = number - tail.count(b"\n", len(tail.rstrip()))
    match = _LAST_WORDS.match(text.plain(lines[-1][-500:].decode("utf-8", "replace")))
    return [replace(fact, rank=rank, line=at) for fact in footers.read(match["notice"])] if match else []


#: How wide a terminal is.
_TERMINALS = range(60, 401)
#: So many lines must fill it.
_FULL_LINES = 2


def unfolded(tail: bytes, number: int) -> tuple[bytes, list[int]]:
    """Return the lines that a terminal folded as they were, with the number of each one's first line; nothing if none was folded.

    Copied out of a terminal (tmux, screen), a long line comes as several, all but the last as wide as the terminal.
    """
    lines = tail.decode("utf-8", "replace").split("\n")
    width = max(len(line) for line in lines)
    full = sum(len(line) == width for line in lines[:-1])
    if width not in _TERMINALS or full < _FULL_LINES:
        return b"", []
    joined: list[str] = []
    numbers: list[int] = []
    open_line = False
    for at, line in enumerate(lines, start=number - len(lines) + 1):
        if open_line:
            joined[-1] += line
        else:
            joined.append(line)
            numbers.append(at)
        open_line = len(line) == width and not line.endswith(" ")
    return "\n".join(joined).encode(), numbers
