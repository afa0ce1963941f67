# ruff: noqa: ANN401  values as a command takes and prints them
"""`supervise why` and the card: what failed, on what evidence, what was done, what would be next."""

from __future__ import annotations

import json
import re
import time
from signal import SIGINT
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.cli.jobs.why import why
from supervisor.core.actions import ReportDecision, ReportResume, SetTimer
from supervisor.core.checkpoint_model import UnusedCheckpoints
from supervisor.core.events import (
    AttemptEnded,
    CheckpointSelected,
    EvidenceCollected,
    HangConfirmed,
    ProgressObserved,
    RankExited,
    StopRequested,
    TimerFired,
)
from supervisor.core.model import Cause, Evidence, FailureVerdict, Hang, HangKind, Phase, Plan, PlanKind, RankExit
from supervisor.core.values import replace
from supervisor.errors import SuperviseError
from supervisor.job import identity
from supervisor.report.card import card
from supervisor.report.layout import FactPage, Surface, render
from supervisor.report.wording import beginning, evidence_lines

if TYPE_CHECKING:
    from tests.support.recorded_job import RecordedJob


LONG = "x" * 300


def explained(written: RecordedJob, capsys: pytest.CaptureFixture[str], incident: int | None = None) -> str:
    """Return what `why` prints, which is narrow but for what is there to be copied."""
    capsys.readouterr()
    assert why(written.settings, "train", incident) == 0
    text = capsys.readouterr().out
    assert all(len(line) <= 100 for line in text.splitlines() if not line.startswith(("  look ", "  core ", "  stacks ", "  again ")))
    return text


def shown(page: FactPage) -> str:
    """Return a page in lines of a hundred columns."""
    return render(page)


def test_the_six_hops_of_a_failure_that_was_survived(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    written.start(1)
    written.progress(5, 9)
    written.fail(10)
    written.restart(20, torn=(("ckpt/9.pt", "torn: no directory"), ("ckpt/8.pt", "torn")))
    written.succeed(60)
    text = explained(written, capsys)
    assert "incident 1 of job train: resolved" in text
    for pattern in (
        r"what +A process was killed, and no evidence shows by whom where ",
        r"where .*rank 1 on \S+, step 9 \(counted by supervise\), attempt 1",
        r"when +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+; no rank was left 2\.0 s later \(1 more rank died with it\)",
        r"evidence +rank 1 was killed by SIGKILL killed_unknown, 60 % sure, transient",
        r"done +\d\d:\d\d:\d\d restarted as attempt 2",
        r"do +nothing: the training continued",
        r"checkpoint .*step 3 from ckpt/3.pt \(verified: structure; 2 found\)",
        r"rejected +ckpt/9.pt: torn: no directory, and 1 more",
        r"attempt 2 resumed at step 3 from ckpt/3.pt; 14 s after the failure",
        r"restart +3\.25 s since the failure: 2\.00 s tear-down, 1\.25 s import look ",
        r"look +supervise logs --job train --attempt 1 --rank 1",
    ):
        assert re.search(pattern, re.sub(r"\n +", " ", text)), f"{pattern}\n{text}"


def test_ranks_that_stand_still_are_no_incident_and_are_named(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    me = identity.this_process()
    written.begin(pid=me.pid, start_ticks=me.start_ticks)
    written.start(1)
    written.feed(HangConfirmed(written.T0 + 100, 1, Hang(HangKind.LATE, "rank 1 waits; rank 0 is in evaluate", (0,))))
    written.close()
    text = explained(written, capsys)
    assert "no incident so far" not in text  # two answers to the same question
    assert text.startswith("-- job train stands still in attempt 1")
    assert re.search(r"what +Rank 1 waits; rank 0 is in evaluate\n", text)
    assert re.search(r"stacks +/\S+/attempts/0001/hang.txt", text)


def test_ranks_that_stand_still_come_before_an_incident_of_an_earlier_run(
    written: RecordedJob, make_job: Any, root: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    written.begin()
    written.start(1)
    written.give_up(5)
    me = identity.this_process()
    again = make_job(root, anew=True)
    again.begin(run_id="run-2", pid=me.pid, start_ticks=me.start_ticks)
    again.start(1)
    again.feed(HangConfirmed(again.T0 + 100, 1, Hang(HangKind.LATE, "rank 1 waits; rank 0 is in evaluate", (0,))))
    again.close()
    first, _, page = explained(again, capsys).partition("\n\n")
    assert first == "no incident in this run; `supervise why 1` explains the last one, of an earlier run"
    assert page.startswith("-- job train stands still in attempt 1")
    assert "incident 1" not in page


def test_a_hang_that_a_persons_stop_ended_is_named_after_it(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    written.start(1)
    hang = Hang(HangKind.LATE, "rank 1 waits; rank 0 is in evaluate", (0,), still_s=30.0)
    written.feed(HangConfirmed(written.T0 + 100, 1, hang))
    written.feed(StopRequested(written.T0 + 160, SIGINT))
    written.feed(AttemptEnded(written.T0 + 161, 1, "stopped"))
    written.close()
    text = explained(written, capsys)
    assert re.search(r"job train stood still in attempt 1 for 91 s, until it was stopped at \d\d:\d\d:\d\d", text)
    assert re.search(r"what +Rank 1 waits; rank 0 is in evaluate\n", text)


def test_an_attempt_that_supervise_ended_for_a_hang_took_from_then_until_no_rank_was_left(
    written: RecordedJob, capsys: pytest.CaptureFixture[str]
) -> None:
    hang = Hang(
        HangKind.MISMATCH, "rank 0 waits in broadcast, rank 1 in all_reduce: they wait for ever", (0, 1), "a.py:6 (rank 0), a.py:7 (rank 1)"
    )
    written.begin()
    written.start(1)
    written.progress(5, 9)
    for number, at in ((1, 100), (2, 200)):
        written.feed(HangConfirmed(written.T0 + at, number, hang))
        written.feed(*(RankExited(written.T0 + at + 3, number, RankExit(rank, 100 + rank, 10, signal=15)) for rank in range(2)))
        written.feed(AttemptEnded(written.T0 + at + 3, number, "failed"))
        written.feed(EvidenceCollected(written.T0 + at + 3, number, 1, (), 0.5))
        written.again(at + 20)
    written.close()
    text = re.sub(r"\n +", " ", explained(written, capsys))
    assert re.search(r"when +\d{4}-\d\d-\d\d \d\d:\d\d:40 \S+; no rank was left 3\.0 s later earlier", text), text
    assert re.search(r"where +ranks 0, 1 on \S+, step 9.*, attempt 2.* a\.py:6 \(rank 0\), a\.py:7 \(rank 1\)", text), text


def test_each_incident_by_its_number(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    written.start(1)
    for at in (10, 100):
        written.fail(at)
        written.restart(at + 10)
    written.succeed(200)
    assert "incident 2 of" in explained(written, capsys)
    assert "incident 1 of" in explained(written, capsys, 1)
    with pytest.raises(SuperviseError) as caught:
        why(written.settings, "train", 7)
    assert caught.value.exit_code == 64
    assert "1, 2" in caught.value.hint


def test_a_repeated_failure_is_not_reported_as_needing_nobody(written: Any, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    written.start(1)
    for at in (10, 100):
        n, t = written.state.attempt.number, written.T0 + at
        facts = (Evidence("error_file", "exception", "KeyError: 'x'", 1), Evidence("exit", "exit_code", "1", 1))
        written.progress(at - 1, 9, step=at)
        written.feed(RankExited(t, n, RankExit(1, 101, 10, code=1)), AttemptEnded(t + 1, n, "failed"))
        written.feed(EvidenceCollected(t + 1, n, written.state.incidents, (*facts, Evidence("heartbeat", "phase", "train", 1)), 0.1))
        written.restart(at + 10)
    written.succeed(200)
    assert "do          see incident 2: the training continued, and the same failure came again" in explained(written, capsys, 1)
    assert "do          nothing: the training continued" in explained(written, capsys, 2)


def test_all_explains_every_incident_the_oldest_first_and_json_has_the_words_of_the_pages(
    written: RecordedJob, capsys: pytest.CaptureFixture[str]
) -> None:
    written.begin()
    written.start(1)
    for at in (10, 100):
        written.fail(at)
        written.restart(at + 10)
    written.succeed(200)
    assert why(written.settings, "train", None, show_all=True) == 0
    text = capsys.readouterr().out
    assert [int(number) for number in re.findall(r"-- incident (\d) of job train: resolved", text)] == [1, 2]
    assert why(written.settings, "train", None, show_all=True, as_json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(incident["number"], incident["outcome"]) for incident in document["incidents"]] == [(1, "resolved"), (2, "resolved")]
    words = document["incidents"][0]["words"]
    assert " ".join(text.split()).count(words["done"]) == 1
    assert words["what"] == "A process was killed, and no evidence shows by whom"
    assert words["do"] == ["nothing: the training continued"]
    with pytest.raises(SuperviseError, match="--all explains every incident: 2") as caught:
        why(written.settings, "train", 2, show_all=True)
    assert caught.value.exit_code == 64


def test_a_second_failure_within_an_incident_is_the_one_explained(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    written.start(1)
    written.fail(10)
    written.again(15)
    written.fail(20, Evidence("error_file", "exception", "ValueError: the second", 1))
    written.close()
    text = explained(written, capsys)
    assert "incident 1 of" in text
    assert "attempt 1: rank 1 was killed by SIGKILL. This is attempt 2" in " ".join(text.split())
    assert "ValueError: the second" in text
    clock = [time.strftime("%H:%M:%S", time.localtime(written.T0 + at)) for at in (10, 20)]
    assert re.search(rf"when +\S+ {clock[1]} ", text)
    assert re.search(rf"earlier +{clock[0]} attempt 1", text)


def test_a_rank_that_died_in_its_load_has_not_the_step_of_the_checkpoint(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    written.start(1)
    written.progress(5, 9)
    written.fail(10)
    written.again(20)  # with the checkpoint of step 3
    at, n = written.T0 + 25, written.state.attempt.number
    torn = Evidence("error_file", "exception", "RuntimeError: PytorchStreamReader failed reading zip archive", 1)
    facts = (torn, Evidence("exit", "exit_code", "1", 1), Evidence("heartbeat", "phase", "load", 1))
    written.feed(
        ProgressObserved(at, n, None, 0, Phase.LOAD),
        RankExited(at, n, RankExit(1, 101, 10, code=1)),
        AttemptEnded(at + 1, n, "failed"),
        EvidenceCollected(at + 1, n, written.state.incidents, facts, 0.1),
    )
    written.close()
    assert re.search(r"where +rank 1 on \S+, before its first step, attempt 2", explained(written, capsys))


def without_a_checkpoint(written: RecordedJob) -> None:
    """Have a job fail whose checkpoints lie where the script is not known to load them."""
    written.begin(checkpoints=False)
    written.start(1)
    written.progress(5, 9)
    written.fail(10)
    unused = (UnusedCheckpoints("/r/ckpt/*.pt", 2, "/r/ckpt/3.pt", 3),)
    written.feed(CheckpointSelected(written.T0 + 20, written.state.attempt.number, None, 0, unused=unused))


def test_of_checkpoints_that_no_script_is_known_to_load_the_options_are_advised(
    written: RecordedJob, capsys: pytest.CaptureFixture[str]
) -> None:
    without_a_checkpoint(written)
    written.close()
    text = re.sub(r"\n +", " ", explained(written, capsys))
    assert "none that the script is known to load; 2 checkpoints lie in /r/ckpt/*.pt: --checkpoints '/r/ckpt/*.pt'" in text
    assert "if the script finds it by itself: --resumes-itself, or --resume-switch '--YOUR-SWITCH'" in text


def test_of_a_script_that_chose_its_checkpoint_itself_no_option_is_advised(
    written: RecordedJob, capsys: pytest.CaptureFixture[str]
) -> None:
    without_a_checkpoint(written)
    written.start(21)
    written.feed(ProgressObserved(written.T0 + 24, written.state.attempt.number, 4, 1, Phase.TRAIN, "/r/ckpt/3.pt"))
    written.succeed(60)
    text = re.sub(r"\n +", " ", explained(written, capsys))
    assert re.search(r"checkpoint +\S+ the script chose it by itself look ", text)
    assert "attempt 2 resumed at step 3 from /r/ckpt/3.pt" in text


def test_given_up(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    written.start(1)
    written.give_up(5)
    text = explained(written, capsys)
    assert "given up" in text
    assert f"exit code {written.state.run.exit_code}" in text
    assert "ImportError: no luck" in " ".join(text.split())


def test_the_incident_in_which_we_died(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    written.start(1)
    written.progress(5, 9)
    written.close()
    text = explained(written, capsys)
    assert "incident 1 of job train: supervise died" in text
    assert "Supervise died while this attempt ran" in text
    assert "step 9 (counted by supervise), attempt 1" in text


def test_we_died_within_an_incident(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    written.start(1)
    written.fail(10)
    written.close()
    text = explained(written, capsys)
    assert "rank 1 was killed by SIGKILL" in text
    assert "this is its last record" in text


def test_the_successor_s_own_incident_takes_the_place_of_ours(
    written: RecordedJob, make_job: type[RecordedJob], root: Any, capsys: Any
) -> None:
    written.begin()
    written.start(1)
    written.close()
    again = make_job(root)
    again.begin(continues=True)
    again.restart(60)
    again.succeed(90)
    text = explained(again, capsys)
    assert "incident 1 of job train: resolved" in text
    assert "supervise died, and its attempt with it" in " ".join(text.split())
    assert "attempt 2 resumed at step 3" in text


def test_the_hang_in_which_we_died_is_named_before_and_after_the_job_is_taken_over(
    written: RecordedJob, make_job: type[RecordedJob], root: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "rank 0 waits in all_reduce; rank 1 is in evaluate"
    written.begin()
    written.start(1)
    written.feed(HangConfirmed(written.T0 + 100, 1, Hang(HangKind.LATE, sentence, (1,))))
    written.close()
    assert sentence in " ".join(explained(written, capsys).split())
    again = make_job(root)
    again.begin(continues=True)
    again.restart(160)
    again.succeed(190)
    text = " ".join(explained(again, capsys).split())
    assert "incident 1 of job train: resolved" in text
    assert f"evidence supervise died, and its attempt with it hang of rank 1: {sentence}" in text


def test_an_attempt_that_ends_well_before_any_progress_is_no_second_failure(
    written: RecordedJob, capsys: pytest.CaptureFixture[str]
) -> None:
    written.begin()
    written.start(1)
    written.fail(10)
    written.again(20)
    written.succeed(30)
    text = explained(written, capsys)
    assert "resolved" in text
    assert "earlier" not in text
    assert re.search(r"attempt 2: resume not confirmed: no rank was seen to load ckpt/3.pt", text)


def test_a_death_outside_of_any_incident_keeps_its_number_when_a_new_run_begins(
    written: RecordedJob, make_job: type[RecordedJob], root: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    written.begin()
    written.start(1)
    written.fail(10)
    written.restart(20)
    written.close()
    assert "incident 2 of job train: supervise died" in explained(written, capsys)
    me = identity.this_process()
    again = make_job(root, anew=True)
    again.begin(run_id="run-2", pid=me.pid, start_ticks=me.start_ticks)
    again.start(1)
    again.close()  # so that it is read whole
    assert "incident 2 of job train: supervise died" in explained(again, capsys)
    again = make_job(root)  # the same run, its journal opened anew
    again.fail(20)
    again.close()
    assert "incident 3 of job train" in explained(again, capsys)
    assert "incident 2 of job train: supervise died" in explained(again, capsys, 2)
    assert "incident 1 of job train: resolved" in explained(again, capsys, 1)


def test_no_incident(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    written.start(1)
    written.succeed(60)
    assert "no incident so far" in explained(written, capsys)


def test_incidents_of_earlier_runs_are_found_while_their_journals_are_kept(
    written: RecordedJob, make_job: type[RecordedJob], root: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    written.begin()
    written.start(1)
    written.fail(10)  # left open
    written.close()
    again = make_job(root, anew=True)
    again.begin(run_id="run-2")
    again.start(1)
    again.fail(20)
    again.close()
    assert explained(again, capsys, 2).startswith("-- incident 2 of job train")
    assert explained(again, capsys).startswith("-- incident 2 of job train")
    text = explained(again, capsys, 1)
    assert "supervise died" in text.splitlines()[0]
    assert re.search(r"run +run-1, an earlier one; the last is run-2", text)
    (written.directory / "journal-0001.jsonl").unlink()
    card_of_it = written.directory / "incidents" / "0001" / "card.txt"
    with pytest.raises(SuperviseError, match="no such incident") as caught:
        explained(again, capsys, 1)
    assert caught.value.hint == "Name one of these: 2."
    card_of_it.parent.mkdir(parents=True)
    card_of_it.write_text("a card", encoding="utf-8")
    with pytest.raises(SuperviseError) as caught:
        explained(again, capsys, 1)
    assert str(card_of_it) in caught.value.hint


def test_an_incident_of_an_earlier_run_keeps_its_end_and_names_where_its_output_is(
    written: RecordedJob, make_job: type[RecordedJob], root: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    written.begin()
    written.start(1)
    written.give_up(5)
    assert "--run" not in explained(written, capsys)
    again = make_job(root, anew=True)
    again.begin(run_id="run-2")
    again.start(1)
    again.succeed(30)
    text = explained(again, capsys)
    assert text.startswith(
        "no incident in this run; the last one is of an earlier run\n\n-- incident 1 of job train: given up, exit code 1"
    )
    assert text.endswith("supervise logs --job train --run run-1 --attempt 1 --rank 1\n")


def test_an_incident_keeps_its_exit_code_where_its_run_continues(
    written: RecordedJob, make_job: type[RecordedJob], root: Any, capsys: Any
) -> None:
    written.begin()
    written.start(1)
    written.give_up(5)
    again = make_job(root)
    again.begin(continues=True)
    again.start(20)
    again.succeed(30)
    assert "given up, exit code 1" in explained(again, capsys).splitlines()[0]


def test_no_checkpoint_is_named_where_none_is_declared(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin(checkpoints=False)
    written.start(1)
    written.progress(5, 1)
    written.fail(10)
    written.close()
    text = explained(written, capsys)
    assert re.search(r"done +\S+ restarted as attempt 2: the same command again; no checkpoint is declared\n", text)
    assert "step 1 (counted by supervise)" in text


def test_a_refused_beginning_has_no_evidence_but_what_it_says(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    written.start(1)
    written.fail(10)
    written.feed(
        *(TimerFired(written.T0 + 20, a.name, a.token) for a in written.actions if isinstance(a, SetTimer) and a.name == "backoff")
    )
    written.feed(CheckpointSelected(written.T0 + 20, written.state.attempt.number, None, 1, (("ckpt/3.pt", "torn: the file is empty"),)))
    assert written.state.run.exit_code == 65
    written.end(65)
    (refused,) = (a for a in written.actions if isinstance(a, ReportDecision) and a.plan.exit_code)
    for text in (explained(written, capsys), shown(card("train", refused, None, address="--job train"))):
        assert "torn: the file is empty" in " ".join(text.split())
        assert "none was found" not in text


def decision(**more: Any) -> ReportDecision:
    facts = (
        Evidence("error_file", "exception", f"RuntimeError: {more.get('text', 'oops')}", 5),
        Evidence("exit", "exit_code", "1", 5),
        Evidence("tail", "last_exception", LONG, 5, free_text=True),
        Evidence("tail", "err", "a\nb\n\n", 5, free_text=True),
        Evidence("heartbeat", "phase", "train", 5),
    )
    verdict = FailureVerdict(Cause.USER_CODE, 0.97, more.get("summary", "rank 5 raised RuntimeError: oops"), "f", 5, True, facts)  # noqa: FBT003
    plan = Plan(PlanKind.RESTART, more.get("reason", "one of three"), "stop 65", "s", 0, 1.25)
    return ReportDecision(2, 3, verdict, plan, 1203)


TORN = "torn: it begins as a zip and has no zip directory at its end"
MENDED = (("ckpt/9.pt", f"{TORN}: moved to .supervise-aside/torn-a; the copy of step 9 was put in its place"), ("ckpt/8.pt", "torn"))


@pytest.mark.parametrize("fenced", [(), (("ckpt/7.pt", "torn"),)], ids=["repaired alone", "one more is left where it is"])
def test_a_repair_of_checkpoints_is_reported_once(written: RecordedJob, fenced: Any, capsys: pytest.CaptureFixture[str]) -> None:
    written.begin()
    written.start(1)
    written.fail(10)
    written.again(20, torn=(("ckpt/9.pt", TORN), *fenced), repaired=MENDED)
    written.succeed(60)
    text = " ".join(explained(written, capsys).split())
    assert f"repaired ckpt/9.pt: {MENDED[0][1]}, and 1 more" in text
    assert ("rejected ckpt/7.pt: torn" in text) == bool(fenced)
    assert "rejected ckpt/9.pt" not in text


@pytest.mark.parametrize("width", [40, 100])
def test_the_card_cuts_nothing_however_long_it_is(width: int) -> None:
    """Foreign text alone is bounded: a line of evidence to 400 characters, any other text to 1,000."""
    reason = "reason " * 40
    long = decision(summary=f"rank 5 raised RuntimeError: {LONG}", reason=reason, text=LONG)
    address, resumed = f"--job train --state-dir '{'/s p' * 60}'", ReportResume(2, 4, 1200, "/p" * 100, confirmed=True)
    page = card("job" * 30, long, resumed, address=address, node="n" * 60, state_dir="/d" * 90, repaired=MENDED)
    text = render(page, Surface(width))
    *lines, look, files = [line for line in text.splitlines() if line not in {"look", "files"}]
    assert all(len(line) <= width for line in lines)
    assert look.split("look", 1)[-1].strip() == f"supervise why 2 {address}"
    assert files.split()[-1] == "/d" * 90
    flat = re.sub(r"\s", "", text)
    for part in (reason, LONG, "/p" * 100, MENDED[0][1], "and 1 more"):
        assert re.sub(r"\s", "", part) in flat
    assert " ... " not in text


def test_the_card_names_the_failure_its_place_its_cause_and_the_next_step() -> None:
    text = shown(card("train", decision(), ReportResume(2, 4, 1200, "ckpt/1200.pt", confirmed=True), address="--job train", node="gpu-7"))
    for part in (
        "incident 2 of job train",
        "rank 5 on gpu-7, step 1203, attempt 3",
        "The training program itself failed: RuntimeError: oops",
        "user_code, 97 % sure, transient",
        "restarted as attempt 4 after 1.2 s: one of three",
        "stop 65",
        "attempt 4 resumed at step 1200 from ckpt/1200.pt",
        "supervise why 2 --job train",
    ):
        assert part in text


def test_a_start_from_scratch_is_reported_loudly() -> None:
    scratch, unconfirmed = ReportResume(2, 4, None, None, confirmed=True), ReportResume(2, 4, 3, "ckpt/3.pt", confirmed=False)
    assert "attempt 4 STARTED FROM SCRATCH" in shown(card("train", decision(), scratch, address="--job train"))
    assert "no rank was seen to load ckpt/3.pt" in shown(card("train", decision(), unconfirmed, address="--job train"))


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("GET s3://key:hunter2@host/x failed", "hunter2"),
        ("bad WANDB_API_KEY=hunter2 given", "hunter2"),
        ("{'Authorization': 'Bearer hunter2'}", "hunter2"),
        ("cmd: ['train.py', '--hf-token', 'hunter2']", "hunter2"),
        ("ran with --password hunter2 --lr 1", "hunter2"),
        ("token hf_abcdefghijklmnopqrstuvwxyz was refused", "hf_abcdefghijklmnopqrstuvwxyz"),
        ("AKIAABCDEFGHIJKLMNOP is no key", "AKIAABCDEFGHIJKLMNOP"),
    ],
)
def test_evidence_on_a_card_shows_no_secrets(text: str, hidden: str) -> None:
    output = shown(card("train", decision(text=text, summary=text), None, address="--job train"))
    assert hidden not in output
    assert "<hidden:" in output


def test_evidence_on_a_card_cannot_move_the_cursor() -> None:
    text = shown(card("train", decision(text="\x1b[2J\x1b]0;title\x07red\x1b[31m \udcff\rback\x00"), None, address="--job train"))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    text.encode("utf-8")


def test_the_strongest_evidence_comes_first() -> None:
    facts = decision().verdict.because
    assert [line.split(":")[0] for line in evidence_lines(reversed(facts), 2)] == ["rank 5 raised RuntimeError", "last output of rank 5"]
    assert evidence_lines((), 3) == ["none was found"]


def test_each_fact_stands_once() -> None:
    text = shown(card("train", decision(), None, address="--job train"))
    assert text.count("oops") == 1
    assert "exited with code 1" not in text, "the exception says more"


def test_the_evidence_of_an_out_of_memory_is_whole_and_stands_once_for_all_ranks() -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. " + " ".join(f"Process {pid} has {pid}.5 GiB memory in use." for pid in range(20))
    own = Evidence("error_file", "exception", text, 1)
    verdict = FailureVerdict(Cause.CUDA_OOM, 0.97, f"rank 1 raised {text[:80]}…", "f", 1, because=(own, Evidence("tail", "err", text, 0)))
    page = " ".join(shown(card("train", replace(decision(), verdict=verdict), None, address="--job train")).split())
    assert page.count("Process 19 has") == 1
    assert f"evidence rank 1 raised {text} cuda_oom, 97 % sure" in page


def test_the_place_of_a_failure_holds_only_known_facts() -> None:
    report_decision = decision()
    verdict = replace(report_decision.verdict, rank=None, because=())
    page = shown(card("train", replace(report_decision, verdict=verdict), None, address="--job train", node="gpu-7"))
    assert re.search(r"  where +node gpu-7, step \d+, attempt \d$", page, re.MULTILINE), page


GONE = Evidence("error_file", "exception", "RuntimeError: Connection closed by peer [10.0.0.5]:31107", 0, t=2.0)


def test_the_exception_of_a_victim_is_marked_as_a_consequence() -> None:
    killed = Evidence("exit", "signal", "9", 5, t=1.0)
    others = (GONE, replace(GONE, rank=1), Evidence("exit", "exit_code", "1", 0, t=2.1))
    verdict = FailureVerdict(Cause.KILLED_UNKNOWN, 0.6, "rank 5 was killed by SIGKILL", "f", 5, because=(killed, *others))
    text = " ".join(shown(card("train", replace(decision(), verdict=verdict), None, address="--job train")).split())
    assert "evidence rank 5 was killed by SIGKILL a consequence: rank 0 raised RuntimeError: Connection closed by peer" in text
    assert "(and 1 more rank)" in text
    assert text.count("exited with code 1") == 0


def test_the_line_of_code_that_failed_is_on_the_card() -> None:
    facts = (("file", "/home/ada/train.py"), ("line", "57"), ("function", "collate"))
    report_decision = decision()
    page = card("train", replace(report_decision, verdict=replace(report_decision.verdict, facts=facts)), None, address="--job train")
    assert "            /home/ada/train.py:57 in collate" in shown(page).splitlines()


def test_the_explanation_stands_below_the_line_of_the_script() -> None:
    facts = (("hang_code", "train.py:88"), ("reason", "train.py:88: only ranks with `rank == 0` call barrier"))
    report_decision = decision()
    page = shown(
        card("train", replace(report_decision, verdict=replace(report_decision.verdict, facts=facts)), None, address="--job train")
    )
    lines = page.splitlines()
    at = lines.index("            train.py:88")
    assert lines[at + 1] == "            train.py:88: only ranks with `rank == 0` call barrier"


def test_a_long_word_is_shown_as_it_is() -> None:
    word = "hung-task:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,memcg=/job,task=python3,pid=8997,uid=0" * 3
    text = shown(card("train", decision(summary=f"the kernel killed it: {word}"), None, address="--job train"))
    assert word in re.sub(r"\n +", "", text)


def test_why_names_the_rank_that_ended_first_beside_the_failed_one(written: RecordedJob, capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 1 ended first, of what rank 0 had raised a second before."""
    written.begin()
    written.start(1)
    written.fail(10, Evidence("error_file", "exception", "ValueError: of rank 0", 0, t=written.T0 + 9))
    written.close()
    text = " ".join(explained(written, capsys).split())
    assert "where rank 0 on" in text
    assert ", rank 1 ended first" in text


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (ReportResume(0, 1, None, None, confirmed=True, is_new=True), "training started at step 0"),
        (
            ReportResume(0, 1, None, None, confirmed=True, is_new=True, reason="a checkpoint lies in ckpt.pt: …"),
            "training started at step 0: a checkpoint lies in ckpt.pt: …",
        ),
        (
            ReportResume(1, 2, None, None, confirmed=True, reason="its training began at step 0"),
            "STARTED FROM SCRATCH: its training began at step 0",
        ),
        (ReportResume(1, 2, None, "snapshot.pt", confirmed=True, epoch=4), "resumed at epoch 4 from snapshot.pt"),
        (ReportResume(1, 2, None, "weights.pt", confirmed=True), "resumed from weights.pt"),
        (
            ReportResume(1, 2, 40, "step-5000.pt", confirmed=True, named=5000),
            "resumed at step 40 from step-5000.pt, whose name says 5000",
        ),
        (
            ReportResume(1, 2, 20, "step-20.pt", confirmed=True, counted=60),
            "resumed at step 20 from step-20.pt; the ranks count on from step 60",
        ),
    ],
)
def test_how_an_attempt_began_in_one_line(report: ReportResume, text: str) -> None:
    assert beginning(report) == text
