"""What a traced attempt finds in its environment beside what the user put there."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

from supervisor.launch.tracing import variables

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = """
import torch.distributed as dist
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
dist.barrier()
"""


def test_nccl_writes_its_log_and_the_recorder_its_rings_beside_the_output() -> None:
    values = variables({}, "/state/attempts/0002")
    assert (values["NCCL_DEBUG"], values["NCCL_DEBUG_FILE"]) == ("INFO", "/state/attempts/0002/nccl-%h-%p.log")
    assert (values["TORCH_DISTRIBUTED_DEBUG"], "COLL" in values["NCCL_DEBUG_SUBSYS"].split(",")) == ("INFO", False)
    assert values["TORCH_FR_BUFFER_SIZE"] == values["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
    assert values["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert values["TORCH_FR_DUMP_TEMP_FILE"] == values["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == "/state/attempts/0002/flight-rank-"


@pytest.mark.parametrize(("torch", "has_old_name"), [("", True), ("2.7.1", True), ("2.8.0", False), ("2.13.0+cpu", False), ("3.0", False)])
def test_the_recorder_s_old_variable_is_set_where_torch_may_need_it(torch: str, has_old_name: bool) -> None:  # noqa: FBT001 - a table's row
    assert ("TORCH_NCCL_TRACE_BUFFER_SIZE" in variables({}, "/d", torch)) == has_old_name
    assert variables({}, "/d", torch)["TORCH_FR_BUFFER_SIZE"] == "2000"


@pytest.mark.slow
def test_the_torch_beside_us_warns_of_no_variable_of_a_traced_attempt(tmp_path: Path) -> None:
    environ = os.environ | variables(os.environ, str(tmp_path), metadata.version("torch"))
    process = subprocess.run([sys.executable, "-c", RECORDS], env=environ, capture_output=True, text=True, check=True)  # noqa: S603 - our own interpreter
    assert "deprecated" not in process.stderr


@pytest.mark.parametrize("size", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_a_variable_of_the_user_stays_and_a_log_in_use_is_not_moved(size: str) -> None:
    theirs = {"NCCL_DEBUG": "WARN", "TORCH_DISTRIBUTED_DEBUG": "OFF", size: "50"}
    values = variables(theirs, "/state/attempts/0002")
    assert not {
        "TORCH_DISTRIBUTED_DEBUG",
        "NCCL_DEBUG",
        "NCCL_DEBUG_SUBSYS",
        "NCCL_DEBUG_FILE",
        "TORCH_FR_BUFFER_SIZE",
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
    } & set(values)
    assert values["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
