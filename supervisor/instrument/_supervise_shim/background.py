"""The shim's one thread in a rank: it answers the questions in a FIFO, and samples the place of the training thread.

It begins at the first process group or the first step. Between two things to do it waits in poll(2). It takes no signal, is in no list of
`threading`, and needs the GIL: while C code holds that, nothing is sampled and no question is answered. The asker writes a word into the
FIFO: `profile:NAME` names a request for a profile in the attempt's directory (profiles.py); any other word asks for the collectives
(recorder.py). The thread holds the FIFO open for writing too, so that nothing that is written is lost.
"""

from __future__ import annotations

import os
from _thread import start_new_thread
from time import monotonic_ns

from . import recorder
from .layout import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .claim import ProcessIdentity
    from .heartbeat import HeartbeatWriter

_MOST_BYTES, _MOST_WORDS = 4096, 16
PROFILE = b"profile:"
#: How often the functions in `seldom` are called.
SELDOM_NS = 10 * 10**9


class BackgroundThread:
    """The thread of one process. `_fifo`: where it is asked, "" before it starts.

    seldom: called every 10 s with the time, CLOCK_MONOTONIC ns.
    """

    def __init__(self, identity: ProcessIdentity, beat: HeartbeatWriter) -> None:
        self._identity = identity
        self._beat = beat
        self._fifo = ""
        self.seldom: list[Callable[[int], object]] = []

    @property
    def threads(self) -> int:
        """How many threads of this process are the shim's."""
        return 1 if self._fifo else 0

    @quiet
    def start(self) -> None:
        """Begin, once in the life of a process; never in a forked child, which is not the rank."""
        if self._fifo or not self._identity.enabled:
            return
        path = self._identity.path("collectives")
        os.mkfifo(path, 0o600)
        self._fifo = path
        start_new_thread(self._serve, ())

    @quiet
    def _serve(self) -> None:
        import select  # noqa: PLC0415 - torch has all of these by now
        import signal  # noqa: PLC0415

        from .profiles import Profiles  # noqa: PLC0415
        from .step_parts import StepParts  # noqa: PLC0415

        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        fd = os.open(self._fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        profiles, parts = Profiles(self._identity, self._beat), StepParts(self._beat)
        words: list[bytes] = []
        seldom_ns = 0
        while True:
            now = monotonic_ns()
            if now >= seldom_ns:
                seldom_ns = now + SELDOM_NS
                for function in self.seldom:
                    quiet(function)(now)
            wait_s = min(quiet(parts.sample)(now) or 1.0, quiet(profiles.sample)(now) or 1.0, 1.0)
            if not poll.poll(int(wait_s * 1000) + 1):
                continue
            new = os.read(fd, _MOST_BYTES).split()
            for word in new:
                if word.startswith(PROFILE):
                    quiet(profiles.begin)(word[len(PROFILE) :].decode("ascii"))
            words = [*words, *(word for word in new if not word.startswith(PROFILE))][-_MOST_WORDS:]
            if any(not word.startswith(PROFILE) for word in new):
                recorder.answer(self._fifo[: -len("fifo")] + "json", words)
