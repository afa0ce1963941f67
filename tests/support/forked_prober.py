"""A prober (`health/probing/process.py`) that is a fork of a process which has imported its probes, for tests that start many.

Its library is loaded by path: LD_LIBRARY_PATH is read where a process starts, and a fork has started already.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

from health.probing import process
from health.probing.runner import Runner
from tests.support.forks import Fork, pipes

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping

    from tests.support.fake_nvml import FakeNvml

#: What the probes of GPUs import.
IMPORTS = ("tests.support.forked_prober", "health.probes.gpu.nvml", "health.probes.gpu.pci", "health.probes.gpu.driver", "pynvml")


class ForkedProber(Fork):
    """With the ends of its pipes, as subprocess.Popen has them."""

    def __init__(self, library: Path, environ: Mapping[str, str]) -> None:
        """Start it."""
        with pipes() as (theirs, (asks, answers)):
            self.stdin, self.stdout = os.fdopen(asks, "wb", buffering=0), os.fdopen(answers, "rb", buffering=0)
            super().__init__(
                f"{__name__}:be_prober", str(library), imports=IMPORTS, environ=environ, cwd=Path.cwd(), descriptors=(*theirs, 2)
            )


def be_prober(library: str) -> None:
    """Be the prober: the name under which NVML is looked for is that of a library that is loaded."""
    ctypes.CDLL(library)
    process.main()


def runner(library: Path, fake_nvml: FakeNvml) -> Runner:
    """Return a runner whose probers are such forks, and find the fake library."""
    return Runner(environ=fake_nvml.environ, start=lambda _make: cast("subprocess.Popen[bytes]", ForkedProber(library, fake_nvml.environ)))
