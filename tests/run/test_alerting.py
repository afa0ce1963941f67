"""From the settings to a message: the run's own wiring of sinks, reporter, ticks and heartbeat, without a job."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from supervisor.config import loading
from supervisor.core import actions as act
from supervisor.core.events import ProgressObserved
from supervisor.core.model import Cause, FailureVerdict, Phase, Plan, PlanKind
from supervisor.core.values import replace
from supervisor.job import known_jobs
from supervisor.job.clock import Clock
from supervisor.report.alert_watch import AlertWatch
from supervisor.report.reporter import Reporter
from supervisor.run.main import JobRun
from tests.support.http_serving import QuietHandler, served
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VERDICT = FailureVerdict(Cause.SEGFAULT, 0.9, "rank 3 was killed by SIGSEGV", "segfault:SIGSEGV", rank=3)
RESTART = Plan(PlanKind.RESTART, "restart", "stop", "restart_within_budget")
STOP = Plan(PlanKind.STOP, "the budget is spent", "nothing", "stop", 65)


@dataclass
class Receiver:
    """Both sinks of the run: what was sent to them, and the status of their answers."""

    port: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    status: int = 200


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            receiver.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(receiver.status)
            self.end_headers()
            self.wfile.write(b"no_text")

    with served(Handler) as receiver.port:
        yield receiver


@pytest.fixture
def run(tmp_path: Path, receiver: Receiver) -> Iterator[Any]:
    """Return as much of a run as reports: its job has a webhook and a chat room."""
    url = f"http://127.0.0.1:{receiver.port}"
    config = tmp_path / "c.toml"
    config.write_text(
        f'[alerts]\nnode = "gpu-7"\n[[alerts.sink]]\nkind = "webhook"\nurl = "{url}/v1"\n'
        f'[[alerts.sink]]\nkind = "slack"\nurl = "{url}/slack"\nruns = true\n'
    )
    config.chmod(0o600)
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "home")}
    settings = loading.load({}, environ, tmp_path, str(config), system_file=tmp_path / "none")
    state = tmp_path / "state" / "bert" / "nodes" / "gpu-7.example"
    state.mkdir(parents=True)
    job: Any = SimpleNamespace(
        name="bert",
        run_id="20260102T000000-abcd",
        node="gpu-7.example",
        settings=settings,
        environ=environ,
        state=state,
        incident_dir=lambda _n: tmp_path,
    )
    clock, terminal = Clock.start(), MagicMock()
    reporter = Reporter(job, clock, terminal, MagicMock(), MagicMock())
    threads = SimpleNamespace(start=lambda _name, work, **_options: work())
    job_run: Any = SimpleNamespace(
        job=job, log=MagicMock(), loop=SimpleNamespace(call_soon=lambda call: call()), terminal=terminal, reporter=reporter, clock=clock,
        alert_watch=AlertWatch(job, reporter, lambda: 0.0), executor=SimpleNamespace(threads=threads),
    )  # fmt: skip
    job_run._remember_place = lambda: JobRun._remember_place(job_run)  # noqa: SLF001  the run's own
    JobRun._start_alerts(job_run)  # noqa: SLF001  what is tested
    yield job_run
    reporter.close_alerts(2.0)


def texts(receiver: Receiver) -> list[str]:
    return [body["text"].splitlines()[0] for body in receiver.bodies if "attachments" in body]


def events(receiver: Receiver) -> list[str]:
    return [body["event"] for body in receiver.bodies if body.get("version") == 1]


def test_a_story_with_two_failures_is_one_thread(run: Any, receiver: Receiver) -> None:  # noqa: ANN401
    reporter = run.reporter
    reporter.run_started(continues=False)
    for incident in (1, 2):
        reporter.decided(act.ReportDecision(incident, incident, VERDICT, RESTART, 40))
        reporter.beginning(act.BeginAttempt(incident + 1, "failure", None))
        reporter.resumed(act.ReportResume(incident, incident + 1, 40, "ckpt/40.pt", confirmed=True, resume_from="ckpt/40.pt"))
        reporter.closed(act.CloseIncident(incident, incident + 1, "resolved", 41))
    reporter.run_finished(0, 3)
    reporter.close_alerts(10.0)
    assert events(receiver) == ["opened", "resolved"]
    assert texts(receiver) == [
        "INFO: bert on gpu-7: the run started",
        "RESTARTS BY ITSELF: bert on gpu-7: native code accessed invalid memory",
        "OVER: bert on gpu-7: it trains again",
        "INFO: bert on gpu-7: the run ended",
    ]
    assert any("2 failures in" in body["text"] for body in receiver.bodies if "text" in body)
    assert known_jobs.recall("bert", run.job.environ) == run.job.state.parents[2]


def test_a_tick_sends_what_was_gathered_and_giving_up_is_one_message(run: Any, receiver: Receiver) -> None:  # noqa: ANN401
    run.reporter.alerted(act.Alert("recurring_failure", 1, "failed 3 times in the same way"))
    run.reporter.decided(act.ReportDecision(1, 1, VERDICT, STOP, 40))
    run.reporter.closed(act.CloseIncident(1, 1, "given_up", 40))
    state = SimpleNamespace(stage=None, attempt=SimpleNamespace(number=1), run=SimpleNamespace(incident=None))
    assert run.alert_watch.tick(state, run.clock.now()) is None
    run.alert_watch.tick(state, run.clock.now() + 2)
    wait_for(lambda: len(texts(receiver)) == 1 and len(events(receiver)) == 1, "both sinks")
    assert texts(receiver) == ["NEEDS YOU: bert on gpu-7 stopped: native code accessed invalid memory"]


def test_a_hang_has_its_own_line_rank_and_step_and_not_those_of_the_incident_before(run: Any, receiver: Receiver) -> None:  # noqa: ANN401
    facts = (("file", "/home/alice/train.py"), ("line", "112"))
    run.reporter.decided(act.ReportDecision(1, 1, replace(VERDICT, facts=facts), RESTART, 40))
    run.reporter.took(ProgressObserved(t=2.0, attempt=2, step=90, steps_seen=50, phase=Phase.TRAIN))
    code = "my_train.py:65 (rank 1), my_train.py:70 (rank 2)"
    run.reporter.alerted(act.Alert("hang", 2, "no progress for 600 s", culprit=(1, ""), code=code))
    run.reporter.close_alerts(10.0)
    opened, hang = (body for body in receiver.bodies if body.get("version") == 1)
    assert (opened["code"], opened["rank"], opened["step"], opened["incident"]) == ("train.py:112", 3, 40, 1)
    assert (hang["code"], hang["rank"], hang["step"], hang["incident"]) == ("my_train.py:65", 1, 90, 0)
    assert hang["title"] == "NEEDS YOU: bert on gpu-7: the ranks hang (my_train.py:65)"
    assert hang["command"] == "supervise status --stacks --job bert"


def test_a_refusal_is_a_warning_once_and_is_counted_at_the_end(run: Any, receiver: Receiver) -> None:  # noqa: ANN401
    receiver.status = 400
    for incident in (1, 2):
        run.reporter.decided(act.ReportDecision(incident, incident, VERDICT, RESTART, 40))
    run.reporter.close_alerts(10.0)
    printed = [call.args[0] for call in run.terminal.message.call_args_list]
    assert [line for line in printed if line.startswith("alert refused by slack")] == [
        "alert refused by slack (127.0.0.1): status 400: no_text; `supervise status -v` lists all"
    ]
    assert [line for line in printed if "not delivered" in line] == [
        f"1 alert was not delivered to 127.0.0.1: status 400: no_text; kept in {run.job.state}/alerts.jsonl",
    ] * 2
