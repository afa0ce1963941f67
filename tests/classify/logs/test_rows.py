"""Every signature, with the texts that it must know and those that it must not: tests/classify/logs/samples."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from health.kernellog import messages
from supervisor.classify import exception_table, exits
from supervisor.classify.logs import rows
from supervisor.classify.logs.catalogue import build
from supervisor.classify.logs.match import read_text
from supervisor.classify.logs.patterns import KernelMessage, MessagePattern, OwnPattern, groups_of
from supervisor.classify.logs.scanner import PlainScanner
from supervisor.config import signatures
from supervisor.core.model import Cause

CATALOGUE, PROBLEMS = signatures.read()
SAMPLES = Path(__file__).parent / "samples"
#: Beside no text at all, a sample says which row it is about and where it comes from.
KEYS = {"signature", "hit", "miss", "source", "fields", "note"}

GOOD = """
[[signature]]
id = "cuda_oom.x"
cause = "cuda_oom"
where = ["exception", "line"]
anchors = ["CUDA out of memory"]
pattern = 'CUDA out of memory. Tried to allocate (?P<asked>[0-9.]+ .iB)'
weight = 0.97
[signature.fields]
asked = "bytes"
"""


def samples() -> list[dict[str, Any]]:
    return [sample for path in sorted(SAMPLES.glob("*.toml")) for sample in tomllib.loads(path.read_text("utf-8"))["sample"]]


ALL = samples()
HITS = [sample for sample in ALL if "hit" in sample]
MISSES = [sample for sample in ALL if "miss" in sample]


def label(sample: dict[str, Any]) -> str:
    return f"{sample['signature']}: {(sample.get('hit') or sample.get('miss') or '')[:40]!r}"


def fields_of(text: str, name: str) -> list[dict[str, str]]:
    """The fields of each piece of evidence that the row makes of a log of this text."""
    return [dict(fact.fields) for fact in read_text(text, CATALOGUE) if fact.name == name]


def benign(text: str, name: str) -> bool:
    """Whether the row takes some line or exception of the text away from all others."""
    row = CATALOGUE.row(name)
    assert row is not None
    units = [text, *text.splitlines()]
    return any(row.pattern.search(unit) is not None for unit in units)


def test_rows_and_the_table_of_exception_types_agree_on_what_may_pass_by_itself() -> None:
    """Whether another try may help must not depend on whether a message's wording is known."""
    compared = set()
    for sample in HITS:
        row = CATALOGUE.row(sample["signature"])
        assert row is not None
        for line in sample["hit"].splitlines():
            kind = exits.exception_type(line)
            kind_row = exception_table.BY_CLASS.get(kind)
            if kind_row is not None and "exception" in row.where and row.cause is kind_row.cause and "*" not in kind_row.consequence_of:
                assert row.transient == kind_row.transient, (row.id, kind)
                compared.add(kind)
    assert compared >= {"OutOfMemoryError", "MemoryError"}


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (GOOD.replace("[[signature]]", "[[signatures]]").replace("[signature.", "[signatures."), ["signatures"]),
        (GOOD + '\n[[Signature]]\nid = "x"\n', ["Signature"]),
        ("# nothing yet\n", [""]),
        ("", [""]),
        (GOOD, []),
    ],
    ids=["plural", "capital", "comment", "empty", "good"],
)
def test_a_file_without_a_row_or_with_a_misspelt_table_is_reported(text: str, problems: list[str]) -> None:
    parsed, wrong = rows.parse(text, "mine.toml")
    assert [problem.id for problem in wrong] == problems
    assert all("[[signature]]" in str(problem) and "mine.toml" in str(problem) for problem in wrong)
    assert [row.id for row in parsed] == (["cuda_oom.x"] if "[[signature]]" in text else [])


def test_no_packaged_row_is_out_of_use() -> None:
    assert not PROBLEMS, "\n".join(str(problem) for problem in PROBLEMS)


def test_the_rows_that_count_as_tested_are_right() -> None:
    """Their patterns are compiled at their first use only."""
    named = {name: tuple(KernelMessage(form.anchor, form.expression) for form in forms) for name, forms in messages.named().items()}
    for file in signatures.PACKAGED.glob("*.toml"):
        valid_rows, wrong = rows.parse(file.read_text("utf-8"), str(file), messages=named, tested=True)
        assert not wrong
        for row in valid_rows:
            details = row.pattern.detail if isinstance(row.pattern, MessagePattern) else row.pattern
            for pattern in filter(None, (details, row.frames)):
                assert isinstance(pattern, OwnPattern)
                compiled = re.compile(pattern.expression)
                assert groups_of(pattern.expression) == tuple(compiled.groupindex)
                assert pattern is row.frames or isinstance(row.pattern, MessagePattern) or not compiled.search("")
    for form in (form for group in messages.named().values() for form in group):
        assert set(groups_of(form.expression)) == set(form.pattern.groupindex)


def test_samples_speak_of_rows_that_exist() -> None:
    unknown = {sample["signature"] for sample in ALL} - {row.id for row in CATALOGUE.rows}
    assert not unknown
    odd = [label(sample) for sample in ALL if set(sample) - KEYS or ("hit" in sample) == ("miss" in sample)]
    assert not odd, "a sample is either a hit or a miss"


def test_a_row_has_a_hit_a_near_miss_and_a_source() -> None:
    ids = {row.id for row in CATALOGUE.rows}
    assert not ids - {sample["signature"] for sample in HITS}, "rows without a sample that they must know"
    assert not ids - {sample["signature"] for sample in MISSES}, "rows without a sample that only looks like theirs"
    unsourced = [row.id for row in CATALOGUE.rows if not row.source.startswith(("https://", "produced: "))]
    assert not unsourced, "rows that do not say where they are from"


@pytest.mark.parametrize("sample", HITS, ids=label)
def test_a_hit_hits_with_its_fields_and_holds_an_anchor(sample: dict[str, Any]) -> None:
    row = CATALOGUE.row(sample["signature"])
    assert row is not None
    text = sample["hit"]
    assert any(anchor in text for anchor in row.anchors), "no anchor of the row stands in this text"
    if row.benign:
        assert benign(text, row.id)
        return
    facts = fields_of(text, row.id)
    assert facts, f"{row.id} does not know this text"
    wanted = {name: str(value) for name, value in sample.get("fields", {}).items()}
    assert any(wanted.items() <= fact.items() for fact in facts), f"{wanted} is in none of {facts}"


def test_each_match_of_a_row_holds_an_anchor() -> None:
    for sample in HITS:
        row = CATALOGUE.row(sample["signature"])
        assert row is not None
        for unit in [sample["hit"], *sample["hit"].splitlines()]:
            match = row.pattern.search(unit)
            if match is not None:
                assert any(anchor in unit for anchor in row.anchors), f"{row.id} matches {unit[:200]!r}, in which no anchor stands"


@pytest.mark.parametrize("sample", MISSES, ids=label)
def test_a_near_miss_misses(sample: dict[str, Any]) -> None:
    row = CATALOGUE.row(sample["signature"])
    assert row is not None
    assert not (benign(sample["miss"], row.id) if row.benign else fields_of(sample["miss"], row.id))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (('cause = "cuda_oom"', 'cause = "cuda_omm"'), "no such cause: 'cuda_omm', did you mean cuda_oom"),
        (('cause = "cuda_oom"', 'cause = "Our solver"'), "a cause of your own is called by 3 to 40 small letters, digits and underscores"),
        (("weight = 0.97", "weight = 0.97\nmeaning = 'It diverged'"), "meaning and advice go with a cause of your own"),
        (("weight = 0.97", "weight = 0.97\nadvice = 3"), "advice is a text of one line"),
        (("weight = 0.97", "weight = 1.5"), "weight is a number from 0 to 1"),
        (("weight = 0.97", ""), "weight is a number from 0 to 1"),
        (("(?P<asked>", "(?P<asked"), "terminated"),
        (('asked = "bytes"', 'asked = "byte"'), "fields: asked is none of bytes, int, float, seconds, str"),
        (('asked = "bytes"', 'free = "bytes"'), "fields: the pattern has no group 'free'"),
        (('["exception", "line"]', '["stderr"]'), "where is a list of exception, line, kernel"),
        (('["CUDA out of memory"]', "[]"), "anchors: at least one"),
        (('["CUDA out of memory"]', '["oom"]'), "must have 4 characters or more"),
        (("weight = 0.97", "weight = 0.97\nconsequence_of = ['oom']"), "consequence_of: no such cause: ['oom']"),
        (("weight = 0.97", "weight = 0.97\nwieght = 1"), "unknown key wieght"),
        (("weight = 0.97", "weight = 0.97\nframes = 'x'"), 'frames go with where = ["exception"]'),
        (("weight = 0.97", "weight = 0.97\nbenign = true"), 'cause = "none" and benign = true go together'),
        (("weight = 0.97", "weight = 0.97\nbenign = 'yes'"), "benign is true or false"),
        (('id = "cuda_oom.x"', ""), "'id' is missing"),
        (("'CUDA out of memory. Tried to allocate (?P<asked>[0-9.]+ .iB)'", "'(?P<asked>.*)'"), "pattern matches the empty text"),
    ],
)
def test_a_bad_row_is_out_of_use_with_a_reason_and_never_the_rest(change: tuple[str, str], problem: str) -> None:
    other = GOOD.replace("cuda_oom.x", "cuda_oom.other")
    assert change[0] in GOOD
    kept, problems = rows.parse(GOOD.replace(*change) + other, "mine.toml")
    assert [row.id for row in kept] == ["cuda_oom.other"]
    assert len(problems) == 1
    assert problem in str(problems[0])
    assert "mine.toml" in str(problems[0])


def test_a_row_of_the_users_may_name_a_cause_of_its_own_and_another_row_follow_from_it() -> None:
    words = "meaning = 'It diverged.'\nadvice = 'damp it'\nweight"
    own = GOOD.replace('cause = "cuda_oom"', 'cause = "solver_diverged"').replace("weight", words, 1)
    after = GOOD.replace("cuda_oom.x", "cuda_oom.y").replace("weight = 0.97", "weight = 0.97\nconsequence_of = ['solver_diverged']")
    (row, follows), problems = rows.parse(own + after, "mine.toml")
    assert problems == ()
    assert (row.cause.value, row.cause.is_own, row.meaning, row.advice) == ("solver_diverged", True, "It diverged", "damp it")
    assert follows.consequence_of == ("solver_diverged",)
    _, own_problems = rows.parse(own, "ours.toml", tested=True)
    assert "no such cause: 'solver_diverged'" in str(own_problems[0])


@pytest.mark.parametrize("text", ["[[signature]", 'signature = "x"', "signature = 3", "a = " + "[" * 5000])
def test_a_file_that_is_no_table_of_rows_is_a_problem_of_that_file_alone(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    catalogue, problems = signatures.read([path])
    assert len(catalogue.rows) == len(CATALOGUE.rows)
    assert str(path) in str(problems[0])


def test_a_file_that_is_not_there_or_not_text_is_a_problem(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    catalogue, problems = signatures.read([tmp_path / "none.toml", binary])
    assert len(catalogue.rows) == len(CATALOGUE.rows)
    assert len(problems) == 2


def test_a_users_row_takes_the_place_of_ours_and_a_second_use_of_an_id_is_a_problem(tmp_path: Path) -> None:
    row = CATALOGUE.rows[0]
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace("cuda_oom.x", row.id) + GOOD.replace("weight = 0.97", "weight = 0.5"))
    again = tmp_path / "again.toml"
    again.write_text(GOOD)
    catalogue, problems = signatures.read([path, again])
    replaced = catalogue.row(row.id)
    assert replaced is not None
    assert replaced.origin == str(path)
    mine = catalogue.row("cuda_oom.x")
    assert mine is not None
    assert mine.weight == 0.5
    assert [problem.id for problem in problems] == ["cuda_oom.x"]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("bytes", "2.00 GiB", 2147483648),
        ("bytes", "768.00 MiB", 805306368),
        ("bytes", "512.00 KiB", 524288),
        ("bytes", "64 bytes", 64),
        ("bytes", "1,024", 1024),
        ("bytes", "65432kB", 67002368),
        ("seconds", "600000 milliseconds", 600.0),
        ("seconds", "1800000ms", 1800.0),
        ("seconds", "0:30:00", 1800.0),
        ("seconds", "30 minutes", 1800.0),
        ("seconds", "10", 10.0),
        ("int", "0x1f", 31),
        ("int", "12", 12),
    ],
)
def test_fields_are_read_in_base_units(kind: str, text: str, value: float) -> None:
    assert rows.FIELD_TYPES[kind](text) == value


@pytest.mark.parametrize(("figure", "rank"), [("0", 0), ("4095", 4095), ("-5", None), ("1" + "0" * 26, None), ("1000000", None)])
def test_an_impossible_rank_is_not_reported(figure: str, rank: int | None) -> None:
    row = GOOD.replace("(?P<asked>[0-9.]+ .iB)", "(?P<rank>-?[0-9]+)").replace('asked = "bytes"', 'rank = "int"')
    (fact,) = [f for f in read_text(f"CUDA out of memory. Tried to allocate {figure}\n", build(rows.parse(row, "mine.toml")[0])) if f.claim]
    assert fact.rank == rank
    assert dict(fact.fields) == ({} if rank is None else {"rank": str(rank)})


def test_a_plain_scanner_finds_an_anchor_within_another() -> None:
    scanner = PlainScanner(("Error", "CUDA Error: out", "out of"))
    assert {index for index, _ in scanner.hits(b"x CUDA Error: out of memory, Error")} >= {0, 1}


def test_causes_that_a_row_names_are_those_of_the_list() -> None:
    assert {row.cause for row in CATALOGUE.rows} <= set(Cause)
