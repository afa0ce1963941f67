"""Takes back what a step set for the network once health says that its cause is gone (strategies/network.py).

Health must have shown the cause before: a port that is down, say. Without a GPU, health reads no network, so nothing is taken back. The
next attempt then runs as the user wrote it. If it fails so again, the same step has acted already, and the next one answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.core.actions import PrintMessage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.core.actions import Action
    from supervisor.core.model import Change, Finding
    from supervisor.core.state import JobState, Run

#: The findings that are the cause of a detour: by variable, how their subject begins, and their checks (empty: all).
_CAUSES: dict[str, tuple[str, tuple[str, ...]]] = {
    "env:NCCL_SOCKET_IFNAME": ("nic:", ()),
    "env:GLOO_SOCKET_IFNAME": ("nic:", ()),
    "env:NCCL_IB_DISABLE": ("port:", ()),
    "env:NCCL_P2P_DISABLE": ("gpu:", ("gpu_nvlink", "gpu_fabric", "gpu_pcie")),
    "env:NCCL_SHM_DISABLE": ("host", ("host_shm",)),
}


def caused(run: Run, changes: Iterable[Change]) -> tuple[tuple[str, str], ...]:
    """Return the run's detours with those of a plan: what health showed of their causes when the plan was made, and nothing later."""
    seen = dict(run.detours)
    for change in changes:
        if change.knob in _CAUSES:
            seen.pop(change.knob, None)
            if subjects := _subjects(change.knob, run.reported_findings):
                seen[change.knob] = " ".join(subjects)
    return tuple(seen.items())


def reviewed(state: JobState, findings: tuple[Finding, ...]) -> tuple[JobState, tuple[Action, ...]]:
    """Return the state for the next attempt, by what health finds before it, and the message where a variable is taken back."""
    seen, over, kept = dict(state.run.detours), {}, {}
    for knob, _ in state.run.overrides:
        if knob not in _CAUSES:
            continue
        known = seen.get(knob, "").split()
        ill = _subjects(knob, findings)
        if known and not set(known) & set(ill):
            over[knob] = " ".join(known)
        elif known or ill:
            kept[knob] = " ".join(known or ill)
    if not over:
        return state.with_run(detours=tuple(kept.items())), ()
    overrides = tuple(row for row in state.run.overrides if row[0] not in over)
    state = state.with_run(overrides=overrides, detours=tuple(kept.items()))
    names = ", ".join(f"{knob.removeprefix('env:')} (set for {subjects})" for knob, subjects in over.items())
    return state, (PrintMessage("info", f"health: the cause is gone, so the next attempt runs without {names}"),)


def _subjects(knob: str, findings: Iterable[Finding]) -> list[str]:
    prefix, checks = _CAUSES[knob]
    subjects = (finding.subject for finding in findings if finding.subject.startswith(prefix) and (not checks or finding.check in checks))
    return list(dict.fromkeys(subjects))
