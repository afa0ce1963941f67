"""Where a server listens: a port alone is loopback, an address opens it."""

from __future__ import annotations

import socket

import pytest

from supervisor.config.listening import ListenAddress, listen_address, listening_socket
from supervisor.errors import SuperviseError


@pytest.mark.parametrize(
    ("text", "host", "port", "is_loopback"),
    [
        ("9410", "127.0.0.1", 9410, True),
        (" 0 ", "127.0.0.1", 0, True),
        ("127.0.0.1:80", "127.0.0.1", 80, True),
        ("0.0.0.0:9410", "0.0.0.0", 9410, False),  # noqa: S104
        ("[::1]:9410", "::1", 9410, True),
        ("[::]:9410", "::", 9410, False),
    ],
)
def test_an_address_is_read(text: str, host: str, port: int, is_loopback: bool) -> None:  # noqa: FBT001
    address = listen_address(text, "ui.listen")
    assert (address.host, address.port, address.is_loopback) == (host, port, is_loopback)


def test_a_name_of_this_machine_is_an_address() -> None:
    assert listen_address("localhost:9410", "ui.listen").is_loopback


@pytest.mark.parametrize(
    "text", ["", "x", "65536", "99999", "-1", "1.2.3.4", ":80", "::1:80", "a b:80", "http://localhost:80", "80:", "[::1]", "\n"]
)
def test_a_text_that_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SuperviseError, match=r"no address to listen at: ui.listen") as caught:
        listen_address(text, "ui.listen")
    assert "0.0.0.0:9410" in caught.value.hint
    with pytest.raises(SuperviseError, match=r"no address to listen at: metrics.listen") as caught:
        listen_address(text, "metrics.listen")
    assert "0.0.0.0:9409" in caught.value.hint


def test_an_address_is_written_as_a_url_has_it() -> None:
    assert str(ListenAddress("::1", 80)) == "[::1]:80"
    assert str(ListenAddress("127.0.0.1", 0).with_port(7)) == "127.0.0.1:7"


def test_a_port_that_another_program_has_is_named_with_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(SuperviseError, match=r"cannot listen: 127.0.0.1:[0-9]+: Address already in use") as caught:
            listening_socket(ListenAddress("127.0.0.1", taken.getsockname()[1]), "ui.listen")
        assert "ui.listen" in caught.value.hint


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(SuperviseError, match=r"cannot listen: 192.0.2.1:0"):
        listening_socket(ListenAddress("192.0.2.1", 0), "ui.listen")


@pytest.mark.parametrize("text", ["no-such-host.invalid:9409", "no address"])
def test_a_wrong_word_of_the_command_line_is_64_and_one_of_a_file_78(text: str) -> None:
    for given, code in (({"exit_code": 64}, 64), ({}, 78)):
        with pytest.raises(SuperviseError, match=r"no address to listen at: metrics.listen") as caught:
            listen_address(text, "metrics.listen", **given)
        assert caught.value.exit_code == code
