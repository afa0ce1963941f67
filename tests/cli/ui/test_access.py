"""Who may read the page: which host names are answered, and what the token does."""

from __future__ import annotations

import pytest

from supervisor.cli.ui.access import PageAccess, page_access
from supervisor.config.listening import ListenAddress
from supervisor.errors import SuperviseError

TOKEN = "correct horse battery"  # noqa: S105
FRESH = "made-at-this-start-0123456789"
LOOPBACK, ANY = ListenAddress("127.0.0.1", 9410), ListenAddress("0.0.0.0", 9410)  # noqa: S104


def loopback() -> PageAccess:
    return page_access(LOOPBACK, "", ("gpu-7",), fresh=FRESH)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9410", "localhost.", "127.0.0.1:9410", "127.9.9.9", "[::1]", "[::1]:8080", "localhost:1"]
)
def test_on_loopback_its_own_names_are_answered_through_any_port(host: str) -> None:
    assert loopback().is_host(host)


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "evil.example:9410", "localhost.evil.example", "localhost@evil.example", "127.0.0.1.nip.io", "gpu-7"),
        *("10.0.0.1", "[fe80::1]", "[::1", "::1", "a b", "localhost:", "localhost:99999999", "localhost/x", "0", "2130706433.x"),
    ],
)
def test_on_loopback_every_other_name_is_refused(host: str) -> None:
    assert not loopback().is_host(host)


def test_a_page_open_to_others_answers_addresses_and_its_own_names() -> None:
    access = page_access(ANY, TOKEN, ("gpu-7", "gpu-7.cluster.", ""), fresh=FRESH)
    for host in ("10.0.0.1:9410", "[2001:db8::1]", "gpu-7", "GPU-7.cluster:9410", "localhost"):
        assert access.is_host(host), host
    for host in ("evil.example", "xgpu-7", "gpu-7.evil.example", ""):
        assert not access.is_host(host), host


def test_a_page_reachable_from_other_machines_needs_a_token() -> None:
    with pytest.raises(SuperviseError, match=r"the page needs a token: 0\.0\.0\.0:9410 is reached from other machines") as caught:
        page_access(ANY, "", (), fresh=FRESH)
    assert "ui.token_file" in caught.value.hint
    with pytest.raises(SuperviseError, match="too short: 15 characters"):
        page_access(ANY, "x" * 15, (), fresh=FRESH)
    assert page_access(ANY, "x" * 16, (), fresh=FRESH).token


def test_a_reader_knows_the_token_or_has_the_cookie_made_from_it() -> None:
    access = page_access(LOOPBACK, TOKEN, (), fresh=FRESH)
    name, value = access.cookie
    assert access.is_reader(authorization=f"Bearer {TOKEN}", cookie="")
    assert access.is_reader(authorization=f"bearer   {TOKEN} ", cookie="")
    assert access.is_reader(authorization="", cookie=value)
    for authorization, cookie in (
        ("", ""),
        (TOKEN, ""),
        (f"Basic {TOKEN}", ""),
        ("Bearer ", ""),
        (f"Bearer {TOKEN}x", ""),
        ("", TOKEN),
        ("", name),
    ):
        assert not access.is_reader(authorization=authorization, cookie=cookie)
    assert TOKEN not in name + value
    other = page_access(LOOPBACK, TOKEN + "!", (), fresh=FRESH)
    assert name != other.cookie[0]
    assert not other.is_reader(authorization="", cookie=value)
    assert page_access(LOOPBACK, TOKEN, (), fresh=FRESH).cookie == (name, value), "a cookie outlives a restart"


def test_without_a_token_of_the_settings_a_fresh_one_is_needed_on_loopback_too() -> None:
    assert not loopback().is_reader(authorization="", cookie="")
    assert not loopback().is_token("")
    assert loopback().is_token(FRESH)
    assert loopback().is_reader(authorization=f"Bearer {FRESH}", cookie="")
    assert page_access(LOOPBACK, TOKEN, (), fresh=FRESH).is_token(TOKEN), "one of the settings stays"
