"""The table of hints: each hint appears if its subject is in the evidence, and only then."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.classify.remedies import documented, general_hints, hints
from supervisor.core.causes import CAUSE_TABLE, Hint
from supervisor.core.model import Cause, Claim, Evidence, FailureVerdict
from supervisor.core.values import replace

GIB = str(1 << 30)


def verdict(cause: Cause, *because: Evidence, gpu: str = "", node: str = "", **facts: str) -> FailureVerdict:
    return FailureVerdict(cause, 0.9, "it failed", "print", rank=0, because=because, facts=tuple(facts.items()), gpu=gpu, node=node)


def beat(name: str, text: str) -> Evidence:
    return Evidence("heartbeat", name, text, rank=0)


def of(name: str, cause: Cause, text: str = "it failed") -> Evidence:
    """Evidence of a signature."""
    return Evidence("error_file", name, text, rank=0, claim=Claim(cause, 0.9))


SAVES, TRAINS = beat("phase", "checkpoint"), beat("phase", "train")
LOADER, NO_LOADER = beat("loader", "workers"), beat("loader", "none")
C = Cause
#: A part of the hint; a failure where it is given; the nearest one where it is not.
ROWS: list[tuple[str, FailureVerdict, FailureVerdict]] = [
    ("end process 17, which", verdict(C.CUDA_OOM, other_pids="17", other_bytes=GIB), verdict(C.CUDA_OOM, other_pids="17", other_bytes="9")),
    ("end the other processes", verdict(C.CUDA_OOM, other_bytes="9", capacity="80"), verdict(C.CUDA_OOM, other_bytes="7", capacity="80")),
    ("expandable_segments", verdict(C.CUDA_OOM, reserved_unallocated=GIB), verdict(C.CUDA_OOM, reserved_unallocated="0")),
    ("limit_all_gathers=True", verdict(C.CUDA_OOM, beat("gathers", "without a limit")), verdict(C.CUDA_OOM, TRAINS)),
    ("leave NCCL room", verdict(C.CUDA_OOM, of("cuda_oom.nccl", C.CUDA_OOM)), verdict(C.CUDA_OOM, of("cuda_oom.torch", C.CUDA_OOM))),
    ("it held the state a second time", verdict(C.HOST_OOM, SAVES), verdict(C.HOST_OOM, SAVES, killed="child")),
    ("it held the state a second time", verdict(C.HOST_OOM, function="save_checkpoint"), verdict(C.HOST_OOM, TRAINS, function="train")),
    ("raise the memory limit of /job", verdict(C.HOST_OOM, cgroup="/job"), verdict(C.HOST_OOM)),
    ("raise the memory limit of /slice", verdict(C.HOST_OOM, oom_memcg="/slice"), verdict(C.HOST_OOM)),
    ("start the same command on b:1 again", verdict(C.NODE_LOST, node="b:1"), verdict(C.NODE_LOST)),
    ("read at train.py:7", verdict(C.DATA_ERROR, file="train.py", line="7"), verdict(C.DATA_ERROR)),
    ("fewer DataLoader workers", verdict(C.HOST_OOM, TRAINS, LOADER), verdict(C.HOST_OOM, TRAINS, NO_LOADER)),
    ("fewer DataLoader workers", verdict(C.HOST_OOM, TRAINS, LOADER), verdict(C.HOST_OOM, TRAINS)),
    ("fewer DataLoader workers", verdict(C.HOST_OOM, SAVES, LOADER, killed="child"), verdict(C.HOST_OOM, SAVES, LOADER)),
    ("fewer DataLoader workers", verdict(C.SHM_EXHAUSTED, LOADER), verdict(C.SHM_EXHAUSTED, NO_LOADER)),
    (
        "use fewer DataLoader workers",
        verdict(C.SHM_EXHAUSTED, of("x", C.SHM_EXHAUSTED, "RuntimeError: DataLoader worker (pid 3) is killed by signal: Bus error")),
        verdict(C.SHM_EXHAUSTED, of("x", C.SHM_EXHAUSTED, "OSError: [Errno 28] No space left on device: '/dev/shm/nccl-1'")),
    ),
    ("call the same collectives", verdict(C.NCCL_TIMEOUT, hang_kind="mismatch"), verdict(C.NCCL_TIMEOUT, hang_kind="late")),
    (
        "what rank 3 did, at train.py:7",
        verdict(C.NCCL_TIMEOUT, hang_ranks="3", hang_code="train.py:7"),
        verdict(C.NCCL_TIMEOUT, hang_ranks="3"),
    ),
    (
        "ibstat",
        verdict(C.NCCL_NETWORK, of("x", C.NCCL_NETWORK, "NET/IB : Got completion with error 12")),
        verdict(C.NCCL_NETWORK, of("x", C.NCCL_NETWORK, "socketProgress: Connection closed by remote peer")),
    ),
    (
        "restart the server of the other end",
        verdict(C.NCCL_NETWORK, file="/site-packages/trl/extras/vllm_client.py", function="init_communicator"),
        verdict(C.NCCL_NETWORK, file="/home/me/train.py", function="main"),
    ),
    (
        "restart the server of the other end",
        verdict(C.NCCL_INIT, function="init_weights_update_group"),
        verdict(C.NCCL_INIT, file="/home/me/reward/train.py"),
    ),
    ("on the other nodes", verdict(C.GLOO_ERROR, node="a:0"), verdict(C.GLOO_ERROR)),
    ("what rank 1 did, at train.py:7", verdict(C.GLOO_ERROR, hang_ranks="1", hang_code="train.py:7"), verdict(C.GLOO_ERROR)),
    ("reset GPU GPU-1", verdict(C.GPU_ECC, gpu="GPU-1"), verdict(C.GPU_ECC)),
    ("of GPU GPU-1", verdict(C.GPU_LOST, gpu="GPU-1"), verdict(C.GPU_LOST)),
    ("what Xid 31 means", verdict(C.GPU_XID_OTHER, xid="31"), verdict(C.GPU_XID_OTHER)),
    ("comes back on GPU GPU-1", verdict(C.GPU_XID_OTHER, gpu="GPU-1"), verdict(C.GPU_XID_OTHER)),
    ("suspect GPU GPU-1", verdict(C.CUDA_ILLEGAL_ACCESS, gpu="GPU-1"), verdict(C.CUDA_ILLEGAL_ACCESS)),
    ("older than /c/2.pt", verdict(C.CHECKPOINT_CORRUPT, path="/c/2.pt"), verdict(C.CHECKPOINT_CORRUPT)),
    (
        "delete /c/k.json, which attempt 1 of this run wrote",
        verdict(C.CACHE_CORRUPT, path="/c/k.json", cache_writer="attempt 1 of this run"),
        verdict(C.CACHE_CORRUPT, path="/c/k.json"),
    ),
    ("delete /c/k.json; it", verdict(C.CACHE_CORRUPT, path="/c/k.json"), verdict(C.CACHE_CORRUPT, cache_variable="TRITON_CACHE_DIR")),
    ("below $TRITON_CACHE_DIR", verdict(C.CACHE_CORRUPT, cache_variable="TRITON_CACHE_DIR"), verdict(C.CACHE_CORRUPT)),
    ("killed saves of this job left there: /c/s (2 GiB)", verdict(C.DISK_FULL, leftovers="/c/s (2 GiB)"), verdict(C.DISK_FULL)),
    ("file system of /data/x", verdict(C.DISK_FULL, path="/data/x"), verdict(C.DISK_FULL)),
    (
        "largest files that this job wrote there: /c/a",
        verdict(C.DISK_FULL, job_files="/c/a"),
        verdict(C.DISK_FULL, job_files="/c/a", leftovers="/c/a"),
    ),
    (
        "a TRITON_CACHE_DIR of its own",
        verdict(C.IO_ERROR, cache_variable="TRITON_CACHE_DIR", path="/h/k"),
        verdict(C.IO_ERROR, path="/h/k"),
    ),
    ("process 17 waits for", verdict(C.IO_ERROR, pid="17"), verdict(C.IO_ERROR)),
    ("the device of /h/k", verdict(C.IO_ERROR, path="/h/k"), verdict(C.IO_ERROR)),
    (
        "look at 127.0.0.1:80, a service of the job's own",
        verdict(C.STORAGE_REMOTE, peer="127.0.0.1:80", own_service="this machine"),
        verdict(C.STORAGE_REMOTE, peer="storage.example:80"),
    ),
    (
        "credentials, which storage.example:80 refused",
        verdict(C.STORAGE_REMOTE, of("x", C.STORAGE_REMOTE, "HTTPError: 403 Client Error: Forbidden"), peer="storage.example:80"),
        verdict(C.STORAGE_REMOTE, of("x", C.STORAGE_REMOTE, "HTTPError: 503 Server Error"), peer="storage.example:80"),
    ),
    (
        "renew the credentials",
        verdict(C.STORAGE_REMOTE, of("x", C.STORAGE_REMOTE, "ClientError: An error occurred (ExpiredToken)")),
        verdict(C.STORAGE_REMOTE, of("x", C.STORAGE_REMOTE, "ClientError: An error occurred (SlowDown)")),
    ),
    (
        "when storage.example:80 answers",
        verdict(C.STORAGE_REMOTE, peer="storage.example:80"),
        verdict(C.STORAGE_REMOTE, peer="10.0.0.1:80", own_service="a private network"),
    ),
    ("try again later", verdict(C.STORAGE_REMOTE), verdict(C.STORAGE_REMOTE, peer="10.0.0.1:80", own_service="a private network")),
    (
        "HF_HUB_OFFLINE=1",
        verdict(C.STORAGE_REMOTE, of("x", C.STORAGE_REMOTE, "HfHubHTTPError: 429 Client Error: Too Many Requests")),
        verdict(C.STORAGE_REMOTE, of("x", C.STORAGE_REMOTE, "ClientError: An error occurred (SlowDown)")),
    ),
    ("look at /d/1.jpg", verdict(C.DATA_ERROR, path="/d/1.jpg"), verdict(C.DATA_ERROR)),
    (
        "find_unused_parameters=True to Distributed",
        verdict(C.DDP_UNSYNCED, of("ddp_unsynced.unused_parameters", C.DDP_UNSYNCED)),
        verdict(C.DDP_UNSYNCED, of("ddp_unsynced.ready_twice", C.DDP_UNSYNCED)),
    ),
    (
        "use_reentrant=False",
        verdict(C.DDP_UNSYNCED, of("ddp_unsynced.ready_twice", C.DDP_UNSYNCED)),
        verdict(C.DDP_UNSYNCED, of("ddp_unsynced.collectives", C.DDP_UNSYNCED)),
    ),
    (
        "none for one rank alone",
        verdict(C.DDP_UNSYNCED, of("ddp_unsynced.collectives", C.DDP_UNSYNCED)),
        verdict(C.DDP_UNSYNCED, of("ddp_unsynced.nccl_size", C.DDP_UNSYNCED)),
    ),
    (
        "as many ranks as saved it: 8, and not 7",
        verdict(C.CHECKPOINT_MISMATCH, of("checkpoint_mismatch.world_size", C.CHECKPOINT_MISMATCH), saved="8", current="7"),
        verdict(C.CHECKPOINT_MISMATCH, of("checkpoint_mismatch.dcp", C.CHECKPOINT_MISMATCH), saved="[8]", current="[7]"),
    ),
    (
        "as many ranks as saved it, or",
        verdict(C.CHECKPOINT_MISMATCH, of("checkpoint_mismatch.world_size_data", C.CHECKPOINT_MISMATCH)),
        verdict(C.CHECKPOINT_MISMATCH, of("checkpoint_mismatch.state_dict", C.CHECKPOINT_MISMATCH)),
    ),
    ("call the same collectives", verdict(C.HANG_NO_ERROR, hang_kind="mismatch"), verdict(C.HANG_NO_ERROR)),
    ("what rank 1 did, at train.py:7", verdict(C.HANG_NO_ERROR, hang_ranks="1", hang_code="train.py:7"), verdict(C.HANG_NO_ERROR)),
    ("what rank 1 does at its exit, at train.py:7", verdict(C.EXIT_STUCK, hang_ranks="1", hang_code="train.py:7"), verdict(C.EXIT_STUCK)),
    ("in the cache of Triton", verdict(C.CACHE_CORRUPT, cache="Triton"), verdict(C.CACHE_CORRUPT)),
    ("run mv /c/2.pt /aside/a", verdict(C.CHECKPOINT_LEFTOVER, remedy="mv /c/2.pt /aside/a"), verdict(C.CHECKPOINT_LEFTOVER)),
    ("run ln -sfn 2.pt last.pt", verdict(C.CHECKPOINT_POINTER, remedy="ln -sfn 2.pt last.pt"), verdict(C.CHECKPOINT_POINTER)),
    ("see where it leaves with 0", replace(verdict(C.USER_CODE), fingerprint="left:early"), verdict(C.USER_CODE)),
    ("look at 127.0.0.1:80, which refused", verdict(C.USER_CODE, peer="127.0.0.1:80"), verdict(C.USER_CODE)),
    ("at train.py:7", verdict(C.USER_CODE, file="train.py", line="7"), verdict(C.USER_CODE)),
    ("run `pip install einops`", verdict(C.DEPENDENCY, module="einops"), verdict(C.DEPENDENCY, module="our_models")),
    ("install what provides our_models", verdict(C.DEPENDENCY, module="our_models"), verdict(C.DEPENDENCY)),
    ("what the save needs", verdict(C.KILLED_UNKNOWN, SAVES), verdict(C.KILLED_UNKNOWN, TRAINS)),
]


@pytest.mark.parametrize(("part", "failure_verdict", "unseen"), ROWS, ids=[f"{seen.cause}: {part}" for part, seen, _ in ROWS])
def test_a_hint_is_given_where_what_it_names_was_seen_and_only_there(
    part: str, failure_verdict: FailureVerdict, unseen: FailureVerdict
) -> None:
    assert failure_verdict.cause is unseen.cause
    assert [text for text in hints(failure_verdict) if part in text], hints(failure_verdict)
    assert not [text for text in hints(unseen) if part in text], hints(unseen)


def test_each_hint_with_a_condition_has_its_row_above() -> None:
    given: set[tuple[Cause, str]] = set()
    for _, seen, _ in ROWS:
        given |= {(seen.cause, text) for text in hints(seen)}
    for cause, lines in ((cause, row.hints) for cause, row in CAUSE_TABLE.items()):
        for hint in (hint for line in lines for hint in line if hint.when or hint.names):
            start = hint.text.partition("{")[0]
            assert any(of_cause is cause and text.startswith(start) for of_cause, text in given), (cause, hint.text)


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_something_to_do_where_nothing_more_was_seen(cause: Cause) -> None:
    bare = verdict(cause)
    assert hints(bare)
    assert all("{" not in text for text in hints(bare))


def test_no_hint_follows_an_unconditional_one() -> None:
    for cause, lines in ((cause, row.hints) for cause, row in CAUSE_TABLE.items()):
        for line in lines:
            assert all(hint.when or hint.names for hint in line[:-1]), (cause, line)


def test_a_general_hint_names_nothing_of_the_machine() -> None:
    full = verdict(C.DISK_FULL, path="/data/x", job_files="/c/a", leftovers="/c/s (2 GiB)")
    assert "/" not in "".join(general_hints(full))
    assert "make room on the full file system: df -h and df -i name it, and quota -s a quota" in general_hints(full)


def test_the_documentation_has_the_condition_beside_the_hint() -> None:
    assert "use fewer DataLoader workers (where a DataLoader with workers was seen)" in documented(C.SHM_EXHAUSTED)
    assert "delete PATH; it is made anew" in documented(C.CACHE_CORRUPT)


def test_a_hint_knows_the_facts_that_it_names() -> None:
    named: dict[str, Any] = {hint.text: hint.names for hint in (Hint("look at {a} and {b}"), Hint("nothing"))}
    assert named == {"look at {a} and {b}": ("a", "b"), "nothing": ()}
