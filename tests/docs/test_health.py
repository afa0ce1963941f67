"""docs/guides/health.md has one row for each check and no other, and a test holds each."""

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
from tests.support.pages import page_text

ROOT = Path(__file__).parents[2]
PAGE = page_text("health.md")
ROWS = re.findall(r"^\| `(\w+)` \|", PAGE.split("## Checks", 1)[1].split("###", 1)[0], re.MULTILINE)
TESTS = "".join(path.read_text("utf-8") for path in sorted((ROOT / "tests" / "health").rglob("*.py")))


def test_every_check_has_a_row_and_every_row_a_check() -> None:
    assert sorted(ROWS) == sorted(registry.checks())


@pytest.mark.parametrize("name", registry.checks())
def test_a_check_is_held_by_a_test_and_needs_probes_that_there_are(name: str) -> None:
    assert re.search(rf"\b{name}\b", TESTS), f"no test in tests/health speaks of {name}"
    assert set(registry.checks()[name].needs) <= set(registry.PROBES)


def test_the_registry_names_every_module_and_no_two_checks_have_one_name() -> None:
    names = {module.name.removeprefix("health.checks.") for module in walk_packages(checks.__path__, "health.checks.") if not module.ispkg}
    assert names - set(registry.CHECK_MODULES) == {"common", "gpu.gpus"}, "what the checks share"
    sources = [(ROOT / "health" / "checks" / f"{name.replace('.', '/')}.py").read_text("utf-8") for name in registry.CHECK_MODULES]
    assert sum(source.count("\n@check(") for source in sources) == len(registry.checks())


@pytest.mark.parametrize("name", registry.PROBES)
def test_a_probe_can_be_imported(name: str) -> None:
    assert callable(import_module(registry.PROBES[name].module).read)


def test_the_words_of_the_object_are_documented() -> None:
    results = PAGE.split("## Results", 1)[1].split("## While", 1)[0]
    assert set(re.findall(r"^\| `(\w+)` \|", results, re.MULTILINE)) == set(Result)
    assert {repair.value for repair in Repair} <= set(re.findall(r"`(\w+)`", PAGE))


def test_every_option_is_documented() -> None:
    command = root.get_command(click.Context(root), "doctor")
    assert isinstance(command, click.Command)
    mine = {"kernel_log", "as_json", "in_full", "watch_s", "fix"}
    for option in command.params:
        if option.name in mine:
            assert f"`{option.opts[0]}" in PAGE
