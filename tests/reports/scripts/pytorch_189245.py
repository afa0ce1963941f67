"""pytorch/pytorch#189245 (2026): a build that was killed leaves its lock, and every later start waits for that without a word.

A build behind a lock file, torch's FileBaton: rank 0 of attempt 1 dies in it, and leaves the lock.

--when: the ranks build before the process group is made, after it, or at step 30. --poll-s: how often the others ask.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from torch.utils.file_baton import FileBaton
from training import Training


def build(training: Training) -> None:
    """Build as torch.utils.cpp_extension does."""
    baton = FileBaton(str(training.options.cache / "lock"), training.options.poll_s)
    (training.options.cache / f"came-{os.getpid()}").touch()
    if not baton.try_acquire():
        baton.wait()
        return
    if os.environ.get("SUPERVISE_JOB_ATTEMPT") == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    baton.release()


def main() -> None:
    """Train, with a build."""
    training = Training()
    training.parser.add_argument("--cache", type=Path, required=True)
    training.parser.add_argument("--when", choices=("import", "init", "step"), default="import")
    training.parser.add_argument("--poll-s", type=float, default=0.1)
    training.options = training.parser.parse_args()
    if training.options.when == "import":
        build(training)

    def before_step(_training: Training, step: int) -> None:
        if (training.options.when, step) in {("init", 1), ("step", 30)}:
            build(training)

    training.run(before_step)


main()
