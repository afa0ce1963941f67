"""Our packages are imported as ours, even if other packages use their names."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from supervisor.cli.import_guard import NAMES, pin_our_packages
from supervisor.errors import ExitCode, SuperviseError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def own_modules() -> Iterator[None]:
    """Let each test import these names anew, and forget what it imported."""
    kept = {name: sys.modules[name] for name in list(sys.modules) if name.partition(".")[0] in NAMES}
    for name in kept:
        del sys.modules[name]
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in NAMES]:
        del sys.modules[name]
    sys.modules.update(kept)
    importlib.invalidate_caches()


def package(root: Path, whose: str) -> Path:
    for name in NAMES:
        path = root / name / "__init__.py"
        path.parent.mkdir(parents=True)
        path.write_text(f"WHOSE = {whose!r}\n", encoding="utf-8")
        (path.parent / "part.py").write_text(f"WHOSE = {whose!r}\n", encoding="utf-8")
    return root


def whose(name: str) -> str:
    text: str = importlib.import_module(name).WHOSE
    return text


def test_our_package_is_found_although_the_users_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = package(tmp_path / "ours", "ours")
    monkeypatch.syspath_prepend(path)
    monkeypatch.syspath_prepend(package(tmp_path / "project", "theirs"))
    pin_our_packages(path)
    assert {whose(f"{name}{part}") for name in NAMES for part in ("", ".part")} == {"ours"}


def test_a_module_of_the_users_is_passed_by_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = package(tmp_path / "ours", "ours")
    monkeypatch.syspath_prepend(path)
    (tmp_path / "health.py").write_text("raise SystemExit('the wrong one')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    pin_our_packages(path)
    assert whose("health.part") == "ours"


@pytest.mark.parametrize("name", ["site-packages", "dist-packages"])
def test_an_installed_package_before_ours_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = package(tmp_path / "ours", "ours")
    project = package(tmp_path / name, "theirs")
    monkeypatch.syspath_prepend(path)
    monkeypatch.syspath_prepend(project)
    with pytest.raises(SuperviseError) as caught:
        pin_our_packages(path)
    assert caught.value.exit_code == ExitCode.CONFIG
    assert str(project / NAMES[0] / "__init__.py") in caught.value.message


def test_where_nothing_shadows_nothing_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = package(tmp_path / "ours", "ours")
    monkeypatch.syspath_prepend(path)
    pin_our_packages(path)
    assert set(NAMES).isdisjoint(sys.modules)
    assert whose("health") == "ours"
