"""The table of Xids says what each code asks for, and the kernel rows agree with it, code by code."""

from __future__ import annotations

import tomllib

import pytest

from health.kernellog.messages import named
from health.nvidia import xids
from supervisor.classify.gpu.xid import CAUSES
from supervisor.classify.logs import text
from supervisor.config import signatures
from supervisor.core.model import Cause
from tests.support.few import few
from tests.support.figures import costs_at_most

LAST_LISTED = 173
HOSTILE_CHARACTERS = text.LONGEST_LINE
#: Twenty times what the slowest row takes; a pattern that backtracks takes minutes.
SLOWEST_S = 2.0
CATALOGUE, PROBLEMS = signatures.read()
KERNEL_ROWS = tuple(row for row in CATALOGUE.rows if "xid" in dict(row.fields))
HEADS = (
    "NVRM: Xid (PCI:0000:3d:00): {code}, {rest}",
    "NVRM: Xid (0000:3d:00): {code}, {rest}",
    "NVRM: Xid (PCI:0000:3d:00 GPU-I:05): {code}, {rest}",
)
RESTS = (
    "Ch 00000008",
    "pid=7194, name=python3, UNIT Fatal XC0 i0 Link 05 (0x4)",
    "pid='<unknown>', name=<unknown>, UNIT Nonfatal XC0 i0 Link 05 (0x4)",
)


def test_no_code_is_missing_from_the_table() -> None:
    """Every number up to the last that the catalogue lists has its row."""
    assert sorted(xids.TABLE) == list(range(1, LAST_LISTED + 1))
    assert all(code == entry.code for code, entry in xids.TABLE.items())
    assert xids.lookup(LAST_LISTED + 1) is None


@pytest.mark.parametrize("rest", RESTS)
@pytest.mark.parametrize("head", HEADS)
def test_each_code_belongs_to_one_row_and_to_its_cause(head: str, rest: str) -> None:
    """In every form of the line, one row takes the code, extracts it, and names the cause that the table names."""
    for code, entry in xids.TABLE.items():
        line = head.format(code=code, rest=rest)
        taken = [(row, match) for row in KERNEL_ROWS if (match := row.pattern.search(line))]
        assert len(taken) == 1, (line, [row.id for row, _ in taken])
        row, match = taken[0]
        assert row.cause is CAUSES[entry.part], line
        values = row.values(match)
        assert values["xid"] == code
        assert values["pci"] == "0000:3d:00"
        assert ("mig" in values) == ("GPU-I" in line)
        assert values.get("pid") == (7194 if "pid=7194" in line else None)


def test_an_xid_that_is_no_cause_by_itself_gives_way_to_any_cause() -> None:
    """The codes that are no cause by themselves belong to rows that give way to any other cause, and so do those to be ignored."""
    for code, entry in xids.TABLE.items():
        line = HEADS[0].format(code=code, rest=RESTS[0])
        row = next(row for row in KERNEL_ROWS if row.pattern.search(line))
        if entry.echo or entry.action is xids.Action.IGNORE:
            assert row.consequence_of == ("*",), line


def test_a_newer_code_than_the_table_knows_is_seen() -> None:
    """A driver may be newer than this table: its codes are GPU trouble of an unknown kind, not silence."""
    row = next(row for row in KERNEL_ROWS if row.pattern.search(HEADS[0].format(code=LAST_LISTED + 8, rest=RESTS[0])))
    assert row.cause is Cause.GPU_XID_OTHER


@pytest.mark.parametrize(
    ("code", "action", "retry"),
    [
        (13, xids.Action.RESTART, xids.Retry.YES),
        (31, xids.Action.RESTART, xids.Retry.YES),
        (43, xids.Action.RESTART, xids.Retry.YES),
        (45, xids.Action.IGNORE, xids.Retry.YES),
        (48, xids.Action.RESET, xids.Retry.AFTER_RESET),
        (63, xids.Action.IGNORE, xids.Retry.YES),
        (64, xids.Action.RESET, xids.Retry.NO),
        (74, xids.Action.DRAIN, xids.Retry.AFTER_RESET),
        (79, xids.Action.REBOOT, xids.Retry.AFTER_RESET),
        (94, xids.Action.RESTART, xids.Retry.YES),
        (95, xids.Action.RESET, xids.Retry.AFTER_RESET),
        (119, xids.Action.RESET, xids.Retry.AFTER_RESET),
    ],
)
def test_the_codes_that_jobs_meet(code: int, action: xids.Action, retry: xids.Retry) -> None:
    """The ones that make up nearly all events, against the catalogue's own words."""
    entry = xids.TABLE[code]
    assert (entry.action, entry.retry) == (action, retry)


@pytest.mark.bench
@pytest.mark.parametrize("text", few(["\n", " ", "a.", "Error: ", "[1] ", '"'], 2))
def test_no_pattern_is_slow_on_hostile_text(text: str) -> None:
    """Of a line at most text.LONGEST_LINE bytes are searched; no row may take long for them, or a flood would be awaited."""
    hostile = (text * HOSTILE_CHARACTERS)[:HOSTILE_CHARACTERS]
    for row in CATALOGUE.rows:
        with costs_at_most(SLOWEST_S, row.id):
            assert row.pattern.search(hostile) is None


def test_the_files_are_toml_that_other_tools_can_read() -> None:
    """Rows are data: nothing but TOML is needed to read them."""
    assert not PROBLEMS
    for path in signatures.PACKAGED.glob("*.toml"):
        written = [row["id"] for row in tomllib.loads(path.read_text("utf-8"))["signature"]]
        assert [row.id for row in CATALOGUE.rows if row.origin == str(path)] == written
    assert all(row.note and row.source for row in CATALOGUE.rows)


def test_every_named_kernel_message_is_used() -> None:
    """A name in the kernel's catalogue that no signature uses is a fact that nobody reads."""
    rows = [row for path in signatures.PACKAGED.glob("*.toml") for row in tomllib.loads(path.read_text("utf-8"))["signature"]]
    assert {name for row in rows for name in row.get("messages", ())} == set(named())
    assert not [row["id"] for row in rows if "kernel" in row["where"] and "messages" not in row]
