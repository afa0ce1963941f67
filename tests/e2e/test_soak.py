"""Hundreds of kills at random moments, of every process of a run, and what must be there afterwards, bit for bit.

A season is one job that a seeded draw kills again and again: a rank, the agent, the guardian, the supervisor, the reader process; now
and then a person ends it with TERM, or a scheduler requeues it. The first season trains two ranks of torch over gloo under torchrun, where
a start takes many CPU seconds; the job of the others is one process without torch, and most kills are of it. Each of them adds what a real
month adds: roll-backs after a NaN, a second run in the same place from an older checkpoint, uploads slower than the saves. At the end the
model must be that of an undisturbed training, every checkpoint that the job saved must lie on the disk as it was saved, and a node with an
empty disk must get the newest state of the *last* run from the mirror. SOAK_KILLS sets how many kills the job with the
default settings takes; `share` is what a season has of them.

The seasons try whether anything is lost, so they set the limits on restarts aside. `test_hundreds_of_kills_with_the_default_settings` sets
nothing: as many kills, each after a new checkpoint, as a job of months meets them.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.supervised import processes_with
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

JOBS = Path(__file__).parents[1] / "jobs"
KILLS = int(os.environ.get("SOAK_KILLS", "200"))
EVERY = 10
#: The limits that stop a run which fails too often without progress are not what the seasons try.
SETTINGS = """
[restart]
intensity = 1000
[checkpoints]
finish_s = 60
"""
#: What a process of each kind has in its command line. A rank has the script without the agent.
KINDS = {"agent": "supervisor/agent/", "guardian": "/guardian", "reader": "checkpointing.reader.process"}
SOON_S = 0.05
TRAINS_FIRST = 2 / 3

pytestmark = [pytest.mark.process, pytest.mark.timeout(3600), pytest.mark.usefixtures("short_intervals")]


@dataclass(frozen=True)
class Season:
    """What is special about one season. defaults: no setting is changed, and no kill comes before a new checkpoint."""

    share: float  # of SOAK_KILLS
    command: tuple[str, ...] = (sys.executable, str(JOBS / "soak_plain.py"))
    late_s: float = 1.5  # a kill comes so soon after the one before
    step_ms: int = 40
    defaults: bool = False
    job: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    settings: str = ""
    nan_every: int = 0  # a NaN strikes after so many kills
    second_run: bool = False


SEASONS = {
    "ranks": Season(0.05, ("torchrun", "--standalone", "--nproc-per-node=2", str(JOBS / "soak.py")), late_s=4.0, step_ms=20),
    "torn": Season(0.12, job=("--save-in-place", "--save-ms=60")),
    "roll-backs": Season(0.12, nan_every=6, settings="mirror_keep = 3"),
    "second-run": Season(0.12, second_run=True, settings="mirror_keep = 3"),
    "slow-uploads": Season(0.12, job=("--pad-kib=512",), settings="bandwidth_mib_s = 0.5"),
}


def job_module(script: str) -> Any:  # noqa: ANN401  # a module
    """Import the job's own arithmetic."""
    sys.path.insert(0, str(JOBS))
    try:
        return importlib.import_module(Path(script).stem)
    finally:
        sys.path.remove(str(JOBS))


class Soak:
    """One season: the run, the draw, and the books."""

    def __init__(self, start: Callable[..., Supervised], place: Path, name: str, season: Season) -> None:
        """Write what the job reads, and start nothing yet."""
        self.season, self.place, self._start = season, place, start
        self.job = job_module(season.command[-1])
        self.saved = 0  # newest step that a kill waited for
        self.asked = False  # the last strike was a request to end
        self.dice = random.Random(name)  # noqa: S311  # a draw, no secret
        self.killed: dict[str, int] = {}
        self.starts = 0
        self.run: Supervised
        place.mkdir()
        self.seeds = [(0, 1)]
        config = place.parent / "soak.toml"
        config.write_text("" if self.season.defaults else SETTINGS + self.season.settings)
        config.chmod(0o600)
        self._options = ["--config", str(config), "--checkpoints", "ckpt/step-*.pt", "--resume-args", "--resume {resume}"]
        self._options += ["--mirror", str(place.parent / "mirror"), *self.season.options]
        (place.parent / "mirror").mkdir()

    def start(self) -> None:
        """Start supervise, for the first time or again."""
        (self.place / "seeds").write_text(json.dumps(self.seeds))
        words = [f"--step-ms={self.season.step_ms}", f"--save-every={EVERY}", "--progress=progress", "--nan-file=nan", *self.season.job]
        self.run = self._start(*self.season.command, *words, options=self._options, place=self.place)
        self.starts += 1

    def at(self) -> int:
        """Return the greatest step that was made lately."""
        return max((step for _, step in self.run.progress()[-4:]), default=0)

    def harass(self, kills: int) -> None:
        """Kill so many times, each at a random moment after the one before, and start again what a kill ended.

        Two of three kills first let the job train a little, however slow the machine is: the others fall into starts and recoveries.
        """
        until = sum(self.killed.values()) + kills
        while sum(self.killed.values()) < until:
            if self.season.defaults:
                wait_for(self._got_further, "a checkpoint beyond the last one", 120, alive=self._again_if_ended)
            elif self.dice.random() < TRAINS_FIRST:
                last_step = self._written()
                wait_for(lambda last_step=last_step: self._written() > last_step, "a step", 120, alive=self._again_if_ended)  # type: ignore[misc]  # a bound loop variable
            time.sleep(self.dice.uniform(SOON_S, self.season.late_s))  # a random moment is the subject, no condition is waited for
            if self.run.process.poll() is None:
                self._strike(self.dice.choices(["rank", "agent", "guardian", "supervisor", "reader", "term"], [6, 2, 2, 3, 2, 1])[0])
            if self.run.process.poll() is not None:
                self._again()

    def _written(self) -> int:
        """Return how much the job wrote down of its steps: less to read than the steps themselves, which become many."""
        with contextlib.suppress(FileNotFoundError):
            return (self.place / "progress").stat().st_size
        return 0

    def _got_further(self) -> bool:
        """Whether a newer checkpoint lies there than before the last kill: progress, as the supervisor counts it."""
        steps = [int(path.stem.removeprefix("step-")) for path in (self.place / "ckpt").glob("step-*.pt")]
        further = max(steps, default=0) > self.saved
        self.saved = max([self.saved, *steps])
        return further

    def _strike(self, kind: str) -> None:
        self.asked = kind == "term"
        if kind == "term":
            self.run.signal(self.dice.choice([signal.SIGTERM, signal.SIGUSR1]))
            self.run.exit_code()
            return
        pids = self._pids(kind)
        if not pids:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.dice.choice(pids), signal.SIGKILL)
            self.killed[kind] = self.killed.get(kind, 0) + 1
        if kind == "supervisor":
            self.run.process.wait(30)
        finite = len(list((self.place / "ckpt").glob("step-*.pt")))
        if self.season.nan_every and finite > 2 and sum(self.killed.values()) % self.season.nan_every == 0:
            (self.place / "nan").touch()
            wait_for(lambda: not (self.place / "nan").exists(), "the NaN was saved", 60, alive=self._again_if_ended)

    def _pids(self, kind: str) -> list[int]:
        if kind == "supervisor":
            return [self.run.process.pid]
        processes = {pid: line for pid, line in processes_with(self.run.mark).items() if pid != self.run.process.pid}
        if kind == "rank":
            return [pid for pid, line in processes.items() if "jobs/soak" in line and KINDS["agent"] not in line]
        return [pid for pid, line in processes.items() if KINDS[kind] in line]

    def _again_if_ended(self) -> bool:
        if self.run.process.poll() is not None:
            self._again()
        return True

    def _again(self) -> None:
        """Start again after an end that we made; any other end is a failure of the supervisor's."""
        code = self.run.process.returncode
        # a signal that comes before Python runs our first line ends a process that has started nothing
        unheard = not self.run.stderr and code in {-signal.SIGTERM, -signal.SIGUSR1}
        asked = self.asked or not self.season.defaults
        assert unheard or code == -signal.SIGKILL or (asked and code in {143, 75}), f"supervise ended by itself with {code}"
        self.run.wait_for_nothing_left(15)
        self.start()

    def finish(self, more_steps: int = 3 * EVERY) -> int:
        """Let the job come to its end after at least `more_steps`; returns its last step."""
        (self.place / "nan").unlink(missing_ok=True)
        limit = (self.at() + more_steps) // EVERY * EVERY
        (self.place / "limit").write_text(str(limit))
        if self.run.process.poll() is not None:
            self._again()
        while (code := self.run.exit_code(deadline_s=300)) != 0:
            assert code in {143, 75}, self.run.stderr[-2000:]
            self.start()
        step, digest = (self.place / "digest").read_text().split()
        assert digest == self.reference(int(step))[int(step)], "the model is not that of an undisturbed training"
        return int(step)

    def reference(self, last: int) -> dict[int, str]:
        """Return step to digest of the checkpoints of an undisturbed training."""
        losses: dict[int, str] = self.job.reference(self.seeds, EVERY, last)
        return losses

    def check_disk(self, last: int) -> None:
        """Fail unless every checkpoint of the lineage lies there as it was saved."""
        wanted = self.reference(last)
        there = dict(self.job.saved(path) for path in (self.place / "ckpt").glob("step-*.pt"))
        assert {step: there.get(step) for step in wanted} == wanted

    def check_mirror(self, last: int) -> None:
        """Fail unless a node with an empty disk gets the last state from the mirror, and continues from it."""
        shutil.rmtree(self.place / "ckpt")
        shutil.rmtree(self.run.state)
        (self.place / "digest").unlink()
        (self.place / "limit").write_text(str(last + EVERY))
        self.start()
        assert self.run.exit_code(deadline_s=300) == 0
        assert f"of step {last} from" in self.run.stderr, self.run.stderr[-3000:]
        step, digest = (self.place / "digest").read_text().split()
        assert (int(step), digest) == (last + EVERY, self.reference(last + EVERY)[last + EVERY])


@pytest.mark.slow  # tests/simulation/fleet/test_months.py plays hundreds
def test_a_dozen_kills_of_one_kind_with_the_default_settings_end_nothing(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    no_torch = job_module("no_torch.py")
    no_torch.save(tmp_path, 1, "template", in_place=True, pause_s=0.0)
    no_torch.checkpoint_path(tmp_path, 1).rename(tmp_path / "template.pt")
    command = [sys.executable, JOBS / "killed.py", "--template=template.pt", "--kills=12"]
    run = supervise(*command, options=["--checkpoints", "ckpt/step-*.pt", "--resume-args", "--resume {resume}"])
    assert run.exit_code(60) == 0, run.stderr[-2000:]
    assert "killed 12 times, and done" in run.stdout
    assert "Restarting as attempt 13" in run.stderr
    assert re.search(r"failed 3 times in the same way in .*: rank 0 was killed by SIGKILL", run.stderr)


@pytest.mark.slow
def test_hundreds_of_kills_with_the_default_settings(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    soak = Soak(supervise, tmp_path / "node", "defaults", Season(1.0, defaults=True))
    soak.start()
    soak.harass(KILLS)
    last = soak.finish()
    soak.check_disk(last)
    print(f"defaults: killed {soak.killed}, {soak.starts} starts, {last} steps")  # noqa: T201  # the figure, with pytest -s


@pytest.mark.slow
@pytest.mark.parametrize("name", SEASONS)
def test_after_many_kills_the_model_and_the_checkpoints_are_those_of_an_undisturbed_training(
    supervise: Callable[..., Supervised], tmp_path: Path, name: str
) -> None:
    soak = Soak(supervise, tmp_path / "node", name, SEASONS[name])
    soak.start()
    kills = round(KILLS * soak.season.share)
    again = kills // 3 if soak.season.second_run else 0
    soak.harass(kills - again)
    last = soak.finish(more_steps=1000 if again else 3 * EVERY)
    soak.check_disk(last)
    if again:
        last = second_run(soak, last, again)
    soak.check_mirror(last)
    print(f"{name}: killed {soak.killed}, {soak.starts} starts, {last} steps")  # noqa: T201  # the figure, with pytest -s


def second_run(soak: Soak, last: int, kills: int) -> int:
    """Go back almost to the start, train on other data from there, and end below where the first run ended."""
    back = 5 * EVERY
    for path in (soak.place / "ckpt").glob("step-*.pt"):
        if int(path.stem.removeprefix("step-")) > back:
            path.unlink()
    soak.seeds.append((back, 2))
    (soak.place / "limit").unlink()
    (soak.place / "digest").unlink()
    (soak.place / "progress").unlink()
    soak.start()
    soak.harass(kills)
    ended = soak.finish()
    assert ended < last, "the second run has to end below the first, or it shows nothing"
    soak.check_disk(ended)
    return ended
