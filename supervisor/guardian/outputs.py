"""The main thread's part of the job's output: which stream goes where, how much was lost, and the last lines.

The bytes themselves never pass through the main thread.
"""

from __future__ import annotations

import time

from . import protocol
from .logs import Appender, LogFile
from .passthrough import Passthrough
from .spawn import same_file
from .streams import TAIL_BYTES, Drain, DrainRequest, OutputStream

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from .messages import GuardianEvent, RankStream, StdoutClosed, StreamTail, StreamTails
    from .reactor import Reactor
    from .spawn import CommandOutput

REPORT_EVERY_S = 1.0


class Outputs:
    """An attempt whose log directory is not known is logged where the newest is; where that is "", once it is known."""

    def __init__(self, reactor: Reactor, send: Callable[[GuardianEvent], None], before_streams: Callable[[], None], log_bytes: int) -> None:
        self._log_dirs: dict[int, str] = {}
        self._reactor = reactor
        self._send = send
        self._before_streams = before_streams
        self._log_bytes = log_bytes
        self._lossy = False
        self._reported_at = 0.0
        self._appender = Appender(self._note_loss)
        self.drain = Drain(self._appender)
        self._passes = {1: self._open_pass(1)}
        self._passes[2] = self._passes[1] if same_file(1, 2) else self._open_pass(2)
        self.drain.start(list(set(self._passes.values())))

    def take_outlets(self, outlets: Sequence[CommandOutput], attempt: int, *, rank: int, show: bool) -> None:
        """Read a command's own output."""
        for outlet in outlets:
            to = (2 if outlet.name == "err" else 1) if show else 0
            self._take(outlet.read_fd, attempt, rank, outlet.name, to=to, pty=outlet.pty)

    def take_link(self, sock: socket.socket) -> None:
        """Accept streams that the agent hands over on this link, until it closes it."""
        sock.settimeout(0)
        self._reactor.watch(sock.fileno(), lambda: self._read_link(sock))

    def turn_to(self, attempt: int, log_dir: str) -> None:
        """Log the streams of a new attempt of a living agent, and the agent's own, in this directory."""
        self.set_log_dir(attempt, log_dir)
        self.drain.relocate(-1, attempt, lambda stream: self._log_file(attempt, -1, stream.name))

    def set_log_dir(self, attempt: int, log_dir: str) -> None:
        """Remember where an attempt's streams are logged; two attempts are enough to remember."""
        self._log_dirs[attempt] = log_dir
        for old in [number for number in self._log_dirs if number < attempt - 1]:
            del self._log_dirs[old]

    def flush_then(self, task: Callable[[], None], within_s: float) -> None:
        """Run `task` in the main thread once all that is written by now has been shown and logged, or the time is over."""
        self.drain.sync(DrainRequest(lambda _: self._reactor.post(task), pass_s=within_s, log_s=within_s))

    def send_tails(self, request_id: int, attempt: int | None) -> None:
        """Send the last 16 KiB of each stream (of one attempt), one packet each since one may fill a packet, then an empty one."""

        def copy(streams: list[OutputStream]) -> None:  # in the drain's thread, which owns the tails
            packets: list[StreamTails] = []
            for stream in streams:
                if attempt is None or stream.attempt == attempt:
                    text = bytes(stream.tail[-TAIL_BYTES:]).decode("utf-8", "replace")
                    tail: StreamTail = {"attempt": stream.attempt, "rank": stream.rank, "name": stream.name, "text": text}
                    packets.append({"ev": "tails", "id": request_id, "tails": [tail], "more": True})
            packets.append({"ev": "tails", "id": request_id, "tails": [], "more": False})
            self._reactor.post(lambda: self._send_all(packets))

        self.drain.sync(DrainRequest(copy))

    def send_unfinished_line(self) -> None:
        """Send once that the ranks' last words on our stderr have no line end, as a progress bar has none."""
        if self._passes[2].line_unfinished:
            self._passes[2].line_unfinished = False
            self._send({"ev": "line_unfinished"})

    def send_losses(self) -> None:
        """Send how much was dropped so far, if that has changed."""
        if not self._lossy:
            return
        self._lossy = False
        self._reported_at = time.monotonic()
        passes = set(self._passes.values())
        dropped = self._appender.dropped_bytes + sum(each.dropped_bytes for each in passes)
        errors = [text for text in (self._appender.error, *(each.error for each in passes)) if text]
        self._send({"ev": "output", "dropped_bytes": dropped, "log_errors": "; ".join(errors) or None})

    def _send_all(self, packets: list[StreamTails]) -> None:
        for packet in packets:
            self._send(packet)

    def _note_loss(self) -> None:
        """Have the loss sent within a second; called from any thread, for every block that is lost."""
        if not self._lossy:
            self._lossy = True
            self._reactor.post(lambda: self._reactor.call_at("losses", self._reported_at + REPORT_EVERY_S, self.send_losses))

    def _open_pass(self, fd: int) -> Passthrough:
        closed: StdoutClosed = {"ev": "stdout_closed", "stream": fd}
        return Passthrough(fd, self.drain.wake, lambda: self._reactor.post(lambda: self._send(closed)), self._note_loss)

    def _read_link(self, sock: socket.socket) -> None:
        self._before_streams()  # the supervisor named a new attempt's log directory before its streams came
        while True:
            try:
                received = protocol.receive(sock)
            except BlockingIOError:
                return
            except ValueError as error:
                self._send({"ev": "refused", "do": "output", "text": str(error)})
                continue
            except OSError:
                received = None
            if received is None:
                self._reactor.unwatch(sock.fileno())
                sock.close()
                return
            self._accept(*received)

    def _accept(self, message: RankStream, fds: list[int]) -> None:
        try:
            to = int(message["to"]) if message["show"] else 0
            attempt, rank, name = int(message["attempt"]), int(message["rank"]), str(message["name"])
            if name not in ("out", "err", "both") or not fds:
                raise ValueError(name)  # noqa: TRY301 - refused like every malformed one
            self._take(fds.pop(0), attempt, rank, name, to=to, pty=bool(message["pty"]))
        except (KeyError, TypeError, ValueError) as error:
            self._send({"ev": "refused", "do": "output", "text": repr(error)})
        finally:
            protocol.close(fds)

    def _take(self, fd: int, attempt: int, rank: int, name: str, *, to: int, pty: bool) -> None:  # noqa: PLR0913 - the facts of a stream
        self.drain.add(OutputStream(fd, attempt, rank, name, to=self._passes.get(to), log=self._log_file(attempt, rank, name), pty=pty))

    def _log_file(self, attempt: int, rank: int, name: str) -> LogFile | None:
        directory = self._log_dirs.get(attempt) or self._log_dirs[max(self._log_dirs)]
        if not directory:
            return None
        stem = "agent" if rank < 0 else f"rank-{rank}"
        # the bound is of the rank: a stream that shares it with another gets half
        limit = self._log_bytes if name == "both" else self._log_bytes // 2
        return LogFile(f"{directory}/{stem}.{'log' if name == 'both' else name}", limit)
