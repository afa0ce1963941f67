"""Any command line comes back as it was, except for the knob."""

from __future__ import annotations

import argparse
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.knobs.bindings import Binding, FileKey, Flag, Override, Pair, Placeholder, Word, abbreviated, read, write

BATCH = Flag(("--batch-size", "--batch_size", "-b"))
LR = Flag(("-lr",))
JOINED = Flag(("--batch_size",), joined=True)
SET = Pair("--set", "train.bs={}")
HYDRA = Override("trainer.batch_size")
ADDED = Override("trainer.batch_size", "++")
CONFIG = FileKey(Flag(("--config", "-c")), "a.b")
PATH = FileKey(Word("conf/a.yaml"), "a.b")

WRITTEN = [
    ("the word behind it", BATCH, ["--x", "--batch-size", "32", "y"], "32", ["--x", "--batch-size", "16", "y"]),
    ("behind an equals sign", BATCH, ["--batch-size=32", "--x"], "32", ["--batch-size=16", "--x"]),
    ("of several the last counts", BATCH, ["--batch-size", "8", "--batch_size=32"], "32", ["--batch-size", "8", "--batch_size=16"]),
    ("a short flag", BATCH, ["-b", "32"], "32", ["-b", "16"]),
    ("a short flag that its value sticks to", BATCH, ["-b32", "a"], "32", ["-b16", "a"]),
    ("a short flag with an equals sign", BATCH, ["-b=32"], "32", ["-b=16"]),
    ("another flag that begins with a short one", BATCH, ["-bar", "-b2x"], None, ["-bar", "-b2x", "--batch-size", "16"]),
    ("another flag that begins alike", BATCH, ["--batch-size-eval", "4"], None, ["--batch-size-eval", "4", "--batch-size", "16"]),
    ("a long flag with one dash", LR, ["-lr", "0.1"], "0.1", ["-lr", "16"]),
    ("a negative number is a value", BATCH, ["--batch-size", "-1"], "-1", ["--batch-size", "16"]),
    ("absent: at the end", BATCH, ["a", "--x", "1"], None, ["a", "--x", "1", "--batch-size", "16"]),
    ("absent: in front of --", BATCH, ["a", "--", "b"], None, ["a", "--batch-size", "16", "--", "b"]),
    ("behind -- nothing is a flag", BATCH, ["--", "--batch-size", "32"], None, ["--batch-size", "16", "--", "--batch-size", "32"]),
    ("a flag without a value", BATCH, ["--batch-size", "--x"], "", ["--batch-size", "16", "--x"]),
    ("a flag at the very end", BATCH, ["--batch-size"], "", ["--batch-size", "16"]),
    ("a flag whose value would be --", BATCH, ["--batch-size", "--", "4"], "", ["--batch-size", "16", "--", "4"]),
    ("an empty value", BATCH, ["--batch-size="], "", ["--batch-size=16"]),
    ("absl's form where none stands", JOINED, ["config.py"], None, ["config.py", "--batch_size=16"]),
    ("absl's form as it stands", JOINED, ["--batch_size=12"], "12", ["--batch_size=16"]),
    ("a pair", SET, ["--set", "train.bs=32", "x"], "32", ["--set", "train.bs=16", "x"]),
    ("one pair of several", SET, ["--set", "a=1", "--set", "train.bs=32"], "32", ["--set", "a=1", "--set", "train.bs=16"]),
    ("one value of several", SET, ["--set", "a=1", "train.bs=32", "b=2"], "32", ["--set", "a=1", "train.bs=16", "b=2"]),
    ("a joined pair", SET, ["--set=train.bs=32"], "32", ["--set=train.bs=16"]),
    ("a pair that is not there", SET, ["x"], None, ["x", "--set", "train.bs=16"]),
    ("Hydra's word", HYDRA, ["a=1", "trainer.batch_size=32"], "32", ["a=1", "trainer.batch_size=16"]),
    ("Hydra's word, added", HYDRA, ["+trainer.batch_size=32"], "32", ["+trainer.batch_size=16"]),
    ("Hydra's other word", HYDRA, ["xtrainer.batch_size=32"], None, ["xtrainer.batch_size=32", "trainer.batch_size=16"]),
    (
        "Hydra's new word behind its others",
        ADDED,
        ["a=1", "--config-name", "c"],
        None,
        ["a=1", "++trainer.batch_size=16", "--config-name", "c"],
    ),
    ("Hydra's first word", HYDRA, ["--config-name", "c", "--", "d"], None, ["--config-name", "c", "trainer.batch_size=16", "--", "d"]),
    ("a placeholder", Placeholder("batch_size"), ["--bs={batch_size}", "${batch_size}"], None, ["--bs=16", "${batch_size}"]),
    ("the file of a flag", CONFIG, ["-c", "a.yaml"], "a.yaml", ["-c", "16"]),
    ("a file by its own name", PATH, ["conf/a.yaml", "x"], "conf/a.yaml", ["16", "x"]),
    ("a file by its own name, joined", PATH, ["--config=conf/a.yaml"], "conf/a.yaml", ["--config=16"]),
    ("a file that is not named", PATH, ["other/conf/a.yaml"], None, ["other/conf/a.yaml"]),
]


@pytest.mark.parametrize(("place", "argv", "value", "after"), [row[1:] for row in WRITTEN], ids=[row[0] for row in WRITTEN])
def test_a_knob_is_read_and_written_where_it_stands(place: Binding, argv: list[str], value: str | None, after: list[str]) -> None:
    assert read(argv, place) == value
    assert write(argv, place, "16") == after


def test_a_switch_is_written_without_a_value() -> None:
    assert write(["a", "--", "b"], Flag(("--ckpt",)), "") == ["a", "--ckpt", "--", "b"]
    assert write(["--ckpt"], Flag(("--ckpt",)), "") == ["--ckpt"]
    assert write(["--ckpt=False"], Flag(("--ckpt",)), "True") == ["--ckpt=True"]


def test_a_possible_abbreviation_is_reported() -> None:
    assert abbreviated(["--x", "--batch=3"], BATCH) == "--batch"
    assert abbreviated(["--batch-size", "3", "-b"], BATCH) is None
    assert abbreviated(["--", "--batch"], BATCH) is None


WORDS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        ["--", "-", "-b", "-b32", "--batch-size", "--batch-size=", "--batch_size=7", "--set", "train.bs=1", "trainer.batch_size=1"]
    ),
    st.sampled_from(["-1", "1", "+trainer.batch_size=4", "a=1", "--set=train.bs=2", "{batch_size}", "conf/a.yaml", "--config=conf/a.yaml"]),
)
PLACES = st.sampled_from([BATCH, LR, JOINED, SET, HYDRA, ADDED, CONFIG])


@given(st.lists(WORDS, max_size=12), PLACES, st.integers(0, 10**6).map(str))
def test_a_round_trip_changes_nothing_but_the_knob(argv: list[str], place: Binding, value: str) -> None:
    before = list(argv)
    old = read(argv, place)
    new = write(argv, place, value)
    assert argv == before, "what was given is not changed"
    assert read(new, place) == value
    added = len(new) - len(argv)
    if added:
        at = next((i for i, (a, b) in enumerate(zip(argv, new, strict=False)) if a != b), len(argv))
        # an added word that equals its neighbour makes the place ambiguous, not the rest
        assert any(new[:i] == argv[:i] and new[i + added :] == argv[i:] for i in range(at + 1))
        assert added in (1, 2)
        assert not old
    else:
        assert sum(a != b for a, b in zip(argv, new, strict=True)) <= 1
        assert old is not None
        assert not old or write(new, place, old) == argv


def parser() -> argparse.ArgumentParser:
    argument_parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    argument_parser.add_argument("--batch-size", "--batch_size", "-b", type=int, default=None)
    argument_parser.add_argument("--lr", "-l", type=float, default=0.0)
    argument_parser.add_argument("--name", default="")
    argument_parser.add_argument("--flag", action="store_true")
    argument_parser.add_argument("--many", nargs="+", type=int, default=[])
    argument_parser.add_argument("script")
    return argument_parser


NUMBERS = st.integers(0, 999).map(str)
NAMES = st.text(string.ascii_letters, min_size=1, max_size=5)
PIECES = st.one_of(
    NUMBERS.flatmap(lambda n: st.sampled_from([["--batch-size", n], [f"--batch_size={n}"], ["-b", n], [f"-b{n}"], [f"-b={n}"]])),
    NUMBERS.flatmap(lambda n: st.sampled_from([["--lr", f"-{n}"], [f"--lr={n}"], ["-l", n], [f"-l{n}"]])),
    NAMES.flatmap(lambda n: st.sampled_from([["--name", n], [f"--name={n}"]])),
    st.just(["--flag"]),
    st.lists(NUMBERS, min_size=1, max_size=3).map(lambda numbers: ["--many", *numbers]),
)


@given(st.lists(PIECES, max_size=6), NUMBERS)
def test_argparse_sees_the_knob_where_we_do_and_nothing_else_changed(pieces: list[list[str]], value: str) -> None:
    argv = ["train.py", *(word for piece in pieces for word in piece)]
    seen = parser().parse_args(argv)
    our_value = read(argv, BATCH)
    assert seen.batch_size == (None if our_value is None else int(our_value))
    after = parser().parse_args(write(argv, BATCH, value))
    assert after.batch_size == int(value)
    assert {**vars(after), "batch_size": 0} == {**vars(seen), "batch_size": 0}
