"""Two ranks, of which rank 0 waits for rank 1 in its own way, and rank 1 stands: `waits.py HOW DIRECTORY`. No process group is made."""

from __future__ import annotations

import fcntl
import glob
import math
import multiprocessing
import os
import queue
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

HOW, PLACE = sys.argv[1], Path(sys.argv[2])


def stand() -> None:
    """Do nothing for ever."""
    time.sleep(1e6)


def port() -> int:
    """Return the port at which rank 1 serves."""
    return int((PLACE / "port").read_text())


def file() -> None:
    """Ask whether a file is there."""
    part = PLACE / "part"
    while not part.exists():
        time.sleep(0.05)


def pattern() -> None:
    """Ask how many files there are."""
    while len(glob.glob(f"{PLACE}/part-*")) < 2:  # noqa: PTH207  as scripts do
        time.sleep(0.1)


def content() -> None:
    """Read a small file again and again."""
    flag = PLACE / "ready"
    while flag.read_text() != "go":
        time.sleep(0.1)


def connection() -> None:
    """Receive from rank 1."""
    socket.create_connection(("127.0.0.1", port())).recv(1)


def connection_in_turns() -> None:
    """Receive with a timeout, again and again."""
    link = socket.create_connection(("127.0.0.1", port()))
    link.settimeout(0.2)
    while True:
        try:
            link.recv(1)
        except TimeoutError:
            continue


def http() -> None:
    """Ask a server of rank 1 again and again."""
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port()}/")
        except urllib.error.HTTPError:
            time.sleep(0.1)


def thread_queue() -> None:
    """Ask a queue that nobody fills."""
    answers: queue.Queue[int] = queue.Queue()
    while True:
        try:
            answers.get(timeout=0.1)
        except queue.Empty:
            continue


def remote_queue() -> None:
    """Take from a queue that rank 1 serves."""
    manager: Any = queues(port())
    manager.connect()
    manager.answers().get()


def lock() -> None:
    """Wait in the kernel for a lock that rank 1 holds."""
    with (PLACE / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)


def lock_in_turns() -> None:
    """Try for a lock that rank 1 holds, again and again, as filelock does."""
    lock_file = PLACE / "lock"
    held = lock_file.open("a")
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
        lock_file.exists()


def store_wait() -> None:
    """Wait for a key of torch's store."""
    store(is_server=False).wait(["key"])


def store_get() -> None:
    """Get a key of torch's store that nobody sets."""
    store(is_server=False).get("key")


def own_queue() -> None:
    """Take from a queue that a child of its own was to fill: it is late itself."""
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    context.Process(target=stand, daemon=True).start()
    answers.get()


def computes() -> None:
    """Compute, and ask for a file in between."""
    part = PLACE / "part"
    while not part.exists():
        until = time.perf_counter() + 0.005
        while time.perf_counter() < until:
            math.sin(1.0)
        time.sleep(0.02)


def store(*, is_server: bool) -> Any:  # noqa: ANN401  torch is imported by those who need it
    """Return torch's store."""
    import torch.distributed as dist  # noqa: PLC0415

    return dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 2, is_server, wait_for_workers=False)


def queues(at: int) -> BaseManager:
    """Return the manager of a queue."""
    answers: queue.Queue[int] = queue.Queue()

    class Manager(BaseManager):
        pass

    Manager.register("answers", callable=lambda: answers)
    return Manager(("127.0.0.1", at), b"key")


class Refuses(BaseHTTPRequestHandler):
    """Answers that it is not there yet."""

    def do_GET(self) -> None:
        """Refuse."""
        self.send_error(404)

    def log_message(self, *_words: object) -> None:
        """Say nothing."""


def serve() -> object:
    """Serve what rank 0 waits for, and return what must stay open."""
    if HOW.startswith("lock"):
        held = (PLACE / "lock").open("w")
        fcntl.flock(held, fcntl.LOCK_EX)
        return held
    if HOW.startswith("store"):
        return store(is_server=True)
    if HOW == "remote_queue":
        served = queues(0).get_server()
        threading.Thread(target=served.serve_forever, daemon=True).start()
        return served, (PLACE / "port").write_text(str(served.address[1]))  # type: ignore[index]  # a pair, over TCP
    if HOW == "http":
        web = HTTPServer(("127.0.0.1", 0), Refuses)
        threading.Thread(target=web.serve_forever, daemon=True).start()
        return web, (PLACE / "port").write_text(str(web.server_port))
    server = socket.create_server(("127.0.0.1", 0))
    links: list[object] = [server]
    threading.Thread(target=lambda: links.append(server.accept()), daemon=True).start()
    (PLACE / "port").write_text(str(server.getsockname()[1]))
    return links


if os.environ["RANK"] == "1":
    kept = serve()
    (PLACE / "ready").touch()
    stand()
while not (PLACE / "ready").exists():
    time.sleep(0.01)
(PLACE / "begun").touch()
globals()[HOW]()
