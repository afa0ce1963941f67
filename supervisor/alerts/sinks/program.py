"""A program of the user's (kind `exec`): the notification as JSON on its standard input.

Exit code 0: delivered. 75 (EX_TEMPFAIL), a signal, or the deadline: another time. Any other: refused, with its last line of stderr. It runs
without a shell, in a process group of its own, which is killed at the deadline. Its environment is PATH, HOME and LANG.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Final

from supervisor.alerts import text
from supervisor.alerts.sinks import Delivered, DeliveryDeferred, DeliveryRefused, as_notification, request
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.alerts.model import OutgoingAlert
    from supervisor.alerts.sinks import AlertRequest, Outcome, SinkOptions
    from supervisor.alerts.threads import Notification

TEMPORARY: Final = 75
_PASSED_ON: Final = ("PATH", "HOME", "LANG")
_ANSWER: Final = 200


class ProgramSink:
    """The program. Raises SuperviseError (exit 78) if none is named."""

    def __init__(self, options: SinkOptions) -> None:
        if not options.argv or options.start is None:
            raise SuperviseError("alerts: exec: no command", hint='Write command = ["PROGRAM", "ARGUMENT"] below [[alerts.sink]].')
        self._options, self._start = options, options.start
        self.host = os.path.basename(options.argv[0])  # noqa: PTH119 (text)

    def requests(self, sent: OutgoingAlert | Notification) -> Sequence[AlertRequest]:
        """Write the notification as docs/alerts.md documents it."""
        notification = as_notification(sent)
        return [request(notification, text.document(notification, self._options.detail))]

    def deliver(self, event_id: str, body: bytes, deadline_s: float) -> Outcome:
        """Run the program once."""
        environ = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | {"SUPERVISE_ALERT_ID": event_id}
        try:
            process = self._start(self._options.argv, environ)
        except OSError as error:
            return DeliveryRefused(error.strerror or type(error).__name__)
        with process:
            try:
                _, written = process.communicate(body, timeout=deadline_s)
            except subprocess.TimeoutExpired:
                if process.poll() == 0:  # what it left in the background holds its stderr
                    return Delivered()
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                return DeliveryDeferred(f"it did not end within {deadline_s:g} s")
        last = next((line for line in reversed(written[-4096:].decode("utf-8", "replace").splitlines()) if line.strip()), "")
        answer = "".join(char for char in last[:_ANSWER] if char.isprintable())
        if process.returncode == 0:
            return Delivered(answer)
        reason = f"exit code {process.returncode}" + (f": {answer}" if answer else "")
        return DeliveryDeferred(reason) if process.returncode < 0 or process.returncode == TEMPORARY else DeliveryRefused(reason)


def make(options: SinkOptions) -> ProgramSink:
    """Make the sink; raises SuperviseError if no command is named."""
    return ProgramSink(options)
