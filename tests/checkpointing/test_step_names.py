"""Which step a name gives: a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.model import NamedStep
from checkpointing.step_names import epoch_in, is_set_aside, step_in, suffix_of


@pytest.mark.parametrize(
    ("path", "step", "sure"),
    [
        # a word for steps beside the number
        ("step_100.pt", 100, True),
        ("step-100.pt", 100, True),
        ("step100.ckpt", 100, True),
        ("step=0000100.pt", 100, True),
        ("Step_100.PT", 100, True),
        ("epoch=3-step=1200.ckpt", 1200, False),  # the whole run's (Lightning) or the epoch's own
        ("epoch=3-step=1200-v1.ckpt", 1200, False),
        ("global_step500_epoch_2.pt", 500, True),
        ("iter_0001000.pt", 1000, True),
        ("model_iteration_42.pth", 42, True),
        ("rl_model_100_steps.zip", 100, True),
        ("step_0.pt", 0, True),
        ("iter_7_step_9.pt", 9, True),  # step before iter, wherever it stands
        ("step_3_of_step_9.pt", 9, True),  # the last of the same word
        ("step_100.pth.tar", 100, True),
        # a number with nothing that says otherwise
        ("ckpt-000100.pt", 100, False),
        ("checkpoint_5.pth.tar", 5, False),
        ("ckpt100.pt", 100, False),
        ("100.pt", 100, False),
        ("epoch_3_ckpt_900.pt", 900, False),
        ("gpt2-ckpt-100.pt", 100, False),
        ("model_loss0.123_1000.pt", 1000, False),
        # the directory's name, where the file's own has none
        ("epoch_2_step_100/model.pt", 100, False),
        ("run/step_100/model.pt", 100, True),
        ("run/checkpoint-500/pytorch_model.bin", 500, False),
        ("run/step_100/step_200.pt", 200, True),
    ],
)
def test_names_with_a_step(path: str, step: int, sure: bool) -> None:  # noqa: FBT001 -- a column of the table
    assert step_in("/data/job/" + path) == NamedStep(step, sure)


@pytest.mark.parametrize(
    "name",
    [
        "latest.pt",
        "epoch_5.pt",
        "epoch=5.ckpt",
        "ep12.pt",
        "best_3.pt",
        "gpt2.pt",
        "resnet50.pt",
        "model-3-1200.pt",  # two numbers, and no word: which?
        "2024-05-01.pt",
        "20240501.pt",
        "1714521600.pt",  # a time stamp
        "rank_3.pt",
        "val_loss=0.25.ckpt",
        "lr1e-4.pt",
        "12345/model.pt",  # a job's number, as like as not
        "step_100k.pt",
        "footstep.pt",
    ],
)
def test_names_without_one(name: str) -> None:
    assert step_in("/data/job/" + name) is None


@pytest.mark.parametrize(
    ("name", "suffix"), [("a.pt", ".pt"), ("a.pth.tar", ".pth"), ("a.CKPT", ".ckpt"), ("a", ""), ("a.bin", ".bin"), ("x.pt/step_1", "")]
)
def test_suffixes(name: str, suffix: str) -> None:
    assert suffix_of(name) == suffix


@given(st.text())
def test_any_name_is_answered(name: str) -> None:
    named = step_in(name)
    assert named is None or 0 <= named.step < 10**18


@given(step=st.integers(0, 10**12), width=st.integers(0, 12), word=st.sampled_from(["step", "iter", "global_step", "iteration"]))
def test_the_step_in_a_scripts_file_name_is_read(step: int, width: int, word: str) -> None:
    assert step_in(f"/a/{word}_{step:0{width}}.pt") == NamedStep(step, sure=True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/j/.supervise-aside", True),
        ("/j/.supervise-aside/", True),
        ("/j/.supervise-aside/torn-a", True),
        ("/j/.supervise-aside/torn-a/rank0/model.pt", True),
        ("/j/supervise-aside/torn-a", False),
        ("/j/ckpt/torn-2.pt", False),
    ],
)
def test_a_checkpoint_set_aside_is_known_by_its_directory(name: str, expected: bool) -> None:  # noqa: FBT001  a column
    assert is_set_aside(name) is expected


@pytest.mark.parametrize(
    ("name", "epoch"),
    [
        ("epoch_5.pt", 5),
        ("epoch=5.ckpt", 5),
        ("ep12.pth.tar", 12),
        ("best-epoch-3", 3),
        ("step_3.pt", None),
        ("e7.pt", None),
        ("epoch_1.5.pt", None),
    ],
)
def test_names_with_an_epoch(name: str, epoch: int | None) -> None:
    assert epoch_in("/data/epoch_9/" + name) == epoch
