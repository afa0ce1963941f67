"""Probes: each reads one source and yields readings. They alone do IO, and only in the disposable process (health/probing/process.py).

A probe is a module with `read(ask: Ask) -> Iterator[Reading]`. It yields as it reads, so that its readings before a hang are known.
One that keeps something open between two reads (a library's session, a cursor) also has `session() -> ` an object with the same `read`
and `close()`; a process that lasts keeps one. An unread value is a reading too, with a `problem` and no value.
"""
