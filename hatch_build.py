"""Writes the man page supervise(1) into the wheel. Needs click and msgspec alone; an editable install has no man page."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManPageHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the man page to what a wheel shares with the system."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the page beside the build, and name it."""
        if version == "editable":
            return
        sys.path[:0] = [self.root, str(Path(self.root, "bench"))]
        from man_page import man_page  # noqa: PLC0415 (the path to it is known here)

        self._directory = tempfile.TemporaryDirectory()
        page = Path(self._directory.name, "supervise.1")
        page.write_text(man_page(), encoding="utf-8")
        build_data["shared_data"][str(page)] = "share/man/man1/supervise.1"

    def finalize(self, version: str, _build_data: dict[str, Any], _artifact_path: str) -> None:
        """Remove what was written."""
        if version != "editable":
            self._directory.cleanup()
