"""What a connection had sent is void once another one stands for its node, also what came with the same bytes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from supervisor.cluster.server import CoordinatorServer


def test_the_later_lines_of_a_connection_that_is_dropped_are_not_taken() -> None:
    server: Any = object.__new__(CoordinatorServer)
    lines = SimpleNamespace(fileno=lambda: 5, messages=lambda: iter([b"the first", b"the second"]), peer="10.0.0.2")
    connection: Any = SimpleNamespace(is_refused=False, lines=lines)
    taken: list[bytes] = []

    def on_message(_connection: object, data: bytes) -> None:
        taken.append(data)
        del server._connections[5]  # noqa: SLF001  as where its node has opened another one

    server._connections, server._on_message = {5: connection}, on_message  # noqa: SLF001
    server._read(connection)  # noqa: SLF001
    assert taken == [b"the first"]
