"""NCCL's own logs of a traced attempt: its warnings, transports and interface, from lines as public issues show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.classify.engine import classify
from supervisor.config import signatures
from supervisor.core.model import Cause, Evidence
from supervisor.observe.anchor_scanner import scanner
from supervisor.observe.ranks import nccl_logs

if TYPE_CHECKING:
    from pathlib import Path

CATALOGUE, _ = signatures.read()
PAIR = CATALOGUE, scanner(CATALOGUE.anchors)
# NVIDIA/nccl issues 367, 952, 1267, 1358 and 1814.
START = """node1:984:984 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to bond0
node1:984:984 [0] NCCL INFO Bootstrap : Using [0]bond0:172.36.134.184<0>
node1:984:984 [0] NCCL INFO NET/Socket : Using [0]ens7:10.128.0.31<0>
node1:984:985 [0] NCCL INFO comm 0x55f90cbfd740 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 30 commId 0x795b968dc454cfee - Init START
node1:984:985 [0] NCCL INFO Channel 00/02 :    0   1
node1:984:985 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/direct pointer
node1:984:985 [0] NCCL INFO Channel 03/0 : 15[7] -> 6[6] [send] via NET/IB/3/GDRDMA
"""
WARNING = (
    "node1:984:1150 [0] NCCL WARN NET/IB : Got completion from peer 10.1.0.7<55921> with status=12 opcode=1 len=0 vendor err 129 (Send) "
    "localGid ::ffff:29.87.4.221 remoteGids::ffff:29.87.88.182 hca mlx5_2\n"
)


def read(directory: Path) -> list[Evidence]:
    return list(nccl_logs.evidence(directory, {984: 3}, lambda: PAIR))


def figures(directory: Path) -> dict[str, str]:
    return {fact.name: fact.text for fact in read(directory) if fact.source == "nccl"}


def test_transports_and_the_interface_are_read_and_a_warning_names_its_rank_and_device(tmp_path: Path) -> None:
    (tmp_path / "nccl-node1-984.log").write_text(START + WARNING)
    assert figures(tmp_path) == {"transports": "NET/IB P2P", "interface": "bond0"}
    verdict = classify((Evidence("exit", "exit_code", "1", 3, 1.0), *read(tmp_path)))
    assert (verdict.cause, verdict.rank, dict(verdict.facts)["hca"]) == (Cause.NCCL_NETWORK, 3, "mlx5_2")


def test_of_a_long_log_both_ends_are_read_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_logs, "END_BYTES", 2000)
    middle = "node1:984:985 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via SHM/direct/direct\n" * 100
    padding = "node1:984:985 [0] NCCL INFO Connected all rings\n" * 50
    (tmp_path / "nccl-node1-984.log").write_text(START + padding + middle + padding + WARNING)
    assert figures(tmp_path)["transports"] == "NET/IB P2P"
    assert any(fact.claim is not None for fact in read(tmp_path))


@pytest.mark.parametrize("text", ["", "node1:1:1 [0] NCCL INFO Using network Socket\n", "\xff\x00" * 50])
def test_a_log_that_shows_nothing_is_no_evidence(tmp_path: Path, text: str) -> None:
    (tmp_path / "nccl-node1-1.log").write_text(text)
    assert read(tmp_path) == []
    assert list(nccl_logs.evidence(tmp_path / "none", {}, lambda: PAIR)) == []


def test_the_middle_of_a_long_log_gives_its_disk_back_while_nccl_writes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_logs, "MOST_DISK_BYTES", 1 << 20)
    log = tmp_path / "nccl-node1-984.log"
    with log.open("w") as file:
        file.write(START + "x" * (4 << 20) + "\n")
        file.flush()
        nccl_logs.bound(tmp_path)
        file.write(WARNING)
    assert log.stat().st_blocks * 512 < 1 << 20
    assert figures(tmp_path)["interface"] == "bond0"
    assert log.read_text().endswith(WARNING)
    short = tmp_path / "nccl-node1-985.log"
    short.write_text(START)
    nccl_logs.bound(tmp_path)
    assert short.read_text() == START
