"""A user's own pattern blocks nobody: a pattern that could take long is refused, and the others search a bounded text in a bounded time."""

from __future__ import annotations

import time

import pytest

from supervisor.classify.logs import rows
from supervisor.classify.logs.user_patterns import LONGEST, MOST_STEPS, UserPattern, most_steps

ROW = (
    '[[signature]]\nid = "{id}"\ncause = "data_error"\nwhere = ["exception"]\nanchors = ["shard"]\nweight = 0.9\n'
    "pattern = '{pattern}'\nframes = '{frames}'\n"
)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?:(x+x+)+y)",
        r"(?:x+)+y",
        r"(a|a)*b",
        r"(a|ab)*c",
        r"(a?){30}a{30}",
        r"(\s*\w+\s*)*x",
        r"^(\w+\s?)*$",
        r"(.*)*x",
        r"(.*,){11}P",
        r"(?=(?:a+)+$)b",
        r"(?P<q>a)?(?(q)(?:b+)+c|d)",
        r"x*x*x*y",
        r"a*a*a*$",
        r"a*a*a*(?=b)",
        r"a{0,40}a{0,40}a{0,40}a{0,40}b",
        r"(?>(?:a+)+)b",
        r"[一-龥]+[一-鿿]+[一-鿿]+。",
        r"(?:\u0500+\u0500*)+x",
    ],
)
def test_a_pattern_that_could_take_long_is_refused_with_what_to_write(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"may take too long \(.*\): limit its repeats"):
        UserPattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"solver diverged", "solver diverged"),
        (r"shard (?P<shard>\d+) .* damaged .* file", "shard 12 is damaged in a file"),
        (r"(?P<value>-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)", "-1.5e-3"),
        (r"loss=(?P<value>\S+)\s+step=(?P<step>\d+)\s+lr=\S+", "loss=0.5 step=3 lr=1e-4"),
        (r"(?:\w+\.)*\w+Error", "our.errors.ReaderError"),
        (r"(?i)error.{0,80}rank (\d+).{0,80}node (\w+)", "Error of rank 3 on node a7"),
        (r".*CUDA error.*device", "a CUDA error on this device"),
        (r"rank (\d+) failed: (\w+) .{0,80}node (\w+)$", "rank 3 failed: OSError on node a7"),
        (r"(?:ab|cd)*e", "abcde"),
        (r"(?<=step )\d++(?!\d)", "step 12"),
        (r"(?P<q>['\"]).*(?P=q)", "'a'"),
        (r"^\[(?P<t>[^\]]*)\] (?P<name>\w+): (?P<value>[\d.]+)$", "[12] loss: 0.5"),
    ],
)
def test_an_honest_pattern_is_taken(pattern: str, text: str) -> None:
    assert UserPattern(pattern).search(text) is not None


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"a.*a.*b", "a" * 5 * LONGEST),
        pytest.param(r"x*x*(?:a|b)y", "x" * LONGEST, marks=pytest.mark.slow),
        (r"loss.*step.*value", "loss step " * LONGEST),
    ],
)
def test_an_accepted_pattern_is_fast_on_hostile_text(pattern: str, text: str) -> None:
    assert most_steps(pattern) <= MOST_STEPS
    began = time.process_time()
    assert UserPattern(pattern).search(text[: 2 * LONGEST]) is None
    assert time.process_time() - began < 20, "seconds at most; without a bound it would be years"


def test_a_long_text_is_searched_in_parts_that_overlap() -> None:
    pattern = UserPattern(r"shard (?P<shard>\d+) .*damaged(?P<more>!)?")
    for before in (0, 1, LONGEST // 2 - 3, LONGEST - 10, LONGEST, 12_000):
        match = pattern.search("-" * before + "shard 12 is damaged" + "-" * 5 * LONGEST)
        assert match is not None
        assert (match["shard"], match["more"], match.start()) == ("12", None, before)
    assert pattern.search("-" * 20 * LONGEST) is None
    assert UserPattern("^shard").search("-" * LONGEST + "shard") is None, "a part is no line"


def test_a_whole_text_is_matched_up_to_the_longest() -> None:
    assert UserPattern("x+").fullmatch("x" * LONGEST) is not None
    assert UserPattern("x+").fullmatch("x" * (LONGEST + 1)) is None
    assert UserPattern("x+").fullmatch("xy") is None


@pytest.mark.parametrize("pattern", [r"\N{DOES NOT EXIST}", "(?P<a", "[z-a]", "(" * 5000 + ")" * 5000])
def test_an_invalid_pattern_is_a_value_error(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        UserPattern(pattern)


def test_a_row_with_a_slow_pattern_is_left_out_and_the_others_hold() -> None:
    texts = [
        ROW.format(id="a", pattern="shard", frames="read"),
        ROW.format(id="b", pattern="shard (x+x+)+y", frames="read"),
        ROW.format(id="c", pattern="shard", frames="(?:r+)+ead"),
    ]
    kept, problems = rows.parse("".join(texts), "mine.toml")
    assert [row.id for row in kept] == ["a"]
    assert [(problem.id, "limit its repeats" in problem.text) for problem in problems] == [("b", True), ("c", True)]
