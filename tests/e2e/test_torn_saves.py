"""Trainings of real libraries that are killed in the middle of a save: they continue, never from a torn one, and come to the same end.

transformers' Trainer, Lightning and torch.distributed.checkpoint resume by themselves under `supervise -- torchrun`, with nothing
declared and with --checkpoints. A rank, or all, are killed with -9 at 30 random moments of a save in all. What each kill left is printed.
The run is invalid and fails if fewer than half of the kills left something torn.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkpointing.model import Verdict
from checkpointing.verification import verify
from tests.e2e.torn import Killer, SavedFiles, Strike
from tests.support.waiting import words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.supervised import Supervised

JOBS = Path(__file__).parents[1] / "jobs"
KILLS = 10  # of each library
KILLS_OF_A_RUN = 5
#: Steps of a training, 12 from one save to the next: more than so many kills need.
STEPS = 108

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.usefixtures("short_intervals")]


@dataclass(frozen=True)
class Library:
    """How one is run. prefix: how the names of what it resumes from begin; pace_s: of a step, so that what it writes in place is copied."""

    script: str
    world: int
    prefix: str
    pattern: str
    pace_s: float = 0.02
    away: bool = False  # temporary files are on another file system, so that moving them is no rename
    spared: int = 0  # the step whose save is left alone


LIBRARIES = {
    # a Trainer that resumes from its last step makes one step more, also without us
    "hf": Library("torn_hf.py", 1, "checkpoint-", "out/checkpoint-*", spared=STEPS),
    "lightning": Library("torn_lightning.py", 1, "last", "out/*.ckpt", pace_s=0.25, away=True),
    "dcp": Library("torn_dcp.py", 2, "step_", "out/step_*"),
}


@pytest.fixture
def temporary(tmp_path: Path) -> Iterator[Callable[[Library], Path]]:
    """Give a function that makes a place for temporary files."""
    places: list[Path] = []

    def make(library: Library) -> Path:
        places.append(Path(tempfile.mkdtemp(dir="/dev/shm" if library.away else tmp_path, prefix="torn-")))  # noqa: S108  another file system
        return places[-1]

    yield make
    for place in places:
        shutil.rmtree(place, ignore_errors=True)


def configuration(place: Path) -> Path:
    """Return one with which what recovers is restarted without end."""
    config = place / "torn.toml"
    config.write_text("[checkpoints]\nfinish_s = 5\n[restart]\nintensity = 1000\n[stop]\ngrace_s = 1\n")
    config.chmod(0o600)
    return config


def command(library: Library, *, pace_s: float) -> list[str]:
    """Return the words of the training."""
    torchrun = ["torchrun", "--standalone", f"--nproc-per-node={library.world}"]
    return [*torchrun, str(JOBS / library.script), f"--steps={STEPS}", f"--pace-s={pace_s}"]


def final(run: Supervised) -> list[str]:
    """Return step, loss and digest of the weights at the end."""
    ends = [words[1:] for words in words_of(run.place / "events") if words[:1] == ["final"]]
    assert ends, "it never came to its end"
    return ends[-1]


def our_verdicts(out: Path) -> dict[str, str]:
    """Return the verdict of `supervise checkpoints verify --json` on each thing that lies there, by name."""
    words = ["supervise", "checkpoints", "verify", "--json", *map(str, sorted(out.iterdir()))]
    output = subprocess.run(words, capture_output=True, text=True, check=False).stdout  # noqa: S603  the program under test
    return {Path(row["path"]).name: row["verdict"] for row in map(json.loads, output.splitlines())}


def names_in(checkpoint: Path) -> set[str]:
    """Return the names of the files in a checkpoint; none for a file."""
    return {str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*") if path.is_file()}


class Series:
    """All runs of one library: the uninterrupted one first."""

    def __init__(self, library: Library, start: Callable[..., Supervised], tmp_path: Path, environment: dict[str, str]) -> None:
        """Take what starts a run."""
        self._library, self._start, self._tmp_path, self._environment = library, start, tmp_path, environment
        self.strikes: list[Strike] = []
        self.expected: list[str] = []

    def uninterrupted(self, around: object) -> None:
        """Train without anybody's kill."""
        place = self._tmp_path / "uninterrupted"
        run = self._start(*command(self._library, pace_s=0.0), place=place, around=around, **self._environment)
        killer = Killer(run, SavedFiles(place / "out", place), random.Random(0), world=self._library.world, prefix=self._library.prefix)  # noqa: S311
        killer.strike(0)
        assert run.exit_code() == 0
        self.expected = final(run)
        shutil.rmtree(place / "out")

    def struck(self, number: int, kills: int, temporary: Path, *, declared: bool) -> None:
        """Train, kill, and see that it came to the same end."""
        place = self._tmp_path / f"run-{number}"
        place.mkdir()
        options = ["--config", str(configuration(place))]
        options += ["--checkpoints", self._library.pattern, "--resumes-itself"] if declared else []
        environment = {**self._environment, "TMPDIR": str(temporary)}
        run = self._start(*command(self._library, pace_s=self._library.pace_s), options=options, place=place, **environment)
        files = SavedFiles(place / "out", temporary, self._library.away)
        library, dice = self._library, random.Random(number)  # noqa: S311
        killer = Killer(run, files, dice, world=library.world, prefix=library.prefix, spared=library.spared)
        killer.strike(kills)
        code = run.exit_code()
        for strike in killer.strikes:
            sys.stdout.write(f"run {number} ({'--checkpoints' if declared else 'nothing declared'}): {strike}\n")
        assert code == 0, "it did not come to its end"
        assert final(run) == self.expected, "what it trained is not what it trains uninterrupted"
        wrong = [str(strike) for strike in killer.strikes if strike.left and strike.resumed != strike.newest]
        assert wrong == [], "it was not resumed from the newest whole one"
        whole = names_in(max((place / "out").glob(f"{self._library.prefix}*"), key=lambda path: path.stat().st_mtime))
        # a directory whose save was cut off after its first files looks whole by itself
        aside = {path: verify(str(path)).verdict for path in (place / ".supervise-aside").glob("torn-*") if names_in(path) == whole}
        assert Verdict.VERIFIED not in aside.values(), f"a whole one was moved: {aside}"
        left = our_verdicts(place / "out")
        in_place = {name for name in left if name.startswith(self._library.prefix)}
        assert {name for name in in_place if left[name] != "good"} == set(), "what it resumes from is left torn"
        self.strikes += [strike for strike in killer.strikes if strike.left]
        shutil.rmtree(place / "out")


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_killed_training_continues_from_a_whole_checkpoint_to_the_same_end(  # noqa: PLR0913, PLR0917  a case and its tools
    supervise: Callable[..., Supervised],
    surroundings: Callable[..., object],
    tmp_path: Path,
    frameworks: dict[str, str],
    temporary: Callable[[Library], Path],
    name: str,
) -> None:
    library = LIBRARIES[name]
    kills = int(os.environ.get("TORN_KILLS", KILLS))
    series = Series(library, supervise, tmp_path, {**frameworks, "HF_HUB_OFFLINE": "1"})
    series.uninterrupted(surroundings(without_us=True))
    for number in range(1, 3 * kills):
        if len(series.strikes) < kills:
            left = min(KILLS_OF_A_RUN, kills - len(series.strikes))
            series.struck(number, left, temporary(library), declared=number % 2 == 0)
    counts = Counter(strike.left for strike in series.strikes)
    sys.stdout.write(f"{name}: {len(series.strikes)} kills: " + ", ".join(f"{outcome} {n}" for outcome, n in sorted(counts.items())) + "\n")
    assert len(series.strikes) >= kills
    assert counts["torn"] * 2 >= kills, "invalid: too few kills left something torn"
