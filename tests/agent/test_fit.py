"""The self-check, each of its rows, and what the agent does where one does not fit; and that a healthy job looks like torchrun's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.agent.messages import Go
from tests.agent.conftest import IMPORTS
from tests.support import preloaded

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.process

# Runs in a process of its own, a fork of one that has imported torch: torch is bent out of shape, row by row, and put back.
BEND = """
import importlib, inspect, json, sys, warnings
warnings.simplefilter("ignore")
from supervisor.agent.selfcheck import ROWS, missing

def swap(row, to):
    owner = importlib.import_module(row.module)
    *path, last = row.name.split(".")
    for part in path:
        owner = getattr(owner, part)
    raw = vars(owner).get(last, inspect.getattr_static(owner, last))
    own = last in vars(owner)
    if to is None and not own:
        return None  # inherited: deleting it here would change nothing
    delattr(owner, last) if to is None else setattr(owner, last, to)
    return lambda: setattr(owner, last, raw)

fits = missing()
misfits = {}
for row in ROWS:
    for how, to in (("renamed", None), ("other arguments", lambda renamed: None), ("calls nothing", lambda *a, **k: None)):
        if how == "other arguments" and not row.accepts or how == "calls nothing" and not row.calls:
            continue
        try:
            back = swap(row, to)
        except (TypeError, AttributeError):  # a type of the C++ core or an enum cannot be bent
            continue
        if back is None:
            continue
        misfits[f"{row.module}:{row.name} {how}"] = missing((row,))
        back()
print(json.dumps([fits, misfits, missing()]))
"""


def test_every_row_of_the_self_check_bites_and_the_installed_torch_fits() -> None:
    done = preloaded.run("-c", BEND, imports=IMPORTS)
    assert done.returncode == 0, done.stderr
    fits, document, after = json.loads(done.stdout)
    assert fits == after == []
    assert [name for name, misfit in document.items() if not misfit] == []
    assert {how.rpartition(" ")[2] for how in document} == {"renamed", "arguments", "nothing"}
    assert len(document) > 40


def test_a_torch_that_does_not_fit_is_named_before_anything_runs(start: Callable[..., Any], tmp_path: Path) -> None:
    agent = start(bent=("torch.distributed.elastic.agent.server.api", "SimpleElasticAgent", "_rendezvous"))
    agent.send(Go(1))
    missing = agent.expect("unfit", 0)["missing"]
    assert missing == ["torch.distributed.elastic.agent.server.api:SimpleElasticAgent._rendezvous: there is no such name"]
    assert agent.wait_exit() == 79
    assert not list(tmp_path.glob("facts-*"))


def test_a_name_without_which_little_is_lost_is_reported_and_the_job_runs(start: Callable[..., Any]) -> None:
    agent = start("--standalone", bent=("torch.utils.data.dataloader", "", "_BaseDataLoaderIter"))
    agent.send(Go(1))
    agent.expect("stopped", 1, outcome="succeeded")
    assert agent.wait_exit() == 0
    assert "torch.utils.data.dataloader:_BaseDataLoaderIter.__next__: there is no such name: `supervise drill`" in agent.errors()


@pytest.mark.slow
def test_a_system_that_gives_no_pidfds_is_named_before_anything_runs(start: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("""
import errno, os
def pidfd_open(_pid, _flags=0):
    raise PermissionError(errno.EPERM, "Operation not permitted")
os.pidfd_open = pidfd_open
""")
    agent = start(PYTHONPATH=str(tmp_path))
    assert agent.expect("unfit", 0)["missing"] == ["pidfd_open: Operation not permitted"]
    assert agent.wait_exit() == 79


@pytest.mark.slow
def test_ranks_forked_from_torchrun_itself_are_left_to_torchrun(start: Callable[..., Any]) -> None:
    agent = start("--standalone", "--run-path")
    assert "--run-path" in agent.expect("unfit", 0)["missing"][0]
    assert agent.wait_exit() == 79


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["torchrun", "launch"])
def test_a_healthy_job_prints_what_torchrun_prints(start: Callable[..., Any], tmp_path: Path, entry: str) -> None:
    def plain(text: str) -> list[str]:
        return [re.sub(r"^W\d+ \S+ \d+", "W", line) for line in text.splitlines()]  # times and pids

    args = ["--standalone", "--nproc-per-node=2"]
    agent = start(*args, options=("--entry", entry), JOB="* exit=0")
    agent.send(Go(1))
    agent.expect("stopped", 1, outcome="succeeded")
    assert agent.wait_exit() == 0
    command = [
        sys.executable,
        *(["-m", f"torch.distributed.{entry}"] if entry != "torchrun" else [str(Path(sys.executable).parent / entry)]),
    ]
    stock = subprocess.run(  # noqa: S603  our own interpreter
        [*command, *args, str(start.job)],
        cwd=tmp_path,
        env={**agent.environ, "JOB": "* exit=0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "OMP_NUM_THREADS" in stock.stderr
    assert plain(agent.errors()) == plain(stock.stderr)
    argv = json.loads((tmp_path / "facts-1-0").read_text())["argv"]
    assert argv == (["--local-rank=0"] if entry == "launch" else []), "the last to write was stock torchrun"


#: Notes a collection that runs while torch is imported.
COLLECTED = """
import gc, sys

def note(phase, info):
    if "torch" in sys.modules and "supervisor.agent.elastic" not in sys.modules:
        open("collected", "a").close()

if any(word.endswith("supervisor/agent/__main__.py") for word in sys.orig_argv):
    gc.callbacks.append(note)
"""


@pytest.mark.slow
def test_the_import_of_torch_is_not_held_up_by_collections(start: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(COLLECTED)
    agent = start(PYTHONPATH=str(tmp_path / "site"), JOB="")
    agent.expect("hello")
    assert not (tmp_path / "collected").exists()
    agent.stop(0)
    agent.wait_exit()
