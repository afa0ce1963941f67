"""NaN and Inf are found in every kind of floating number, wherever they stand; masks and huge values are left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from checkpointing.formats import numerics
from tests.support.few import few
from tests.support.figures import costs_at_most

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}
INF = float("inf")
#: Less than what a tensor of 40,000 numbers has.
PIECE_BYTES = 1 << 16


@pytest.fixture(params=["numpy", "plain"])
def look(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Look at a tensor, with numpy and as if there were none, in pieces of so many bytes."""
    if request.param == "plain":
        monkeypatch.setattr(numerics, "_numpy", lambda: None)

    def look(tensor: torch.Tensor, piece_bytes: int = 1 << 20) -> str:
        kind = numerics.kind_of(str(tensor.dtype))
        assert kind is not None
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        finding = numerics.look(kind, (memoryview(raw)[at : at + piece_bytes] for at in range(0, len(raw), piece_bytes)), "it")
        return "" if finding is None else str(finding).removeprefix("it is ")

    return look


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [0, 17, 999])
@pytest.mark.parametrize("piece_bytes", [1 << 20, 13])
def test_a_nan_is_found_in_every_kind(look: Callable[..., str], kind: str, at: int, piece_bytes: int) -> None:
    values = torch.randn(1000)
    assert look(values.to(KINDS[kind]), piece_bytes) == ""
    values[at] = float("nan")
    assert look(values.to(KINDS[kind]), piece_bytes) == f"not finite: NaN at element {at}"


@pytest.mark.parametrize("kind", ["F64", "F32", "F16", "BF16", "F8_E5M2"])
@pytest.mark.parametrize("value", [INF, -INF])
def test_an_inf_among_numbers_is_found(look: Callable[..., str], kind: str, value: float) -> None:
    values = torch.randn(1000)
    values[123] = value
    assert look(values.to(KINDS[kind])) == "not finite: Inf at element 123"


@pytest.mark.parametrize("sign", [0, 1])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "F64"])
def test_every_bit_pattern_that_is_not_finite_is_found(look: Callable[..., str], kind: str, sign: int) -> None:
    info, bits = torch.finfo(KINDS[kind]), torch.finfo(KINDS[kind]).bits
    integer = {16: torch.int16, 32: torch.int32, 64: torch.int64}[bits]
    inf = int(torch.tensor(INF, dtype=KINDS[kind]).view(integer))
    for low in (1, 0x3F, int(torch.tensor(info.max, dtype=KINDS[kind]).view(integer)) ^ inf):
        pattern = inf + (low & ((1 << (bits - 1)) - 1 - inf) or 1)
        bad = torch.tensor(pattern - (sign << (bits - 1)), dtype=integer).view(KINDS[kind])
        assert bool(torch.isnan(bad))
        assert look(torch.cat([torch.randn(9).to(KINDS[kind]), bad.reshape(1)])) == "not finite: NaN at element 9"


@pytest.mark.parametrize(
    "mask",
    [
        torch.full((50, 50), -INF).triu(1),
        torch.full((3,), INF),
        torch.tensor(-INF),
        torch.tensor([1.0, -INF, 1.0]),
        torch.tensor([0.0, 1.0, INF]),
        torch.cat([torch.zeros(40_000), torch.full((3,), INF)]),
    ],
    ids=["causal", "all", "scalar", "ones", "zeros_and_ones", "late"],
)
@pytest.mark.parametrize("dtype", few([torch.float32, torch.bfloat16, torch.float16], 2), ids=str)
def test_a_mask_may_hold_inf(look: Callable[..., str], mask: torch.Tensor, dtype: torch.dtype) -> None:
    assert look(mask.to(dtype), PIECE_BYTES) == ""


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([0.0, 2.0, INF]),
        torch.cat([torch.zeros(40_000), torch.tensor([INF, 0.5])]),
        torch.cat([torch.tensor([INF]), torch.zeros(40_000), torch.tensor([0.25])]),
        torch.tensor([0.0] * 20 + [0.5] + [1.0] * 20 + [INF]),
    ],
    ids=["two_values", "last", "first", "between"],
)
def test_an_infinity_in_a_tensor_that_is_no_mask_is_reported(look: Callable[..., str], values: torch.Tensor) -> None:
    assert look(values, PIECE_BYTES).startswith("not finite: Inf at element")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2], ids=str)
def test_the_largest_and_smallest_numbers_are_finite(look: Callable[..., str], dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    assert look(torch.tensor([info.max, info.min, info.tiny, -info.tiny, 0.0, -0.0, 0.5], dtype=torch.float64).to(dtype)) == ""
    assert look(torch.empty(0, dtype=dtype)) == ""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("torch BFloat16Storage", "BF16"),
        ("torch.float32", "F32"),
        ("F16", "F16"),
        ("C64", "F32"),
        ("I64", None),
        ("torch LongStorage", None),
    ],
)
def test_names_of_kinds(name: str, kind: str | None) -> None:
    assert numerics.kind_of(name) == kind


@pytest.mark.bench
@pytest.mark.parametrize("dtype", few([torch.float32, torch.bfloat16, torch.float16]), ids=str)
def test_the_finite_check_is_cheap_beside_a_crc(look: Callable[..., str], dtype: torch.dtype) -> None:
    values = torch.randn(8 << 20).to(dtype)
    raw_bytes = values.numel() * values.element_size()
    with costs_at_most(raw_bytes / 0.5e9):  # measured: 5 to 35 GB/s
        assert look(values) == ""
