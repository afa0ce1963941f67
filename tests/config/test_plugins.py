"""Ladders of the user's own, and strategies of installed packages: what is taken, and what is refused with the nearest right name."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from supervisor import strategies
from supervisor.config import plugins
from supervisor.config.settings import Restart, Settings
from supervisor.errors import ExitCode, SuperviseError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def settings(*ladders: str, plugged: tuple[str, ...] = ()) -> Settings:
    return replace(Settings(), restart=Restart(ladders=ladders, plugins=plugged))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed distribution that offers a strategy, one that cannot be imported, and one that is none."""
    about = tmp_path / "theirs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[supervise.strategies]\nreboot = theirs_strategy:propose\nbroken = theirs_broken:propose\nnone = theirs_strategy:TEXT\n"
        "whole = theirs_strategy\n"
    )
    (tmp_path / "theirs_strategy.py").write_text("TEXT = 'x'\n\ndef propose(situation):\n    return None\n")
    (tmp_path / "theirs_broken.py").write_text("raise OSError('no such device')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("theirs_strategy", "theirs_broken"):
        sys.modules.pop(name, None)


def test_a_ladder_is_taken_apart_and_the_last_of_a_cause_holds() -> None:
    found = plugins.ladders(
        settings("cuda_oom=halve_batch, restart_within_budget", "segfault=restart_within_budget", "cuda_oom=halve_batch")
    )
    assert found == (("cuda_oom", ("halve_batch",)), ("segfault", ("restart_within_budget",)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cuda_oom", "wrong ladder"),
        ("cuda_oom=", "wrong ladder"),
        ("cuda_ooom=halve_batch", "unknown cause: cuda_ooom .*: the nearest is cuda_oom"),
        ("none=halve_batch", "unknown cause: none"),
        ("cuda_oom=halve_bach", "unknown strategy: halve_bach .*: the nearest is halve_batch"),
        ("cuda_oom=os:abort", "unknown strategy: os:abort"),
    ],
)
def test_a_ladder_that_cannot_be_is_refused_with_the_nearest_name(text: str, told: str) -> None:
    with pytest.raises(SuperviseError, match=told) as refused:
        plugins.ladders(settings(text))
    assert refused.value.exit_code == ExitCode.CONFIG


@pytest.mark.usefixtures("package")
def test_a_strategy_of_a_package_is_imported_only_where_it_is_listed() -> None:
    with pytest.raises(SuperviseError, match="unknown strategy: reboot"):
        plugins.ladders(settings("cuda_oom=reboot"))
    assert "theirs_strategy" not in sys.modules
    found = plugins.ladders(settings("cuda_oom=reboot,halve_batch", plugged=("reboot",)))
    assert found == (("cuda_oom", ("theirs_strategy:propose", "halve_batch")),)
    assert strategies.resolve("theirs_strategy:propose") is not None


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("rebot", "unknown strategy of a package: rebot .*: the nearest is reboot"),
        ("broken", "cannot import a plug-in: broken .*of theirs.*OSError: no such device"),
        ("none", "no strategy: none"),
        ("whole", "no strategy: whole"),
    ],
)
def test_a_plug_in_that_is_no_strategy_is_refused(name: str, told: str) -> None:
    with pytest.raises(SuperviseError, match=told) as refused:
        plugins.load(settings(plugged=(name,)))
    assert refused.value.exit_code == ExitCode.CONFIG


def test_without_any_package_there_is_no_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    with pytest.raises(SuperviseError, match="none is installed"):
        plugins.load(settings(plugged=("reboot",)))
