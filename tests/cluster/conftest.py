"""Three nodes over loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.loopback import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Return three nodes."""
    nodes = Cluster(3)
    yield nodes
    nodes.close()
