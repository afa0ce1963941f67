"""State directories with the jobs that a page must show: some run, failed, ended or died, and one has 5,000 attempts."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from supervisor.core import actions as act
from supervisor.core import events
from supervisor.core.model import Evidence, Gpu, Phase, RankExit
from supervisor.journal.records import Header, Record, RunBegan, RunEnded, encode, event_taken, frame, scan
from tests.cli.jobs.stories import STORIES, Story
from tests.support.recorded_job import RecordedJob

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.journal.records import Body

#: A text that a page must neither run nor lay out wrongly, and a secret that it must not show.
HOSTILE = "</summary></main><script>document.title='owned'</script><img src=http://evil.example/x onerror=alert(1)> \u202egnp.exe"
SECRET = "hunter2hunter2"  # noqa: S105


def job_at(root: Path, job: str, begin_t: float, *, node: str = "") -> RecordedJob:
    """Return a job whose journal begins at a time (Unix seconds)."""

    class Begun(RecordedJob):
        T0 = begin_t

    return Begun(root, job, node)


def trains(written: RecordedJob, begin_s: float, steps: range, *, step_s: float = 1.0, loss: float | None = None) -> float:
    """Report steps, one in ten, with a loss that falls; a save of 12 s after each 200. Returns when it ends, seconds from T0."""
    t = begin_s
    for step in steps:
        t += step_s
        if step % 10 == 0 or step == steps[0]:
            value = None if loss is None else loss / math.sqrt(step + 1) + 0.03 * math.sin(step)
            at = (written.T0 + t, written.state.attempt.number, step, step - steps[0] + 1)
            written.feed(events.ProgressObserved(*at, Phase.TRAIN, loss=value))
            if step % 200 == 0:
                written.feed(events.ProgressObserved(*at, Phase.CHECKPOINT))
                t += 12
                written.feed(events.ProgressObserved(written.T0 + t, *at[1:], Phase.TRAIN))
    return t


def recovered(root: Path, job: str, now: float, *, pid: int = 1, start_ticks: int = 1) -> RecordedJob:
    """Write a job that trained for nearly two hours, failed four times, and trains, or was left by its supervisor (the default pid)."""
    written = job_at(root, job, now - 6500)
    written.begin(pid=pid, start_ticks=start_ticks)
    written.feed(events.GpusListed(written.T0, tuple(Gpu(index, f"GPU-{index}") for index in range(8))))
    written.start(25)
    t, step = trains(written, 40, range(1, 1200), loss=9.0), 1200
    for number in range(4):
        written.fail(t + 3)
        written.again(t + 20)
        resumed = step - 130
        step += 900
        t = trains(written, t + 45, range(resumed, step), step_s=1.9 if number == 2 else 1.0, loss=9.0)
    return written


def many_jobs(root: Path, now: float, *, pid: int = 1, start_ticks: int = 1) -> list[str]:
    """Write 20 jobs and return their names. Those that run have this process as their supervisor."""
    for name, story in STORIES.items():
        written = job_at(root, f"bert-{name}", now - 86_400)

        def make_story(written: RecordedJob = written, **policy: Any) -> Story:  # noqa: ANN401  as Story takes it
            return Story(written, **policy)

        story(make_story)
    for number in range(4):
        recovered(root, f"llama-{number}", now, pid=pid, start_ticks=start_ticks).close()
    recovered(root, "its-supervisor-was-killed", now).close()
    for number in range(7):
        done = job_at(root, f"ablation-lr-{number}e-4", now - 50_000 - 9000 * number)
        done.begin()
        done.start(8)
        t = trains(done, 20, range(1, 300 + 100 * number), loss=4.0)
        done.feed(events.AttemptEnded(done.T0 + t, 1, "succeeded"))
        done.journal.append(RunEnded(0), t=done.T0 + t + 1, durable=True)
        done.close()
    hostile = job_at(root, "hostile", now - 900)
    hostile.begin(pid=pid, start_ticks=start_ticks)
    hostile.start(5)
    hostile.progress(20, 1, step=1)
    hostile.fail(30, *_hostile_evidence(now - 870))
    hostile.close()
    job_at(root, "begins-just-now", now).close()
    newer = root / "of-a-newer-version" / "nodes" / "gpu-7" / "journal.jsonl"
    newer.parent.mkdir(parents=True)
    newer.write_bytes(frame(b'{"seq":1,"t":1.0,"wall":"","kind":"header","body":{"job":"j","node":"n","version":"99.0"}}'))
    for journal in root.glob("*/nodes/*/journal.jsonl"):
        last_t = now if journal == newer else [record.t for record in scan(journal) if isinstance(record, Record)][-1]
        os.utime(journal, (last_t, last_t))
    return sorted(path.name for path in root.iterdir())


def _hostile_evidence(t: float) -> list[Any]:
    text = f"RuntimeError: {HOSTILE} --api-key {SECRET}"
    return [Evidence("error_file", "exception", text, 1, t), Evidence("error_file", "traceback", text, 1, t)]


def many_attempts(path: Path, begin_t: float, attempts: int = 5000, *, ends: bool = True) -> None:
    """Write the journal of a job that was started again and again, each attempt 10 s long."""
    bodies: list[tuple[float, Body]] = [(0.0, Header("train", path.parent.name)), (0.0, RunBegan("run-1"))]
    for n in range(1, attempts + 1):
        t0 = begin_t + 10.0 * n
        for event, stage, *actions in (
            (events.CheckpointSelected(t0, n, None, 0), "starting", act.BeginAttempt(n, "failure", None)),
            (events.AttemptStarted(t0 + 1, n, RecordedJob.RANKS, 2), "running"),
            (events.ProgressObserved(t0 + 3, n, n, 1, Phase.TRAIN), "running"),
            (events.RankExited(t0 + 5, n, RankExit(0, 100, 7, signal=9)), "teardown", act.OpenIncident(n, n, 0, "rank 0 was killed")),
            (events.AttemptEnded(t0 + 6, n, "failed"), "teardown"),
            (events.EvidenceCollected(t0 + 7, n, n, ()), "selecting", act.CloseIncident(n, n, "resolved", n)),
        ):
            bodies.append((event.t - begin_t, event_taken(event, actions, attempt=n, stage=stage)))
    bodies += [(10.0 * attempts + 9, RunEnded(1))] if ends else []
    lines = (encode(number, begin_t + t, begin_t + t, body) for number, (t, body) in enumerate(bodies, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(lines))
