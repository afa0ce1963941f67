"""`supervise profile`: has the ranks of a running job record where their time goes, and writes what they recorded."""

from __future__ import annotations

import re
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from supervisor.cli import stdio
from supervisor.cli.invocation import JOB, Invocation, setting_options
from supervisor.cli.jobs.job_files import JobFiles, find_job, live_beats, state_root, view_of
from supervisor.cli.progress import SECONDS, progress
from supervisor.errors import SuperviseError
from supervisor.job import identity
from supervisor.job.local_time import second_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.config.settings import Settings
    from supervisor.observe.ranks.heartbeats import RankHeartbeat
    from supervisor.observe.ranks.profiles import ProfileAnswer, RankProfile
    from supervisor.report.table import Table

_POLL_S: Final = 0.2
_STEPS: Final = 5
_HOTTEST: Final = 8
_FAILED: Final = 1


@click.command()
@setting_options(*JOB)
@click.argument("name", metavar="[JOB]", required=False)
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Record this rank only (default: all ranks of this node).")
@click.option("--steps", type=click.IntRange(1, 10_000), metavar="N", help=f"Record N steps (default: {_STEPS}); 120 s at most.")
@click.option("--seconds", type=click.FloatRange(0.1, 600), metavar="S", help="Record S seconds, whatever steps are made in them.")
@click.option("--torch", is_flag=True, help="Record a trace of torch's profiler too: N steps, or 10 s; Perfetto and Chrome open it.")
@click.option("--into", metavar="DIRECTORY", default=".", help="Write the files there (default: here).")
def command(  # noqa: PLR0913  one for each option
    invocation: Invocation, *, name: str | None, rank: int | None, steps: int | None, seconds: float | None, torch: bool, into: str
) -> int:
    """The job continues: it costs the ranks less than 1 % while they are sampled; a trace of torch's costs more.

    It writes the sampled stacks (.collapsed) and a flame graph of them (.svg). The exit code is 1 if a rank was not recorded.
    """
    if steps is not None and seconds is not None:
        raise click.UsageError("--steps and --seconds exclude each other")
    settings = invocation.settings_to_read_with()
    request = {"steps": None if seconds is not None else steps or _STEPS, "seconds": seconds, "torch": torch}
    return profile(settings, name or invocation.job(settings), rank, request, Path(into))


def profile(settings: Settings, job: str | None, rank: int | None, request: dict[str, Any], into: Path) -> int:
    """Record, write the files, and show the hottest functions. Returns 0, or 1 where a rank was not recorded.

    request: steps or seconds, and whether torch's profiler too. Raises SuperviseError (1) where nothing can be recorded.
    """
    from supervisor.observe.ranks.profiles import RankProfile  # noqa: PLC0415  not for --help

    place = find_job(state_root(settings), job)
    directory, beats = _running(place, rank, needs_steps=request["steps"] is not None)
    if not into.is_dir():
        raise _refusal(f"writing the profile: {into}: there is no such directory", "Name another one with --into.")
    stem = into.absolute() / f"profile-{place.job}-{re.sub(r'[^0-9]', '', second_text(time.time()))}"
    ranks: list[RankProfile] = []
    for beat in beats:
        trace = f"{stem}-rank{beat.rank}.trace.json" if request["torch"] else ""
        ranks.append(RankProfile(directory, beat.rank, (beat.pid, beat.start_ticks), {**request, "torch": trace}))
    try:
        _record(place, ranks, request)
    finally:
        for recorded in ranks:
            recorded.close()
    return _written(place, ranks, stem, request)


def _running(place: JobFiles, rank: int | None, *, needs_steps: bool) -> tuple[Path, list[RankHeartbeat]]:
    """Return the directory of the attempt that runs here, and the ranks to record. Raises SuperviseError (1)."""
    if place.node != identity.node_name():
        raise _refusal(f"no rank of this node: job {place.job}: it runs on {place.node}", f"Run the same command on {place.node}.")
    view, alive = view_of(place)
    if alive is False or view.end is not None or view.run is None or not view.ranks:
        hint = "`supervise status` shows the job's state."
        raise _refusal(f"no rank runs: job {place.job}: attempt {view.attempt}", hint)
    beats = live_beats(view)
    selected = [beat for beat in beats if rank is None or beat.rank == rank]
    if not selected and rank is not None:
        numbers = ", ".join(str(beat.rank) for beat in beats) or "none is instrumented"
        hint = f"The ranks of this node are {numbers}. For a rank of another node, run the command on that node."
        raise _refusal(f"no such rank on this node: job {place.job}: {rank}", hint)
    if not selected:
        raise _refusal(f"no rank can be asked: job {place.job}: none is instrumented", "`supervise config show` has instrument.enabled.")
    if needs_steps and not any(beat.steps for beat in selected):
        hint = "`--seconds 30` records ranks with a process group; `supervise status --stacks` shows where any rank is."
        raise _refusal(f"no step was seen: job {place.job}: so no steps can be recorded", hint)
    return identity.attempt_dir(view.run.scratch, view.attempt), selected


def _refusal(message: str, hint: str) -> SuperviseError:
    return SuperviseError(message, hint=hint, exit_code=_FAILED)


def _record(place: JobFiles, ranks: Sequence[RankProfile], request: dict[str, Any]) -> None:
    """Ask all ranks at once, and wait until each has answered or failed; show how long it takes."""
    began, never = time.monotonic(), threading.Event()
    for rank in ranks:
        rank.begin(began)
    amount = f"{request['steps']} steps" if request["steps"] else f"{request['seconds']:g} s"
    with progress(place.job) as bar:
        while not all(rank.is_over for rank in ranks):
            never.wait(_POLL_S)
            now = time.monotonic()
            for rank in ranks:
                rank.look(now)
            over = sum(rank.is_over for rank in ranks)
            bar.at(f"recording {amount}: {over} of {len(ranks)} ranks done", now - began, max(rank.longest_s for rank in ranks), SECONDS)


def _written(place: JobFiles, ranks: Sequence[RankProfile], stem: Path, request: dict[str, Any]) -> int:
    """Write the files, show their content, and name the missing ranks."""
    answers = {rank.rank: rank.answer for rank in ranks if rank.answer is not None}
    failures = [f"rank {rank.rank} was not recorded: {rank.failure}" for rank in ranks if rank.failure]
    failures += _write_stacks(place, answers, stem)
    steps = min((answer.steps for answer in answers.values()), default=request["steps"])
    if request["steps"] and steps < request["steps"] and not request["torch"]:
        failures.append(f"only {steps} of {request['steps']} steps were made; `supervise status --stacks` shows what holds them up")
    for rank, answer in answers.items():
        failures += _show_trace(rank, answer, stem)
    for failure in failures:
        stdio.say(failure)
    return _FAILED if failures else 0


def _write_stacks(place: JobFiles, answers: dict[int, ProfileAnswer], stem: Path) -> list[str]:
    """Show and write the stacks of all ranks together; return what failed."""
    from checkpointing.io import staging  # noqa: PLC0415  not for --help
    from supervisor.report.flame_graph import flame_graph  # noqa: PLC0415  as above

    stacks = {f"rank {rank};{stack}": count for rank, answer in answers.items() for stack, count in answer.stacks.items()}
    if not stacks:
        return []
    took_s, steps = max(answer.took_s for answer in answers.values()), min(answer.steps for answer in answers.values())
    title = f"job {place.job}, {_count(len(answers), 'rank')}, {_count(steps, 'step')} in {took_s:.1f} s"
    stdio.show(_hottest_table(stacks, title))
    text = "".join(f"{stack} {count}\n" for stack, count in sorted(stacks.items()))
    failures = []
    for suffix, content in ((".collapsed", text), (".svg", flame_graph(stacks, title))):
        path = Path(f"{stem}{suffix}")
        try:
            staging.write(str(path), content.encode("utf-8", "replace"), 0o666, is_durable=False)
            stdio.write(sys.stdout, f"wrote {path}")
        except OSError as error:
            failures.append(f"{path} was not written: {error.strerror}")
    return failures


def _show_trace(rank: int, answer: ProfileAnswer, stem: Path) -> list[str]:
    """Show what torch's profiler recorded of a rank; return what failed."""
    trace, path = answer.trace, f"{stem}-rank{rank}.trace.json"
    if trace is None:
        return []
    if trace.error:
        return [f"rank {rank}: there is no trace of torch's: {trace.error}"]
    stdio.show(_operator_table(trace.operators, rank, cuda=answer.cuda))
    stdio.write(sys.stdout, f"wrote {path} ({_count(trace.steps, 'step')}; https://ui.perfetto.dev opens it)")
    if not answer.cuda:
        stdio.say(f"rank {rank} has no CUDA: the trace has the operators of the CPU only")
    return []


def _count(count: int, noun: str) -> str:
    """Return a count with its noun: `1 step`, `5 steps`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _hottest_table(stacks: dict[str, int], title: str) -> Table:
    from supervisor.report.flame_graph import hottest  # noqa: PLC0415  not for --help
    from supervisor.report.table import Column, Table  # noqa: PLC0415  as above

    rows = tuple((f"{share:.0f} %", name) for name, share in hottest(stacks, _HOTTEST))
    return Table((Column("time", right=True), Column("in the function, without those that it calls")), rows, title)


def _operator_table(operators: Sequence[tuple[str, int, float, float]], rank: int, *, cuda: bool) -> Table:
    from supervisor.report.table import Column, Table  # noqa: PLC0415  not for --help

    own = [(name, calls, gpu_us if cuda else cpu_us) for name, calls, cpu_us, gpu_us in operators]
    rows = tuple((name, str(calls), f"{took_us / 1e3:.1f} ms") for name, calls, took_us in own[:_HOTTEST])
    columns = (Column("operator"), Column("calls", right=True), Column("own GPU time" if cuda else "own CPU time", right=True))
    return Table(columns, rows, f"hottest operators of rank {rank}")
