"""Reads the scripts in which ranks stand, and says what in them explains it. Nothing of a user's is imported or run.

A file may lie where nothing answers, which may be why the ranks stand: what takes longer than a deadline is given up.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.classify.exceptions import RACE, REASON, Exceptions
from supervisor.classify.logs.tracebacks import frames_in
from supervisor.classify.source import rules, standing
from supervisor.classify.source.script import MOST_BYTES
from supervisor.classify.source.standing import StandingRank
from supervisor.classify.unsynced import MISMATCH
from supervisor.core.model import Evidence
from supervisor.launch.system_command import run_system_command
from supervisor.observe.hangs.frames import StackFrame
from supervisor.observe.hangs.rank_activity import ActivityKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from supervisor.core.model import Hang
    from supervisor.observe.hangs.diagnosis import ComparedRank

#: For the files and the rules together; a script of 1,000 lines takes 10 ms.
DEADLINE_S = 3.0
#: For an interpreter to parse a script.
ASK_S = 10.0
_ASKS = """
import ast, json, sys
try:
    ast.parse(open(sys.argv[1], "rb").read())
except (SyntaxError, ValueError) as error:
    print(json.dumps([getattr(error, "lineno", 0) or 0, getattr(error, "msg", "") or str(error)]))
else:
    print(json.dumps([0, ""]))
"""
#: Held while a thread reads: of a file system that does not answer it never ends, and hangs are looked at again and again.
_IN_USE = threading.Lock()
#: The files of so many different scripts are read.
MOST_FILES = 8


def of_hang(ranks: Sequence[ComparedRank], hang: Hang) -> str:
    """Return why the ranks of a hang wait, with file and line and what to write; "" where no script shows it, or in time."""
    if hang.at_exit:
        return ""
    waiting = [
        StandingRank(
            rank.activity.rank,
            tuple((frame.file, frame.line) for frame in rank.stack if not frame.is_library and frame.line),
            rank.activity.group.ranks if rank.activity.group is not None else (),
        )
        for rank in ranks
        if rank.activity.kind in {ActivityKind.WAITS, ActivityKind.GONE}
    ]
    files = [file for rank in waiting for file, _ in rank.frames]
    return _in_time(lambda: standing.of_hang(waiting, read(files), hang.kind))


def of_failure(facts: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """Return why a rank read what another was writing, or why two called different collectives, as far as a script shows it."""
    exceptions = Exceptions(facts)
    for fact in facts:
        if (fact.source, fact.name) == RACE and (raised := exceptions.beside(fact)) is not None:
            frames = _frames(exceptions.trace(raised))
            text = standing.of_race(frames, read([file for file, _ in frames]))
            if text:
                return (Evidence(*REASON, text, fact.rank),)
    calls = {f.rank: _frames(exceptions.trace(f)) for f in facts if f.name in {"exception", "last_exception"} and MISMATCH in f.text}
    places = [frames[-1] for frames in calls.values() if frames]
    text = standing.of_calls(places, read([file for file, _ in places])) if places else ""
    return (Evidence(*REASON, text),) if text else ()


def of_plan(path: Path, interpreter: str) -> list[str]:
    """Return what the rules find in a script, a line each; or that it is not Python, which the ranks' own interpreter decides."""
    text = read([str(path)]).get(str(path))
    if text is None:
        return []
    try:
        return [standing.sentence(path.name, finding) for finding in rules.findings(text)]
    except SyntaxError as error:
        line, why = (error.lineno or 0, error.msg)
    if asked := _syntax_error(path, interpreter):
        return [f"{path.name}:{asked[0]}: SyntaxError: {asked[1]}; no rank can begin with it"]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return [f"{path.name} could not be read by the Python {version} of supervise (line {line}: {why}), so no rule was applied to it"]


def _syntax_error(path: Path, interpreter: str) -> tuple[int, str] | None:
    """Return the line and the text of the error that an interpreter finds in a script, None where it finds none, or cannot be asked.

    It parses the text and runs none of it; without the modules of its site.
    """
    program = shutil.which(interpreter) if interpreter else None
    if program is None:
        return None
    answer = run_system_command([program, "-I", "-S", "-c", _ASKS, str(path)], ASK_S)
    if answer is None or answer.code:
        return None
    try:
        line, text = json.loads(answer.text)
    except ValueError:
        return None
    return (int(line), str(text)) if text else None


def read(files: Iterable[str]) -> dict[str, bytes]:
    """Return the texts of files, those left out that cannot be read, are not files or are too large."""
    texts: dict[str, bytes] = {}
    for file in list(dict.fromkeys(files))[:MOST_FILES]:
        try:
            path = Path(file)
            if path.is_file() and path.stat().st_size <= MOST_BYTES:
                texts[file] = path.read_bytes()
        except (OSError, ValueError):  # it is not there any more; a name with a null byte
            continue
    return texts


def _frames(trace: str) -> list[tuple[str, int]]:
    """Return the frames of the user's code in a traceback, the innermost last."""
    frames = [StackFrame(frame.path, int(frame.line), frame.function) for frame in frames_in(trace)]
    return [(frame.file, frame.line) for frame in frames if not frame.is_library]


def _in_time(work: Callable[[], str]) -> str:
    """Return what a piece of work gives, "" where it takes too long: its thread ends when the file system answers, and no other begins."""
    if not _IN_USE.acquire(blocking=False):
        return ""
    answers: list[str] = []

    def run() -> None:
        try:
            answers.append(work())
        finally:
            _IN_USE.release()

    thread = threading.Thread(target=run, name="script-reasons", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # a limit on threads, which loaders use up: the hang is more than its reason
        _IN_USE.release()
        return ""
    thread.join(DEADLINE_S)
    return answers[0] if answers else ""
