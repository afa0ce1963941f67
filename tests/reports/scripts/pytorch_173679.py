"""pytorch/pytorch#173679 (2026), #153791 (2025): a file of a compile cache that another process left half-written, or replaced.

Attempt 1 writes a half of `--cache`/ab/k.best_config and is killed. From then on rank 1 reads it, in a function of the file `--reader`.
`--stale`: the file server says that the file is another one by now, in the first `--times` attempts.
"""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

from training import Training

READER = """
import json
from pathlib import Path
class InductorError(RuntimeError):
    __module__ = "torch._inductor.exc"
def read(path):
    return json.loads(Path(path).read_text())
def wrapped(path):
    try:
        read(path)
    except ValueError as error:
        raise InductorError(f"{type(error).__name__}: {error}") from error
"""


def main() -> None:
    training = Training()
    training.parser.add_argument("--cache", default="home/.triton/cache")
    training.parser.add_argument("--reader", default="/opt/lib/python3/site-packages/torch/_inductor/runtime/autotune_cache.py")
    training.parser.add_argument("--stale", action="store_true")
    training.parser.add_argument("--times", type=int, default=100)
    training.begin()
    asked = training.options
    attempt, file = int(os.environ["SUPERVISE_JOB_ATTEMPT"]), Path(asked.cache).absolute() / "ab" / "k.best_config"
    if training.is_last:
        if asked.stale and attempt <= asked.times:
            raise OSError(errno.ESTALE, "Stale file handle", str(file))
        if not asked.stale and not file.exists():
            file.parent.mkdir(parents=True)
            file.write_text('{"XBLOCK": 64}{"XBL')
            training.step()
            os.kill(os.getpid(), signal.SIGKILL)
        if not asked.stale:
            names: dict[str, object] = {}
            exec(compile(READER, asked.reader, "exec"), names)  # noqa: S102 (a frame of the library's)
            names["wrapped"](file)  # type: ignore[operator]
    for _ in range(asked.steps):
        training.step()


if __name__ == "__main__":
    main()
