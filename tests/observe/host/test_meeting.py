"""Why the ranks did not meet: a name does not resolve, or another service answers at the port; otherwise no reason is given."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from torch.distributed import TCPStore

from supervisor.classify.engine import classify
from supervisor.core.model import Cause, Claim, Evidence
from supervisor.observe.host import meeting

if TYPE_CHECKING:
    from collections.abc import Iterator

NOWHERE = "nowhere-7.invalid"  # RFC 6761: no resolver knows a name below it


def claimed(host: str = "", port: int = 0, cause: Cause = Cause.RENDEZVOUS) -> Evidence:
    """What a log shows of a rank that did not reach the store."""
    fields = (("host", host), ("port", str(port))) if host else ()
    return Evidence("log", "rendezvous.client_timeout", "The client socket has timed out", claim=Claim(cause, 0.9), fields=fields)


def texts(*logged: Evidence, configured: tuple[str, int] | None = None) -> list[str]:
    """Return the sentences."""
    return [fact.text for fact in meeting.evidence("node-a", logged, configured)]


@contextmanager
def closer() -> Iterator[int]:
    """Take each connection and close it; give the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def close_each() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=close_each, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_an_unresolvable_name_is_reported_with_its_node_and_advice() -> None:
    (text,) = texts(claimed(NOWHERE, 29500))
    assert text.startswith(f"node-a cannot resolve the host name '{NOWHERE}', where the ranks are to meet (")
    assert "/etc/hosts" in text
    assert "--local-addr" in text


def test_a_blank_in_the_name_is_seen() -> None:
    assert "host name ' 127.0.0.1'" in texts(claimed(), configured=(" 127.0.0.1", 29500))[0]


def test_a_port_that_takes_connections_and_closes_them_is_no_store() -> None:
    with closer() as port:
        (text,) = texts(claimed(), configured=("127.0.0.1", port))
    assert text.startswith(f"something answers at 127.0.0.1:{port}, where the ranks are to meet, but it is not a store")


def test_an_ipv4_address_is_shown_as_one_whatever_the_socket_was() -> None:
    with closer() as port:
        (text,) = texts(claimed("::ffff:127.0.0.1", port), configured=("127.0.0.1", port))
    assert f"at 127.0.0.1:{port}," in text


def test_a_store_is_one_and_a_port_where_nobody_listens_is_none_of_this() -> None:
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # noqa: FBT003  positional in every version
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert texts(claimed("127.0.0.1", store.port), configured=("127.0.0.1", unused.getsockname()[1])) == []


def test_of_another_failure_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting.names, "read", lambda _ask: pytest.fail("asked"))
    assert texts(claimed(NOWHERE, 1, Cause.CUDA_OOM), configured=(NOWHERE, 1)) == []


def test_the_sentence_is_the_summary_of_a_failed_rendezvous_and_of_nothing_else() -> None:
    fact = Evidence("network", "meeting", "node-a cannot resolve the host name 'n7'")
    timeout = "torch.distributed.DistNetworkError: The client socket has timed out after 4000ms while trying to connect to (n7, 29500)."
    verdict = classify([fact, Evidence("error_file", "exception", timeout, rank=1)])
    assert (verdict.cause, verdict.summary, verdict.rank) == (Cause.RENDEZVOUS, fact.text, 1)
    assert verdict.because[0] == fact
    other = classify([fact, Evidence("error_file", "exception", "ValueError: 5", rank=1)])
    assert other.summary == "rank 1 raised ValueError: 5"
