"""A node that ran well for a day and more gives no finding: boots, containers, network changes, other programs' words."""

from __future__ import annotations

from pathlib import Path

import pytest

from health.kernellog import parse
from health.kernellog.file_report import judge

ORDINARY = sorted((Path(__file__).parent / "ordinary").glob("*.log"))


@pytest.mark.parametrize("path", ORDINARY, ids=lambda path: path.stem)
def test_an_ordinary_log_gives_no_finding(path: Path) -> None:
    text = path.read_text("utf-8")
    assert [(finding.kind, finding.code, finding.line) for finding in judge(text)] == []


@pytest.mark.parametrize("path", ORDINARY, ids=lambda path: path.stem)
def test_an_ordinary_log_is_read_and_not_passed_over(path: Path) -> None:
    """Silence would be worth nothing if the lines were not understood: trouble in the same dress is found in the same file."""
    text = path.read_text("utf-8")
    read = list(parse.entries(text))
    assert len(read) > text.count("\n") / 4
    prefix = next(entry.line[: entry.line.index(entry.text)] for entry in read if entry.text in entry.line and entry.sure)
    trouble = f"{prefix}NVRM: Xid (PCI:0000:3d:00): 79, pid=0, GPU has fallen off the bus."
    assert [(entry.kind, entry.code, entry.pci) for entry in judge(f"{text}{trouble}\n")] == [("xid", 79, "0000:3d:00")]
