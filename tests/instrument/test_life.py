"""Signs of life that are no steps: backward passes and collectives, in real torch processes."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from supervisor.instrument._supervise_shim import layout
from supervisor.instrument._supervise_shim.heartbeat import HeartbeatWriter
from supervisor.observe.ranks import start_files
from tests.instrument.test_torch import LOOK

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Attempt

pytestmark = pytest.mark.process

COLLECTIVES = """
import inspect, json, os, threading
import torch, torch.distributed as dist
dist.init_process_group('gloo', init_method='tcp://127.0.0.1:0', rank=0, world_size=1)
beat = look()
assert beat.life_ns is None, beat
signs, tensor = [], torch.ones(2)
calls = {
    'all_reduce': lambda: dist.all_reduce(tensor),
    'all_gather': lambda: dist.all_gather([torch.ones(2)], tensor),
    'all_gather_into_tensor': lambda: dist.all_gather_into_tensor(torch.ones(2), tensor),
    'all_gather_object': lambda: dist.all_gather_object([None], 'x'),
    'broadcast': lambda: dist.broadcast(tensor, 0),
    'broadcast_object_list': lambda: dist.broadcast_object_list([1], 0),
    'reduce': lambda: dist.reduce(tensor, 0),
    'reduce_scatter_tensor': lambda: dist.reduce_scatter_tensor(torch.ones(2), tensor),
    'gather': lambda: dist.gather(tensor, [torch.ones(2)], 0),
    'scatter': lambda: dist.scatter(torch.ones(2), [tensor], 0),
    'all_to_all_single': lambda: dist.all_to_all_single(torch.ones(2), tensor),
    'barrier': lambda: dist.barrier(),
    'in its own module': lambda: dist.distributed_c10d.all_reduce(tensor),
}
silent = []
for name, call in calls.items():
    before = look()
    call()
    after = look()
    if after.life_ns is None or after.life_ns == before.life_ns:
        silent.append(name)
before = look().life_ns
thread = threading.Thread(target=dist.all_reduce, args=(tensor,)); thread.start(); thread.join()
beat = look()
print(json.dumps({
    'silent': silent, 'thread': beat.life_ns != before, 'life': beat.life_ns,
    'phase': beat.phase, 'steps': beat.steps, 'rounds': beat.rounds,
    'looks': [dist.all_reduce.__name__, list(inspect.signature(dist.all_reduce).parameters)[:2]],
}))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_every_collective_of_the_training_thread_is_a_sign_and_no_step(attempt: Attempt, tmp_path: Path) -> None:
    """A barrier of the set-up is no training: "before the first step" stays proven."""
    script = tmp_path / "train.py"
    script.write_text(LOOK + COLLECTIVES)
    done = attempt.run(str(script), env=attempt.env(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1"))
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown.pop("life") > 0
    assert shown == {"silent": [], "thread": False, "phase": "init", "steps": 0, "rounds": False, "looks": ["all_reduce", ["tensor", "op"]]}


COMPILED = """
import json
import torch, torch.distributed as dist
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters
dist.init_process_group('gloo', init_method='tcp://127.0.0.1:0', rank=0, world_size=1)
weight = torch.ones(4, requires_grad=True)

def reduced(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1

def broken(x):
    y = x * 2
    dist.broadcast(y, 0)
    return y + 1

def backward(x):
    loss = (weight * x).sum()
    loss.backward()
    return loss * 2

shown = []
for function, whole in ((reduced, True), (broken, False), (backward, False)):
    torch._dynamo.reset()
    counters.clear()
    graphs = CompileCounter()
    compiled = torch.compile(function, backend=graphs, fullgraph=whole)
    for _ in range(3):
        compiled(torch.ones(4))
    shown.append([function.__name__, graphs.frame_count, graphs.op_count, counters['frames']['total']])
print(json.dumps(shown))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_torch_compiles_the_same_with_us_and_without(attempt: Attempt, tmp_path: Path) -> None:
    """A compiled collective stays in its graph, and no function of ours is compiled or breaks a graph."""
    script = tmp_path / "train.py"
    script.write_text(COMPILED)
    numbered = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    outcomes = [attempt.run(str(script), env=attempt.env(mode, **numbered)) for mode in ("off", "rank")]
    assert [done.returncode for done in outcomes] == [0, 0], outcomes[1].stderr
    without, with_us = (json.loads(done.stdout) for done in outcomes)
    assert with_us == without
    assert without[0][1] == 1, "all_reduce is in one graph"
    assert "_supervise_shim" not in outcomes[1].stderr
    assert "get_ident" not in outcomes[1].stderr, "no warning of torch's is about a function that we call"


CUSTOM = """
import json
import torch
weight = torch.ones(2, requires_grad=True)
shown = []
for _ in range(3):
    (weight * 2).sum().backward()
    with torch.no_grad():
        weight -= 0.1 * weight.grad
    weight.grad = None
    beat = look()
    shown.append([beat.phase, beat.steps, beat.step, beat.backward_seen, beat.rounds, beat.life_ns])
print(json.dumps(shown))
"""


def test_without_an_optimizer_of_torch_the_second_backward_pass_ends_the_first_round(attempt: Attempt, tmp_path: Path) -> None:
    """Then the record of the imports is there, and the moments of the start; steps stay unknown."""
    script = tmp_path / "train.py"
    script.write_text(LOOK + CUSTOM)
    done = attempt.run_forked(str(script), env=attempt.env(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1"))
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert [row[:5] for row in shown] == [
        ["train", 0, None, True, False],
        ["train", 0, None, True, True],
        ["train", 0, None, True, True],
    ]
    assert shown[0][5] < shown[1][5] < shown[2][5], "every backward pass is a sign"
    assert "first_step" in (start_files.read(attempt.directory, 1) or {})
    assert "imports-0.json" in attempt.names()


def test_the_imports_of_a_reporting_script_are_recorded_at_its_second_step(attempt: Attempt, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOOK + "from supervisor import worker\nfor step in (7, 8):\n    worker.heartbeat(step)\n    print(look().imported)\n")
    done = attempt.run(str(script), env=attempt.env(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1"))
    assert (done.returncode, done.stdout.split()) == (0, ["False", "True"]), done.stderr
    assert "imports-0.json" in attempt.names()


def writer() -> HeartbeatWriter:
    """Return the heartbeat of a process that imports, in private memory."""
    return HeartbeatWriter(100, 1, 0)


def test_collectives_in_twenty_different_seconds_are_a_loop_and_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [1000.0]
    monkeypatch.setattr("supervisor.instrument._supervise_shim.heartbeat.monotonic_ns", lambda: round(seconds[0] * 1e9))
    beat = writer()
    rounds: list[float] = []
    beat.imported = lambda: rounds.append(seconds[0])
    beat.flag(layout.FLAG_AUTOGRAD)
    beat.enter(layout.INIT)
    for _ in range(layout.ROUNDS_S - 1):
        for _ in range(50):
            beat.on_collective()
            seconds[0] += 0.019
        seconds[0] += 0.1
    assert (beat.phase, rounds) == ("init", [])
    seconds[0] += 500  # a pause is no life
    beat.on_collective()
    assert (beat.phase, rounds, beat.steps, beat.step) == ("unknown", [seconds[0]], 0, None)


def test_a_step_that_is_seen_ends_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who accumulates gradients for long makes a step in the end; its collectives are no loop of their own."""
    seconds = [1000.0]
    monkeypatch.setattr("supervisor.instrument._supervise_shim.heartbeat.monotonic_ns", lambda: round(seconds[0] * 1e9))
    beat, slot = writer(), memoryview(bytearray(layout.SLOT_BYTES)).cast("q")
    beat.move_to(slot)
    recorded: list[int] = []
    beat.imported = lambda: recorded.append(beat.steps)

    beat.flag(layout.FLAG_OPTIMIZER)
    for _ in range(5):
        beat.on_backward()
        beat.on_collective()
    beat.on_step(SimpleNamespace(state={}), (), {})
    for _ in range(100):
        beat.on_backward()
        beat.on_collective()
        seconds[0] += 1.1
    assert (beat.phase, beat.steps, slot[layout.FLAGS] & layout.FLAG_ROUNDS) == ("train", 1, 0)
    assert (recorded, bool(slot[layout.FLAGS] & layout.FLAG_IMPORTED)) == ([0], True), "its imports are known at its first backward pass"
