"""Writes this rank's collectives when the supervisor asks: its process groups, and what torch's flight recorder holds, as JSON.

A thread waits in read(2) of a FIFO, from the first process group on, and costs nothing meanwhile. Whoever asks writes a word into the FIFO;
the answer is a file beside it, whole or not there: the newest words, the groups as Python knows them, then a line for each recorder of
torch. Several may ask at once: an answer holds for each word in it. The thread holds the FIFO open for writing too, so that nothing
that is written is lost. It needs the GIL: while C code holds it, there is no answer. It takes no signal, and is in no list of `threading`.

Older torch has recorders under other names, or none (docs/explanation/hangs.md). Pickles are left alone: the supervisor would have to load
them.
"""

from __future__ import annotations

import os
import sys
from _thread import start_new_thread

from .layout import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .claim import ProcessIdentity

#: Functions of torch._C._distributed_c10d that return JSON: NCCL's recorder, and that of all other backends.
DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
_MOST_BYTES, _MOST_WORDS = 4096, 16


class CollectiveRecorder:
    """The thread of one process. `_fifo`: where it is asked, "" before it starts."""

    def __init__(self, identity: ProcessIdentity) -> None:
        self._identity = identity
        self._fifo = ""

    @property
    def threads(self) -> int:
        """How many threads of this process are ours."""
        return 1 if self._fifo else 0

    @quiet
    def start(self) -> None:
        """Begin to answer, once in the life of a process; never in a forked child, which is not the rank."""
        if self._fifo or not self._identity.enabled:
            return
        path = self._identity.path("collectives")
        os.mkfifo(path, 0o600)
        self._fifo = path
        start_new_thread(self._serve, ())

    @quiet
    def _serve(self) -> None:
        import signal  # noqa: PLC0415 - torch has it by now

        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        fd = os.open(self._fifo, os.O_RDWR | os.O_CLOEXEC)
        words: list[bytes] = []
        while True:
            words = [*words, *os.read(fd, _MOST_BYTES).split()][-_MOST_WORDS:]
            self._answer(words)

    @quiet
    def _answer(self, words: list[bytes]) -> None:
        import json  # noqa: PLC0415 - torch has it by now

        recorded = [text for text in (quiet(_dumped)(name) for name in DUMPS) if text]
        lines = [b" ".join(words), json.dumps({"groups": quiet(_groups)() or {}}).encode(), *recorded]
        path = self._fifo[: -len("fifo")] + "json"
        fd = os.open(path + ".half", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:  # noqa: PTH123 - pathlib costs 5 ms of start-up
            file.write(b"\n".join(lines))
        os.rename(path + ".half", path)  # noqa: PTH104 - see above


def _dumped(name: str) -> bytes | None:
    """Return what one recorder of torch holds; None where this torch has none of that name."""
    dump = getattr(sys.modules["torch._C._distributed_c10d"], name, None)
    return None if dump is None else dump().replace(b"\n", b" ")


def _groups() -> dict[str, dict[str, Any]]:
    """Return the process groups of this rank, by torch's name."""
    world = sys.modules["torch.distributed.distributed_c10d"]._world  # noqa: SLF001 - torch has no public list
    found = {}
    for group in list(world.pg_map):
        found[str(world.pg_names[group])] = {
            "ranks": sorted(world.pg_group_ranks[group]),
            "backend": str(world.pg_map[group][0]),
            "timeout_s": quiet(_timeout_s)(group),
        }
    return found


def _timeout_s(group: Any) -> float:  # noqa: ANN401 - torch is not imported here
    """Return the longest timeout of a group's backends."""
    backends = [group._get_backend(device) for device in group._device_types]  # noqa: SLF001 - as above
    return float(max(backend.options._timeout.total_seconds() for backend in backends))  # noqa: SLF001 - as above
