"""Reports at the start of a job of Slurm whether a notice before its time limit will reach this supervise, and what its array shares.

`--signal` of sbatch shows in no answer of Slurm's: scontrol prints the batch script, and an option that was given to sbatch itself is not
in it. So a script without such a line proves nothing, and that is reported as it is.

The receivers of a signal (Slurm 22.05, control groups): a notice goes to the tasks of all steps and not to the batch script, with `B:` to
the script alone. Of a task Slurm signals the process that it started and no child of that.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from health.probes import slurm
from supervisor.core.values import Struct, replace
from supervisor.launch.system_command import scontrol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: sbatch(1): --signal=[{R|B}:]<sig_num>[@sig_time]. Options stand in the #SBATCH lines above the first command.
_ASKED: Final = re.compile(r"\s--signal[=\s]\s*(?:([BR]{1,2}):)?(?:SIG)?(\w+)(?:@(\d+))?")
_DEFAULT_S: Final = 60
_NOTICES: Final = ("USR1", "USR2")
_SHELLS: Final = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
_MOST_ANCESTORS: Final = 64

Report = tuple[Literal["info", "warning"], str]


class NoticeRequest(Struct, frozen=True):
    """The request of `--signal`. name: of the signal, without SIG. seconds: before the time limit. to_script: to the batch script alone."""

    name: str
    seconds: int
    to_script: bool

    @property
    def option(self) -> str:
        """The option of sbatch for this request."""
        return f"--signal={'B:' if self.to_script else ''}{self.name}@{self.seconds}"


def is_first(environ: Mapping[str, str]) -> bool:
    """Return whether this is the supervise of a job that asks Slurm's controller: a thousand nodes that ask at once would burden it."""
    return environ.get("SLURM_NODEID", "0") in {"", "0"}


def reports(environ: Mapping[str, str], name: str, root: Path) -> Iterator[Report]:
    """Yield what a person should know at the start of a job of Slurm. It asks the controller, for up to 20 s: not on the loop's thread.

    name: the job's. root: its state directory.
    """
    deaf = deaf_shell(environ)
    if deaf:
        yield "warning", deaf
    job = slurm.job_id(environ)
    record, script = _answer("-o", "show", "job", job), _answer("write", "batch_script", job, "-")
    yield from of_array(environ, name, root, record)
    if script and "TimeLimit=UNLIMITED" not in record:
        yield from of_notice(environ, script, is_heard=not deaf)


def of_notice(environ: Mapping[str, str], script: str, *, is_heard: bool = True) -> Iterator[Report]:
    """Yield whether a notice before the time limit will come, by the text of the batch script.

    is_heard: whether this process is the one that Slurm signals.
    """
    asked, is_step = notice_request(script), slurm.place(environ)[1] != ""
    if asked is None:
        line = f"`#SBATCH {NoticeRequest('USR1', 120, to_script=not is_step).option}`"
        text = f"Slurm's TERM leaves 30 s to save: write {line}, unless sbatch was given it"
        yield "info", f"the batch script asks for no notice before the time limit, and {text}"
    elif asked.name not in _NOTICES:
        why = "after it the job does not come back" if asked.name == "INT" else "it is not a notice"
        yield "warning", f"{asked.option}: supervise takes USR1 and USR2 for a notice, and {asked.name} for the end: {why}; write USR1"
    elif asked.to_script and _traps(script, asked.name):
        yield "info", f"{asked.option}: the notice comes to the batch script alone, whose trap has to hand it on to supervise"
    elif asked.to_script and is_step:
        text = f"it has no trap for {asked.name}, so it ends by that, and the job ends unsaved with it, as FAILED"
        yield (
            "warning",
            f"{asked.option}: the notice comes to the batch script alone; {text}: write {replace(asked, to_script=False).option}",
        )
    elif not is_step and not asked.to_script:
        text = f"start it with `srun supervise …`, or write {replace(asked, to_script=True).option} and `exec supervise …`"
        yield "warning", f"{asked.option}: the notice comes to the steps of the job, and this supervise is in none: {text}"
    elif is_heard:
        yield "info", f"a notice comes {asked.seconds} to {asked.seconds + 60} s before the time limit ({asked.option})"


def notice_request(script: str) -> NoticeRequest | None:
    """Return what the #SBATCH lines of a batch script ask for, the last of them; None for nothing."""
    asked = None
    for line in script.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH") and (match := _ASKED.search(line.removeprefix("#SBATCH").partition(" #")[0])) is not None:
            asked = NoticeRequest(_name_of(match[2]), int(match[3] or _DEFAULT_S), "B" in (match[1] or ""))
    return asked


def deaf_shell(environ: Mapping[str, str], proc: Path = Path("/proc")) -> str:
    """Return the warning for a shell that Slurm signals in place of this process, and that hands on nothing; "" where there is none."""
    text = environ.get("SLURM_TASK_PID", "")
    if not (text.isascii() and text.isdecimal()) or text not in _ancestors(proc):
        return ""
    status = _status(proc, text)
    name, caught = status.get("Name", ""), int(status.get("SigCgt", "0"), 16)
    if name not in _SHELLS or caught >> (signal.SIGTERM - 1) & 1 or caught >> (signal.SIGUSR1 - 1) & 1:
        return ""
    return (
        f"Slurm signals the process that it started, which is a shell ({name}), and not this supervise below it: neither a preemption nor a"
        " notice is heard; start it there with `exec supervise …`"
    )


def of_array(environ: Mapping[str, str], name: str, root: Path, record: str) -> Iterator[Report]:
    """Yield what the tasks of an array share by their names, or do not share. record: what scontrol shows of the job, "" for nothing."""
    array, task = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    if not task or environ.get("SLURM_ARRAY_TASK_COUNT", "") == "1":
        return
    is_chain = re.search(r"\bArrayTaskThrottle=1\b", record) is not None  # one task after another: it may well be one job
    if record and not is_chain and not _has_number(name, task):
        text = f"leave --job out (slurm-{slurm.job_id(environ)}), or let one task follow another (--array=…%1)"
        yield "warning", f"each task of array {array} has the name {name}, and their nodes are taken for nodes of one job: {text}"
    submitted = environ.get("SLURM_SUBMIT_DIR", "")
    if _has_number(str(root), task) and not _has_number(submitted, task):  # there it is not a number of the task
        shared = Path(submitted) / root.name
        text = f"tasks share that in one state directory, such as --state-dir {shared}"
        yield "info", f"nodes and GPUs that another task of array {array} puts out of use are not known in {root}: {text}"


def _has_number(text: str, number: str) -> bool:
    return number in re.findall(r"\d+", text)


def _ancestors(proc: Path) -> list[str]:
    pids, pid = list[str](), str(os.getpid())
    while len(pids) < _MOST_ANCESTORS and (pid := _status(proc, pid).get("PPid", "0")) != "0":
        pids.append(pid)
    return pids


def _status(proc: Path, pid: str) -> dict[str, str]:
    """Return the lines of proc(5)'s status by their names; {} for a process that is gone or hidden."""
    try:
        text = (proc / pid / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def _traps(script: str, name: str) -> bool:
    number = getattr(signal, f"SIG{name}").value
    return re.search(rf"^[^#\n]*\btrap\b.*\b(?:(?:SIG)?{name}|{number})\b", script, re.MULTILINE) is not None


def _name_of(text: str) -> str:
    try:
        return signal.Signals(int(text)).name.removeprefix("SIG") if text.isdecimal() else text.upper()
    except ValueError:
        return text


def _answer(*words: str) -> str:
    """Return what scontrol prints, "" where it is not there, is refused or does not answer."""
    answer = scontrol(*words)
    return answer.text if answer is not None and answer.code == 0 else ""
