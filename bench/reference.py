"""Write the tables of the reference pages, and the man page, from the tables in the code.

    python bench/reference.py             # write them
    python bench/reference.py --check     # exit status 1, naming each page that is not up to date

A table stands between the markers of its name. The pages on classification, causes, signatures and the kernel's log are written by
bench/classification.py, that on programs by bench/programs.py and bench/faults.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from man_page import man_page
from page_tables import find_page, replace_table

from health.checks.node_environments import MUST_AGREE
from supervisor.classify.losses import rules
from supervisor.cli.commands import COMMANDS, HIDDEN, load_command
from supervisor.config import loss_rules as own_loss_rules
from supervisor.config.alert_settings import SINK_ROWS
from supervisor.config.classify_settings import SIGNATURE_ROWS
from supervisor.config.loss_settings import RULE_ROWS
from supervisor.config.recover_settings import RECOVER_ROWS
from supervisor.config.settings import ROWS
from supervisor.core.ending import KINDS
from supervisor.core.setting_columns import MOST, MOST_SECONDS
from supervisor.errors import ExitCode
from supervisor.report.log_events import LogEvent
from supervisor.report.metrics.table import Metric
from supervisor.strategies import GUARDS, LADDERS, RUNGS, network

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from supervisor.core.model import Cause
    from supervisor.core.setting_columns import SettingRow

ROOT = Path(__file__).parents[1]
#: The page, or its part, that says more of a command.
MORE = {
    "plan": "knobs.md",
    "doctor": "health.md",
    "classify": "classification.md",
    "checkpoints verify": "checkpoints.md#verdicts-on-the-command-line",
    "drill": "drills.md",
    "status": "status-why-logs.md#supervise-status---watch---json",
    "why": "status-why-logs.md#supervise-why-incident---all---json",
    "report": "report.md#supervise-report---all---html-file---json",
    "ui": "ui.md",
    "ls": "status-why-logs.md#supervise-ls---json",
    "logs": "status-why-logs.md#supervise-logs--f---rank-n--n-n---since-time---first-failure---attempt-n---run-run",
    "stop": "status-why-logs.md#supervise-stop---hurry---wait-s-s",
    "bundle": "bundle.md",
    "gpus ls": "#gpus-out-of-use",
    "nodes ls": "nodes.md",
    "slurm print": "slurm.md",
    "slurm exit-code": "slurm.md#what-is-in-it-and-why",
    "slurm requeue": "nodes.md#on-slurm",
    "kubernetes print": "kubernetes.md",
}


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


#: Every setting: those of the tree, and those of the lists and of the user's own rows.
LISTED = (*ROWS, *SINK_ROWS, *RULE_ROWS, *SIGNATURE_ROWS, *RECOVER_ROWS)


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


def exit_codes() -> list[tuple[str, str, str, str]]:
    """Return the exit codes of ours, and those of the job in their places: code, name, meaning, remedy."""
    rows = {code.value: (str(code.value), code.name, code.meaning, code.remedy) for code in ExitCode}
    rows[1] = (
        "1\u201363",
        "",
        "the first failed rank's own code; its codes from 64 on come out as 1, and the card has the true one",
        "see `supervise why`",
    )
    rows[128] = (
        "128+n",
        "",
        ("ended by signal n: a rank that was given up, or the stop that we were asked for. 130 INT (also if a person interrupted "
        "all ranks themselves, not one of several; never requeued), 143 TERM, 129 HUP; after TERM and HUP 75 "
        "instead if the ranks saved ([preemption](preemption.md))"),
        "see `supervise why`",
    )  # fmt: skip
    return [rows[code] for code in sorted(rows)]


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


def rungs() -> str:
    """Return what each rung does."""
    rows = [(f"`{rung.name}`", rung.summary, "yes" if rung.changes_job else "") for rung in RUNGS.values()]
    return _table(("rung", "what it does", "changes the job"), rows)


def networks() -> str:
    """Return the rungs that act only if the user names them."""
    rows = [(f"`{name}`", when, what, f"`{network.enabling(name)}`") for name, (when, what) in network.OPTIONAL.items()]
    return _table(("rung", "when it acts", "what it sets", "permitted by"), rows)


def ladders() -> str:
    """Return the ladder of each cause; those that share one share a row. The guards, which all but one begin with, are left out."""
    causes: dict[tuple[str, ...], list[Cause]] = {}
    for cause, ladder in LADDERS.items():
        causes.setdefault(ladder, []).append(cause)
    rows = [
        (" ".join(f"`{cause}`" for cause in group), " · ".join(f"`{name}`" for name in ladder if name not in GUARDS))
        for ladder, group in causes.items()
    ]
    return _table(("cause", "ladder"), rows)


def endings() -> str:
    """Return what is done about each way in which the ranks of an attempt may leave."""
    return _table(("how the ranks left", "what is done"), KINDS.values())


def variables_that_agree() -> str:
    """Return the table of the variables that must be the same on all nodes."""
    rows: dict[tuple[str, str], list[str]] = {}
    for row in MUST_AGREE:
        rows.setdefault((row.effect, row.source), []).append(f"`{row.name}`")
    cells = [(" ".join(names), effect, source) for (effect, source), names in rows.items()]
    return _table(("variable", "what a difference does", "how that is known"), cells)


def loss_rules() -> str:
    """Return the loss rules that are always there."""
    rows = [(f"`{rule.id}`", f"`{rule.kind}`", rules.condition(rule), rule.note) for rule in own_loss_rules.packaged()]
    return _table(("rule", "kind", "reports", "note"), rows)


def metrics() -> str:
    """Return every metric."""
    rows = [(f"`{metric}`", metric.kind, ", ".join(f"`{name}`" for name in metric.labels), metric.text) for metric in Metric]
    return _table(("metric", "kind", "labels", "what it says"), rows)


def tables() -> dict[str, dict[str, str]]:
    """Return each table by its page and its name."""
    sections = dict.fromkeys(row.key.rpartition(".")[0] for row in LISTED)
    return {
        "settings.md": {section: settings(section) for section in sections},
        "exit-codes.md": {"exit codes": _table(("code", "name", "meaning", "what to do"), [_with_name(row) for row in exit_codes()])},
        "log-events.md": {"log events": log_events()},
        "metrics.md": {"metrics": metrics()},
        "loss-and-pace.md": {"loss rules": loss_rules()},
        "commands.md": {"commands": commands()},
        "health.md": {"agree": variables_that_agree()},
        "recovery.md": {"endings": endings(), "ladders": ladders(), "rungs": rungs(), "networks": networks()},
    }


def pages() -> Iterator[tuple[Path, str, str]]:
    """Yield each page: its path, its text now, and as it is to be."""
    for name, parts in tables().items():
        path = find_page(name)
        page = text = path.read_text(encoding="utf-8")
        for part, table in parts.items():
            text = replace_table(path, text, part, table)
        yield path, page, text
    path = find_page("commands.md").with_name("supervise.1")
    yield path, path.read_text(encoding="utf-8") if path.exists() else "", man_page(exit_codes())


def main() -> int:
    """Write the tables, or compare them; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a page is stale")
    args = parser.parse_args()
    stale = False
    for path, page, text in pages():
        if text == page:
            continue
        stale = True
        print(f"{'stale' if args.check else 'written'}: {path.relative_to(ROOT)}")
        if not args.check:
            path.write_text(text, encoding="utf-8")
    return int(args.check and stale)


if __name__ == "__main__":
    sys.exit(main())
