"""A control group of our own that counts memory and limits it, of either version, for tests of what the kernel kills."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from health.probes import control_groups
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def memory_group(mib: int) -> Iterator[Path]:
    """Make one of `mib` MiB below our own place in the hierarchy; the test is skipped, with the reason, where none can be made."""
    deepest = next((group.directory for group in control_groups.read("memory") if group.memory_events() is not None), None)
    if deepest is None:
        pytest.skip("no control group here counts memory: enable the memory controller, and run as root")
    group = deepest / f"supervise-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = next(group / limit for limit in ("memory.max", "memory.limit_in_bytes") if (group / limit).exists())
        limit.write_text(str(mib << 20))
        with contextlib.suppress(OSError):
            (group / "memory.swap.max").write_text("0")
    except (OSError, StopIteration) as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no memory group can be made here, run as root (in a container: --privileged): {error}")
    yield group
    wait_for(lambda: _is_removed(group), "the end of the last process in the group")


def _is_removed(group: Path) -> bool:
    """Remove it; return whether it is gone: it is busy while a process that was killed is still leaving."""
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()
