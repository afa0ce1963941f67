"""Correlates the messages of one kernel's log: which of them are findings, which belong together, and which repair they need.

    bursts     lines of one form on one device: one finding with a count
    sequences  the lines about one OOM kill, AER error, SXid or NFS outage: one finding
    parts      a line that belongs to another finding; a finding by itself only if that other one is not in the log
    ends       a device came back: its finding becomes less severe, and the reason says how long it lasted. An end without a beginning is
               no finding, except for an InfiniBand port that got its link long after the boot
    steps      carrier losses are findings only if they repeat, or if an InfiniBand port lost its link; not around a boot

In a log with more than MOST_FINDINGS findings, the oldest are only counted (`forgotten`).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from health.kernellog.event_builder import FIELDS, EventBuilder, begin, may_be_same, plain_pci
from health.kernellog.messages import KernelMatch, Role, oom_meaning, recognise
from health.kernellog.model import Entry, LogFinding
from health.model import Repair, Severity, worse
from health.nvidia import xid_history, xid_policy, xid_registers
from health.nvidia.xid_history import DAY_S, EventIndex, Memory, XidEvent
from health.nvidia.xid_policy import Around

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

#: A message within so many seconds of the last one, of one kind and device, belongs to the same finding.
BURST_S: Final = {
    "nvrm": DAY_S,
    "aer": 3600.0,
    "edac": 3600.0,
    "throttle": 3600.0,
    "fs": 3600.0,
    "disk": 3600.0,
    "hung_task": 3600.0,
    "nfs": 600.0,
}
BURST_ELSE_S: Final = 600.0
#: The lines of one event come within so many seconds.
EVENT_S: Final = 60.0
#: So long after a boot, links come up one after another, and some go down in between.
BOOTING_S: Final = 300.0
#: Carrier losses of one interface that are a finding: 3 within an hour (gpud's flap), or 5 within a day (Azure NHC's default).
FLAPS: Final = ((3, 3600.0), (5, DAY_S))
MOST_FINDINGS: Final = 20_000
_ANNOUNCES: Final = 154

#: The kinds that a part may belong to, if not its own.
_BELONGS: Final = {"gpu_uuid": {"xid", "nvrm"}, "crash_dump": {"xid", "nvrm"}, "logged": {"mce", "edac", "apei"}}
_PLACE = re.compile(r"GPC (\d+), TPC (\d+)")
_PREVIOUS = re.compile(r"caused by previous Xid (\d+)")


class Correlator:
    """Takes the entries of one log in their order. `findings` may be called at any time."""

    def __init__(self, xids: Memory | None = None) -> None:
        """Begin. xids: the earlier Xids of this node; those of this log are added."""
        self._memory = xids if xids is not None else Memory()
        self._builders: list[EventBuilder] = []
        self._open: dict[tuple[str, ...], EventBuilder] = {}
        self._oom: dict[str, EventBuilder] = {}
        self._losses: dict[tuple[str, str], list[Entry]] = {}
        self._active: set[tuple[str, str]] = set()
        self._booted: dict[str, float | None] = {}
        self._first: Entry | None = None
        self._found: tuple[LogFinding, ...] | None = None  # dropped with the next match
        self.forgotten: Counter[Severity] = Counter()

    def take_all(self, entries: Iterable[Entry]) -> None:
        """Take many."""
        for entry in entries:
            self.take(entry)

    def take(self, entry: Entry) -> None:
        """Take one message."""
        self._first = self._first or entry
        if entry.text.startswith("Linux version "):
            self._found = None
            self._boot(entry)
            return
        match = recognise(entry.text, sure=entry.sure)
        if match is None:
            return
        self._found = None
        if len(self._builders) >= MOST_FINDINGS:
            self._forget()
        kind = match.form.kind
        if kind == "xid":
            self._xid(entry, match)
        elif kind == "oom":
            self._take_oom(entry, match)
        elif match.form.role is Role.END:
            self._end(entry, match)
        elif match.form.role is Role.STEP:
            self._step(entry, match)
        elif match.form.role is Role.PART:
            self._part(entry, match)
        else:
            self._whole(entry, match)

    def findings(self) -> tuple[LogFinding, ...]:
        """Return the findings so far, in the order in which they began."""
        if self._found is None:
            self._found = tuple(sorted((*self._judged(self._builders), *self._flapping()), key=lambda finding: finding.number))
        return self._found

    def _judged(self, builders: Iterable[EventBuilder]) -> list[LogFinding]:
        known, announced = self._memory.index(), self._announced()
        return [self._finding(builder, known, announced) for builder in builders if not builder.dropped]

    def _forget(self) -> None:
        """Make room: drop the oldest tenth, and count it by severity."""
        old = self._builders[: MOST_FINDINGS // 10]
        self.forgotten.update(log_finding.severity for log_finding in self._judged(old))
        self._builders = self._builders[len(old) :]
        gone = {id(builder) for builder in old}
        self._open = {key: builder for key, builder in self._open.items() if id(builder) not in gone}
        self._oom = {host: builder for host, builder in self._oom.items() if id(builder) not in gone}

    def _whole(self, entry: Entry, match: KernelMatch) -> EventBuilder:
        builder = begin(entry, match)
        key: tuple[str, ...] = (
            entry.host,
            builder.kind,
            str(builder.code),
            plain_pci(builder.pci),
            builder.subject,
            builder.fields.get("process", "") * (builder.kind == "hung_task"),
        )
        if builder.kind == "sxid":
            key = (*key, builder.fields.get("link", ""))
            known = self._same_sxid(builder)
        else:
            known = self._open.get(key)
        if known is not None and known.is_near(
            entry, DAY_S if known.kind == "nfs" and not known.ended else BURST_S.get(builder.kind, BURST_ELSE_S)
        ):
            known.add(entry)
            known.ended = False
            known.severity = worse(known.severity, builder.severity)
            return known
        self._absorb(builder, entry)
        self._open[key] = builder
        self._builders.append(builder)
        return builder

    def _same_sxid(self, builder: EventBuilder) -> EventBuilder | None:
        """Return the event that a line of an SXid belongs to. Its lines of severity and data do not name the link, and may come first."""
        link = builder.fields.get("link", "")
        known = self._last(
            lambda other: (
                (other.kind, other.code, other.pci) == ("sxid", builder.code, builder.pci)
                and ("" in {link, other.fields.get("link", "")} or link == other.fields["link"])
            )
        )
        if known is not None and link and "link" not in known.fields:
            known.fields["link"] = link
            known.severity, known.repair, known.meaning, known.reason = builder.severity, builder.repair, builder.meaning, builder.reason
        elif known is not None:
            builder.severity = known.severity
        return known

    def _part(self, entry: Entry, match: KernelMatch) -> None:
        kinds = _BELONGS.get(match.form.code, {match.form.kind})
        pci = match.groups.get("pci", "")
        whole = self._last(lambda builder: builder.kind in kinds and builder.is_near(entry, EVENT_S) and may_be_same(builder.pci, pci))
        if match.form.kind == "throttle":
            whole = self._last(lambda builder: builder.kind == "throttle" and builder.entry.host == entry.host)
        if whole is None:
            self._whole(entry, match)
            return
        whole.add(entry)
        if "uuid" in match.groups:
            whole.fields.setdefault("uuid", match.groups["uuid"])
        if match.form.code in {"recovered", "cpu_throttle_end"}:
            whole.reason = match.form.meaning

    def _absorb(self, builder: EventBuilder, entry: Entry) -> None:
        """Add the parts that came just before: they are not findings by themselves."""
        if builder.form.role is Role.PART:
            return
        for earlier in reversed(self._builders[-16:]):
            kinds = _BELONGS.get(earlier.form.code, {earlier.kind})
            alike = builder.kind in kinds and may_be_same(earlier.pci, builder.pci)
            if earlier.form.role is Role.PART and not earlier.dropped and alike and earlier.is_near(entry, EVENT_S):
                earlier.dropped = True
                builder.count += earlier.count
                if "uuid" in earlier.fields:
                    builder.fields.setdefault("uuid", earlier.fields["uuid"])

    def _end(self, entry: Entry, match: KernelMatch) -> None:
        subject = match.groups.get("subject", "")
        self._active.add((entry.host, subject))
        kind = match.form.kind
        builder = self._last(
            lambda known: (
                known.kind == kind
                and not known.ended
                and (not subject or known.subject in {subject, ""} or subject.startswith(known.subject))
            )
        )
        if builder is None or (kind == "mlx5" and builder.code != "link_down"):
            if kind == "mlx5" and not self._is_booting(entry) and not self._may_begin_in_a_boot(entry):
                self._whole(entry, match)  # its loss is not in this log
            return
        builder.ended = True
        lasted = entry.t - builder.entry.t if entry.t is not None and builder.entry.t is not None else None
        builder.severity = Severity.WARNING
        builder.reason = "over" if lasted is None else f"over after {lasted:.0f} s"
        first_time = builder.fields.get("first_time") == "yes"
        if kind == "mlx5" and first_time and (lasted is None or 0 <= lasted <= BOOTING_S):
            builder.dropped = True  # it was never there before: a boot
        builder.add(entry)

    def _step(self, entry: Entry, match: KernelMatch) -> None:
        if self._is_booting(entry):
            return
        subject = match.groups.get("subject", "")
        if match.form.kind == "netdev":
            self._losses.setdefault((entry.host, subject), []).append(entry)
            return
        builder = self._whole(entry, match)
        if builder.count == 1 and (entry.host, subject) not in self._active:
            builder.fields["first_time"] = "yes"

    def _xid(self, entry: Entry, match: KernelMatch) -> None:
        code, groups = int(match.groups["xid"]), match.groups
        pci, rest = groups["pci"].lower(), groups.get("rest", "")
        place = _PLACE.search(rest)
        known = self._open.get(("xid", entry.host, str(code), plain_pci(pci)))
        if known is not None and xid_history.same_burst(code, known.last_t, entry.t) and _same_verdict(code, known.rest, rest):
            known.add(entry)
        else:
            known = begin(entry, match)
            known.code, known.rest = code, rest
            known.event = XidEvent(code, f"{entry.host}/{plain_pci(pci)}", entry.t)
            self._memory.add(known.event)
            self._absorb(known, entry)
            self._open["xid", entry.host, str(code), plain_pci(pci)] = known
            self._builders.append(known)
        if place is not None and known.event is not None:
            known.event.place |= {f"{place[1]}/{place[2]}"}

    def _take_oom(self, entry: Entry, match: KernelMatch) -> None:
        code, pid = match.form.code, match.groups.get("pid", "")
        names_victim = match.form.anchor in {"Memory cgroup out of memory", "Out of memory", "illed process", "oom_reaper: reaped"}
        builder = self._oom.get(entry.host)
        if builder is not None and (not builder.is_near(entry, EVENT_S) or code == "start"):
            builder = None
        if builder is not None and (
            builder.fields.get("killed", "") not in {"", pid} or (builder.fields.get("killed") and not names_victim)
        ):
            builder = None
        if builder is None:
            builder = begin(entry, match)
            self._oom[entry.host] = builder
            self._builders.append(builder)
        else:
            builder.add(entry)
            if (code == "memcg" and builder.code != "memcg") or builder.code == "start" or (code == "global" and builder.code == "victim"):
                builder.code, builder.severity = code, match.form.severity
            builder.fields |= {key: match.groups[key] for key in FIELDS if key in match.groups}
        if names_victim and pid and not builder.fields.get("killed"):
            builder.fields["killed"] = pid
            builder.entry = replace(entry, t=builder.entry.t)
        builder.meaning = oom_meaning(str(builder.code))
        scope = {"memcg": "container", "global": "host", "no_victim": "host"}.get(str(builder.code))
        if scope:
            builder.fields["scope"] = scope

    def _boot(self, entry: Entry) -> None:
        self._booted[entry.host] = entry.t
        for builder in self._builders:
            if builder.form.role is Role.STEP and not builder.ended and builder.is_near(entry, BOOTING_S):
                builder.dropped = True  # the node was going down
        for losses in self._losses.values():
            losses[:] = [loss for loss in losses if loss.t is not None and entry.t is not None and not 0 <= entry.t - loss.t <= BOOTING_S]
        self._open.clear()

    def _is_booting(self, entry: Entry) -> bool:
        if entry.uptime_s is not None:
            return entry.uptime_s < BOOTING_S
        booted = self._booted.get(entry.host)
        return booted is not None and entry.t is not None and 0 <= entry.t - booted < BOOTING_S

    def _may_begin_in_a_boot(self, entry: Entry) -> bool:
        """Whether the log begins shortly before an entry and does not show when the node booted: it may be cut within a boot."""
        first = self._first
        return entry.uptime_s is None and first is not None and first is not entry and _within(first.t, entry.t, BOOTING_S)

    def _last(self, wanted: Callable[[EventBuilder], bool]) -> EventBuilder | None:
        return next((builder for builder in reversed(self._builders[-256:]) if not builder.dropped and wanted(builder)), None)

    def _finding(
        self, builder: EventBuilder, known: EventIndex, announced: Mapping[str, Sequence[tuple[float | None, Repair]]]
    ) -> LogFinding:
        same_gpu, fields = "", {key: value for key, value in builder.fields.items() if key not in {"killed", "first_time"}}
        if builder.event is not None and isinstance(builder.code, int):
            judged = xid_policy.judge(builder.code, builder.rest, _around(builder, known, announced))
            builder.severity, builder.repair, builder.meaning, builder.reason = (
                judged.severity,
                judged.repair,
                judged.meaning,
                judged.reason,
            )
            same_gpu, fields = judged.same_gpu, fields | {"origin": judged.origin}
            decoded = xid_registers.decode(builder.code, builder.rest)
            if decoded is not None:
                fields |= {key: value for key, value in (("link", decoded.link), ("unit", decoded.unit)) if value}
        return LogFinding(
            builder.kind,
            builder.code,
            builder.severity,
            builder.repair,
            builder.meaning,
            builder.entry.line,
            builder.entry.number,
            builder.pci,
            builder.subject,
            builder.entry.t,
            builder.last_t,
            builder.count,
            same_gpu,
            builder.reason,
            tuple(fields.items()),
        )

    def _announced(self) -> dict[str, list[tuple[float | None, Repair]]]:
        """Return the repairs that the driver announced, by GPU, with their times."""
        repairs: dict[str, list[tuple[float | None, Repair]]] = {}
        for builder in self._builders:
            if (
                builder.code == _ANNOUNCES
                and builder.event is not None
                and (decoded := xid_registers.decode(_ANNOUNCES, builder.rest)) is not None
            ):
                repairs.setdefault(builder.event.gpu, []).append((builder.entry.t, decoded.repair))
        return repairs

    def _flapping(self) -> list[LogFinding]:
        flaps = []
        for (host, nic), losses in self._losses.items():
            limit = next((limit for limit in FLAPS if _most_within(losses, limit[1]) >= limit[0]), None)
            if limit is None:
                continue
            first, last = losses[0], losses[-1]
            ib = nic.startswith("ib")
            reason = f"{_most_within(losses, limit[1])} times within {limit[1] / 3600:.0f} h"
            fields = (("host", host),) if host else ()
            meaning = "a network link comes and goes: look at its cable and module"
            flaps.append(
                LogFinding(
                    "netdev",
                    "flapping",
                    Severity.ERROR if ib else Severity.WARNING,
                    Repair.REPLACE,
                    meaning,
                    first.line,
                    first.number,
                    "",
                    nic,
                    first.t,
                    last.t,
                    len(losses),
                    "",
                    reason,
                    fields,
                )
            )
        return flaps


def _around(builder: EventBuilder, known: EventIndex, announced: Mapping[str, Sequence[tuple[float | None, Repair]]]) -> Around:
    event = builder.event
    assert event is not None  # noqa: S101  an Xid's builder has one
    repair = next(
        (announced_repair for t, announced_repair in reversed(announced.get(event.gpu, ())) if _within(t, event.t, BOOTING_S)), None
    )
    detail = xid_history.DETAIL_OF.get(event.code)
    before = known.before(event, frozenset({detail}) if detail is not None else None)
    previous = _PREVIOUS.search(builder.rest)
    return Around(known.past(event), before, repair, previous[1] if previous else "")


def _same_verdict(code: int, verdict: str, other: str) -> bool:
    """Whether two lines of one code may be one event. If their registers decide, they must decide alike."""
    first, second = xid_registers.decode(code, verdict), xid_registers.decode(code, other)
    if first is None or second is None:
        return first is second
    return (first.verdict, first.repair, first.link, first.unit) == (second.verdict, second.repair, second.link, second.unit)


def _within(t: float | None, other: float | None, within_s: float) -> bool:
    return t is None or other is None or abs(t - other) <= within_s


def _most_within(losses: list[Entry], within_s: float) -> int:
    """Return the most losses that lie within so many seconds; without times, all of them."""
    times = [entry.t for entry in losses]
    known = sorted(t for t in times if t is not None)
    if len(known) < len(times):
        return len(times)
    return max((sum(1 for t in known if start <= t <= start + within_s) for start in known), default=0)
