"""Lists the nodes of a state directory that are excluded or unfit, by their ledgers."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from supervisor.errors import SuperviseError
from supervisor.node.gpu_quarantine import ledgers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from supervisor.node.gpu_quarantine import GpuQuarantine, NodeExclusion


@contextlib.contextmanager
def usable(ledger: GpuQuarantine) -> Iterator[None]:
    """Raise a SuperviseError that names the ledger where it cannot be read or written."""
    try:
        yield
    except OSError as error:
        raise SuperviseError(
            f"cannot use the ledger of the node: {ledger.path}: {error.strerror or error}",
            hint="Make it readable and writable for you, or name another state directory with --state-dir.",
        ) from error


def excluded(root: Path, unreadable: Callable[[SuperviseError], None] | None = None) -> list[NodeExclusion]:
    """Return the nodes of a state directory that are excluded. `unreadable` gets the error of a ledger, which is raised without it."""
    exclusions = []
    for ledger in ledgers(root):
        try:
            with usable(ledger):
                exclusions.append(ledger.exclusion())
        except SuperviseError as error:
            if unreadable is None:
                raise
            unreadable(error)
    return [exclusion for exclusion in exclusions if exclusion is not None]


def unfit(root: Path, nodes: Iterable[str]) -> list[str]:
    """Return those nodes that are excluded, or have a GPU out of use, by the ledgers of a state directory that can be read."""
    names = {exclusion.node.partition(".")[0] for exclusion in excluded(root, lambda _error: None)}
    for ledger in ledgers(root):
        with contextlib.suppress(OSError):
            names |= {ledger.node.partition(".")[0]} if ledger.held(time.time()) else set()
    return [node for node in nodes if node.partition(".")[0] in names]
