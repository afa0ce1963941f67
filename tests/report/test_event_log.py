"""The structured log: JSON lines from a closed list, bounded, and no trouble to anybody."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from supervisor.core import events
from supervisor.core.actions import BeginAttempt, CloseIncident, OpenIncident, ReportDecision
from supervisor.core.model import Cause, CheckpointRef, FailureVerdict, JobDecision, Phase, Plan, PlanKind, RankExit, RankInfo
from supervisor.job.clock import Clock
from supervisor.report import reporter as reporter_module
from supervisor.report.attempt_summary import logged_fields
from supervisor.report.event_log import FILE_NAME, EventLog, open_log
from supervisor.report.log_events import LogEvent
from supervisor.report.reporter import LOGGED, NOTED, Reporter
from supervisor.report.terminal import TerminalWriter
from tests.support.waiting import wait_for


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_name_is_a_noun_and_a_verb_in_the_past() -> None:
    irregular = {"begun", "left", "lost", "sent"}
    for event in LogEvent:
        noun, _, verb = event.value.partition(".")
        assert re.fullmatch(r"[a-z]+", noun)
        assert verb.endswith("ed") or verb in irregular
        assert event.name == event.value.replace(".", "_").upper()


def test_a_line_holds_the_event_its_fields_and_the_bound_values(tmp_path: Path) -> None:
    log = open_log(tmp_path).bind(run_id="r1", node="n")
    log.bind(attempt=3).write(LogEvent.RANK_EXITED, "warning", rank=5, path=tmp_path, text="\udcff")
    log.write(LogEvent.RUN_FINISHED)
    log.write(LogEvent.RESUME_CONFIRMED, "debug", step=1)
    log.close(30)
    first, second = lines(tmp_path / FILE_NAME)
    assert first.pop("timestamp").endswith("Z")
    fields = {"run_id": "r1", "node": "n", "attempt": 3, "rank": 5, "path": repr(tmp_path), "text": "\udcff"}
    assert first == {"event": "rank.exited", "level": "warning", **fields}
    assert (second["event"], second["run_id"], second["node"], "attempt" in second) == ("run.finished", "r1", "n", False)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_the_log_is_appended_to_and_bounded(tmp_path: Path) -> None:
    for turn in range(2):
        log = open_log(tmp_path, limit_bytes=10_000)
        log.write(LogEvent.RUN_STARTED, turn=turn)
        log.close(30)
    assert [line["turn"] for line in lines(tmp_path / FILE_NAME)] == [0, 1]
    log = open_log(tmp_path, limit_bytes=10_000)
    for number in range(500):
        log.write(LogEvent.ATTEMPT_ENDED, number=number)
    log.close(10)
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE_NAME, f"{FILE_NAME}.1"]
    kept = lines(tmp_path / f"{FILE_NAME}.1") + lines(tmp_path / FILE_NAME)
    assert all(path.stat().st_size <= 10_000 for path in tmp_path.iterdir())
    assert [line["number"] for line in kept] == list(range(kept[0]["number"], 500))


def test_a_log_that_cannot_be_written_is_silent_and_records_what_was_lost_when_it_can(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    log = open_log(directory)
    for _ in range(3):
        log.write(LogEvent.ATTEMPT_ENDED)
    log.close(30)
    log = open_log(directory)
    log.write(LogEvent.ATTEMPT_ENDED)
    while not log.lost:  # the thread has tried
        os.sched_yield()
    directory.mkdir()
    log.write(LogEvent.RUN_FINISHED)
    log.close(10)
    assert [(line["event"], line.get("lines")) for line in lines(directory / FILE_NAME)] == [("log.lost", 1), ("run.finished", None)]


@pytest.mark.process
def test_a_full_disk_keeps_only_whole_lines_and_the_log_continues_when_there_is_room(tmp_path: Path) -> None:
    code = (
        "import os, resource, signal, sys\nfrom pathlib import Path\nfrom supervisor.report.event_log import open_log\n"
        "from supervisor.report.log_events import LogEvent\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))\n"  # writes beyond fail as on a full disk, the last one in part
        "log = open_log(Path(sys.argv[1]))\n"
        "for n in range(20): log.write(LogEvent.ATTEMPT_ENDED, n=n)\n"
        "file = Path(sys.argv[1], 'supervise.log')\n"
        "while not file.exists() or log.lost + file.read_bytes().count(b'\\n') < 20: os.sched_yield()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))\n"
        "log.write(LogEvent.RUN_FINISHED)\nlog.close(10)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603  our own code
    assert (done.returncode, done.stderr) == (0, "")
    rows = lines(tmp_path / FILE_NAME)
    kept = [line["n"] for line in rows if line["event"] == "attempt.ended"]
    assert kept == list(range(len(kept)))
    assert [(line["event"], line.get("lines")) for line in rows[len(kept) :]] == [("log.lost", 20 - len(kept)), ("run.finished", None)]


@pytest.mark.parametrize("shown", [True, False])
def test_costly_modules_are_imported_for_a_person_alone_and_after_the_hold(tmp_path: Path, *, shown: bool) -> None:
    code = f"""
        import pathlib, sys
        from supervisor.report.event_log import open_log
        from supervisor.report.log_events import LogEvent
        from supervisor.report.terminal import TerminalWriter
        terminal = TerminalWriter(1) if {shown} else None
        log = open_log(pathlib.Path({str(tmp_path)!r}), terminal, log_format="console", held_until=LogEvent.ATTEMPT_STARTED)
        log.write(LogEvent.RUN_STARTED, turn=1)
        assert not sys.modules.keys() & {{"structlog", "logging", "asyncio", "rich", "pygments"}}
        log.write(LogEvent.ATTEMPT_STARTED, turn=2)
        log.close(30.0)
        assert ("structlog" in sys.modules) is {shown}
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)  # noqa: S603  our own
    assert (done.returncode, done.stderr) == (0, "")
    assert [line["turn"] for line in lines(tmp_path / FILE_NAME)] == [1, 2]


def test_held_lines_are_written_in_order_with_their_own_time_at_the_close(tmp_path: Path) -> None:
    log = open_log(tmp_path, held_until=LogEvent.ATTEMPT_STARTED)
    for turn in range(900):
        log.write(LogEvent.RUN_STARTED, turn=turn)
    ended = datetime.now(UTC)
    assert not (tmp_path / FILE_NAME).exists()
    log.close(30)
    log.close(30)
    written = lines(tmp_path / FILE_NAME)
    assert [line["turn"] for line in written] == list(range(900))
    assert datetime.fromisoformat(written[-1]["timestamp"]) <= ended


class Unrenderable:
    """A value whose repr raises."""

    def __repr__(self) -> str:
        """Raise."""
        raise ValueError("no text")


def test_a_line_that_cannot_be_rendered_is_counted_and_the_next_is_written(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.write(LogEvent.RUN_STARTED, value=Unrenderable())
    log.write(LogEvent.RUN_FINISHED)
    log.close(30)
    assert [(line["event"], line.get("lines")) for line in lines(tmp_path / FILE_NAME)] == [("log.lost", 1), ("run.finished", None)]


@pytest.mark.parametrize(
    ("log_format", "start"), [("json", b'{"rank": 1'), ("auto", b'{"rank": 1'), ("console", b"20"), ("ecs", b'{"@timestamp": "')]
)
def test_verbose_shows_each_event_on_stderr_too(tmp_path: Path, log_format: Any, start: bytes) -> None:  # noqa: ANN401  a Literal
    reader, writer = os.pipe()
    terminal = TerminalWriter(writer)
    log = open_log(tmp_path, terminal, log_format=log_format)
    log.write(LogEvent.RESUME_CONFIRMED, "debug", rank=1)
    log.close(30)
    terminal.close()
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        shown = file.read()
    assert shown.startswith(start)
    assert b"resume.confirmed" in shown
    assert (log_format == "console") == (b"[debug    ] resume.confirmed               rank=1" in shown)
    (line,) = lines(tmp_path / FILE_NAME)
    assert line.get("supervise", line)["rank"] == 1


#: Names and types of the Elastic Common Schema, of those that we write: generated/csv/fields.csv of github.com/elastic/ecs, at 1.6.
ECS = {
    "@timestamp": "date",
    "ecs.version": "keyword",
    "event.action": "keyword",
    "event.dataset": "keyword",
    "event.kind": "keyword",
    "host.name": "keyword",
    "log.level": "keyword",
    "message": "text",
    "process.pid": "long",
    "service.name": "keyword",
}


def test_ecs_lines_have_names_and_types_of_the_schema_and_all_of_our_own_in_one_place(tmp_path: Path) -> None:
    log = open_log(tmp_path, log_format="ecs").bind(job="bert", run_id="r1", node="gpu-1")
    log.bind(attempt=3).write(LogEvent.INCIDENT_OPENED, rank=5, summary="rank 5 was killed", message="ours")
    log.write(LogEvent.RUN_FINISHED, exit_code=0)
    log.close(30)
    opened, finished = lines(tmp_path / FILE_NAME)
    for line in (opened, finished):
        own = line.pop("supervise")
        assert {"job": "bert", "run_id": "r1"}.items() <= own.items()
        assert line.keys() == ECS.keys()
        assert datetime.fromisoformat(line["@timestamp"]).tzinfo == UTC
        assert all(type(line[name]) is (int if kind == "long" else str) for name, kind in ECS.items())
        assert (line["event.kind"], line["host.name"], line["process.pid"]) == ("event", "gpu-1", os.getpid())
    assert (opened["event.action"], opened["log.level"]) == ("incident.opened", "warning")
    assert opened["message"] == "incident.opened: rank 5 was killed"
    assert finished["message"] == "run.finished"


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"outcome": "failed", "reason": "start"}, "attempt.ended: failed"), ({"reason": "start", "outcome": None}, "attempt.ended: start")],
)
def test_an_ecs_message_is_what_happened_before_why_it_began(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    log = open_log(tmp_path, log_format="ecs")
    log.write(LogEvent.ATTEMPT_ENDED, **fields)
    log.close(30)
    assert lines(tmp_path / FILE_NAME)[0]["message"] == message


def test_lost_lines_are_counted_in_ecs_too(tmp_path: Path) -> None:
    log = open_log(tmp_path / "later", log_format="ecs")
    log.write(LogEvent.RUN_STARTED)
    wait_for(lambda: log.lost, "the line to be lost", 10)
    (tmp_path / "later").mkdir()
    log.write(LogEvent.RUN_FINISHED)
    log.close(30)
    lost, _ = lines(tmp_path / "later" / FILE_NAME)
    assert (lost["event.action"], lost["supervise"], "host.name" in lost) == ("log.lost", {"lines": 1}, False)


class Written:
    """In the place of a log: keeps what is written, as loud as it would be."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def write(self, event: LogEvent, level: str | None = None, /, **fields: Any) -> None:  # noqa: ANN401  whatever an event carries
        """Keep it."""
        self.lines.append((event.value, level or event.level, fields))


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.fixture
def reporter(written: Written, tmp_path: Path) -> Reporter:  # only its log matters here
    job = MagicMock(incident_dir=lambda _number: tmp_path, node="n")
    return Reporter(job, Clock.start(), MagicMock(), cast("EventLog", written), MagicMock())


def test_every_fact_that_is_noted_is_logged(reporter: Reporter, written: Written) -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(reporter_module.__file__).parents[1].rglob("*.py"))
    names = set(re.findall(r"""\bnote\("([a-z_]+\.[a-z_]+)",""", sources))
    assert names == {*NOTED, "agent.reported"}
    for name in sorted(names):
        reporter.note(name, {"ev": "rendezvous", "do": "go", "attempt": 2})
    fields = {"request": "go", "attempt": 2}
    assert written.lines == [
        ("launcher.started", "info", fields),
        ("agent.reported", "info", {"what": "rendezvous", **fields}),
        ("processes.left", "warning", fields),
        ("request.lost", "warning", fields),
        ("standby.reported", "info", fields),
        ("standby.used", "info", fields),
    ]


def test_a_request_that_the_guardian_refused_is_no_end_of_the_launcher(reporter: Reporter, written: Written) -> None:
    reporter.processes.output({"ev": "refused", "do": "spawn", "text": "KeyError('argv')"})
    assert written.lines == [("request.refused", "error", {"request": "spawn", "text": "KeyError('argv')"})]


def test_an_attempts_last_line_sums_it_up(reporter: Reporter, written: Written) -> None:
    reporter.beginning(BeginAttempt(2, "failure", CheckpointRef("ckpt/80.pt", 80, "structure")))
    reporter.took(events.AttemptStarted(10.0, 2, (RankInfo(4, 0, 41, 7), RankInfo(5, 1, 42, 7)), 8))
    reporter.took(events.ProgressObserved(14.0, 2, 95, 15, Phase.TRAIN))
    reporter.took(events.RankExited(15.0, 2, RankExit(5, 42, 1, signal=9)))
    reporter.took(events.RankExited(15.5, 2, RankExit(4, 41, 2, code=1)))
    reporter.took(events.AttemptEnded(16.0, 2, "failed"))
    event, level, fields = written.lines[-1]
    resumed = {"reason": "failure", "resume_from": "ckpt/80.pt", "resume_step": 80}
    progress = {"step": 95, "steps_seen": 15, "phase": "train", "ran_s": 6.0}
    first = {"first_dead": 5, "code": None, "signal": 9}
    assert (event, level) == ("attempt.ended", "warning")
    assert fields == {"attempt": 2, "outcome": "failed", "ranks": 2, "world_size": 8, **resumed, **progress, **first}


def test_a_rank_that_failed_is_logged_as_a_warning_and_a_good_end_as_info(reporter: Reporter, written: Written) -> None:
    reporter.beginning(BeginAttempt(1, "start", None))
    for rank, code in enumerate((0, 3)):
        reporter.took(events.RankExited(15.0, 1, RankExit(rank, 41, 1, code=code)))
    reporter.took(events.AttemptEnded(16.0, 1, "succeeded"))
    assert [(event, level) for event, level, _ in written.lines[1:]] == [
        ("rank.exited", "info"),
        ("rank.exited", "warning"),
        ("attempt.ended", "info"),
    ]


@pytest.mark.parametrize(("outcome", "level"), [("resolved", "info"), ("given_up", "error"), ("withdrawn", "info")])
def test_an_incidents_last_line_sums_it_up(reporter: Reporter, written: Written, outcome: str, level: str) -> None:
    verdict = FailureVerdict(Cause.SEGFAULT, 0.9, "rank 5 was killed by SIGSEGV", "f", rank=5)
    plan = Plan(PlanKind.RESTART, "from the newest", "stop", "restart_within_budget")
    reporter.opened(OpenIncident(1, 2, 5, "rank 5: killed by signal 11"))
    reporter.decided(ReportDecision(1, 2, verdict, plan, 95))
    reporter.closed(CloseIncident(1, 3, outcome, 96))
    *_, (_, _, decided), (event, severity, fields) = written.lines
    assert decided["next"] == "stop"
    assert (event, severity) == ("incident.closed", level)
    assert fields.pop("took_s") >= 0
    judged = {"cause": "segfault", "confidence": 0.9, "rank": 5, "plan": "restart", "strategy": "restart_within_budget", "exit_code": None}
    assert fields == {"incident": 1, "attempt": 3, "outcome": outcome, "step": 96, **judged}
    reporter.opened(OpenIncident(2, 3, None, "another"))
    reporter.closed(CloseIncident(2, 3, "withdrawn", None))
    assert written.lines[-1][2]["cause"] is None  # nothing was decided about this one


def test_an_event_of_the_core_is_documented_with_its_own_fields() -> None:
    """`past` belongs to the budgets, and has no line; a decision of the nodes is logged as the few fields that people look for."""
    decision = JobDecision(
        FailureVerdict(Cause.SEGFAULT, 0.9, "rank 5", "f", rank=5), Plan(PlanKind.RESTART, "from the newest", "stop", "same_place")
    )
    of_events = {event: set(kind.__struct_fields__) - {"t", "past"} for kind, event in LOGGED.items()}
    of_events[LogEvent.NODES_DECIDED] = set(logged_fields(events.DecisionMade(1.0, 1, "restart", decision)))
    assert {event: set(event.fields) for event in of_events} == of_events
