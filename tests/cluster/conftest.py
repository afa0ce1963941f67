"""Three nodes over loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.loopback import RULES, Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Return three nodes, with rules of the test's own where it gives them."""
    nodes = Cluster(3, getattr(request, "param", RULES))
    yield nodes
    nodes.close()
