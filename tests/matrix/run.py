"""Tries this checkout with several versions of Python and torch: a table, and exit code 1 where a row failed.

    python tests/matrix/run.py                          every row of ROWS; `make matrix` does the same
    python tests/matrix/run.py 3.13:2.13 3.14:2.15      these rows
    python tests/matrix/run.py --in ENVIRONMENT         the torch that a virtual environment has already

Each row gets a virtual environment of its own, which is removed after it: torch of that version from pip's index, or from --torch-index,
then this checkout as a wheel, which must leave that torch alone. `supervise doctor`, the self-check of torch's names (`python -m
supervisor.agent.selfcheck`) and SUITE must pass. A Python that is not on PATH, and a torch that the index has not for it, are named "not
here" and fail nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
ROWS: Final = ("3.11:2.6", "3.11:2.10", "3.11:2.13", "3.11:2.14", "3.11:2.15", "3.12:2.13", "3.13:2.13", "3.14:2.15")
#: What the tests of SUITE import.
NEEDED: Final = ("hatchling", "hypothesis", "numpy", "pytest", "pytest-timeout", "pyyaml", "safetensors")
#: The promises that stand on torch: a few real jobs of each kind.
SUITE: Final = (
    "tests/agent/test_fit.py::test_every_row_of_the_self_check_bites_and_the_installed_torch_fits",
    "tests/agent/test_fit.py::test_a_torch_that_does_not_fit_is_named_before_anything_runs",
    "tests/agent/test_dynamic_rounds.py::test_the_round_waits_neither_for_a_lost_node_nor_for_more_than_expected",
    "tests/e2e/test_main_job.py::test_kill_9_of_a_rank_recovers_by_standbys_and_the_model_is_bit_equal_to_an_uninterrupted_one",
    "tests/e2e/test_nodes.py::test_a_rank_killed_while_another_saves_leaves_one_checkpoint_that_all_resume_from",
    "tests/e2e/test_recovery.py::test_without_the_declared_knob_the_arguments_stay_and_the_stop_names_it",
    "tests/e2e/test_standby.py::test_the_ranks_of_the_next_attempt_are_the_standbys",
    "tests/pathologies/test_hangs.py::test_stopped_ranks_are_found_and_a_restart_cures_it[one]",
    "tests/instrument/test_recorder.py::test_a_rank_answers_all_who_ask_what_its_collectives_are_and_ends_as_ever",
    "tests/instrument/test_spawned.py::test_ranks_that_the_command_starts_by_torch_multiprocessing_are_ranks",
    "tests/instrument/test_stores.py",
    "tests/checkpointing/conversion/test_round_trips.py",
    "tests/checkpointing/training/test_kills.py::test_a_kill_in_the_middle_of_a_save_leaves_the_checkpoint_before[save-2]",
    (
        "tests/checkpointing/training/test_state.py::"
        "test_the_state_of_each_wrapping_has_the_same_names_and_trains_on_alike_in_another[the next]"
    ),
)


@dataclass(frozen=True)
class Result:
    """One row of the table. `good`: None where the row could not be tried."""

    python: str
    torch: str
    good: bool | None
    text: str


class Failed(Exception):  # noqa: N818  not an error of this script
    """A command did not succeed; its text is the last line that says why."""


def run(*command: str | Path, log: Path, env: dict[str, str] | None = None) -> str:
    """Run a command in the checkout, its output in the log too. Raises Failed."""
    done = subprocess.run([str(part) for part in command], cwd=ROOT, env=env, capture_output=True, text=True, check=False)  # noqa: S603
    with log.open("a", encoding="utf-8") as out:
        out.write(f"$ {' '.join(map(str, command))}\n{done.stdout}{done.stderr}\n")
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise Failed(next((line for line in reversed(lines) if "ERROR" in line or "Error" in line), lines[-1])[:200])
    return done.stdout


def newest(output: str, wanted: str) -> str:
    """Return the newest version of torch that begins with `wanted`, of what `pip index versions` prints; "" for none."""
    listed = re.search(r"^Available versions: (.*)", output, re.MULTILINE)
    versions = listed[1].split(", ") if listed else []
    return next((version for version in versions if f"{version}.".startswith(f"{wanted}.")), "")


def install(python: str, torch: str, place: Path, index: list[str], log: Path) -> Path | Result:
    """Make an environment with this torch; the row's result where that cannot be had."""
    base = shutil.which(f"python{python}")
    if base is None:
        return Result(python, torch, None, f"not here: no python{python} on PATH")
    run(base, "-m", "venv", place, log=log)
    pip = (place / "bin/python", "-m", "pip", "--disable-pip-version-check", "--no-input")
    version = newest(run(*pip, "index", "versions", "torch", *index, log=log), torch)
    if not version:
        return Result(python, torch, None, f"not here: the index has no torch {torch} for Python {python}")
    try:
        run(*pip, "install", "-q", *index, f"torch=={version}", log=log)
    except Failed as why:
        return Result(python, torch, None, f"not here: torch {version} cannot be installed: {why}")
    return place


def try_here(place: Path, log: Path) -> str:
    """Install this checkout beside the torch of an environment, and try it. Raises Failed; returns what passed."""
    python = place / "bin/python"
    pip = (python, "-m", "pip", "--disable-pip-version-check", "--no-input")
    kept = {key: value for key, value in os.environ.items() if not re.fullmatch(r"PYTHON\w*|SUPERVISE_\w*|TORCH\w*|PYTEST\w*", key)}
    env = kept | {"PATH": f"{place / 'bin'}:{os.environ['PATH']}"}
    before = run(python, "-c", "import torch; print(torch.__version__)", log=log, env=env)
    with tempfile.TemporaryDirectory() as dist:
        run(*pip, "install", "-q", *NEEDED, log=log)
        run(*pip, "wheel", "-q", "--no-deps", "-w", dist, ROOT, log=log)
        (wheel,) = Path(dist).glob("*.whl")
        run(*pip, "install", "-q", "--force-reinstall", "--no-deps", wheel, log=log)
        run(*pip, "install", "-q", wheel, log=log)
    if run(python, "-c", "import torch; print(torch.__version__)", log=log, env=env) != before:
        raise Failed("installing supervise changed torch")
    run(place / "bin/supervise", "doctor", log=log, env=env)
    fits = run(python, "-P", "-m", "supervisor.agent.selfcheck", log=log, env=env).strip().splitlines()
    tested = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={place}.tests", *SUITE, log=log, env=env)
    shutil.rmtree(f"{place}.tests", ignore_errors=True)
    return "; ".join([*fits, tested.strip().splitlines()[-1]])


def row(name: str, place: Path, log: Path, index: list[str], *, there: bool) -> Result:
    """Try one row."""
    python, _, torch = name.partition(":")
    began = time.monotonic()
    try:
        if not there and isinstance(result := install(python, torch, place, index, log), Result):
            return result
        text = try_here(place, log)
    except Failed as why:
        return Result(python, torch, good=False, text=f"failed: {why} (more: {log})")
    finally:
        if not there:
            shutil.rmtree(place, ignore_errors=True)
    return Result(python, torch, good=True, text=f"{text}; {time.monotonic() - began:.0f} s")


def main() -> int:
    """Try the rows one after the other; print each as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("rows", nargs="*", metavar="PYTHON:TORCH", help=f"default: {' '.join(ROWS)}")
    parser.add_argument("--in", dest="there", type=Path, help="use the torch of this virtual environment; supervise is installed into it")
    parser.add_argument("--torch-index", help="where torch comes from, such as https://download.pytorch.org/whl/cpu")
    parser.add_argument("--logs", type=Path, default=Path("matrix-logs"), help="a log of each row is written there")
    options = parser.parse_args()
    logs = options.logs.resolve()
    logs.mkdir(parents=True, exist_ok=True)
    index = ["--index-url", options.torch_index] if options.torch_index else []
    results = []
    for name in [f"in:{options.there.name}"] if options.there else options.rows or ROWS:
        log = logs / f"{name.replace(':', '-')}.log"
        log.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="matrix-") as apart:
            place = options.there.resolve() if options.there else Path(apart, "venv")
            results.append(row(name, place, log, index, there=options.there is not None))
        sys.stdout.write(f"| {results[-1].python} | {results[-1].torch} | {results[-1].text} |\n")
        sys.stdout.flush()
    return int(any(result.good is False for result in results))


if __name__ == "__main__":
    sys.exit(main())
