"""Settings out of a configuration file of the test alone: no file of the user or of the system is read beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.config import loading

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.config.settings import Settings


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Settings]:
    """Load a text as the project's `supervise.toml`; `is_named` gives its path as with `--config`."""

    def call(text: str, *, is_named: bool = False) -> Settings:
        path = tmp_path / "supervise.toml"
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        environ = {"XDG_CONFIG_HOME": str(tmp_path / "home")}
        return loading.load({}, environ, tmp_path, str(path) if is_named else None, system_file=tmp_path / "none.toml")

    return call
