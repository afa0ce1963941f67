"""A program of the user's (kind `exec`): the notification as JSON on its standard input.

Exit code 0: delivered. 75 (EX_TEMPFAIL), a signal, or the deadline: another time. Any other: refused, with its last line of stderr. A
program that is not there or cannot be executed is refused too. Where no process can be started now, as without memory, another time.
It runs without a shell, in a process group of its own, which is killed at the deadline. Its environment is PATH, HOME, LANG, and what names
the way out of this machine and the user's session (`_PASSED_ON`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import time
from typing import TYPE_CHECKING, Final

from supervisor.alerts import text
from supervisor.alerts.sinks import Delivered, DeliveryDeferred, DeliveryRefused, request
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from supervisor.alerts.sinks import AlertRequest, Outcome, SinkOptions
    from supervisor.alerts.threads import Notification

TEMPORARY: Final = 75
#: Another try of the same command would be answered alike.
_ITS_OWN_FAULT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC, errno.E2BIG, errno.ELOOP, errno.ENAMETOOLONG})
_PASSED_ON: Final = frozenset({
    "PATH", "HOME", "LANG", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
    "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "DBUS_SESSION_BUS_ADDRESS",
    "SSL_CERT_FILE", "SSL_CERT_DIR",
})  # fmt: skip
_ANSWER: Final = 200
#: The program's stderr: bytes of one read, bytes to keep; and how often its end is checked.
_PIPE_BYTES: Final = 65536
_KEPT_BYTES: Final = 4096
_POLL_S: Final = 0.05


class ProgramSink:
    """The program. Raises SuperviseError (exit 78) if none is named."""

    def __init__(self, options: SinkOptions) -> None:
        if not options.argv or options.start is None:
            raise SuperviseError("alerts: exec: no command", hint='Write command = ["PROGRAM", "ARGUMENT"] below [[alerts.sink]].')
        self._options, self._start = options, options.start
        self.host = os.path.basename(options.argv[0])  # noqa: PTH119 (text)

    def requests(self, sent: Notification) -> Sequence[AlertRequest]:
        """Write the notification as docs/reference/alert-format.md documents it."""
        return [request(sent, text.document(sent, self._options.detail))]

    def deliver(self, event_id: str, body: bytes, deadline_s: float) -> Outcome:
        """Run the program once."""
        environ = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | {"SUPERVISE_ALERT_ID": event_id}
        try:
            process = self._start(self._options.argv, environ)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            return DeliveryRefused(reason) if error.errno in _ITS_OWN_FAULT else DeliveryDeferred(reason)
        with process:
            answer = _last_line(_read_until_end(process, body, time.monotonic() + deadline_s))
            if process.poll() is None:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                return DeliveryDeferred(f"it did not end within {deadline_s:g} s")
        if process.returncode == 0:
            return Delivered(answer)
        reason = f"exit code {process.returncode}" + (f": {answer}" if answer else "")
        return DeliveryDeferred(reason) if process.returncode < 0 or process.returncode == TEMPORARY else DeliveryRefused(reason)


def _read_until_end(process: subprocess.Popen[bytes], body: bytes, until: float) -> bytes:
    """Give the program its input, until it ends or the time is up; return the end of its stderr.

    `communicate` would keep all of it, and wait for whatever the program left in the background with its stderr.
    """
    written = b""
    with selectors.DefaultSelector() as selector:
        for pipe, event in ((process.stdin, selectors.EVENT_WRITE), (process.stderr, selectors.EVENT_READ)):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, event)
        has_ended = False
        while not has_ended and (left_s := until - time.monotonic()) > 0:
            has_ended = process.poll() is not None  # then one read is left: a pipe holds no more
            for key, _ in selector.select(0.0 if has_ended else min(left_s, _POLL_S)):
                if key.fileobj is process.stderr:
                    piece = os.read(key.fd, _PIPE_BYTES)
                    written, is_over = (written + piece)[-_KEPT_BYTES:], not piece
                else:
                    body = _fed(key.fd, body)
                    is_over = not body
                if is_over:
                    selector.unregister(key.fileobj)
                    if process.stdin is not None and key.fileobj is process.stdin:
                        process.stdin.close()
    return written


def _fed(pipe: int, body: bytes) -> bytes:
    """Write what the pipe takes, and return the rest; none if the program does not read."""
    try:
        return body[os.write(pipe, body) :]
    except BrokenPipeError:
        return b""


def _last_line(written: bytes) -> str:
    last = next((line for line in reversed(written.decode("utf-8", "replace").splitlines()) if line.strip()), "")
    return "".join(char for char in last[:_ANSWER] if char.isprintable())


def make(options: SinkOptions) -> ProgramSink:
    """Make the sink; raises SuperviseError if no command is named."""
    return ProgramSink(options)
