"""Whatever a person can set, type, read or get is in the documentation, and nothing that is not there."""

from __future__ import annotations

import ast
import json
import re
import runpy
import sys
from enum import Enum
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

import click
import pytest

from checkpointing.formats import FORMATS, TREE_FORMATS
from supervisor.alerts.model import AlertAction, AlertEvent, AlertSeverity
from supervisor.cli.main import root
from supervisor.config import signatures
from supervisor.config.alert_settings import SINK_ROWS, SINKS_KEY
from supervisor.config.loss_settings import RULE_ROWS, RULES_KEY
from supervisor.config.recover_settings import RECOVER_KEY, RECOVER_ROWS
from supervisor.config.settings import ROWS
from supervisor.core.model import Cause
from supervisor.errors import ExitCode
from supervisor.journal.records import KINDS
from supervisor.report.log_events import LogEvent
from supervisor.report.metrics.table import Metric
from supervisor.strategies import LADDER_STEPS
from tests.support.pages import DOCS, page_text, reference

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent.parent


def table(page: str) -> list[list[str]]:
    """Return the cells of all tables of a page, without their heads."""
    lines = page_text(page).splitlines()
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))] for line in lines if line.startswith("|")]
    rules = [number for number, row in enumerate(rows) if set("".join(row)) <= set("-: ")]
    return [row for number, row in enumerate(rows) if number not in rules and number + 1 not in rules]


def first_words(page: str) -> list[str]:
    return [row[0].strip("`") for row in table(page)]


def test_every_setting_is_documented_with_its_default_variable_and_flag_and_no_other() -> None:
    documented = {row[0].strip("`"): row for row in table("settings.md") if len(row) == 4}
    rows = (*ROWS, *SINK_ROWS, *RULE_ROWS, *RECOVER_ROWS)
    assert list(documented) == [row.key for row in rows]
    for row in rows:
        _, default, names, meaning = documented[row.key]
        written = row.default if isinstance(row.default, str) else json.dumps(row.default)
        assert default.strip("`") == written, row.key
        assert not row.env or f"`{row.env}`" in names, row.key
        for flag in filter(None, row.flag.split("/")):
            assert f"`{flag}`" in names, row.key
        assert len(re.findall(r"`--[\w-]+`", names)) == len(list(filter(None, row.flag.split("/")))), row.key
        for choice in row.choices:
            assert f"`{choice}`" in default + names + meaning, (row.key, choice)


def test_every_variable_that_the_ranks_are_given_is_documented() -> None:
    page = page_text("settings.md").partition("## What the ranks are given")[2]
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "supervisor").rglob("*.py")]
    given = {name for text in sources for name in re.findall(r"[\"](SUPERVISE_JOB_[A-Z_]*[A-Z])\b", text)}
    between_us = {"SUPERVISE_JOB_SHIM", "SUPERVISE_JOB_LINEBUF", "SUPERVISE_JOB_STANDBY"}  # gone before the script begins
    assert set(re.findall(r"SUPERVISE_JOB_\w+", page)) == given - between_us


def test_every_layout_of_a_checkpoint_is_documented() -> None:
    assert {*dict(FORMATS), *dict(TREE_FORMATS)} <= set(first_words("checkpoint-verdicts.md"))


def test_the_sections_of_the_settings_page_are_those_of_a_file() -> None:
    headings = re.findall(r"^## \[(.+)\]$", page_text("settings.md"), flags=re.MULTILINE)
    lists = [f"[{key}]" for key in (SINKS_KEY, RULES_KEY)]
    assert headings == [*dict.fromkeys(row.key.rpartition(".")[0] for row in ROWS), *lists, f"{RECOVER_KEY}.CAUSE"]


def test_every_exit_code_is_documented() -> None:
    documented = {row[0]: row[1].strip("`") for row in table("exit-codes.md")}
    assert {code: name for code, name in documented.items() if name} == {str(code.value): code.name for code in ExitCode}
    assert {code for code, name in documented.items() if not name} == {"1–63", "128+n"}  # noqa: RUF001  as it is written there


def test_every_metric_is_documented_with_its_kind_and_labels_and_no_other() -> None:
    documented = {row[0].strip("`"): (row[1], tuple(re.findall(r"`(\w+)`", row[2]))) for row in table("metrics.md")}
    assert documented == {metric.value: (metric.kind, metric.labels) for metric in Metric}


def test_every_log_event_is_documented_and_logged_somewhere() -> None:
    assert sorted(first_words("log-events.md")) == sorted(event.value for event in LogEvent)
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "supervisor").rglob("*.py") if path.name != "log_events.py")
    unused = [event for event in LogEvent if f"LogEvent.{event.name}" not in sources and f'"{event.value}"' not in sources]
    assert unused == []


def test_every_log_event_is_documented_with_its_level() -> None:
    documented = {row[0].strip("`"): row[1] for row in table("log-events.md")}
    assert {name: words.split(",")[0] for name, words in documented.items()} == {event.value: event.level for event in LogEvent}
    assert sorted(name for name, words in documented.items() if ", info " in words) == sorted(
        event.value for event in LogEvent if event.info_if
    )


def test_an_exit_code_is_called_reserved_exactly_as_long_as_nothing_ends_with_it() -> None:
    reserved = {int(row[0]) for row in table("exit-codes.md") if row[2].startswith("*reserved*")}
    used: set[int] = set()
    for path in (ROOT / "supervisor").rglob("*.py"):
        if path.name in {"errors.py", "identity.py", "xid.py"}:  # what they mean, what a start after them is, and other numbers
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and type(node.value) is int:
                used.add(node.value)
            elif isinstance(node, ast.Attribute) and node.attr in ExitCode.__members__:
                used.add(ExitCode[node.attr])
        if used.issuperset(ExitCode):
            break  # to parse every file takes seconds
    assert reserved == {code.value for code in ExitCode} - used


def test_every_alert_is_documented_with_its_severity_and_action() -> None:
    severities = {severity.value for severity in AlertSeverity}
    rows = [row for row in table("alert-format.md") if len(row) == 4 and row[1].strip("`") in severities]
    assert {row[0].strip("`"): row[1].strip("`") for row in rows} == {event.value: event.row.severity.value for event in AlertEvent}
    assert {event.row.severity for event in AlertEvent} == set(AlertSeverity)
    (actions,) = [row[1] for row in table("alert-format.md") if row[0] == "`action`"]
    assert set(re.findall(r"`(\w+)`", actions)) == {action.value for action in AlertAction}


def test_every_cause_is_documented_with_its_meaning_evidence_ladder_and_advice() -> None:
    rows = [row for row in table("causes.md") if len(row) == 5]
    documented = [cause for row in rows for cause in re.findall(r"`(\w+)`", row[0])]
    assert sorted(documented) == sorted(cause.value for cause in Cause)
    assert all(cell for row in rows for cell in row)


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_the_tables_of_a_page_have_their_places(page: Path) -> None:
    assert "<!-- table: " not in page_text(page.name)


def test_a_page_is_printed_with_its_tables_in_a_checkout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process: to import all that the tables are made from takes seconds."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.setattr(sys, "argv", ["bench/reference.py", "known-programs.md"])
    runpy.run_path(str(ROOT / "bench" / "reference.py"), run_name="__main__")
    assert capsys.readouterr().out.strip() == page_text("known-programs.md").strip()


def test_every_row_of_which_a_table_is_made_has_its_text() -> None:
    rows = {row.key: row.help for row in (*ROWS, *SINK_ROWS, *RULE_ROWS, *RECOVER_ROWS)}
    rows |= {event.value: event.when for event in LogEvent} | {metric.value: metric.text for metric in Metric}
    rows |= {code.name: code.meaning and code.remedy for code in ExitCode} | {
        name: ladder_step.summary for name, ladder_step in LADDER_STEPS.items()
    }
    rows |= {row.id: row.source for row in signatures.read()[0].rows}
    assert [name for name, text in rows.items() if not text.strip()] == []


def entries(source: type | FunctionType) -> set[str]:
    """Return what a table of this class or function must explain; of a function that is known to no more than its comments."""
    if isinstance(source, type) and issubclass(source, Enum):
        return {member.value for member in source}
    return set(getattr(source, "__struct_fields__", None) or getattr(source, "__dataclass_fields__", ()))


def test_every_field_of_which_a_table_is_made_says_what_it_is() -> None:
    tables = [table for tables in reference().TABLES.values() for table in tables.values()]
    listed = [table for table in tables if isinstance(table, partial) and table.func is reference().field_table]
    sources = {source for table in listed for source in (*table.args[1:], *table.keywords.values())} | {*KINDS.values()}
    assert len(sources) > 40
    untold = {source.__name__: entries(source) - {*reference().fields.described(source)} for source in sources}
    assert {name: fields for name, fields in untold.items() if fields - {"figures"}} == {}  # its own fields stand in its place


def test_every_ladder_step_is_documented() -> None:
    assert sorted(row[0].strip("`") for row in table("recovery.md") if len(row) == 3) == sorted(LADDER_STEPS)


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        yield from commands(child, f"{path} {name}")


COMMANDS = dict(commands(root, "supervise"))


def test_no_command_is_documented_that_is_not_there() -> None:
    documented = [match[0] for word in first_words("commands.md") if (match := re.match(r"supervise( [a-z]+(-[a-z]+)*)+", word))]
    assert sorted(documented) == sorted(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS)
def test_a_commands_own_options_and_arguments_are_documented(path: str) -> None:
    (line,) = [row[0] for row in table("commands.md") if row[0].startswith((f"`{path} ", f"`{path}`"))]
    settings = {row.key.replace(".", "__") for row in ROWS}
    for param in COMMANDS[path].params:
        if param.name in settings | {"config", "assignments", "takeover"}:
            continue
        names = [str(param.metavar).replace("|", r"\|")] if isinstance(param, click.Argument) else param.opts
        assert any(name in line for name in names), (path, param.name)


PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "systemd" / "README.md",
    *sorted(DOCS.rglob("*.md")),
]
#: What people read beside the pages: the messages in the code, and the files that they copy.
TEXTS = [
    *PAGES,
    *(DOCS / "operations").iterdir(),
    *(path for name in ("supervisor", "checkpointing", "health") for path in (ROOT / name).rglob("*.py")),
]
LINK = re.compile(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)")  # a page, "" for the same one, and a heading of it
LINKED = [str(page.relative_to(ROOT)) for page in PAGES if LINK.search(page.read_text(encoding="utf-8"))]


def anchors(page: Path) -> set[str]:
    """Return the names by which a link leads to the headings of a page, or to a row that was given one."""
    as_built = page_text(page.name) if page.is_relative_to(DOCS) else page.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", as_built, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings} | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("page", LINKED)
def test_links_lead_somewhere(page: str) -> None:
    there = ROOT / page
    text = page_text(there.name) if there.is_relative_to(DOCS) else there.read_text(encoding="utf-8")
    targets = [((there.parent / path).resolve() if path else there, heading) for path, heading in LINK.findall(text)]
    assert [str(path) for path, _ in targets if not path.is_file()] == []
    assert [(path.name, heading) for path, heading in targets if heading and heading not in anchors(path)] == []


def test_every_page_is_in_a_part_of_the_index() -> None:
    parts = set(re.findall(r"^(\w+)/\*$", page_text("index.md"), flags=re.MULTILINE))
    assert {str(page.relative_to(DOCS).parent) for page in DOCS.rglob("*.md")} == {*parts, "."}
    assert [page.name for page in DOCS.glob("*.md")] == ["index.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_of_ours_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"(?<![\w/-])((?:supervisor|checkpointing|tests|docs|examples|systemd|bench)/[\w./@-]*[\w/])", text)
    assert [name for name in named if not (ROOT / name).exists() and not (DOCS / name).exists()] == []


def texts(constant: object) -> Iterator[str]:
    """Yield all texts of compiled code, which Python keeps beside the source: to parse that again takes ten times as long."""
    if isinstance(constant, str):
        yield constant
    for inner in constant.co_consts if isinstance(constant, CodeType) else constant if isinstance(constant, tuple | frozenset) else ():
        yield from texts(inner)


def test_a_message_that_troubleshooting_quotes_is_one_of_ours() -> None:
    sources = [path for package in ("supervisor", "checkpointing", "health") for path in (ROOT / package).rglob("*.py")]
    our_texts = [text for path in sources for text in texts(SourceFileLoader(path.stem, str(path)).get_code(path.stem))]
    rows = [row[0] for row in table("troubleshooting.md") if len(row) == 3]
    quoted = [words for row in rows for words in re.findall(r"(`+)\s?(.+?)\s?\1", row)]
    assert len(rows) > 20
    parts = [part.strip() for _, message in quoted for part in message.split("…")]
    assert [part for part in parts if not any(part in text for text in our_texts)] == []


def test_no_page_installs_a_release_that_does_not_exist() -> None:
    """When there is one on the package index, this test goes, and README's section on installing changes."""
    assert "There is no release on the package index yet" in (ROOT / "README.md").read_text(encoding="utf-8")
    from_index = re.compile(r"pip install[^\n`]*torch-supervise")
    assert [str(path) for path in TEXTS if path.name != "CHANGELOG.md" and from_index.search(path.read_text(encoding="utf-8"))] == []


def test_a_reference_to_the_table_of_settings_names_an_existing_one() -> None:
    keys = {row.key for row in (*ROWS, *SINK_ROWS, *RULE_ROWS, *RECOVER_ROWS)}
    for path in sorted(DOCS.rglob("*.md")):
        for key in re.findall(r"\[`([a-z_]+(?:\.(?!toml`)[a-z_]+)+)(?: = [^`]*)?`\]\([^)]*settings\.md", path.read_text("utf-8")):
            assert key in keys or any(known.startswith(f"{key}.") for known in keys), f"{path.name}: {key}"
