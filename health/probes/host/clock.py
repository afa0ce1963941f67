"""Reads the quality of this host's clock from the kernel, and from chrony where it runs.

Reads adjtimex(2), which needs no privilege; `chronyc -c tracking`. Yields, of `host`: `clock.kernel` (synchronized; max_error_s, which
grows while nobody sets the clock; estimated_error_s; offset_s), `clock.chrony` (offset_s, stratum, leap). ask.options["clock"] may give
both, for a site that has another source.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

from health.model import HOST, NOT_SUPPORTED, Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import Ask

NAME: Final = "clock"
_UNSYNC, _NANO = 0x0040, 0x2000
_ERROR: Final = 5  # TIME_ERROR: the clock is not synchronized
_CHRONY_S: Final = 2.0
#: `chronyc -c tracking`: reference, name, stratum, time, offset of the system's clock in seconds, …, leap status.
_STRATUM, _OFFSET, _FIELDS = 2, 4, 14


class _Timex(ctypes.Structure):
    """struct timex of <sys/timex.h>, as on every 64-bit Linux."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 40),  # more than the kernel writes
    )


def read(ask: Ask) -> Iterator[Reading]:
    """Yield the readings."""
    given = ask.options.get("clock")
    if isinstance(given, dict):
        for name, value in given.items():
            yield Reading(NAME, HOST, f"clock.{name}", value)
        return
    yield _kernel()
    yield _chrony()


def _kernel() -> Reading:
    timex = _Timex()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except AttributeError:
        return Reading(NAME, HOST, "clock.kernel", None, NOT_SUPPORTED)
    if state < 0:
        return Reading(NAME, HOST, "clock.kernel", None, os.strerror(ctypes.get_errno()))
    value = {
        "synchronized": state != _ERROR and not timex.status & _UNSYNC,
        "max_error_s": timex.maxerror / 1e6,
        "estimated_error_s": timex.esterror / 1e6,
        "offset_s": timex.offset / (1e9 if timex.status & _NANO else 1e6),
    }
    return Reading(NAME, HOST, "clock.kernel", {**value})


def _chrony() -> Reading:
    program = shutil.which("chronyc")
    if program is None:
        return Reading(NAME, HOST, "clock.chrony", None, NOT_SUPPORTED)
    try:
        done = subprocess.run([program, "-c", "tracking"], capture_output=True, text=True, timeout=_CHRONY_S, check=False)  # noqa: S603 -- found on the PATH
    except (OSError, subprocess.TimeoutExpired) as error:
        return Reading(NAME, HOST, "clock.chrony", None, f"chronyc: {error}")
    row = done.stdout.strip().split(",")
    if done.returncode or len(row) != _FIELDS:
        return Reading(NAME, HOST, "clock.chrony", None, f"chronyc: {(done.stdout or done.stderr).strip()[:200]}")
    return Reading(NAME, HOST, "clock.chrony", {"offset_s": float(row[_OFFSET]), "stratum": int(row[_STRATUM]), "leap": row[-1]})
