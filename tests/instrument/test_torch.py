"""The hooks in real torch processes: what a rank says of itself while it imports, loads, trains and saves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor.job.clock import Clock
from supervisor.observe import collect
from supervisor.observe.ranks import start_files
from supervisor.observe.ranks.progress_sampler import loads

if TYPE_CHECKING:
    from conftest import Attempt

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[2]

# Reads its own slot, as the supervisor would.
LOOK = f"""
import os, sys
from pathlib import Path
sys.path.append({str(ROOT)!r})
from supervisor.observe.ranks import heartbeats
def look():
    (beat,) = heartbeats.read(Path(os.environ['SUPERVISE_JOB_DIR'], 'attempt-0001', 'heartbeat'))
    return beat
"""

PHASES = """
said = [look().phase]
import io, threading
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
class PhaseRecorder:
    def __reduce__(self):
        said.append(look().phase)  # within torch.save
        return (tell, ())
def tell():
    said.append(look().phase)  # within torch.load
said.append(look().phase)
dist.init_process_group('gloo', init_method='tcp://127.0.0.1:0', rank=0, world_size=1)
said.append(look().phase)
torch.save({'x': PhaseRecorder()}, 'a.pt')
torch.load('a.pt', weights_only=False)
with open('a.pt', 'rb') as file:
    torch.load(file, weights_only=False)
torch.load(io.BytesIO(open('a.pt', 'rb').read()), weights_only=False)
said.append(look().phase)
assert not look().backward_seen and look().torch_loaded
weight = torch.ones(1, requires_grad=True)
weight.sum().backward()
assert look().backward_seen
said.append(look().phase)
thread = threading.Thread(target=torch.save, args=({}, 'b.pt')); thread.start(); thread.join()
said.append(look().phase)
dcp.save({'w': torch.ones(1)}, checkpoint_id='dcp')
dcp.load({'w': torch.ones(1)}, checkpoint_id='dcp')
said.append(look().phase)
try:
    torch.load('missing.pt')
except FileNotFoundError:
    said.append(look().phase)
torch.optim.SGD([weight], lr=0.1).step()
print(' '.join(said))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_the_phases_and_the_loads_of_a_rank_are_recorded(attempt: Attempt, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOOK + PHASES)
    done = attempt.run(str(script), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [
        "import",
        "import",
        "init",
        "checkpoint",
        "load",
        "load",
        "load",
        "init",  # the phase of a load ends with it
        "train",
        "train",
        "train",
        "train",
    ]
    lines = [json.loads(line) for line in (attempt.directory / "loads-0.jsonl").read_text().splitlines()]
    assert [line["loading"] for line in lines[::2]] == [line["path"] for line in lines[1::2]], "each load is logged when it begins, too"
    rows = lines[1::2]
    saved = (tmp_path / "a.pt").stat()
    assert [(row["path"], row["complete"]) for row in rows] == [
        (str(tmp_path / "a.pt"), True),
        (str(tmp_path / "a.pt"), True),
        (str(tmp_path / "dcp"), True),
        (str(tmp_path / "missing.pt"), False),
    ]
    assert (rows[-1]["inode"], rows[-1]["steps"]) == (None, 0)
    moments = start_files.read(attempt.directory, 1)
    assert moments is not None
    assert tuple(moments) == start_files.MOMENTS
    assert list(moments.values()) == sorted(moments.values())
    assert (rows[0]["inode"], rows[0]["size"], rows[0]["mtime_ns"]) == (saved.st_ino, saved.st_size, saved.st_mtime_ns)


@pytest.mark.parametrize(
    ("then", "phase"),
    [pytest.param("raise", "load", id="uncaught"), pytest.param("try_another()", "init", id="caught", marks=pytest.mark.slow)],
)
def test_an_exception_that_comes_out_of_a_load_is_one_while_loading(attempt: Attempt, tmp_path: Path, then: str, phase: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)\n"
        f"try:\n    torch.load('missing.pt')\nexcept FileNotFoundError:\n    {then}\n"
    )
    done = attempt.run_forked(str(script), env=attempt.env(RANK="0"), cwd=tmp_path)
    assert done.returncode == 1
    (error,) = attempt.errors().errors
    (beat,) = attempt.beats()
    assert (error.phase, beat.phase) == (phase, phase), error.traceback
    assert (error.optimizer, error.ran) == (beat.optimizer_made, beat.ran) == (False, True)


@pytest.mark.slow
def test_an_exception_that_comes_out_of_the_meeting_of_the_ranks_is_one_of_the_setup(attempt: Attempt, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import datetime, time, torch\n"
        "time.sleep(3.2)\n"  # longer than imports alone may be followed by nothing
        "where = {'init_method': 'tcp://127.0.0.1:1', 'rank': 1, 'world_size': 2}\n"
        "torch.distributed.init_process_group('gloo', timeout=datetime.timedelta(seconds=1), **where)\n"
    )
    attempt.run(str(script), cwd=tmp_path)
    (error,) = attempt.errors().errors
    assert (error.phase, error.ran) == ("init", False), error.traceback


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (("layer(torch.ones(1))", "torch.optim.SGD(layer.parameters(), lr=0.1)", "layer.eval()"), "FF TF TT"),
        (("torch.save({}, 'a.pt')",), "FT"),
    ],
)
def test_an_optimizer_or_a_call_shows_the_end_of_the_imports(attempt: Attempt, tmp_path: Path, lines: tuple[str, ...], shown: str) -> None:
    script = tmp_path / "train.py"
    show = "print('FT'[look().optimizer_made] + 'FT'[look().ran])\n"
    script.write_text(f"{LOOK}import torch\nlayer = torch.nn.Linear(1, 1)\n" + "".join(f"{line}\n{line}\n{show}" for line in lines))
    done = attempt.run(str(script), env=attempt.env(RANK="0"), cwd=tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, shown.split()), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "has_loader"), [(0, False), (1, True)])
def test_a_loader_with_worker_processes_is_seen(attempt: Attempt, tmp_path: Path, workers: int, has_loader: bool) -> None:  # noqa: FBT001 (a parameter)
    script = tmp_path / "train.py"
    script.write_text(f"import torch\nlist(torch.utils.data.DataLoader([1], num_workers={workers}))\n")
    done = attempt.run(str(script), env=attempt.env(RANK="0"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (beat,) = attempt.beats()
    assert (beat.optimizer_made, beat.ran) == (False, True), "it is beyond its imports"
    assert beat.loader == has_loader
    texts = [fact.text for fact in collect.beats(attempt.directory / "heartbeat", Clock.start()) if fact.name == "loader"]
    assert texts == ["workers" if has_loader else "none"]
    with_children = collect.beats(attempt.directory / "heartbeat", Clock.start(), {0})
    assert [fact.text for fact in with_children if fact.name == "loader"] == ["workers"] * has_loader, "they may be another loader's"


@pytest.mark.slow
def test_an_exception_that_comes_out_of_a_save_is_one_while_saving(attempt: Attempt, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\ntorch.save({}, 'not-there/a.pt')\n")
    done = attempt.run(str(script), env=attempt.env(RANK="0"), cwd=tmp_path)
    assert done.returncode == 1
    (error,) = attempt.errors().errors
    assert error.phase == "checkpoint"


COMPILED = """
import torch
class Outside:  # an optimizer that torch does not know
    def step(self):
        weight.data -= weight.grad
weight = torch.ones(2, requires_grad=True)
weight.sum().backward()
Outside().step()
assert (look().phase, look().steps, look().step) == ('train', 0, None), look()
layer = torch.nn.Linear(2, 2)
forward = torch.compile(layer, backend='eager', fullgraph=True)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(5):
    forward(torch.ones(2)).sum().backward()
    optimizer.step()
assert look().steps == 5, look()
step = torch.compile(optimizer.step, backend='eager')
for _ in range(5):
    step()
print(look().steps, sys.meta_path[0].__class__.__name__)
raise ValueError('at the end')
"""


FILLED = """
import json, torch
from torch.distributed.checkpoint.state_dict import get_state_dict
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters())
def train(): model(torch.ones(2)).sum().backward(); optimizer.step(); optimizer.zero_grad()
shown = []
def show(): beat = look(); shown.append((beat.steps, beat.step, beat.first_step))
get_state_dict(model, optimizer)
show()
train()
show()
get_state_dict(model, optimizer)  # it has a state now
train()
show()
print(json.dumps(shown))
"""


@pytest.mark.slow
def test_the_step_by_which_torch_fills_an_optimizer_is_none_of_the_training(attempt: Attempt, tmp_path: Path) -> None:
    done = attempt.run("-c", LOOK + FILLED, env=attempt.env(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[0, None, None], [1, 1, 0], [2, 2, 0]]


@pytest.mark.slow
def test_foreign_optimizers_torch_compile_and_an_error_while_training(attempt: Attempt, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOOK + COMPILED)
    done = attempt.run(str(script), env=attempt.env("launcher"))
    assert done.stdout.split()[0] == "10", done.stderr
    (error,) = attempt.errors().errors
    assert (error.exc_type, error.phase, error.steps, error.local_rank) == ("builtins.ValueError", "train", 10, 0)


LEGACY = """
import sys
class Legacy:  # like that of six before 1.16: it knows find_module, and no find_spec
    def find_module(self, name, path=None):
        return None
assert sys.meta_path[0].__class__.__name__ == 'ImportWatcher'
sys.meta_path.insert(1, Legacy())
sys.path[:] = ['.']  # no jax here, whatever is installed
try:
    import jax
except ImportError as error:
    print(type(error).__name__, error)
"""


def test_a_legacy_finder_leaves_the_error_of_a_failed_import(attempt: Attempt, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LEGACY)
    done = attempt.run("-W", "ignore", str(script), cwd=tmp_path)
    assert done.stdout.split("\n")[0] == "ModuleNotFoundError No module named 'jax'", done.stderr


RANK = """
import os, pathlib, time, torch
done = pathlib.Path(__file__).with_name('rank-0-is-done')
layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.Adam(layer.parameters())
for _ in range(3):
    layer(torch.ones(2)).sum().backward()
    optimizer.step()
assert 'SUPERVISE_JOB_SHIM' not in os.environ and 'PYTHONPATH' not in os.environ
if os.environ.get('RANK') == '0':
    done.touch()
else:
    until = time.monotonic() + 60
    while 'RANK' in os.environ and not done.exists() and time.monotonic() < until:  # its failure ends rank 0 too
        time.sleep(0.02)
    raise ValueError('rank one')
"""
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
ACCELERATE = ["-m", "accelerate.commands.launch", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"]
# Named for GPUs, it is accelerate's only way to start several ranks without mpirun; the script decides what they run on.
ACCELERATE_RANKS = [*ACCELERATE, "--multi_gpu", "--num_processes=2", "--main_process_port=0"]
ACCELERATE_ALONE = [*ACCELERATE, "--cpu", "--num_processes=1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(TORCHRUN, id="torchrun"),
        pytest.param(ACCELERATE_RANKS, id="accelerate"),
    ],
)
def test_the_ranks_of_a_launcher_are_instrumented_and_the_launcher_is_not(attempt: Attempt, tmp_path: Path, launcher: list[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANK)
    done = attempt.run(*launcher, str(script), env=attempt.env("launcher"))
    assert done.returncode == 1, done.stderr
    assert [(beat.rank, beat.steps, beat.step, beat.phase) for beat in attempt.beats()] == [(0, 3, 3, "train"), (1, 3, 3, "train")], (
        done.stderr
    )
    assert [(error.rank, error.message) for error in attempt.errors().errors] == [(1, "rank one")]


@pytest.mark.slow
def test_the_one_process_of_a_launcher_that_names_no_rank_claims_when_it_trains(attempt: Attempt, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANK)
    done = attempt.run(*ACCELERATE_ALONE, str(script), env=attempt.env("launcher"))
    assert [(beat.rank, beat.steps, beat.step) for beat in attempt.beats()] == [(0, 3, 3)], done.stderr
    scan = attempt.errors()
    assert [error.message for error in scan.errors] == ["rank one"]
    assert ["CalledProcessError" in error.exc_type for error in scan.unclaimed] == [True] * len(scan.unclaimed)


@pytest.mark.slow
def test_a_rank_without_a_number_that_dies_of_a_load_names_the_file(attempt: Attempt, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import subprocess, sys, torch\n"
        "if len(sys.argv) == 1:\n    sys.exit(subprocess.call([sys.executable, __file__, 'rank']))\n"
        "torch.save({}, 'whole.pt')\ntorch.load('whole.pt')\n"
        "open('torn.pt', 'wb').write(open('whole.pt', 'rb').read()[:200])\ntorch.load('torn.pt')\n"
    )
    assert attempt.run(str(script), env=attempt.env("launcher"), cwd=tmp_path).returncode == 1
    (log,) = attempt.directory.glob("loads-*.jsonl")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(row["path"], row["complete"]) for row in rows] == [(str(tmp_path / "torn.pt"), False)]
    assert loads(attempt.directory, complete=False) == [str(tmp_path / "torn.pt")]
