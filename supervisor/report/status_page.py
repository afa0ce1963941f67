"""Shows a `Status` for `supervise status`: its page, its ranks and its GPUs. Pure.

The page begins with the problems, and continues with the training's progress, its checkpoints, and its machine. A drawing
is beside the numbers that it shows, never in their place.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET

from supervisor.core.units import bytes_text, span_text
from supervisor.core.values import replace
from supervisor.job import identity
from supervisor.job.local_time import clock_text, second_text, zoned_text
from supervisor.report import wording
from supervisor.report.layout import UNKNOWN_WIDTH, Fact, FactPage, Surface, Tone, render
from supervisor.report.memory_section import MEMORY
from supervisor.report.step_section import step_facts
from supervisor.report.table import Cell, Column, Table, render_table
from supervisor.view.status import StateWord, rank_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervisor.core.model import Finding
    from supervisor.journal.records import StartTimes
    from supervisor.view.status import GpuStatus, IncidentStatus, ListedAlert, LossCurve, RankStatus, Status, StoredCheckpoint

#: Ranks that are listed one by one; of more, those that do the same are one line, and so many lines are shown.
MOST_SINGLE, MOST_GROUPS = 8, 12
#: Alerts that a page has; the JSON has all.
_MOST_ALERTS = 50
_TONES = {
    StateWord.TRAINING: Tone.GOOD,
    StateWord.DONE: Tone.GOOD,
    StateWord.FAILED: Tone.BAD,
    StateWord.DIED: Tone.BAD,
    StateWord.HUNG: Tone.BAD,
    StateWord.RUNNING: Tone.STRONG,
    StateWord.STARTING: Tone.STRONG,
    StateWord.NO_RUN: Tone.STRONG,
}
_BLOCKS = "▁▂▃▄▅▆▇█"
_FULL, _EMPTY = "█", "░"


def rendered(status: Status, address: str, surface: Surface) -> str:
    """Return the page with the tables below it, without a line feed at its end."""
    tables = (rank_table(status), gpu_table(status))
    parts = [render(status_page(status, address, width=surface.width), surface)]
    return "\n".join([*parts, *(render_table(table, surface) for table in tables if table.rows)])


def status_page(status: Status, address: str, *, width: int = UNKNOWN_WIDTH) -> FactPage:
    """Return the page. address: the options by which our other commands find the job. width: of drawings in cells; 0: none."""
    title = f"{'drill of ' * status.drill}job {status.job} on {status.node}: {status.state_text}"
    facts = [
        *_first_incident(status),
        *_hang(status, address),
        *_missing(status),
        *_progress(status, width),
        *([Fact("loss", _loss(status.loss, width))] if status.loss is not None else []),
        *(Fact(MEMORY, forecast.text, Tone.WARNING) for forecast in status.forecasts),
        *(Fact(wording.STRANGE, text, Tone.WARNING) for text in status.warnings),
        *([Fact("numbers", status.numbers, Tone.WARNING)] if status.numbers else []),
        *step_facts(status.step_shares),
        *_left_out(status),
        *_checkpoints(status),
        Fact("restarts", _restarts(status)),
        *_ranks(status, address),
        *_node(status),
        *([Fact("fast restart", status.standby.text)] if status.standby is not None else []),
        *([Fact("start", _start(status.start))] if status.start is not None else []),
        *incident_facts(status),
        *_alerts(status, address),
        *([Fact("since", _since(status))] if status.run else []),
        Fact("supervise", _supervise(status), Tone.BAD if status.died else Tone.PLAIN),
        Fact("files", status.state_dir, copied=True),
        *([Fact("look", f"supervise why {address}", copied=True)] if status.incidents else []),
    ]
    tone = _TONES.get(status.state, Tone.WARNING)
    return FactPage(title, tuple(facts), Tone.WARNING if tone is Tone.GOOD and status.incident is not None else tone)


def incident_facts(status: Status) -> list[Fact]:
    """Return how many incidents there were, and how the last one ended; one that is not over is at the head of the page."""
    last = status.last_incident
    if last is None:
        return [Fact("incidents", f"none in this run, {status.incidents} before" if status.incidents else "none")]
    if _is_first(status):
        return [Fact("incidents", str(status.incidents))]
    outcome = last.outcome.replace("_", " ")
    facts = [Fact("incidents", f"{status.incidents}, the last is incident {last.number} at {clock_text(last.opened)}: {outcome}")]
    return facts + [replace(fact, tone=Tone.FAINT) for fact in (*_incident(last, last.what), Fact("done", last.done)) if fact.text]


def _is_first(status: Status) -> bool:
    """Whether the last incident is what a person has to know: it is open, or it ended the run."""
    last = status.last_incident
    return last is not None and last.outcome != "resolved" and (status.runs or status.state is not StateWord.DONE)


def _first_incident(status: Status) -> list[Fact]:
    last = status.last_incident
    if last is None or not _is_first(status):
        return []
    facts = _incident(last, f"incident {last.number} at {clock_text(last.opened)}: {last.what}")
    facts += [Fact("done", last.done, Tone.STRONG)] if last.done else []
    return facts + ([Fact("do", last.do)] if last.do else [])


def _incident(incident: IncidentStatus, sentence: str) -> list[Fact]:
    return [Fact("what", sentence, Tone.BAD), *([Fact("where", incident.where)] if incident.where else [])]


def _hang(status: Status, address: str) -> list[Fact]:
    """Return that the ranks stand still, where, what a person does, and where their stacks are."""
    hang = status.hang
    if hang is None:
        return []
    then = "" if status.runs else " when the run ended"
    facts = [Fact("what", f"no progress for {span_text(hang.still_s)}{then}: {hang.text}", Tone.BAD)]
    facts += [Fact("where", hang.where)] if hang.where else []
    facts += [Fact("" if hang.where else "where", hang.reason, Tone.STRONG)] if hang.reason else []
    if status.runs:
        facts += [Fact("done", hang.done)] if hang.done else []
        facts.append(Fact("do", f"supervise stop {address}", Tone.WARNING, copied=True))
        facts.append(Fact("", "prints the command that starts it again"))
    return [*facts, Fact("stacks", str(identity.look_path(Path(status.state_dir), status.attempt)), copied=True)]


def _missing(status: Status) -> list[Fact]:
    """Return what the attempt waits for, where fewer nodes are there than it needs."""
    if status.waits is None:
        return []
    until = clock_text(status.waits.until)
    return [Fact("waits", f"for {status.waits.nodes} more node(s), until {until}, then it stops", Tone.WARNING)]


def _progress(status: Status, width: int) -> list[Fact]:
    """Return how far the training is, with a bar where the total is known; then how it goes."""
    if not status.attempt:
        return [Fact("progress", "no attempt yet", Tone.STRONG)]
    is_new = status.step is None and status.state in {StateWord.STARTING, StateWord.RESTARTING}
    parts, bar = ["no step yet" if is_new else wording.step_text(status.step, relative=status.step_relative)], ""
    if status.total_steps and status.step is not None:
        done = min(1.0, status.step / status.total_steps)
        drawn = f"{_bar(done, 24 if width >= 100 else 10)} " if width else ""  # noqa: PLR2004  where the line has room
        bar = f"{drawn}{100 * done:.0f} %, "
        parts[0] += f" of {status.total_steps}"
    if status.runs and status.steps_per_s is not None:
        parts.append(wording.pace_text(status.steps_per_s) if status.steps_per_s else "0 steps/s")
    if status.runs and status.eta_s is not None:
        parts.append(f"about {span_text(status.eta_s)} left")
    began = f", since {clock_text(status.attempt_since)}" if status.attempt_since and status.runs else ""
    more = [f"attempt {status.attempt}{began}", *([f"phase {status.phase}"] if status.phase != "unknown" else [])]
    if status.last_step_age_s is not None:
        more.append(f"last step {span_text(status.last_step_age_s)} ago")
    if status.total_from is not None and status.total_steps:
        more.append(f"total {status.total_from}")
    return [Fact("progress", bar + ", ".join(parts), Tone.STRONG), Fact("", ", ".join(more))]


def _bar(done: float, cells: int) -> str:
    full = int(done * cells)
    return _FULL * full + _EMPTY * (cells - full)


def _loss(curve: LossCurve, width: int) -> str:
    """Return the first and the last loss, which way it went, and the curve; a screen reader has all of it in words."""
    first, last = curve.values[0], curve.values[-1]
    if curve.first_step is not None and curve.first_step == curve.last_step:
        return f"{last:.4g} at step {curve.last_step}"  # several attempts came to it
    change = "falls" if last < first else "rises" if last > first else "stays"
    steps = f" in steps {curve.first_step} to {curve.last_step}" if curve.first_step is not None and curve.last_step is not None else ""
    drawn = f"{_sparkline(curve.values, min(60, max(10, width - 60)))} " if width else ""
    return f"{drawn}{change} from {first:.4g} to {last:.4g}{steps}"


def _sparkline(values: Sequence[float], cells: int) -> str:
    """Return the values in so many cells at most, each the mean of its share."""
    count = min(cells, len(values))
    shares = [values[len(values) * at // count : len(values) * (at + 1) // count] for at in range(count)]
    means = [sum(share) / len(share) for share in shares]
    low, span = min(means), (max(means) - min(means)) or 1.0
    return "".join(_BLOCKS[int((mean - low) / span * (len(_BLOCKS) - 1))] for mean in means)


def _checkpoints(status: Status) -> list[Fact]:
    saved, verified = status.saved, status.verified
    facts = [Fact("checkpoint", _stored(verified, "verified") if verified is not None else "none was verified in this run")]
    if saved is not None and (verified is None or (saved.path != verified.path and saved.age_s < verified.age_s)):
        facts.append(Fact("saved", f"{_stored(saved, '')} (not verified yet)"))
    facts += [Fact("mirrored", _stored(status.mirrored, ""))] if status.mirrored is not None else []
    waiting = f"{status.waiting_uploads} {'waits' if status.waiting_uploads == 1 else 'wait'} to be sent" if status.waiting_uploads else ""
    facts += [Fact("saves", "; ".join(filter(None, (status.saves, waiting))))] if status.saves or waiting else []
    return facts + ([Fact("mirror", f"before the first attempt: {status.restored}")] if status.restored else [])


def _stored(checkpoint: StoredCheckpoint, how: str) -> str:
    step = wording.step_text(checkpoint.step) if checkpoint.step is not None else "step unknown"
    place = f" in {checkpoint.mirror}" if checkpoint.mirror else ""
    return f"{step}, {how + ' ' if how else ''}{span_text(checkpoint.age_s)} ago{place}: {checkpoint.path}"


def _restarts(status: Status) -> str:
    if status.restarts_left is None:
        return str(status.restarts)
    if status.waits is not None:
        return f"{status.restarts} used; the next one waits for the nodes"
    left = status.restarts_left
    then = f"after {left} more restart{'s' * (left > 1)} without progress" if left else "at the next failure"
    return f"{status.restarts} used; it stops {then}"


def _left_out(status: Status) -> list[Fact]:
    count = status.left_out
    text = f"{count} batch{'es' * (count > 1)} on all ranks, by worker.agree"
    return [Fact("left out", text, Tone.WARNING)] if count else []


def _ranks(status: Status, address: str) -> list[Fact]:
    """Return how many ranks and nodes there are, and which are behind; the table below the page has each."""
    ranks, facts = status.ranks, []
    if not ranks:
        facts += [Fact("ranks", "none runs")] if status.runs else []
    else:
        count = f"{len(ranks)} of {status.world_size} on this node" if (status.world_size or 0) > len(ranks) else f"{len(ranks)}"
        behind = sum(bool(rank.lag and rank.lag > 1) for rank in ranks)
        memory = [rank.memory_bytes for rank in ranks if rank.memory_bytes is not None]
        parts = [count, f"{behind} behind" if behind else "", f"{bytes_text(sum(memory))} of memory together" if memory else ""]
        facts.append(Fact("ranks", ", ".join(filter(None, parts)), Tone.WARNING if behind else Tone.PLAIN))
    if len(status.nodes) > 1:
        facts.append(Fact("nodes", f"{len(status.nodes)}; supervise status --all-nodes {address}"))
    return facts


def rank_table(status: Status) -> Table:
    """Return the ranks of this node: those that do the same in one row, the largest group first; those that differ below it."""
    groups = rank_groups(status.ranks, MOST_SINGLE)
    more = sum(map(len, groups[MOST_GROUPS:]))
    has_gpu = any(rank.gpu_reserved_bytes is not None for rank in status.ranks)
    rows = [_rank_row(group, has_gpu=has_gpu) for group in groups[:MOST_GROUPS]]
    rows += [(f"{more} more", "", "", "", "", *([""] * has_gpu), "", "each does something else")] if more else []
    columns = (
        *(Column(""), Column("pid", right=True), Column("step", right=True), Column("behind", right=True)),
        *(Column("phase"), Column("memory"), *([Column("GPU memory")] if has_gpu else []), Column("waits for")),
    )
    return Table(columns, tuple(rows), f"ranks of {status.node}")


def _rank_row(group: Sequence[RankStatus], *, has_gpu: bool) -> tuple[Cell | str, ...]:
    first = group[0]
    steps = sorted({rank.step for rank in group if rank.step is not None})
    lag = first.lag if first.lag is not None and first.lag > 1 else 0
    tone = Tone.WARNING if lag or first.waits else Tone.PLAIN
    long_s = max((rank.phase_s or 0.0 for rank in group), default=0.0)
    return (
        Cell(f"{'ranks' if len(group) > 1 else 'rank'} {number_list(rank.rank for rank in group)}", tone),
        str(first.pid) if len(group) == 1 else "",
        "-".join(map(str, dict.fromkeys((steps[0], steps[-1])))) if steps else "",
        Cell(str(lag or ""), tone),
        first.phase + (f", {span_text(long_s)}" if first.phase not in {"train", "unknown"} and long_s >= 1 else ""),
        _amounts([rank.memory_bytes for rank in group if rank.memory_bytes is not None]),
        *([_gpu_amounts(group)] if has_gpu else []),
        Cell(first.waits or "", tone),
    )


def _gpu_amounts(group: Sequence[RankStatus]) -> str:
    """Return what torch reserved of the ranks' GPUs: `71.2 GiB of 79.1 GiB`."""
    reserved = [rank.gpu_reserved_bytes for rank in group if rank.gpu_reserved_bytes is not None]
    limits = {rank.gpu_limit_bytes for rank in group if rank.gpu_limit_bytes}
    return _amounts(reserved) + (f" of {bytes_text(min(limits))}" if reserved and len(limits) == 1 else "")


def _amounts(counts: Sequence[int]) -> str:
    """Return the least and the most of some amounts of bytes: `2.0 GiB`, `20.0-22.0 GiB`, `900 MiB-1.1 GiB`."""
    if not counts:
        return ""
    low, high = bytes_text(min(counts)), bytes_text(max(counts))
    number, _, unit = low.partition(" ")
    return high if low == high else f"{number}-{high}" if high.endswith(unit) else f"{low}-{high}"


def gpu_table(status: Status) -> Table:
    """Return the GPUs with what NVML answered; no row where it was not asked."""
    live = any(gpu.memory_bytes is not None or gpu.temperature_c is not None for gpu in status.gpus)
    numbers = (Column(name, right=True) for name in ("temperature", "busy", "power", "clock"))
    columns = (Column(""), Column("memory"), *numbers, Column("out of use"))
    return Table(columns, tuple(_gpu_row(gpu) for gpu in status.gpus) if live else (), f"GPUs of {status.node}")


def _gpu_row(gpu: GpuStatus) -> tuple[Cell | str, ...]:
    used, total = gpu.memory_used_bytes, gpu.memory_bytes
    memory = f"{bytes_text(used)} of {bytes_text(total)} ({100 * used / total:.0f} %)" if used is not None and total else ""
    temperature = "" if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} °C"
    busy = "" if gpu.busy_percent is None else f"{gpu.busy_percent:.0f} %"
    power = "" if gpu.power_w is None else f"{gpu.power_w:.0f} W"
    clock = "" if gpu.clock_mhz is None else f"{'slow: ' * gpu.slow}{gpu.clock_mhz:.0f} MHz"
    shown = Cell(clock, Tone.WARNING if gpu.slow else Tone.PLAIN)
    return f"GPU {gpu.index}", memory, temperature, busy, power, shown, Cell(gpu.quarantined or "", Tone.WARNING)


def _node(status: Status) -> list[Fact]:
    """Return the GPUs that the job may use, and what the last examination of this node found."""
    facts: list[Fact] = []
    if status.gpus:
        out = [f"GPU {gpu.index} is out of use: {gpu.quarantined}" for gpu in status.gpus if gpu.quarantined]
        used = number_list(gpu.index for gpu in status.gpus if not gpu.quarantined)
        facts.append(Fact("GPUs", "; ".join([used or "none in use", *out]), Tone.WARNING if out else Tone.PLAIN))
    if status.examined is not None:
        bad = [finding for finding in status.health if finding.result != "ok"]
        text = "; ".join(map(_finding, bad)) or "nothing wrong was found"
        facts.append(Fact("health", f"{text} (examined at {clock_text(status.examined)})", Tone.WARNING if bad else Tone.PLAIN))
    return facts


def _finding(finding: Finding) -> str:
    """Return a finding as a sentence: its subject appears once."""
    subject = finding.subject.removeprefix("path:")
    return f"{finding.result}: {finding.reason if subject in finding.reason else f'{subject}: {finding.reason}'}"


def number_list(numbers: Iterable[int]) -> str:
    """Return numbers as `0-3, 5`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _start(start: StartTimes) -> str:
    """Return how long the newest start took, and its two longest parts; `report` has all."""
    longest = sorted(start.parts.items(), key=lambda row: -row[1])[:2]
    parts = ", ".join(f"{span_text(took_s)} {wording.START_PARTS.get(name, name)}" for name, took_s in longest)
    since = {"launch": "the launch", "failure": "the failure"}.get(start.after, "nodes asked to join")
    until = "first step" if start.trained else "no step, though"
    return f"attempt {start.attempt}: {until} {span_text(start.total_s)} after {since}" + (f" (most: {parts})" if parts else "")


def _since(status: Status) -> str:
    if status.since is None:
        return f"run {status.run}"
    lasted = span_text((status.until or status.now) - status.since)
    return f"{zoned_text(status.since)} ({lasted}{' until it ended' if status.until else ''}), run {status.run}"


def _supervise(status: Status) -> str:
    alive = status.supervisor.alive
    if not status.run:  # a start that the disk refused, or whose first records are lost
        return {True: "alive", False: "does not run; no run is recorded", None: "cannot be seen from here"}[alive]
    end = "ended" if status.ended else "died, and could not report it"
    return f"pid {status.supervisor.pid}, {({True: 'alive', False: end, None: 'cannot be seen from here'})[alive]}"


def _alerts(status: Status, address: str) -> list[Fact]:
    """Return the faults of this run's alerts; on request, a line for each alert of the job."""
    if status.alert_list is UNSET:
        return [Fact("alerts", f"{status.alerts}; supervise status -v {address}", Tone.WARNING)] if status.alerts else []
    alerts, dropped = status.alert_list, status.alerts_dropped if status.alerts_dropped is not UNSET else {}
    facts = []
    if len(alerts) > _MOST_ALERTS:
        facts.append(Fact("", f"{len(alerts) - _MOST_ALERTS} older ones: --json lists all"))
    facts += [Fact("", _alert(alert), Tone.WARNING if alert.state == "refused" else Tone.PLAIN) for alert in alerts[-_MOST_ALERTS:]]
    facts += [Fact("", f"{number} for {name} were dropped: too many waited", Tone.WARNING) for name, number in dropped.items()]
    facts = facts or [Fact("", "none so far; `supervise alerts test` sends one")]
    return [replace(facts[0], label="alerts"), *facts[1:]]


def _alert(alert: ListedAlert) -> str:
    answer = f" ({alert.answer})" if alert.answer else ""
    return f"{second_text(alert.t)} {alert.sink} {alert.state}{answer}: {alert.title}"
