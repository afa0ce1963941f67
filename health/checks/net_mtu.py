"""Do this node's ports of one speed have one MTU? Large packets between two that differ are lost, and the job hangs once it sends some."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from health.model import HOST, CheckResult, Repair, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from health.model import Readings
    from health.thresholds import Thresholds

NAME = "net_mtu"
NEEDS = ("ethernet", "infiniband")


def check(now: Readings, _before: Readings | None, _limits: Thresholds) -> Iterable[CheckResult]:
    """Judge the real interfaces that are up, those of one speed together. Other nodes' are env_nodes' to compare."""
    rows = {one.subject.removeprefix("nic:"): now.table("nic.state", one.subject) for one in now.of("nic.state")}
    up = {name: row for name, row in rows.items() if row.get("carrier") is True and row.get("virtual") is False and row.get("mtu")}
    if not up:
        yield CheckResult(NAME, HOST, Result.SKIPPED, "no Ethernet port of this machine's own is up")
        return
    wrong = False
    for speed in dict.fromkeys(str(row.get("speed_mb_s")) for row in up.values() if row.get("speed_mb_s")):
        # of unknown speed: they need have nothing to do with each other, and one of them may be the way in
        mtus = {name: int(str(row["mtu"])) for name, row in up.items() if str(row.get("speed_mb_s")) == speed}
        counts = Counter(mtus.values())
        if len(counts) < 2:  # noqa: PLR2004 -- two differ
            continue
        wrong = True
        usual = max(counts, key=lambda mtu: (counts[mtu], mtu))
        others = [name for name, mtu in mtus.items() if mtu != usual]
        why = f"{', '.join(others)}: another MTU than ports of the same speed ({usual})"
        evidence = tuple(f"{name} {mtu}" for name, mtu in mtus.items())
        yield CheckResult(NAME, HOST, Result.DEGRADED, why, evidence, Repair.CONFIGURE, f"ip link set {others[0]} mtu {usual}")
    if not wrong:
        yield CheckResult(
            NAME, HOST, Result.OK, "ports of one speed have one MTU", tuple(f"{name} {row['mtu']}" for name, row in up.items())
        )
