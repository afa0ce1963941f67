"""docs/health.md has one row for each check and no other, and each names a test that holds it."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from health import registry
from health.model import Repair, Result
from supervisor.cli.main import command_tree

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "health.md").read_text("utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \|.*\| (\S+) \|$", PAGE.split("## Checks", 1)[1], re.MULTILINE))


def test_every_check_has_a_row_and_every_row_a_check() -> None:
    assert sorted(ROWS) == sorted(registry.CHECKS)


@pytest.mark.parametrize("name", registry.CHECKS)
def test_a_check_is_held_by_the_test_that_its_row_names(name: str) -> None:
    text = (ROOT / ROWS[name]).read_text("utf-8")
    assert re.search(rf"\b{name}\b", text), f"{ROWS[name]} does not speak of {name}"


@pytest.mark.parametrize("name", registry.CHECKS)
def test_a_check_is_a_file_of_its_own_name_and_needs_probes_that_there_are(name: str) -> None:
    module = registry.checks()[name]
    assert registry.CHECKS[name] == f"health.checks.{name}"
    assert vars(module).get("NAME", name) == name
    assert set(module.NEEDS) <= set(registry.PROBES)


@pytest.mark.parametrize("name", registry.PROBES)
def test_a_probe_can_be_imported(name: str) -> None:
    assert callable(registry.probe(name).read)


def test_the_words_of_the_object_are_documented() -> None:
    results = PAGE.split("## Results", 1)[1].split("## How", 1)[0]
    assert set(re.findall(r"^\| `(\w+)` \|", results, re.MULTILINE)) == set(Result)
    assert {repair.value for repair in Repair} <= set(re.findall(r"`(\w+)`", PAGE))


def test_every_option_is_documented() -> None:
    command = command_tree().commands["doctor"]
    assert isinstance(command, click.Command)
    mine = {"kernel_log", "as_json", "in_full", "watch_s", "fix"}
    for option in command.params:
        if option.name in mine:
            assert f"`{option.opts[0]}" in PAGE
