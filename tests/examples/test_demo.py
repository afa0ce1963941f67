"""`make demo`: a rank is killed and a checkpoint torn, the demo ends well in time, and prints what the README shows."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.ledgers import check_ledgers_below
from tests.support.pages import page_text
from tests.support.supervised import EAGER

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
README = (ROOT / "README.md").read_text(encoding="utf-8")
OUR_PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

#: The width of a character in rich's pictures of a terminal.
CELL = 12.2

pytestmark = pytest.mark.process


@dataclass(frozen=True)
class Shown:
    """One run of the demo. `stale` was there before it."""

    place: Path
    stale: Path
    done: subprocess.CompletedProcess[str]


def with_examples(place: Path) -> Path:
    """Put the examples where the demo is to be started: it writes there."""
    shutil.copytree(EXAMPLES, place / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    return place


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return with_examples(tmp_path)


def demo(place: Path, path: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "examples/demo.py"]
    environment = {**os.environ, **EAGER, "PATH": path}
    return subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, timeout=260, check=False)  # noqa: S603


@pytest.fixture(scope="module")
def shown() -> Iterator[Shown]:
    """Run the demo once, where its paths are so short that the lines it prints fold as those in the README do."""
    with tempfile.TemporaryDirectory(prefix="d") as name:
        place = with_examples(Path(name))
        stale = place / "demo-run" / "ckpt" / "step-99999999.pt"
        stale.parent.mkdir(parents=True)
        stale.touch()
        (place / "demo-run" / ".made-by-the-demo").touch()
        done = demo(place, OUR_PATH)
        assert done.returncode == 0, done.stdout + done.stderr
        yield Shown(place, stale, done)


@pytest.mark.slow
def test_the_demo_recovers_from_a_killed_rank_and_a_torn_checkpoint(shown: Shown) -> None:
    done = shown.done
    assert not shown.stale.exists()
    torn = re.search(r"cut (\S+)/(step-\d+\.pt) in half", done.stderr)
    assert torn
    lines = done.stdout.splitlines()
    assert any(line.startswith("done: step 400") for line in lines)
    card = "".join(done.stdout.partition("incident 1 of job demo")[2].split())  # it wraps long paths
    assert f"{torn[2]}:torn" in card
    resumed = re.search(r"supervise: resumed at step (\d+) from", done.stderr)
    assert resumed
    assert int(resumed[1]) == int(re.sub(r"\D", "", torn[2])) - 40  # the one before the torn one


@pytest.mark.slow
def test_the_time_that_the_demo_prints_is_measured_from_its_own_kill_to_the_first_step(shown: Shown) -> None:
    line = r"from kill -9 to the first step of both new ranks: ([\d.]+) s, of which ([\d.]+) s imports"
    printed = re.search(line, shown.done.stderr)
    card = re.search(r"^  restart +([\d.]+) (m?s) since the failure", shown.done.stdout, re.MULTILINE)
    assert printed
    assert card
    since_failure_s = float(card[1]) / (1000 if card[2] == "ms" else 1)
    assert since_failure_s - 0.02 <= float(printed[1]) <= since_failure_s + 2.0, "the supervisor sees the death after the kill"
    assert float(printed[2]) <= float(printed[1])


@pytest.mark.slow
def test_the_time_ledger_of_the_demos_job_adds_up(shown: Shown) -> None:
    assert check_ledgers_below(shown.place) == 1


@pytest.mark.slow
def test_the_demos_job_is_never_called_hung(shown: Shown) -> None:
    """Each hang was to be ended, after limits that are ten times shorter."""
    (journal,) = shown.place.glob("demo-run/state/*/nodes/*/journal.jsonl")
    assert '"event":"HangConfirmed"' not in journal.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_printed_command_is_that_of_the_demo_when_it_is_pasted(shown: Shown) -> None:
    (line,) = [line for line in shown.done.stderr.splitlines() if line.startswith("[demo] supervise ")]
    words = shlex.split(line.removeprefix("[demo] "))
    assert words[words.index("--checkpoints") + 1] == "demo-run/ckpt/*.pt"
    assert "'demo-run/ckpt/*.pt'" in line, "the shell is not to expand it"
    assert words[words.index("--resume-args") + 1] == "--resume {resume}"


def masked(text: str) -> str:
    """Return what is equal in every run: without numbers, the directory, and the machine's name."""
    text = re.sub(r"/\S+(?=/demo-run)", "DIR", text)
    text = re.sub(r" on [^ ,]+,", " on NODE,", text)
    # whether its digest was recorded before the rank was killed is chance; without one its structure proves it
    text = re.sub(r"verified: (?:digest|identity|structure)", "verified: PROOF", text)
    text = text.removesuffix(". The traceback of rank 0 is a consequence")  # whether its peer got so far is chance too
    return re.sub(r"\d+(?:\.\d+)?", "0", text)


def rows(report: str) -> dict[str, str]:
    """Return the text of each row of what `supervise why` prints, by its label; folded lines are joined."""
    texts: dict[str, str] = {}
    _, *lines = report.splitlines()
    label, begin = "", len(lines[0]) - len(lines[0].removeprefix("  what").lstrip())
    for line in lines:
        label = line[2:begin].strip() or label
        texts[label] = " ".join([*filter(None, [texts.get(label, "")]), line[begin:].strip()])
    return {label: masked(text) for label, text in texts.items()}


def drawn(picture: str) -> str:
    """Return the text in a picture of a terminal (bench/first_screen.py): each piece in its column of its line."""
    lines: dict[float, str] = {}
    for x, y, piece in re.findall(r'<text class="[^"]*-r\d+" x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', picture):
        column = round(float(x) / CELL)
        lines[float(y)] = lines.get(float(y), "").ljust(column) + html.unescape(piece).replace("\xa0", " ")
    return "\n".join(lines[y].rstrip() for y in sorted(lines)).strip()


@pytest.mark.slow
def test_the_readmes_first_screen_is_what_the_demo_prints(shown: Shown) -> None:
    (at_the_terminal,) = re.findall(r"^```text\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    printed = [masked(line) for line in shown.done.stderr.splitlines() if line.startswith(("supervise: ", "[demo] from "))]
    opening = next(at for at, line in enumerate(printed, start=1) if "journal and logs" in line)  # the last line that opens every run
    printed = [line for line in printed[opening:] if "starting attempt" not in line]  # of a machine that is slow to begin
    assert [masked(line) for line in at_the_terminal.splitlines()] == printed
    text = drawn((ROOT / "docs" / "images" / "why.svg").read_text(encoding="utf-8"))
    real = "-- incident" + shown.done.stdout.partition("-- incident")[2]
    shows, is_so = rows(text), rows(real)
    assert list(shows) == list(is_so)
    for label in shows.keys() - {"evidence", "where", "restart"}:  # these are chance
        assert shows[label].replace(" ", "") == is_so[label].replace(" ", ""), "a long path is folded"


@pytest.mark.slow
def test_the_reading_commands_for_the_demos_job_are_right(shown: Shown) -> None:
    text = (ROOT / "docs" / "explanation" / "how-a-failure-is-handled.md").read_text(encoding="utf-8")
    commands = re.findall(r"`(supervise [^`]*--job demo[^`]*)`", text)
    assert commands
    for command in commands:
        done = subprocess.run(  # noqa: S603  what our page says
            shlex.split(command),
            cwd=shown.place,
            env={**os.environ, "PATH": OUR_PATH},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), command
        assert "incident 1 of job demo" in done.stdout


@pytest.mark.slow
def test_each_line_of_the_log_has_the_documented_fields(shown: Shown) -> None:
    rows_of_events = re.findall(r"^\| `([\w.]+)` \|[^|]*\|([^|]*)\|", page_text("log-events.md"), re.MULTILINE)
    documented = {name: set(re.findall(r"`(\w+)`", fields)) for name, fields in rows_of_events}
    (log,) = shown.place.glob("demo-run/state/demo/nodes/*/supervise.log")
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert {"rank.exited", "attempt.ended", "plan.decided", "incident.closed"} <= {line["event"] for line in lines}
    for line in lines:
        fields = line.keys() - {"event", "level", "timestamp", "job", "run_id", "node"}
        if line["event"] == "agent.reported":
            assert "what" in fields
        else:
            assert fields == documented[line["event"]], line


def test_the_demo_without_supervise_on_path_names_the_command_to_run(place: Path) -> None:
    done = demo(place, "/nonexistent")
    assert done.returncode == 1
    assert "make demo" in done.stderr
    assert not (place / "demo-run").exists()


def test_the_demo_removes_nothing_that_is_not_its_own(place: Path) -> None:
    (place / "demo-run").mkdir()
    (place / "demo-run" / "mine").touch()
    done = demo(place, OUR_PATH)
    assert done.returncode == 1
    assert (place / "demo-run" / "mine").exists()
