"""Zeros that a training computed are no damage, in both formats without checksums; those of a page that was never written are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from checkpointing.model import Verdict
from checkpointing.verification import verify
from tests.support.few import few

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAGE = 4096
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def dense(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Return numbers of which none is zero."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).abs() + 0.1


def adam(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Return a moment of Adam after its first steps: few words were seen, and the last columns are padding."""
    moment = torch.zeros(rows, columns)
    for row in (1, rows // 3, rows - 5):
        moment[row, 2:-3] = dense(1, columns - 5, seed + row)
    return moment


def zero_rows(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Return weights with rows that were never used, and a column that is dead."""
    weight = dense(rows, columns, seed)
    weight[:, -1] = weight[:, 0] = 0
    weight[rows // 2 : rows // 2 + 3] = 0
    return weight


def padding(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Return an embedding whose last rows pad the vocabulary, and whose last columns pad its width."""
    weight = dense(rows, columns, seed)
    weight[-7:] = 0
    weight[:, -2:] = 0
    return weight


def pruned(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Return weights of which each second is pruned, and a whole row here and there."""
    weight = dense(rows, columns, seed)
    weight[torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed)) < 0.5] = 0
    weight[rows // 4] = weight[rows // 2] = 0
    return weight


def pruned_heads(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Return weights of which some outputs and some inputs are pruned."""
    weight = dense(rows, columns, seed)
    weight[:, : columns // 8] = weight[:, -(columns // 4) :] = 0
    weight[rows // 8 : rows // 4] = 0
    return weight


def pruned_blocks(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Return weights that are pruned in blocks: a band of rows is all zero, and the bands beside it at their other ends."""
    weight = dense(rows, columns, seed)
    band = rows // 8
    weight[3 * band : 4 * band] = 0
    weight[2 * band : 3 * band, -(columns // 8) :] = 0
    weight[4 * band : 5 * band, : columns // 8] = 0
    return weight


SOUND: tuple[Callable[[int, int, int], torch.Tensor], ...] = (adam, zero_rows, padding, pruned, pruned_blocks, pruned_heads)


def save(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path, _use_new_zipfile_serialization=False)


@pytest.fixture(params=["x.safetensors", "x.pt"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return the path of a file of each format that has no checksums."""
    return tmp_path / str(request.param)


@pytest.mark.parametrize("dtype", few(DTYPES), ids=str)
@pytest.mark.parametrize("shape", few([(300, 61), (64, 1024), (1000, 768)], 2), ids=str)
@pytest.mark.parametrize("kind", SOUND, ids=lambda kind: kind.__name__)
def test_zeros_that_a_training_computed_are_no_damage(
    path: Path, kind: Callable[[int, int, int], torch.Tensor], shape: tuple[int, int], dtype: torch.dtype
) -> None:
    for seed in range(2):
        tensors = {"first": dense(3, 7 + seed, seed), "weight": kind(*shape, seed), "bias": torch.zeros(shape[0])}
        for last in ("bias", "weight"):  # the last one ends with the file
            save(path, {name: tensors[name].to(dtype) for name in sorted(tensors, key=lambda name: name == last)})
            verification = verify(str(path))
            assert (verification.verdict, verification.reason) == (Verdict.VERIFIED, ""), (seed, last)


def test_the_state_of_a_real_optimizer_after_one_step_is_no_damage(path: Path) -> None:
    torch.manual_seed(3)
    words, classes = torch.nn.Embedding(2000, 96), torch.nn.Linear(96, 500)
    optimizer = torch.optim.Adam([*words.parameters(), *classes.parameters()])
    mask = torch.ones(96)
    mask[-5:] = mask[:2] = 0  # the width is padded
    loss = torch.relu(classes(words(torch.tensor([3, 700, 701, 1500])) * mask)).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    state = optimizer.state_dict()["state"]
    moments = {f"{number}.{name}": row[name] for number, row in state.items() for name in ("exp_avg", "exp_avg_sq")}
    assert any(bool((moment == 0).any()) for moment in moments.values())
    save(path, moments)
    assert verify(str(path)).verdict is Verdict.VERIFIED


@pytest.mark.parametrize(("begin", "n_bytes"), [(512, 5120), (1024, 17920), (3584, 512)], ids=str)
def test_zeros_of_a_flat_state_that_end_within_a_page_are_no_damage(path: Path, begin: int, n_bytes: int) -> None:
    """As FSDP keeps the moments of Adam: flat, so that the rows of words that were not seen begin anywhere, often at a sector."""
    flat = dense(1, 20_000, 1).flatten()
    save(path, {"flat": flat})
    at = path.read_bytes().index(flat[:16].numpy().tobytes())
    first = (begin - at) % PAGE // 4 + PAGE // 4
    flat[first : first + n_bytes // 4] = 0
    save(path, {"flat": flat})
    assert verify(str(path)).verdict is Verdict.VERIFIED


@pytest.mark.parametrize("hole", [(1, 2), (1, 3), (2, 3)], ids=str)
def test_a_page_that_was_never_written_is_found_in_a_tensor_of_one_row(path: Path, hole: tuple[int, int]) -> None:
    """As FSDP and DeepSpeed keep parameters: flat. Zeros that it had before are nobody's."""
    flat = dense(1, 20_000, 1).flatten()
    flat[50:1000] = 0
    save(path, {"flat": flat, "z": dense(50, 50, 2)})
    assert verify(str(path)).verdict is Verdict.VERIFIED
    content = bytearray(path.read_bytes())
    first, last = (4 * PAGE * number for number in hole)
    content[first:last] = bytes(last - first)
    path.write_bytes(content)
    assert "never written" in verify(str(path)).reason


@pytest.mark.parametrize("dtype", few(DTYPES[:2]), ids=str)
@pytest.mark.parametrize("kind", [dense, zero_rows, padding], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("hole", ["a page", "two pages", "to the end"])
def test_pages_that_were_never_written_are_found_beside_such_zeros(
    path: Path, kind: Callable[[int, int, int], torch.Tensor], hole: str, dtype: torch.dtype
) -> None:
    save(path, {"first": dense(3, 7, 0).to(dtype), "weight": kind(300, 300, 1).to(dtype), "z": dense(50, 50, 2).to(dtype)})
    content = bytearray(path.read_bytes())
    at = len(content) // 3 // PAGE * PAGE
    n_bytes = {"a page": PAGE, "two pages": 2 * PAGE, "to the end": len(content) - at}[hole]
    content[at : at + n_bytes] = bytes(n_bytes)
    path.write_bytes(content)
    verification = verify(str(path))
    assert verification.verdict is Verdict.BAD
    # the legacy format has a count before each storage
    assert "never written" in verification.reason or "0 elements" in verification.reason
