"""Names that jobs give to their checkpoints, and the place that each is of."""

from __future__ import annotations

import pytest

from supervisor.observe.ranks.path_patterns import checkpoint_path, matches, pattern_of

UNITS = {
    "/j/ckpt.pt": "/j/ckpt.pt",
    "/j/ckpt/step_100.pt": "/j/ckpt/step_100.pt",
    "/j/out/checkpoint-500/optimizer.pt": "/j/out/checkpoint-500",
    "/j/out/checkpoint-500/pytorch_model_fsdp_0": "/j/out/checkpoint-500",
    "/j/out/step_5": "/j/out/step_5",
    "/j/ds/global_step10/mp_rank_00_model_states.pt": "/j/ds/global_step10",
    "/j/mg/iter_0000010/mp_rank_00/model_optim_rng.pt": "/j/mg/iter_0000010",
    "/j/step_2/ckpt/latest.pt": "/j/step_2/ckpt/latest.pt",
    "/j/lightning_logs/version_0/checkpoints/epoch=1-step=20.ckpt": "/j/lightning_logs/version_0/checkpoints/epoch=1-step=20.ckpt",
    "/j/2024/model.pt": "/j/2024/model.pt",
}
PATTERNS = {
    "/j/ckpt.pt": "/j/ckpt.pt",
    "/j/ckpt/step_100.pt": "/j/ckpt/step_[0-9]*.pt",
    "/j/out/checkpoint-500": "/j/out/checkpoint-[0-9]*",
    "/j/ds/global_step10": "/j/ds/global_step[0-9]*",
    "/j/c/epoch=1-step=20.ckpt": "/j/c/epoch=[0-9]*-step=[0-9]*.ckpt",
    "/j/c/e3-loss=0.35.ckpt": "/j/c/e[0-9]*-loss=[0-9]*.ckpt",
    "/j/gpt2-ckpt-100.pt": "/j/gpt2-ckpt-[0-9]*.pt",
    "/j/model-3-1200.pth.tar": "/j/model-[0-9]*-[0-9]*.pth.tar",
    "/j/ckpt_rank3_step10.pt": "/j/ckpt_rank3_step[0-9]*.pt",
    "/j/model-00001-of-00005.bin": "/j/model-00001-of-00005.bin",
    "/j/ckpts/100.pt": "/j/ckpts/[0-9]*.pt",
    "/j/cache/000123.pt": "/j/cache/000123.pt",
    "/j/a_1_2_3_4.pt": "/j/a_1_2_3_4.pt",
    "/j/7B/gpt-124M_5.pt": "/j/7B/gpt-124M_[0-9]*.pt",
    "/j/run[1]/step_5.pt": "/j/run[[]1]/step_[0-9]*.pt",
    "/j/9f3c2ab1.pt": "/j/9f3c2ab1.pt",
    "/j/what*_5.pt": "/j/what[*]_[0-9]*.pt",
}


@pytest.mark.parametrize(("path", "unit"), UNITS.items(), ids=UNITS)
def test_a_path_belongs_to_a_whole_checkpoint(path: str, unit: str) -> None:
    assert checkpoint_path(path) == unit


@pytest.mark.parametrize(("path", "pattern"), PATTERNS.items(), ids=PATTERNS)
def test_the_place_of_a_checkpoint(path: str, pattern: str) -> None:
    assert pattern_of(path) == pattern


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [("step_100.pt", "step_2000.pt", True), ("step_100.pt", "step_100_ema.pt", False), ("step_1.pt", "best.pt", False)],
)
def test_an_export_beside_a_checkpoint_is_of_another_place(first: str, second: str, same: bool) -> None:  # noqa: FBT001  a column
    assert matches(pattern_of(f"/j/{first}"), f"/j/{second}") is same
