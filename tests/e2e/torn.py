"""Kills a training in the middle of its saves, again and again, and finds what each kill left.

The training is one of tests/jobs/torn_*.py, which logs what it does in its file `events`. Each kill gives a `Strike`.
A rank that resumed waits until it is let go: then nobody writes, and what lies there is judged. What was judged once is known by its
identity. What a kill left is known when the next attempt has resumed.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from checkpointing.model import Identity, Verdict
from checkpointing.verification import identity_of, verify
from tests.support.waiting import is_running, wait_for, words_of

if TYPE_CHECKING:
    import random

    from tests.support.supervised import Supervised

#: A save may take so long, where none was measured yet.
FIRST_S = 0.15
#: How much of a save it is that one of its two files is written and copied.
PART_OF_IT = 0.12


@dataclass
class Strike:
    """One kill: during the save of `step`, so long after its beginning, of these ranks. left: torn, whole or before (nothing of it)."""

    step: int
    after_s: float
    ranks: tuple[int, ...]
    left: str = ""
    torn: tuple[str, ...] = ()
    resumed: int = -1
    newest: int = -1

    def __str__(self) -> str:
        """Return what is printed of it."""
        there = f": {', '.join(self.torn)}" if self.torn else ""
        return f"save of step {self.step}, {self.after_s:.3f} s in, ranks {self.ranks}: {self.left}{there}; resumed at {self.resumed}"


@dataclass
class SavedFiles:
    """The files in the directory of checkpoints, and in that of temporary files."""

    out: Path
    temporary: Path
    away: bool = False  # the temporary files are on another file system
    judged: dict[Identity, tuple[Verdict, int | None]] = field(default_factory=dict)
    known: set[Identity] = field(default_factory=set)

    def look(self) -> dict[str, Identity]:
        """Return each checkpoint and each temporary file, links apart."""
        aside = self.out.parent / ".supervise-aside"
        there = [*self.out.glob("*"), *aside.glob("torn-*"), *(path for path in self.temporary.glob("tmp*") if path.is_file())]
        identities = {str(path): identity_of(str(path)) for path in there if not path.is_symlink()}
        return {path: identity for path, identity in identities.items() if identity is not None}

    def judge(self, path: str, identity: Identity) -> tuple[Verdict, int | None]:
        """Return verdict and step."""
        if identity not in self.judged:
            checkpoint = verify(path)
            self.judged[identity] = checkpoint.verdict, checkpoint.step
        return self.judged[identity]

    def newest(self, prefix: str) -> int:
        """Return the highest step of those that are whole and that the script would take; 0: none."""
        steps = [self.judge(path, identity) for path, identity in self.look().items() if self._is_one(path, prefix)]
        return max((step or 0 for verdict, step in steps if verdict is Verdict.VERIFIED), default=0)

    def _is_one(self, path: str, prefix: str) -> bool:
        return path.startswith(f"{self.out}/{prefix}")

    def left(self, step: int) -> tuple[str, tuple[str, ...]]:
        """Say what came since the last time: torn, whole or before; and the names of what is torn."""
        now = self.look()
        new = {path: identity for path, identity in now.items() if identity not in self.known}  # what was moved is known
        self.known |= set(now.values())
        torn = [path for path, identity in new.items() if self.judge(path, identity)[0] is not Verdict.VERIFIED]
        if torn:
            return "torn", tuple(sorted(path.rpartition("/")[2] for path in torn))
        return ("whole" if any(self.judge(path, identity)[1] == step for path, identity in new.items()) else "before"), ()


class Killer:
    """Kills ranks of one run during saves."""

    def __init__(self, run: Supervised, files: SavedFiles, dice: random.Random, *, world: int, prefix: str, spared: int = 0) -> None:  # noqa: PLR0913
        """Take the run, how the names of what the script resumes from begin, and the step whose save is left alone."""
        self._run, self._files, self._dice, self._world, self._prefix, self._spared = run, files, dice, world, prefix, spared
        self.strikes: list[Strike] = []

    def _events(self, *kinds: str) -> list[list[str]]:
        return [words for words in words_of(self._run.place / "events") if words and words[0] in kinds]

    def _alive(self) -> bool:
        return self._run.alive()

    def strike(self, kills: int, deadline_s: float = 900.0) -> None:
        """Kill so often, unless the training comes to its end before; let it come to its end."""
        until = time.monotonic() + deadline_s
        attempts = 0
        while time.monotonic() < until:
            if not wait_for(lambda at=attempts: len(self._events("resumed")) > at or not self._alive(), "the next attempt", 180.0):
                return
            if len(self._events("resumed")) == attempts:
                return
            attempts = len(self._events("resumed"))
            pids = wait_for(self._ranks, "its ranks", 60.0, alive=self._alive)
            self._assess(int(self._events("resumed")[-1][1]))
            saves = len(self._events("saving"))
            for pid in pids.values():
                (self._run.place / f"go-{pid}").touch()
            if len(self.strikes) < kills:
                self._strike(pids, saves + self._dice.randint(1, 2))

    def _ranks(self) -> dict[int, int]:
        pids = {int(rank): int(pid) for _, rank, pid in self._events("rank")}
        return pids if len(pids) == self._world and all(map(is_running, pids.values())) else {}

    def _assess(self, resumed: int) -> None:
        """Say what the last kill left, and what the script made of it."""
        if self.strikes:
            strike = self.strikes[-1]
            strike.left, strike.torn = self._files.left(strike.step)
            strike.resumed, strike.newest = resumed, self._files.newest(self._prefix)
        else:
            self._files.known = set(self._files.look().values())

    def _strike(self, pids: dict[int, int], number: int) -> None:
        """Kill in the save of that number, at a random moment of it."""
        wait_for(lambda: len(self._events("saving")) >= number or self._events("final") or not self._alive(), "a save", 180.0)
        begun = self._events("saving")
        if len(begun) < number:
            return
        _, step, since = begun[number - 1]
        if int(step) == self._spared:
            return
        took_s = [float(end) - float(begin) for (_, begun_step, begin), (_, other, end) in self._saves() if begun_step == other]
        after_s = self._dice.uniform(0.0, median(took_s) if took_s else FIRST_S)
        if self._files.away:  # what it saves is pickled first, and written to a temporary file, for each of its two files
            self._await_temporary(self._dice.randint(1, 2))
            since, after_s = str(time.monotonic()), after_s * PART_OF_IT
        time.sleep(max(0.0, float(since) + after_s - time.monotonic()))
        ranks = self._dice.choice([(0,), tuple(range(self._world)), (self._world - 1,)])
        for rank in ranks:
            os.kill(pids[rank], signal.SIGKILL)
        self.strikes.append(Strike(int(step), time.monotonic() - float(since), ranks))

    def _await_temporary(self, number: int) -> None:
        """Wait until so many temporary files came since the save began, or it is over."""
        before = set(self._files.temporary.glob("tmp*"))
        came = before - before
        ended = len(self._events("saved"))
        until = time.monotonic() + 20
        while len(came) < number and len(self._events("saved")) == ended and time.monotonic() < until:
            came |= set(self._files.temporary.glob("tmp*")) - before

    def _saves(self) -> list[tuple[list[str], list[str]]]:
        events = self._events("saving", "saved")
        return [(begin, other) for begin, other in pairwise(events) if begin[0] == "saving" and other[0] == "saved"]

    def counts(self) -> Counter[str]:
        """Return how often what was left."""
        return Counter(strike.left for strike in self.strikes if strike.left)
