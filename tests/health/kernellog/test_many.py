"""A log with very many findings: the newest are reported, the oldest counted, and each costs the same."""

from __future__ import annotations

import json
import random
from io import StringIO

import pytest

from health.kernellog import correlate as judging
from health.kernellog.correlate import Correlator
from health.kernellog.file_report import judge_stream, show
from health.kernellog.model import Entry
from health.model import Severity
from health.nvidia.xid_history import DAY_S, ECHO_S, ECHOES, Memory, Recurrence, XidEvent
from tests.support.figures import costs_at_most

#: Ten times what it takes; where each finding looks at every other it takes five times as long as this.
SLOWEST_S = 2.0


def _xid(number: int, code: int = 79) -> str:
    return f"[{1000 + 200 * number}.000000] NVRM: Xid (PCI:0000:{number % 8:02x}:00): {code}, pid=1, GPU has fallen off the bus."


@pytest.mark.bench
def test_thousands_of_xids_are_judged_in_a_moment() -> None:
    judge = Correlator()
    for number in range(8000):
        judge.take(Entry(_xid(number).partition("] ")[2], "", number, 200.0 * number))
    with costs_at_most(SLOWEST_S):
        findings = judge.findings()
    assert len(findings) == 8000
    assert judge.findings() is findings, "nothing came since"
    judge.take(Entry(_xid(0).partition("] ")[2], "", 8000, 200.0 * 8000))
    assert len(judge.findings()) == 8001


def test_of_more_than_can_be_held_the_newest_are_reported_and_the_others_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(judging, "MOST_FINDINGS", 20)
    judged = judge_stream(StringIO("\n".join(_xid(number, 79 if number < 4 else 31) for number in range(50))))
    assert judged.findings[-1].number == 50
    assert len(judged.findings) + sum(judged.forgotten.values()) == 50
    assert judged.forgotten[Severity.CRITICAL] == 4
    out = StringIO()
    assert show(judged, as_json=False, out=out) == 69, "what is critical is not forgotten"
    assert "older findings are not shown (4 critical, " in out.getvalue()
    out = StringIO()
    assert show(judged, as_json=True, out=out) == 69
    assert [json.loads(line)["line_number"] for line in out.getvalue().splitlines()][-1] == 50
    assert "older findings are not shown" in capsys.readouterr().err


@pytest.mark.parametrize("timed", [1.0, 0.7], ids=["in-order", "some-without-a-time"])
@pytest.mark.parametrize("seed", range(5))
def test_the_sorted_memory_answers_as_a_scan_of_every_event(seed: int, timed: float) -> None:
    chance = random.Random(seed)  # noqa: S311  a table that is the same each time
    memory = Memory()
    events: list[XidEvent] = []
    for at in range(120):
        t = 900.0 * at if chance.random() < timed else None
        place = frozenset(chance.sample(["1/2", "1/3", "2/2"], chance.randint(0, 2)))
        events.append(XidEvent(chance.choice([13, 31, 43, 48, 171]), chance.choice("abc"), t, place))
        memory.add(events[-1])

    def near(xid_event: XidEvent, other: XidEvent, within_s: float) -> bool:
        return xid_event.t is None or other.t is None or abs(xid_event.t - other.t) <= within_s

    known = memory.index()
    for at, event in enumerate(events):
        alike = [xid for xid in events if xid.code == event.code and near(xid, event, DAY_S)]
        same = [xid for xid in alike if xid.gpu == event.gpu]
        place = [xid for xid in same if not event.place or not xid.place or xid.place & event.place]
        assert known.past(event) == Recurrence(len(same), len({xid.gpu for xid in alike}), len(place))
        for codes in (None, frozenset({48})):
            before = [xid for xid in events[:at] if xid.code != event.code and near(xid, event, 20 * ECHO_S)]
            wanted = [xid for xid in before if (xid.code in codes if codes is not None else xid.code not in ECHOES)]
            assert known.before(event, codes, 20 * ECHO_S) == (wanted[0] if wanted else None)
