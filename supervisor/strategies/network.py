"""Rungs for the network between the ranks: another interface, slower transports, and a wait until it is up again.

A transport that is switched off costs speed for the rest of the run, and hides a fault that somebody should repair. So each of these rungs
acts only if the user named it (`network.allow`), the transports are the last ones, and one at a time: what did not help is taken back
before the next is tried. NCCL's variables: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html. A variable that the user set
stays as it is. core/detours.py takes a variable back once health says that its cause is gone.

The facts come from the observers: `network/interface` (observe/host/interfaces.py), `nccl/transports` (observe/ranks/nccl_logs.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core import budget
from supervisor.core.model import Cause, Change, HangKind, Plan, PlanKind
from supervisor.strategies.rung import Rung
from supervisor.strategies.situation import UNSET

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisor.core.model import Policy
    from supervisor.strategies.situation import Situation

_LAST = "nothing else is left after a traced attempt, unless NCCL's log shows that {} is not in use"
#: The rungs that network.allow may name: when each acts, and what it sets (docs/explanation/recovery.md).
OPTIONAL = {
    "longer_timeout": (
        "one rank saved, evaluated or loaded while the others waited for it",
        "torch's default timeout of process groups, times three, at most twice and to 4 h; or the knob `group_timeout`",
    ),
    "interface": (
        "the interface in use is down or does not reach the other nodes, and another one reaches all of them",
        "`NCCL_SOCKET_IFNAME`, `GLOO_SOCKET_IFNAME`",
    ),
    "p2p_disable": (_LAST.format("P2P"), "`NCCL_P2P_DISABLE=1`"),
    "ib_disable": (f"{_LAST.format('InfiniBand')}; or the evidence names an InfiniBand device", "`NCCL_IB_DISABLE=1`"),
    "shm_disable": (f"{_LAST.format('SHM')}; or the evidence names a segment of NCCL's shared memory", "`NCCL_SHM_DISABLE=1`"),
}
SOCKETS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
#: Transport by rung: NCCL's variable, how its log names the transport, and what the ranks use instead.
TRANSPORTS = {
    "p2p_disable": ("NCCL_P2P_DISABLE", "P2P", "GPUs of one node exchange data by way of its memory"),
    "ib_disable": ("NCCL_IB_DISABLE", "NET/IB", "nodes exchange data by sockets instead of InfiniBand or RoCE"),
    "shm_disable": ("NCCL_SHM_DISABLE", "SHM", "ranks of one node exchange data by sockets instead of shared memory"),
}
#: The variable by which the ranks get a longer default timeout of their process groups, in seconds, and the knob that does it in a command.
TIMEOUT, TIMEOUT_KNOB = "SUPERVISE_JOB_GROUP_TIMEOUT_S", "group_timeout"
#: What each rung of OPTIONAL sets: knobs, or `env:NAME`.
_SETS = {
    "longer_timeout": (f"env:{TIMEOUT}", TIMEOUT_KNOB),
    "interface": tuple(f"env:{name}" for name in SOCKETS),
    **{rung: (f"env:{variable}",) for rung, (variable, _, _) in TRANSPORTS.items()},
}
FIRST_WAIT_S, LONGEST_WAIT_S = 30.0, 600.0
#: So many restarts in a row before an unexplained failure of NCCL's network is waited for.
PLAIN_RESTARTS = 2


def still_permitted(overrides: tuple[tuple[str, str], ...], policy: Policy) -> tuple[tuple[str, str], ...]:
    """Return the overrides of a run that goes on, less those whose rung is permitted no more, or whose variable the user sets by now.

    What a row [recover.CAUSE] sets is permitted by it.
    """
    refused = {knob for rung, knobs in _SETS.items() if rung not in policy.network.allow for knob in knobs}
    theirs = {f"env:{name}" for name, _ in policy.variables}
    of_rows = {knob for _, row in policy.recover for knob, _ in row}
    return tuple(row for row in overrides if row[0] not in (refused | theirs) - of_rows)


def in_words(overrides: tuple[tuple[str, str], ...]) -> str:
    """Return what rungs for networks have set, as NAME=VALUE, "" for nothing."""
    ours = {knob for knobs in _SETS.values() for knob in knobs}
    return ", ".join(f"{knob.removeprefix('env:')}={value}" for knob, value in overrides if knob in ours)


def enabling(name: str) -> str:
    """Return the option that enables a rung."""
    return f"--set network.allow={name}"


def is_enabled(situation: Situation, name: str) -> bool:
    """Whether the user permits this rung."""
    return name in situation.policy.network.allow


def not_enabled(name: str, planned: Callable[[Situation], Plan | None]) -> Callable[[Situation], str]:
    """Return the note of a rung: that it would answer, and the option that enables it; "" where it would not."""

    def missing(situation: Situation) -> str:
        if is_enabled(situation, name) or planned(situation) is None:
            return ""
        return f"{name} is not enabled: {enabling(name)}"

    return missing


def interfaces(situation: Situation) -> tuple[Mapping[str, str], ...]:
    """Return this node's interfaces as found: name, state (up, down, missing), used (yes), reaches (all, some, none or "")."""
    return tuple(dict(fact.fields) for fact in situation.evidence if (fact.source, fact.name) == ("network", "interface"))


def used(situation: Situation) -> Mapping[str, str]:
    """Return the interface that the ranks used, {} if that is not known."""
    return next((one for one in interfaces(situation) if one.get("used") == "yes"), {})


def _works(one: Mapping[str, str]) -> bool:
    return one.get("state") == "up" and one.get("reaches") == "all"


def _fails(one: Mapping[str, str]) -> bool:
    return one.get("state") == "down" or one.get("reaches") in {"some", "none"}


def is_down(situation: Situation) -> bool:
    """Whether the interface in use is down or does not reach the other nodes."""
    return _fails(used(situation))


def _other_interface(situation: Situation) -> Plan | None:
    now = used(situation)
    tried = {dict(situation.overrides).get(f"env:{name}", "") for name in SOCKETS}
    other = next((one["name"] for one in interfaces(situation) if _works(one) and one["name"] not in tried), "")
    free = tuple(name for name in SOCKETS if not situation.users(name))
    if not _fails(now) or not other or not free or situation.tried("interface"):
        return None
    what = "is down" if now.get("state") == "down" else "does not reach the other nodes"
    return Plan(
        kind=PlanKind.RESTART,
        reason=f"interface {now['name']} {what}, and {other} reaches all of them: the ranks use {other}",
        next_rung="",
        strategy="interface",
        changes=tuple(Change(f"env:{name}", dict(situation.overrides).get(f"env:{name}", ""), other, name) for name in free),
    )


def interface(situation: Situation) -> Plan | None:
    """Use another interface if the one in use is down or does not reach the other nodes, and the other one reaches all."""
    return _other_interface(situation) if is_enabled(situation, "interface") else None


def _interface_missing(situation: Situation) -> str:
    theirs = next((f"{name}={situation.users(name)}" for name in SOCKETS if situation.users(name)), "")
    if theirs and is_down(situation):
        return f"interface does not change {theirs}: you set it"
    return not_enabled("interface", _other_interface)(situation)


def _transport(name: str) -> Callable[[Situation], Plan | None]:
    variable, transport, instead = TRANSPORTS[name]

    def planned(situation: Situation) -> Plan | None:
        if situation.variable(variable) or situation.tried(name) or not situation.unanswered or is_down(situation):
            return None
        if situation.verdict.cause is Cause.HANG_NO_ERROR and situation.fact("hang_kind") != HangKind.WAITING:
            return None  # the network does not stand still: a rank does
        named, shown = _named(situation), _shown(situation)
        if (named and name not in named) or (not named and (not situation.traced or (shown and transport not in shown))):
            return None
        why = "the evidence names that transport" if named else "nothing else is left to try"
        return Plan(
            kind=PlanKind.RESTART,
            reason=f"with {variable}=1: {instead}, which is slower; {why}",
            next_rung="",
            strategy=name,
            changes=(*_taken_back(situation), Change(f"env:{variable}", "", "1", variable)),
        )

    return planned


def _named(situation: Situation) -> tuple[str, ...]:
    """Return the rungs whose transport the verdict's evidence names."""
    names = {fact.name for fact in situation.verdict.because if fact.claim is not None}
    if (
        situation.fact("hca")
        or situation.fact("call").startswith("ibv_")
        or names & {"nccl_network.ib_completion", "nccl_network.ib_event"}
    ):
        return ("ib_disable",)
    return ("shm_disable",) if "/dev/shm" in situation.fact("segment") + situation.fact("extended") else ()  # noqa: S108  a name


def _shown(situation: Situation) -> str:
    """Return the transports that NCCL's own log shows in use, "" where there is none."""
    return " ".join(fact.text for fact in situation.evidence if (fact.source, fact.name) == ("nccl", "transports"))


def _taken_back(situation: Situation) -> tuple[Change, ...]:
    """Return what takes back the transports that were switched off since the last progress, and did not help."""
    now = dict(situation.overrides)
    rows = ((rung, f"env:{variable}", variable) for rung, (variable, _, _) in TRANSPORTS.items())
    return tuple(Change(knob, now[knob], UNSET, variable) for rung, knob, variable in rows if knob in now and situation.tried(rung))


def _switched_off(name: str) -> Rung:
    planned = _transport(name)

    def propose(situation: Situation) -> Plan | None:
        """Switch one transport off, once, if the evidence names it, or nothing else is left after a traced attempt."""
        return planned(situation) if is_enabled(situation, name) else None

    def missing(situation: Situation) -> str:
        variable = TRANSPORTS[name][0]
        if name in _named(situation) and (value := situation.users(variable)):
            return f"{name} does not change {variable}={value}: you set it"
        return not_enabled(name, planned)(situation)

    variable, transport, _ = TRANSPORTS[name]
    summary = f"{variable}=1 where network.allow permits: NCCL's {transport} is named by the evidence, or nothing else is left"
    return Rung(name, propose, summary, changes_job=True, harmless=True, missing=missing)


def wait_for_network(situation: Situation) -> Plan | None:
    """Restart after a wait if the interface in use is down, or NCCL's network failed again and again without another answer."""
    verdict = situation.verdict
    repeated = verdict.cause is Cause.NCCL_NETWORK and len(situation.unanswered) >= PLAIN_RESTARTS
    if not is_down(situation) and not repeated:
        return None
    if budget.balance(situation.failures, verdict.cause, situation.t, situation.policy).refusal:
        return None
    # half of it fixed, half of it jitter: never at once, and not all jobs of a cluster in the same second
    delay_s = min(FIRST_WAIT_S * 2 ** min(situation.tried("wait_for_network"), 10), LONGEST_WAIT_S) * (0.5 + 0.5 * situation.jitter)
    what = f"interface {used(situation)['name']}" if is_down(situation) else "the network"
    return Plan(
        kind=PlanKind.RESTART,
        reason=f"wait {delay_s:.0f} s for {what}, then restart",
        next_rung="a longer wait",
        strategy="wait_for_network",
        delay_s=delay_s,
        charged=False,
    )


RUNGS = (
    Rung(
        "interface",
        interface,
        "another interface where network.allow permits: the one in use is down or does not reach all nodes, and the other reaches all",
        changes_job=True,
        harmless=True,
        missing=_interface_missing,
    ),
    *(_switched_off(name) for name in TRANSPORTS),
    Rung("wait_for_network", wait_for_network, "restart after a wait that doubles from 30 s to 600 s, while the network is down"),
)
