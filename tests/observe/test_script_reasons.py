"""What the scripts of waiting ranks show, and which part of it is reported; no script is run."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import pytest

from supervisor.classify.engine import classify
from supervisor.core.model import Cause, Claim, Evidence, Hang, HangKind
from supervisor.observe import script_reasons
from supervisor.observe.hangs.diagnosis import ComparedRank
from supervisor.observe.hangs.frames import StackFrame
from supervisor.observe.hangs.rank_activity import ActivityKind, RankActivity
from supervisor.observe.hangs.recorder import ProcessGroup
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCRIPT = """import torch.distributed as dist
rank = dist.get_rank()
if rank == 0:
    dist.barrier()
dist.all_reduce(x)
"""
REASON = "train.py:4: only ranks with `rank == 0` (line 3) call barrier: the others never come to it; let all ranks call it"
C10D = StackFrame("/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 9, "barrier")
GROUP = ProcessGroup("0", (0, 1), "gloo", 600.0)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Give a script with a collective under a test of the rank."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def waits(rank: int, path: Path, line: int) -> ComparedRank:
    activity = RankActivity(rank, 100 + rank, ActivityKind.WAITS, "in a collective", group=GROUP)
    return ComparedRank(activity, stack=(C10D, StackFrame(str(path), line, "<module>")))


def test_the_lines_in_which_ranks_wait_are_looked_up_in_their_script(script: Path) -> None:
    reason = script_reasons.of_hang((waits(0, script, 4), waits(1, script, 5)), Hang(HangKind.LATE, "they wait"))
    assert reason.startswith(REASON)
    assert not script_reasons.of_hang((waits(1, script, 5),), Hang(HangKind.LATE, "they wait"))


def test_ranks_that_do_not_wait_in_a_collective_or_are_at_their_end_explain_nothing(script: Path) -> None:
    late = ComparedRank(RankActivity(0, 1, ActivityKind.ELSEWHERE, "in save"), stack=(StackFrame(str(script), 4, "<module>"),))
    assert not script_reasons.of_hang((late,), Hang(HangKind.LATE, "they wait"))
    assert not script_reasons.of_hang((waits(0, script, 4),), Hang(HangKind.EXIT, "they stand", at_exit="rank 0 stands at its exit"))


def test_a_script_that_is_gone_no_file_or_not_python_explains_nothing(tmp_path: Path) -> None:
    (tmp_path / "none.py").write_bytes(b"%run\n\x00")
    for name in ("gone.py", "", "none.py", "x\x00y"):
        assert not script_reasons.of_hang((waits(0, tmp_path / name, 4),), Hang(HangKind.MISMATCH, "they wait"))


def test_a_file_system_that_does_not_answer_is_not_waited_for(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, asked, texts = threading.Event(), [], {str(script): script.read_bytes()}

    def read(files: list[str]) -> dict[str, bytes]:
        asked.append(files)
        answers.wait(30)
        return texts

    monkeypatch.setattr(script_reasons, "read", read)
    monkeypatch.setattr(script_reasons, "DEADLINE_S", 0.05)
    for _ in range(3):
        assert not script_reasons.of_hang((waits(0, script, 4),), Hang(HangKind.LATE, "they wait"))
    assert len(asked) == 1, "one thread waits, and not one for each look"
    answers.set()
    monkeypatch.setattr(script_reasons, "DEADLINE_S", 30.0)
    wait_for(lambda: script_reasons.of_hang((waits(0, script, 4),), Hang(HangKind.LATE, "they wait")).startswith(REASON), "the reason")


def trace(path: Path, line: int) -> str:
    return f'Traceback (most recent call last):\n  File "{path}", line {line}, in <module>\n    x\nRuntimeError: no'


def test_a_race_gets_the_reason_of_the_load(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\nimport torch.distributed as dist\nif dist.get_rank() == 0:\n    torch.save(s, 'x.pt')\ns = torch.load('x.pt')\n"
    )
    race = Evidence(
        "checkpoint", "race", "rank 1 read what rank 0 was writing: x.pt", 1, 4.0, fields=(("race_writer", "0"), ("path", "x.pt"))
    )
    facts = (
        Evidence("error_file", "exception", "RuntimeError: no", 1, 5.0),
        Evidence("error_file", "traceback", trace(path, 5), 1, 5.0),
        Evidence(
            race.source, race.name, race.text, 1, 4.0, fields=race.fields, claim=Claim(Cause.CHECKPOINT_CORRUPT, 0.97, transient=True)
        ),
    )
    (reason,) = script_reasons.of_failure(facts)
    assert reason.text.startswith("train.py:5: 'x.pt' is loaded here, and saved in line 4 by some ranks alone")
    verdict = classify((*facts, reason))
    assert dict(verdict.facts)["reason"] == reason.text
    assert dict(verdict.facts)["race_writer"] == "0"
    assert "reason" not in dict(classify(facts).facts)


def test_a_failure_of_another_kind_gets_none(script: Path) -> None:
    raised = Evidence("error_file", "exception", "RuntimeError: no", 1, 5.0)
    assert script_reasons.of_failure((raised, Evidence("error_file", "traceback", trace(script, 4), 1, 5.0))) == ()
    assert script_reasons.of_failure(()) == ()


def test_a_plan_has_all_findings(script: Path) -> None:
    (line,) = script_reasons.of_plan(script, "")
    assert line.startswith(REASON)
    assert script_reasons.of_plan(script.with_name("gone.py"), "") == []
    assert script_reasons.of_plan(script.parent, "") == []


def test_a_syntax_error_confirmed_by_the_ranks_interpreter_is_reported_with_its_line(script: Path) -> None:
    script.write_text("import torch\nif x\n    y = 1\n")
    assert script_reasons.of_plan(script, sys.executable) == ["train.py:2: SyntaxError: expected ':'; no rank can begin with it"]


@pytest.mark.parametrize("text", ["it parses it", "it cannot be asked", "there is none"])
def test_a_script_that_only_our_python_cannot_read_is_no_error_of_the_users(
    script: Path, executable: Callable[[str], Path], text: str
) -> None:
    script.write_text("print 'two'\n")
    words = {"it parses it": "echo '[0, \"\"]'", "it cannot be asked": "exit 3", "there is none": ""}[text]
    interpreter = str(executable(words)) if words else "python9.9"
    (line,) = script_reasons.of_plan(script, interpreter)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert line.startswith(f"train.py could not be read by the Python {version} of supervise (line 1: ")
    assert "so no rule was applied to it" in line


@pytest.fixture
def executable(tmp_path: Path) -> Callable[[str], Path]:
    """Give what makes a stand-in for an interpreter of another version: a program that answers with these words of the shell."""

    def make(words: str) -> Path:
        path = tmp_path / "python9"
        path.write_text(f"#!/bin/sh\n{words}\n")
        path.chmod(0o755)
        return path

    return make
