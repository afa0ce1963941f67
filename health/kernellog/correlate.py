"""Judges the messages of one kernel's log: which of them are findings, which belong together, and what is to be done.

In: entries, in their order (`take`). Out: the findings so far, in the order in which they began (`findings`), as often as asked; of a log
with more than MOST_STORIES the oldest are counted only (`forgotten`). The state is the owner's: one Judge for each log. Nothing fails.
Ordinary messages give nothing.

    bursts   of one form, on one device: one finding with a count
    stories  the lines that the kernel writes of one OOM kill, one AER error, one SXid, one NFS outage: one finding
    parts    a line that belongs to another finding is one by itself only where that is not in the log
    ends     what came back is over: less severe, and the reason says for how long it lasted; nothing without a beginning, but for an
             InfiniBand port that got its link long after the boot
    steps    carrier losses are findings only where they repeat, or where an InfiniBand port lost its link; not around a boot
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from health.kernellog.event_builder import FIELDS, OOM, Story, begun, may_be, plain_pci
from health.kernellog.message_form import Match, Role
from health.kernellog.messages import recognise
from health.kernellog.model import Entry, Finding, Severity, worse
from health.model import Repair
from health.nvidia import xid_history, xid_policy, xid_registers
from health.nvidia.xid_history import DAY_S, Event, Memory, Sorted
from health.nvidia.xid_policy import Around

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

#: Within how many seconds of its last line a message of the same kind on the same device is of the same finding.
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
#: Within how many seconds the lines of one story come.
STORY_S: Final = 60.0
#: After a boot links come up one after another, and go down on the way.
BOOTING_S: Final = 300.0
#: Carrier losses of one interface that are a finding: 3 within an hour (gpud's flap), or 5 within a day (Azure NHC's default).
FLAPS: Final = ((3, 3600.0), (5, DAY_S))
MOST_STORIES: Final = 20_000
_ANNOUNCES: Final = 154

#: What kinds a part may belong to, where it is not its own.
_BELONGS: Final = {"gpu_uuid": {"xid", "nvrm"}, "crash_dump": {"xid", "nvrm"}, "logged": {"mce", "edac", "apei"}}
_PLACE = re.compile(r"GPC (\d+), TPC (\d+)")
_PREVIOUS = re.compile(r"caused by previous Xid (\d+)")


class Judge:
    """Judges one log."""

    def __init__(self, xids: Memory | None = None) -> None:
        """Prepare. xids: what is remembered of this node from before, and is added to."""
        self._memory = xids if xids is not None else Memory()
        self._stories: list[Story] = []
        self._open: dict[tuple[str, ...], Story] = {}
        self._oom: dict[str, Story] = {}
        self._losses: dict[tuple[str, str], list[Entry]] = {}
        self._active: set[tuple[str, str]] = set()
        self._booted: dict[str, float | None] = {}
        self._first: Entry | None = None
        self._found: tuple[Finding, ...] | None = None  # until there is more
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
        if len(self._stories) >= MOST_STORIES:
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

    def findings(self) -> tuple[Finding, ...]:
        """Return what was found so far, in the order in which it began."""
        if self._found is None:
            self._found = tuple(sorted((*self._judged(self._stories), *self._flapping()), key=lambda one: one.number))
        return self._found

    def _judged(self, stories: Iterable[Story]) -> list[Finding]:
        known, announced = self._memory.sorted(), self._announced()
        return [self._finding(story, known, announced) for story in stories if not story.dropped]

    def _forget(self) -> None:
        """Make room: the oldest tenth is counted, by severity, and not told one by one."""
        old = self._stories[: MOST_STORIES // 10]
        self.forgotten.update(one.severity for one in self._judged(old))
        self._stories = self._stories[len(old) :]
        gone = {id(story) for story in old}
        self._open = {key: story for key, story in self._open.items() if id(story) not in gone}
        self._oom = {host: story for host, story in self._oom.items() if id(story) not in gone}

    def _whole(self, entry: Entry, match: Match) -> Story:
        story = begun(entry, match)
        key: tuple[str, ...] = (
            entry.host,
            story.kind,
            str(story.code),
            plain_pci(story.pci),
            story.subject,
            story.fields.get("process", "") * (story.kind == "hung_task"),
        )
        if story.kind == "sxid":
            key = (*key, story.fields.get("link", ""))
            known = self._same_sxid(story)
        else:
            known = self._open.get(key)
        if known is not None and known.near(
            entry, DAY_S if known.kind == "nfs" and not known.ended else BURST_S.get(story.kind, BURST_ELSE_S)
        ):
            known.grow(entry)
            known.ended = False
            known.severity = worse(known.severity, story.severity)
            return known
        self._absorb(story, entry)
        self._open[key] = story
        self._stories.append(story)
        return story

    def _same_sxid(self, story: Story) -> Story | None:
        """Return the event that a line of an SXid is of: its lines of severity and data do not name the link, and may come first."""
        link = story.fields.get("link", "")
        known = self._last(
            lambda one: (
                (one.kind, one.code, one.pci) == ("sxid", story.code, story.pci)
                and ("" in {link, one.fields.get("link", "")} or link == one.fields["link"])
            )
        )
        if known is not None and link and "link" not in known.fields:
            known.fields["link"] = link
            known.severity, known.repair, known.meaning, known.reason = story.severity, story.repair, story.meaning, story.reason
        elif known is not None:
            story.severity = known.severity
        return known

    def _part(self, entry: Entry, match: Match) -> None:
        kinds = _BELONGS.get(match.form.code, {match.form.kind})
        pci = match.groups.get("pci", "")
        whole = self._last(lambda one: one.kind in kinds and one.near(entry, STORY_S) and may_be(one.pci, pci))
        if match.form.kind == "throttle":
            whole = self._last(lambda one: one.kind == "throttle" and one.entry.host == entry.host)
        if whole is None:
            self._whole(entry, match)
            return
        whole.grow(entry)
        if "uuid" in match.groups:
            whole.fields.setdefault("uuid", match.groups["uuid"])
        if match.form.code in {"recovered", "cpu_throttle_end"}:
            whole.reason = match.form.meaning

    def _absorb(self, story: Story, entry: Entry) -> None:
        """Take parts that came just before: they are no findings by themselves."""
        if story.form.role is Role.PART:
            return
        for part in reversed(self._stories[-16:]):
            kinds = _BELONGS.get(part.form.code, {part.kind})
            alike = story.kind in kinds and may_be(part.pci, story.pci)
            if part.form.role is Role.PART and not part.dropped and alike and part.near(entry, STORY_S):
                part.dropped = True
                story.count += part.count
                if "uuid" in part.fields:
                    story.fields.setdefault("uuid", part.fields["uuid"])

    def _end(self, entry: Entry, match: Match) -> None:
        subject = match.groups.get("subject", "")
        self._active.add((entry.host, subject))
        kind = match.form.kind
        story = self._last(
            lambda one: (
                one.kind == kind and not one.ended and (not subject or one.subject in {subject, ""} or subject.startswith(one.subject))
            )
        )
        if story is None or (kind == "mlx5" and story.code != "link_down"):
            if kind == "mlx5" and not self._is_booting(entry) and not self._may_begin_in_a_boot(entry):
                self._whole(entry, match)  # its loss is not in this log
            return
        story.ended = True
        lasted = entry.t - story.entry.t if entry.t is not None and story.entry.t is not None else None
        story.severity = Severity.WARNING
        story.reason = "over" if lasted is None else f"over after {lasted:.0f} s"
        first_time = story.fields.get("first_time") == "yes"
        if kind == "mlx5" and first_time and (lasted is None or 0 <= lasted <= BOOTING_S):
            story.dropped = True  # it was never there before: a boot
        story.grow(entry)

    def _step(self, entry: Entry, match: Match) -> None:
        if self._is_booting(entry):
            return
        subject = match.groups.get("subject", "")
        if match.form.kind == "netdev":
            self._losses.setdefault((entry.host, subject), []).append(entry)
            return
        story = self._whole(entry, match)
        if story.count == 1 and (entry.host, subject) not in self._active:
            story.fields["first_time"] = "yes"

    def _xid(self, entry: Entry, match: Match) -> None:
        code, groups = int(match.groups["number"]), match.groups
        pci, rest = groups["pci"].lower(), groups.get("rest", "")
        place = _PLACE.search(rest)
        known = self._open.get(("xid", entry.host, str(code), plain_pci(pci)))
        if known is not None and xid_history.same_burst(code, known.last_t, entry.t) and _same_verdict(code, known.rest, rest):
            known.grow(entry)
        else:
            known = begun(entry, match)
            known.code, known.rest = code, rest
            known.event = Event(code, f"{entry.host}/{plain_pci(pci)}", entry.t)
            self._memory.add(known.event)
            self._absorb(known, entry)
            self._open["xid", entry.host, str(code), plain_pci(pci)] = known
            self._stories.append(known)
        if place is not None and known.event is not None:
            known.event.place |= {f"{place[1]}/{place[2]}"}

    def _take_oom(self, entry: Entry, match: Match) -> None:
        code, pid = match.form.code, match.groups.get("pid", "")
        said = match.form.anchor in {"Memory cgroup out of memory", "Out of memory", "illed process", "oom_reaper: reaped"}
        story = self._oom.get(entry.host)
        if story is not None and (not story.near(entry, STORY_S) or code == "start"):
            story = None
        if story is not None and (story.fields.get("killed", "") not in {"", pid} or (story.fields.get("killed") and not said)):
            story = None
        if story is None:
            story = begun(entry, match)
            self._oom[entry.host] = story
            self._stories.append(story)
        else:
            story.grow(entry)
            if (code == "memcg" and story.code != "memcg") or story.code == "start" or (code == "global" and story.code == "victim"):
                story.code, story.severity = code, match.form.severity
            story.fields |= {key: match.groups[key] for key in FIELDS if key in match.groups}
        if said and pid and not story.fields.get("killed"):
            story.fields["killed"] = pid
            story.entry = replace(entry, t=story.entry.t)
        story.meaning = OOM[str(story.code)]
        scope = {"memcg": "container", "global": "host", "no_victim": "host"}.get(str(story.code))
        if scope:
            story.fields["scope"] = scope

    def _boot(self, entry: Entry) -> None:
        self._booted[entry.host] = entry.t
        for story in self._stories:
            if story.form.role is Role.STEP and not story.ended and story.near(entry, BOOTING_S):
                story.dropped = True  # the node was going down
        for losses in self._losses.values():
            losses[:] = [one for one in losses if one.t is not None and entry.t is not None and not 0 <= entry.t - one.t <= BOOTING_S]
        self._open.clear()

    def _is_booting(self, entry: Entry) -> bool:
        if entry.uptime_s is not None:
            return entry.uptime_s < BOOTING_S
        booted = self._booted.get(entry.host)
        return booted is not None and entry.t is not None and 0 <= entry.t - booted < BOOTING_S

    def _may_begin_in_a_boot(self, entry: Entry) -> bool:
        """Whether the log, which may be a part of one, begins shortly before an entry without telling since when the node is up."""
        first = self._first
        return entry.uptime_s is None and first is not None and first is not entry and _within(first.t, entry.t, BOOTING_S)

    def _last(self, wanted: Callable[[Story], bool]) -> Story | None:
        return next((one for one in reversed(self._stories[-256:]) if not one.dropped and wanted(one)), None)

    def _finding(self, story: Story, known: Sorted, announced: Mapping[str, Sequence[tuple[float | None, Repair]]]) -> Finding:
        same_gpu, fields = "", {key: value for key, value in story.fields.items() if key not in {"killed", "first_time"}}
        if story.event is not None and isinstance(story.code, int):
            judged = xid_policy.judge(story.code, story.rest, _around(story, known, announced))
            story.severity, story.repair, story.meaning, story.reason = judged.severity, judged.repair, judged.meaning, judged.reason
            same_gpu, fields = judged.same_gpu, fields | {"origin": judged.origin}
            decoded = xid_registers.decode(story.code, story.rest)
            if decoded is not None:
                fields |= {key: value for key, value in (("link", decoded.link), ("unit", decoded.unit)) if value}
        return Finding(
            story.kind,
            story.code,
            story.severity,
            story.repair,
            story.meaning,
            story.entry.line,
            story.entry.number,
            story.pci,
            story.subject,
            story.entry.t,
            story.last_t,
            story.count,
            same_gpu,
            story.reason,
            tuple(fields.items()),
        )

    def _announced(self) -> dict[str, list[tuple[float | None, Repair]]]:
        """Return the repairs that the driver announced, by GPU, with their times."""
        found: dict[str, list[tuple[float | None, Repair]]] = {}
        for story in self._stories:
            if (
                story.code == _ANNOUNCES
                and story.event is not None
                and (decoded := xid_registers.decode(_ANNOUNCES, story.rest)) is not None
            ):
                found.setdefault(story.event.gpu, []).append((story.entry.t, decoded.repair))
        return found

    def _flapping(self) -> list[Finding]:
        found = []
        for (host, nic), losses in self._losses.items():
            limit = next((limit for limit in FLAPS if _most_within(losses, limit[1]) >= limit[0]), None)
            if limit is None:
                continue
            first, last = losses[0], losses[-1]
            ib = nic.startswith("ib")
            reason = f"{_most_within(losses, limit[1])} times within {limit[1] / 3600:.0f} h"
            fields = (("host", host),) if host else ()
            meaning = "a network link comes and goes: look at its cable and module"
            found.append(
                Finding(
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
        return found


def _around(story: Story, known: Sorted, announced: Mapping[str, Sequence[tuple[float | None, Repair]]]) -> Around:
    event = story.event
    assert event is not None  # noqa: S101  an Xid's story has one
    repair = next((one for t, one in reversed(announced.get(event.gpu, ())) if _within(t, event.t, BOOTING_S)), None)
    detail = xid_history.DETAIL_OF.get(event.code)
    before = known.before(event, frozenset({detail}) if detail is not None else None)
    previous = _PREVIOUS.search(story.rest)
    return Around(known.past(event), before, repair, previous[1] if previous else "")


def _same_verdict(code: int, one: str, other: str) -> bool:
    """Whether two lines of one code are of one event: of those whose registers decide, only where they decide alike."""
    first, second = xid_registers.decode(code, one), xid_registers.decode(code, other)
    if first is None or second is None:
        return first is second
    return (first.verdict, first.repair, first.link, first.unit) == (second.verdict, second.repair, second.link, second.unit)


def _within(one: float | None, other: float | None, within_s: float) -> bool:
    return one is None or other is None or abs(one - other) <= within_s


def _most_within(losses: list[Entry], within_s: float) -> int:
    """Return the most losses that lie within so many seconds; without times, all of them."""
    times = [one.t for one in losses]
    known = sorted(t for t in times if t is not None)
    if len(known) < len(times):
        return len(times)
    return max((sum(1 for t in known if start <= t <= start + within_s) for start in known), default=0)
