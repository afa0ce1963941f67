"""Steps for networks and collectives, in real jobs."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import two_links

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised, Surroundings

JOB = Path(__file__).parents[1] / "jobs" / "late_save.py"
COMMAND = ("torchrun", "--standalone", "--nproc-per-node=2", str(JOB), "5")

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_a_rank_that_saved_for_too_long_gets_a_longer_timeout_where_that_is_permitted(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*COMMAND, options=("--set", "network.allow=longer_timeout"))
    assert run.exit_code(deadline_s=100) == 0
    assert run.attempts() == 2
    assert "network (network.allow): longer_timeout may act" in run.stderr
    assert "process group timeout" in run.stderr
    assert run.stdout.count("done after a timeout of 9.0") == 2
    run.wait_for_nothing_left()


def test_without_permission_the_card_names_the_option(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*COMMAND)
    run.wait_for_line("Restarting as attempt 2", 100)
    assert "longer_timeout is not enabled: --set network.allow=longer_timeout" in " ".join(run.ask("why", "1").stdout.split())
    run.signal(signal.SIGTERM)
    assert run.exit_code(deadline_s=100) == 143
    run.wait_for_nothing_left()


#: Of a rank whose interface goes down, as NCCL prints it; the next attempt prints the interface that it is to use.
LOSES_ITS_LINK = """
import os, subprocess, sys
if os.environ["SUPERVISE_JOB_ATTEMPT"] == "1":
    subprocess.run(["ip", "link", "set", "va", "down"], check=True)
    sys.exit("node0:7:8 [0] NCCL WARN socketStartConnect: Connect to 10.9.0.2<55921> failed : No route to host")
print("uses", os.environ["NCCL_SOCKET_IFNAME"], os.environ["GLOO_SOCKET_IFNAME"])
"""


def test_a_rank_whose_interface_goes_down_uses_another_one(
    supervise: Callable[..., Supervised], surroundings: type[Surroundings], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOSES_ITS_LINK)
    ranks = {"MASTER_ADDR": two_links.NODE, "MASTER_PORT": "29500", "RANK": "1", "WORLD_SIZE": "2"}
    around = surroundings(prefix=two_links.inside())
    run = supervise("python", str(script), options=("--set", "network.allow=interface"), around=around, **ranks)
    assert run.exit_code(deadline_s=100) == 0
    assert "uses vc vc" in run.stdout
    assert "NCCL_SOCKET_IFNAME" in run.stderr
