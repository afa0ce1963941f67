"""Which findings hold an attempt back, and how many ranks begin without the GPUs that are ill."""

from __future__ import annotations

import pytest

from supervisor.core import events
from supervisor.core.actions import BeginAttempt, CheckHealth, PrintMessage, Quarantine, SetTimer
from supervisor.core.health import findings
from supervisor.core.machine import decide, initial
from supervisor.core.model import Cause, Claim, Evidence, Finding, Gpu, Launcher, Phase, Policy, RankExit, RankInfo
from supervisor.core.policy_settings import Gpus, Restart
from supervisor.core.state import Attempt, JobState, Run, Stage
from supervisor.core.values import replace

THREE = tuple(Gpu(index, f"GPU-{index}", f"0000:1{index}:00.0") for index in range(3))
#: A GPU that was lost before the job started has no name.
LOST = Finding("gpu_errors", "gpu:#3", "failed", "GPU 3: it is lost", blocks=True)
RESET = Finding("gpu_recovery", "gpu:#3", "failed", "GPU 3: a reset is due", blocks=True)
ON_THE_BUS = Finding("gpu_count", "pci:0000:14:00.0", "failed", "on the bus, and not seen", blocks=True)


@pytest.mark.parametrize(
    ("results", "there"), [((LOST,), 4), ((LOST, RESET), 4), ((LOST, ON_THE_BUS), 5)], ids=["one", "one for two reasons", "two"]
)
def test_a_gpu_that_is_ill_for_two_reasons_is_one_gpu(results: tuple[Finding, ...], there: int) -> None:
    policy = Policy(launcher=Launcher.ELASTIC, health=True, gpus=Gpus(minimum=1), restart=Restart(batch_drift=True))
    judged = findings.judged(JobState(gpus=THREE, run=Run(policy=policy, findings=results)), 0.0)
    assert judged.stop is None
    assert any(f"3 of {there} ranks" in action.text for action in judged.actions if isinstance(action, PrintMessage))


def test_the_fault_of_an_unneeded_gpu_is_reported_once() -> None:
    state = JobState(gpus=THREE, run=Run(policy=Policy(launcher=Launcher.ELASTIC, health=True), findings=(LOST,), command_nproc=3))
    judged = findings.judged(state, 0.0)
    assert judged.stop is None
    assert [action.text for action in judged.actions if isinstance(action, PrintMessage)] == [
        "health: GPU 3: it is lost; the job continues"
    ]
    assert not any(isinstance(action, Quarantine) for action in judged.actions)
    assert findings.judged(judged.state, 1.0).actions == ()


def test_of_a_command_with_fewer_ranks_than_gpus_its_ranks_are_counted_where_the_examination_did_not_answer() -> None:
    """`--nproc-per-node=3` on four GPUs: with a GPU out of use three are left, and nothing has to change."""
    gpus = (*THREE, Gpu(3, "GPU-3", "0000:13:00.0"))
    ranks = tuple(RankInfo(rank, rank, 100 + rank, 7) for rank in range(3))
    policy = Policy(launcher=Launcher.ELASTIC, health=True, gpus=Gpus(minimum=1))
    state = JobState(gpus=gpus, stage=Stage.STARTING, attempt=Attempt(number=1), run=Run(policy=policy))
    state, _ = decide(state, events.AttemptStarted(1.0, 1, ranks, 3))
    state, _ = decide(
        state, events.HealthChanged(2.0, (Finding("gpu_recovery", "gpu:GPU-1", "failed", "GPU 1 must be reset", blocks=True),))
    )
    state = replace(state, stage=Stage.CHECKING)
    state, actions = decide(state, events.HealthChecked(3.0, 1, state.run.reported_findings))
    (began,) = (action for action in actions if isinstance(action, BeginAttempt))
    assert began.nproc is None
    assert began.gpus == ("GPU-0", "GPU-2", "GPU-3")


def test_a_disk_that_stays_full_after_the_first_attempt_is_waited_for_an_hour_and_then_left_with_75() -> None:
    full = Finding("disk_space", "path:/data", "failed", "/data has no room for one checkpoint", blocks=True)
    state = JobState(
        stage=Stage.CHECKING,
        attempt=Attempt(number=1, over_t=90.0),
        run=Run(policy=Policy(health=True, start_tries=50), jitter=1.0, high_water=100),
    )
    t, waits = 100.0, list[float]()
    while state.stage is not Stage.ENDED and len(waits) < 50:
        state, actions = decide(state, events.HealthChecked(t, 1, (full,)))
        for timer in (action for action in actions if isinstance(action, SetTimer) and action.name == "backoff"):
            waits.append(timer.delay_s)
            t += timer.delay_s
            state, _ = decide(state, events.TimerFired(t, "backoff", timer.token))
        assert not any(isinstance(action, BeginAttempt) for action in actions)
    assert state.run.exit_code == 75
    assert waits[:2] == [30.0, 60.0]
    assert max(waits) == 600.0
    assert 3000 < sum(waits) < 4500
    assert state.incidents == 1


def test_a_fault_for_a_person_is_not_waited_for_behind_a_full_disk() -> None:
    full = Finding("disk_space", "path:/data", "failed", "/data has no room", blocks=True)
    driver = Finding("gpu_driver", "driver", "failed", "the driver does not fit its library", blocks=True)
    state = JobState(stage=Stage.CHECKING, attempt=Attempt(number=1), run=Run(policy=Policy(health=True)))
    for reported in ((full, driver), (driver, full)):
        ended, _ = decide(state, events.HealthChecked(1.0, 1, reported))
        assert ended.run.exit_code == 69


def failed(cause: Cause, *between: events.Event) -> tuple[JobState, tuple[object, ...]]:
    """Return what follows the first failure of a job of two GPUs: of this cause, after what happened while it ran."""
    policy = Policy(launcher=Launcher.ELASTIC, health=True, backoff_base_s=0.0, gpus=Gpus(minimum=1), restart=Restart(batch_drift=True))
    claim = Evidence("exit", "signal", "9", 0, claim=Claim(cause, 0.9, transient=True))
    state, actions = initial(), tuple[object, ...]()
    for event in (
        events.GpusListed(0.0, THREE[:2]),
        events.SupervisorStarted(0.0, "run", policy),
        events.HealthChecked(0.5, 0, ()),
        events.AttemptStarted(1.0, 1, (RankInfo(0, 0, 10, 1),), 1),
        events.ProgressObserved(2.0, 1, 5, 5, Phase.TRAIN),
        *between,
        events.RankExited(4.0, 1, RankExit(0, 10, 5, signal=9)),
        events.AttemptEnded(5.0, 1, "failed"),
        events.EvidenceCollected(6.0, 1, 1, (claim,), 0.0),
    ):
        state, actions = decide(state, event)
    return state, actions


@pytest.mark.parametrize(("cause", "awaited"), [(Cause.USER_CODE, False), (Cause.KILLED_UNKNOWN, False), (Cause.NCCL_NETWORK, True)])
def test_after_a_failure_of_the_program_the_node_is_examined_beside_the_start(cause: Cause, *, awaited: bool) -> None:
    state, actions = failed(cause)
    assert CheckHealth(1, awaited=awaited) in actions
    assert any(isinstance(action, BeginAttempt) for action in actions) is not awaited
    assert state.stage is (Stage.CHECKING if awaited else Stage.STARTING)


def test_a_finding_during_the_run_holds_for_the_next_attempt() -> None:
    lost = Finding("gpu_errors", "gpu:GPU-1", "failed", "GPU 1: it is lost", blocks=True)
    _, actions = failed(Cause.USER_CODE, events.HealthChanged(3.0, (lost,)))
    assert [action.gpu.uuid for action in actions if isinstance(action, Quarantine)] == ["GPU-1"]
    assert [action.gpus for action in actions if isinstance(action, BeginAttempt)] == [("GPU-0",)]


REQUEUE = "the scheduler's requeue continues this run on other nodes"
FAILS = {"b": "node b:1 fails the node check: rank 1 fails", "c": "node c:2 fails the node check: rank 2 fails"}
KEPT_OFF, IN_USE = "the node is excluded", "the node is not excluded: its ledger cannot be written"
ALLOW = {host: f"once it is repaired: `supervise nodes allow {host}`" for host in "bc"}


@pytest.mark.parametrize(
    ("unfit", "not_excluded", "reason", "hint"),
    [
        ("b", (), f"{FAILS['b']}; {KEPT_OFF}", f"{REQUEUE}; {ALLOW['b']}"),
        ("b", (1,), f"{FAILS['b']}; {IN_USE}", "keep the job off b until that is repaired"),
        ("bc", (), f"{FAILS['b']}; {KEPT_OFF}; {FAILS['c']}; {KEPT_OFF}", f"{REQUEUE}; {ALLOW['b']}; {ALLOW['c']}"),
        ("bc", (1,), f"{FAILS['b']}; {IN_USE}; {FAILS['c']}; {KEPT_OFF}", f"keep the job off b until that is repaired; {ALLOW['c']}"),
        ("bc", (1, 2), f"{FAILS['b']}; {IN_USE}; {FAILS['c']}; {IN_USE}", "keep the job off b, c until that is repaired"),
    ],
)
def test_the_card_names_each_node_that_failed_the_node_check_as_excluded_only_where_it_is(
    unfit: str, not_excluded: tuple[int, ...], reason: str, hint: str
) -> None:
    state, _ = decide(initial(), events.SupervisorStarted(0.0, "run", Policy(nodes=3)))
    state, _ = decide(state, events.NodesGathered(1.0, 1, 0, 3, 1, ("a/1", "b/1", "c/1"), 3))
    failures = tuple((number, f"rank {number} fails") for number in range(1, 1 + len(unfit)))
    state, _ = decide(state, events.CheckpointSelected(9.0, 1, None, 0, agreement=1, unfit=failures, not_excluded=not_excluded))
    wanted = state.attempt.stop_wanted
    assert wanted is not None
    assert (wanted.plan.reason, wanted.plan.next_ladder_step) == (reason, hint)


def test_the_card_of_many_nodes_that_failed_the_node_check_is_short() -> None:
    members = tuple(f"n{number}/1" for number in range(40))
    state, _ = decide(initial(), events.SupervisorStarted(0.0, "run", Policy(nodes=40)))
    state, _ = decide(state, events.NodesGathered(1.0, 1, 0, 40, 1, members, 40))
    failures = tuple((number, "it fails " * 40) for number in range(30))
    state, _ = decide(state, events.CheckpointSelected(9.0, 1, None, 0, agreement=1, unfit=failures))
    wanted = state.attempt.stop_wanted
    assert wanted is not None
    assert len(wanted.plan.reason) <= 600
    hint = f"{REQUEUE}; {'; '.join(f'once it is repaired: `supervise nodes allow n{number}`' for number in range(3))}"
    assert wanted.plan.next_ladder_step == f"{hint}; `supervise nodes` lists the others"
