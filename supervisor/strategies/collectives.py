"""Steps for collectives that do not fit together, or do not come back.

`trace_collectives`: neither NCCL's own log nor torch's flight recorder can name the hanging rank afterwards unless it was on before. Both
cost next to nothing and change nothing of the training, so this is a restart like any other: charged, within the budget, without consent.

`longer_timeout`: a rank that evaluates, saves or loads while its peers wait is late, and no fault. The instrumentation makes torch's
default timeout longer (instrument/_supervise_shim/torchhooks.py); one that the script passes needs the knob `group_timeout`.

`name_unsynced`: torch names what differs between the ranks only with TORCH_DISTRIBUTED_DEBUG. INFO names parameters. DETAIL compares every
collective before it runs, which is slow; together with unused parameters it crashes (SIGSEGV, torch 2.13), so it is for collectives alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.classify import unsynced as explanation
from supervisor.classify.remedies import remedy
from supervisor.core.causes import CAUSE_TABLE
from supervisor.core.model import Cause, Change, HangKind, Phase, Plan, PlanKind
from supervisor.core.shell import quoted
from supervisor.core.values import replace
from supervisor.knobs.bindings import option
from supervisor.strategies import network, plans
from supervisor.strategies.ladder_step import ladder_step
from supervisor.strategies.repetition import restart_within_budget

if TYPE_CHECKING:
    from supervisor.strategies.situation import Situation

DEBUG = "TORCH_DISTRIBUTED_DEBUG"
#: The signatures of which torch says more with the variable: the level that does it, and its output.
_LEVELS = {
    "ddp_unsynced.unused_parameters": ("INFO", "names", "the parameters"),
    "ddp_unsynced.ready_twice": ("INFO", "parameter", "the parameter"),
    "ddp_unsynced.gloo_size": ("DETAIL", "peer_operation", "both ranks and their operations"),
    "ddp_unsynced.nccl_size": ("DETAIL", "peer_operation", "both ranks and their operations"),
}
#: Signatures that name the difference, so that a restart which meets them again is in vain.
_NAMED = frozenset({"ddp_unsynced.unused_parameters", "ddp_unsynced.ready_twice", "ddp_unsynced.collectives"})
#: torch's own default with NCCL (torch/distributed/constants.py, 2.1 to 2.13).
_DEFAULT_TIMEOUT_S = 600.0
#: The timeout grows by this factor, at most so often without progress, and to this limit.
_LONGER, _TIMES, _LONGEST_S = 3, 2, 14_400.0
#: Long activities of a rank while its peers wait for it.
_SLOW = frozenset({Phase.CHECKPOINT, Phase.EVAL, Phase.DATA, Phase.LOAD, Phase.INIT})
#: torch finds unused parameters when the second step begins.
_EARLY_STEPS = 2


@ladder_step("restart with NCCL's own log and torch's flight recorder on", tried="a restart with traced collectives")
def trace_collectives(situation: Situation) -> Plan | None:
    """Restart with both on, as long as the budget lasts; None if they are on already, or would show nothing."""
    plan = restart_within_budget(situation)
    no_timeout = situation.verdict.cause is Cause.GLOO_ERROR and not situation.fact("timeout")
    if situation.traced or plan.kind is PlanKind.STOP or no_timeout or network.is_down(situation):
        return None
    reason = f"{plan.reason}, with NCCL's own log and torch's flight recorder on: they name what hangs next time"
    return replace(plan, strategy="trace_collectives", reason=reason, trace=True)


def _longer_timeout(situation: Situation) -> Plan | None:
    late = _late(situation)
    now_s = _timeout_s(situation)
    if not late or now_s >= _LONGEST_S or situation.tried("longer_timeout") >= _TIMES or _timeout_is_the_scripts(situation):
        return None
    new_s = min(now_s * _LONGER, _LONGEST_S)
    knob = situation.enabled(network.TIMEOUT_KNOB)
    change = (
        Change(f"env:{network.TIMEOUT}", f"{now_s:.0f}", f"{new_s:.0f}", "process group timeout")
        if knob is None
        else Change(network.TIMEOUT_KNOB, knob.value, f"{new_s:.0f}", knob.how)
    )
    where = "" if knob else ", where the script sets no timeout"
    return plans.restart(
        "longer_timeout",
        f"{late}, and its peers waited {now_s:.0f} s for it: the process groups get {new_s:.0f} s{where}",
        changes=(change,),
    )


@ladder_step("stop (124): ranks wait for the end of a file that nobody is left to remove")
def left_file(situation: Situation) -> Plan | None:
    """Stop with 124 if ranks wait for the end of a file that nobody is left to remove: each restart would wait for it too.

    A build that was killed leaves its lock file so (pytorch #189245).
    """
    path = situation.fact("hang_left_file")
    if not path:
        return None
    return plans.stop(
        "left_file",
        124,
        f"the ranks wait until {path} is gone, and no process is left that would remove it: a restart would wait for it too",
        f"see that no other job uses the file, then: rm {quoted(path)}",
    )


def _timeout_missing(situation: Situation) -> str:
    if _late(situation) and _timeout_is_the_scripts(situation):
        own = f"the script sets its own timeout of {_timeout_s(situation):.0f} s"
        return f"longer_timeout has no effect: {own}; {option(network.TIMEOUT_KNOB, situation.policy.likely)} changes it"
    return network.not_enabled("longer_timeout", _longer_timeout)(situation)


@ladder_step(
    "three times the process groups' timeout where network.allow permits, if one rank only saved, evaluated or loaded",
    tried="a longer timeout",
    changes_job=True,
    harmless=True,
    missing=_timeout_missing,
)
def longer_timeout(situation: Situation) -> Plan | None:
    """Give process groups three times the time if one rank was merely late: it saved, evaluated or loaded while its peers waited."""
    return _longer_timeout(situation) if network.is_enabled(situation, "longer_timeout") else None


def _late(situation: Situation) -> str:
    """Return the late rank and its activity, by the hang's diagnosis or else by the ranks' last phases; "" where none was."""
    kind, phase = situation.fact("hang_kind"), situation.fact("hang_phase")
    if kind:
        ranks = situation.fact("hang_ranks")
        return f"rank {ranks} was in phase {phase}" if kind == HangKind.LATE and phase in _SLOW and ranks.isdigit() else ""
    phases = {f.rank: f.text for f in situation.evidence if (f.source, f.name) == ("heartbeat", "phase") and f.rank is not None}
    slow = [rank for rank, text in phases.items() if text in _SLOW]
    return f"rank {slow[0]} was in phase {phases[slow[0]]}" if len(slow) == 1 and len(phases) > 1 else ""


def _timeout_s(situation: Situation) -> float:
    """Return the timeout that passed, in seconds: as the evidence has it, else torch's default."""
    for name, unit_s in (("hang_group_timeout_s", 1.0), ("timeout_ms", 1e-3), ("timeout", 1.0)):
        text = situation.fact(name)
        if text.replace(".", "", 1).isdigit() and float(text) > 0:
            return float(text) * unit_s
    return CAUSE_TABLE[situation.verdict.cause].group_timeout_s or _DEFAULT_TIMEOUT_S


def _timeout_is_the_scripts(situation: Situation) -> bool:
    """Whether the groups timed out earlier than this step had set: the script passes its own timeout, which stays as it is."""
    now = dict(situation.overrides)
    new_timeout_s = now.get(network.TIMEOUT_KNOB) or now.get(f"env:{network.TIMEOUT}", "")
    return bool(new_timeout_s) and _timeout_s(situation) < float(new_timeout_s)


@ladder_step(
    "once: restart with TORCH_DISTRIBUTED_DEBUG, so that torch names what differs",
    tried="a restart in which torch names what differs",
    harmless=True,
)
def name_unsynced(situation: Situation) -> Plan | None:
    """Restart once with the level of TORCH_DISTRIBUTED_DEBUG that names what differs; None if torch named it, or the user set a level."""
    level, field, named = _LEVELS.get(_signature(situation), ("", "", ""))
    if not level or situation.fact(field) or situation.variable(DEBUG):
        return None
    plan = restart_within_budget(situation)
    if plan.kind is PlanKind.STOP:
        return None
    reason = f"{plan.reason}, once with {DEBUG}={level}, which names {named}"
    return replace(plan, strategy="name_unsynced", reason=reason, changes=(Change(f"env:{DEBUG}", "", level, DEBUG),))


@ladder_step("stop (65): torch named what differs, and a restart would fail the same way")
def unsynced(situation: Situation) -> Plan | None:
    """Stop with 65 once it is named and a restart would meet it again: it came again without progress, or within the first steps."""
    signature = _signature(situation)
    early = situation.before_first_step or (situation.step is not None and situation.step <= _EARLY_STEPS and situation.resume is None)
    _, field, _ = _LEVELS.get(signature, ("", "", ""))
    is_named = not field or bool(situation.fact(field))
    if signature not in _NAMED or not (situation.tried("name_unsynced") or (early and is_named)):
        return None
    return plans.stop(
        "unsynced",
        65,
        f"{explanation.summary(dict(situation.verdict.facts)) or situation.verdict.summary}: every restart meets it again",
        remedy(situation.verdict),
    )


def _signature(situation: Situation) -> str:
    """Return the id of the signature that the verdict is on, "" for none."""
    cause = Cause.DDP_UNSYNCED
    return next((fact.name for fact in situation.verdict.because if fact.claim is not None and fact.claim.cause is cause), "")
