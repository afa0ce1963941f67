"""Runs a program of the table, bare and under supervise, puts a fault into it, and judges what came out."""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import re
import shutil
import signal
import subprocess
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkpointing.io import staging
from tests.programs.table import OUTCOMES
from tests.support import frameworks
from tests.support.ports import free_port
from tests.support.supervised import Supervised, Surroundings
from tests.support.waiting import wait_for, words_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.programs.table import Injection, TrainingProgram

SCRIPTS = Path(__file__).parent / "scripts"
#: A run may take so long on a machine with other work.
LONGEST_S = 240.0
#: What a rank writes that dies in torch's teardown, after its training. A thread of gloo frees a tensor while Python (before 3.14) ends;
#: Python ends that thread inside of a destructor, and C++ answers with SIGABRT (seen in a core dump). It is a matter of microseconds.
TORCH_TEARDOWN = "terminate called without an active exception"
SOON = {"_SUPERVISE_TEST_INTERVALS": "0.04", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def lay_out(program: TrainingProgram, place: Path) -> Path:
    """Copy the program into a directory, as a user has it; return the directory."""
    shutil.copytree(SCRIPTS / program.folder, place, dirs_exist_ok=True)
    for shared in ("hook.py", "toy.py"):
        shutil.copy(SCRIPTS / shared, place)
    return place


def environment(program: TrainingProgram) -> dict[str, str]:
    """Return the program's variables; its frameworks are installed where they are missing."""
    port = {"MASTER_PORT": str(free_port())} if program.folder == "mpirun" else {}  # torchrun chooses one by itself
    return {**SOON, **port, **dict(program.environment), **frameworks.variables(*program.families)}


def outcome(place: Path) -> dict[str, Any]:
    """Return the last step and the weights with which a training ended."""
    report: dict[str, Any] = json.loads((place / "final.json").read_text())
    return report


def began_at(place: Path) -> list[int]:
    """Return the step that each life of rank 0 began after, of those that made one."""
    steps = [
        (int(step), pid) for kind, rank, step, pid in (words for words in words_of(place / "events") if words[0] == "step") if rank == "0"
    ]
    return [next(group)[0] - 1 for _, group in groupby(steps, key=lambda step: step[1])]


def verdicts(run: Supervised) -> list[dict[str, Any]]:
    """Return the verdicts on failed attempts, in order; a stop that repeats the one before it is no other verdict."""
    events = [record for line in run.journal().splitlines() if (record := json.loads(line)["rec"])["kind"] == "event"]
    decided = [data for event in events for action, data in event["body"].get("actions", ()) if action == "ReportDecision"]
    return [next(same)["verdict"] for _, same in groupby(decided, key=lambda data: (data["attempt"], data["verdict"]["fingerprint"]))]


def held(run: Supervised, fault: str) -> int:
    """Await a rank that is held; return its pid."""

    def look() -> int:
        return next((int(words[2]) for words in words_of(run.place / "events") if words[:2] == ["held", fault]), 0)

    return wait_for(look, f"the rank that is held: {fault}", LONGEST_S, alive=run.alive)


class Drive:
    """One cell: the runs of a program, one after the other in one directory, and what is done to them from outside."""

    def __init__(self, program: TrainingProgram, fault: Injection, start: Callable[..., Supervised], place: Path) -> None:
        self.program, self.fault, self.place = program, fault, lay_out(program, place)
        self._start = start
        self.words = fault.words.format(rank=program.world - 1)
        self.torn, self.right = "", OUTCOMES.get((program.name, fault.name))
        self.failed: list[dict[str, Any]] = []  # the verdicts of a run before the last one
        self.reported = ""  # what it wrote to the terminal, in one line
        self.run = self.start()

    def start(self, *further: str) -> Supervised:
        """Start it, or start it again, with further options."""
        warm = () if self.fault.name == "kill" else ("--standby", "off")  # tests/programs/test_standbys.py has the others
        options = [*self.program.options, *(self.program.oom_options if self.fault.name == "oom" else ()), *warm, *further]
        more = self.program.worker_flags if self.fault.name == "worker" else ()
        self.run = self._start(
            *self.program.command, *more, options=options, place=self.place, PROGRAM_FAULT=self.words, **environment(self.program)
        )
        return self.run

    def act(self) -> list[int]:
        """Do what the fault needs from outside; return the exit code of each start."""
        codes: list[int] = getattr(self, self.fault.act)()
        return codes

    # --- what is done

    def watch(self) -> list[int]:
        """Do nothing."""
        return [self.run.exit_code(deadline_s=LONGEST_S)]

    def kill(self) -> list[int]:
        """Kill the rank, or the loader's worker, that is held."""
        os.kill(held(self.run, self._fault_at(0)), signal.SIGKILL)
        return self.watch()

    def kill_in_a_later_save(self) -> list[int]:
        """Kill rank 0 in a save; of an only file, once a copy of the save before is kept, as it is where saves are minutes apart."""
        held(self.run, self._fault_at(0))
        self._await_copy()
        self._let_go(0)
        os.kill(held(self.run, self._fault_at(1)), signal.SIGKILL)
        return self.watch()

    def kill_twice(self) -> list[int]:
        """Kill a rank, and later one of the next attempt."""
        os.kill(held(self.run, self._fault_at(0)), signal.SIGKILL)
        os.kill(held(self.run, self._fault_at(1)), signal.SIGKILL)
        return self.watch()

    def tear_and_kill(self) -> list[int]:
        """Cut the newest checkpoint in half, as a stranger would, then kill the rank that is held."""
        pid = held(self.run, self._fault_at(0))
        self._await_copy()
        newest = max(self.place.glob(self.program.saved), key=lambda path: path.stat().st_mtime_ns)
        files = [path for path in newest.rglob("*") if path.is_file()] if newest.is_dir() else [newest]
        largest = max(files, key=lambda path: path.stat().st_size)
        os.truncate(largest, largest.stat().st_size // 2)
        self.torn = newest.name
        os.kill(pid, signal.SIGKILL)
        codes = self.watch()
        self.failed, self.reported = verdicts(self.run), " ".join(self.run.stderr.split())
        return [*codes, *self._do_as_it_says()] if self.right is not None and len(self.right.ends) > 1 else codes

    def term(self) -> list[int]:
        """Stop supervise, and start it again."""
        held(self.run, self._fault_at(0))
        self.run.signal(signal.SIGTERM)
        return [*self.watch(), *self._again()]

    def kill_supervisor(self) -> list[int]:
        """Kill supervise, and start it again."""
        held(self.run, self._fault_at(0))
        self.run.signal(signal.SIGKILL)
        return [*self.watch(), *self._again()]

    def warned_of_nan(self) -> list[int]:
        """See that the NaN was reported. A save with numbers was read before, as it is where saves are minutes apart."""
        held(self.run, self._fault_at(0))
        self._await_copy()
        self._let_go(0)
        codes = self.watch()
        assert "not finite" in self.run.stderr, "no warning that the weights turned NaN"
        return codes

    def fill(self) -> list[int]:
        """Fill the checkpoints' own small file system, and make room once supervise waits for it."""
        ballast = self.place / self.program.directory / "ballast"
        held(self.run, self._fault_at(0))
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        self._let_go(0)
        self.run.wait_for_line(r"incident 1\b", 90.0)
        ballast.unlink()
        return self.watch()

    # --- with these

    def _fault_at(self, number: int) -> str:
        return ":".join(self.words.split()[number].split(":")[:2])

    def _let_go(self, number: int) -> None:
        (self.place / f"go-{self._fault_at(number).replace(':', '-')}").touch()

    def _await_copy(self) -> None:
        """Where each save overwrites the one before: await a kept copy of it."""
        saved = self.place / self.program.saved

        def look() -> bool:
            copies = (path for path in self.place.glob("state/**/copies/*/data/*") if not staging.is_temporary(path.parents[1].name))
            return any(path.is_file() and filecmp.cmp(path, saved, shallow=False) for path in copies)

        if self.program.one_file:
            wait_for(look, "a kept copy of the only file", 30.0, alive=self.run.alive)

    def _do_as_it_says(self) -> list[int]:
        """Run the command that the terminal names, and start again as the card says."""
        helps = re.search(r" do ((?:mkdir -p \S+ && )?(?:cp -p|mv) \S+ \S+) ", self.reported)
        assert helps, f"no command helps: {self.reported}"
        again = re.search(r" again (?:cd \S+ && )?supervise ((?:--set knobs\.program=\S+ )?)", self.reported)
        assert again, f"nothing says how to continue: {self.reported}"
        subprocess.run(["sh", "-c", helps[1]], check=True)  # noqa: S603, S607  what a person would copy from the terminal
        return self._again(*again[1].split())

    def _again(self, *options: str) -> list[int]:
        self.run.wait_for_nothing_left()
        self.start(*options)
        return self.watch()


def run_bare(program: TrainingProgram, place: Path) -> dict[str, Any]:
    """Run the program without supervise and without a fault; return its outcome."""
    run = Supervised(lay_out(program, place), program.command, (), environment(program), Surroundings(without_us=True))
    try:
        code = run.exit_code(deadline_s=LONGEST_S)
        ended = (place / "final.json").exists() and TORCH_TEARDOWN in run.stderr
        assert code == 0 or ended, f"the bare program fails: {run.stdout[-2000:]}{run.stderr[-4000:]}"
    finally:
        run.clear()
    return outcome(place)


def judge(drive: Drive, codes: list[int], bare: dict[str, Any]) -> None:
    """Fail where the outcome is not that of an uninterrupted run, where work was thrown away, or where the cause is wrong."""
    program, fault, run = drive.program, drive.fault, drive.run
    began = began_at(drive.place)
    incidents = verdicts(run)
    incidents = incidents if incidents[: len(drive.failed)] == drive.failed else [*drive.failed, *incidents]
    if TORCH_TEARDOWN in run.stderr and [row["cause"] for row in incidents[-1:]] == ["exit_abort"]:
        assert codes[-1] != 0
        assert "The training was over" in run.stderr
        codes, incidents = [*codes[:-1], 0], incidents[:-1]
    seen = f"exit codes {codes}, began after {began}, incidents {[(row['cause'], row.get('rank'), row['summary']) for row in incidents]}"
    right = drive.right
    causes, ends = (right.causes, right.ends) if right else (fault.causes, fault.ends)
    assert tuple(codes) == ends, seen
    assert len(incidents) == len(causes), seen
    assert all(row["cause"] in right for row, right in zip(incidents, causes, strict=True)), seen
    assert not right or not right.names or drive.torn in drive.reported, f"{drive.torn} is not named; {seen}"
    assert all(at in right for at, right in zip(began[1:], fault.resumed, strict=False)), seen
    if fault.name in {"import", "value"}:
        assert run.attempts() == 1, seen
    if fault.name == "kill" and program.world > 1:
        assert incidents[0]["rank"] == program.world - 1, f"the wrong rank is blamed; {seen}"
    if fault.finishes and ends[-1] == 0:
        assert len(began) == len(fault.resumed) + 1, seen
        if not (program.drifts and fault.name == "oom"):
            last = outcome(drive.place)
            assert last["step"] == bare["step"], seen
            apart = max(abs(weight - other) for weight, other in zip(last["weights"], bare["weights"], strict=True))
            assert program.inexact or apart <= fault.tolerance, f"the weights are {apart} apart; {seen}"
    run.wait_for_nothing_left()
