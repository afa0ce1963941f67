"""The longer timeout of process groups: torch's default grows, and a script's own stays."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from supervisor.instrument._supervise_shim.layout import GROUP_TIMEOUT
from supervisor.instrument._supervise_shim.torchhooks import lengthen_timeouts

if TYPE_CHECKING:
    from conftest import Attempt

#: Prints the timeouts of two process groups, by default and as the script says.
GROUPS = """
import datetime
import torch, torch.distributed as dist
for timeout in ({}, {'timeout': datetime.timedelta(seconds=77)}):
    dist.init_process_group('gloo', init_method='tcp://127.0.0.1:0', rank=0, world_size=1, **timeout)
    group = dist.new_group([0], **timeout)
    print(*(int(g._get_backend(torch.device('cpu')).options._timeout.total_seconds()) for g in (dist.group.WORLD, group)))
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("seconds", "gloo_s", "nccl_s"),
    [("", 1800, 600), ("1200", 1800, 1200), ("5400", 5400, 5400)],
)
def test_torchs_defaults_are_made_at_least_so_long(monkeypatch: pytest.MonkeyPatch, seconds: str, gloo_s: int, nccl_s: int) -> None:
    monkeypatch.setenv(GROUP_TIMEOUT, seconds)
    module = SimpleNamespace(default_pg_timeout=timedelta(minutes=30), default_pg_nccl_timeout=timedelta(minutes=10))
    lengthen_timeouts(module)
    assert (module.default_pg_timeout.total_seconds(), module.default_pg_nccl_timeout.total_seconds()) == (gloo_s, nccl_s)


def test_torch_without_nccl_has_one_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GROUP_TIMEOUT, "3600")
    module = SimpleNamespace(default_pg_timeout=timedelta(minutes=30), default_pg_nccl_timeout=None)
    lengthen_timeouts(module)
    assert (module.default_pg_timeout, module.default_pg_nccl_timeout) == (timedelta(hours=1), None)


@pytest.mark.slow
@pytest.mark.process
def test_a_real_process_group_waits_longer_unless_the_script_says_how_long(attempt: Attempt) -> None:
    done = attempt.run("-c", GROUPS, env=attempt.env(RANK="0", LOCAL_RANK="0", **{GROUP_TIMEOUT: "4000"}))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["4000 4000", "77 77"]
