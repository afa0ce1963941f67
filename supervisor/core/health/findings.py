"""Decides by this node's findings whether an attempt may begin on it, and how to continue without a GPU.

Only a finding that blocks holds an attempt back: a GPU that is lost or must be reset, a driver that does not fit its library, no space for
one checkpoint. Every other finding is reported, and the job continues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from supervisor.classify.gpu import xid
from supervisor.core.actions import Alert, PrintMessage, Quarantine
from supervisor.core.failure import planning, teardown
from supervisor.core.model import Cause, Claim, Evidence, FailureVerdict, Launcher, Plan, PlanKind
from supervisor.core.nodes import replicas
from supervisor.core.values import replace
from supervisor.strategies.situation import overridden, with_excluded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.core.actions import Action
    from supervisor.core.model import Finding
    from supervisor.core.state import JobState, Step

NAME = "health"
#: The check of the ranks of a command against the GPUs that they will see (supervisor/node/rank_places.py).
RANK_PLACES = "rank_places"
#: Worse is greater.
WORSE = {"ok": 0, "degraded": 1, "failed": 2}
#: How many findings a line lists; `supervise doctor` lists all.
MOST_LISTED = 3
#: The cause of a check's finding, if it alone ends an attempt or prevents one. A check that is not listed has none.
CAUSES = {
    "gpu_errors": Cause.GPU_LOST,
    "gpu_count": Cause.GPU_LOST,
    "gpu_recovery": Cause.GPU_XID_OTHER,
    "gpu_events": Cause.GPU_XID_OTHER,
    "gpu_ecc": Cause.GPU_ECC,
    "gpu_sram": Cause.GPU_ECC,
    "gpu_remap": Cause.GPU_ECC,
    "gpu_retired": Cause.GPU_ECC,
    "gpu_nvlink": Cause.NVLINK,
    "gpu_fabric": Cause.NVLINK,
    "gpu_driver": Cause.GPU_DRIVER,
    "disk_space": Cause.DISK_FULL,
    RANK_PLACES: Cause.DEVICE_ORDINAL,
}
#: A finding is measured: a counter that moved, a code of the driver.
SURE = 0.95


#: After these causes the last examination of the node holds: the next attempt does not wait for another.
OF_THE_PROGRAM = frozenset(
    {
        *(Cause.USER_CODE, Cause.DATA_ERROR, Cause.NAN_LOSS, Cause.DDP_UNSYNCED, Cause.KILLED_UNKNOWN),
        *(Cause.CHECKPOINT_MISMATCH, Cause.CHECKPOINT_LEFTOVER),
    }
)


def known_findings(state: JobState) -> tuple[Finding, ...] | None:
    """Return the findings by which the next attempt may begin at once, None where this node must be examined first."""
    incident = state.run.incident
    verdict = incident.verdict if incident is not None else None
    gets_gpus = incident is not None and incident.plan is not None and incident.plan.all_ranks  # which nobody looked at meanwhile
    fit = state.run.reason == "failure" and verdict is not None and verdict.cause in OF_THE_PROGRAM and not gets_gpus
    return state.run.reported_findings if fit else None


class NodeDecision(NamedTuple):
    """How to begin on this node. stop: None if an attempt may begin."""

    state: JobState
    actions: tuple[Action, ...]
    stop: tuple[FailureVerdict, Plan] | None


def judged(state: JobState, t: float) -> NodeDecision:
    """Return how to begin on this node, by its findings."""
    findings = state.run.findings or ()
    usable = {gpu.uuid for gpu in state.gpus if not gpu.quarantined}
    known = {gpu.uuid for gpu in state.gpus}
    blocking = [
        finding for finding in findings if finding.blocks and not (finding.gpu in known and finding.gpu not in usable)
    ]  # out of use already
    failed = {
        finding.gpu: finding for finding in reversed(blocking) if finding.gpu in usable
    }  # each GPU's first finding, which is its worst
    others = [finding for finding in blocking if finding.gpu not in usable]
    notes = [finding for finding in findings if finding not in blocking]
    # a full disk may pass by itself: any other finding that is not a GPU's comes first
    hopeless = min(
        (finding for finding in others if not _of_a_gpu(finding)),
        key=lambda finding: CAUSES.get(finding.check) is Cause.DISK_FULL,
        default=None,
    )
    if hopeless is not None:
        state, actions = _reported(state, notes)
        why = "no rank is started" if hopeless.check == RANK_PLACES else "no attempt can run here until that is repaired"
        return NodeDecision(state, actions, _stop(hopeless, why))
    if not failed and not others:
        return NodeDecision(*_reported(state, notes), None)
    state, quarantined = _left_out(state, failed)
    first = next(iter([*failed.values(), *others]))
    state, fewer, why = _ranks(state, t, len(usable) - len(failed), len(usable) + len({finding.subject for finding in others}))
    stop = _stop(first, why, state.run.policy.clears if failed else "") if why else None
    state, actions = _reported(state, [*others, *notes] if stop is None else notes)
    return NodeDecision(state, (*actions, *quarantined, *fewer), stop)


def _of_a_gpu(finding: Finding) -> bool:
    """Whether it takes one GPU from the job, and not all of them."""
    return finding.subject.startswith("gpu:") or finding.check == "gpu_count"


def _reported(state: JobState, findings: list[Finding]) -> tuple[JobState, tuple[Action, ...]]:
    """Report new findings in one line. A finding that the last examination did not have may be reported again."""
    before = {reported_finding.about: WORSE.get(reported_finding.result, 0) for reported_finding in state.run.reported_findings}
    new = [finding for finding in findings if WORSE.get(finding.result, 0) > before.get(finding.about, 0)]
    state = state.with_run(reported_findings=tuple(findings))
    then = "it does not hold the next attempt back" if state.attempt.number else "the job continues"
    return state, (PrintMessage("warning", f"health: {summary(new)}; {then}"),) if new else ()


def summary(findings: Iterable[Finding]) -> str:
    """Return findings as a person reads them in one line, each reason once."""
    reasons = list(dict.fromkeys(finding.reason for finding in findings))
    more = f"; {len(reasons) - MOST_LISTED} more (supervise doctor)" if len(reasons) > MOST_LISTED else ""
    return "; ".join(reasons[:MOST_LISTED]) + more


def _left_out(state: JobState, failed: dict[str, Finding]) -> tuple[JobState, tuple[Action, ...]]:
    actions: list[Action] = []
    for gpu in state.gpus:
        finding = failed.get(gpu.uuid)
        if finding is not None:
            # a check of GPUs has named it already
            change = "taken out of use" if gpu.uuid in finding.reason else f"GPU {gpu.index} ({gpu.uuid}) is taken out of use"
            repair = f"repair: {finding.command}" if finding.command else finding.check
            actions.append(Quarantine(state.attempt.number, gpu, finding.reason, f"{finding.check}: {finding.reason}; {repair}"))
            actions.append(
                Alert(
                    "gpu_quarantined",
                    state.attempt.number,
                    f"{change}: {finding.reason}",
                    gpu.uuid,
                )
            )
            plan = Plan(PlanKind.RESTART, finding.reason, "", NAME, exclude=(gpu.uuid,))
            state = replace(state, gpus=with_excluded(state.gpus, plan, finding.reason))
    return state, tuple(actions)


def _ranks(state: JobState, t: float, left: int, there: int) -> tuple[JobState, tuple[Action, ...], str]:
    """Return the state with the ranks that `left` GPUs are enough for, and why that cannot be, "" where it can.

    there: how many GPUs there are if all are well; a command that names no number uses all of them.
    """
    policy = state.run.policy
    if policy.launcher is not Launcher.ELASTIC:
        if state.run.all_ranks:
            return state, (), f"{replicas.left_text(left)}, and the program loads its checkpoints with as many ranks as saved them only"
        fits = replicas.whole(left, policy.replica_size)
        if fits and policy.gpus.minimum and policy.restart.batch_drift and fits >= policy.gpus.minimum:
            return state, (), ""
        them = "the others" if fits == left else f"{fits} of them, in whole replicas of {policy.replica_size} ranks"
        helps = f"; --min-gpus {fits} --allow-batch-drift lets it see {them}" if fits else ""
        if left and not fits:
            helps = f", too few for a replica of {policy.replica_size} ranks"
        return state, (), f"the command chooses its number of ranks by itself, and {replicas.left_text(left)}{helps}"
    wanted = state.run.nproc or state.run.command_nproc or there
    if left >= wanted:
        return state, (), ""
    fewer = planning.fewer(state, t, wanted, left)
    if isinstance(fewer, str):
        return state, (), fewer.replace("; to continue with them, ", "; to continue with them: ")
    state = state.with_run(nproc=fewer.nproc, overrides=overridden(state.run.overrides, fewer.changes))
    text = f"{fewer.nproc} of {wanted} ranks, because GPUs are out of use; {'; '.join(fewer.notes)}"
    return state, (PrintMessage("warning", text), Alert("batch_changed", state.attempt.number, text)), ""


def _stop(finding: Finding, why: str, clears: str = "") -> tuple[FailureVerdict, Plan]:
    cause = CAUSES.get(finding.check, Cause.NONE)
    verdict = FailureVerdict(cause, SURE, finding.reason, f"{NAME}:{finding.check}", because=evidence((finding,), 0.0), gpu=finding.gpu)
    back = f", then `{clears} {finding.gpu}` if it is not back by itself" if clears and finding.gpu else ""
    of_command = finding.check == RANK_PLACES  # which another node may refuse, too
    how = "write" if of_command else "repair it:"
    repair = f"{how} {finding.command}{back}" if finding.command else f"`supervise doctor` shows more{back}"
    hint = f"{repair}; --set health.enabled=false starts in spite of it"
    code = 78 if of_command else 69
    return verdict, Plan(PlanKind.STOP, f"{finding.reason}: {why}", hint, NAME, code)


def evidence(findings: Iterable[Finding], t: float) -> tuple[Evidence, ...]:
    """Return findings as evidence. An Xid's cause is the catalogue's, whichever check reports it."""
    return tuple(_evidence(finding, t) for finding in findings)


def _evidence(finding: Finding, t: float) -> Evidence:
    kind, _, name = finding.subject.partition(":")
    gpu = {"gpu_uuid": finding.gpu} if finding.gpu else {"pci": name} if kind == "pci" else {}
    cause, hardware = xid.read(finding.event) or (CAUSES.get(finding.check, Cause.NONE), "yes")
    fields = {
        **gpu,
        **({"hardware": hardware} if gpu else {}),
        **({"xid": finding.event.split()[1]} if finding.event.startswith("xid ") else {}),
    }
    return Evidence(NAME, finding.check, finding.reason, t=t, fields=tuple(fields.items()), claim=Claim(cause, SURE, transient=True))


def evict(state: JobState, t: float) -> Step:
    """End an attempt whose ranks run, for a fault of this node (health.evict_on)."""
    return teardown.stop_attempt(state, t, f"health: {summary(state.attempt.eviction)}")
