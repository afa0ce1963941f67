"""What of a script is said of ranks that stand: the very lines in which they stand decide, and what they wait in."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.classify.source.standing import StandingRank, of_calls, of_hang, of_race
from supervisor.core.model import HangKind

JOBS = Path(__file__).parents[2] / "jobs"
HANGS, PARALLEL, RACE = (JOBS / name for name in ("hangs.py", "hang_parallel.py", "race.py"))


def line_of(path: Path, words: str) -> int:
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if words in line)


def rank(number: int, *words: str, path: Path = HANGS, members: tuple[int, ...] = (0, 1)) -> StandingRank:
    """Return a rank whose calls stand in the lines with these words, the innermost first."""
    return StandingRank(number, tuple((str(path), line_of(path, text)) for text in words), members)


def reason(*ranks: StandingRank, kind: HangKind = HangKind.MISMATCH, path: Path = HANGS) -> str:
    return of_hang(ranks, {str(path): path.read_bytes()}, kind)


TRAINS = ("self.dist.all_reduce(parameter.grad)", "self.exchange()", "self.train(batch)")
ALONE = ("self.dist.barrier()", "getattr(self.culprit, self.name)()", "self.train(batch)")
ENDED = ("self.dist.barrier()",)


def test_a_collective_under_a_test_of_the_rank_is_found_through_calls_that_the_text_does_not_show() -> None:
    at = line_of(HANGS, ALONE[1])
    text = reason(rank(0, *ALONE), rank(1, *TRAINS))
    assert text.startswith(
        f"hangs.py:{at}: rank 0 waits in a collective under `self.is_culprit and self.here(*AT_ONE_STEP)` (line {at - 1})"
    )
    assert text.endswith("; let all ranks call it, outside of the test of the rank")


def test_a_rank_outside_the_group_explains_no_hang() -> None:
    assert "AT_ONE_STEP" not in reason(rank(0, *ALONE, members=(0,)), rank(1, *TRAINS))


def test_all_ranks_in_the_branch_are_no_reason() -> None:
    assert "AT_ONE_STEP" not in reason(rank(0, *ALONE), rank(1, *ALONE))


def test_a_rank_beyond_the_loop_had_fewer_batches() -> None:
    text = reason(rank(0, *TRAINS), rank(1, *ENDED))
    assert text.startswith(f"hangs.py:{line_of(HANGS, 'return  # one batch fewer')}: some ranks alone")


def test_ranks_in_the_loop_of_which_one_swallowed_an_exception() -> None:
    assert reason(rank(0, *TRAINS), rank(1, *TRAINS)).startswith(
        f"hangs.py:{line_of(HANGS, 'except KeyError')}: a rank that raises KeyError"
    )


@pytest.mark.parametrize("gone", [True, False])
def test_a_loop_of_another_length_on_each_rank(*, gone: bool) -> None:
    other = StandingRank(1) if gone else rank(1, "dist.barrier()", "validate()", path=PARALLEL)
    kind = HangKind.GONE if gone else HangKind.MISMATCH
    text = reason(rank(0, "mean().backward()", "train(model, 5 - rank)", path=PARALLEL), other, kind=kind, path=PARALLEL)
    assert text.startswith(f"hang_parallel.py:{line_of(PARALLEL, 'for _ in range(batches)')}: the loop is `5 - rank` rounds long")


@pytest.mark.parametrize("kind", [HangKind.LATE, HangKind.WAITING, HangKind.STILL])
def test_only_a_one_sided_collective_is_reported_where_a_rank_may_still_come(kind: HangKind) -> None:
    assert reason(rank(0, *TRAINS), kind=kind) == ""
    script = b"import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n"
    assert of_hang([StandingRank(0, (("/me/t.py", 3),))], {"/me/t.py": script}, kind).startswith("t.py:3: only ranks with")


def test_ranks_that_wait_for_the_first_in_a_pair_of_tests_are_no_reason() -> None:
    first = "    if rank != 0:\n        dist.barrier()\n    load()\n"
    script = f"import torch.distributed as dist\ndef f(rank):\n{first}    if rank == 0:\n        dist.barrier()\n".encode()
    ranks = [StandingRank(0, (("/me/t.py", 5),)), StandingRank(1, (("/me/t.py", 4),))]
    assert of_hang(ranks, {"/me/t.py": script}, HangKind.MISMATCH) == ""


def test_a_load_of_what_another_rank_saves() -> None:
    frames = [(str(RACE), line_of(RACE, "read_too_early(args.ckpt)")), (str(RACE), line_of(RACE, "torch.load(path)"))]
    text = of_race(frames, {str(RACE): RACE.read_bytes()})
    assert text.startswith(f"race.py:{line_of(RACE, 'torch.load(path)')}: args.ckpt is loaded here, and saved in line")


def test_other_lines_of_the_same_script_are_no_reason() -> None:
    assert of_race([(str(RACE), line_of(RACE, "def main()"))], {str(RACE): RACE.read_bytes()}) == ""
    assert of_race([("/gone.py", 3)], {}) == ""


def test_different_collectives_in_two_lines() -> None:
    path = JOBS / "unsynced.py"
    places = [(str(path), line_of(path, "# of rank 0")), (str(path), line_of(path, "# of rank 1"))]
    assert of_calls(places, {str(path): path.read_bytes()}).startswith(
        f"unsynced.py:{places[0][1]}: only ranks with `dist.get_rank() == 0`"
    )
    same = [(str(path), line_of(path, "# of both"))] * 2
    assert of_calls(same, {str(path): path.read_bytes()}) == ""


def test_a_script_of_another_python_explains_nothing() -> None:
    assert of_hang([StandingRank(0, (("/me/t.py", 2),))], {"/me/t.py": b"print 'two'\n"}, HangKind.MISMATCH) == ""
