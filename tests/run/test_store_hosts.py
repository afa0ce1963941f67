"""The hosts of a list over real sockets: which of them serves torch's rendezvous, and who may not be of the list."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from supervisor.cluster.client import StoreAddress
from supervisor.cluster.follower import StorePlace
from supervisor.cluster.kept import KeptFile, KeptFor, KeptNode
from supervisor.cluster.model import STOP, ClusterDecision, ClusterRules, Epoch
from supervisor.cluster.node import NodeMemory
from supervisor.cluster.register import RegisterChanged, RegisterUnreachable, StoreRecord
from supervisor.errors import SuperviseError
from supervisor.knobs.host_list import HostList
from supervisor.run.store_hosts import StoreHosts, own_index
from tests.run.test_job_nodes import ID, Node
from tests.support.ports import free_ports
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RULES = ClusterRules(renew_s=0.1, hold_s=0.8, away_s=0.4, return_s=0.4)
ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


class Listed:
    """Three hosts on loopback."""

    def __init__(self, place: Path) -> None:
        self.place, self.warnings = place, list[str]()
        self.list = tuple((address, free_ports(2)) for address in ADDRESSES)  # a host's acceptor has the port after it
        self.hosts = {index: self.make(index) for index in range(3)}

    def make(self, index: int) -> StoreHosts:
        """Make a host, which serves from its `start` on."""
        return StoreHosts(HostList("job", self.list, ADDRESSES[index]), self.place / str(index), self.warnings.append)

    def options(self, index: int, of: int) -> bool:
        """Return whether one host has the options for another one that serves."""
        found = self.hosts[index].options()
        return found is not None and found[0] == f"--rdzv-endpoint={ADDRESSES[of]}:{self.list[of][1]}"

    def named(self, index: int) -> bool:
        """Return whether one host has the options for a host of the list."""
        return any(self.options(index, of) for of in range(len(ADDRESSES)))


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listed]:
    monkeypatch.setattr("supervisor.run.store_hosts.TURN_S", 4.0)  # a busy machine may cost a host a second
    listed = Listed(tmp_path)
    yield listed
    for host in listed.hosts.values():
        host.close()


def test_the_first_host_serves_and_the_next_one_where_it_is_gone_before_the_nodes_have_met(three: Listed) -> None:
    for host in three.hosts.values():
        host.start(RULES, "")
    wait_for(lambda: all(three.options(index, 0) for index in range(3)), "the first host to be named")
    assert three.hosts[0].options() == (f"--rdzv-endpoint={ADDRESSES[0]}:{three.list[0][1]}", "--rdzv-conf=is_host=1")
    three.hosts.pop(0).close()
    wait_for(lambda: three.options(1, 1) and three.options(2, 1), "the next host to be named")


def test_a_store_that_its_members_do_not_take_over_is_followed_until_none_can_be_left(three: Listed) -> None:
    for host in three.hosts.values():
        host.start(RULES, "")
    wait_for(lambda: three.named(0), "a host to be named")
    served = StoreRecord("store", "node", "127.0.0.9", 7, "key")
    wait_for(lambda: written(three.hosts[1], served), "the record of a store")
    wait_for(lambda: three.hosts[2].options() == (f"--rdzv-endpoint=127.0.0.9:{three.list[0][1]}", "--rdzv-conf=is_host=0"), "its host")
    wait_for(lambda: three.named(2), "a bid, as nobody renews it")


def test_a_run_that_a_decision_stopped_on_all_hosts_goes_on_when_they_are_started_again(three: Listed, tmp_path: Path) -> None:
    epoch, stop = Epoch(1, ("a/1", "b/1", "c/1"), "a/1", "token"), ClusterDecision(STOP)
    for host in three.hosts.values():
        host.start(RULES, "key")
    over = StoreRecord("store", "a/1", ADDRESSES[0], 7, "key", (epoch.row(), ("decision/1", stop.value())))
    wait_for(lambda: written(three.hosts[1], over), "the record of the end")
    three.hosts.pop(0).close()
    first, node = three.make(0), Node(tmp_path, "a")
    kept = KeptNode(KeptFor("run of a", ID), NodeMemory("a/1", epoch, "store", stop), StoreAddress("127.0.0.1", 7, "key"))
    KeptFile(node.place / "state" / "cluster" / "node.json", three.warnings.append).write(kept)
    node.nodes = node.fresh(StorePlace(first, first.host, first))
    node.nodes.take_over()
    three.hosts[0] = first
    wait_for(lambda: three.options(0, 0), "a bid of the first host")
    node.nodes.close("the test is over", lambda: None)


def test_a_job_that_is_requeued_to_another_host_and_back_is_served_there(tmp_path: Path) -> None:
    hosts = tuple((f"127.0.0.{number}", free_ports(2)) for number in range(1, 5))
    for requeued, places in enumerate([(0, 1, 2), (0, 1, 3), (0, 1, 2)]):
        listed = tuple(hosts[place] for place in places)
        life = [StoreHosts(HostList(f"7100.{requeued}", listed, hosts[place][0]), tmp_path / str(place), pytest.fail) for place in places]
        for host in life:
            host.start(RULES, "")
        wait_for(lambda life=life: all(host.options() for host in life), "a host to be named")  # type: ignore[misc]
        for host in life:
            host.close()


def written(host: StoreHosts, record: StoreRecord) -> bool:
    """Write a record; return whether nobody else did."""
    try:
        host.write(record.value(), host.read().version)
    except (RegisterChanged, RegisterUnreachable):  # a bid was renewed between the two, or no majority answered in time
        return False
    return True


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        hosts = tuple((address, port - 1) for address in ADDRESSES)
        with pytest.raises(SuperviseError, match=rf"port {port}: Address already in use"):
            StoreHosts(HostList("job", hosts, ADDRESSES[0]), tmp_path, lambda _: None)


def test_a_node_is_one_host_of_the_list_or_none() -> None:
    hosts = tuple((name, 29400) for name in (*ADDRESSES, socket.gethostname()))
    assert own_index(HostList("job", hosts, "127.0.0.2")) == 1
    assert own_index(HostList("job", hosts)) == 3
    assert own_index(HostList("job", (("192.0.2.1", 1), ("localhost", 1), ("192.0.2.2", 1)))) == 1
    assert own_index(HostList("job", hosts[:3], "192.0.2.7")) is None
    with pytest.raises(SuperviseError, match=r"127\.0\.0\.1, 127\.0\.0\.2, 127\.0\.0\.3 are all this node"):
        own_index(HostList("job", hosts[:3]))
