"""Five failures as a person on call meets them: a killed rank, a bug, no GPU memory, a NaN, a full disk. Each is decided for real."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisor.classify.logs import match
from supervisor.config import signatures
from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.model import CheckpointRef, Evidence, Gpu, Phase, Policy, RankExit
from supervisor.core.policy_settings import Restart
from supervisor.journal.records import MIRRORED, START_TIMES, Note, RunBegan, RunEnded

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.recorded_job import RecordedJob

CATALOGUE, _ = signatures.read()
RUN = "20260921T141320-4ba6"
_GLOO = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:25117. "
    "This may indicate a possible application crash on rank 1 or a network set up issue."
)
_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.10 GiB is "
    "free. Including non-PyTorch memory, this process has 77.98 GiB memory in use. Of the allocated memory 76.50 GiB is allocated by "
    "PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated."
)


def _raised(kind: str, line: int, function: str, source: str) -> tuple[str, str]:
    """Return an exception of rank 1 and its traceback, as its error file holds them."""
    frames = (
        'Traceback (most recent call last):\n  File "/home/ada/bert/train.py", line 112, in <module>\n    main()\n'
        f'  File "/home/ada/bert/train.py", line {line}, in {function}\n    {source}\n'
    )
    return kind, f"{frames}{kind}"


class Story:
    """One run of two ranks, from its beginning to the last decision."""

    def __init__(self, written: RecordedJob, *, policy: Policy) -> None:
        self.w = written
        self.t = 0.0
        w = written
        run = RunBegan(RUN, ("torchrun", "train.py"), "d", "0", 4700, 1, "boot", incidents_before=None)
        w.journal.append(run, t=w.T0, durable=True)
        w.feed(events.SupervisorStarted(w.T0, RUN, policy))
        w.feed(events.GpusListed(w.T0, (Gpu(0, "GPU-0"), Gpu(1, "GPU-1"))))
        self.select(None)

    def select(self, chosen: CheckpointRef | None, count: int = 0) -> None:
        """Answer which checkpoint the next attempt resumes from."""
        w = self.w
        w.feed(events.CheckpointSelected(w.T0 + self.t, w.state.attempt.number, chosen, count))

    def train(self, *steps: int, verified: int | None = None) -> None:
        """Start the ranks and let them come to these steps, one report in ten seconds."""
        w = self.w
        w.start(self.t + 2)
        self.t += 5
        first = steps[0]
        times = _times(w.state.attempt.number)
        for step in steps:
            w.feed(events.ProgressObserved(w.T0 + self.t, w.state.attempt.number, step, step - first + 1, Phase.TRAIN, first_step=first))
            if step == first:
                w.journal.append(Note(START_TIMES, data=times), t=w.T0 + self.t)
            self.t += 10
        if verified is not None:
            ref = CheckpointRef(f"/data/ckpt/step_{verified:05d}.pt", verified, "structure")
            w.feed(events.CheckpointVerified(w.T0 + self.t, w.state.attempt.number, ref, w.state.attempt.number))
            note = Note(MIRRORED, "s3://backup/bert", {"path": ref.path, "step": verified})
            w.journal.append(note, t=w.T0 + self.t + 4)

    def fail(self, step: int, raised: tuple[str, str] | None, *, victim: bool = True) -> None:
        """Let rank 1 fail at a step (killed, if it raised nothing), and rank 0 of it."""
        w, n, t = self.w, self.w.state.attempt.number, self.w.T0 + self.t
        end = RankExit(1, 101, 10, signal=9) if raised is None else RankExit(1, 101, 10, code=1)
        w.feed(events.RankExited(t, n, end), events.RankExited(t + 0.4, n, RankExit(0, 100, 20, code=1)))
        w.feed(events.AttemptEnded(t + 1, n, "failed"))
        facts = [
            Evidence("exit", "signal", "9", 1, t) if raised is None else Evidence("exit", "exit_code", "1", 1, t),
            Evidence("heartbeat", "phase", "train", 1),
            Evidence("heartbeat", "step", str(step), 1),
            Evidence("heartbeat", "steps", str(step), 1),
            Evidence("heartbeat", "torch", "loaded", 1),
        ]
        if raised is not None:
            facts += [Evidence("error_file", "exception", raised[0], 1, t), Evidence("error_file", "traceback", raised[1], 1, t)]
            facts += _claims(raised[1], t)
        if victim:
            facts.append(Evidence("error_file", "exception", _GLOO, 0, t + 0.3))
            facts.append(Evidence("exit", "exit_code", "1", 0, t + 0.4))
        w.feed(events.EvidenceCollected(t + 1.2, n, w.state.incidents, tuple(facts), 0.5))
        self.t += 2

    def again(self, step: int | None) -> None:
        """Let the backoff pass, and choose a checkpoint."""
        w = self.w
        for timer in [a for a in w.actions if isinstance(a, act.SetTimer) and a.name == "backoff"][-1:]:
            w.feed(events.TimerFired(w.T0 + self.t, timer.name, timer.token))
        self.t += 1
        self.select(None if step is None else CheckpointRef(f"/data/ckpt/step_{step:05d}.pt", step, "structure"), 0 if step is None else 2)

    def end(self) -> act.ReportDecision:
        """Write the end record, and return the last decision."""
        w = self.w
        assert w.state.run.exit_code is not None
        w.journal.append(RunEnded(w.state.run.exit_code), t=w.T0 + self.t + 2, durable=True)
        w.close()
        return next(a for a in reversed(w.actions) if isinstance(a, act.ReportDecision))


def _times(attempt: int) -> dict[str, Any]:
    """Return where the time of a start went, as the supervisor notes it."""
    of_ranks = {"rendezvous": 0.05, "start": 0.2, "import": 1.9, "init": 0.1, "load": 0.25, "first_step": 0.3}
    before = {"detect": 0.0004, "teardown": 1.0, "decision": 0.2, "backoff": 0.8, "selection": 0.1, "preparation": 0.1}
    parts = {"supervise": 0.4, "agent": 1.7, **of_ranks} if attempt == 1 else {**before, **of_ranks}
    return {"attempt": attempt, "after": "launch" if attempt == 1 else "failure", "total_s": sum(parts.values()), "parts": parts}


def _claims(trace: str, t: float) -> list[Evidence]:
    """Return what the signatures read from the traceback in the rank's output."""
    reader = match.Reader(CATALOGUE, rank=1)
    reader.feed(f"{trace}\n".encode(), t)
    return [fact for fact in reader.finish(t) if fact.claim is not None]


def killed(story: Callable[..., Story]) -> act.ReportDecision:
    """Rank 1 is killed three times, and nobody saw by whom."""
    job = story(policy=Policy(checkpoints_declared=True, restart=Restart(intensity=2)))
    job.train(1, 30, 60, verified=20)
    job.fail(60, None)
    for last in (45, 30):
        job.again(20)
        job.train(21, last)
        job.fail(last, None)
    return job.end()


def bug(story: Callable[..., Story]) -> act.ReportDecision:
    """A KeyError at step 25, and again."""
    job = story(policy=Policy(checkpoints_declared=True))
    raised = _raised("KeyError: 'label_ids'", 57, "collate", "labels = [row['label_ids'] for row in rows]")
    job.train(1, 25, verified=20)
    job.fail(25, raised)
    job.again(20)
    job.train(21, 25)
    job.fail(25, raised)
    return job.end()


def oom(story: Callable[..., Story]) -> act.ReportDecision:
    """The GPU's memory does not suffice, twice."""
    job = story(policy=Policy(checkpoints_declared=True))
    raised = _raised(_OOM, 83, "train_step", "loss.backward()")
    job.train(1, 150, verified=140)
    job.fail(150, raised)
    job.again(140)
    job.train(141, 143)
    job.fail(143, raised)
    return job.end()


def nan(story: Callable[..., Story]) -> act.ReportDecision:
    """The loss is NaN at the same step from whatever checkpoint."""
    job = story(policy=Policy(checkpoints_declared=True, steps_back=1))
    raised = _raised("FloatingPointError: loss is NaN at step 25", 91, "check", 'raise FloatingPointError(f"loss is NaN at step {step}")')
    job.train(1, 25, verified=20)
    job.fail(25, raised)
    job.again(20)
    job.train(21, 25)
    job.fail(25, raised)
    if job.w.state.run.exit_code is None:
        job.again(10)
        job.train(11, 25)
        job.fail(25, raised)
    return job.end()


def disk(story: Callable[..., Story]) -> act.ReportDecision:
    """The disk of the checkpoints is full, until the infrastructure's budget is spent."""
    job = story(policy=Policy(checkpoints_declared=True, recurring_stop=2))
    raised = _raised("OSError: [Errno 28] No space left on device: '/data/ckpt/step_00040.pt'", 71, "save", "torch.save(state, path)")
    job.train(1, 40, verified=20)
    job.fail(40, raised, victim=False)
    job.again(20)
    job.train(21, 40)
    job.fail(40, raised, victim=False)
    return job.end()


STORIES: dict[str, Callable[[Callable[..., Story]], act.ReportDecision]] = {
    "killed": killed,
    "bug": bug,
    "oom": oom,
    "nan": nan,
    "disk": disk,
}
