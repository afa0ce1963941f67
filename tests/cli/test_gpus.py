"""The ledger of GPUs: its contents after restarts, torn lines and several writers, and the commands that read and change it."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.config import loading
from supervisor.config.policy import to_policy
from supervisor.config.settings import Settings
from supervisor.core.model import Launcher
from supervisor.job import identity
from supervisor.node.gpu_quarantine import GpuQuarantine, QuarantinedGpu
from tests.support import preloaded

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

DAY_S = 86_400.0
A, B = "GPU-aaaa", "GPU-bbbb"


def entry(uuid: str = A, pci: str = "0000:3b:00.0", t: float = 1000.0, reason: str = "xid 79") -> QuarantinedGpu:
    return QuarantinedGpu(uuid, pci, reason, "NVRM: Xid (PCI:0000:3b:00): 79", t, "bert", "run-1")


@pytest.fixture
def ledger(tmp_path: Path) -> GpuQuarantine:
    return GpuQuarantine(tmp_path, "node")


def test_a_gpu_is_out_of_use_for_whoever_opens_the_ledger_until_the_days_are_over(ledger: GpuQuarantine, tmp_path: Path) -> None:
    assert ledger.held(1000.0) == ()
    ledger.quarantine(entry())
    assert GpuQuarantine(tmp_path, "node").held(1000.0 + 6.9 * DAY_S) == (entry(),)
    assert GpuQuarantine(tmp_path, "node").held(1000.0 + 7 * DAY_S) == ()
    assert GpuQuarantine(tmp_path, "another").held(1000.0) == ()
    assert ledger.path == tmp_path / ".gpus" / "node.jsonl"
    assert ledger.path.stat().st_mode & 0o777 == 0o600


def test_the_newest_row_of_a_gpu_holds_and_one_without_a_uuid_goes_by_its_address(ledger: GpuQuarantine) -> None:
    unnamed = entry(uuid="", pci="0000:5e:00.0")
    for row in (entry(), unnamed, entry(t=2000.0, reason="xid 48")):
        ledger.quarantine(row)
    assert ledger.held(2000.0) == (unnamed, entry(t=2000.0, reason="xid 48"))


def test_a_cleared_gpu_is_free_and_may_fail_again(ledger: GpuQuarantine) -> None:
    ledger.quarantine(entry(A))
    ledger.quarantine(entry(B))
    assert [freed.uuid for freed in ledger.clear(B, 1001.0)] == [B]
    assert ledger.clear(B, 1001.0) == ()
    assert [held.uuid for held in ledger.held(1001.0)] == [A]
    ledger.quarantine(entry(B, t=1002.0))
    assert len(ledger.clear("all", 1003.0)) == 2
    assert ledger.held(1003.0) == ()


@pytest.mark.parametrize("torn", [b'{"v": 1, "uuid": "GPU-to', b"\0" * 100, b'{"v": 1}\n[]\n{"v": 99, "uuid": "GPU-x"}\n' + b"[" * 99_999])
def test_a_torn_or_foreign_line_costs_itself_alone(ledger: GpuQuarantine, torn: bytes) -> None:
    ledger.quarantine(entry(A))
    with ledger.path.open("ab") as file:
        file.write(torn)
    ledger.quarantine(entry(B))
    assert [held.uuid for held in ledger.held(1000.0)] == [A, B]


def test_secrets_are_redacted_in_the_ledger(ledger: GpuQuarantine) -> None:
    ledger.quarantine(QuarantinedGpu(A, "", "xid", "train.py --api-key=sk-12345678901234567890", 1000.0, "bert", "r"))
    assert "sk-12345678901234567890" not in ledger.path.read_text()


def fill(root: Path, name: str) -> None:
    mine = GpuQuarantine(root, "node")
    for number in range(50):
        mine.quarantine(entry(f"GPU-{name}-{number}"))


@pytest.mark.slow
@pytest.mark.process
def test_several_supervisors_of_one_host_write_at_once(ledger: GpuQuarantine, tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=fill, args=(tmp_path, name)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    assert len(ledger.held(1000.0)) == 150


def supervise(place: Path, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    environ = {"PATH": path + os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return preloaded.command_text(*words, cwd=place, environ=environ)


@pytest.mark.process
def test_a_person_sees_why_a_gpu_is_out_of_use_and_puts_it_back(tmp_path: Path) -> None:
    gpu_quarantine = GpuQuarantine(tmp_path / "state", identity.node_name())
    gpu_quarantine.quarantine(entry(A, t=time.time()))
    options = ("--state-dir", str(tmp_path / "state"))
    shown = supervise(tmp_path, "nodes", "gpus", *options)
    assert shown.returncode == 0, shown.stderr
    assert A in shown.stdout
    assert "xid 79" in shown.stdout
    assert f"supervise nodes clear --state-dir {tmp_path / 'state'} UUID|all" in shown.stdout
    (row,) = json.loads(supervise(tmp_path, "nodes", "gpus", "--json", *options).stdout)["gpus"]
    assert (row["uuid"], row["in_use"], row["job"]) == (A, False, "bert")
    wrong = supervise(tmp_path, "nodes", "clear", B, *options)
    assert (wrong.returncode, A in wrong.stderr) == (64, True)
    assert "back in use" in supervise(tmp_path, "nodes", "clear", A, *options).stdout
    assert "none is out of use" in supervise(tmp_path, "nodes", "gpus", *options).stdout


def test_the_policy_names_the_clear_command_with_its_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    elsewhere = loading.load({"job.state_dir": "/scratch/a b"}, {}, tmp_path, None)
    assert to_policy(elsewhere, Launcher.ELASTIC).clears == "supervise nodes clear --state-dir '/scratch/a b'"
    assert to_policy(Settings(), Launcher.ELASTIC).clears == "supervise nodes clear"
