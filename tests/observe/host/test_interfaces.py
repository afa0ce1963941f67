"""Which interface leads to the other nodes: real sockets on loopback, and real interfaces in a network namespace where that may be made."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from supervisor.observe.host import interfaces
from supervisor.observe.host.interfaces import Interface, InterfaceWatch
from tests.support import two_links

ROOT = Path(__file__).resolve().parents[3]
#: Refused at once: nobody listens there, and the host answers.
HERE, NOWHERE = ("127.0.0.1", 9), ("192.0.2.1", 9)  # TEST-NET-1 of RFC 5737

LOOK = """
import subprocess
from supervisor.observe.host.interfaces import InterfaceWatch
watch = InterfaceWatch(["10.9.0.2:29500"], {})
watch._look()
def show(environ=()):
    rows = [dict(fact.fields) for fact in watch.evidence(dict(environ))]
    print(*sorted(f"{row['name']}:{row['state']}:{row['reaches']}{':used' * ('used' in row)}" for row in rows))
show()
subprocess.run(["ip", "link", "set", "va", "down"], check=True)
show()
show({"NCCL_SOCKET_IFNAME": "vc"}.items())
show({"NCCL_SOCKET_IFNAME": "gone0"}.items())
other = InterfaceWatch((), {})
rows = [dict(fact.fields) for fact in other.evidence({}, "va", ["10.9.0.2", "10.8.0.1", "node7"])]
print(*sorted(f"{row['name']}:{row['reaches']}" for row in rows))
subprocess.run(["ip", "link", "delete", "va"], check=True)
show()
"""


@pytest.mark.process
def test_an_interface_that_goes_down_is_known_to_have_been_used_and_another_reaches_the_node() -> None:
    words = [*two_links.inside(), sys.executable, "-c", LOOK]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603  words of our own
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "va:up:all:used vc:up:all",
        "va:down:none:used vc:up:all",
        "va:down:none vc:up:all:used",
        "gone0:missing::used va:down:none vc:up:all",
        "va:none vc:all",  # of what NCCL's log names, without this node's own address
        "va:down:none:used vc:up:none",  # the other node's end went with it
    ]


def test_a_refused_connection_reaches_the_host_and_no_answer_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "CONNECT_S", 0.2)
    loopback = Interface("lo", is_up=True, ipv4="127.0.0.1")
    assert interfaces._reached([loopback], [HERE]) == {"lo": 1}  # noqa: SLF001  the connection itself
    assert interfaces._reached([loopback], [HERE, NOWHERE])["lo"] == 1  # noqa: SLF001  as above


@pytest.mark.parametrize(
    ("named", "used"),
    [("eth1", "eth1"), ("eth", "eth0"), ("^eth", "ib0"), ("=eth0,ib0", "ib0"), ("bond7", "bond7"), ("^eth,ib", "")],
)
def test_which_interface_a_variable_names(named: str, used: str) -> None:
    there = [Interface("eth0", is_up=named != "=eth0,ib0", ipv4=""), Interface("eth1", is_up=True, ipv4=""), Interface("ib0", True, "")]  # noqa: FBT003
    assert interfaces._used(there, named) == used  # noqa: SLF001  as above


def test_a_job_without_other_nodes_says_nothing_of_interfaces() -> None:
    watch = InterfaceWatch((), {})
    watch.begin()
    assert watch.evidence({}) == ()
    assert [dict(fact.fields)["used"] for fact in watch.evidence({}, "gone0") if "used" in dict(fact.fields)] == ["yes"]


def test_an_attempt_begins_where_no_thread_can_be_had_for_the_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders may use up the limit on processes for a moment, also when the next attempt begins."""
    monkeypatch.setattr(threading.Thread, "start", MagicMock(side_effect=RuntimeError("can't start new thread")))
    InterfaceWatch(["127.0.0.1:29500"], {}).begin()
