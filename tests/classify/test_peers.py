"""The address in a message, and whether it is the job's own service."""

from __future__ import annotations

import pytest

from supervisor.classify.engine import classify
from supervisor.classify.logs.match import read_text
from supervisor.classify.peers import is_local, is_own, peer_in
from supervisor.config import signatures
from supervisor.core.model import Cause

CATALOGUE, _ = signatures.read()


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("500 Server Error: Internal Server Error for url: http://127.0.0.1:8000/score?key=abc", "127.0.0.1:8000"),
        ("Server error '503 Service Unavailable' for url 'https://hub.example/api'", "hub.example:443"),
        ("for url: http://me:secret@10.0.0.7/score", "10.0.0.7:80"),
        ("HTTPConnectionPool(host='reward', port=9000): Max retries exceeded", "reward:9000"),
        ("[Errno 111] Connect call failed ('127.0.0.1', 8000)", "127.0.0.1:8000"),
        ("Cannot connect to host 127.0.0.1:8000 ssl:default [Connection refused]", "127.0.0.1:8000"),
        ("last error: UNKNOWN: ipv4:127.0.0.1:50051: Failed to connect to remote host", "127.0.0.1:50051"),
        ("Error 111 connecting to 127.0.0.1:6379. Connection refused.", "127.0.0.1:6379"),
        ("HTTP Error 500: Internal Server Error", ""),
    ],
)
def test_the_address_in_a_message(text: str, peer: str) -> None:
    assert peer_in(text) == peer


@pytest.mark.parametrize(
    "peer",
    ["127.0.0.1:8000", "localhost:1", "[::1]:80", "10.1.2.3:80", "192.168.0.9:9", "172.20.0.1:1", "reward:80", "r.ns.svc:1", "fd00::1"],
)
def test_loopback_and_private_addresses_are_the_jobs_own(peer: str) -> None:
    assert is_own(peer)


@pytest.mark.parametrize("peer", ["huggingface.co:443", "8.8.8.8:53", "172.32.0.1:1", "storage.example:80", "2001:db8::1"])
def test_an_address_of_the_world_is_not(peer: str) -> None:
    assert not is_own(peer)


def test_only_loopback_is_this_machine() -> None:
    assert is_local("127.0.0.1:8000")
    assert not is_local("10.1.2.3:80")


@pytest.mark.parametrize(
    ("raised", "own"),
    [
        ("requests.exceptions.HTTPError: 500 Server Error: Internal Server Error for url: http://127.0.0.1:8000/score", "this machine"),
        ("httpx.HTTPStatusError: Server error '502 Bad Gateway' for url 'http://10.0.0.7:8000/generate'", "a private network"),
        ("requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://hub.example/x", ""),
        ('botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "http://10.0.0.7:9000/bucket"', ""),
    ],
)
def test_a_store_in_a_private_network_is_a_store_all_the_same(raised: str, own: str) -> None:
    verdict = classify(read_text(f'Traceback (most recent call last):\n  File "t.py", line 1, in main\n    f()\n{raised}\n', CATALOGUE))
    assert verdict.cause is Cause.STORAGE_REMOTE
    assert dict(verdict.facts).get("own_service", "") == own
    assert dict(verdict.facts)["peer"]
