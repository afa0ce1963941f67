"""A wall clock that is wrong, by Debian's libfaketime; the monotonic clock stays right."""

from __future__ import annotations

from pathlib import Path

import pytest

#: Python sleeps by the monotonic clock, which libfaketime 0.9.10 refuses (EINVAL) where it leaves that clock alone.
SLEEPS = """
import select, time
time.sleep = lambda seconds: select.select([], [], [], seconds) and None
"""


def faketime(place: Path) -> dict[str, str]:
    """Return the variables with which the wall clock, and it alone, is ahead by the seconds in the file `clock`."""
    library = next(iter(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), None)
    if library is None:
        pytest.skip("libfaketime is not installed (Debian: apt-get install libfaketime)")
    (place / "site").mkdir()
    (place / "site" / "sitecustomize.py").write_text(SLEEPS)
    return {
        "PYTHONPATH": str(place / "site"),
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(place / "clock"),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
