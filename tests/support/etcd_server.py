"""A real etcd with its second API, which torch uses (Debian's package etcd-server)."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import urllib.request
from typing import TYPE_CHECKING

import pytest

from tests.support.ports import free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _is_healthy(port: int) -> bool:
    """Return whether it serves: it listens before it has chosen a leader, and answers nothing until then."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(json.load(answer)["health"] == "true")
    except OSError:  # nobody listens, or it says that it is not healthy (503)
        return False


@contextlib.contextmanager
def running(place: Path) -> Iterator[int]:
    """Run a server; yield its port. Skips the test where it is not installed."""
    program = shutil.which("etcd")
    if program is None:
        pytest.skip("the package etcd-server is not installed")
    port, peers = free_port(), free_port()
    clients, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
    words = [program, "--enable-v2", f"--data-dir={place}/etcd", f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}"]
    words += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}"]
    with (place / "etcd.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)  # noqa: S603  the program found above
    try:
        wait_for(lambda: _is_healthy(port), "etcd", 60, alive=lambda: process.poll() is None)
        yield port
    finally:
        process.terminate()
        process.wait(20)
