"""docs/guides/health.md has one row for each check and no other, and each names a test that holds it."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import click
import pytest

from health import checks, registry
from health.model import Repair, Result
from supervisor.cli.main import root

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "health.md").read_text("utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \|.*\| (\S+) \|$", PAGE.split("## Checks", 1)[1], re.MULTILINE))


def test_every_check_has_a_row_and_every_row_a_check() -> None:
    assert sorted(ROWS) == sorted(registry.CHECKS)


@pytest.mark.parametrize("name", registry.CHECKS)
def test_a_check_is_held_by_the_test_that_its_row_names(name: str) -> None:
    text = (ROOT / ROWS[name]).read_text("utf-8")
    assert re.search(rf"\b{name}\b", text), f"{ROWS[name]} does not speak of {name}"


@pytest.mark.parametrize("name", registry.CHECKS)
def test_a_check_is_in_the_table_of_its_module_and_needs_probes_that_there_are(name: str) -> None:
    module = import_module(registry.CHECKS[name])
    assert name in getattr(module, "CHECKS", (vars(module).get("NAME"),))
    assert set(registry.checks()[name].needs) <= set(registry.PROBES)


def test_the_registry_names_every_row_of_every_table_and_every_module() -> None:
    rows = {name for module in set(registry.CHECKS.values()) for name in getattr(import_module(module), "CHECKS", ())}
    assert rows <= set(registry.CHECKS)
    names = {found.name for found in walk_packages(checks.__path__, "health.checks.") if not found.ispkg}
    assert names - set(registry.CHECKS.values()) == {"health.checks.common", "health.checks.gpu.gpus"}, "what the checks share"


@pytest.mark.parametrize("name", registry.PROBES)
def test_a_probe_can_be_imported(name: str) -> None:
    assert callable(registry.probe(name).read)


def test_the_words_of_the_object_are_documented() -> None:
    results = PAGE.split("## Results", 1)[1].split("## How", 1)[0]
    assert set(re.findall(r"^\| `(\w+)` \|", results, re.MULTILINE)) == set(Result)
    assert {repair.value for repair in Repair} <= set(re.findall(r"`(\w+)`", PAGE))


def test_every_option_is_documented() -> None:
    command = root.get_command(click.Context(root), "doctor")
    assert isinstance(command, click.Command)
    mine = {"kernel_log", "as_json", "in_full", "watch_s", "fix"}
    for option in command.params:
        if option.name in mine:
            assert f"`{option.opts[0]}" in PAGE
