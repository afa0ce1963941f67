"""An exception that was caught is no end: of ranks with our hook that wrote none down, or another one than they print."""

from __future__ import annotations

from supervisor.classify.engine import classify
from supervisor.classify.logs.match import Reader, claims
from supervisor.config import signatures
from supervisor.core.model import Cause, Evidence, FailureVerdict, Phase, RankExit
from supervisor.job.clock import Clock
from supervisor.observe import collect
from supervisor.observe.log_watch import StreamRead
from supervisor.observe.ranks.heartbeats import RankHeartbeat
from supervisor.observe.reconcile import reconciled
from supervisor.strategies.consent import is_sure, proves

CATALOGUE, _ = signatures.read()
CLOCK = Clock(wall_at_start=1000.0, monotonic_at_start=0.0)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB."
ECC = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
SHAPE = "ValueError: bad shape in fallback"
HEAD = 'Traceback (most recent call last):\n  File "/home/user/train.py", line 3, in main\n    step()\n'
HANDLED = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
CAUSED = "\n\nThe above exception was the direct cause of the following exception:\n\n"
STEPS = "".join(f"step {n}\n" for n in range(30))


def judged(log: str, *wrote: Evidence, code: int = 3, hooked: bool = True, stepped_s: float | None = None) -> FailureVerdict:
    """What is concluded of one rank that printed `log` by second 3 and exited in second 5."""
    reader = Reader(CATALOGUE, rank=0)
    reader.feed(log.encode(), 1003.0)
    facts = collect.logs([StreamRead(0, "err", reader.finish(1003.0), b"", 0, "")], launches=False)
    deaths = [RankExit(0, 100, 5_000_000_000, code, None)]
    stepped = None if stepped_s is None else int(stepped_s * 1e9)
    beats = [RankHeartbeat(0, 0, 100, 1, 0, Phase.TRAIN, 0, 30, stepped, 0, "", True, True, False)] if hooked else []  # noqa: FBT003  its form
    return classify(reconciled((*collect.exits(deaths, CLOCK, 5.0), *wrote, *facts), deaths, beats, CLOCK))


def written(text: str, trace: str = "") -> tuple[Evidence, ...]:
    """What a rank's error file is read as."""
    raised = Evidence("error_file", "exception", text, rank=0, t=1004.0)
    return (raised, Evidence("error_file", "traceback", trace or HEAD + text, rank=0, t=1004.0), *claims(raised, CATALOGUE))


def changes(verdict: FailureVerdict) -> bool:
    """Whether the job may be changed on it."""
    return is_sure(verdict.cause, verdict.confidence) and any(proves(fact, verdict.cause) for fact in verdict.because)


def test_an_error_that_a_rank_caught_and_printed_changes_nothing() -> None:
    for raised in (OOM, ECC):
        assert not changes(judged(HEAD + raised + "\n" + STEPS))
        assert not changes(judged(HEAD + raised + "\ndataset missing: /data/x\n", code=1))
    # where no hook of ours is, its log is all that there is
    assert changes(judged(HEAD + OOM + "\n", code=1, hooked=False))
    # and its own error file is no text
    assert changes(judged(HEAD + OOM + "\n", *written(OOM), code=1))


def test_a_step_after_it_shows_that_an_exception_was_survived() -> None:
    assert judged(HEAD + OOM + "\n", stepped_s=4.0).cause is not Cause.CUDA_OOM
    assert judged(HEAD + OOM + "\n", stepped_s=2.0).cause is Cause.CUDA_OOM


def test_an_exception_that_was_handled_is_not_what_ended_the_rank() -> None:
    chain = HEAD + OOM + HANDLED + HEAD + SHAPE
    verdict = judged(chain + "\n", *written(SHAPE, chain), code=1)
    assert (verdict.cause, changes(verdict)) == (Cause.USER_CODE, False)
    assert SHAPE in verdict.summary
    # one that says what it follows from does not hide it, nor does a handler that meets the same again
    chain = HEAD + OOM + CAUSED + HEAD + "RuntimeError: step 7 failed"
    assert judged(chain + "\n", *written("RuntimeError: step 7 failed", chain), code=1).cause is Cause.CUDA_OOM
    chain = HEAD + OOM + HANDLED + HEAD + OOM
    assert changes(judged(chain + "\n", *written(OOM, chain), code=1))


def test_a_loaders_own_words_are_sure_in_an_error_file_alone() -> None:
    for text in (
        "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Killed. ",
        "RuntimeError: DataLoader worker (pid(s) 4242) exited unexpectedly",
        "RuntimeError: DataLoader timed out after 30 seconds",
    ):
        verdict = judged(HEAD + text + "\n", *written(text), code=1)
        assert (verdict.cause, changes(verdict)) == (Cause.DATALOADER_WORKER, True)
        assert not changes(judged(HEAD + text + "\n", code=1, hooked=False))
