"""What of the evidence a decision's record keeps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from supervisor.classify.engine import classify
from supervisor.classify.logs.tracebacks import DIRECT, HANDLED
from supervisor.config.signatures import read
from supervisor.core.model import Cause, Evidence, RankExit, RankInfo
from supervisor.job.clock import Clock
from supervisor.observe.collect import FOLLOWS_NS, RECORDED_CHARACTERS, claims, errors, of_launcher, rooted, saves, trimmed

if TYPE_CHECKING:
    from pathlib import Path


def kept(name: str, text: str) -> str:
    (fact,) = trimmed([Evidence("error_file", name, text, rank=1)])
    return fact.text


def test_a_short_exception_is_kept_unchanged() -> None:
    assert kept("exception", "ValueError: x") == "ValueError: x"


def test_an_exception_keeps_its_type_and_how_it_begins() -> None:
    for name in ("exception", "last_exception"):
        text = kept(name, "ImportError: cannot import " + "y" * 3000)
        assert text.startswith("ImportError: cannot import yyy")
        assert text.endswith("y…")
        assert len(text) == RECORDED_CHARACTERS + 1


def test_a_traceback_keeps_its_end_and_a_long_message_does_not_push_the_frames_out() -> None:
    frames = "".join(f'  File "m.py", line {n}, in f{n}\n    g()\n' for n in range(100))
    text = kept("traceback", f"Traceback (most recent call last):\n{frames}ImportError: {'y' * 3000}\n")
    assert "in f99" in text
    assert "\nImportError: yyy" in text
    assert "in f0\n" not in text
    assert len(text) <= RECORDED_CHARACTERS + 1


def test_last_lines_keep_their_end() -> None:
    assert kept("rank1.err", "a" * 3000 + " the end").endswith(" the end")


def _line(path: str, **more: object) -> str:
    return json.dumps({"path": path, "t": 1.0, **more}) + "\n"


def test_saves_to_one_place_are_counted_and_parts_or_torn_ones_are_not(tmp_path: Path) -> None:
    ended = {"what": "ended", "well": True}
    (tmp_path / "saves-0.jsonl").write_text(
        _line("/c/model.pt", **ended)
        + _line("/c/optimizer.pt", **ended)  # the state before the first step is often two files
        + _line("/c/step_10.pt", what="began")
        + _line("/c/step_10.pt", **ended)
        + _line("/c/step_20.pt", what="ended", well=False)
        + '{"torn'
    )
    assert [fact.text for fact in saves(tmp_path)] == ["1"]
    (tmp_path / "saves-1.jsonl").write_text(_line("/c/step_10.pt", **ended) + _line("/c/step_20.pt", **ended))
    assert [fact.text for fact in saves(tmp_path)] == ["2"]
    (tmp_path / "saves-2.jsonl").write_text(3 * _line("/c/last.pt", **ended))
    assert [fact.text for fact in saves(tmp_path)] == ["3"]
    assert saves(tmp_path / "nothing") == ()


COMMAND = RankInfo(0, 0, 70, 1)
ENDED = RankExit(0, 70, 100 * FOLLOWS_NS, code=1)


def _raised(directory: Path, pid: int, at_ns: int, kind: str = "builtins.ModuleNotFoundError", phase: str = "import") -> None:
    row = {"v": 1, "pid": pid, "start_ticks": 5, "rank": None, "local_rank": None, "exc_type": kind, "message": "m", "traceback": "t"}
    row |= {"phase": phase, "steps": 0, "step": None, "optimizer": True, "ran": True, "t_ns": at_ns, "wall": 1.0}
    (directory / f"error-unclaimed-{pid}.json").write_text(json.dumps(row))


def _facts(directory: Path, *deaths: RankExit) -> set[tuple[str, str, int | None]]:
    facts = errors(directory, [COMMAND], Clock.start(), deaths=deaths)
    return {(fact.name, fact.text, fact.rank) for fact in facts if fact.name != "traceback"}


def test_the_program_that_a_command_ended_with_is_its_rank_and_has_its_phase(tmp_path: Path) -> None:
    _raised(tmp_path, 71, ENDED.at_ns - 10)
    _raised(tmp_path, 70, ENDED.at_ns - 5, "subprocess.CalledProcessError")  # the launcher's own
    assert _facts(tmp_path, ENDED) == {
        ("exception", "ModuleNotFoundError: m", 0),
        ("phase", "import", 0),
        ("steps", "0", 0),
        ("optimizer", "made", 0),
        ("ran", "more than imports", 0),
        ("exception", "subprocess.CalledProcessError: m", None),
    }


def test_an_early_or_ambiguous_exception_of_a_helper_belongs_to_no_rank(tmp_path: Path) -> None:
    _raised(tmp_path, 71, ENDED.at_ns - FOLLOWS_NS - 1)
    assert _facts(tmp_path, ENDED) == {("exception", "ModuleNotFoundError: m", None)}
    _raised(tmp_path, 72, ENDED.at_ns - 2)
    _raised(tmp_path, 73, ENDED.at_ns - 1)
    assert {rank for _, _, rank in _facts(tmp_path, ENDED)} == {None}
    assert {rank for _, _, rank in _facts(tmp_path)} == {None}


def test_torchs_record_of_an_exception_counts_where_the_rank_wrote_none() -> None:
    evidence = Evidence("error_file", "exception", "ValueError: x", rank=0)
    torchs = [Evidence("error_file", "exception", f"ValueError: x, by torch, of {rank}", rank=rank) for rank in (0, 1)]
    exit_code = Evidence("launcher", "exit_code", "1")
    assert of_launcher((*torchs, exit_code), (evidence, Evidence("log", "exception", "y", rank=1))) == (torchs[1], exit_code)


CHAINED = """Traceback (most recent call last):
  File "/lib/torchvision/_meta_registrations.py", line 25, in decorator
    raise RuntimeError(f"operator {name} does not exist")
RuntimeError: operator torchvision::nms does not exist

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/job/train.py", line 3, in <module>
    from transformers import GPT2LMHeadModel
ModuleNotFoundError: Could not import module 'GPT2LMHeadModel'. Are this object's requirements defined correctly?
"""


def _of(traceback: str) -> tuple[Evidence, ...]:
    last = traceback.strip().splitlines()[-1]
    return (Evidence("error_file", "exception", last, 0, 7.0), Evidence("error_file", "traceback", traceback, 0, 7.0))


def test_an_exception_that_was_raised_from_another_one_has_the_claims_of_that_one() -> None:
    facts = _of(CHAINED)
    all_claims = claims(facts, read)
    assert [(claim.name, claim.text, claim.source, claim.rank) for claim in all_claims] == [
        ("dependency.binary_interface", "RuntimeError: operator torchvision::nms does not exist", "error_file", 0)
    ]
    verdict = classify((*facts, *all_claims, Evidence("exit", "exit_code", "1", 0, 7.1)))
    assert verdict.cause is Cause.DEPENDENCY
    assert verdict.summary.endswith("RuntimeError: operator torchvision::nms does not exist")
    assert any("GPT2LMHeadModel" in fact.text for fact in verdict.because)


def test_an_exception_without_a_signature_is_replaced_by_its_cause() -> None:
    unknown = CHAINED.replace("operator torchvision::nms does not exist", "shard 7 is of another run")
    facts = rooted(_of(unknown), claims(_of(unknown), read))
    verdict = classify((*facts, Evidence("exit", "exit_code", "1", 0, 7.1)))
    assert verdict.summary == "rank 0 raised RuntimeError: shard 7 is of another run"
    assert dict(verdict.facts)["file"] == "/lib/torchvision/_meta_registrations.py"
    # near: the one that a signature knows stays, and so does the last one after an exception that was handled
    assert rooted(_of(CHAINED), claims(_of(CHAINED), read)) == _of(CHAINED)
    handled = unknown.replace(DIRECT, HANDLED)
    assert rooted(_of(handled), ()) == _of(handled)


def test_an_exception_that_was_handled_before_claims_nothing() -> None:
    handled = CHAINED.replace("The above exception was the direct cause of the following exception:", HANDLED)
    assert claims(_of(handled), read) == ()
