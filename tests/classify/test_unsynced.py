"""What a verdict says of ranks that do not do the same thing."""

from __future__ import annotations

import pytest

from supervisor.classify import unsynced
from supervisor.classify.engine import classify
from supervisor.classify.logs.match import claims
from supervisor.config import signatures
from supervisor.core.model import Cause, Evidence

CATALOGUE, _ = signatures.read()
#: Of a real job of two ranks, torch 2.13.
MISMATCH = (
    "RuntimeError: Detected mismatch between collectives on ranks. Rank {} is running collective: CollectiveFingerPrint(SequenceNumber=1, "
    "OpType={}, TensorShape=[4], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu, layout=Strided "
    "(default), requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))), but Rank {} is running "
    "collective: CollectiveFingerPrint(SequenceNumber=1, OpType={}, TensorShape=[4], TensorDtypes=Float)"
)
TRACE = """Traceback (most recent call last):
  File "/x/train.py", line {}, in {}
    call(value)
  File "/x/.venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3245, in all_reduce
    work = group.allreduce([tensor], opts)
"""


def raised(rank: int, text: str, trace: str = "") -> tuple[Evidence, ...]:
    fact = Evidence("error_file", "exception", text, rank, 1.0 + rank)
    return fact, Evidence("error_file", "traceback", trace, rank, 1.0 + rank), *claims(fact, CATALOGUE, trace)


def test_both_ranks_of_a_mismatch_are_named_with_their_calls() -> None:
    first = raised(0, MISMATCH.format(0, "ALLREDUCE", 1, "BROADCAST"), TRACE.format(31, "reduce_it"))
    second = raised(1, MISMATCH.format(1, "BROADCAST", 0, "ALLREDUCE"), TRACE.format(35, "send_it"))
    verdict = classify((*first, *second))
    assert verdict.cause is Cause.DDP_UNSYNCED
    calls = "rank 0 called allreduce of shape [4] at /x/train.py:31, rank 1 called broadcast of shape [4] at /x/train.py:35"
    assert verdict.summary == f"the ranks call different collectives: {calls}"


def test_one_collective_with_two_sizes_is_no_different_collective() -> None:
    fields = {"rank": "1", "operation": "ALLREDUCE", "shape": "8", "peer": "0", "peer_operation": "ALLREDUCE", "peer_shape": "4"}
    assert unsynced.summary(fields) == (
        "the ranks call one collective with different sizes: rank 1 called allreduce of shape [8], rank 0 called allreduce of shape [4]"
    )


def test_a_rank_that_left_no_traceback_is_named_without_its_call() -> None:
    verdict = classify(raised(1, MISMATCH.format(1, "BROADCAST", 0, "ALLREDUCE"), TRACE.format(35, "send_it")))
    assert verdict.summary.endswith("rank 1 called broadcast of shape [4] at /x/train.py:35, rank 0 called allreduce of shape [4]")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"parameters": "4 5"}, "DDP got no gradient for parameters 4, 5 (their indices in model.parameters())"),
        ({"parameters": "4 5", "names": "extra.bias, extra.weight"}, "DDP got no gradient for parameters extra.bias, extra.weight"),
        ({"parameters": " ".join(map(str, range(11)))}, "7 and 3 more"),
        ({"index": "7"}, "two gradients for one parameter in one step: 7 (its index in model.parameters())"),
        ({"index": "7", "parameter": "head.weight"}, "two gradients for one parameter in one step: head.weight"),
        ({"received": "16"}, ""),
    ],
)
def test_parameters_in_words(fields: dict[str, str], words: str) -> None:
    assert words in unsynced.summary(fields)
    assert bool(words) == bool(unsynced.summary(fields))
