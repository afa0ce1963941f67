"""[metrics]: which addresses there are, and which are wrong before anything starts."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from supervisor.config import metrics_address
from supervisor.config.listening import listen_at
from supervisor.config.metrics_settings import MetricsSection
from supervisor.config.settings import Origin, Settings
from supervisor.errors import ExitCode, SuperviseError
from tests.support.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path


def settings(listen: str = "", textfile_dir: str = "", *, cwd: Path | None = None, flag: bool = True) -> Settings:
    origin = Origin("command line", "metrics.listen") if flag else Origin("file", "supervise.toml:3")
    origins = (("metrics.listen", origin), ("metrics.textfile_dir", origin))
    return replace(Settings(), metrics=MetricsSection(listen, textfile_dir), cwd=str(cwd or ""), origins=origins)


@pytest.mark.parametrize("text", ["65536", "9409x", ":9409", "http://0.0.0.0:9409", "no.such.host.invalid:9409"])
def test_a_text_that_is_no_address_is_an_error_with_a_hint(text: str) -> None:
    with pytest.raises(SuperviseError, match="no address to listen at") as raised:
        metrics_address.require_metrics(settings(text))
    assert raised.value.exit_code == ExitCode.USAGE, "a wrong value of a flag, whatever is wrong with it"
    with pytest.raises(SuperviseError) as raised:
        metrics_address.require_metrics(settings(text, flag=False))
    assert raised.value.exit_code == ExitCode.CONFIG


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(SuperviseError, match=r"cannot listen at 192\.0\.2\.7:9409: Cannot assign requested address"):
        metrics_address.require_metrics(settings("192.0.2.7:9409"))


def test_a_port_in_use_is_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        metrics_address.require_metrics(settings(str(other.getsockname()[1])))


def test_any_ipv6_address_is_any_ipv4_address_too() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("needs IPv6 on the loopback: sysctl net.ipv6.conf.lo.disable_ipv6=0")
    port = free_port()
    with listen_at(metrics_address.metrics_address(settings(f"[::]:{port}"))), socket.create_connection(("127.0.0.1", port), timeout=120):
        pass


def test_the_directory_of_the_textfile_must_be_there(tmp_path: Path) -> None:
    metrics_address.require_metrics(settings(textfile_dir=".", cwd=tmp_path))
    with pytest.raises(SuperviseError, match="no such directory: prom") as raised:
        metrics_address.require_metrics(settings(textfile_dir="prom", cwd=tmp_path))
    assert "mkdir -p prom" in raised.value.hint


def test_the_command_that_makes_a_missing_directory_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(SuperviseError) as caught:
        metrics_address.require_metrics(settings(textfile_dir="my dir; reboot", cwd=tmp_path))
    assert "`mkdir -p 'my dir; reboot'`" in caught.value.hint
