"""`python -m supervisor`: the same as the command `supervise`."""

from __future__ import annotations

import sys
from pathlib import Path

_OURS = Path(__file__).resolve().parent.parent

# Without -P python puts the working directory first, where a training script may keep a `health` or `checkpointing` of its own.
if not sys.flags.safe_path and Path(sys.path[0]).resolve() != _OURS:
    del sys.path[0]

from supervisor.cli.first_process import end_on_signals  # noqa: E402  sys.path first

if __name__ == "__main__":
    end_on_signals()

from supervisor.cli.main import main  # noqa: E402  after that

if __name__ == "__main__":
    sys.exit(main())
