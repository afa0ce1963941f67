"""The steps for networks, whatever the failure: nothing acts unnamed, nothing of the user's changes, one transport at a time."""

from __future__ import annotations

from itertools import chain, combinations

import pytest

from supervisor.core.model import Cause, Evidence, PlanKind, Policy
from supervisor.core.policy_settings import NetworkSection
from supervisor.core.values import replace
from supervisor.strategies import propose
from supervisor.strategies.network import OPTIONAL, SOCKETS, TRANSPORTS
from tests.strategies.test_ladders import situation
from tests.support.few import few

SWITCHES = {f"env:{transport.variable}" for transport in TRANSPORTS.values()}
DOWN = Evidence("network", "interface", "eth0", fields=(("name", "eth0"), ("state", "down"), ("used", "yes")))
OTHER = Evidence("network", "interface", "eth1", fields=(("name", "eth1"), ("state", "up"), ("reaches", "all")))
CAUSES = (Cause.NCCL_TIMEOUT, Cause.NCCL_NETWORK, Cause.GLOO_ERROR, Cause.RENDEZVOUS)


def subsets(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    return list(chain.from_iterable(combinations(names, count) for count in range(len(names) + 1)))


@pytest.mark.parametrize("cause", few(CAUSES))
@pytest.mark.parametrize("is_down", [False, True])
@pytest.mark.parametrize("theirs", [(), ("NCCL_IB_DISABLE",), SOCKETS, ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_SOCKET_IFNAME")])
def test_only_what_is_named_acts_and_never_on_a_variable_of_the_users(cause: Cause, is_down: bool, theirs: tuple[str, ...]) -> None:  # noqa: FBT001
    for allowed in subsets(tuple(OPTIONAL)):
        policy = Policy(network=NetworkSection(allowed), variables=tuple((name, "0") for name in theirs))
        now = situation(cause, policy=policy, step=None, evidence=(DOWN, OTHER) if is_down else ())
        for _ in range(9):
            plan = propose(now)
            if plan.kind is PlanKind.STOP:
                break
            assert plan.strategy not in OPTIONAL or plan.strategy in allowed
            assert not {change.knob for change in plan.changes} & {f"env:{name}" for name in theirs}
            now = replace(now.again(plan), evidence=now.evidence)
            assert len(SWITCHES & {knob for knob, _ in now.overrides}) <= 1
        if (
            "ib_disable" in allowed
            and "NCCL_IB_DISABLE" not in theirs
            and not is_down
            and cause in {Cause.NCCL_TIMEOUT, Cause.NCCL_NETWORK}
        ):
            assert any(failure.ladder_step == "ib_disable" for failure in now.failures)
