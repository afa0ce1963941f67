"""Records that a run begins, decides whether it continues the job's last one, and moves the logs of earlier runs aside."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

from supervisor.core.attempt.programs import ENDED_FROM_OUTSIDE
from supervisor.job import identity
from supervisor.journal.records import RunBegan
from supervisor.knobs import knob_set
from supervisor.report.command_line import own_invocation
from supervisor.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.job.job import Job
    from supervisor.view.opening import Past

KEPT_RUNS: Final = 5


def began(job: Job, *, continues: bool, incidents_before: int | None) -> RunBegan:
    """Return the record that a run of this job begins now in this process, or continues in it."""
    me = identity.this_process()
    return RunBegan(
        run_id=job.run_id,
        command=job.command,
        command_digest=identity.command_digest(job.command),
        supervise=__version__,
        pid=me.pid,
        start_ticks=me.start_ticks,
        boot_id=me.boot_id,
        scratch=str(job.scratch),
        continues=continues,
        incidents_before=incidents_before,
        invocation=own_invocation(),
        cwd=str(job.cwd),
    )


def continues(past: Past, job: Job) -> tuple[bool, str]:
    """Return whether this start continues the journal's last run; where a continuation was expected and fails, also the reason."""
    last, end = past.last_run, past.last_end
    if last is None:
        return False, ""
    decision = identity.decide_run(end.exit_code if end else None, job.environ, ended=end is not None)
    if decision.kind != "continue":
        return False, ""
    if past.state.run.id != last.run_id:  # it failed before it began, or its first records are damaged
        why = f"a new run begins, because the journal holds no state of run {last.run_id} ({decision.reason})"
        return False, why if past.problems else ""
    if last.command_digest != identity.command_digest(job.command):
        return False, f"a new run begins, because the command changed; run {last.run_id} is not continued ({decision.reason})"
    gone = {name for name, _ in past.state.run.overrides if not name.startswith(knob_set.ENV)} - {knob.name for knob in job.knobs.knobs}
    if gone:
        why = f"{', '.join(sorted(gone))} is no longer a knob of the command"
        return False, f"a new run begins, because {why}; run {last.run_id} is not continued ({decision.reason})"
    return True, ""


def unfinished(past: Past, job: Job) -> bool:
    """Return whether the last run of this job ran the same command and did not end well."""
    last, end = past.last_run, past.last_end
    is_same = last is not None and last.command_digest == identity.command_digest(job.command)
    return is_same and end is not None and end.exit_code != 0


def programs_seen(past: Past, job: Job) -> tuple[str, ...]:
    """Return the programs that the last run's ranks were seen to run, if HUP or TERM ended it and its command is started again.

    A person who starts the same command again after any other end may want a new training. If the last run was ended before it recorded a
    state, the state is that of the run before it, which must have been ended so, too.
    """
    last, end, run = past.last_run, past.last_end, past.state.run
    if not unfinished(past, job) or last is None or end is None:
        return ()
    codes = {end.exit_code} if run.id == last.run_id else {end.exit_code, run.exit_code}
    return run.programs if codes <= ENDED_FROM_OUTSIDE else ()


def put_aside(state: Path, run_id: str) -> None:
    """Move an earlier run's logs to runs/, and delete all but the newest KEPT_RUNS there. They are files of this supervisor."""
    logs, runs = state / "attempts", state / "runs"
    if logs.is_dir():
        runs.mkdir(mode=0o700, exist_ok=True)
        logs.rename(runs / run_id)
    for old in sorted(runs.iterdir())[:-KEPT_RUNS] if runs.is_dir() else ():
        shutil.rmtree(old, ignore_errors=True)
