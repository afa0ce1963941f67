"""The register in a real etcd."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.cluster.etcd import EtcdRegister
from supervisor.cluster.register import RegisterChanged, Registered, RegisterUnreachable
from tests.support import etcd_server
from tests.support.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.process
def test_a_value_is_replaced_by_who_names_its_version_alone(tmp_path: Path) -> None:
    with etcd_server.running(tmp_path) as port:
        one, two = (EtcdRegister(f"127.0.0.1:{port}", "job/1", {}) for _ in range(2))
        assert one.read() == Registered(0, "")
        first = one.write('{"ü": "&=%"}', 0)
        with pytest.raises(RegisterChanged):
            two.write("also the first", 0)
        assert two.read() == Registered(first, '{"ü": "&=%"}')
        second = two.write("same", first)
        third = two.write("same", second)
        assert first < second < third, "a value that is written again has another version"
        with pytest.raises(RegisterChanged):
            one.write("late", first)
        assert one.read() == Registered(third, "same")
        assert EtcdRegister(f"127.0.0.1:{port}", "job/2", {}).read() == Registered(0, ""), "each job has its own"
        other = EtcdRegister(f"127.0.0.1:{port}", "job/1", {"protocol": "https", "ca_cert": str(tmp_path / "none.pem")})
        with pytest.raises(RegisterUnreachable, match="No such file"):
            other.read()


def test_an_etcd_that_is_not_there_is_unreachable_at_once_and_named() -> None:
    port, began = free_port(), time.monotonic()
    register = EtcdRegister(f"127.0.0.1:{port}", "job", {})
    for ask in (register.read, lambda: register.write("x", 0)):
        with pytest.raises(RegisterUnreachable, match=f"etcd at 127.0.0.1:{port}"):
            ask()
    assert time.monotonic() - began < 5.0


def test_a_name_that_no_name_server_answers_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    is_answered, real = threading.Event(), socket.getaddrinfo

    def lookup(_host: str, port: int, *more: int) -> object:
        is_answered.wait(60)
        return real("127.0.0.1", port, *more)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    register, began = EtcdRegister(f"etcd.example:{free_port()}", "job", {}), time.monotonic()
    with pytest.raises(RegisterUnreachable, match="no answer within"):
        register.read()
    for _ in range(20):  # each of them at once, and without a thread of its own
        with pytest.raises(RegisterUnreachable, match="still under way"):
            register.write("x", 0)
    assert time.monotonic() - began < 20.0
    is_answered.set()
    register._thread.join(20)  # type: ignore[union-attr]  # noqa: SLF001  its end is awaited
    with pytest.raises(RegisterUnreachable, match="Connection refused"):
        register.read()
