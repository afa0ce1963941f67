"""The limits that the process puts on itself, and how it ends where they are reached."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from checkpointing.conversion import process
from checkpointing.model import CheckpointingError

_PROGRAM = """
from checkpointing.conversion import process
process._bound_memory(64 << 20)
held = [bytearray(64 << 20) for _ in range(4)]  # what a conversion may need
try:
    bytearray(process._ROOM + (64 << 20))
except MemoryError:
    print("refused")
process._bound_memory(None)
bytearray(process._ROOM + (64 << 20))
"""


@pytest.mark.slow
@pytest.mark.process
def test_memory_beyond_the_largest_tensors_is_refused_by_the_kernel() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False)  # noqa: S603  ours
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY  # this process has no limit


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (CheckpointingError("said", hint="do"), "said", "do"),
        (OSError(28, "No space left on device"), "no more room", "another disk"),
        (OSError(122, "Disk quota exceeded"), "no more room", "another disk"),
        (PermissionError(13, "Permission denied", "/x"), "Permission denied", "permissions"),
        (MemoryError(), "does not fit into memory", "more memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "does not fit into memory", "more memory"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), "torch is not installed", "pip install torch"),
    ],
)
def test_an_error_that_a_person_can_mend_comes_with_a_hint(error: Exception, message: str, hint: str) -> None:
    failure = process._failure(error)  # noqa: SLF001  the table of its endings
    assert failure is not None
    assert message in failure[0]
    assert hint in failure[1]


def test_an_error_of_ours_is_no_message_for_a_person() -> None:
    assert process._failure(KeyError("x")) is None  # noqa: SLF001  as above
