"""What people do without a supervisor: torchrun's own restarts, or the scheduler's requeue. They meet the faults that the core meets.

Neither verifies a checkpoint: a file that a failure left half written is loaded again and again. Neither leaves out a node: one that is
broken is met again, until a person comes. torchrun's hangs at restarts (a store that attempts share, pytorch #167288) are left out, which
favours it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tests.simulation.fleet.rates import DAY_S, Symptom
from tests.simulation.fleet.site import Account

if TYPE_CHECKING:
    from tests.simulation.fleet.machines import Machines
    from tests.simulation.fleet.rates import Fault
    from tests.simulation.fleet.site import Site

#: Starts in a row without a new step after which somebody looks at a job that is requeued again and again.
VAIN_STARTS = 3


class Baseline(Protocol):
    """What happens after the end of an attempt."""

    def after(self, fault: Fault | None, *, gained: bool, site: Site) -> tuple[float, bool]:
        """Return the seconds until the next attempt's order, and whether a person came. fault None: the newest checkpoint is torn."""


@dataclass(slots=True)
class Torchrun:
    """`torchrun --max-restarts=N`: each agent counts its own restarts; a node that does not come back ends the rendezvous."""

    most: int = 3
    used: dict[int, int] = field(default_factory=dict)

    def after(self, fault: Fault | None, *, gained: bool, site: Site) -> tuple[float, bool]:
        """Start again in place, while the node's agent has restarts left and all nodes are there."""
        del gained
        slot = fault.slot if fault is not None else 0
        if fault is not None and fault.kind.symptom is Symptom.LOST:
            self.used.clear()
            return site.join_s + site.person_s, True
        self.used[slot] = self.used.get(slot, 0) + 1
        if self.used[slot] <= self.most:
            return site.switch_s, False
        self.used.clear()
        return site.person_s, True


@dataclass(slots=True)
class Requeue:
    """Every failure ends the job, and the scheduler starts it again. A node that is gone is left out; one that is broken is not."""

    vain: int = 0

    def after(self, fault: Fault | None, *, gained: bool, site: Site) -> tuple[float, bool]:
        """Be queued again; in vain several times in a row, a person looks."""
        self.vain = 0 if gained else self.vain + 1
        if self.vain >= VAIN_STARTS:
            self.vain = 0
            return site.person_s, True
        return site.requeue_s + (site.lost_s if fault is not None and fault.kind.symptom is Symptom.LOST else 0.0), False


def played(machines: Machines, days: float, policy: Baseline) -> Account:
    """Let a job run for so many days; return where the time went."""
    course, account, end = machines.course, Account(), days * DAY_S
    site = course.site
    t, high, saved, torn = 0.0, 0, 0, False
    stood_from = 0.0
    while t < end:
        fault = None if torn else machines.strikes(t)
        ready_t = min(t + course.starts_s, end)
        if torn:
            over_t = ready_t  # it ends where the file is read
        else:
            over_t = min(end, fault.t + (site.watchdog_s if fault.kind.symptom is Symptom.HANG else 0.0)) if fault is not None else end
        account.starting_s += min(ready_t, over_t) - t
        trained_s = max((min(fault.t, end) if fault is not None else over_t) - ready_t, 0.0)
        reached = course.reached(trained_s)
        gained = saved + reached.steps > high
        account.longest_s = max(account.longest_s, ready_t - stood_from) if reached.steps else account.longest_s
        new = max(saved + reached.steps - high, 0)
        account.useful_s += new * site.step_s
        account.saving_s += reached.saves * site.save_s
        account.redone_s += trained_s - new * site.step_s - reached.saves * site.save_s
        high = max(high, saved + reached.steps)
        if reached.steps:
            stood_from = ready_t + trained_s
        saved += reached.saved or 0
        if over_t >= end:
            account.standing_s += end - t - (min(ready_t, over_t) - t) - trained_s
            break
        account.interruptions += 1
        was_torn, torn = torn, torn or (reached.torn and not (fault is not None and fault.kind.symptom is Symptom.HANG))
        after_s, person = policy.after(None if was_torn else fault, gained=gained, site=site)
        if person:
            account.persons += 1
            machines.repair()
            torn = False
        elif fault is not None and fault.kind.symptom is Symptom.LOST:
            machines.replace(fault.slot)
        following = min(over_t + after_s, end)
        account.standing_s += following - max(ready_t, t) - trained_s if over_t >= ready_t else following - over_t
        t = following
    return account
