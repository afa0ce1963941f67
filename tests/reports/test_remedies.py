"""Public reports in which a confident remedy named the wrong object: each is rebuilt, and the remedy names what is there."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.classify.engine import classify
from supervisor.classify.logs.match import read_text
from supervisor.classify.remedies import remedy
from supervisor.config import signatures
from supervisor.core.model import Cause, FailureVerdict, PlanKind, Policy, RankExit
from supervisor.core.values import replace
from supervisor.strategies import propose
from supervisor.strategies.situation import Situation
from tests.checkpointing import mounts
from tests.reports.conftest import DECLARED, OFTEN, alone, torchrun
from tests.support.http_serving import QuietHandler, served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.fake_nvml import FakeNvml
    from tests.support.supervised import Supervised

    Run = Callable[..., Supervised]

CATALOGUE, _ = signatures.read()
AT_ONCE = {"_SUPERVISE_TEST_INTERVALS": "0.04"}


def log(*lines: str) -> FailureVerdict:
    """The verdict on a log of these lines."""
    return classify(read_text("\n".join(lines) + "\n", CATALOGUE))


def raised(rank: int, exception: str, frame: str = "/home/u/train.py") -> tuple[str, ...]:
    """A rank's traceback in the log of all ranks."""
    shown = ("Traceback (most recent call last):", f'  File "{frame}", line 7, in main', "    step()", *exception.split("\n"))
    return tuple(f"[rank{rank}]: {line}" for line in shown)


def situation(verdict: FailureVerdict, **changes: Any) -> Situation:  # noqa: ANN401 (fields of it)
    base = Situation(1e4, verdict, Policy(), RankExit(0, 1, 1, code=1), 100, before_first_step=False, failures=(), attempts=1)
    return replace(base, **changes)


def card(run: Supervised) -> str:
    """What the run said, without its line breaks."""
    return " ".join(run.stderr.split())


TIMED_OUT = "RuntimeError: [/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete"
CLOSED = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:26518"
NCCL = (
    "[rank0]:[E ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=88, OpType=ALLREDUCE, "
    "NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800042 milliseconds before timing out."
)
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
WRITE_FAILED = "[enforce fail at inline_container.cc:857] . PytorchStreamWriter failed writing file data/322: file write failed"
SLOW_DOWN = "An error occurred (SlowDown) when calling the PutObject operation (reached max retries: 4): Please reduce your request rate."


# --- marin-community/marin #9213, #9209


@pytest.mark.parametrize("waits", [raised(0, TIMED_OUT), (NCCL,)], ids=["gloo", "nccl"])
@pytest.mark.parametrize(
    "text",
    [
        f"[rank1]: 2026-11-29 06:23:39,342 ERROR uploads: upload of step 20 failed: {SLOW_DOWN}",
        f"[rank1]: 2026-11-29 06:23:39.342 | ERROR    | ckpt.upload:push:88 - {SLOW_DOWN}",
        f"[rank1]: upload failed, continuing without it: {SLOW_DOWN}",
        "[rank1]: ERROR:uploads:An error occurred (InvalidRegion) when calling the CreateMultipartUpload operation: Region does not match",
        "[rank1]: CRITICAL save.py: PUT https://bucket.example/o failed: 503 Server Error: Service Unavailable",
    ],
)
def test_marin_9213_an_error_that_a_rank_logged_and_survived_is_why_its_peers_waited(text: str, waits: tuple[str, ...]) -> None:
    verdict = log("step 20 loss 1.5", text, *waits)
    assert (verdict.cause, verdict.rank) == (Cause.STORAGE_REMOTE, 1)
    assert verdict.confidence <= 0.6
    assert verdict.runner_up in {Cause.GLOO_ERROR, Cause.NCCL_TIMEOUT}


def test_marin_9213_a_save_that_failed_and_was_skipped_is_a_full_disk() -> None:
    verdict = log("[rank1]: ERROR trainer: save skipped: [Errno 28] No space left on device: '/scratch/step-40.pt'", *raised(0, TIMED_OUT))
    assert (verdict.cause, verdict.rank) == (Cause.DISK_FULL, 1)


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ((f"[rank1]: ERROR uploads: {SLOW_DOWN}", *(f"step {n} loss 1.{n}" for n in range(20)), *raised(0, TIMED_OUT)), Cause.GLOO_ERROR),
        ((f"[rank0]: ERROR uploads: {SLOW_DOWN}", *raised(0, TIMED_OUT)), Cause.GLOO_ERROR),
        ((f"[rank1]: ERROR uploads: {SLOW_DOWN}", *raised(0, CLOSED)), Cause.GLOO_ERROR),
        (("[rank1]: wandb: ERROR 503 Server Error: Service Unavailable", *raised(0, TIMED_OUT)), Cause.GLOO_ERROR),
        ((f"[rank1]: ERROR uploads: {SLOW_DOWN}, retrying in 2 s (attempt 1/5)", *raised(0, TIMED_OUT)), Cause.GLOO_ERROR),
        ((f"[rank1]: ERROR uploads: {SLOW_DOWN}", *raised(0, TIMED_OUT), *raised(2, "KeyError: 'labels'")), Cause.USER_CODE),
        ((f"[rank1]: ERROR uploads: {SLOW_DOWN}", *raised(1, OUT_OF_MEMORY)), Cause.CUDA_OOM),
    ],
    ids=["long before", "of the rank that waited", "nobody waited", "of a tracker", "tried again", "beside an exception", "beside an OOM"],
)  # fmt: skip
def test_marin_9213_a_logged_error_that_nobody_waited_for_is_no_cause(lines: tuple[str, ...], cause: Cause) -> None:
    assert log(*lines).cause is cause


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(240)
def test_marin_9213_run(supervise: Run) -> None:
    run = supervise(*torchrun("marin_9213.py"), SUPERVISE_RESTART_MAX_ATTEMPTS="1")
    assert run.exit_code(200) == 75
    assert " storage_remote, " in card(run)
    assert "where rank 1 on " in card(run)


# --- modelscope/ms-swift #6962


@contextmanager
def failing_server() -> Iterator[str]:
    """An HTTP server on loopback that answers each request with 500: its address."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            """Fail."""
            self.send_error(500)

    with served(Handler) as port:
        yield f"127.0.0.1:{port}"


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(240)
def test_ms_swift_6962_a_server_of_the_jobs_own_that_meets_each_start_alike_is_to_be_restarted(supervise: Run) -> None:
    with failing_server() as peer:
        command = alone("ms_swift_6962.py", "--server", f"http://{peer}/score", "--client", "requests")
        run = supervise(*command, **OFTEN)
        assert run.exit_code(200) == 65
    text = card(run)
    assert f"{peer}, a service of the job's own, did not answer, or refused" in text
    assert "storage_remote, " in text
    assert f"do look at {peer}, a service of the job's own: restart it" in text
    assert "remote store" not in text
    assert "Restarting as attempt 2" in text
    assert "Restarting as attempt 3" not in text


# --- pytorch/pytorch #173679, #153791


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(300)
def test_pytorch_153791_a_file_that_our_killed_attempt_left_half_written_is_to_be_deleted(supervise: Run, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run = supervise(*alone("pytorch_173679.py", "--cache", str(cache)), TORCHINDUCTOR_CACHE_DIR=str(cache), **AT_ONCE)
    assert run.exit_code(250) == 65
    text = card(run)
    assert "cache_corrupt, " in text
    wanted = f"do delete {cache}/ab/k.best_config, which attempt 1 of this run wrote and left half-written"
    assert wanted.replace(" ", "") in text.replace(" ", ""), "a card may break its lines within a long path"
    assert "correct the program" not in text


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(240)
def test_pytorch_173679_a_stale_handle_in_a_shared_cache_costs_one_restart(supervise: Run) -> None:
    run = supervise(*alone("pytorch_173679.py", "--stale", "--times", "1", "--steps", "20"), **AT_ONCE)
    assert run.exit_code(200) == 0
    assert "io_error, " in card(run) or "Stale file handle" in card(run)
    assert "a TRITON_CACHE_DIR of its own" in card(run)


# --- ByteDance-Seed/VeOmni PR #1173


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(400)
def test_veomni_1173_a_disk_that_the_jobs_own_leftovers_fill_is_not_waited_for(supervise: Run, tmp_path: Path) -> None:
    with mounts.tmpfs(tmp_path / "ckpt", 8 << 20):
        command = alone("veomni_1173.py", "--steps", "120")
        run = supervise(*command, options=("--checkpoints", "ckpt/step-*", "--resume-args", "--resume {resume}"), **AT_ONCE)
        code, text = run.exit_code(360), card(run)
        assert code == 65, text
    assert "for space" not in text
    assert "disk_full, " in text
    wanted = f"do delete what killed saves of this job left there: {tmp_path}/ckpt/stage/21 (2 MiB)"
    assert wanted.replace(" ", "") in text.replace(" ", ""), "a card may break its lines within a long path"
    assert "old checkpoints and caches" not in text


# --- rwth-i6/returnn #1829


@pytest.mark.parametrize(
    ("exception", "cause"),
    [
        (f"RuntimeError: {WRITE_FAILED}", Cause.DISK_FULL),
        ("OSError: [Errno 122] Disk quota exceeded: '/scratch/ckpt/step-20.pt'", Cause.DISK_FULL),
        ("OSError: [Errno 27] File too large: '/scratch/ckpt/step-20.pt'", Cause.IO_ERROR),
    ],
)  # fmt: skip
def test_returnn_1829_a_write_that_failed_is_the_storages_and_is_waited_for(exception: str, cause: Cause) -> None:
    verdict = log(*raised(0, exception))
    assert verdict.cause is cause
    plan = propose(situation(verdict))
    assert (plan.kind, plan.strategy) == (PlanKind.RESTART, "wait_for_storage")
    assert "correct the program" not in remedy(verdict)


# --- 2U1/Qwen-VL-Series-Finetune #135


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(240)
@pytest.mark.parametrize("by", ["raise", "kill"])
def test_qwen_vl_135_memory_that_runs_out_in_the_save_is_the_saves(supervise: Run, by: str) -> None:
    command = alone("qwen_vl_135.py", "--steps", "40", "--by", by)
    run = supervise(*command, options=(*DECLARED, "--knob", "num_workers:0=--workers"), **OFTEN)
    assert run.exit_code(200) != 0
    text = card(run)
    assert "phase checkpoint" in text
    assert "DataLoader workers" not in text
    assert "fewer loader workers" not in text
    assert "of them (--workers)" not in text
    if by == "raise":
        assert " host_oom, " in text
        assert "it held the state a second time" in text


# --- rwth-i6/returnn #1626, THUDM/slime PR #1086


@pytest.mark.parametrize(
    "last_error",
    [
        "Cuda failure 'out of memory'",
        "Failed to CUDA calloc async 6291456 bytes",
    ],
)
def test_returnn_1626_nccl_that_cannot_allocate_is_the_gpus_memory(last_error: str) -> None:
    where = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1197, unhandled cuda error, NCCL version 2.21.5"
    message = f"ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n{last_error}"
    verdict = log(*raised(1, f"torch.distributed.DistBackendError: {where}\n{message}"))
    assert verdict.cause is Cause.CUDA_OOM
    assert "GLOO" not in remedy(verdict)


# --- Blackwellboy/model-serving-minefield #45


def test_minefield_45_the_quiet_early_error_is_blamed_and_not_those_who_shout() -> None:
    quiet = raised(0, "ValueError: Free memory on device cuda:0 (109.5/121.7 GiB) on startup is less than desired GPU memory utilization")
    sent = "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server crash?"
    shouts = [line for rank in (1, 2, 3) for line in (f"[rank{rank}]: sendBytes failed on SocketImpl(fd=15)", *raised(rank, sent)) * 9]
    assert log(*quiet, *shouts).rank == 0


# --- NVIDIA/open-gpu-kernel-modules #1355, #1150


def test_open_gpu_1355_channels_that_a_fabrics_fault_ended_are_its_consequences() -> None:
    faults = [f"[ 100.{n:06}] NVRM: Xid (PCI:0000:{pci}:00): 149, NETIR_LINK_EVT Fatal, XC0" for n, pci in enumerate(("dc", "1b"))]
    ended = [
        f"[ 101.{n:06}] NVRM: Xid (PCI:0000:dc:00): 45, pid=1818, name=python3, Ch 0000000{n} caused by previous Xid 149" for n in range(8)
    ]
    for lines in ([*faults, *ended], [*ended[:1], *faults, *ended[1:]]):
        verdict = log(*lines)
        assert verdict.cause is Cause.NVLINK
        assert "reset the GPUs of the fabric together" in remedy(verdict)


# --- Nerogar/OneTrainer #1409, verl PR #1098


@pytest.mark.parametrize("before_first_step", [True, False])
def test_onetrainer_1409_a_hub_that_is_asked_too_often_is_waited_for(before_first_step: bool) -> None:  # noqa: FBT001 (a parameter)
    verdict = log(
        *raised(
            0, "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/models/x"
        )
    )
    assert (verdict.cause, dict(verdict.facts)["peer"]) == (Cause.STORAGE_REMOTE, "huggingface.co:443")
    plan = propose(situation(verdict, before_first_step=before_first_step))
    assert (plan.strategy, plan.kind) == ("wait_for_storage", PlanKind.RESTART)
    assert plan.delay_s > 0
    assert "HF_HUB_OFFLINE=1" in remedy(verdict)
    assert os.sep not in remedy(verdict)


# --- NVIDIA/open-gpu-kernel-modules #971


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(120)
def test_open_gpu_971_a_driver_that_never_answers_is_a_finding_at_its_deadline(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    fake_nvml.set({"all.hang_ms.nvmlDeviceGetUUID": 600_000}, gpus=2)
    argv = [sys.executable, "-m", "supervisor", "nodes", "gpus", "--state-dir", str(tmp_path)]
    done = subprocess.run(argv, cwd=tmp_path, env=fake_nvml.environ, capture_output=True, text=True, timeout=100, check=False)  # noqa: S603 (ours)
    assert "did not answer" in done.stdout, done.stdout + done.stderr
    assert done.returncode != 0
