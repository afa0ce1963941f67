"""Every command that the README and the tour of a failure tell a person to type is typed here, or by the test that is named for it."""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from tests.support import preloaded
from tests.support.few import few

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "docs/explanation/how-a-failure-is-handled.md", "docs/explanation/one-night.md")
README = (ROOT / "README.md").read_text(encoding="utf-8")

#: Commands that start a training, each in a directory of its own.
WITH_CHECKPOINTS = "supervise --checkpoints 'ckpt/*.pt' --resume-args '--resume {resume}' -- torchrun --nproc-per-node=8 train.py"
WITHOUT = "supervise -- torchrun --standalone --nproc-per-node=8 train.py"
PLAIN = "supervise -- accelerate launch train.py"
#: Commands that are typed where WITHOUT has run, and what they must show: its rank 3 was killed once.
READING = {
    "supervise status": ": done",
    "supervise why": "rank 3 was killed by SIGKILL",
    "supervise report": "1 failure",
    "supervise logs --rank 3 --follow": "rank 3 resumes from None",
    "supervise ls": "done",
    "supervise stop": "no job runs here",
    "supervise config show": "--resume {resume}",
}
DEMO = "tests/examples/test_demo.py::test_the_demo_recovers_from_a_killed_rank_and_a_torn_checkpoint"
FIRST_SCREEN = "tests/docs/test_first_screen.py::"
DEMO_WHY = "tests/examples/test_demo.py::test_the_reading_commands_for_the_demos_job_are_right"
CPU_ONLY = "TORCH_INDEX=https://download.pytorch.org/whl/cpu"
ELSEWHERE = {
    "make demo": DEMO,
    f"make demo {CPU_ONLY}": "tests/docs/test_commands.py::test_make_takes_torch_from_the_named_index",
    "make test": "tests/docs/test_commands.py::test_make_does_what_the_tests_do",
    "make docs": "tests/docs/test_commands.py::test_make_does_what_the_tests_do",
    "supervise profile": "tests/e2e/test_profile.py::test_a_job_is_profiled_and_trains_on_and_says_who_waits_for_whom",
    "supervise doctor": FIRST_SCREEN + "test_the_doctor_names_the_gpu_that_must_be_reset",
    "supervise doctor --all": "tests/health/test_doctor.py::test_a_healthy_check_is_shown_with_all",
    "supervise plan -- CMD": "tests/knobs/test_plan.py::test_the_plan_shows_enabled_and_disabled_parts_on_one_screen",
    "supervise drill resume -- CMD": "tests/e2e/test_drill_resume.py::test_two_ranks_that_load_the_same_checkpoint_are_proven",
    "supervise drill oom": "tests/docs/test_tutorial.py::test_a_newcomer_follows_the_pages_from_a_clean_clone",
    "make lint types": "tests/docs/test_commands.py::test_make_does_what_the_tests_do",
    "supervise bundle": "tests/cli/jobs/test_bundle.py::test_the_bundle_holds_the_incidents_files_and_lists_the_missing_ones",
    "supervise classify FILE": "tests/cli/test_classify.py::test_a_page_for_people_has_the_labels_of_the_card_and_all_that_matters",
    "supervise print torchrun -- python train.py": "tests/cli/printing/test_launchers.py::test_one_script_starts_one_node_or_several",
    "pip install -e .": "tests/docs/test_commands.py::test_make_installs_a_checkout_as_the_readme_says",
    "supervise checkpoints undo": "tests/cli/test_checkpoints.py::test_a_checkpoint_moved_aside_is_moved_back",
    "supervise why --job demo --state-dir demo-run/state": DEMO_WHY,
}
TRAIN = """
import os, signal, sys
rank = os.environ.get("RANK", "0")
resume = sys.argv[sys.argv.index("--resume") + 1] if "--resume" in sys.argv else None
print(f"rank {rank} resumes from {resume}", flush=True)
if rank == "3" and os.path.exists("once"):
    os.unlink("once")
    os.kill(os.getpid(), signal.SIGKILL)
"""

pytestmark = pytest.mark.process


def commands(page: str) -> Iterator[str]:
    """Yield what follows a prompt, and what stands in the text as code and begins as a command of `make` or `supervise` does."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in re.findall(r"^```(?:console|bash)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            assert line.startswith("$ "), f"a line of a console without a prompt: {line}"
            yield re.split(r"\s{2,}#", line.removeprefix("$ "))[0].strip()
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`((?:make|supervise) [^`]+)`", prose)


TYPED = [(page, command) for page in PAGES for command in dict.fromkeys(commands(page))]


def environment(place: Path) -> dict[str, str]:
    foreign = re.compile(r"SUPERVISE_|TORCH|PYTEST|SLURM|PYTHON|(LOCAL_)?(RANK|WORLD_SIZE)$|MASTER_|XDG_|STATE_DIRECTORY|CREDENTIALS_")
    kept = {name: value for name, value in os.environ.items() if not foreign.match(name)}
    path = f"{place / 'bin'}:{Path(sys.executable).parent}:{kept['PATH']}"
    return {**kept, "PATH": path, "OMP_NUM_THREADS": "1", "HOME": str(place)}


def typed(command: str, place: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603  what our pages say
        shlex.split(command), cwd=place, env=environment(place), capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Give a directory for each command that starts a training: with its script, and all else that the README takes for granted."""
    folders = {command: tmp_path_factory.mktemp("typed") for command in (WITH_CHECKPOINTS, WITHOUT, PLAIN)}
    for place in folders.values():
        (place / "train.py").write_text(TRAIN)
    (folders[WITH_CHECKPOINTS] / "ckpt").mkdir()
    torch.save({"step": 7}, folders[WITH_CHECKPOINTS] / "ckpt" / "step-00000007.pt")
    accelerate = folders[PLAIN] / "bin" / "accelerate"
    accelerate.parent.mkdir()
    accelerate.write_text(f'#!/bin/sh\ntest "$1" = launch && shift && exec {sys.executable} "$@"\n')
    accelerate.chmod(0o755)
    (folders[WITHOUT] / "once").touch()
    (toml,) = re.findall(r"^```toml\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    (folders[PLAIN] / "supervise.toml").write_text(toml.split("[[alerts")[0])
    return folders


@pytest.fixture(scope="module")
def trained(places: dict[str, Path]) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Give a function that types a command that starts a training, once."""
    return functools.cache(lambda command: typed(command, places[command]))


def test_the_commands_that_are_known_are_those_that_are_there() -> None:
    known = {WITH_CHECKPOINTS, WITHOUT, PLAIN, *READING, *ELSEWHERE}
    assert {command for _, command in TYPED} == known


@pytest.mark.parametrize("command", few([WITHOUT, PLAIN, WITH_CHECKPOINTS], 2))
def test_each_documented_start_of_a_training_starts_it(
    trained: Callable[[str], subprocess.CompletedProcess[str]], places: dict[str, Path], command: str
) -> None:
    done = trained(command)
    assert done.returncode == 0, done.stdout + done.stderr
    resumed = places[command] / "ckpt" / "step-00000007.pt" if command == WITH_CHECKPOINTS else None
    assert f"rank 0 resumes from {resumed}" in done.stdout
    assert ("Restarting as attempt 2" in done.stderr) == (command == WITHOUT)
    assert ("no --checkpoints given" in done.stderr) == (command == WITHOUT)


@pytest.mark.parametrize("command", READING)
def test_each_documented_reading_command_shows_the_past_run(
    trained: Callable[[str], subprocess.CompletedProcess[str]], places: dict[str, Path], command: str
) -> None:
    assert trained(WITHOUT).returncode == 0
    place = places[PLAIN if "config" in command else WITHOUT]
    done = preloaded.command_text(*shlex.split(command)[1:], cwd=place, environ=environment(place))
    assert done.returncode == 0, done.stderr
    assert READING[command] in done.stdout


@pytest.mark.parametrize(("command", "test"), ELSEWHERE.items())
def test_a_command_tested_elsewhere_has_its_test(command: str, test: str) -> None:
    file, name = test.split("::")
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), command


@pytest.mark.parametrize(
    ("command", "recipe"),
    [
        ("make demo", "python examples/demo.py"),
        ("make test", "python -m pytest -m 'not slow'"),
        ("make docs", "sphinx-build -q -W"),
        ("make lint types", "-m mypy"),
    ],
)
def test_make_does_what_the_tests_do(command: str, recipe: str) -> None:
    done = subprocess.run(  # noqa: S603  what our pages say, and nothing is run
        [*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert recipe in done.stdout


def test_make_installs_a_checkout_as_the_readme_says() -> None:
    done = subprocess.run(
        ["make", "demo", "--dry-run", "--always-make"],  # noqa: S607  nothing is run
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert re.search(r"pip .*install .*-e \.$", done.stdout, flags=re.MULTILINE), done.stdout + done.stderr


@pytest.mark.parametrize(("words", "index"), [([], ""), (["TORCH_INDEX=https://torch.test/cpu"], " --index-url https://torch.test/cpu")])
def test_make_takes_torch_from_the_named_index(words: list[str], index: str) -> None:
    done = subprocess.run(  # noqa: S603  nothing is run
        ["make", "demo", "--dry-run", "--always-make", *words],  # noqa: S607  as above
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert re.search(
        rf"^ *echo 'fetching torch: .* 5 GB.*\n.*\n.*pip .* install *{re.escape(index)} *-r \S+torch.txt$", done.stdout, re.MULTILINE
    )


def test_the_readmes_configuration_is_accepted(tmp_path: Path) -> None:
    (toml,) = re.findall(r"^```toml\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "supervise.toml").write_text(toml)
    done = typed("supervise config show", tmp_path)
    assert done.returncode == 0, done.stderr
