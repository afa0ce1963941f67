"""A TCP proxy that does to a connection what networks and servers do: a table of faults, applied to the requests that they are for.

It stands before the port of a real server, and keeps each request that went through: (request line, bytes of its body). A fault acts
`times` times; the request line decides whether it acts.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from io import BufferedReader

RESET = "reset"  # RST after `after` bytes of the body
STALL = "stall"  # nothing any more, until the client gives up
TRUNCATE = "truncate"  # the answer ends after `after` bytes of its body
FLIP = "flip"  # a bit of the body flips on the way to the server
LOSE = "lose"  # the server does it, and its answer is lost
HOLD = "hold"  # the request waits, after `after` bytes of its body, until `release` is set
HOLD_ANSWER = "hold answer"  # the server has done it, and its answer waits


@dataclass
class Fault:
    """What happens to requests: those whose line `match` finds, with `header` in their head. `kind` is from above, or "503 SlowDown"."""

    kind: str
    match: str
    times: int = 1
    after: int = 0
    header: str = ""
    hit: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)


class Proxy:
    """Use as a context manager. `faults` may be changed at any time."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.faults: list[Fault] = []
        self.seen: list[tuple[str, int]] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        self.refuses = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        """Give the proxy, which listens already."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Let nobody in any more, and let go of who waits."""
        self._closed.set()
        self._listener.close()
        for fault in self.faults:
            fault.release.set()

    def body_bytes(self, match: str) -> int:
        """Sum the bodies of the requests whose line matches, as far as they came."""
        with self._lock:
            return sum(n_bytes for line, n_bytes in self.seen if re.search(match, line))

    def count(self, match: str) -> int:
        """Count the requests whose line matches."""
        with self._lock:
            return sum(1 for line, _ in self.seen if re.search(match, line))

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _fault_for(self, line: str, head: str) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.match, line) and fault.header in head:
                    fault.times -= 1
                    return fault
        return None

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), client:
            if self.refuses:
                _reset(client)
                return
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                reader, answers = client.makefile("rb"), server.makefile("rb")
                while self._one(client, server, reader, answers):
                    pass

    def _one(  # noqa: C901, PLR0911 -- what becomes of one request, from its begin to its end
        self, client: socket.socket, server: socket.socket, reader: BufferedReader, answers: BufferedReader
    ) -> bool:
        head = _head(reader)
        if self.refuses:
            _reset(client)
            return False
        line = head.split(b"\r\n", 1)[0].decode()
        length = _length(head)
        fault = self._fault_for(line, head.decode("latin-1").lower())
        with self._lock:
            row = len(self.seen)
            self.seen.append((line, 0))
        if fault is not None:
            if fault.kind not in (HOLD, HOLD_ANSWER):
                fault.hit.set()
            if fault.kind == STALL:
                self._closed.wait(60)
                return False
            if fault.kind == HOLD and not fault.after:
                fault.hit.set()
                fault.release.wait(60)
            if fault.kind[0].isdigit():
                return _answer(client, reader, head, length, fault.kind)
        asks = b"100-continue" in head.lower()
        server.sendall(re.sub(rb"(?i)\r\nexpect:[^\r]*", b"", head))
        if asks:
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self._forward(client, server, reader, length, fault, row):
            return False
        answer = _head(answers)
        body = _body(answers, answer) if not line.startswith("HEAD") else b""
        if fault is not None and fault.kind == HOLD_ANSWER:
            fault.hit.set()
            fault.release.wait(60)
        if fault is not None and fault.kind == LOSE:
            _reset(client)
            return False
        if fault is not None and fault.kind == TRUNCATE:
            client.sendall(answer + body[: fault.after])
            return False
        client.sendall(answer + body)
        return True

    def _forward(  # noqa: PLR0913, PLR0917 -- both ends, and what happens between them
        self, client: socket.socket, server: socket.socket, reader: BufferedReader, length: int, fault: Fault | None, row: int
    ) -> bool:
        done = 0
        while done < length:
            piece = reader.read1(min(65536, length - done))
            if not piece:
                return False
            if fault is not None and fault.kind == FLIP and done == 0:
                piece = bytes([piece[0] ^ 1]) + piece[1:]
            if fault is not None and fault.kind == RESET and done + len(piece) > fault.after:
                _reset(client)
                return False
            server.sendall(piece)
            done += len(piece)
            if fault is not None and fault.kind == HOLD and fault.after and done >= fault.after and not fault.hit.is_set():
                fault.hit.set()
                fault.release.wait(60)
            with self._lock:
                self.seen[row] = (self.seen[row][0], done)
        return not (fault is not None and fault.kind == RESET and done >= fault.after and _reset(client))


def _answer(client: socket.socket, reader: BufferedReader, head: bytes, length: int, kind: str) -> bool:
    status, _, code = kind.partition(" ")
    if b"100-continue" not in head.lower():
        reader.read(length)
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>made by the test</Message></Error>".encode()
    if head.startswith(b"HEAD"):
        body = b""
    client.sendall(
        f"HTTP/1.1 {status} No\r\nContent-Length: {len(body)}\r\nContent-Type: application/xml\r\nConnection: close\r\n\r\n".encode() + body
    )
    return False


def _head(reader: BufferedReader) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = reader.readline()
        if not line:
            raise EOFError
        head += line
        if head == b"HTTP/1.1 100 Continue\r\n":
            reader.readline()
            head = b""
    return head


def _body(answers: BufferedReader, head: bytes) -> bytes:
    if b"transfer-encoding: chunked" not in head.lower():
        return bytes(answers.read(_length(head)))
    body = b""
    while True:
        size = answers.readline()
        body += size + answers.read(int(size, 16) + 2)
        if int(size, 16) == 0:
            return body


def _length(head: bytes) -> int:
    match = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return int(match[1]) if match else 0


def _reset(client: socket.socket) -> bool:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    return True
