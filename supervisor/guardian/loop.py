"""The guardian's main loop: it carries out the supervisor's requests, and ends the job when the supervisor dies.

After the supervisor's death everything that descends from here is ended within 4 s; after `finish` nothing is killed. The guardian ignores
the signals that a terminal or a scheduler sends to the whole group. It uses handlers for that and never SIG_IGN, which an exec would
pass on to the job.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from . import process_tree, protocol
from .children import Children
from .last_word import LastWord
from .libc import become_subreaper, keep_little_memory
from .link import GuardianLink
from .outputs import Outputs
from .ownership import TreeTermination
from .reactor import Reactor
from .streams import DrainRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .messages import GuardianRequest, ProcessesEnded, SurvivorsFound
    from .streams import OutputStream

IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE)
#: After the supervisor's death: the time between TERM and KILL, and when all must be over, from its death on (4 s are promised).
TERM_GRACE_S = 1.0
GONE_WITHIN_S = 3.5
#: The time for a save that is requested at the supervisor's death; not more, for all must be over after GONE_WITHIN_S.
SAVE_GRACE_S = 2.0
LOG_FLUSH_S = 5.0  # the time in which the disk may take the end of the logs; nobody waits
EXIT_BUG = 70
_FIRST_TICK_S = 0.01
_LAST_TICK_S = 0.1
_MAX_SURVIVORS = 200


class GuardianOptions:
    """The command line: `--link-fd N --ignored 1,2 --log-bytes N`, all of them required."""

    __slots__ = ("ignored", "link_fd", "log_bytes")

    def __init__(self, argv: list[str]) -> None:
        given = dict(zip(argv[::2], argv[1::2], strict=True))
        self.link_fd = int(given["--link-fd"])
        self.ignored = frozenset(int(number) for number in given["--ignored"].split(",") if number)
        self.log_bytes = int(given["--log-bytes"])


class GuardianLoop:
    """The main thread: which endings are under way, and whether a supervisor still decides."""

    def __init__(self, options: GuardianOptions) -> None:
        self._options = options
        self._reactor = Reactor()
        self._link = GuardianLink(self._reactor, options.link_fd, self._on_request, self._on_supervisor_gone)
        self._outputs = Outputs(self._reactor, self._link.send, self._link.read, options.log_bytes)
        self._children = Children(self._reactor, self._link.send, self._outputs, options.ignored)
        self._last_word = LastWord()
        self._endings: dict[str, tuple[TreeTermination, Callable[[TreeTermination], None]]] = {}  # by their target: orphans or all
        self._stuck: frozenset[tuple[int, int]] = frozenset()
        self._tick_s = _FIRST_TICK_S
        self._finishing = False
        self._gone_at = 0.0
        self._wants_save = False
        self._signals = -1
        self._received_at: dict[int, float] = {}

    def run(self) -> None:
        """Serve until the process ends."""
        self._signals, wakeup = os.pipe()
        os.set_blocking(self._signals, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        for signum in (*IGNORED_SIGNALS, signal.SIGCHLD, signal.SIGWINCH):
            signal.signal(signum, _ignore)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        self._reactor.watch(self._signals, self._read_signals)
        self._link.start()
        self._link.send({"ev": "hello", "pid": os.getpid()})
        self._reactor.run()

    def _read_signals(self) -> None:
        try:
            received = os.read(self._signals, 4096)
        except BlockingIOError:
            return
        self._received_at.update(dict.fromkeys(received, time.monotonic()))
        if signal.SIGCHLD in received:
            self._children.reap()
            if self._endings:
                self._tick_soon(_FIRST_TICK_S)
        if signal.SIGWINCH in received:
            self._outputs.drain.resize(lambda: self._reactor.post(lambda: self._children.signal(signal.SIGWINCH, to_all=False)))

    def _on_request(self, message: GuardianRequest, fds: list[int]) -> None:  # noqa: C901  a row for each kind
        self._read_signals()  # first: a signal that came before this request counts for the command that it names
        try:
            if message["do"] == "spawn":
                self._endings.clear()  # they were ordered before this command, and would hit it
                self._children.spawn(message, fds)
            elif message["do"] == "log_dir":
                self._outputs.turn_to(int(message["attempt"]), str(message["log_dir"]))
            elif message["do"] == "standby":
                self._children.standby.prepare(message)
            elif message["do"] == "drop_standby":
                self._children.standby.drop()
            elif message["do"] == "signal":
                signum = int(message["signum"])
                self._children.signal(signum, to_all=message["to"] == "all", group_received_at=self._received_at.get(signum, 0.0))
            elif message["do"] == "end":
                self._end(str(message["what"]), int(message["signum"]), float(message["grace_s"]))
            elif message["do"] == "tails":
                self._outputs.send_tails(message["id"], message.get("attempt"))
            elif message["do"] == "last_word":
                self._last_word.prepare(message)
            elif message["do"] == "finish":
                self._finish()
            else:
                raise ValueError(message["do"])  # noqa: TRY301 - refused like a malformed one
        except (KeyError, TypeError, ValueError) as error:
            self._link.send({"ev": "refused", "do": str(message.get("do")), "text": repr(error)})
        finally:
            protocol.close(fds)

    # --- ending processes ---

    def _end(self, scope: str, signum: int, grace_s: float) -> None:
        """End orphans, the command or all. A second request hurries the first, and both have one answer; all takes the others over."""
        if scope not in {"orphans", "command", "all"}:
            raise ValueError(scope)
        running = self._endings.get("all") or self._endings.get(scope)
        if running is not None:
            running[0].hurry(time.monotonic(), signum, grace_s)
            self._tick_soon(0.0)
            return
        if scope == "all":
            self._endings.clear()
        self._begin(scope, signum, grace_s, None, lambda ended: self._answer_end(scope, ended))

    def _begin(self, scope: str, signum: int, grace_s: float, hard_s: float | None, done: Callable[[TreeTermination], None]) -> None:
        ending = TreeTermination(os.getpid(), signum, grace_s, hard_s, given_up=self._stuck, detach_requests=self._children.detach_requests)
        self._endings[scope] = (ending, done)
        self._tick_soon(0.0)

    def _tick_soon(self, within_s: float) -> None:
        self._tick_s = _FIRST_TICK_S
        self._reactor.call_at("endings", time.monotonic() + within_s, self._tick)

    def _tick(self) -> None:
        self._children.reap()
        began = time.monotonic()
        for scope, (ending, done) in list(self._endings.items()):
            spare = self._spared(scope)
            if ending.tick(began, spare, childless=self._children.childless or process_tree.has_only(spare)):
                del self._endings[scope]
                self._stuck = ending.stuck
                done(ending)
        if self._endings:
            # a scan of a large machine costs tens of milliseconds: never spend more than half of the time on it
            pause = max(self._tick_s, time.monotonic() - began)
            self._reactor.call_at("endings", time.monotonic() + pause, self._tick)
            self._tick_s = min(_LAST_TICK_S, 1.5 * self._tick_s)

    def _spared(self, scope: str) -> set[int]:
        """Return the pids that are spared, each with its descendants. A standby is not a process of the attempt."""
        if scope == "all":
            return set()
        return self._children.standby.pids | (self._children.pids if scope == "orphans" else set())

    def _answer_end(self, scope: str, ending: TreeTermination) -> None:
        answer: ProcessesEnded = {
            "ev": "ended",
            "what": scope,
            "killed": len(ending.signalled),
            "left": [process.row() for process in ending.left],
        }
        self._outputs.flush_then(lambda: self._send_last(answer), within_s=0.5)

    def _send_last(self, answer: ProcessesEnded | SurvivorsFound) -> None:
        self._outputs.send_losses()
        self._outputs.send_unfinished_line()
        self._link.send(answer)

    # --- the end of the run ---

    def _finish(self) -> None:
        """The run is over: kill nothing."""
        self._finishing = True
        self._endings.clear()
        self._children.standby.drop()
        self._outputs.flush_then(self._send_survivors, within_s=1.0)

    def _send_survivors(self) -> None:
        survivors = process_tree.below(os.getpid(), process_tree.snapshot())[:_MAX_SURVIVORS]
        self._send_last(
            {
                "ev": "survivors",
                "pids": [{"pid": process_stat.pid, "cmd": process_tree.command_line(process_stat.pid)} for process_stat in survivors],
            }
        )
        # A survivor's output is read until the survivor ends, and a slow reader still gets everything: both as without us.
        self._outputs.drain.sync(DrainRequest(_leave, pass_s=float("inf"), log_s=LOG_FLUSH_S, to_the_end=True))

    def _on_supervisor_gone(self) -> None:
        """End everything, unless the run was declared over: nobody is left to decide anything else."""
        if self._finishing:
            return
        self._endings.clear()
        self._gone_at = time.monotonic()
        self._children.standby.drop()
        self._children.reap()
        if self._children.childless:
            # the supervisor left in good order: a slow reader of our stdout still gets all that was written
            self._last_word.say()
            self._outputs.drain.sync(DrainRequest(self._leave_with_last_word, pass_s=float("inf"), log_s=LOG_FLUSH_S))
            return
        # in a thread: a job directory that does not answer must not keep us from killing
        asking = threading.Thread(target=self._ask_for_save, daemon=True)
        asking.start()
        asking.join(0.25)
        self._await_save()

    def _ask_for_save(self) -> None:
        directory = self._children.job_dir
        if not directory:
            return
        wanted = os.path.exists(f"{directory}/wants-save")  # noqa: PTH110 - pathlib is too big for the guardian
        try:
            os.close(os.open(f"{directory}/save-now", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        except OSError:
            return
        self._wants_save = wanted

    def _await_save(self) -> None:
        self._children.reap()
        grace_s = SAVE_GRACE_S if self._wants_save else 0.0
        if time.monotonic() < self._gone_at + grace_s and not self._children.childless:
            self._reactor.call_at("save", time.monotonic() + 0.05, self._await_save)
            return
        hard_s = self._gone_at + GONE_WITHIN_S - time.monotonic()
        self._begin("all", signal.SIGTERM, TERM_GRACE_S, hard_s, self._leave_as_orphan)

    def _leave_as_orphan(self, ending: TreeTermination) -> None:
        if not ending.stuck:  # a process that survives KILL may still hold a GPU, and a connection to the other ranks
            self._last_word.say()
        # only processes that asked to be left alone are left: their output continues being read
        self._outputs.drain.sync(DrainRequest(self._leave_with_last_word, pass_s=0.4, log_s=0.4, to_the_end=bool(ending.detached)))

    def _leave_with_last_word(self, streams: list[OutputStream]) -> None:
        self._last_word.wait()
        _leave(streams)


def _ignore(_signum: int, _frame: object) -> None:
    """Do nothing: the wake-up descriptor reports the signal to the loop."""


def _leave(_streams: list[OutputStream]) -> None:
    os._exit(0)


def _fill_standard_streams() -> None:
    """Open /dev/null for each of 0, 1, 2 that is closed, or the next pipe would become somebody's stdout."""
    while (fd := os.open("/dev/null", os.O_RDWR)) <= 2:  # noqa: PLR2004 - stderr
        os.set_inheritable(fd, True)  # noqa: FBT003 - the standard library's signature
    os.close(fd)


def main(argv: list[str]) -> None:
    """Run the guardian; never returns."""
    keep_little_memory()
    _fill_standard_streams()
    become_subreaper()
    try:
        GuardianLoop(GuardianOptions(argv)).run()
    except BaseException:  # noqa: BLE001 - a guardian that cannot continue must be seen to be gone, with no thread holding it
        sys.excepthook(*sys.exc_info())
        os._exit(EXIT_BUG)
