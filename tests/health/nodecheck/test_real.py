"""Real ranks over real sockets: the check finds each injected fault and accuses nobody else, even on a loaded machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from health.nodecheck import report
from tests.support import preloaded

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[3]
#: A machine that is loaded ten times over takes that much longer; what is judged is who is named, not when.
PATIENT = ("--deadline", "240", "--trial-timeout", "20")


def _check(*arguments: str, ranks: int) -> tuple[dict[str, Any], int]:
    command = [sys.executable, "-P", str(ROOT / "health/nodecheck/__main__.py"), "--json", "--nproc-per-node", str(ranks), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=390, check=False, cwd="/")  # noqa: S603  ours
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.returncode


def _accused(report: dict[str, Any]) -> dict[str, str]:
    """Return all that each is accused of: on a loaded machine a rank may compute slowly before it dies, and both are reported."""
    accused: dict[str, str] = {}
    for row in report["results"]:
        if row["result"] in {"failed", "degraded"}:
            before = accused.get(row["subject"])
            accused[row["subject"]] = row["reason"] if before is None else f"{before} | {row['reason']}"
    return accused


def test_a_dying_rank_is_named() -> None:
    words = ("-m", "health.nodecheck", "--json", "--deadline", "240", "--rehearse", "die:1:1")
    done = preloaded.run(*words, ranks=2)  # how the command starts ranks of its own is held by test_start.py
    document, code = json.loads(done.stdout), done.returncode
    accused = _accused(document)
    assert set(accused) == {"rank:1"}, document["results"]
    assert "killed by SIGKILL" in accused["rank:1"]
    assert "env_nodes" not in {row["check"] for row in document["results"]}, "one node has nobody to differ from"
    assert code == report.UNFIT


@pytest.mark.slow
def test_a_dying_and_a_hanging_rank_are_named_within_the_deadline() -> None:
    document, code = _check("--deadline", "120", "--trial-timeout", "12", "--rehearse", "die:2:3", "--rehearse", "hang:1:5", ranks=5)
    accused = _accused(document)
    assert set(accused) == {"rank:1", "rank:2"}, document["results"]
    assert "killed by SIGKILL; last: round 3: matrix products" in accused["rank:2"]
    assert "stopped" in accused["rank:1"]
    assert "last: round 5: matrix products" in accused["rank:1"]
    assert all(why.startswith("rehearsal: ") for reasons in accused.values() for why in reasons.split(" | "))
    assert document["seconds"] < 125
    assert code == report.UNFIT


@pytest.mark.slow
def test_rank_0_that_hangs_is_named_by_the_next() -> None:
    document, code = _check("--deadline", "240", "--trial-timeout", "12", "--rehearse", "hang:0:1", ranks=3)
    assert set(_accused(document)) == {"rank:0"}
    assert code == report.UNFIT


@pytest.mark.slow
def test_eight_ranks_three_faults() -> None:
    faults = ("slow-compute:3:2.5", "fail:5:0.2", "slow-link:1-6:0.05")
    document, code = _check(*PATIENT, *(word for fault in faults for word in ("--rehearse", fault)), ranks=8)
    assert set(_accused(document)) == {"rank:3", "rank:5", "link:1-6"}
    assert code == report.UNFIT


@pytest.mark.slow
def test_eight_healthy_ranks_on_a_loaded_machine() -> None:
    with ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            load = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(load.kill)
        report, code = _check(*PATIENT, ranks=8)
    assert not _accused(report)
    assert code == 0
    assert report["results"][-1]["result"] == "ok"


@pytest.mark.slow
def test_under_torchrun() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "-m", "health.nodecheck", "--json"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(  # noqa: S603  ours
        [*command, *PATIENT, "--rehearse", "corrupt:2:0.5"], capture_output=True, text=True, timeout=390, check=False, env=environ
    )
    document = json.loads(done.stdout)
    assert set(_accused(document)) == {"rank:2"}
    assert "the sum of 1 and 1 is 4.0" in json.dumps(document)
    assert done.returncode == 1  # torchrun's own, for ranks that ended with 69


# --- one kernel, five hosts: a network namespace each, and one cable that is bad -------------------------------------------------------

HOSTS = 5


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)  # noqa: S603, S607  the system's


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Yield namespaces on one switch, 10.77.0.1 and on; between the second and the fourth a cable of its own that carries 100 Mbit/s."""
    names = [f"nc{os.getpid()}-{rank}" for rank in range(HOSTS)]
    switch = f"{names[0]}-s"
    texts: list[str] = []
    try:
        for name in (switch, *names):
            _ip("netns", "add", name)
            texts.append(name)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for rank, name in enumerate(names):
            _ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{rank}", "netns", switch)
            _ip("-n", switch, "link", "set", f"p{rank}", "master", "br0", "up")
            _ip("-n", name, "addr", "add", f"10.77.0.{rank + 1}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", names[1], "link", "add", "bad0", "type", "veth", "peer", "name", "bad0", "netns", names[3])
        for rank, other in ((1, 3), (3, 1)):
            _ip("-n", names[rank], "link", "set", "bad0", "up")
            _ip("-n", names[rank], "route", "add", f"10.77.0.{other + 1}/32", "dev", "bad0", "src", f"10.77.0.{rank + 1}")
            shape = ("tbf", "rate", "100mbit", "burst", "32kb", "latency", "400ms")
            _ip("netns", "exec", names[rank], "tc", "qdisc", "add", "dev", "bad0", "root", *shape)
    except (OSError, subprocess.CalledProcessError) as error:
        _remove(texts)
        pytest.skip(
            f"needs network namespaces, run as root with `ip` (Debian: apt-get install iproute2): {getattr(error, 'stderr', error)!r}"
        )
    yield names
    _remove(texts)


def _remove(names: list[str]) -> None:
    for name in names:
        _ip("netns", "del", name)


@pytest.mark.slow
def test_a_cable_that_really_is_slow(hosts: list[str]) -> None:
    document = ""
    with ExitStack() as stack:
        ranks = []
        for rank, name in enumerate(hosts):
            command = [sys.executable, "-P", str(ROOT / "health/nodecheck/__main__.py"), "--json", *PATIENT]
            command += ["--nnodes", str(HOSTS), "--node-rank", str(rank), "--master", "10.77.0.1:29600", "--nproc-per-node", "1"]
            environ = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0"}
            started = subprocess.Popen(["ip", "netns", "exec", name, *command], stdout=subprocess.PIPE, text=True, env=environ)  # noqa: S603, S607
            stack.callback(started.kill)
            ranks.append(started)
        for process in ranks:
            document += process.communicate(timeout=390)[0]
    accused = _accused(json.loads(document))
    assert set(accused) == {"link:1-3"}
    assert [rank.returncode for rank in ranks] == [report.UNFIT] * HOSTS
