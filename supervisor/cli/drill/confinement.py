"""Confines this process and its later children: they may write below some directories and nowhere else (Landlock, Linux 5.13 and later).

It needs no privilege, holds for root, and cannot be undone. Reading is not restricted. Kernels before 5.19 refuse a rename from one
directory to another, those before 6.2 do not see truncate(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from typing import TYPE_CHECKING, Final

from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Iterable

# linux/landlock.h; the numbers are the same on every architecture
_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_ASK_VERSION: Final = 1
_PATH_BENEATH: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38
#: WRITE_FILE; REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM (bits 4 to 12).
_WRITES: Final = 1 << 1 | 0b1_1111_1111 << 4
#: Later rights, each with the version that brought it: REFER (a rename between directories), TRUNCATE.
_LATER: Final = ((2, 1 << 13), (3, 1 << 14))


def version() -> int:
    """Return the kernel's version of Landlock, 0 where it has none."""
    return max(0, _call(_CREATE_RULESET, None, 0, _ASK_VERSION))


def confine(writable: Iterable[str]) -> None:
    """Let this thread, and its children from now on, write below these directories only. A directory that does not exist is passed over.

    Raises SuperviseError (78).
    """
    known = version()
    rights = _WRITES | sum(right for since, right in _LATER if known >= since)
    attributes = ctypes.create_string_buffer(struct.pack("=Q", rights), 8)
    ruleset = _checked("create_ruleset", _call(_CREATE_RULESET, attributes, 8, 0))
    try:
        for path in writable:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                _allow(ruleset, path, rights)
        _checked("no_new_privs", ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _checked("restrict_self", _call(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    directory = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, directory), 12)
        _checked("add_rule", _call(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0))
    finally:
        os.close(directory)


def _call(number: int, *arguments: object) -> int:
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *words))


def _checked(call: str, result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise SuperviseError(
            f"the drill cannot be confined to its scratch directory: landlock {call}: {errno.errorcode.get(code, code)}",
            hint="Run it on a kernel with Landlock (`cat /sys/kernel/security/lsm`).",
        )
    return result
