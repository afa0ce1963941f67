"""What holds whatever happens: any events, in any order, of any attempt."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core import actions as act
from supervisor.core import events as core_events
from supervisor.core.checkpoint_model import CheckpointOwner, LoadedCheckpoint
from supervisor.core.machine import EVENTS, decide, initial
from supervisor.core.model import (
    Cause,
    CheckpointRef,
    Claim,
    Evidence,
    FailureVerdict,
    Finding,
    Gpu,
    Hang,
    HangKind,
    JobDecision,
    Knob,
    Launcher,
    Phase,
    Plan,
    PlanKind,
    Policy,
    RankExit,
    RankInfo,
)
from supervisor.core.policy_settings import Restart
from supervisor.core.state import Attempt, JobState, NodeReport, Stage
from supervisor.core.training_events import LossChanged, MemoryForecast, PaceChanged
from tests.support.transitions import is_declared

attempts = st.integers(0, 6)
small = st.integers(0, 30)
exits = st.one_of(
    st.builds(lambda rank, code: RankExit(rank, 10 + rank, 5, code=code), st.integers(0, 2), st.sampled_from([0, 1, 42, 255])),
    st.builds(lambda rank, signum: RankExit(rank, 10 + rank, 5, signal=signum), st.integers(0, 2), st.sampled_from([6, 9, 11, 15])),
)
evidence = st.lists(
    st.one_of(
        st.builds(lambda rank: Evidence("exit", "signal", "9", rank=rank, t=1.0), st.integers(0, 2)),
        st.builds(lambda rank: Evidence("exit", "exit_code", "42", rank=rank, t=1.0), st.integers(0, 2)),
        st.builds(lambda rank, phase: Evidence("heartbeat", "phase", phase, rank=rank), st.integers(0, 2), st.sampled_from(list(Phase))),
        st.builds(lambda rank, step: Evidence("heartbeat", "step", str(step), rank=rank), st.integers(0, 2), small),
        st.just(Evidence("launcher", "exception", "RendezvousConnectionError: no", t=0.5)),
        st.just(Evidence("error_file", "exception", "torch.OutOfMemoryError: CUDA out of memory", rank=0, t=0.4)),
        st.builds(
            lambda cause: Evidence(
                "error_file", f"{cause}.x", "x", rank=0, t=0.3, claim=Claim(cause, 0.97), fields=(("gpu_uuid", "GPU-1"),)
            ),
            st.sampled_from([Cause.NAN_LOSS, Cause.GPU_LOST, Cause.CHECKPOINT_CORRUPT, Cause.DATALOADER_WORKER, Cause.DISK_FULL]),
        ),
    ),
    max_size=4,
).map(tuple)
checkpoints = st.one_of(st.none(), st.builds(lambda step: CheckpointRef(f"{step}.pt", step, "structure"), small))

findings = st.lists(
    st.builds(
        lambda check, subject, result, blocks: Finding(check, subject, result, "it is so", blocks=blocks),
        st.sampled_from(["gpu_errors", "gpu_ecc", "gpu_driver", "disk_space", "host_shm"]),
        st.sampled_from(["gpu:GPU-0", "gpu:GPU-2", "gpu:GPU-9", "gpu:#3", "host"]),
        st.sampled_from(["ok", "degraded", "failed"]),
        st.booleans(),
    ),
    max_size=3,
).map(tuple)

hangs = st.builds(
    Hang,
    st.sampled_from(HangKind),
    st.just("x"),
    st.sampled_from([(), (0,), (0, 1)]),
    calibrated=st.booleans(),
    still_s=st.sampled_from([61.0, 9000.0]),
    group_timeout_s=st.sampled_from([None, 1800.0]),
)

ends = st.sampled_from(["failure", "left", "membership", "void"])
missing = st.sampled_from([(), (("b/1", "lost: silent for 60 s"),)])
decisions = st.one_of(
    st.none(),
    st.builds(
        JobDecision,
        st.builds(FailureVerdict, st.sampled_from(Cause), st.just(0.9), st.just("x"), st.just("x")),
        st.builds(Plan, st.sampled_from(PlanKind), st.just("x"), st.just("x"), st.just("x"), st.just(65)),
        by=st.sampled_from(["a/1", "b/1"]),
    ),
)
reports = st.lists(
    st.builds(
        NodeReport,
        st.sampled_from(["a/1", "b/1"]),
        st.builds(Attempt, ranks=st.just((RankInfo(0, 0, 10, 1),)), evidence=evidence, stop_wanted=decisions, ended=st.just(value=True)),
    ),
    max_size=2,
).map(tuple)

#: Everything that can happen, save for a new start: `t` is filled in by the test.
events = st.one_of(
    st.builds(core_events.LauncherStarted, st.just(0.0), small, st.sampled_from([None, 0, 2]), st.sampled_from([1, 2])),
    st.builds(core_events.LauncherFellBack, st.just(0.0), st.just(Launcher.STOCK), st.just("x")),
    st.builds(core_events.AttemptStarted, st.just(0.0), attempts, st.just((RankInfo(0, 0, 10, 1),)), st.just(1)),
    st.builds(core_events.RanksFound, st.just(0.0), attempts, st.just((RankInfo(0, 0, 20, 1), RankInfo(1, 1, 21, 1))), st.just(2)),
    st.builds(core_events.RankExited, st.just(0.0), attempts, exits),
    st.builds(core_events.AttemptEndedByPeer, st.just(0.0), attempts, st.just("b/1"), st.just("x"), ends),
    st.builds(core_events.AttemptEnded, st.just(0.0), attempts, st.sampled_from(["succeeded", "failed", "membership", "stopped"])),
    st.builds(core_events.LauncherExited, st.just(0.0), attempts, st.just("agent"), st.sampled_from([None, 1]), st.sampled_from([None, 9])),
    st.builds(core_events.NodesGathered, st.just(0.0), attempts, st.just(0), st.just(2), members=st.sampled_from([(), ("a/1", "b/1")])),
    st.builds(
        core_events.CheckpointSelected,
        st.just(0.0),
        attempts,
        checkpoints,
        st.integers(0, 2),
        agreement=st.just(1),
        node_offers=st.sampled_from([(), (("n", "none"),)]),
        this_node_leaves=st.booleans(),
        peer_leaves=st.booleans(),
        unfit=st.sampled_from([(), ((0, "it fails"),), ((0, "it fails"), (1, "it fails"))]),
        not_excluded=st.sampled_from([(), (0,)]),
    ),
    st.builds(core_events.NodesWaiting, st.just(0.0), attempts, st.just(1)),
    st.builds(
        core_events.DecisionMade,
        st.just(0.0),
        attempts,
        st.sampled_from(["restart", "stop", "success", "void"]),
        decisions,
        elsewhere=st.booleans(),
    ),
    st.builds(
        core_events.ReportsGathered, st.just(0.0), attempts, reports, missing, st.sampled_from(["failure", "left", "membership", "void"])
    ),
    st.builds(core_events.LeftBehind, st.just(0.0), attempts),
    st.builds(core_events.CoordinatorFellSilent, st.just(0.0), attempts),
    st.builds(core_events.NodeCutOff, st.just(0.0), attempts, st.just("why"), st.booleans()),
    st.builds(core_events.EvidenceCollected, st.just(0.0), attempts, st.just(1), evidence, st.just(0.5)),
    st.builds(core_events.CheckpointSelected, st.just(0.0), attempts, checkpoints, st.integers(0, 2)),
    st.builds(core_events.CheckpointVerified, st.just(0.0), attempts, checkpoints.filter(bool)),
    st.builds(
        core_events.ProgressObserved, st.just(0.0), attempts, st.one_of(st.none(), small), st.integers(-1, 5), st.sampled_from(Phase)
    ),
    st.builds(core_events.StartCeilingPassed, st.just(0.0), attempts, st.just((0,))),
    st.just(core_events.GpusListed(0.0, tuple(Gpu(i, f"GPU-{i}") for i in range(3)))),
    st.builds(core_events.ProgramSeen, st.just(0.0), attempts, st.just(("hf_trainer",)), st.just((("batch_size", "8"),)), st.booleans()),
    st.builds(core_events.HealthChecked, st.just(0.0), attempts, findings, st.integers(0, 4)),
    st.builds(core_events.HealthChanged, st.just(0.0), findings),
    st.builds(core_events.HangSuspected, st.just(0.0), attempts, st.just(61.0), st.just(60.0)),
    st.builds(core_events.HangConfirmed, st.just(0.0), attempts, hangs),
    st.builds(core_events.HangCleared, st.just(0.0), attempts, st.just(70.0), st.just("x")),
    st.builds(
        LossChanged,
        st.just(0.0),
        attempts,
        st.just("loss.nan"),
        st.sampled_from(["nan", "jump"]),
        st.just("loss"),
        st.just("x"),
        is_over=st.booleans(),
    ),
    st.builds(MemoryForecast, st.just(0.0), attempts, st.just("host"), st.just("x"), is_repeat=st.booleans(), is_over=st.booleans()),
    st.builds(PaceChanged, st.just(0.0), attempts, st.just("drop"), st.just("x"), st.none(), st.booleans()),
    st.builds(core_events.SelectionMoved, st.just(0.0), attempts),
    st.builds(
        core_events.CheckpointsLoaded,
        st.just(0.0),
        attempts,
        st.tuples(st.builds(LoadedCheckpoint, st.sampled_from(["a.pt", "b.pt"]), st.sampled_from(CheckpointOwner), small, st.just("x"))),
    ),
    st.builds(core_events.NewestSaveGone, st.just(0.0), attempts, st.just("a.pt"), st.booleans()),
    st.builds(core_events.SaveOnRequestSeen, st.just(0.0), attempts),
    st.builds(core_events.Saved, st.just(0.0), attempts),
    st.builds(core_events.SaveSearched, st.just(0.0), attempts, checkpoints),
    st.builds(core_events.StopRequested, st.just(0.0), st.sampled_from([1, 2, 15]), st.sampled_from([None, 9.0]), st.booleans()),
    st.builds(core_events.TimeLeft, st.just(0.0), st.sampled_from([None, 9.0])),
    st.builds(core_events.StacksRequested, st.just(0.0)),
    st.builds(
        core_events.TimerFired,
        st.just(0.0),
        st.sampled_from(["teardown", "stop", "backoff", "own_signal", "decision", "select", "health"]),
        small,
    ),
    st.builds(core_events.JournalDegraded, st.just(0.0), st.just("x")),
    st.builds(core_events.JournalRecovered, st.just(0.0)),
)


def at(event: core_events.Event, t: float, state: JobState, *, current: bool) -> core_events.Event:
    """The event at time `t`; most of them of the current attempt, else the fence would hide all that follows."""
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    if current and "attempt" in fields:
        fields["attempt"] = state.attempt.number
    return type(event)(**(fields | {"t": t}))


def holds(state: JobState, actions: tuple[act.Action, ...]) -> None:
    """What is true of every plan and of all that it leaves."""
    assert state.run.steps_back <= 2, "at most two steps back in a run"
    out_of_use = {gpu.uuid for gpu in state.gpus if gpu.quarantined}
    for action in actions:
        if isinstance(action, act.ReportDecision):
            assert action.plan.reason
            assert action.plan.next_ladder_step
        if isinstance(action, act.SelectCheckpoint):
            assert action.rejected == state.run.rejected, "what is poisoned is left out"
        if isinstance(action, act.BeginAttempt):
            now = {"batch_size": "8", "grad_accum": "3"} | dict(action.overrides)
            assert int(now["batch_size"]) * int(now["grad_accum"]) == 24, "the global batch stays"
            assert not out_of_use.intersection(action.gpus), "what is out of use is not handed out"


def fenced(before: JobState, event: core_events.Event, answer: tuple[JobState, tuple[act.Action, ...]]) -> None:
    """What is over, and what is of another attempt, is answered with nothing."""
    if before.stage not in EVENTS[type(event)].stages:
        assert answer == (before, ()), "out of place"
    if isinstance(event, core_events.ReportsGathered):  # the coordinator judges the attempts of others too, and acts on none of it here
        assert answer[0] == before
        assert all(isinstance(a, act.ProposeDecision) and a.attempt == event.attempt for a in answer[1])
        assert bool(answer[1]) == bool(event.reports or event.missing), "an attempt without nodes has never begun"
    elif getattr(event, "attempt", before.attempt.number) != before.attempt.number:
        assert answer == (before, ()), "what another attempt says is from the dead"


def waited(before: JobState, state: JobState, actions: tuple[act.Action, ...]) -> None:
    """Nothing is waited for without a timer, and a run ends once."""
    assert sum(isinstance(a, act.Finish) for a in actions) <= 1
    if (
        state.stage in {Stage.TEARDOWN, Stage.FOLLOWING, Stage.SELECTING, Stage.CHECKING, Stage.WAITING, Stage.STOPPING, Stage.ADMITTING}
        and state.stage is not before.stage
    ):
        # a peer's decision may come before our own is made: the timer that ends our ranks was set when they were fenced, and still counts
        goes_on = before.stage is Stage.TEARDOWN and state.stage is Stage.FOLLOWING and before.token == state.token
        assert goes_on or any(isinstance(a, act.SetTimer) for a in actions), f"{state.stage} is waited in without a timer"


@settings(max_examples=4 * settings.default.max_examples)
@given(st.booleans(), st.sampled_from([1, 2]), st.sampled_from([1, 2, 50]), st.lists(st.tuples(events, st.booleans()), max_size=40))
def test_the_core_keeps_its_invariants_under_any_events(
    declared: bool,  # noqa: FBT001  hypothesis passes it
    nodes: int,
    most: int,
    happenings: list[tuple[core_events.Event, bool]],
) -> None:
    knobs = (Knob("batch_size", "8", "--bs"), Knob("grad_accum", "3", "--accum"), Knob("num_workers", "5", "--workers"))
    evict_on = ("gpu_ecc",) if most == 50 else ()
    on_hang = {1: "warn", 2: "restart", 50: ""}[most]
    caps = Restart(max_attempts=most)
    policy = Policy(
        checkpoints_declared=declared, knobs=knobs, health=most > 1, evict_on=evict_on, on_hang=on_hang, nodes=nodes, restart=caps
    )
    started = core_events.SupervisorStarted(1.0, "run", policy)
    state, actions = decide(initial(), started)
    begun = [a.attempt for a in actions if isinstance(a, act.BeginAttempt)]
    for number, (happening, current) in enumerate(happenings):
        before = state
        event = at(happening, 2.0 + number, state, current=current or number % 3 != 0)
        state, actions = decide(state, event)
        again = decide(before, event)
        assert again == (state, actions), "the same state and event give the same answer"
        assert is_declared(before.stage, event, state.stage), "the table of the events has every way from stage to stage"
        assert state.attempt.number >= before.attempt.number
        assert state.incidents >= before.incidents
        for action in actions:
            if isinstance(action, act.BeginAttempt):
                begun.append(action.attempt)
                meets = before.attempt.awaits_agreement and before.attempt.number == action.attempt
                assert not meets or isinstance(event, core_events.CheckpointSelected), "no rank starts before the nodes agree"
                assert not before.attempt.live_ranks or before.attempt.ended or isinstance(event, core_events.AttemptEnded), (
                    "no attempt begins while ranks live"
                )
                assert before.run.stop is None, "nobody restarts what a person stopped"
            if isinstance(action, act.ReportDecision) and action.plan.kind is PlanKind.RESTART and action.plan.strategy != "coordinator":
                by_others = isinstance(event, core_events.DecisionMade)  # the node that decided counts
                assert by_others or action.attempt < most, "no more attempts than a run may have"
            if isinstance(action, act.Finish):
                assert state.stage is Stage.ENDED
                assert state.run.exit_code == action.exit_code
            if isinstance(action, act.StopRanks) and isinstance(event, core_events.HealthChanged):
                assert evict_on, "health alone ends no healthy attempt"
            if isinstance(action, act.StopRanks) and isinstance(event, core_events.HangConfirmed):
                assert before.run.policy.on_hang != "warn", "warn ends nothing"
                surely = event.hang.kind in {HangKind.GONE, HangKind.MISMATCH} or event.hang.still_s > (event.hang.group_timeout_s or 1e9)
                assert surely or before.run.policy.on_hang == "restart", "auto ends only what cannot continue"
        fenced(before, event, (state, actions))
        holds(state, actions)
        waited(before, state, actions)
    assert begun == sorted(set(begun)), "attempt numbers only grow, and none is begun twice"
