"""A command in a pid namespace of its own: it sees no other process of the machine, as in a container."""

from __future__ import annotations

import os
import subprocess
from functools import cache

import pytest

#: The first process of the namespace reaps what others leave, and gives the command's exit code on.
_REAPER = ("sh", "-c", '"$@"; exit $?', "sh")


@cache
def alone() -> tuple[str, ...]:
    """Return the words that stand before the command. Skips the test where no such namespace can be made."""
    words = ("unshare", *(() if os.geteuid() == 0 else ("--map-root-user",)), "--fork", "--pid", "--mount-proc", "--kill-child")
    try:
        is_possible = subprocess.run([*words, "true"], check=False, capture_output=True).returncode == 0  # noqa: S603  the words above
    except FileNotFoundError:
        is_possible = False
    if not is_possible:
        pytest.skip("needs a pid namespace of its own: run as root, with `unshare --pid --mount-proc` (Debian: apt-get install util-linux)")
    return (*words, *_REAPER)
