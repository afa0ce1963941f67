"""`supervise report`: on a job that runs, was killed, ended, has many runs, none, a damaged journal, or thousands of attempts."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.cli.jobs.report import report
from supervisor.cli.jobs.status import status
from supervisor.core.events import GpusListed, ProgressObserved
from supervisor.core.model import Gpu, Phase, RankMemory
from supervisor.core.step_shares import StepShares
from supervisor.core.training_events import MemoryForecast
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import identity
from supervisor.journal.records import EventTaken, Header, RunBegan, RunEnded, encode, scan
from supervisor.report.ledger.figures import NodeShare, SavingAdvice, SlowSpan
from supervisor.report.step_section import Scaling
from supervisor.view.spans import TimeState
from tests.support.ledgers import check_ledgers
from tests.support.pages import page_text

if TYPE_CHECKING:
    from supervisor.journal.records import Body
    from tests.support.recorded_job import RecordedJob

ROOT = Path(__file__).parents[3]


def page(written: RecordedJob, capsys: pytest.CaptureFixture[str], *, all_runs: bool = False) -> str:
    assert report(written.settings, "train", all_runs=all_runs) == 0
    return capsys.readouterr().out


def document(written: RecordedJob, capsys: pytest.CaptureFixture[str], *, all_runs: bool = False) -> dict[str, Any]:
    assert report(written.settings, "train", all_runs=all_runs, as_json=True) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert math.fsum(document["seconds"].values()) == pytest.approx(document["wall_s"], rel=0.001)
    return document


def fails_once(written: RecordedJob, begin_t: float = 0.0) -> None:
    """Train 100 steps in 100 s, fail, resume at step 3, and reach step 104."""
    written.start(begin_t + 5)
    for n in range(1, 101, 9):
        written.progress(begin_t + 9 + n, n, step=n)
    written.fail(begin_t + 111)
    written.restart(begin_t + 120)
    for n in range(14, 105, 10):
        written.progress(begin_t + 120 + n, n - 3, step=n)


def test_a_run_with_one_failure(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    written.feed(GpusListed(written.T0, (Gpu(0, "GPU-0"),)))
    fails_once(written)
    written.close()
    report = document(written, capsys)
    (run,), (incident, death) = report["runs"], report["incidents"]
    assert death["summary"] == "supervise died while this attempt ran"
    assert (report["attempts"], report["failures"], run["reached_step"], run["is_over"], run["goes_on"]) == (2, 2, 104, False, False)
    assert (incident["cause"], incident["rank"], incident["lost_steps"], incident["resumed_step"]) == ("killed_unknown", 1, 97, 3)
    assert incident["mttd_s"] == pytest.approx(0.004)
    assert incident["rank_hours"] == pytest.approx(incident["lost_s"] * 2 / 3600)
    assert report["mtbf_s"] is None, "two failures make no mean"
    assert report["mtbf_range_s"] == [pytest.approx(report["ran_s"] / 6.2958, rel=1e-4), pytest.approx(report["ran_s"] / 0.35536, rel=1e-4)]
    assert report["ettr"] == pytest.approx(report["seconds"]["productive"] / report["wall_s"])
    text = page(written, capsys)
    assert "supervise died" in text
    assert "97 steps" in text
    assert "GPU-hours" in text
    assert "not enough failures yet for advice (3 needed)" in text
    assert "MTBF" not in text, "an interval of two failures says nothing"


def test_a_job_that_runs_is_reported_up_to_now(
    written: RecordedJob, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written.begin(pid=os.getpid(), start_ticks=identity.this_process().start_ticks)
    written.start(5)
    written.progress(10, 1, step=1)
    written.close()
    monkeypatch.setattr(time, "time", lambda: written.T0 + 70)
    report = document(written, capsys)
    assert (report["wall_s"], report["seconds"]["productive"], report["runs"][0]["goes_on"]) == (70.0, 60.0, True)
    assert "it continues" in page(written, capsys)


def test_several_runs_are_added_up(root: Path, make_job: type[RecordedJob], capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        written = make_job(root, anew=number > 0)
        written.begin(run_id=f"run-{number}")
        fails_once(written)
        written.close()
    latest, every = document(written, capsys), document(written, capsys, all_runs=True)
    assert [run["run"] for run in every["runs"]] == ["run-0", "run-1", "run-2"]
    assert (latest["kept_runs"], len(latest["runs"]), latest["runs"][0]["run"]) == (3, 1, "run-2")
    assert every["wall_s"] == pytest.approx(3 * latest["wall_s"])
    # each run's own failure; of two of them the supervisor died too, and its successor began another run
    assert [incident["number"] for incident in every["incidents"]] == [1, 2, 3, 4, 5, 6]
    assert every["mtbf_s"] == pytest.approx(every["ran_s"] / 6)
    assert "3 runs are kept" in page(written, capsys)
    assert "supervise report --all" in page(written, capsys)
    assert "3 runs, since" in page(written, capsys, all_runs=True)


def test_a_save_that_holds_the_ranks_is_advised_on_after_three_failures(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    for number in range(3):
        begin_t = 300.0 * number
        if number:
            written.again(begin_t)
        else:
            written.start(5)
        attempt = written.state.attempt.number
        for at, step, phase in ((10, 1, Phase.TRAIN), (100, 50, Phase.CHECKPOINT), (110, 50, Phase.TRAIN), (200, 100, Phase.TRAIN)):
            written.feed(ProgressObserved(written.T0 + begin_t + at, attempt, step, step, phase))
        written.fail(begin_t + 205)
    written.close()
    report = document(written, capsys)
    assert report["mtbf_s"] == pytest.approx(report["ran_s"] / 3)
    assert report["advice"]["save_s"] == pytest.approx(10.0)
    assert 30 < report["advice"]["best_s"] < 100
    assert "save every" in page(written, capsys)


def test_without_a_run_the_report_names_the_journal(written: RecordedJob) -> None:
    written.close()
    with pytest.raises(SuperviseError, match="no run is recorded: train") as caught:
        report(written.settings, "train")
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_damaged_journal_is_reported_on_with_its_damage(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    fails_once(written)
    written.close()
    path = written.directory / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lost = next(n for n, line in enumerate(lines) if b'"event":"EvidenceCollected"' in line)
    path.write_bytes(b"".join([*lines[:lost], b"\0" * 100 + b"\n", *lines[lost + 1 :], b'{"crc":"']))
    document_of_run = document(written, capsys)
    assert any("damaged record" in problem for problem in document_of_run["problems"])
    assert 0 < document_of_run["seconds"]["unaccounted"] < document_of_run["wall_s"]
    path.write_bytes(b"nothing that is a record\n")
    with pytest.raises(SuperviseError, match="no run is recorded"):
        report(written.settings, "train")


@pytest.mark.slow
def test_a_report_on_five_thousand_attempts_takes_seconds(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.close()
    bodies: list[tuple[float, Body]] = [(0.0, Header("train", written.node)), (0.0, RunBegan("run-1"))]
    for n in range(1, 5001):
        begin: dict[str, Any] = {"attempt": n, "reason": "failure", "resume": None}
        for at, name, stage, actions, data in (
            (0, "CheckpointSelected", "starting", (("BeginAttempt", begin),), {"chosen": None, "n_found": 0}),
            (1, "AttemptStarted", "running", (), {"ranks": [], "world_size": 2}),
            (3, "ProgressObserved", "running", (), {"step": n, "steps_seen": 1, "phase": "train"}),
            (5, "RankExited", "teardown", (("OpenIncident", {"incident": n, "attempt": n, "rank": 0, "summary": "x"}),), {}),
            (6, "AttemptEnded", "teardown", (), {"outcome": "failed"}),
            (7, "EvidenceCollected", "selecting", (("CloseIncident", {"incident": n, "outcome": "resolved"}),), {}),
        ):
            t = 10.0 * n + at
            bodies.append((t, EventTaken(name, {"t": written.T0 + t, "attempt": n, **data}, n, stage, {}, actions=actions)))
    bodies.append((50009.0, RunEnded(1)))
    path = written.directory / "journal.jsonl"
    lines = (encode(number, written.T0 + t, written.T0 + t, body) for number, (t, body) in enumerate(bodies, 1))
    path.write_bytes(b"".join(lines))
    began_s = time.process_time()
    report = document(written, capsys)
    took_s = time.process_time() - began_s
    assert (report["attempts"], report["wall_s"]) == (5000, 50009.0)
    assert took_s < 15, "CPU seconds; 2 to 3 where nothing else runs"
    check_ledgers(scan(path))


def test_the_report_is_written_as_one_page_with_the_cards(written: RecordedJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    fails_once(written)
    written.close()
    file = tmp_path / "report.html"
    assert report(written.settings, "train", html_file=str(file)) == 0
    answer = capsys.readouterr()
    assert (answer.out, f"wrote {file}" in answer.err) == ("", True)
    text = file.read_text(encoding="utf-8")
    assert "rank 1 was killed by SIGKILL" in text, "the card of the incident"
    assert re.findall(r'<(\w+)[^>]* id="incident-(\d)"', text) == [("div", "2"), ("details", "1")]
    with pytest.raises(SuperviseError, match="writing the report"):
        report(written.settings, "train", html_file=str(tmp_path / "nowhere" / "report.html"))


def test_a_report_replaces_the_file_behind_a_link_and_is_written_into_a_pipe(written: RecordedJob, tmp_path: Path) -> None:
    written.begin()
    written.close()
    link, pipe = tmp_path / "link.html", tmp_path / "pipe"
    link.symlink_to(tmp_path / "page.html")
    os.mkfifo(pipe)
    fd = os.open(pipe, os.O_RDWR)  # holds what is written
    try:
        for file in (link, pipe):
            assert report(written.settings, "train", html_file=str(file)) == 0
        assert os.read(fd, 15) == b"<!DOCTYPE html>"
    finally:
        os.close(fd)
    assert (link.is_symlink(), pipe.is_fifo(), (tmp_path / "page.html").read_bytes()[:9]) == (True, True, b"<!DOCTYPE")


@pytest.mark.parametrize("losses", [(-1e308, 1e308), (0.0, 5e-324), (1.7e308, 1.7e308)])
def test_a_loss_that_a_float_just_holds_hides_no_page(written: RecordedJob, tmp_path: Path, losses: tuple[float, ...]) -> None:
    written.begin()
    written.start(5)
    for step in range(10):
        at = (written.T0 + 10 + 60 * step, 1, step, step)
        written.feed(ProgressObserved(*at, Phase.TRAIN, loss=losses[step % 2]))
    written.close()
    assert report(written.settings, "train", html_file=str(tmp_path / "report.html")) == 0
    assert status(written.settings, "train", as_json=False) == 0


def test_the_page_of_a_run_that_was_given_up_says_how_to_start_it_again_and_from_what(written: RecordedJob, tmp_path: Path) -> None:
    written.begin()
    written.start(1)
    written.give_up(5)
    written.close()
    file = tmp_path / "report.html"
    assert report(written.settings, "train", html_file=str(file)) == 0
    text = file.read_text(encoding="utf-8")
    assert "cd /data &amp;&amp; supervise -- train.py" in text
    assert "from scratch: no checkpoint is verified" in text


def test_every_field_of_the_json_is_documented(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    fails_once(written)
    written.close()
    report = document(written, capsys)
    described = page_text("json.md").partition("\n## report\n")[2].partition("\n## ")[0]
    documented = set(re.findall(r"^\| `([\w.]+)` \|", described, re.MULTILINE)) | {"version"}
    kinds = {
        "advice": SavingAdvice,
        "nodes": NodeShare,
        "slow": SlowSpan,
        "memory": RankMemory,
        "forecasts": MemoryForecast,
        "scaling": Scaling,
        "step_shares": StepShares,
    }
    inner = {f"{name}.{key}" for name in ("runs", "incidents") for key in report[name][0]}
    inner |= {f"{name}.{key}" for name, kind in kinds.items() for key in kind.__struct_fields__}
    assert documented == {*report, *inner}


def test_every_state_is_documented() -> None:
    text = page_text("time-ledger.md").partition("\n## States")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE) == [state.value for state in TimeState]


def test_the_page_in_the_documentation_is_a_printed_one() -> None:
    printed = (ROOT / "tests/cli/jobs/pages/killed.txt").read_text(encoding="utf-8").partition("##### report, 80 columns\n")[2]
    page = page_text("report.md").partition("supervise report --job bert\n")[2].partition("\n\n")[0]
    assert [line.strip() for line in page.splitlines()] == [line.strip() for line in printed.partition("\n\n")[0].splitlines()]


@pytest.mark.process
def test_the_page_renderer_is_imported_for_pages_alone(written: RecordedJob) -> None:
    written.begin()
    fails_once(written)
    written.close()
    code = (
        "import sys; from dataclasses import replace; from supervisor.cli.jobs.report import report;"
        "from supervisor.config.settings import JobSection, Settings;"
        "settings = replace(Settings(), job=JobSection(state_dir=sys.argv[1])); report(settings, 'train');"
        "first = 'jinja2' in sys.modules; report(settings, 'train', html_file=sys.argv[2]); print(first, 'jinja2' in sys.modules)"
    )
    state = str(written.directory.parents[2])
    done = subprocess.run(  # noqa: S603  the program under test
        [sys.executable, "-c", code, state, str(written.directory / "report.html")], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False True"
