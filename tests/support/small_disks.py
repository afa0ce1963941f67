"""A file system that is soon full: a tmpfs of its own size."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def small_disk(directory: Path, options: str) -> Iterator[Path]:
    """Make a directory, and mount a tmpfs there. options: of mount, such as `size=64k`. The test is skipped where that needs rights."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(directory)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if mounted.returncode:
        pytest.skip(f"a small disk needs the right to mount, run as root: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        # lazily: a process that is being killed may still be in there
        subprocess.run(["umount", "-l", str(directory)], check=True)  # noqa: S603, S607
