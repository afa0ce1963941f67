"""A log that is one failure over and over is read in a time that does not grow with it as much, and to the same end."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import pytest

from supervisor.classify.engine import classify
from supervisor.classify.logs.match import Reader
from supervisor.cli.classify import sampling
from supervisor.cli.classify.sampling import FloodReader
from supervisor.config import signatures
from supervisor.observe.anchor_scanner import scanner
from tests.support.few import few

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.core.model import Evidence

CATALOGUE, _ = signatures.read()
SCANNER = scanner(CATALOGUE.anchors)
OOM = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; {0}.00 GiB total capacity)\n"
BLOCK = 256 << 10
END = 'Traceback (most recent call last):\n  File "/job/train.py", line 3, in main\n    x()\nModuleNotFoundError: No module named "x"\n'


def read(reader: Reader | FloodReader, log: str) -> tuple[Evidence, ...]:
    data = log.encode()
    for at in range(0, len(data), BLOCK):
        reader.feed(data[at : at + BLOCK])
    return reader.finish()


class Counting:
    """A scanner that counts the anchors that a reader looked at: its work, without the clock."""

    def __init__(self) -> None:
        self.looked_at = 0

    def hits(self, block: bytes) -> Sequence[tuple[int, int]]:
        """Return those of a block."""
        hits = SCANNER.hits(block)
        self.looked_at += len(hits)
        return hits


def test_a_flood_is_looked_at_in_part_and_its_line_numbers_hold() -> None:
    lines = [OOM.format(number) for number in range(50_000)]
    log = "".join(lines) + END
    tenth, part = Counting(), FloodReader(CATALOGUE, SCANNER)
    evidence = read(part, log)
    read(Reader(CATALOGUE, tenth), "".join(lines[:5_000]))
    looked_at = part._counted.hits_so_far  # noqa: SLF001  what its Reader was given
    assert looked_at < 0.5 * 10 * tenth.looked_at, "half of it"
    (exception,) = [fact for fact in evidence if fact.name == "exception" and fact.text.startswith("ModuleNotFoundError")]
    assert exception.line == 50_004


@pytest.mark.slow
def test_a_new_line_in_a_flood_is_found_wherever_it_stands() -> None:
    flooding = "".join(OOM.format(number) for number in range(30_000))
    log = flooding + "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.\n" + flooding
    evidence = read(FloodReader(CATALOGUE, SCANNER), log)
    assert [fact.line for fact in evidence if "oom_kill" in fact.text] == [30_001]


@pytest.mark.parametrize("end", [END, OOM.format(1), "step 1 loss 2.3\n" * 1000])
@pytest.mark.parametrize("every", few([1, 50, 400], 2))
def test_a_log_without_a_flood_is_read_as_by_a_reader(every: int, end: str) -> None:
    log = "".join(OOM.format(n) if n % every == 0 else f"step {n} loss 2.3\n" for n in range(min(40 * every, 60_000))) + end
    assert read(FloodReader(CATALOGUE, SCANNER), log) == read(Reader(CATALOGUE, SCANNER), log)


@pytest.mark.slow
def test_a_flood_of_lines_that_all_differ_is_bounded_too() -> None:
    alphabet = "ghijklmnopqrstuvwxyz"
    names = (a + b + c + d for a in alphabet for b in alphabet for c in alphabet for d in alphabet)
    log = "".join(f"RuntimeError: CUDA out of memory in {name}\n" for name in islice(names, 45_000))
    reader = FloodReader(CATALOGUE, SCANNER)
    evidence = read(reader, log)
    assert classify(evidence).because
    assert len(reader._seen) <= sampling.MOST_SHAPES  # noqa: SLF001  the bound on its memory
