# ruff: noqa: ANN401  values as a command takes and prints them
"""`supervise status`: where a job stands, from its files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.cli.jobs import watch as watching
from supervisor.cli.jobs.job_files import find_job, state_root
from supervisor.cli.jobs.status import status
from supervisor.core.events import AttemptEnded, CheckpointVerified, HangCleared, HangConfirmed
from supervisor.core.model import CheckpointRef, Hang, HangKind
from supervisor.errors import SuperviseError
from supervisor.job import identity
from supervisor.journal.records import SUMMARY, Note
from supervisor.run import lock
from tests.support.figures import costs_at_most
from tests.support.pages import page_text

if TYPE_CHECKING:
    from tests.support.recorded_job import RecordedJob


REPOSITORY = Path(__file__).parents[3]


def status_of(written: RecordedJob, capsys: pytest.CaptureFixture[str], job: str | None = "train") -> dict[str, Any]:
    """Return what `status --json` prints."""
    capsys.readouterr()
    assert status(written.settings, job, as_json=True) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def alive(written: RecordedJob, **more: Any) -> None:
    """Begin a run whose supervisor is this very process."""
    me = identity.this_process()
    written.begin(pid=me.pid, start_ticks=me.start_ticks, **more)


GPU_MEMORY = (
    *("gpu_allocated_bytes", "gpu_reserved_bytes", "gpu_peak_bytes", "gpu_split_bytes"),
    *("gpu_limit_bytes", "pinned_bytes"),
)


def test_a_running_job(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    alive(written)
    written.start(1)
    written.progress(5, 3, step=3)
    written.progress(9, 7, step=7)
    written.time_start({"supervise": 1.5, "import": 2.5}, after="launch")
    written.close()
    document = status_of(written, capsys)
    assert document.pop("now") > written.T0
    assert document == {
        "state": "training",
        "drill": False,
        "start": {"attempt": 1, "after": "launch", "total_s": 4.0, "parts": {"supervise": 1.5, "import": 2.5}, "trained": True},
        "job": "train",
        "node": identity.node_name(),
        "run": "run-1",
        "since": written.T0,
        "until": None,
        "stage": "running",
        "attempt": 1,
        "attempt_since": written.T0 + 1,
        "restarts": 0,
        "restarts_left": 3,
        "step": 7,
        "step_relative": False,
        "total_steps": None,
        "total_from": None,
        "steps_per_s": 1.0,
        "eta_s": None,
        "last_step_age_s": None,
        "loss": None,
        "phase": "train",
        "hang": None,
        "forecasts": [],
        "warnings": [],
        "ranks": [
            dict.fromkeys(("step", "lag", "memory_bytes", "phase_s", "waits", "time_shares", *GPU_MEMORY))
            | {"rank": n, "local_rank": n, "pid": 100 + n, "phase": "unknown"}
            for n in range(2)
        ],
        "world_size": 2,
        "nodes": [],
        "waits": None,
        "standby": None,
        "saved": None,
        "verified": None,
        "mirrored": None,
        "saves": None,
        "waiting_uploads": 0,
        "gpus": [],
        "health": [],
        "examined": None,
        "last_incident": None,
        "incident": None,
        "incidents": 0,
        "last_decision": None,
        "supervisor": {"pid": os.getpid(), "alive": True},
        "state_dir": str(written.directory),
        "exit_code": None,
        "numbers": None,
        "left_out": 0,
        "step_shares": None,
        "restored": None,
        "alerts": None,
    }


def test_a_hang_is_shown_as_long_as_it_holds(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    alive(written)
    written.start(1)
    written.progress(5, 3, step=3)
    hang = Hang(HangKind.LATE, "rank 1 waits in all_reduce; rank 0 is in evaluate", (0,), still_s=95.0)
    written.feed(HangConfirmed(written.T0 + 100, 1, hang))
    document = journalled(written, capsys)
    assert (document["hang"]["kind"], document["hang"]["ranks"]) == ("late", [0])
    assert document["hang"]["still_s"] > 95
    assert status(written.settings, "train", as_json=False) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "rank 1 waits in all_reduce; rank 0 is in evaluate" in page
    assert "/attempts/0001/hang.txt" in page
    written.feed(HangCleared(written.T0 + 120, 1, 115.0, "rank 0 made step 4"))
    assert journalled(written, capsys)["hang"] is None


def test_the_keys_are_those_of_the_page(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    written.close()
    page = page_text("json.md")
    assert status(written.settings, "train", as_json=True, verbose=True) == 0
    for key in json.loads(capsys.readouterr().out):
        assert f"`{key}`" in page


def test_the_status_agrees_with_the_state_of_the_core(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    """What the readers count without `decide` is what `decide` counted."""
    alive(written)
    moments = [
        lambda: written.start(1),
        lambda: written.progress(5, 9),
        lambda: written.fail(10),
        lambda: written.restart(20),
        lambda: written.progress(30, 5),
        lambda: written.progress(31, 6, step=12),
    ]
    for moment in moments:
        moment()
        document, state = journalled(written, capsys), written.state
        assert (document["stage"], document["attempt"]) == (state.stage.value, state.attempt.number)
        assert (document["incident"], document["incidents"]) == (state.run.incident.number if state.run.incident else None, state.incidents)
        if state.stage.value == "running":
            assert (document["step"], document["step_relative"], document["phase"]) == (
                state.attempt.progress.step,
                state.attempt.progress.relative,
                state.attempt.progress.phase.value,
            )
    written.close()


def journalled(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return what `status --json` prints once all that was written is on the disk."""
    last = written.journal.append(Note("mark"), t=0.0, durable=True)
    until = time.monotonic() + 60
    while written.journal.health().synced_seq < last:
        assert time.monotonic() < until
        time.sleep(0.005)
    return status_of(written, capsys)


def test_an_ended_job(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    written.start(1)
    written.fail(10)
    written.restart(20)
    written.succeed(60)
    document = status_of(written, capsys)
    assert (document["stage"], document["exit_code"], document["ranks"]) == ("ended", 0, [])
    assert document["supervisor"]["alive"] is False
    assert (document["incident"], document["incidents"]) == (None, 1)
    assert document["last_decision"].startswith("restart: ")


def test_a_failure_without_progress_is_charged_to_the_budget(
    written: RecordedJob, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.cli.jobs.job_status.time.time", lambda: written.T0 + 60)
    alive(written)
    written.start(1)
    written.progress(5, 9, step=9)
    written.fail(10)
    written.restart(20)
    written.progress(28, 2, step=5)
    written.journal.close(10)
    document = status_of(written, capsys)
    assert (document["restarts"], document["restarts_left"]) == (1, 2)


def test_progress_beyond_the_failure_refills_the_budget(
    written: RecordedJob, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.cli.jobs.job_status.time.time", lambda: written.T0 + 60)
    alive(written)
    written.start(1)
    written.progress(5, 9, step=9)
    written.fail(10)
    written.restart(20)
    for n in range(30):
        written.progress(28 + n, 2 + n, step=5 + n)
    written.verify("ckpt/33.pt", 33, 58)
    written.close()
    document = status_of(written, capsys)
    assert (document["restarts"], document["restarts_left"], document["steps_per_s"]) == (1, 3, 1.0)
    assert document["attempt_since"] == written.T0 + 21


def test_the_last_checkpoint_is_that_of_the_summary(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    written.start(1)
    written.feed(CheckpointVerified(written.T0 + 5, 1, CheckpointRef("ckpt/5.pt", 5, "digest"), 1))
    written.feed(AttemptEnded(written.T0 + 9, 1, "succeeded"))
    written.journal.append(Note(SUMMARY, "done", {"path": "ckpt/9.pt", "step": 9}), t=written.T0 + 10)
    written.end(0)
    verified = status_of(written, capsys)["verified"]
    assert (verified["path"], verified["step"]) == ("ckpt/9.pt", 9)


def test_between_two_attempts_there_is_no_pace(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    alive(written)
    written.start(1)
    for n in range(3):
        written.progress(5 + n, n, step=n)
    written.fail(10)
    written.journal.close(10)
    document = status_of(written, capsys)
    assert (document["ranks"], document["steps_per_s"], document["eta_s"]) == ([], None, None)


def test_a_requeued_run_that_continues_has_not_ended(
    written: RecordedJob, make_job: type[RecordedJob], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written.begin()
    written.start(1)
    written.end(75)
    again = make_job(root)
    alive(again, continues=True)
    again.close()
    assert status_of(again, capsys)["exit_code"] is None
    assert status(again.settings, "train", as_json=False) == 0
    assert "until it ended" not in capsys.readouterr().out


def test_a_journal_without_a_run_says_so_and_no_supervisor_is_called_dead(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.close()
    assert status(written.settings, "train", as_json=False) == 0
    page = capsys.readouterr().out
    assert page.startswith(f"-- job train on {written.node}: no run yet -")
    assert "does not run; no run is recorded\n" in page
    assert "died" not in page
    assert "pid 0" not in page


def test_a_job_whose_supervisor_died(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    written.start(1)
    written.progress(5, 3, step=3)
    written.close()
    document = status_of(written, capsys)
    assert document["supervisor"] == {"pid": 1, "alive": False}
    assert (document["incident"], document["incidents"], document["ranks"], document["step"]) == (1, 1, [], 3)
    assert status(written.settings, "train", as_json=False) == 0
    assert "died, and could not report it" in capsys.readouterr().out


def test_the_lock_says_that_it_lives(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()  # whose pid says that it is gone
    written.close()
    own_lock = lock.acquire(written.directory / "lock", job="train")
    try:
        assert status_of(written, capsys)["supervisor"]["alive"] is True
    finally:
        own_lock.release()
    assert status_of(written, capsys)["supervisor"]["alive"] is False


def test_the_text_is_narrow(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    written.start(1)
    written.fail(10)
    written.close()
    assert status(written.settings, None, as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 100 for line in lines if not line.startswith(("  files ", "  look ")))  # those are there to be copied


def test_without_a_name_the_most_recent_job_is_shown_with_the_number_of_jobs(root: Path, make_job: type[RecordedJob], capsys: Any) -> None:
    for age, name in enumerate(("oldest", "older", "newest")):
        job = make_job(root, name)
        job.begin()
        job.close()
        os.utime(job.directory / "journal.jsonl", (1000.0 + age, 1000.0 + age))
    assert find_job(root, None).job == "newest"
    assert capsys.readouterr().err == "supervise: newest: the most recent of 3 jobs here; --job NAME shows another\n"
    assert find_job(root, "older").job == "older"
    assert not capsys.readouterr().err


def test_a_job_of_several_nodes_is_read_on_this_node(root: Path, make_job: type[RecordedJob]) -> None:
    for node in (identity.node_name(), "other"):
        job = make_job(root, "train", node)
        job.begin()
        job.close()
    os.utime(root / "train" / "nodes" / identity.node_name() / "journal.jsonl", (1.0, 1.0))
    assert find_job(root, "train").node == identity.node_name()


def test_no_job_and_no_such_job_are_usage_errors_that_say_what_there_is(written: RecordedJob, tmp_path: Path) -> None:
    written.close()
    with pytest.raises(SuperviseError, match="nothing was supervised here") as nothing:
        find_job(tmp_path / "nowhere", None)
    with pytest.raises(SuperviseError, match="no such job") as other:
        find_job(state_root(written.settings), "tran")
    assert (nothing.value.exit_code, other.value.exit_code) == (64, 64)
    assert "train" in other.value.hint


def test_damage_is_reported_on_stderr_and_the_rest_is_read(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    written.start(1)
    written.close()
    path = written.directory / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"x" * 10 + b"\n" + b"".join(lines[1:]) + b'{"crc":"0')
    assert status(written.settings, None, as_json=True) == 0
    output = capsys.readouterr()
    assert f"damaged record: 11 bytes at offset {len(lines[0])}" in output.err
    assert json.loads(output.out)["attempt"] == 1


def test_a_progress_that_led_to_nothing_is_not_lost_before_an_end(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    written.start(1)
    for step in range(50):
        written.progress(5 + step, step + 1, step=step)
    written.feed(AttemptEnded(written.T0 + 90, 1, "succeeded"))
    written.end(0)
    assert status_of(written, capsys)["step"] == 49


@pytest.mark.process
def test_the_status_imports_no_costly_module(written: RecordedJob) -> None:
    written.begin()
    written.close()
    code = (
        "import os, sys, dataclasses; from supervisor.config.settings import Settings, JobSection;"
        " from supervisor.cli.jobs.status import status;"
        " from supervisor.cli.jobs.why import why;"
        f"s = dataclasses.replace(Settings(), job=JobSection(state_dir={str(state_root(written.settings))!r}));"
        "names = {'torch', 'prometheus_client', 'jinja2', 'tenacity', 'asyncio'};"
        "status(s, None, True); why(s, None, None, as_json=True);"
        "light = 'rich' not in sys.modules; os.environ['COLUMNS'] = '40'; status(s, None, False); why(s, None, None);"
        "print(light, 'rich' in sys.modules, sorted({m.split('.')[0] for m in sys.modules} & names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)  # noqa: S603
    assert done.stdout.splitlines()[-1] == "True True []", "rich is loaded where a text is folded, and nowhere else"


@pytest.mark.slow
@pytest.mark.bench
def test_a_month_is_read_in_half_a_second_of_cpu(written: RecordedJob) -> None:
    """43,200 records: a report of progress every minute for 30 days. Four times the allowance, for a busy machine."""
    written.begin()
    written.start(1)
    from supervisor.core.events import ProgressObserved  # noqa: PLC0415 (used here only)
    from supervisor.core.model import Phase  # noqa: PLC0415 (used here only)
    from supervisor.journal.records import event_taken  # noqa: PLC0415 (used here only)
    from supervisor.view.reading import read_view  # noqa: PLC0415 (used here only)

    for i in range(43_200):
        event = ProgressObserved(written.T0 + 60 * i, 1, i, i, Phase.TRAIN)
        written.journal.append(event_taken(event, (), attempt=1, stage="running"), t=event.t)
    written.close()
    with costs_at_most(2.0):
        assert read_view(written.directory / "journal.jsonl").progress.step == 43_199


@pytest.mark.parametrize(
    ("line", "columns", "rows"),
    [
        ("a" * 80, 80, 1),
        ("a" * 81, 80, 2),
        ("中" * 40, 80, 1),
        ("中" * 41, 80, 2),
        ("a" + "中" * 40, 80, 2),  # the last one does not fit into the cell that is left
        ("中" * 4, 5, 2),
        ("e\u0301" * 80, 80, 1),  # an accent takes no cell of its own
        (f"\x1b[31m{'中' * 40}\x1b[0m", 80, 1),
    ],
)
def test_watch_counts_the_cells_of_a_terminal_and_not_characters(
    monkeypatch: pytest.MonkeyPatch, line: str, columns: int, rows: int
) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((columns, 2 * rows + 4)))
    screen = watching.screenful("\n".join([line] * 9), whole=False)
    more = watching.rows_of(watching._MORE.format(9), columns)  # noqa: SLF001
    assert screen.count(line) == max(1, (2 * rows + 4 - 1 - more) // rows)
