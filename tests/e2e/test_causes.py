"""What `supervise` says of failures that are real: the cause, whose it was, and the facts."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from supervisor.core.model import FailureVerdict
from supervisor.journal.records import Damage, scan
from tests.support.figures import is_within
from tests.support.memory_group import memory_group
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.supervised import Supervised, Surroundings

JOB = Path(__file__).parents[1] / "jobs" / "causes.py"
ONCE = (
    "--set",
    "restart.max_attempts=1",
)
#: The verdict is there so soon after the last rank is down.
VERDICT_S = 0.1

pytestmark = pytest.mark.process


def command(how: str, ranks: int = 2) -> list[str]:
    return ["torchrun", "--standalone", f"--nproc-per-node={ranks}", str(JOB), how]


def records(run: Supervised) -> list[dict[str, Any]]:
    """Return the journal's events, each with what was decided on it."""
    rows = []
    for path in run.state.glob("*/nodes/*/journal.jsonl"):
        rows += [json.loads(line)["rec"] for line in path.read_text().splitlines()]
        assert not [damage for damage in scan(path) if isinstance(damage, Damage)]
    return [record for record in rows if record["kind"] == "event"]


def verdict(run: Supervised) -> dict[str, Any]:
    """Return the last verdict of a run that has ended, and check that it did not let anybody wait."""
    run.exit_code(deadline_s=100)
    events = records(run)
    ended = next(record["t"] for record in reversed(events) if record["body"]["event"] == "AttemptEnded")
    collected = next(record["t"] for record in reversed(events) if record["body"]["event"] == "EvidenceCollected")
    verdicts: list[dict[str, Any]] = re_verdicts(events)
    run.wait_for_nothing_left()
    assert verdicts, "no verdict"
    verdicts[-1]["after_s"] = max(0.0, collected - ended)
    return verdicts[-1]


def re_verdicts(node: Any) -> list[dict[str, Any]]:  # noqa: ANN401  whatever a journal holds
    """Return whatever looks like a verdict, in order, with the fields that have their default."""
    if isinstance(node, dict):
        own = [msgspec.to_builtins(msgspec.convert(node, FailureVerdict))] if "cause" in node and "confidence" in node else []
        return [*own, *(row for child in node.values() for row in re_verdicts(child))]
    return [row for child in node for row in re_verdicts(child)] if isinstance(node, list) else []


@pytest.mark.slow  # tests/classify shows it of saved logs
def test_a_traceback_alone_names_the_users_file_and_line(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*command("exception"), options=(*ONCE, "--set", "instrument.enabled=false"))
    diagnosis = verdict(run)
    facts = dict(diagnosis["facts"])
    line = next(number for number, text in enumerate(JOB.read_text().splitlines(), 1) if "raise ValueError" in text)
    assert (diagnosis["cause"], diagnosis["rank"]) == ("user_code", 1)
    assert (facts["file"], facts["line"], facts["function"]) == (str(JOB), str(line), "shapes_differ")
    assert is_within(diagnosis["after_s"], VERDICT_S)
    assert "ValueError: batch of 7 items, 8 expected" in run.stderr


@pytest.mark.slow
def test_a_loader_that_was_killed_is_named(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*command("loader", ranks=1), options=ONCE)
    diagnosis = verdict(run)
    assert (diagnosis["cause"], diagnosis["rank"]) == ("dataloader_worker", 0)
    assert is_within(diagnosis["after_s"], VERDICT_S)


@pytest.mark.slow
def test_the_card_names_the_core_that_a_rank_dumped(supervise: Callable[..., Supervised], surroundings: type[Surroundings]) -> None:
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    inside = ("sh", "-c", 'ulimit -c unlimited && exec "$@"', "sh")
    if pattern.startswith("|") or subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:  # noqa: S603  words of our own
        pytest.skip("cores are not written to files here: set kernel.core_pattern to a file name, and allow `ulimit -c unlimited`")
    run = supervise("python", "-c", "import os; os.abort()", options=ONCE, around=surroundings(prefix=inside))
    diagnosis = verdict(run)
    assert (diagnosis["cause"], dict(diagnosis["facts"])["signal"]) == ("unknown_native_abort", "6")
    (core,) = (line.split(maxsplit=1)[1] for line in run.stderr.splitlines() if line.split()[:1] == ["core"])
    assert core.startswith("rank 0 dumped core: ")
    assert Path(core.removeprefix("rank 0 dumped core: ")).stat().st_size > 0


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A memory group that holds a supervisor, an agent and two ranks, and not much more."""
    with memory_group(1200) as group:
        yield group


@pytest.mark.slow  # tests/classify shows it of saved evidence
def test_a_rank_that_the_kernel_killed_for_want_of_memory(
    supervise: Callable[..., Supervised], surroundings: type[Surroundings], small_group: Path
) -> None:
    inside = ("sh", "-c", f'echo $$ > {small_group}/cgroup.procs && exec "$@"', "sh")
    run = supervise(*command("host-oom"), options=ONCE, around=surroundings(prefix=inside))
    diagnosis = verdict(run)
    assert (diagnosis["cause"], diagnosis["rank"]) == ("host_oom", 1)
    assert diagnosis["confidence"] >= 0.9
    assert any(not fact["free_text"] and fact["source"] in {"kernel", "cgroup"} for fact in diagnosis["because"])
    assert is_within(diagnosis["after_s"], VERDICT_S)


@pytest.mark.slow  # tests/classify shows it of saved evidence
def test_a_rank_that_touches_shared_memory_which_is_not_there(
    supervise: Callable[..., Supervised], surroundings: type[Surroundings]
) -> None:
    inside = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=24m tmpfs /dev/shm && exec "$@"', "sh")
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:  # noqa: S603  words of our own
        pytest.skip("needs a mount namespace (`unshare --mount`): run as root")
    run = supervise(*command("shm"), options=ONCE, around=surroundings(prefix=inside))
    diagnosis = verdict(run)
    assert (diagnosis["cause"], diagnosis["rank"]) == ("shm_exhausted", 1)


@pytest.mark.slow
def test_after_a_timed_out_collective_the_next_attempt_records_its_collectives(
    supervise: Callable[..., Supervised],
) -> None:
    run = supervise("torchrun", "--standalone", "--nproc-per-node=1", str(JOB.with_name("collective_once.py")))
    diagnosis = verdict(run)
    assert diagnosis["cause"] == "nccl_timeout"
    assert run.exit_code() == 0
    level, file, entries = run.stdout.split()
    assert (level, entries) == ("INFO", "2000")
    assert Path(file).parent.is_dir()
    assert Path(file).parent.name == "0002"


#: Lightning's way: rank 0 is the command, and starts rank 1 by itself.
STARTS_ITS_PEER = """
import os, subprocess, sys, time
import torch.distributed as dist, torch
rank = int(os.environ.setdefault("LOCAL_RANK", "0"))
if rank == 0:
    os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1]}
    peer = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "LOCAL_RANK": "1"})
    open("peer", "w").write(str(peer.pid))
dist.init_process_group("gloo", rank=rank, world_size=2)
for step in range(100_000):
    time.sleep(0.02)
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        open("step", "w").write(str(step))
"""


@pytest.mark.slow
def test_a_rank_started_by_the_command_itself_is_named_and_not_its_peer(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(STARTS_ITS_PEER)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = supervise(sys.executable, str(script), str(port), options=ONCE)
    step = tmp_path / "step"
    # a while, because what the command starts is looked for every few seconds
    wait_for(lambda: step.exists() and int(step.read_text() or "0") > 300, "the ranks train", 60, alive=run.alive)
    os.kill(int((tmp_path / "peer").read_text()), signal.SIGKILL)
    run.exit_code()
    assert "rank 1 was killed by SIGKILL" in run.stderr
    assert "killed_unknown" in run.stderr
