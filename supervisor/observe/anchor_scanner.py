"""Finds the anchors of all signatures in a whole block of output at once.

hyperscan reads several GiB per CPU-second, however many literals there are, without Python's lock. Where it is not installed or does not
support the processor, the standard library's search takes its place: slower, with the same hits. Threads may share a scanner.

Compiling the database takes 6 MiB, and half of that is never given back; the database itself has 130 KiB. So a long-lived process lets a
child compile it (`made_apart`) and gets it through a pipe. No file is kept that others could write to.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from supervisor.classify.logs.scanner import PlainScanner
from supervisor.guardian import ownership
from supervisor.guardian.libc import return_free_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import hyperscan

    from supervisor.classify.logs.scanner import Scanner

#: The output after which the faster scanner is made: to search so much without it costs a third of what the making does.
PLAIN_BYTES = 128 * 1024


class HyperScanner:
    """A compiled database of literals, and scratch memory for each thread that scans with it."""

    def __init__(self, database: hyperscan.Database) -> None:
        """Take a database of block mode whose ids are the anchors' positions."""
        self._database = database
        self._of_thread = threading.local()

    def hits(self, block: bytes) -> list[tuple[int, int]]:
        """Return (index of the anchor, offset of its end) for all anchors in the block, by offset."""
        import hyperscan  # noqa: PLC0415  it is there: a database was made

        scratch = getattr(self._of_thread, "scratch", None)
        if scratch is None:  # hyperscan refuses to use one in two threads at a time
            scratch = self._of_thread.scratch = hyperscan.Scratch(self._database)
        hits: list[tuple[int, int]] = []

        def keep(index: int, _start: int, end: int, _flags: int, _context: object) -> None:
            hits.append((index, end))

        self._database.scan(block, match_event_handler=keep, scratch=scratch)
        return hits


class UpgradingScanner:
    """The standard library's search until a faster scanner is there: nobody waits for it, and it has the same hits.

    `improve` has the faster one made; it is called in a thread once there was so much output that the faster one is worth its making. Owns
    the child that makes it; `close` ends it, so that it does not outlive us.
    """

    def __init__(self, anchors: Sequence[str], improve: Callable[[UpgradingScanner], None]) -> None:
        """Take the anchors."""
        self._scanner: Scanner = PlainScanner(anchors)
        self._improve = improve
        self._until_better = PLAIN_BYTES
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False

    @property
    def now(self) -> Scanner:
        """The scanner that is used now."""
        return self._scanner

    def become(self, better: Scanner) -> None:
        """Use this one from now on. From any thread."""
        self._scanner = better

    def hits(self, block: bytes) -> Sequence[tuple[int, int]]:
        """Return the anchors in the block."""
        with self._lock:
            before, self._until_better = self._until_better, self._until_better - len(block)
        if before > 0 >= self._until_better:
            with contextlib.suppress(RuntimeError):  # no thread can be started: it stays the slower one
                threading.Thread(target=self._improve, args=(self,), name="scanner", daemon=True).start()
        return self._scanner.hits(block)

    def ask(self, argv: Sequence[str], asked: bytes, deadline_s: float) -> bytes:
        """Return what a child answers on its stdout. Raises OSError and subprocess.TimeoutExpired."""
        with self._lock:
            if self._closed:
                return b""
            child = self._child = ownership.started(
                lambda: subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # noqa: S603  our own words
            )
        try:
            return child.communicate(asked, timeout=deadline_s)[0]
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            raise

    def close(self) -> None:
        """End the child, where there is one."""
        with self._lock:
            self._closed, child = True, self._child
        if child is not None and child.poll() is None:
            child.kill()
            child.wait()

    @property
    def closed(self) -> bool:
        """Whether nothing better will come."""
        return self._closed


def scanner(anchors: Sequence[str]) -> Scanner:
    """Return the fastest scanner for these anchors that this machine has."""
    try:
        import hyperscan  # noqa: PLC0415  not everywhere
    except ImportError:
        return PlainScanner(anchors)
    expressions = [expression.encode() for expression in _expressions(anchors)]
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    try:
        database.compile(expressions=expressions, ids=list(range(len(expressions))), elements=len(expressions), flags=0)
    except hyperscan.error:  # no anchors at all, or a processor without SSSE3
        return PlainScanner(anchors)
    return HyperScanner(database)


def made_apart(anchors: Sequence[str], python: str = sys.executable) -> UpgradingScanner:
    """Return a scanner at once that becomes the fastest one once it is worth it, compiled by a child, an interpreter `python`."""

    def improve(meanwhile: UpgradingScanner) -> None:
        better = _compiled_apart(anchors, python, meanwhile)
        if not meanwhile.closed:
            meanwhile.become(better or scanner(anchors))
        return_free_memory()

    return UpgradingScanner(anchors, improve)


#: The program of the child. It gets our own path, so that it finds the very hyperscan that we would.
_COMPILE = """
import json, sys
asked = json.load(sys.stdin)
sys.path[:] = asked["path"]
import hyperscan
database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
texts = [text.encode() for text in asked["expressions"]]
database.compile(expressions=texts, ids=list(range(len(texts))), elements=len(texts), flags=0)
sys.stdout.buffer.write(hyperscan.dumpb(database))
"""
_COMPILE_DEADLINE_S = 30.0


def _compiled_apart(anchors: Sequence[str], python: str, meanwhile: UpgradingScanner) -> Scanner | None:
    """Have a child compile the database; None where it did not. hyperscan itself refuses a database that is cut off or altered."""
    asked = json.dumps({"path": sys.path, "expressions": _expressions(anchors)}).encode()
    # isolated and without site: whatever a user's environment adds to each interpreter's start is not wanted here
    argv = [python, "-I", "-S", "-c", _COMPILE]
    try:
        import hyperscan  # noqa: PLC0415  not everywhere

        return HyperScanner(hyperscan.loadb(meanwhile.ask(argv, asked, _COMPILE_DEADLINE_S), hyperscan.HS_MODE_BLOCK))
    except (ImportError, OSError, subprocess.SubprocessError):
        return None
    except hyperscan.error:
        return None


def _expressions(anchors: Sequence[str]) -> list[str]:
    """Return each anchor with every byte escaped, not as one of hyperscan's own literals: those end at a NUL."""
    return ["".join(f"\\x{byte:02x}" for byte in anchor.encode()) for anchor in anchors]
