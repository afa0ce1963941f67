"""Reports to people that the parts alone would not show: across two supervisors, and without secrets."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from supervisor.config.settings import Settings
from supervisor.core import actions as act
from supervisor.core.actions import BeginAttempt, CloseIncident, ReportDecision, ReportResume
from supervisor.core.events import AttemptEnded, AttemptStarted, CheckpointSelected, NodesGathered, ProgressObserved
from supervisor.core.model import Cause, Change, Claim, Evidence, FailureVerdict, Gpu, Phase, Plan, PlanKind
from supervisor.core.state import Attempt, Incident
from supervisor.core.training_events import LossChanged, PaceChanged
from supervisor.core.values import replace
from supervisor.job.clock import Clock
from supervisor.report.layout import render
from supervisor.report.log_events import LogEvent
from supervisor.report.reporter import Reporter
from supervisor.report.unit_status import is_overdue

if TYPE_CHECKING:
    from supervisor.alerts.model import OutgoingAlert
    from supervisor.guardian.messages import SurvivingProcess

VERDICT = FailureVerdict(Cause.SEGFAULT, 0.9, "rank 3 was killed by SIGSEGV", "segfault:SIGSEGV", rank=3)
PLAN = Plan(PlanKind.RESTART, "restart", "stop", "restart_within_budget")


@pytest.fixture
def reporter(tmp_path: Path) -> Reporter:
    job = SimpleNamespace(
        name="train",
        run_id="r",
        node="n",
        settings=Settings(),
        state=Path("s") / "train" / "nodes" / "n",
        incident_dir=lambda _number: tmp_path,
    )
    reporter = Reporter(job, Clock.start(), MagicMock(), MagicMock(), MagicMock())  # type: ignore[arg-type]  # no terminal
    reporter.alerts.router = MagicMock()
    return reporter


def sent(reporter: Reporter) -> list[OutgoingAlert]:
    alerts: Any = reporter.alerts.router
    return [call.args[0] for call in alerts.enqueue.call_args_list]


def test_a_persons_own_stop_pages_nobody(reporter: Reporter) -> None:
    reporter.decided(ReportDecision(3, 1, VERDICT, HALVED, 7))
    reporter.closed(CloseIncident(3, 1, "stopped", 8))
    last = sent(reporter)[-1]
    assert (last.event.value, last.severity.value, last.action.value) == ("stopped", "info", "stop")


@pytest.mark.parametrize(
    ("incident", "texts"),
    [
        (Incident(7, 1.0, 2, VERDICT, PLAN), ["resolved"]),
        (Incident(7, 1.0, 2), []),
        (Incident(7, 1.0, 2, VERDICT, PLAN, alerts=False), []),
        (None, []),
    ],
    ids=["decided by the predecessor", "opened, and not told", "told by another node", "none open"],
)
def test_an_alert_by_a_predecessor_is_followed_by_one_at_the_incidents_end(
    reporter: Reporter, incident: Incident | None, texts: list[str]
) -> None:
    reporter.goes_on(incident)
    reporter.closed(CloseIncident(7, 3, "resolved", 120))
    assert [(alert.event.value, alert.incident, alert.cause, alert.rank) for alert in sent(reporter)] == [
        (event, 7, Cause.SEGFAULT, 3) for event in texts
    ]


@pytest.mark.parametrize("node", [0, 1])
def test_the_first_node_alerts_for_all_and_each_node_for_itself(reporter: Reporter, node: int) -> None:
    reporter.run_started(continues=False, meets=True)
    assert not sent(reporter), "it is not known yet which node this is"
    reporter.took(NodesGathered(1.0, 1, node, 2, 1, ("a/1", "b/1")))
    for kind in ("hang", "no_checkpoint", "node_health"):
        reporter.alerted(act.Alert(kind, 1, "text"))
    reporter.took(NodesGathered(2.0, 2, node, 2, 2, ("a/1", "b/1")))
    reporter.run_finished(0, 2)
    of_all = ["run_started", "hang", "no_checkpoint", "node_health", "run_finished"]
    assert [alert.event.value for alert in sent(reporter)] == (["hang", "node_health"] if node else of_all), (
        "of a hang one node speaks for all"
    )
    assert messages(reporter) == ["text"] * 3, "every terminal has it"


@pytest.mark.parametrize(("alias", "name"), [("", "b:1"), ("trainer", "node 1")])
def test_the_line_the_card_and_the_alert_name_the_node_that_failed(reporter: Reporter, alias: str, name: str) -> None:
    job: Any = reporter.alerts._job  # noqa: SLF001  the one that was given
    job.settings = dataclasses.replace(job.settings, alerts=dataclasses.replace(job.settings.alerts, node=alias))
    reporter.decided(ReportDecision(1, 1, replace(VERDICT, node="b.cluster:1"), PLAN, 65))
    assert messages(reporter)[0].startswith("incident 1 at step 65: rank 3 was killed by SIGSEGV on b.cluster:1. Restarting")
    assert "where rank 3 on b.cluster:1, step 65, attempt 1" in " ".join(shown(reporter).split())
    (alert,) = sent(reporter)
    assert (alert.failed_on, alert.node) == (name, alias or "n")


def test_processes_that_outlive_the_job_are_listed_without_their_secrets(reporter: Reporter) -> None:
    reporter.processes.survivors([{"pid": 41, "cmd": "upload --hf-token SECRETVALUE123 --to s3://bucket"}])
    terminal: Any = reporter._terminal  # noqa: SLF001  the mock that was given
    log: Any = reporter._log  # noqa: SLF001  likewise
    calls = f"{terminal.message.call_args_list} {log.write.call_args_list}"
    assert "41 (upload --hf-token" in calls
    assert "SECRETVALUE123" not in calls


@pytest.mark.parametrize("cmd", ["python -c from multiprocessing.resource_tracker import main;main(9)", "[python]"])
def test_a_process_that_ends_by_itself_is_not_listed(reporter: Reporter, cmd: str) -> None:
    tracker: SurvivingProcess = {"pid": 41, "cmd": cmd}
    reporter.processes.survivors([tracker])
    assert (messages(reporter), logged(reporter, LogEvent.SURVIVORS_LISTED)) == ([], [])
    reporter.processes.survivors([tracker, {"pid": 42, "cmd": "tmux"}])
    assert messages(reporter) == ["the job is done; left running: 42 (tmux)"]


CHANGES = (Change("batch_size", "32", "16", "--batch-size"), Change("env:A", "", "secret", "$A"))
HALVED = Plan(PlanKind.RESTART, "why", "stop", "halve_batch", changes=CHANGES, nproc=2, notes=("the global batch stays: 64", "and more"))


def shown(reporter: Reporter) -> str:
    """Return the last card as it is printed in a pipe."""
    assert reporter.cards.last is not None
    return render(reporter.cards.last)


def messages(reporter: Reporter) -> list[str]:
    terminal: Any = reporter._terminal  # noqa: SLF001  the mock that was given
    return [call.args[0] for call in terminal.message.call_args_list]


def logged(reporter: Reporter, event: LogEvent) -> list[dict[str, Any]]:
    log: Any = reporter._log  # noqa: SLF001  likewise
    return [call.kwargs for call in log.write.call_args_list if call.args[0] is event]


def test_a_change_is_reported_old_and_new_on_the_terminal_in_the_log_and_on_the_card(reporter: Reporter) -> None:
    reporter.decided(ReportDecision(1, 1, VERDICT, HALVED, 7))
    changed = "--batch-size 32 -> 16, $A -> secret, 2 ranks on this node"
    assert messages(reporter)[0].endswith(f"Restarting as attempt 2 with {changed}")
    assert messages(reporter)[1:] == ["the global batch stays: 64", "and more"]
    (line,) = logged(reporter, LogEvent.PLAN_DECIDED)
    assert (line["changes"], line["nproc"]) == (["--batch-size 32 -> 16", "$A -> secret"], 2)
    lines = [" ".join(line.split()) for line in shown(reporter).splitlines()]
    at = lines.index(f"changed: {changed}")
    assert lines[at + 1 : at + 5] == ["the global batch stays: 64", "and more", "do nothing: the training continues", "stop"]


def test_an_alert_goes_to_the_log_and_with_its_decision_to_the_terminal_and_the_webhook(reporter: Reporter) -> None:
    reporter.alerted(act.Alert("batch_changed", 1, "32 -> 16"))
    reporter.alerted(act.Alert("recurring_failure", 1, "the third time\x1b[31m"))
    assert [line["kind"] for line in logged(reporter, LogEvent.ALERT_RAISED)] == ["batch_changed", "recurring_failure"]
    assert messages(reporter) == []
    reporter.decided(ReportDecision(3, 1, VERDICT, HALVED, 7))
    assert messages(reporter)[-1] == "the third time"
    assert "32 -> 16" not in messages(reporter)  # the decision's own line says what was changed
    reporter.alerted(act.Alert("memory_held", 1, "by another"))
    assert messages(reporter)[-1] == "by another"
    assert [(alert.event.value, alert.incident) for alert in sent(reporter)] == [
        ("opened", 3),
        ("batch_changed", 3),
        ("recurring_failure", 3),
        ("memory_held", 3),
    ]


@pytest.mark.parametrize("resolved", [False, True], ids=["incident open", "incident over"])
def test_a_change_that_did_not_reach_the_script_is_reported_at_once_though_it_is_of_the_attempt_after_the_decision(
    reporter: Reporter, *, resolved: bool
) -> None:
    reporter.decided(ReportDecision(3, 1, VERDICT, HALVED, 7))
    reporter.beginning(BeginAttempt(2, "failure", None))
    if resolved:
        reporter.closed(CloseIncident(3, 2, "resolved", 8))
    reporter.alerted(act.Alert("change_ignored", 2, "a rank trains with batch_size 32 instead of 16"))
    assert messages(reporter)[-1] == "a rank trains with batch_size 32 instead of 16"
    last = sent(reporter)[-1]
    assert (last.event.value, last.incident, last.attempt, last.action.value) == ("change_ignored", 3, 2, "none")


def test_an_alert_without_any_incident_in_this_process_is_reported_too(reporter: Reporter) -> None:
    reporter.alerted(act.Alert("change_ignored", 1, "a rank trains with batch_size 32 instead of 16"))
    (alert,) = sent(reporter)
    assert (alert.incident, alert.cause, alert.rank) == (0, Cause.NONE, None)


def test_two_alerts_of_one_kind_in_one_attempt_are_two_to_the_receiver(reporter: Reporter) -> None:
    for gpu in ("GPU-a", "GPU-b"):
        reporter.alerted(act.Alert("gpu_quarantined", 1, f"{gpu} is taken out of use"))
    reporter.decided(ReportDecision(3, 1, VERDICT, HALVED, 7))
    ids = [alert.event_id for alert in sent(reporter) if alert.event.value == "gpu_quarantined"]
    assert len(set(ids)) == len(ids) == 2


@pytest.mark.parametrize(("left_s", "extended"), [(600.0, 625.0), (6.0, 50.0)], ids=["longer than the stop deadline", "shorter"])
def test_systemd_is_asked_for_the_time_that_a_save_gets(reporter: Reporter, left_s: float, extended: float) -> None:
    notifier: Any = reporter._notifier  # noqa: SLF001  the mock that was given
    reporter.saving(act.RequestSave(1, left_s))
    notifier.extend_timeout.assert_called_once_with(extended)


STARTED, STEP = AttemptStarted(0.0, 1, (), 2), ProgressObserved(1.0, 1, 7, 7, Phase.TRAIN)
LOADING = ProgressObserved(0.5, 1, None, 0, Phase.LOAD)


@pytest.mark.parametrize(
    ("took", "number"),
    [((STARTED, LOADING, STEP), 1), ((LOADING, STARTED), 2), ((AttemptEnded(9.0, 1, "failed"),), 0)],
    ids=["ranks run", "only then", "no ranks"],
)
def test_the_unit_has_started_once_its_ranks_run(reporter: Reporter, took: tuple[Any, ...], number: int) -> None:
    notifier: Any = reporter._notifier  # noqa: SLF001  the mock that was given
    ready_after = 0
    for count, event in enumerate(took, 1):
        reporter.took(event)
        ready_after = ready_after or (count if notifier.ready.called else 0)
    assert ready_after == number


def test_ranks_that_show_no_step_are_waited_for_no_longer_than_the_ceiling() -> None:
    assert not is_overdue(Attempt(1), 10_000.0), "its ranks are not there yet: a rendezvous, or a restore"
    assert not is_overdue(Attempt(1, started_t=100.0), 699.0)
    assert not is_overdue(Attempt(1, started_t=100.0, ended=True), 10_000.0)
    assert is_overdue(Attempt(1, started_t=100.0), 700.0)


def test_the_last_status_of_the_unit_has_the_cause_and_the_explaining_command(reporter: Reporter) -> None:
    assert reporter.end_status(143) == "stopped, exit code 143"
    stop = Plan(PlanKind.STOP, "again", "", "guard", exit_code=65)
    reporter.decided(ReportDecision(3, 1, VERDICT, stop, 7))
    assert reporter.end_status(65) == "failed, exit code 65: Native code accessed invalid memory; supervise why 3 --job train"
    assert reporter.end_status(0) == "done, exit code 0"


def test_a_gpu_that_is_put_out_of_use_is_reported_with_the_command_that_puts_it_back(reporter: Reporter) -> None:
    reporter.quarantined(act.Quarantine(2, Gpu(1, "GPU-b", "0000:5e:00.0"), "xid 79", "NVRM: Xid"))
    assert messages(reporter) == ["GPU GPU-b is left out on this node for 7 days; once it is repaired: supervise nodes clear GPU-b"]
    (line,) = logged(reporter, LogEvent.GPU_QUARANTINED)
    assert (line["index"], line["uuid"], line["reason"]) == (1, "GPU-b", "xid 79")


CORE = Evidence("host", "core_file", "dumped core: /work dir/core.4242", rank=3)


def dumped(reporter: Reporter, *cores: Evidence) -> str:
    reporter.beginning(BeginAttempt(2, "failure", None))
    reporter.cards.evidence(7, 2, (Evidence("exit", "signal", "11", 3), *cores))
    reporter.decided(ReportDecision(7, 2, VERDICT, PLAN, 12))
    return shown(reporter)


def test_the_file_of_evidence_holds_what_a_signature_concluded(reporter: Reporter, tmp_path: Path) -> None:
    claim = Claim(Cause.CUDA_OOM, 0.9, consequence_of=("host_oom",))
    reporter.cards.evidence(7, 2, (Evidence("log", "torch.oom", "CUDA out of memory", rank=0, fields=(("size", "2"),), claim=claim),))
    reporter.cards.close(60)
    (row,) = json.loads((tmp_path / "evidence.json").read_text())
    assert row["claim"] == {"cause": "cuda_oom", "weight": 0.9, "transient": False, "consequence_of": ["host_oom"]}
    assert (row["name"], row["rank"], row["fields"]) == ("torch.oom", 0, [["size", "2"]])


def test_the_card_says_where_the_core_of_the_culprit_is(reporter: Reporter) -> None:
    another = Evidence("host", "core_file", "dumped core", rank=0)
    lines = dumped(reporter, another, CORE).splitlines()
    assert "  core      rank 3 dumped core: /work dir/core.4242 (and of 1 more)" in lines
    assert not [line for line in dumped(reporter).splitlines() if line.startswith("  core")]


def test_the_card_says_what_was_done_to_the_checkpoints_before_the_next_attempt_and_only_then(reporter: Reporter) -> None:
    def card(attempt: int) -> str:
        decision, resumed = ReportDecision(7, attempt, VERDICT, PLAN, 12), ReportResume(7, attempt + 1, 9, "9.pt", confirmed=True)
        return render(reporter.cards._card(decision, resumed))  # noqa: SLF001  what `resumed` keeps

    reporter.took(CheckpointSelected(1.0, 2, None, 1, repaired=(("9.pt", "torn: moved to 9.pt.torn-1"),)))
    reporter.took(CheckpointSelected(2.0, 2, None, 1, repaired=(("8.pt", "torn"),)))  # it was looked again
    assert "            repaired 9.pt: torn: moved to 9.pt.torn-1, and 1 more" in card(2).splitlines()
    assert "repaired" not in card(3)
    reporter.took(CheckpointSelected(3.0, 3, None, 1))
    assert "repaired" not in card(3)


def test_the_evidence_beside_the_card_has_what_a_signature_concluded(reporter: Reporter, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(reporter.cards, "_write", lambda _incident, _name, content: written.append(content))
    reporter.cards.evidence(7, 2, (Evidence("log", "nccl", "timeout", claim=Claim(Cause.SEGFAULT, 0.8, consequence_of=("*",))),))
    (row,) = json.loads(written[0])
    assert row["claim"] == {"cause": "segfault", "weight": 0.8, "transient": False, "consequence_of": ["*"]}


def test_a_core_of_an_earlier_attempt_is_not_on_the_card_of_the_next(reporter: Reporter) -> None:
    dumped(reporter, CORE)
    reporter.beginning(BeginAttempt(3, "failure", None))
    reporter.decided(ReportDecision(7, 3, VERDICT, PLAN, 12))  # the observers did not answer
    assert "dumped core" not in shown(reporter)


def test_the_ground_of_the_verdict_is_the_first_line_of_evidence(reporter: Reporter) -> None:
    kernel = Evidence("kernel", "oom_kill", "Out of memory: Killed process 4242 (python)", 3)
    beside = Evidence("error_file", "exception", "RuntimeError: Connection closed by peer", 0)
    verdict = FailureVerdict(
        Cause.HOST_OOM, 0.97, "the kernel reports", "f", 3, because=(kernel, Evidence("exit", "signal", "9", 3), beside)
    )
    reporter.decided(ReportDecision(7, 2, verdict, PLAN, 12))
    lines = shown(reporter).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("  evidence"))
    assert lines[at : at + 3] == [
        "  evidence  the kernel reports",
        "            kernel log of rank 3: Out of memory: Killed process 4242 (python)",
        "            a consequence: rank 0 raised RuntimeError: Connection closed by peer",
    ]


def test_the_line_of_a_restart_says_whose_traceback_is_a_consequence(reporter: Reporter) -> None:
    killed, gone = Evidence("exit", "signal", "9", 3), Evidence("error_file", "exception", "RuntimeError: Connection closed by peer", 0)
    verdict = FailureVerdict(Cause.KILLED_UNKNOWN, 0.6, "rank 3 was killed by SIGKILL", "f", 3, because=(killed, gone))
    reporter.decided(ReportDecision(7, 2, verdict, PLAN, 12))
    assert messages(reporter)[0] == (
        "incident 7 at step 12: rank 3 was killed by SIGKILL. Restarting as attempt 3, nothing changed. "
        "The traceback of rank 0 is a consequence"
    )


def test_an_exception_that_a_signature_knows_as_a_consequence_is_named_so_too(reporter: Reporter) -> None:
    claim = Claim(Cause.GLOO_ERROR, 0.75, transient=True, consequence_of=("*",))
    evidence = Evidence("error_file", "gloo_error.closed", "RuntimeError: Connection closed by peer", 0, claim=claim)
    verdict = FailureVerdict(
        Cause.KILLED_UNKNOWN, 0.6, "rank 3 was killed by SIGKILL", "f", 3, because=(Evidence("exit", "signal", "9", 3), evidence)
    )
    reporter.decided(ReportDecision(7, 2, verdict, PLAN, 12))
    assert messages(reporter)[0].endswith(". The traceback of rank 0 is a consequence")
    assert "a consequence: rank 0 raised RuntimeError: Connection closed by peer" in shown(reporter)


def test_of_memory_the_line_of_a_restart_has_the_sizes_and_not_the_librarys_sentences(reporter: Reporter) -> None:
    raised = "rank 1 raised torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB"
    sizes = (("asked", str(2 << 30)), ("free", str(1 << 30)), ("capacity", str(80 << 30)))
    reporter.decided(ReportDecision(1, 1, FailureVerdict(Cause.CUDA_OOM, 0.97, raised, "f", 1, facts=sizes), PLAN, 30))
    assert messages(reporter)[0] == (
        "incident 1 at step 30: rank 1: the GPU ran out of memory: 2.0 GiB asked for, 1.0 GiB free of 80.0 GiB. "
        "Restarting as attempt 2, nothing changed"
    )


def test_the_step_stands_once_in_the_line_of_a_restart(reporter: Reporter) -> None:
    verdict = FailureVerdict(Cause.NAN_LOSS, 0.9, "rank 3 raised FloatingPointError: loss is NaN at step 25", "f", 3)
    reporter.decided(ReportDecision(7, 2, verdict, PLAN, 25))
    assert (
        messages(reporter)[0]
        == "incident 7: rank 3 raised FloatingPointError: loss is NaN at step 25. Restarting as attempt 3, nothing changed"
    )


def cleared(reporter: Reporter) -> list[str]:
    alerts: Any = reporter.alerts.router
    return [call.args[0] for call in alerts.clear.call_args_list]


def test_a_resume_that_nothing_confirms_is_suspect_until_it_is_seen_and_never_called_resumed(reporter: Reporter) -> None:
    reporter.decided(ReportDecision(1, 1, VERDICT, PLAN, 40))
    reporter.beginning(BeginAttempt(2, "failure", None))
    reporter.resumed(ReportResume(1, 2, None, None, confirmed=False, resume_from="ckpt/40.pt"))
    assert [(alert.event.value, alert.severity.value) for alert in sent(reporter)][1:] == [("resume_suspect", "warning")]
    assert len([line for line in messages(reporter) if "resume not confirmed" in line]) == 1, "one line says it"
    reporter.resumed(ReportResume(1, 2, 40, "ckpt/40.pt", confirmed=True, resume_from="ckpt/40.pt"))
    assert cleared(reporter) == ["scratch", "resume"]


def test_a_beginning_from_scratch_is_critical_and_its_incident_does_not_end_as_resumed(reporter: Reporter) -> None:
    reporter.decided(ReportDecision(1, 1, VERDICT, PLAN, 40))
    reporter.beginning(BeginAttempt(2, "failure", None))
    reporter.resumed(ReportResume(1, 2, None, None, confirmed=True, resume_from="ckpt/40.pt", reason="its training began at step 0"))
    reporter.alerted(act.Alert("started_from_scratch", 2, "attempt 2 started from scratch, although ckpt/40.pt is there"))
    reporter.closed(CloseIncident(1, 2, "resolved", 1))
    _, scratch, end = sent(reporter)
    assert (scratch.severity.value, scratch.action.value) == ("critical", "started_from_scratch")
    assert (end.event.value, end.action.value) == ("resolved", "started_from_scratch")
    assert cleared(reporter) == []


def test_a_new_run_that_trains_ends_what_an_earlier_one_gave_up_and_an_open_incident_does_not(reporter: Reporter) -> None:
    reporter.took(ProgressObserved(1.0, 1, None, 0, Phase.LOAD))
    assert cleared(reporter) == []
    reporter.took(ProgressObserved(2.0, 1, 1, 1, Phase.TRAIN))
    assert cleared(reporter) == ["incident"]
    reporter.decided(ReportDecision(1, 1, VERDICT, PLAN, 40))
    reporter.took(ProgressObserved(3.0, 1, 2, 2, Phase.TRAIN))
    assert cleared(reporter) == ["incident"]


def test_a_strange_loss_is_over_with_the_last_number_that_is_strange_and_a_slow_training_with_the_attempt(reporter: Reporter) -> None:
    bad = [LossChanged(1.0, 1, "loss.nan", "nan", name, "x") for name in ("loss_a", "loss_b")]
    slow = [PaceChanged(1.0, 1, "drop", "x"), PaceChanged(1.0, 1, "straggler", "x", 3, node=1)]
    for event in (*bad, *slow, replace(bad[0], is_over=True)):
        reporter.took(event)
    assert cleared(reporter) == []
    reporter.took(replace(bad[1], is_over=True))
    assert cleared(reporter) == ["loss"]
    reporter.took(AttemptEnded(2.0, 1, "failed"))
    assert set(cleared(reporter)[1:]) >= {"loss", "pace", "straggler"}
    reporter.alerted(act.Alert("slow_training", 1, "pace: rank 3 computes 2.0 times as long; the job continues"))
    (alert,) = sent(reporter)
    assert (alert.event.value, alert.severity.value) == ("slow_training", "warning")


def test_the_alert_of_a_straggler_names_it_and_not_who_failed_before_and_comes_from_the_node_that_compares(reporter: Reporter) -> None:
    reporter.decided(ReportDecision(1, 1, VERDICT, PLAN, 40))
    reporter.alerts.node = 2
    reporter.alerted(act.Alert("straggler", 2, "pace: node 5 (gpu-5) is slow; the job continues", culprit=(43, "gpu-5:5")))
    reporter.alerted(act.Alert("slow_training", 2, "pace: a step takes 2 s; the job continues"))
    alert = sent(reporter)[-1]
    assert (alert.event.value, alert.rank, alert.failed_on) == ("straggler", 43, "gpu-5:5")
    reporter.took(PaceChanged(1.0, 2, "straggler", "x", 43, node=5))
    reporter.took(PaceChanged(2.0, 2, "straggler", "x", 43, is_over=True, node=5))
    assert cleared(reporter)[-1] == "straggler"


def test_an_alert_carries_the_node_the_confidence_and_lines_without_secrets(reporter: Reporter) -> None:
    fact = Evidence("error_file", "exception", "RuntimeError: hf_token=hf_CANARY0123456789abcdefgh at /data/x", 3)
    verdict = FailureVerdict(Cause.SEGFAULT, 0.9, "rank 3 raised RuntimeError", "f", 3, because=(fact,))
    reporter.decided(ReportDecision(1, 1, verdict, PLAN, 40))
    (alert,) = sent(reporter)
    assert (alert.node, alert.confidence, alert.state_dir) == ("n", 0.9, "s")
    assert any("/data/x" in line for line in alert.lines)
    assert "CANARY" not in repr(alert.lines)


def test_an_alert_about_a_hang_names_its_own_rank_and_node_and_not_those_of_an_earlier_failure(reporter: Reporter) -> None:
    reporter.decided(ReportDecision(1, 1, replace(VERDICT, node="b.cluster:1"), PLAN, 65))
    reporter.alerted(act.Alert("hang", 2, "text", culprit=(43, "n5.cluster:5")))
    reporter.alerted(act.Alert("hang", 3, "text"))
    assert [(alert.rank, alert.failed_on) for alert in sent(reporter)] == [(3, "b:1"), (43, "n5:5"), (None, "")]
