"""Steps for the network between the ranks: another interface, slower transports, and a wait until it is up again.

A transport that is switched off costs speed for the rest of the run, and hides a fault that somebody should repair. So each of these steps
acts only if the user named it (`network.allow`), the transports are the last ones, and one at a time: what did not help is taken back
before the next is tried. NCCL's variables: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html. A variable that the user set
stays as it is. core/health/detours.py takes a variable back once health says that its cause is gone.

The facts come from the observers: `network/interface` (observe/host/interfaces.py), `nccl/transports` (observe/ranks/nccl_logs.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify import peers
from supervisor.core import budget
from supervisor.core.model import Cause, Change, HangKind, Plan
from supervisor.core.values import Struct
from supervisor.strategies import plans
from supervisor.strategies.ladder_step import ladder_step
from supervisor.strategies.situation import UNSET

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisor.core.model import Policy
    from supervisor.strategies.situation import Situation

_LAST = "nothing else is left after a traced attempt, unless NCCL's log shows that {} is not in use"
#: The steps that network.allow may name: when each acts, and its setting (docs/explanation/recovery.md).
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


class Transport(Struct, frozen=True):
    """A transport of NCCL that a step switches off."""

    variable: str  # NCCL's, that does it
    shown: str  # how NCCL's log names the transport
    instead: str  # what the ranks use without it
    tried: str  # the words of LadderStep.tried


#: By step.
TRANSPORTS = {
    "p2p_disable": Transport("NCCL_P2P_DISABLE", "P2P", "GPUs of one node exchange data by way of its memory", "no P2P between GPUs"),
    "ib_disable": Transport("NCCL_IB_DISABLE", "NET/IB", "nodes exchange data by sockets instead of InfiniBand or RoCE", "no InfiniBand"),
    "shm_disable": Transport(
        "NCCL_SHM_DISABLE",
        "SHM",
        "ranks of one node exchange data by sockets instead of shared memory",
        "no shared memory between ranks",
    ),
}
#: The variable by which the ranks get a longer default timeout of their process groups, in seconds, and the knob that does it in a command.
TIMEOUT, TIMEOUT_KNOB = "SUPERVISE_JOB_GROUP_TIMEOUT_S", "group_timeout"
#: The settings of each step of OPTIONAL: knobs, or `env:NAME`.
_SETS = {
    "longer_timeout": (f"env:{TIMEOUT}", TIMEOUT_KNOB),
    "interface": tuple(f"env:{name}" for name in SOCKETS),
    **{step: (f"env:{transport.variable}",) for step, transport in TRANSPORTS.items()},
}
LONGEST_WAIT_S = 600.0
#: So many restarts in a row before an unexplained failure of NCCL's network is waited for.
PLAIN_RESTARTS = 2


def still_permitted(overrides: tuple[tuple[str, str], ...], policy: Policy) -> tuple[tuple[str, str], ...]:
    """Return the overrides of a run that continues, less those whose step is permitted no more, or whose variable the user sets by now.

    A row [recover.CAUSE] permits its own settings.
    """
    refused = {knob for step, knobs in _SETS.items() if step not in policy.network.allow for knob in knobs}
    theirs = {f"env:{name}" for name, _ in policy.variables}
    of_rows = {knob for _, row in policy.recover for knob, _ in row}
    return tuple(row for row in overrides if row[0] not in (refused | theirs) - of_rows)


def in_words(overrides: tuple[tuple[str, str], ...]) -> str:
    """Return what steps for networks have set, as NAME=VALUE, "" for nothing."""
    knobs_of_steps = {knob for knobs in _SETS.values() for knob in knobs}
    return ", ".join(f"{knob.removeprefix('env:')}={value}" for knob, value in overrides if knob in knobs_of_steps)


def enabling(name: str) -> str:
    """Return the option that enables a step."""
    return f"--set network.allow={name}"


def is_enabled(situation: Situation, name: str) -> bool:
    """Whether the user permits this step."""
    return name in situation.policy.network.allow


def not_enabled(name: str, planned: Callable[[Situation], Plan | None]) -> Callable[[Situation], str]:
    """Return the note of a step: that it would answer, and the option that enables it; "" where it would not."""

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
    return next((interface for interface in interfaces(situation) if interface.get("used") == "yes"), {})


def _works(interface: Mapping[str, str]) -> bool:
    return interface.get("state") == "up" and interface.get("reaches") == "all"


def _fails(interface: Mapping[str, str]) -> bool:
    return interface.get("state") == "down" or interface.get("reaches") in {"some", "none"}


def is_down(situation: Situation) -> bool:
    """Whether the interface in use is down or does not reach the other nodes."""
    return _fails(used(situation))


def _other_interface(situation: Situation) -> Plan | None:
    now = used(situation)
    tried = {dict(situation.overrides).get(f"env:{name}", "") for name in SOCKETS}
    other = next((interface["name"] for interface in interfaces(situation) if _works(interface) and interface["name"] not in tried), "")
    free = tuple(name for name in SOCKETS if not situation.users(name))
    if not _fails(now) or not other or not free or situation.tried("interface"):
        return None
    trouble = "is down" if now.get("state") == "down" else "does not reach the other nodes"
    return plans.restart(
        "interface",
        f"interface {now['name']} {trouble}, and {other} reaches all of them: the ranks use {other}",
        changes=tuple(Change(f"env:{name}", dict(situation.overrides).get(f"env:{name}", ""), other, name) for name in free),
    )


def _interface_missing(situation: Situation) -> str:
    theirs = next((f"{name}={situation.users(name)}" for name in SOCKETS if situation.users(name)), "")
    if theirs and is_down(situation):
        return f"interface does not change {theirs}: you set it"
    return not_enabled("interface", _other_interface)(situation)


@ladder_step(
    "another interface where network.allow permits: the one in use is down or does not reach all nodes, and the other reaches all",
    tried="another interface",
    changes_job=True,
    harmless=True,
    missing=_interface_missing,
)
def interface(situation: Situation) -> Plan | None:
    """Use another interface if the one in use is down or does not reach the other nodes, and the other one reaches all."""
    return _other_interface(situation) if is_enabled(situation, "interface") else None


def _without(name: str) -> Callable[[Situation], Plan | None]:
    """Return what the step of this name would do if it were permitted: switch its transport off."""
    variable, transport, instead = TRANSPORTS[name].variable, TRANSPORTS[name].shown, TRANSPORTS[name].instead

    def planned(situation: Situation) -> Plan | None:
        if situation.variable(variable) or situation.tried(name) or not situation.unanswered or is_down(situation):
            return None
        if situation.verdict.cause is Cause.HANG_NO_ERROR and situation.fact("hang_kind") != HangKind.WAITING:
            return None  # the network does not stand still: a rank does
        named, shown = _named(situation), _shown(situation)
        if (named and name not in named) or (not named and (not situation.traced or (shown and transport not in shown))):
            return None
        why = "the evidence names that transport" if named else "nothing else is left to try"
        return plans.restart(
            name,
            f"with {variable}=1: {instead}, which is slower; {why}",
            changes=(*_taken_back(situation), Change(f"env:{variable}", "", "1", variable)),
        )

    return planned


def _named(situation: Situation) -> tuple[str, ...]:
    """Return the steps whose transport the verdict's evidence names."""
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
    rows = ((step, f"env:{transport.variable}", transport.variable) for step, transport in TRANSPORTS.items())
    return tuple(Change(knob, now[knob], UNSET, variable) for step, knob, variable in rows if knob in now and situation.tried(step))


def _register_transport(name: str) -> None:
    """Register the step that switches a transport off."""
    transport, planned = TRANSPORTS[name], _without(name)

    def propose(situation: Situation) -> Plan | None:
        """Switch one transport off, once, if the evidence names it, or nothing else is left after a traced attempt."""
        return planned(situation) if is_enabled(situation, name) else None

    def missing(situation: Situation) -> str:
        if name in _named(situation) and (value := situation.users(transport.variable)):
            return f"{name} does not change {transport.variable}={value}: you set it"
        return not_enabled(name, planned)(situation)

    summary = (
        f"{transport.variable}=1 where network.allow permits: NCCL's {transport.shown} is named by the evidence, or nothing else is left"
    )
    ladder_step(summary, name=name, tried=transport.tried, changes_job=True, harmless=True, missing=missing)(propose)


for _name in TRANSPORTS:
    _register_transport(_name)


@ladder_step("restart after a wait that doubles from 30 s to 600 s, while the network is down", tried="a wait for the network")
def wait_for_network(situation: Situation) -> Plan | None:
    """Restart after a wait if the interface in use is down, or NCCL's network failed again and again without another answer."""
    verdict = situation.verdict
    repeated = verdict.cause is Cause.NCCL_NETWORK and len(situation.unanswered) >= PLAIN_RESTARTS
    if not is_down(situation) and not repeated:
        return None
    if budget.balance(situation.failures, verdict.cause, situation.t, situation.policy).refusal:
        return None
    delay_s = plans.wait_s(situation, situation.tried("wait_for_network"), LONGEST_WAIT_S)
    subject = f"interface {used(situation)['name']}" if is_down(situation) else "the network"
    return plans.restart(
        "wait_for_network",
        f"waits for {subject}",
        delay_s=delay_s,
        charged=False,
    )


@ladder_step(
    "restart after a wait that doubles from 30 s, for ten minutes, while a host's name is not known yet", tried="a wait for a name"
)
def wait_for_name(situation: Situation) -> Plan | None:
    """Restart after a wait if a host's name is not known: in a cluster names appear after their hosts. One that is mistyped never does."""
    if not any(peers.lacks_name(fact.text) for fact in situation.verdict.because[:2]):
        return None
    since_t = next((f.t for f in situation.unanswered if f.ladder_step == "wait_for_name"), situation.t)
    if situation.t - since_t >= LONGEST_WAIT_S:
        return None
    delay_s = plans.wait_s(situation, situation.tried("wait_for_name"), LONGEST_WAIT_S)
    return plans.restart("wait_for_name", "waits for a name that is not known yet", delay_s=delay_s, charged=False)
