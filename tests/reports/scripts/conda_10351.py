"""conda/conda#10351 (2020): `conda run` does not pass TERM on, and its child lives.

A wrapper that is deaf to TERM, around the command given.
"""

from __future__ import annotations

import signal
import subprocess
import sys

signal.signal(signal.SIGTERM, signal.SIG_IGN)


def hear_again() -> None:
    """The child is not deaf."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


sys.exit(subprocess.run(sys.argv[1:], preexec_fn=hear_again, check=False).returncode)  # noqa: S603 - the test's words
