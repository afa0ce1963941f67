"""The tables of the documentation that are made from the rows in the code. `page_text` puts them into their pages for the site.

python bench/reference.py PAGE     # print a page, such as exit-codes.md, with its tables
"""

from __future__ import annotations

import json
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import classification
import click
import faults
import fields
import programs
import stages
from man_page import exit_codes
from page_tables import filled, find_page

import checkpointing
from checkpointing import formats, lineage, markers, rejections
from checkpointing.manifest import documents
from checkpointing.retention import aside, copies, prune
from health import registry
from health.checks.node_environments import MUST_AGREE
from health.kernellog.model import LogFinding
from supervisor import worker
from supervisor.alerts.model import EVENTS, AlertEvent
from supervisor.alerts.text import document
from supervisor.checkpoints.discovery import record
from supervisor.checkpoints.mirror import mirrored, waiting
from supervisor.checkpoints.origin import baseline
from supervisor.checkpoints.recording import meeting
from supervisor.classify.losses import rules
from supervisor.classify.source.findings import RULES
from supervisor.cli.checkpoints.facts import CheckpointFacts, CopiedTo, MirroredTo, RejectedAs, VerifiedAs
from supervisor.cli.classify import rendering
from supervisor.cli.commands import COMMANDS, HIDDEN, load_command
from supervisor.config import loss_rules as own_loss_rules
from supervisor.config.alert_settings import SINK_ROWS
from supervisor.config.loss_settings import RULE_ROWS
from supervisor.config.recover_settings import RECOVER_ROWS
from supervisor.config.settings import ROWS
from supervisor.core.failure.rank_endings import KINDS
from supervisor.core.model import Finding, RankMemory
from supervisor.core.setting_columns import MOST, MOST_SECONDS
from supervisor.core.state import Stage
from supervisor.core.step_shares import StepShares
from supervisor.core.training_events import MemoryForecast
from supervisor.journal import records
from supervisor.journal.records import StartTimes
from supervisor.report import start_times, wording
from supervisor.report.ledger.document import run_document
from supervisor.report.ledger.figures import Figures, IncidentCost, JobReport, NodeShare, SavingAdvice, SlowSpan
from supervisor.report.log_events import LogEvent
from supervisor.report.metrics.table import Metric
from supervisor.report.nodes_page import JobNodesStatus, NodeStatus
from supervisor.report.step_section import Scaling
from supervisor.strategies import LADDER_STEPS, LADDERS, network
from supervisor.view import status
from supervisor.view.spans import TimeState
from supervisor.view.status import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import FunctionType, ModuleType

    from supervisor.core.setting_columns import SettingRow

#: The page, or its part, that says more of a command.
MORE = {
    "plan": "knobs.md",
    "doctor": "health.md",
    "classify": "classification.md",
    "checkpoints verify": "checkpoint-verdicts.md#verdicts-on-the-command-line",
    "drill": "drills.md",
    "status": "status-why-logs.md#supervise-status--v---watch---json",
    "why": "status-why-logs.md#supervise-why-incident---all---json",
    "report": "report.md#supervise-report---all---html-file---json",
    "ui": "ui.md",
    "ls": "status-why-logs.md#supervise-ls---json",
    "logs": "status-why-logs.md#supervise-logs--f---rank-n--n-n---since-time---first-failure---attempt-n---run-run",
    "stop": "status-why-logs.md#supervise-stop---hurry---wait-s-s",
    "bundle": "bundle.md",
    "nodes gpus": "#gpus-out-of-use",
    "nodes ls": "nodes.md",
    "print nccl": "clusters.md#files-that-fit-a-node",
    "print accelerate": "clusters.md#files-that-fit-a-node",
    "print torchrun": "clusters.md#files-that-fit-a-node",
    "print slurm": "slurm.md",
    "print kubernetes": "kubernetes.md",
    "print systemd": "systemd.md",
    "slurm exit-code": "slurm.md#what-is-in-it-and-why",
    "slurm requeue": "nodes.md#on-slurm",
}


#: The page, or its part, that says more of an alert.
MORE_OF_ALERTS = {
    "foreign_checkpoint": "own-checkpoints.md#whose-checkpoint-is-loaded",
    "unkilled": "guardian.md#what-kill-does-not-end",
    "mirror_failing": "checkpoints.md#the-mirror",
    "not_finite": "checkpoint-verdicts.md#numbers-that-are-not-finite",
    "heartbeat_failing": "alerts.md#the-dead-mans-switch",
    "hang": "hangs.md",
    "node_health": "health.md#while-a-job-is-supervised",
    "strange_loss": "loss-and-pace.md",
    "slow_training": "loss-and-pace.md#the-pace",
    "straggler": "loss-and-pace.md#slow-nodes",
    "memory_forecast": "memory.md#the-forecast",
    "unit_failed": "systemd.md",
}


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


#: Every setting: those of the tree, and those of the lists and of the user's own rows.
LISTED = (*ROWS, *SINK_ROWS, *RULE_ROWS, *RECOVER_ROWS)


def settings(section: str) -> str:
    """Return the settings of one section."""
    rows = [row for row in LISTED if row.key.rpartition(".")[0] == section]
    return _table(
        ("key", "default", "variable, flag", "meaning"), [(f"`{row.key}`", _default(row), _names(row), _meaning(row)) for row in rows]
    )


def _default(row: SettingRow) -> str:
    text = row.default if isinstance(row.default, str) else json.dumps(row.default)
    return f"`{text}`" if text else ""


def _names(row: SettingRow) -> str:
    flags = [f"`{flag}`" for flag in row.flag.split("/") if flag]
    variables = [f"`{row.env}`"] if row.env else []
    return ", ".join([*variables, *flags]) + (" (repeatable)" if flags and row.kind is tuple else "")


def _meaning(row: SettingRow) -> str:
    parts = [row.help, row.more]
    if row.choices:
        parts.append(f"One of {', '.join(f'`{choice}`' for choice in row.choices)}.")
    bounds = [f"at least {row.minimum:g}"] if row.minimum else []
    if row.maximum not in {None, MOST, MOST_SECONDS}:
        bounds.append(f"at most {row.maximum:.0f}")
    if bounds:
        parts.append(f"{' and '.join(bounds).capitalize()}.")
    return " ".join(filter(None, parts)).replace("|", r"\|")


def _with_name(row: tuple[str, str, str, str]) -> tuple[str, str, str, str]:
    code, name, meaning, remedy = row
    return code, f"`{name}`" if name else "", meaning, remedy


def log_events() -> str:
    """Return the events of supervise.log."""
    rows = [
        (
            f"`{event}`",
            event.level + (f", info if {event.info_if}" if event.info_if else ""),
            ", ".join(f"`{name}`" for name in event.fields),
            event.when,
        )
        for event in LogEvent
    ]
    return _table(("event", "level", "fields", "logged when"), rows)


def script_rules() -> str:
    """Return the rules that read a training script: what each finds, what to write, and which card shows it."""
    rows = [(f"`{rule.name}`", rule.sees, f"`{rule.write}`", ", ".join(rule.cards) or "none") for rule in RULES]
    return _table(("rule", "finds", "says what to write", "card"), rows)


def commands() -> str:
    """Return the commands, with their own options and arguments; those of settings are on another page."""
    rows = []
    for path in COMMANDS:
        command = load_command(path)
        if isinstance(command, click.Group) or path in HIDDEN:
            continue
        more = f" [More]({MORE[path]})." if path in MORE else ""
        text = " ".join((command.help or "").split()) + more
        rows.append((f"`{' '.join(['supervise', path, *_words(command)])}`".replace("|", r"\|"), text))
    return _table(("command", "what it does"), rows)


def _words(command: click.Command) -> Iterator[str]:
    own = [param for param in command.params if "__" not in (param.name or "") and param.name not in {"config", "assignments", "takeover"}]
    for param in own:
        if isinstance(param, click.Option):
            yield f"[{param.opts[0]}]" if param.is_flag else f"[{param.opts[0]} {param.metavar or 'TEXT'}]"
    yield from (str(param.metavar) for param in own if isinstance(param, click.Argument))
    if command.options_metavar and "CMD" in command.options_metavar:
        yield "-- CMD..."


def ladder_steps() -> str:
    """Return what each step does, in the order in which the ladders name them."""
    names = dict.fromkeys((*(name for ladder in LADDERS.values() for name in ladder), *LADDER_STEPS))
    rows = [(f"`{name}`", LADDER_STEPS[name].summary, "yes" if LADDER_STEPS[name].changes_job else "") for name in names]
    return _table(("step", "what it does", "changes the job"), rows)


def networks() -> str:
    """Return the steps that act only if the user names them."""
    rows = [(f"`{name}`", when, effect, f"`{network.enabling(name)}`") for name, (when, effect) in network.OPTIONAL.items()]
    return _table(("step", "when it acts", "what it sets", "permitted by"), rows)


def endings() -> str:
    """Return the action about each way in which the ranks of an attempt may leave."""
    return _table(("how the ranks left", "what is done"), KINDS.values())


def variables_that_agree() -> str:
    """Return the table of the variables that must be the same on all nodes."""
    rows: dict[tuple[str, str], list[str]] = {}
    for row in MUST_AGREE:
        rows.setdefault((row.effect, row.source), []).append(f"`{row.name}`")
    cells = [(" ".join(names), effect, source) for (effect, source), names in rows.items()]
    return _table(("variable", "what a difference does", "how that is known"), cells)


def checks() -> str:
    """Return the table of the checks of a node."""
    rows = [(f"`{check.name}`", check.reads, check.degraded, check.failed, f"`{check.subject}`") for check in registry.checks().values()]
    return _table(("check", "reads", "degraded where", "failed where", "subject"), rows)


def loss_rules() -> str:
    """Return the loss rules that are always there."""
    rows = [(f"`{rule.id}`", f"`{rule.kind}`", rules.condition(rule), rule.note) for rule in own_loss_rules.packaged()]
    return _table(("rule", "kind", "reports", "note"), rows)


def metrics() -> str:
    """Return every metric."""
    rows = [(f"`{metric}`", metric.kind, ", ".join(f"`{name}`" for name in metric.labels), metric.text) for metric in Metric]
    return _table(("metric", "kind", "labels", "what it says"), rows)


def field_table(head: Sequence[str], *sources: type | FunctionType, **inner: type | FunctionType) -> str:
    """Return the table of what the comments in the source say of the entries of classes or functions (fields.py)."""
    return _table(head, [row for source in sources for row in fields.rows(source, **inner)])


def names(module: ModuleType, *listed: str) -> str:
    """Return what the docstrings of a library say of its names (fields.py)."""
    return "\n\n".join(fields.names(module, *listed))


def catalogue() -> str:
    """Return the tables of rows of the checkpoints' catalogue."""
    modules = (documents, copies, mirrored, aside, waiting, prune, rejections, lineage, record, baseline, meeting)
    return _table(("row", "key, and what it holds"), fields.tables_of_rows(*modules))


def alerts() -> str:
    """Return the table of the alerts."""
    when = fields.described(AlertEvent)
    rows = []
    for event, row in EVENTS.items():
        sentence = " ".join(filter(None, (row.sentence.format(subject="…", when="…", whose="A rank or node"), when.get(event))))
        page = f" [More]({MORE_OF_ALERTS[event]})." if event in MORE_OF_ALERTS else ""
        rows.append((f"`{event}`", f"`{row.severity}`", sentence + page, row.advice))
    return _table(("event", "severity", "what happened", "what you do"), rows)


def bodies() -> str:
    """Return the table of the bodies of the journal's records."""
    return _table(("kind", *_KEYS), [(f"`{name}`", *row) for name, kind in records.KINDS.items() for row in fields.rows(kind)])


def start_parts() -> str:
    """Return the table of the parts of a start."""
    shown = wording.START_PARTS
    rows = [
        (f"`{part}`" + (f", shown as {shown[part]}" if part in shown else ""), text) for part, text in fields.described(start_times).items()
    ]
    return _table(("part", "ends when"), rows)


def known_formats() -> str:
    """Return the table of the formats of checkpoints."""
    return _table(("format", "what it is, and what is checked"), fields.rows(formats))


def marks() -> str:
    """Return the table of the marks by which frameworks tell a save that has not ended."""
    forms = {
        markers.MarkerKind.NAME: "the name: `{saves}`",
        markers.MarkerKind.BESIDE: "a file beside it: `{form}`",
        markers.MarkerKind.TRACKER: "the tracker `{form}`, for `{saves}`",
    }
    rows = [
        (row.framework, forms[row.kind].format(form=row.form.replace("{}", "NAME"), saves=row.saves), row.source) for row in markers.MARKERS
    ]
    return _table(("framework", "mark", "source"), rows)


_KEYS, _MEMBERS = ("key", "what it says"), ("member", "meaning")
#: The tables of docs/reference/json.md.
JSON = {
    "status": partial(
        field_table,
        _KEYS,
        Status,
        ranks=status.RankStatus,
        supervisor=status.SupervisorStatus,
        loss=status.LossCurve,
        start=StartTimes,
        hang=status.HangStatus,
        forecasts=status.ForecastStatus,
        waits=status.WaitedNodes,
        standby=status.StandbyStatus,
        saved=status.StoredCheckpoint,
        gpus=status.GpuStatus,
        health=Finding,
        last_incident=status.IncidentStatus,
        step_shares=StepShares,
        alert_list=status.ListedAlert,
    ),
    "nodes": partial(field_table, _KEYS, JobNodesStatus, nodes=NodeStatus),
    "report": partial(
        field_table,
        _KEYS,
        JobReport,
        Figures,
        runs=run_document,
        incidents=IncidentCost,
        nodes=NodeShare,
        slow=SlowSpan,
        memory=RankMemory,
        forecasts=MemoryForecast,
        scaling=Scaling,
        step_shares=StepShares,
        advice=SavingAdvice,
    ),
    "classify": partial(field_table, _KEYS, rendering.as_dict, evidence=rendering.evidence_document),
}

#: The names of `checkpointing` and of `supervisor.worker`, in the order of their pages.
LIBRARY = (
    "save",
    "load_latest",
    "state",
    "apply",
    "UnevenSampler",
    "verify",
    "find",
    "newest",
    "latest",
    "Mirror",
    "Verdict",
    "CheckpointingError",
)
CALLS = (
    "heartbeat",
    "report",
    "phase",
    "should_save",
    "save_requested",
    "saved",
    "agree",
    "barrier",
    "batch_plan",
    "resume_from",
    "resume_step",
)


def _comparison() -> ModuleType:
    """Return the module that compares the policies of a fleet. It is imported late: a checkout alone has it, and few pages need it."""
    sys.path.append(str(Path(__file__).parents[1]))
    try:
        return import_module("tests.simulation.fleet.comparison")
    finally:
        sys.path.pop()


def fleet_faults() -> str:
    """Return how each published fault is played."""
    return str(_comparison().faults_table())


def fleet_times() -> str:
    """Return the times that the simulation of a fleet assumes."""
    return str(_comparison().assumptions_table())


#: Each table by its page and its name.
TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "settings.md": {section: partial(settings, section) for section in dict.fromkeys(row.key.rpartition(".")[0] for row in LISTED)},
    "exit-codes.md": {"exit codes": lambda: _table(("code", "name", "meaning", "what to do"), map(_with_name, exit_codes()))},
    "json.md": JSON,
    "library-checkpointing.md": {"names": partial(names, checkpointing, *LIBRARY)},
    "library-worker.md": {"names": partial(names, worker, *CALLS), "plan": partial(field_table, ("field", "what it is"), worker.BatchPlan)},
    "log-events.md": {"log events": log_events},
    "metrics.md": {"metrics": metrics},
    "fleet.md": {"faults": fleet_faults, "times": fleet_times},
    "hangs.md": {"script rules": script_rules},
    "loss-and-pace.md": {"loss rules": loss_rules},
    "commands.md": {"commands": commands},
    "health.md": {"checks": checks},
    "node-health.md": {"agree": variables_that_agree},
    "recovery.md": {"endings": endings, "ladder_steps": ladder_steps, "networks": networks},
    "causes.md": {"causes": classification.of_causes},
    "classification-scores.md": {
        "reliability": classification.of_reliability,
        **{corpus: partial(classification.of_corpus, corpus) for corpus in ("produced", "written", "public")},
    },
    "known-programs.md": {
        "programs": programs.knob_table,
        "layouts": programs.layout_table,
        "resume": programs.resume_table,
        "faults": faults.fault_table,
    },
    "alert-format.md": {"events": alerts, "document": partial(field_table, ("field", "meaning"), document)},
    "checkpoint-verdicts.md": {"formats": known_formats, "marks": marks},
    "checkpoint-format.md": {
        "manifest": partial(field_table, _MEMBERS, documents.encode),
        "file": partial(field_table, _MEMBERS, documents.file_row),
        "catalogue": catalogue,
        "ls": partial(
            field_table, _MEMBERS, CheckpointFacts, verified=VerifiedAs, copied=CopiedTo, mirrored=MirroredTo, rejected=RejectedAs
        ),
        "moved": partial(field_table, _MEMBERS, aside.AsideChange),
    },
    "journal-format.md": {"bodies": bodies},
    "pages.md": {"states": partial(field_table, ("state", "what it is"), status.StateWord), "parts": start_parts},
    "time-ledger.md": {"states": partial(field_table, ("state", "the time in which"), TimeState)},
    "signatures.md": {"launchers": classification.of_launchers, "signatures": classification.of_signatures},
    "kernel-log.md": {
        "kernel messages": classification.of_kernel_messages,
        "xids": classification.of_xids,
        "keys": partial(field_table, _KEYS, LogFinding.to_json),
    },
    "stages.md": {
        "stages": partial(field_table, ("stage", "what happens"), Stage),
        "drawing": stages.drawing,
        "events": stages.events,
        "timers": stages.timers,
    },
    "preemption.md": {"signals": stages.signals, "answers": stages.answers},
}


def page_text(path: Path) -> str:
    """Return the text of a page with its tables. Exits where one has no place, or a place has no table."""
    return filled(path, path.read_text(encoding="utf-8"), TABLES.get(path.name, {}))


if __name__ == "__main__":
    print(page_text(find_page(sys.argv[1])))
