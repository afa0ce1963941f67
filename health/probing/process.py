"""`python -P health/probing/process.py`: runs probes for its parent, which kills it when one hangs.

It reads the requests of messages.py on stdin and writes the answers to stdout. A probe that fails costs its own answer only. When stdin
ends the process ends at once with its children, also in the midst of a read: nobody would read the answer. It keeps a probe's session
if the request asks for a lasting one.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import threading
import time
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, NoReturn, cast

if __name__ == "__main__":
    # run by path. Not by way of sys.path: a user's own package `health` may be found there first
    _spec = PathFinder.find_spec("health", [str(Path(__file__).resolve().parents[2])])
    if _spec is None or _spec.loader is None:
        sys.exit(f"{__file__}: no package around it")
    sys.modules["health"] = module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["health"])

from health.model import Ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import Json, Reading
    from health.probing.messages import ProberAnswer, ProbeRequest
    from health.registry import Probe, ProbeSession


def main() -> None:
    """Answer requests until stdin ends."""
    requests: SimpleQueue[bytes | None] = SimpleQueue()
    out = os.dup(1)
    os.dup2(2, 1)  # a library's prints are not an answer
    threading.Thread(target=_listen, args=(requests,), name="requests", daemon=True).start()
    sessions: dict[str, ProbeSession] = {}
    _send(out, {"ready": True})
    while (line := requests.get()) is not None:
        request: ProbeRequest = json.loads(line)
        number, module = request["id"], request["module"]
        started = time.thread_time()
        try:
            for reading in _readings(module, Ask.from_json(request["ask"]), sessions):
                row: list[Json] = [reading.probe, reading.subject, reading.name, reading.value, reading.problem, reading.t or time.time()]
                _send(out, {"id": number, "reading": row})
            _send(out, {"id": number, "done": time.thread_time() - started})
        except Exception as error:  # noqa: BLE001  whatever a probe meets is its answer
            with contextlib.suppress(KeyError):
                sessions.pop(module).close()
            _send(out, {"id": number, "failed": f"{type(error).__name__}: {error}"[:500]})


def _readings(module: str, ask: Ask, sessions: dict[str, ProbeSession]) -> Iterator[Reading]:
    probe = cast("Probe", importlib.import_module(module))
    open_session = getattr(probe, "session", None)
    if not ask.lasting or open_session is None:
        return probe.read(ask)
    if module not in sessions:
        sessions[module] = open_session()
    return sessions[module].read(ask)


def _listen(requests: SimpleQueue[bytes | None]) -> None:
    """Hand requests on. Ends the process when the asker is gone: a thread of its own, because the other may hang in a driver."""
    for line in sys.stdin.buffer:
        requests.put(line)
    _end()


def _send(out: int, answer: ProberAnswer) -> None:
    left = memoryview(json.dumps(answer, separators=(",", ":")).encode("ascii") + b"\n")
    while left:
        try:
            left = left[os.write(out, left) :]
        except BrokenPipeError:
            _end()


def _end() -> NoReturn:
    """End at once, with what a probe started: the asker may be gone, and then nobody else ends that."""
    if os.getsid(0) == os.getpid():  # else the group has other processes: somebody runs this from a shell
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main()
