"""Where a rank stands is asked at the address that it showed: of whichever group, after a fork, and over several hosts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from checkpointing.training import whereabouts

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Shows its address, leaves a forked child, and waits for its end.
FORKS = """
import os, sys, time
from checkpointing.training import whereabouts
from tests.checkpointing.training.test_whereabouts import Store
store = Store()
whereabouts.show(store, 1)
child = os.fork()
if not child:
    time.sleep(60)
    os._exit(0)
print(child, store.get("checkpointing/whereabouts/1").decode(), flush=True)
sys.stdin.read()
"""


class Store:
    """As much of torch's store as is used."""

    def __init__(self, **held: str) -> None:
        self.held = {f"checkpointing/whereabouts/{key.removeprefix('rank_')}": text.encode() for key, text in held.items()}

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether it holds all."""
        return all(key in self.held for key in keys)

    def get(self, key: str) -> bytes:
        """Return what it holds."""
        return self.held[key]

    def set(self, key: str, text: str) -> None:
        """Hold it."""
        self.held[key] = text.encode()


def test_each_store_gets_the_address_of_one_listener() -> None:
    stores = [Store() for _ in range(3)]
    for store in stores:
        whereabouts.show(store, 4)
        assert "test_whereabouts.py:" in whereabouts.ask(store, 4)[1]
    assert len({store.get("checkpointing/whereabouts/4") for store in stores}) == 1


@pytest.mark.process
def test_a_forked_child_does_not_keep_the_port_of_a_rank_that_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as rank:  # noqa: S603
        assert rank.stdout is not None
        child, _, address = rank.stdout.readline().strip().partition(" ")
        try:
            assert whereabouts.ask(Store(rank_1=address), 1)[1]
            rank.kill()
            rank.wait()
            assert whereabouts.ask(Store(rank_1=address), 1) == ("", "its process is gone", "")
        finally:
            os.kill(int(child), signal.SIGKILL)


def test_a_rank_that_knows_its_host_by_a_loopback_address_is_asked_at_master_addr(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's /etc/hosts gives a host's own name the address 127.0.1.1, where another host finds itself."""
    listener = socket.create_server(("127.0.0.9", 0))
    answering = threading.Thread(target=whereabouts._answer_all, args=(listener, "secret", threading.get_ident()), daemon=True)  # noqa: SLF001
    answering.start()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.9")
    assert "test_whereabouts.py:" in whereabouts.ask(Store(rank_0=f"127.0.1.1 {listener.getsockname()[1]} secret"), 0)[1]
