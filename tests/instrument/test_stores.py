"""Process groups of ranks whose store torchrun's agent serves: what torch alone makes hang or fail."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported where the build has it

from supervisor.instrument._supervise_shim.stores import AgentStore
from supervisor.launch.environment import INSTRUMENT_DIR
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.instrument.conftest import Attempt

pytestmark = pytest.mark.process

#: Rank 1 is quick, so that it would read the address that rank 0 had in the group before.
GROUPS = """
import os, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])

def group(**where):
    dist.init_process_group("gloo", timeout=timedelta(seconds=30), **where)
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return int(total)

if rank == 0:  # a rank may make a group of its own before the common one
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
found = [group()]
for _ in range(3):
    time.sleep(0.2 * (rank == 0))
    found.append(group())
found.append(group(init_method=sys.argv[1], rank=rank, world_size=2))
print(found)
"""

#: A process group was made in a process that imported what the argument names.
GROUP_MADE = """
import sys
for name in sys.argv[1:]:
    __import__(name)
from _supervise_shim.stores import AgentStore
AgentStore(print).group_made()
print(sorted(name for name in sys.modules if name.startswith("checkpointing")))
"""


def test_only_a_script_that_imports_our_functions_gets_what_lets_others_ask_where_it_stands() -> None:
    def loaded(*names: str) -> str:
        command = [sys.executable, "-c", GROUP_MADE, *names]
        env = {"PYTHONPATH": f"{INSTRUMENT_DIR}:{INSTRUMENT_DIR.parents[1]}", "PATH": "/usr/bin:/bin"}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout  # noqa: S603  ours

    assert loaded() == "[]\n"
    assert loaded("checkpointing") == "['checkpointing']\n"  # no name of it in which ranks wait for each other
    assert "'checkpointing.training.ranks'" in loaded("supervisor.worker")


@pytest.mark.slow
def test_a_second_group_and_one_at_a_place_of_the_scripts_own(attempt: Attempt, tmp_path: Path) -> None:
    script = tmp_path / "groups.py"
    script.write_text(GROUPS)
    store = TCPStore("localhost", 0, None, True, wait_for_workers=False)  # noqa: FBT003  positional in every version
    env = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    where = f"tcp://localhost:{free_port()}"
    ranks = [
        subprocess.Popen(  # noqa: S603  our own interpreter
            [sys.executable, str(script), where],
            env=attempt.env(RANK=rank, LOCAL_RANK=rank, **env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    try:
        ended = [rank.communicate(timeout=PATIENCE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    printed = [[line for line in out.splitlines() if not line.startswith("[Gloo]")] for out, _ in ended]  # torch 2.10 prints such lines
    assert printed == [["[2, 2, 2, 2, 2]"]] * 2, ended


@pytest.mark.parametrize("module", ["supervisor.agent.step_agreement", "checkpointing.training.ranks"])
def test_a_rank_shows_where_it_stands_once_its_group_is_made_if_its_script_has_imported_ours(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("supervisor.agent.step_agreement", "checkpointing.training.ranks"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    shown: list[str] = []
    store = AgentStore(lambda _world: None)
    store.group_made()
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(show_place=lambda: shown.append(module)))  # type: ignore[arg-type]
    store.group_made()
    assert shown == [module]
