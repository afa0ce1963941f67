"""Ports and static rounds over a real store of torch's."""

from __future__ import annotations

import queue
import socket
import threading
from typing import TYPE_CHECKING

import pytest
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # exported where the build has them

from supervisor.agent import rendezvous, round_agreement

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch.distributed import Store

DEADLINE_S = 30.0


@pytest.fixture
def store() -> Iterator[Store]:
    server = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # noqa: FBT003  positional in every version
    yield PrefixStore("run", server)
    del server


def never() -> bool:
    return False


def test_a_port_is_one_that_no_outgoing_connection_is_given(tmp_path: Path) -> None:
    ephemeral = tmp_path / "range"
    ephemeral.write_text("10000\t65000\n")
    assert all(65000 < rendezvous.free_port(ephemeral) < 65536 for _ in range(20))
    ephemeral.write_text("1024 65535")
    assert rendezvous.free_port(ephemeral) > 1023
    assert not 32768 <= rendezvous.free_port(tmp_path / "absent") <= 60999


def test_a_bound_port_is_not_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        here = taken.getsockname()[1]
        (tmp_path / "range").write_text("1 2")
        monkeypatch.setattr(rendezvous, "LOWEST_PORT", here)
        monkeypatch.setattr(rendezvous.random.SystemRandom, "sample", lambda _self, ports, _n: ports[:2])  # that one and the next
        assert rendezvous.free_port(tmp_path / "range") != here


def test_the_port_is_handed_over_and_a_stop_ends_the_wait(store: Store) -> None:
    with pytest.raises(round_agreement.AttemptCancelled):
        rendezvous.hand_over(store, None, lambda: True)
    served = rendezvous.serve_store("localhost")
    mine = rendezvous.hand_over(store, served, never)
    assert mine.port == served.port
    assert rendezvous.hand_over(store, None, never) == mine
    assert rendezvous.hand_over(rendezvous.static_store(store, 2), served, never).round == mine.round + 1


def test_a_peer_that_never_comes_is_waited_for_within_a_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "PEER_TIMEOUT_S", 0.1)
    with pytest.raises(TimeoutError, match="the port from the node of rank 0"):
        rendezvous.hand_over(store, None, never)


def test_a_static_round_begins_when_all_are_in_it_and_never_twice(store: Store) -> None:
    rounds: queue.Queue[tuple[int, int]] = queue.Queue()

    def enter(rank: int, last: int) -> None:
        client = PrefixStore("run", round_agreement.own_client(store))
        rounds.put((rank, rendezvous.enter_round(client, rank, 2, last=last, me=f"agent {rank}", cancelled=never)))

    for number in (1, 2, 3):
        late = threading.Thread(target=enter, args=(1, number - 1))
        late.start()
        with pytest.raises(queue.Empty):
            rounds.get(timeout=0.2)
        enter(0, number - 1)
        assert sorted(rounds.get(timeout=DEADLINE_S) for _ in range(2)) == [(0, number), (1, number)]
        late.join()
