"""A library in the place of NVIDIA's NVML, which shows the GPUs that a test sets."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE = Path(__file__).parent / "fake_nvml.c"


class FakeNvml:
    """A node's GPUs, as a file that the fake library reads in each of its calls."""

    def __init__(self, library: Path, state: Path) -> None:
        self.state = state
        self.environ = {**os.environ, "LD_LIBRARY_PATH": str(library.parent), "FAKE_NVML_STATE": str(state)}
        self._rows: dict[str, object] = {}

    def set(self, rows: Mapping[str, object] | None = None, *, gpus: int | None = None) -> None:
        """Change some keys; None takes a key back."""
        if gpus is not None:
            self._rows["count"] = gpus
        self._rows.update(rows or {})
        new = self.state.with_suffix(".new")
        new.write_text("".join(f"{key} {value}\n" for key, value in self._rows.items() if value is not None), "utf-8")
        new.replace(self.state)


def build(compiler: str, directory: Path) -> Path:
    """Compile the library into the directory."""
    library = directory / "libnvidia-ml.so.1"
    subprocess.run(  # noqa: S603 -- the compiler, and our own source
        [compiler, "-O1", "-shared", "-fPIC", "-pthread", "-w", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library), str(SOURCE)],
        check=True,
        timeout=100,
        capture_output=True,
    )
    return library
