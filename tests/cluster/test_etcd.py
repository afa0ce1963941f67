"""The register in a real etcd."""

from __future__ import annotations

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
