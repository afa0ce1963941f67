"""How the ranks of an attempt left decides whether anything is started again, whatever their exit codes say one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.core import events
from supervisor.core.actions import Alert, CloseIncident, FindSave, Finish, OpenIncident, PrintMessage, ReportDecision, StopRanks
from supervisor.core.attempt import end
from supervisor.core.failure import judgement, rank_endings
from supervisor.core.failure.rank_endings import EndKind
from supervisor.core.machine import decide
from supervisor.core.model import (
    Cause,
    CheckpointRef,
    Claim,
    Evidence,
    Failure,
    FailureVerdict,
    Hang,
    HangKind,
    Launcher,
    PlanKind,
    Policy,
    RankExit,
    RankInfo,
)
from supervisor.core.nodes import joint_decision
from supervisor.core.state import Attempt, JobState, NodeReport, Run, Stage
from supervisor.core.values import replace

if TYPE_CHECKING:
    from supervisor.core.model import JobDecision

STEP_200 = CheckpointRef("ckpt/step-200.pt", 200, "structure")
PEER = Claim(Cause.GLOO_ERROR, 0.6, transient=True, consequence_of=("*",))
IN_BARRIER = '  File "torch/distributed/distributed_c10d.py", line 5000, in barrier\nRuntimeError: Connection closed by peer'
IN_STEP = '  File "torch/distributed/distributed_c10d.py", line 3252, in all_reduce\nRuntimeError: Connection closed by peer'


def rank(  # noqa: PLR0913  what is known of a rank
    number: int,
    *,
    code: int | None = None,
    signal: int | None = None,
    steps: int | None = 200,
    step: int | None = None,
    total: int | None = None,
    over: bool = False,
    trace: str = "",
    claim: Claim | None = None,
    phase: str = "train",
    over_t: float = 9.0,
) -> tuple[Evidence, ...]:
    """Return the evidence on one rank: how it ended, its last heartbeat, its exception."""
    t = 10.0 + (code != 0)  # who left with 0 did so before the first failure
    ends = [("signal", signal), ("exit_code", code)]
    facts = [Evidence("exit", name, str(value), number, t) for name, value in ends if value is not None]
    beat = {"phase": phase, "steps": steps, "step": step, "total": total, "script_over": "its script was over" if over else None}
    facts += [
        Evidence("heartbeat", name, str(value), number, over_t) for name, value in beat.items() if steps is not None and value is not None
    ]
    if trace:
        facts.append(Evidence("error_file", "exception", trace.rpartition("\n")[2], number, t, claim=claim))
        facts.append(Evidence("error_file", "traceback", trace, number, t))
    return tuple(facts)


def failed(*ranks: tuple[Evidence, ...], resume: CheckpointRef | None = None, hang: Hang | None = None, **run: object) -> JobState:
    """Return the state of an attempt that failed, with declared checkpoints, on two ranks unless more are given."""
    facts = tuple(fact for facts in ranks for fact in facts)
    exits = {fact.rank: fact for fact in facts if fact.source == "exit"}
    deaths = tuple(
        RankExit(number or 0, 100, 0, **{"signal" if fact.name == "signal" else "code": int(fact.text)}) for number, fact in exits.items()
    )
    infos = tuple(RankInfo(number, number, 100 + number, 1) for number in range(len(ranks)))
    attempt = Attempt(
        number=2 if resume is not None else 1,
        resume=resume,
        loaded=resume.path if resume is not None else None,
        ranks=infos,
        world_size=len(infos),
        started_t=1.0,
        over_t=11.0,
        steps_seen=max(int(fact.text) for fact in facts if fact.name == "steps") if any(fact.name == "steps" for fact in facts) else -1,
        evidence=facts,
        deaths=tuple(sorted(deaths, key=lambda death: death.code != 0)),
        ended=True,
        hang=hang,
    )
    settings = {"policy": Policy(checkpoints_declared=True), "verified": (STEP_200,), "reached": None if resume is None else 200}
    return JobState(run=Run(**{**settings, **run}), attempt=attempt, stage=Stage.TEARDOWN, incidents=1)


def decision(state: JobState) -> JobDecision:
    """Return what is decided about the attempt."""
    return judgement.judged(state, 12.0, judgement.classify(state.attempt.evidence or ()))


AGAIN = {"resume": STEP_200}
LEFT = rank(0, code=0, over=True)
WAITS = rank(1, code=1, trace=IN_BARRIER)
NO_STEP = {"steps": 0, "phase": "load"}


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        pytest.param(failed(LEFT, WAITS), EndKind.SEEMS_OVER, id="one left with 0, the other fails in a barrier after as many steps"),
        pytest.param(failed(rank(0, code=1, trace=IN_BARRIER), rank(1, code=0, over=True)), EndKind.SEEMS_OVER, id="the ranks exchanged"),
        pytest.param(
            failed(LEFT, rank(1, code=1, trace="OSError: no room", phase="checkpoint")), EndKind.SEEMS_OVER, id="in the last save"
        ),
        pytest.param(
            failed(rank(0, code=0, **NO_STEP), rank(1, code=1, **NO_STEP), **AGAIN), EndKind.OVER, id="at the last step, none made"
        ),
        pytest.param(failed(LEFT, rank(1, signal=6, over=True)), EndKind.OVER, id="an abort after the script's end"),
        pytest.param(failed(rank(0, signal=11, over=True)), EndKind.OVER, id="a crash after the end, one rank"),
        pytest.param(failed(rank(0, code=134, over=True)), EndKind.OVER, id="an abort after the end, as a shell passes it on"),
        pytest.param(failed(rank(0, signal=6, over=True), rank(1, over=True)), EndKind.OVER, id="the other was ended by us on its way out"),
        pytest.param(
            failed(rank(0, code=1, step=200, total=200), rank(1, step=200, total=200)), EndKind.OVER, id="the known last step is made"
        ),
        pytest.param(
            failed(rank(0, code=1, step=220, total=220, trace="OSError: I/O error", phase="checkpoint"), rank(1, step=220, total=220)),
            EndKind.FAILED,
            id="the known last step is made, and its save failed",
        ),
        pytest.param(
            failed(rank(0, code=1, step=300, total=200), rank(1, step=300, total=200)),
            EndKind.FAILED,
            id="a second training continues beyond the last step of the first",
        ),
        pytest.param(failed(rank(0, code=0, step=30, total=200), WAITS), EndKind.EARLY, id="the known last step is not made"),
        pytest.param(
            failed(rank(0, code=0, steps=30), rank(1, code=1, steps=30, trace=IN_STEP)), EndKind.EARLY, id="the other is in a step"
        ),
        pytest.param(
            failed(rank(0, code=0, steps=30), rank(1, code=1, steps=31, trace=IN_BARRIER)), EndKind.EARLY, id="the other continued"
        ),
        pytest.param(failed(rank(0, code=0, steps=None), rank(1, code=1, steps=None)), EndKind.EARLY, id="without a heartbeat"),
        pytest.param(failed(rank(0, code=1, steps=30, trace=IN_STEP), rank(1, steps=30)), EndKind.FAILED, id="nobody left"),
        pytest.param(failed(rank(0, code=3, over=True), rank(1)), EndKind.FAILED, id="sys.exit(3) is an answer"),
        pytest.param(failed(rank(0, code=1, over=True, trace="ValueError: x")), EndKind.FAILED, id="an exception after it left its group"),
        pytest.param(
            failed(rank(0, code=1, **NO_STEP), rank(1, **NO_STEP), **AGAIN), EndKind.FAILED, id="no step and nobody came to an end"
        ),
        pytest.param(
            failed(rank(0, code=0, **NO_STEP), rank(1, code=1, **NO_STEP), resume=STEP_200, reached=230),
            EndKind.EARLY,
            id="there were more steps",
        ),
        pytest.param(
            failed(LEFT, rank(1), hang=Hang(HangKind.GONE, "rank 1 waits in barrier (train.py:9); rank 0 is gone", (0,))),
            EndKind.SEEMS_OVER,
            id="a barrier in which we ended it",
        ),
        pytest.param(
            failed(rank(0, code=1, **NO_STEP), rank(1, over=True, over_t=11.5, **NO_STEP), **AGAIN),
            EndKind.FAILED,
            id="a handler of our TERM leaves in order, before the first step",
        ),
        pytest.param(
            failed(rank(0, code=1, trace="OSError: no room", phase="checkpoint"), rank(1, over=True, over_t=11.5)),
            EndKind.FAILED,
            id="a handler of our TERM leaves in order, while the other saves",
        ),
    ],
)
def test_how_the_ranks_left(state: JobState, kind: EndKind) -> None:
    assert rank_endings.of(state).kind is kind


def test_a_rank_of_another_node_of_which_nothing_is_known_may_still_train() -> None:
    state = failed(rank(0, signal=6, over=True))
    two_nodes = replace(state, attempt=replace(state.attempt, world_size=2))
    assert rank_endings.of(two_nodes).kind is EndKind.FAILED


@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_that_left_with_0_is_at_fault_and_not_the_ranks_that_lost_it(first: int) -> None:
    left, lost = rank(first, code=0, steps=30, step=30), rank(1 - first, code=1, steps=30, step=30, trace=IN_STEP, claim=PEER)
    answer = decision(failed(left, lost))
    assert (answer.verdict.rank, answer.verdict.cause, answer.plan.kind) == (first, Cause.USER_CODE, PlanKind.RESTART)
    assert answer.verdict.summary == f"rank {first} left with 0 at step 30, the others continued"
    assert answer.failure is not None


def test_a_rank_that_leaves_with_0_at_the_same_step_again_stops_the_run() -> None:
    facts = rank(0, code=0, steps=30, step=30), rank(1, code=1, steps=30, step=30, trace=IN_STEP, claim=PEER)
    past = decision(failed(*facts)).failure
    again = decision(failed(*facts, failures=(past,)))
    assert (again.plan.strategy, again.plan.exit_code) == ("same_place", 65)
    assert again.plan.notes == (judgement.LEFT_WITH_0,)


@pytest.mark.parametrize(
    ("other", "summary"),
    [
        (rank(1, code=1, steps=30, trace="ValueError: labels"), "rank 1 raised ValueError: labels"),
        (rank(1, signal=9, steps=30), "rank 1 was killed by SIGKILL"),
        (rank(1, code=1, steps=30), "rank 1 exited with code 1"),
    ],
)
def test_a_rank_that_left_with_0_excuses_no_other_failure(other: tuple[Evidence, ...], summary: str) -> None:
    answer = decision(failed(rank(0, code=0, steps=30), other))
    assert (answer.verdict.rank, answer.verdict.summary) == (1, summary)


def test_a_failure_after_the_last_step_gets_one_more_attempt_then_its_own_code() -> None:
    first = decision(failed(LEFT, rank(1, code=1, step=200, trace=IN_BARRIER, claim=PEER)))
    assert (first.plan.kind, first.plan.strategy) == (PlanKind.RESTART, "training_over")
    assert first.verdict.summary == "after the last step: rank 1 waited for rank 0, which had left with 0"
    second = decision(
        failed(rank(0, code=0, **NO_STEP), rank(1, code=7, **NO_STEP, trace=IN_BARRIER, claim=PEER), failures=(first.failure,), **AGAIN)
    )
    assert (second.plan.kind, second.plan.exit_code) == (PlanKind.STOP, 7)
    assert "the training had ended at step 200, checkpoint verified" in second.plan.reason


def test_a_failure_after_the_last_step_is_not_trained_again_from_scratch() -> None:
    answer = decision(failed(LEFT, WAITS, policy=Policy(), verified=()))
    assert (answer.plan.kind, answer.plan.exit_code, answer.plan.strategy) == (PlanKind.STOP, 1, "training_over")


def test_a_place_that_does_not_take_the_last_save_is_waited_for() -> None:
    claim = Claim(Cause.IO_ERROR, 0.95, transient=True)
    fails = rank(1, code=1, step=220, trace="OSError: I/O error", claim=claim, phase="checkpoint")
    answer = decision(failed(rank(0, code=0, over=True, step=220), fails))
    assert (answer.plan.kind, answer.plan.strategy) == (PlanKind.RESTART, "wait_for_storage")


@pytest.mark.parametrize("verified", [(STEP_200,), ()], ids=["an older one", "none is verified yet"])
def test_a_rank_that_is_killed_in_the_last_save_is_started_again(verified: tuple[CheckpointRef, ...]) -> None:
    ranks = rank(0, code=0, over=True, step=220), rank(1, signal=9, step=220, phase="checkpoint")
    answer = decision(failed(*ranks, policy=Policy(), verified=verified))
    assert (answer.plan.kind, answer.plan.strategy) == (PlanKind.RESTART, "restart_within_budget")


@pytest.mark.parametrize(("cause", "code"), [(Cause.PREEMPTED, 75), (Cause.INTERRUPTED, 130)])
def test_an_end_from_outside_is_named_after_the_last_step_too(cause: Cause, code: int) -> None:
    evidence = Evidence("host", "asked", "it was asked to end", 0, 11.0, claim=Claim(cause, 0.97))
    answer = decision(failed((*rank(0, signal=15, over=True), evidence), rank(1, code=0, over=True)))
    assert (answer.verdict.cause, answer.plan.exit_code) == (cause, code)


@pytest.mark.parametrize(
    ("end", "code"), [({"signal": 6}, 134), ({"signal": 11}, 139), ({"code": 134}, 1)], ids=["abort", "crash", "abort under a shell"]
)
def test_a_process_that_dies_after_its_script_rejects_no_checkpoint_and_is_not_started_again(end: dict[str, int], code: int) -> None:
    older = Failure(1, 5.0, Cause.SEGFAULT, "", 200, before_first_step=True, charged=True, resumed=STEP_200.path, loading=True)
    answer = decision(failed(rank(0, over=True, **end), rank(1, code=0, over=True), failures=(older,), **AGAIN))
    assert (answer.plan.kind, answer.plan.exit_code, answer.plan.rejected) == (PlanKind.STOP, code, ())
    assert answer.verdict.summary.startswith("after the last step: rank 0")


def test_the_watchdogs_abort_after_the_script_is_an_abort_and_no_collective_that_timed_out() -> None:
    claim = Claim(Cause.NCCL_TIMEOUT, 0.85, transient=True)
    text = Evidence("log", "nccl.watchdog", "Terminating the process after attempting to dump debug info", 0, 11.0, claim=claim)
    answer = decision(failed((*rank(0, signal=6, over=True), text), rank(1, code=0, over=True)))
    assert (answer.verdict.cause, answer.plan.exit_code) == (Cause.EXIT_ABORT, 134)
    assert answer.verdict.summary.startswith("after the last step: rank 0 was killed by SIGABRT in its teardown: Terminating the process")


def test_a_gpu_that_failed_goes_out_of_use_whenever_that_was() -> None:
    state = failed(rank(0, signal=6, over=True))
    situation = judgement.planning.situation(
        state,
        12.0,
        judgement.classify(state.attempt.evidence or ()),
        judgement.planning.Place(200, before_first_step=False, phase=judgement.Phase.TRAIN),
        {"GPU-1": "xid 79"},
    )
    assert judgement.propose(replace(situation, ending=rank_endings.of(state))).strategy != "training_over"


RUNNING = JobState(
    run=Run(policy=Policy(launcher=Launcher.ELASTIC, on_hang="restart")),
    attempt=Attempt(number=1, ranks=(RankInfo(0, 0, 100, 1), RankInfo(1, 1, 101, 1)), world_size=2, steps_seen=200),
    stage=Stage.RUNNING,
)


def test_a_rank_that_leaves_with_0_ends_nothing_and_is_remembered() -> None:
    state, actions = decide(RUNNING, events.RankExited(5.0, 1, RankExit(1, 101, 5, code=0)))
    assert (state.stage, actions, state.attempt.deaths) == (Stage.RUNNING, (), (RankExit(1, 101, 5, code=0),))
    state, actions = decide(state, events.AttemptEnded(6.0, 1, "succeeded"))
    assert actions == (Finish(0, "done"),)


AT_EXIT = "rank 0 stands at its exit: a thread of it is in upload (t.py:5)"
THREAD = Hang(HangKind.EXIT, "rank 0 is at its exit, and a thread of it is in upload (t.py:5)", (0,), still_s=300.0, at_exit=AT_EXIT)
LATE = events.HangConfirmed(9.0, 1, THREAD)
OVER = events.HangConfirmed(600.0, 1, replace(THREAD, still_s=891.0, over=True))
#: What only the declared end shows: rank 1 waits in a barrier for rank 0, which left with 0.
IN_A_BARRIER = Hang(
    HangKind.GONE,
    "rank 1 waits in barrier (seq 7, train.py:9); rank 0 is gone",
    (0,),
    still_s=90.0,
    at_exit="rank 1 stands at its exit in barrier (seq 7, train.py:9)",
    end_step=200,
)


@pytest.mark.parametrize("launcher", [Launcher.ELASTIC, Launcher.PLAIN])
def test_a_process_that_does_not_leave_is_ended_as_an_incident_of_its_own_and_never_with_0(launcher: Launcher) -> None:
    state = replace(RUNNING, run=Run(policy=Policy(launcher=launcher, on_hang="restart")))
    state, actions = decide(state, LATE)
    assert [type(action).__name__ for action in actions] == ["KeepLook", "Alert"], "for 10 minutes it may be uploading"
    state, actions = decide(state, OVER)
    assert any(isinstance(action, StopRanks) for action in actions)
    (opened,) = (action for action in actions if isinstance(action, OpenIncident))
    assert opened.summary == f"the training was over; {AT_EXIT}, for 891 s"
    state, _ = decide(state, events.RankExited(600.5, 1, RankExit(0, 100, 9, signal=15)))
    state, _ = decide(state, events.AttemptEnded(601.0, 1, "failed"))
    exits = tuple(Evidence("exit", "ended_by_us", "15", number, 600.5) for number in (0, 1))
    state, actions = decide(state, events.EvidenceCollected(602.0, 1, 1, exits))
    assert state.stage is Stage.ENDED
    (report,) = (action for action in actions if isinstance(action, ReportDecision))
    assert (report.verdict.cause, report.verdict.rank, report.plan.exit_code) == (Cause.EXIT_STUCK, 0, 124)
    assert report.verdict.summary == opened.summary


@pytest.mark.parametrize("action", ["warn", "auto", ""])
def test_a_process_that_does_not_leave_is_only_reported_unless_the_user_asks_for_more(action: str) -> None:
    state = replace(RUNNING, run=Run(policy=Policy(on_hang=action)))
    for event, then in ((LATE, "once nothing of it has worked for 10 minutes"), (OVER, "and trains nothing again")):
        state, actions = decide(state, event)
        assert [type(action).__name__ for action in actions] == ["KeepLook", "Alert"]
        assert then in next(action.text for action in actions if isinstance(action, Alert))
        assert state.stage is Stage.RUNNING
        assert not any(isinstance(later, Alert) for later in decide(state, event)[1]), "once"


def declared(on_hang: str, *verified: CheckpointRef) -> JobState:
    """Return a job whose last step is named and made; rank 0 left with 0."""
    policy = Policy(launcher=Launcher.ELASTIC, on_hang=on_hang, checkpoints_declared=True)
    return replace(
        RUNNING,
        run=Run(policy=policy, verified=verified, newest=verified[-1] if verified else None),
        attempt=replace(RUNNING.attempt, deaths=(RankExit(0, 100, 5, code=0),)),
    )


def ended(state: JobState, *left: int) -> tuple[JobState, ReportDecision]:
    """Return what is decided once the ranks are gone, of which these had left with 0."""
    state, _ = decide(state, events.AttemptEnded(601.0, 1, "failed"))
    exits = tuple(Evidence("exit", *(("exit_code", "0") if number in left else ("ended_by_us", "15")), number, 5.0) for number in (0, 1))
    beats = tuple(
        Evidence("heartbeat", name, text, number, 600.0)
        for number in (0, 1)
        for name, text in (("phase", "train"), ("steps", "200"), ("step", "200"), ("total", "200"))
    )
    state, actions = decide(state, events.EvidenceCollected(602.0, 1, 1, (*exits, *beats)))
    if any(isinstance(action, FindSave) for action in actions):
        state, actions = decide(state, events.SaveSearched(603.0, 1, None))
    (report,) = (action for action in actions if isinstance(action, ReportDecision))
    return state, report


@pytest.mark.parametrize(("left", "code"), [((0,), 0), ((1,), 124), ((), 124)], ids=["rank 0", "another rank", "nobody"])
def test_after_the_declared_end_the_run_ends_with_0_only_if_rank_0_had_left_so(left: tuple[int, ...], code: int) -> None:
    state, actions = decide(declared("restart", STEP_200), events.HangConfirmed(100.0, 1, IN_A_BARRIER))
    assert (state.stage, [type(action).__name__ for action in actions]) == (Stage.RUNNING, ["KeepLook"]), "for 10 minutes nothing is said"
    state, actions = decide(state, events.HangConfirmed(700.0, 1, replace(IN_A_BARRIER, still_s=690.0, over=True)))
    assert state.stage is Stage.TEARDOWN
    state, report = ended(state, *left)
    assert (report.verdict.cause, report.plan.kind, report.plan.exit_code) == (Cause.EXIT_STUCK, PlanKind.STOP, code)
    assert report.verdict.summary == f"the training was over at step 200; {IN_A_BARRIER.at_exit}, for 690 s"
    assert "the training had ended at step 200, checkpoint verified" in report.plan.reason
    assert state.run.exit_code == code


def test_a_rank_still_working_after_the_declared_end_is_never_ended() -> None:
    works = replace(IN_A_BARRIER, still_s=5000.0, working="rank 1 moves 4 KiB/s")
    state, actions = decide(declared("restart", STEP_200), events.HangConfirmed(5000.0, 1, works))
    assert (state.stage, [type(action).__name__ for action in actions]) == (Stage.RUNNING, ["KeepLook"])


@pytest.mark.parametrize("action", ["warn", "auto"])
def test_after_the_declared_end_only_restart_ends_ranks_that_wait_for_a_gone_one(action: str) -> None:
    state, actions = decide(declared(action, STEP_200), events.HangConfirmed(700.0, 1, replace(IN_A_BARRIER, still_s=690.0, over=True)))
    assert state.stage is Stage.RUNNING
    (alert,) = (action for action in actions if isinstance(action, Alert))
    assert alert.text.startswith("the training was over at step 200; rank 1 stands at its exit in barrier (seq 7, train.py:9), for 690 s")


@pytest.mark.parametrize("verified", [(), (replace(STEP_200, step=180),)], ids=["none", "an older one"])
def test_without_a_verified_last_checkpoint_a_hang_at_the_end_is_any_hang(verified: tuple[CheckpointRef, ...]) -> None:
    state, _ = decide(declared("auto", *verified), events.HangConfirmed(700.0, 1, replace(IN_A_BARRIER, over=True)))
    assert state.stage is Stage.TEARDOWN
    verdict = ended(state, 0)[1].verdict
    assert (verdict.cause, verdict.runner_up) == (Cause.USER_CODE, Cause.HANG_NO_ERROR)
    assert verdict.summary == "after the last step: rank 1 waited for rank 0, which had left with 0"


DESTROY = '  File "torch/distributed/distributed_c10d.py", line 2200, in destroy_process_group\nRuntimeError: NCCL error: unhandled'
AT_200 = {"step": 200, "total": 200}


@pytest.mark.parametrize(
    ("end", "code", "ending"),
    [
        ({"signal": 6}, 134, "was killed by SIGABRT in its teardown: terminate called after throwing an instance of 'c10::Error'"),
        ({"signal": 11}, 139, "was killed by SIGSEGV in its teardown: terminate called"),
        ({"code": 1, "trace": DESTROY}, 1, "left with 1 in destroy_process_group"),
        ({"code": 3}, 3, "left with 3 in its teardown"),
    ],
    ids=["abort", "crash", "destroy_process_group", "a code"],
)
def test_a_rank_that_dies_after_the_declared_end_is_named_and_not_restarted(end: dict[str, object], code: int, ending: str) -> None:
    claim = Claim(Cause.UNKNOWN_NATIVE_ABORT, 0.9, transient=True)
    text = Evidence(
        "log", "unknown_native_abort.terminate", "terminate called after throwing an instance of 'c10::Error'", 1, 10.5, claim=claim
    )
    facts = (*rank(1, **AT_200, **end), *((text,) if "signal" in end else ()))  # type: ignore[arg-type]  # a table
    answer = decision(failed(rank(0, **AT_200), facts))
    assert (answer.verdict.cause, answer.verdict.rank) == (Cause.EXIT_ABORT, 1)
    assert answer.verdict.summary.startswith(f"after the last step: rank 1 {ending}")
    assert (answer.plan.kind, answer.plan.exit_code) == (PlanKind.STOP, code)
    assert "the training had ended at step 200, checkpoint verified" in answer.plan.reason


def test_a_death_after_the_declared_end_without_a_verified_checkpoint_is_a_failure() -> None:
    answer = decision(failed(rank(0, **AT_200), rank(1, signal=6, **AT_200), verified=()))
    assert answer.verdict.cause is Cause.UNKNOWN_NATIVE_ABORT
    assert answer.plan.kind is PlanKind.RESTART


def test_an_evaluation_that_fails_after_the_declared_end_keeps_its_cause() -> None:
    answer = decision(failed(rank(0, **AT_200), rank(1, code=1, trace="ValueError: labels", **AT_200)))
    assert (answer.verdict.cause, answer.plan.exit_code) == (Cause.USER_CODE, 1)
    assert answer.plan.kind is PlanKind.STOP


def test_a_failure_that_the_command_hides_is_an_incident_and_the_code_stays_0() -> None:
    hidden = rank(1, code=1, steps=30, trace="ValueError: labels")
    state = replace(RUNNING, run=Run(policy=Policy(launcher=Launcher.PLAIN)))
    state, actions = decide(state, events.AttemptEnded(9.0, 1, "succeeded", hidden))
    text = "the command left with 0, but rank 1 raised ValueError: labels, and nothing trained after that"
    assert PrintMessage("warning", text) in actions
    assert actions[-2:] == (CloseIncident(1, 1, "given_up", None), Finish(0, end.HIDDEN))
    assert (state.run.hidden, state.run.exit_code) == ("rank 1 raised ValueError: labels", 0)


def on_two_nodes(*ranks: tuple[Evidence, ...]) -> JobDecision:
    """Return what the first of two nodes decides about an attempt, with a rank on each of them."""
    nodes = ("a/1", "b/1")
    parts = [failed(facts) for facts in ranks]
    attempts = [
        replace(part.attempt, number=1, members=nodes, me=node, world_size=2, ranks=(RankInfo(number, 0, 100, 1),))
        for number, (node, part) in enumerate(zip(nodes, parts, strict=True))
    ]
    state = replace(parts[0], attempt=attempts[0])
    reports = tuple(NodeReport(node, attempt) for node, attempt in zip(nodes, attempts, strict=True))
    return joint_decision.decided(state, events.ReportsGathered(12.0, 1, reports, node="b/1"))


def test_a_rank_that_left_with_0_on_another_node_is_at_fault() -> None:
    answer = on_two_nodes(rank(0, code=1, steps=30, step=30, trace=IN_STEP, claim=PEER), rank(1, code=0, steps=30, step=30))
    assert (answer.verdict.rank, answer.verdict.summary) == (1, "rank 1 left with 0 at step 30, the others continued")
    assert answer.verdict.node == "b:1"


def test_an_abort_at_the_exit_on_one_node_ends_the_job_of_both() -> None:
    answer = on_two_nodes(rank(0, signal=6, over=True), rank(1, code=0, over=True))
    assert (answer.plan.kind, answer.plan.exit_code, answer.plan.strategy) == (PlanKind.STOP, 134, "training_over")


def test_the_table_has_a_row_for_each_way_to_leave() -> None:
    assert list(rank_endings.KINDS) == list(EndKind)


LOCKED = Hang(HangKind.LOCK, "rank 0 is in build, waiting for the file /c/a lock", (0,), still_s=200.0, limit_s=60.0, left_file="/c/a lock")


@pytest.mark.parametrize(
    ("action", "group_timeout_s", "ends"),
    [("warn", 60.0, False), ("auto", None, False), ("", 600.0, False), ("auto", 60.0, True), ("restart", None, True)],
)
def test_ranks_behind_the_lock_of_a_killed_build_wait_until_torchs_timeout(
    action: str, group_timeout_s: float | None, *, ends: bool
) -> None:
    state = replace(RUNNING, run=Run(policy=Policy(launcher=Launcher.ELASTIC, on_hang=action)))
    state, actions = decide(state, events.HangConfirmed(200.0, 1, replace(LOCKED, group_timeout_s=group_timeout_s)))
    assert (state.stage is Stage.TEARDOWN) is ends
    alerts = [row.text for row in actions if isinstance(row, Alert)]
    assert len(alerts) == (not ends)
    for text in alerts:
        assert "the job continues: a restart would wait for the same file; --on-hang restart stops the run with 124" in text
        assert "the wait ends once the file is gone: rm '/c/a lock'" in text


@pytest.mark.parametrize(("number", "is_before"), [(0, False), (None, False), (1, True)], ids=["its own", "of no rank", "of a peer"])
def test_steps_that_only_the_output_of_a_rank_tells_of_are_steps(number: int | None, *, is_before: bool) -> None:
    evidence = Evidence("log", "recent_progress", "step 4 loss 2.1", number, 9.0, free_text=True)
    verdict = FailureVerdict(Cause.USER_CODE, 0.85, "it failed", "user_code:x", rank=0)
    silent = JobState(attempt=Attempt(number=1, world_size=2, started_t=1.0, evidence=()))
    assert judgement.before_first_step(silent, 12.0, verdict, {"phase": "init"})
    assert judgement.before_first_step(silent.with_attempt(evidence=(evidence,)), 12.0, verdict, {"phase": "init"}) is is_before
