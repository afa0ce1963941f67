"""A process that has no file descriptor left."""

from __future__ import annotations

import contextlib
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Let this process open nothing more (EMFILE); what is open stays so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))  # poll(2) takes no more than that
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
