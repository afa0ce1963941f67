"""What reading costs: a log without failures, against `grep -E` with the same alternatives; a flood of hits; the verdict on 16 ranks.

Throughput is that of the whole command `supervise classify`, its start included, in MiB of log per second of CPU time (user and
system, of all threads). grep looks for the anchors of all signatures, as one alternation in the C locale, and counts lines. Both read
the same file out of the page cache, in turns. The flood is read by one Reader in this process: in each of its lines some signature's anchor
stands, whose pattern matches or not.
"""

from __future__ import annotations

import os
import re
import resource
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from figures import at_least, at_most
from runs import BenchError

from supervisor.classify.engine import classify
from supervisor.classify.logs.match import Reader
from supervisor.config import signatures
from supervisor.core.model import Evidence
from supervisor.observe.anchor_scanner import scanner

if TYPE_CHECKING:
    from pathlib import Path

    from figures import Figure

LOG_MIB = 256
LEAST_RUNS = 5
RANKS = 16
TAIL_LINES = 2000

START = """\
[2026-11-21 07:12:{0:02d},101][root][INFO] - 16 ranks, micro-batch 4, gradient accumulation 8, seed {0}
node-{0}:4242:4242 [{1}] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0
node-{0}:4242:4311 [{1}] NCCL INFO Channel 00/0 : 0[{1}] -> 1[{1}] via P2P/IPC/read
node-{0}:4242:4311 [{1}] NCCL INFO Connected all rings
"""
STEP = """\
 iteration {0:8d}/  500000 | consumed samples: {1:12d} | elapsed time per iteration (ms): 812.{2} | lm loss: 2.{2}E+00
{{'loss': 2.{2}, 'grad_norm': 0.{2}, 'learning_rate': 1.2e-05, 'epoch': 0.{2}, 'num_tokens': {1}}}
[rank{1}]: 2026-11-21 07:{3:02d}:{3:02d} | step {0} | loss 2.{2} | tokens/s 18{2} | data 0.0{3}s | saved nothing
\rEpoch 3:  {3}%|████▌     | {0}/500000 [1:07:{3:02d}<9:11:{3:02d},  8.{2}it/s, loss=1.{2}]\rEpoch 3:  {3}%|████▌     | {0}/500000
wandb: sync every {3} steps; eval perplexity 12.{2} over 1024 batches of 512 tokens, best so far 11.{2}
"""
#: How all but one of the ranks end.
PEER = """\
[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "/home/user/train.py", line 88, in main
[rank{0}]:     loss.backward()
[rank{0}]:   File "/home/user/.venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 825, in _engine_run_backward
[rank{0}]:     return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass
[rank{0}]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.{0}]:2345
"""
CULPRIT = """\
[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "/home/user/train.py", line 80, in main
[rank{0}]:     out = model(batch)
[rank{0}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 5 has a total capacity of 79.15 GiB
"""
#: Lines that a program or a driver in trouble repeats without end: each is looked at.
FLOOD = """\
[rank{0}]:[E1121 01:02:03.123 ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={1})
{1} 2026-11-21 WARNING loader: could not read sample, Error ignored, going on with the next
Nov 21 00:00:01 node7 kernel: [12.{1:06d}] NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[rank{0}]: ValueError: bad sample, it is left out
"""
FLOOD_BLOCKS = 40


def write_log(path: Path, mib: int) -> None:
    """Write a log of a healthy training, about `mib` MiB of it, of many kinds of lines."""
    parts = [START.format(node, node % 8) for node in range(8)]
    parts += [STEP.format(step, step % 16, f"{step * 7919 % 10000:04d}", step % 60) for step in range(2000)]
    block = "".join(parts).encode()
    with path.open("wb") as file:
        for _ in range(max(1, (mib << 20) // len(block))):
            file.write(block)


def cpu_seconds(command: list[str], environment: dict[str, str], good: tuple[int, ...]) -> tuple[float, str]:
    """Run a command; return the CPU seconds that it took, and its stdout."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603  our own and grep
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in good:
        raise BenchError(f"{command[0]} ended with {done.returncode}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def throughput(place: Path, runs: int) -> list[Figure]:
    """Read the log with both, in turns."""
    log, alternatives = place / "train.log", place / "alternatives"
    write_log(log, LOG_MIB)
    catalogue, _ = signatures.read()
    scan = scanner(catalogue.anchors)
    with log.open("rb") as file:
        if hits := scan.hits(file.read(4 << 20)):
            raise BenchError(f"the log holds {catalogue.anchors[hits[0][0]]!r}, so it is not one without hits")
    alternatives.write_text("|".join(re.sub(r"([][\\.^$*+?(){}|])", r"\\\1", anchor) for anchor in catalogue.anchors) + "\n")
    environment = {**os.environ, "LC_ALL": "C"}
    own_command = [sys.executable, "-P", "-m", "supervisor", "classify", "--json", str(log)]
    grep = ["grep", "-c", "-E", "-f", str(alternatives), str(log)]
    mib = log.stat().st_size / (1 << 20)
    rates: dict[str, list[float]] = {"ours": [], "grep": []}
    for _ in range(runs):
        for name, command, good in (("ours", own_command, (0,)), ("grep", grep, (1,))):  # grep's 1: not a line
            seconds, _said = cpu_seconds(command, environment, good)
            rates[name].append(mib / seconds)
    log.unlink()
    detail = {name: [round(rate) for rate in sorted(samples)] for name, samples in rates.items()}
    own_rate, grep_rate = statistics.median(rates["ours"]), statistics.median(rates["grep"])
    return [
        at_least(
            "classify_throughput",
            own_rate,
            400,
            "MiB per CPU-second",
            scanner=type(scan).__name__,
            anchors=len(catalogue.anchors),
            runs=detail,
        ),
        at_least("classify_throughput_to_grep", own_rate / grep_rate, 1, "ratio", grep=round(grep_rate)),
    ]


def verdict(runs: int) -> Figure:
    """Judge how long the verdict takes when the last of 16 ranks is down: all that is left to do after its last block was read."""
    catalogue, _ = signatures.read()
    scan = scanner(catalogue.anchors)
    times, cause = [], ""
    for _ in range(runs):
        readers = [Reader(catalogue, scan, rank=rank) for rank in range(RANKS)]
        for rank, reader in enumerate(readers):
            steps = "".join(STEP.format(step, rank, f"{step:04d}", step % 60) for step in range(TAIL_LINES // 5))
            reader.feed((steps + (CULPRIT if rank == RANKS // 3 else PEER).format(rank)).encode(), float(rank))
        began = time.perf_counter()
        facts = [fact for reader in readers for fact in reader.finish()]
        ends = [Evidence("exit", "exit_code", "1", rank=rank, t=100.0 + (rank != RANKS // 3)) for rank in range(RANKS)]
        cause = classify([*facts, *ends]).cause
        times.append(1e3 * (time.perf_counter() - began))
    return at_most("verdict_16_ranks", statistics.median(times), 100, "ms", worst=round(max(times), 2), cause=cause)


def flood(runs: int) -> Figure:
    """Judge what a line costs in CPU time where every line is a hit."""
    catalogue, _ = signatures.read()
    scan = scanner(catalogue.anchors)
    blocks = ["".join(FLOOD.format(i % 8, i) for i in range(50 * n, 50 * n + 50)).encode() for n in range(FLOOD_BLOCKS)]
    lines = sum(block.count(b"\n") for block in blocks)
    costs = []
    for _ in range(runs):
        reader = Reader(catalogue, scan)
        began = time.process_time()
        for block in blocks:
            reader.feed(block)
        costs.append(1e6 * (time.process_time() - began) / lines)
    return at_most("classify_flood", statistics.median(costs), 60, "us per line", scanner=type(scan).__name__, lines=lines)


def measure(place: Path, pairs: int) -> list[Figure]:
    """Measure all three."""
    place.mkdir(parents=True, exist_ok=True)
    runs = max(LEAST_RUNS, pairs // 3)
    return [*throughput(place, runs), flood(runs), verdict(runs)]
