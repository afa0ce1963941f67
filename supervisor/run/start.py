"""`supervise -- CMD`, from the command line to the run: what must be right from the beginning, the lock, the job, and torchrun's agent.

A fault of the beginning (no such command, a held lock, a bad webhook URL) is reported before anything starts. At the top only that
is imported which comes before the agent: the rest is imported while the agent imports torch.
"""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import time
from functools import cache, partial
from typing import TYPE_CHECKING

from supervisor.core.units import span_text
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import identity
from supervisor.job.job import Job
from supervisor.job.local_time import minute_text
from supervisor.knobs import command_file, job_knobs, torchrun
from supervisor.launch import early_agent, launchers, slurm
from supervisor.launch.guardian_client import ignored_signals
from supervisor.run import lock
from supervisor.run.threads import attempted, reported_wait

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from supervisor.classify.logs.rows import Problem
    from supervisor.config.settings import Settings
    from supervisor.knobs.knob_set import KnobSet
    from supervisor.report.terminal import TerminalWriter
    from supervisor.run.main import JobRun

#: After so long a warning reports that the state directory does not answer.
SLOW_STATE_S = 5.0
#: For the release of the lock.
CLOSE_DEADLINE_S = 2.0


def run(settings: Settings, command: Sequence[str], terminal: TerminalWriter, *, takeover: bool = False) -> int:
    """Run `command` under supervision until it is done or given up. Returns the exit code; raises SuperviseError before it began.

    takeover: take the job's lock from a holder on another host at once.
    """
    ignored = ignored_signals()
    environ, cwd = dict(os.environ), identity.working_directory()
    command_file.require_command(command, environ)
    if not settings.job.name:  # else the user may have named the job of each task
        slurm.require_one_task(command, environ)
    if "MASTER_ADDR" in environ:
        from supervisor.launch import rendezvous_ports  # noqa: PLC0415  the agent waits for each import here

        rendezvous_ports.require_usable(command, environ)
    without_effect = launchers.ignored_options(command, environ)  # before Slurm's variables complete what the user gave
    in_slurm = slurm.at_start(command, environ)
    environ |= in_slurm.variables
    name, node = identity.job_name(settings.job.name, environ, cwd, command), identity.node_name()
    knobs = job_knobs.find(settings, command, environ, cwd)
    if in_slurm.line:
        terminal.message(in_slurm.line)
    for warning in filter(None, (in_slurm.warning, *without_effect)):
        terminal.message(warning, "warning")
    problems = _require_right(settings, knobs)
    state_waits = f"waiting for {cwd / settings.job.state_dir}, which is slow or does not answer; --state-dir names another directory"
    waiting = partial(reported_wait, cache(lambda text: terminal.message(text, "warning")), state_waits, SLOW_STATE_S)
    with waiting() as over:
        other = identity.job_of_another_command(cwd / settings.job.state_dir, name)
        state = identity.make_node_state(settings.job.state_dir, cwd, name.name, node)
        for problem in problems:
            terminal.message(str(problem), "warning")

        require_allowed_nodes(settings, identity.state_root(state), node, command, environ)

        def watches(text: str) -> None:  # from here on it waits for another supervisor, and not for the disk
            over()
            terminal.message(text)

        address = settings.address(name.name)
        held = lock.acquire(state / "lock", job=name.name, address=address, takeover=takeover, notify=watches)
    if other is not None:
        ago = span_text(max(0.0, time.time() - other[1]))
        terminal.message(
            f"{name.name} is a new job: its command is another than that of {other[0]}, which was last seen {ago} ago and keeps its own "
            f"history. To continue with that, add --job {other[0]}; with --job NAME the arguments may change",
            "warning",
        )
    early = None
    try:
        with waiting():
            job = Job(
                name=name.name,
                run_id=identity.new_run_id(),
                node=node,
                command=tuple(command),
                cwd=cwd,
                environ=environ,
                completed=tuple(in_slurm.variables),
                settings=settings,
                state=state,
                scratch=identity.make_job_dir(state),
                cookie=secrets.token_hex(16),
                knobs=knobs,
            )
            early = early_agent.start(job, ignored)
            prepared = _the_rest()(job, terminal, held, ignored, early)
        return prepared.go()
    finally:
        if early is not None:
            early.close()
        attempted(held.release, CLOSE_DEADLINE_S)  # else the next start finds that its holder is gone


def require_allowed_nodes(settings: Settings, root: Path, node: str, command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Raise SuperviseError (69) where this node is excluded, or so many of this step of Slurm that the job cannot begin.

    Then all nodes of the step end so, and the job may come back on others: else the fit ones would wait for the excluded ones.
    """
    if not identity.node_ledger(root, node).parent.exists():
        return
    from supervisor.node.gpu_quarantine import ledgers  # noqa: PLC0415  the agent waits for each import here

    step = slurm.step_of(environ)
    beside = frozenset(name.partition(".")[0] for name in step.nodes) if step is not None and step.size > 1 else frozenset[str]()
    exclusions = []
    for ledger in ledgers(root):
        if ledger.node == node or ledger.node.partition(".")[0] in beside:
            with contextlib.suppress(OSError):  # a ledger that cannot be read takes nothing out of use
                exclusions += [node_exclusion] if (node_exclusion := ledger.exclusion()) is not None else []
    own = next((node_exclusion for node_exclusion in exclusions if node_exclusion.node == node), None)
    if own is not None:
        exclusion, whose = own, "this node"
    elif step is not None and exclusions and step.size - len(exclusions) < _least_nodes(command, environ, step):
        exclusion, whose = exclusions[0], "a node that the job cannot begin without"
    else:
        return
    host = exclusion.node.partition(".")[0]
    hint = f"`{settings.allow_node_command(exclusion.node)}` allows it again; `sbatch --exclude={host}` begins elsewhere."
    text = f"{whose} is excluded since {minute_text(exclusion.t)}: {exclusion.node}: {exclusion.reason}"
    raise SuperviseError(text, hint=hint, exit_code=ExitCode.BAD_NODE)


def _least_nodes(command: Sequence[str], environ: Mapping[str, str], step: slurm.SlurmStep) -> int:
    """Return with how many nodes of the step a job may begin. environ: completed for torchrun."""
    launcher = torchrun.recognise(command, path=environ.get("PATH"))
    return step.size if launcher is None else torchrun.least_nodes(launcher, environ)


def _the_rest() -> type[JobRun]:
    """Import what the agent need not wait for."""
    gc.disable()  # a collection during the imports, and later of what they made, finds nothing: a sixth of the start
    try:
        from supervisor.run.main import JobRun  # noqa: PLC0415  the heavy part

        gc.collect()
        gc.freeze()
    finally:
        gc.enable()
    return JobRun


def _require_right(settings: Settings, knobs: KnobSet) -> tuple[Problem, ...]:
    """Raise SuperviseError for a wrong setting before anything starts; return the problems that only leave a signature out.

    A default is right, and its check is not imported: the agent waits for each import here.
    """
    health = settings.health
    names = (health.evict_on, health.thresholds, settings.network.allow, settings.recover)
    if any(names):
        from supervisor.config import policy  # noqa: PLC0415  as above

        policy.require_knobs(settings, knobs.knobs, knobs.likely)
        policy.evict_on(settings)
        policy.network_allow(settings)
    if settings.metrics.is_used:
        from supervisor.config import metrics_address  # noqa: PLC0415 (sockets cost time that a job without metrics need not pay)

        metrics_address.require_metrics(settings)
    if settings.alerts.is_used:
        from supervisor.run import alerting  # noqa: PLC0415 (ssl costs memory that a job without a sink need not pay)

        alerting.heartbeat(settings)
        alerting.configured(settings, os.environ)
    if not settings.classify.signatures:
        return ()
    from supervisor.config import signatures  # noqa: PLC0415  as above

    return signatures.configured(settings)[1]
