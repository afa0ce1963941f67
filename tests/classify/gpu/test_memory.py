"""Who holds a full GPU's memory, in the words of torch as they were printed in the wild."""

from __future__ import annotations

import pytest

from supervisor.classify.engine import classify
from supervisor.classify.gpu import memory as gpu_memory
from supervisor.classify.logs.match import read_text
from supervisor.config import signatures
from supervisor.core.model import Cause, Evidence, RankExit
from supervisor.job.clock import Clock
from supervisor.observe import collect

CATALOGUE, _ = signatures.read()
GIB = 1 << 30
MIB = 1 << 20
RAISED = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
NAMES = ("process_in_use", "own_pids", "own_bytes", "other_pids", "other_bytes")
#: https://github.com/awslabs/keys_values/issues/92 (shortened at its end): one of four ranks, the others have a context on its GPU.
RANKS = (
    f"{RAISED}572.00 MiB. GPU 0 has a total capacity of 39.49 GiB of which 321.31 MiB is free. Process 3721648 has 414.00 MiB memory in "
    "use. Including non-PyTorch memory, this process has 37.46 GiB memory in use. Process 1374765 has 414.00 MiB memory in use. Process "
    "1374763 has 414.00 MiB memory in use. Process 1374764 has 414.00 MiB memory in use. Of the allocated memory 36.04 GiB is allocated by "
    "PyTorch, and 321.37 MiB is reserved by PyTorch but unallocated."
)
#: https://github.com/FoundationVision/GenerateU/issues/10: a container, in which the process does not know itself.
CONTAINER = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 496.00 MiB. GPU 0 has a total capacty of 14.75 GiB of which 235.06 "
    "MiB is free. Process 20398 has 14.52 GiB memory in use. Of the allocated memory 14.06 GiB is allocated by PyTorch, and 330.42 MiB is "
    "reserved by PyTorch but unallocated."
)
#: A card shared by three, as the notes of a training run quote it: the second one is the process itself.
SHARED_CARD = (
    f"{RAISED}32.00 GiB. GPU 0 has a total capacity of 79.18 GiB of which 842.75 MiB is free. Process 834991 has 520.00 MiB memory in use. "
    "Process 852079 has 75.72 GiB memory in use. Process 859101 has 2.06 GiB memory in use. Of the allocated memory 74.09 GiB is allocated "
    "by PyTorch, and 89.93 MiB is reserved by PyTorch but unallocated."
)
#: https://github.com/Synthintel0/MyGirlGPT/issues/11: alone on its card.
ALONE = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has a total capacty of 4.00 GiB of which 41.56 "
    "MiB is free. Including non-PyTorch memory, this process has 3.44 GiB memory in use. Of the allocated memory 2.58 GiB is allocated by "
    "PyTorch, and 1.90 MiB is reserved by PyTorch but unallocated."
)


def facts_of(log: str, *more: Evidence) -> dict[str, str]:
    verdict = classify((*read_text(log, CATALOGUE), *more))
    assert verdict.cause is Cause.CUDA_OOM
    return {name: value for name, value in verdict.facts if name in NAMES}


def gib(*amounts: float) -> str:
    return str(sum(int(amount * GIB) for amount in amounts))


def test_a_process_that_lists_itself_is_no_stranger() -> None:
    assert facts_of(CONTAINER) == {"process_in_use": gib(14.52), "other_bytes": "0"}
    assert facts_of(ALONE) == {"process_in_use": gib(3.44), "other_bytes": "0"}


def test_among_pids_of_another_namespace_only_the_amounts_say_something() -> None:
    assert facts_of(SHARED_CARD) == {"process_in_use": gib(75.72), "other_bytes": str(520 * MIB + int(2.06 * GIB))}


def test_strangers_are_named_where_the_process_knows_its_own_pid() -> None:
    facts = facts_of(RANKS)
    assert facts["other_pids"] == "3721648 1374765 1374763 1374764"
    assert facts["other_bytes"] == str(4 * 414 * MIB)
    assert facts["process_in_use"] == gib(37.46)


def test_processes_of_the_same_job_are_no_strangers() -> None:
    """Whether the supervisor saw them end, torchrun's table names them, or torchrun says that it ends them."""
    evidence = Evidence("exit", "signal", "15", rank=1, t=9.0, fields=(("pid", "1374763"),))
    log_lines = (
        "W1121 07:31:45.463000 2 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 1374764 closing signal SIGTERM\n"
        "  exitcode  : 1 (pid: 1374765)\n"
    )
    facts = facts_of(f"{RANKS}\n{log_lines}", evidence)
    assert (facts["own_pids"], facts["own_bytes"]) == ("1374765 1374763 1374764", str(3 * 414 * MIB))
    assert (facts["other_pids"], facts["other_bytes"]) == ("3721648", str(414 * MIB))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"processes": "Process 7 has 14.52 GiB memory in use. "},
        {"processes": "Process 7 has 14.52 GiB memory in use. ", "allocated": "all", "reserved_unallocated": "0"},
        {"processes": "this process has 17179869184.00 GiB memory in use. Process 7 has 1.00 GiB memory in use. "},
        {"processes": "this process has 1.2.3 GiB memory in use. "},
    ],
    ids=["no list", "nothing to compare with", "no amounts to compare with", "NVML does not know", "no amount"],
)
def test_unknown_holders_of_gpu_memory_are_left_out(fields: dict[str, str]) -> None:
    assert gpu_memory.holders(fields, ()) == {}


def test_a_list_that_leaves_the_process_out_is_of_others() -> None:
    fields = {"processes": "Process 7 has 2.00 GiB memory in use. ", "allocated": gib(10), "reserved_unallocated": "0"}
    assert gpu_memory.holders(fields, ()) == {"other_bytes": gib(2)}


def test_the_pids_of_ranks_that_died_are_the_jobs_own() -> None:
    deaths = [RankExit(rank, pid, at_ns, code=1) for rank, pid, at_ns in ((0, 3721647, 5), (1, 3721648, 6), (2, 1374765, 7))]
    facts = dict(classify((*read_text(RANKS, CATALOGUE), *collect.exits(deaths, Clock(1000.0, 0.0), 5.0))).facts)
    assert set(facts["own_pids"].split()) == {"3721648", "1374765"}
    assert set(facts["other_pids"].split()) == {"1374763", "1374764"}
