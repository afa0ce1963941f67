"""Real checkpoints, made by torch.save once per session, and a place to put variants of them."""

from __future__ import annotations

import argparse
import collections
import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.jobs.light import without_dynamo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def state(step: int, **more: object) -> dict[str, Any]:
    """A small model's state with an optimizer's, as a training script saves it after its first step."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    without_dynamo(torch)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 8)).sum().backward()
    for parameter in model.parameters():  # what AdamW.step makes
        mean, square = 0.1 * parameter.grad, 0.001 * parameter.grad.square()
        optimizer.state[parameter] = {"step": torch.tensor(1.0), "exp_avg": mean, "exp_avg_sq": square}
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, **more}


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a checkpoint at step 120."""
    path = tmp_path_factory.mktemp("sound") / "sound.pt"
    torch.save(state(120), path)
    return path.read_bytes()


@pytest.fixture
def without_crc() -> Iterator[None]:
    """Have torch save no CRCs meanwhile."""
    torch.serialization.set_crc32_options(False)
    yield
    torch.serialization.set_crc32_options(True)


SOUND: dict[str, Any] = {
    "state": state(7),
    "empty_dict": {},
    "bare_tensor": torch.arange(5),
    "no_tensor": {"step": 7},
    "empty_tensor": {"w": torch.empty(0), "step": 7},
    "ordered": collections.OrderedDict(step=7, w=torch.ones(3)),
    "namespace": {"args": argparse.Namespace(step=99), "step": 7},
    "dtypes": {
        str(dtype): torch.zeros(5, dtype=dtype)
        for dtype in (torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64)
    },
    "float8": {"w": torch.zeros(5, dtype=torch.float8_e4m3fn)},
    "shared": {"a": (shared := torch.arange(10)), "b": shared[2:4]},
    "sparse": {"w": torch.eye(3).to_sparse()},
    "meta": {"w": torch.empty(3, device="meta")},
    "parameter": {"w": torch.nn.Parameter(torch.ones(3))},
    "module": torch.nn.Linear(2, 2),
    "long_text": {"note": "x" * 100_000, "step": 7},
    "unicode": {"größe": torch.ones(2), "step": 7},
    "two_mib": {"w": torch.zeros(1 << 19), "step": 7},
    "deep": functools.reduce(lambda box, _: [box], range(100), []),
}


@pytest.fixture(params=sorted(SOUND))
def sound_object(request: pytest.FixtureRequest) -> Any:  # noqa: ANN401 -- anything that torch.save takes
    """One thing after the other that people save."""
    return SOUND[request.param]


@pytest.fixture
def sound_file(sound: bytes, tmp_path: Path) -> Path:
    """A sound checkpoint of one's own."""
    path = tmp_path / "step_120.pt"
    path.write_bytes(sound)
    return path
