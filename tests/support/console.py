"""Types the commands of a documentation page into a real shell, and compares their output with that of the page.

A fence of ```console holds commands behind `$ `. A fence of ```text after it shows rows of what the last of them prints: a row may be left
out, and what differs from run to run (numbers, paths, names of runs) may differ.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.pages import page_text
from tests.support.waiting import wait_for

_FENCE = re.compile(r"^```(console|text|toml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_DEADLINE_S = 1200.0


@dataclass(frozen=True)
class Typed:
    """A command of a page, and the rows that the page shows of what it prints."""

    command: str
    shown: str = ""


def typed_on(page: str) -> list[Typed]:
    """Return the commands of a page, in their order."""
    commands: list[Typed] = []
    for kind, text in _FENCE.findall(page_text(page)):
        if kind == "console":
            for line in text.splitlines():
                assert line.startswith("$ "), f"a line of a console without a prompt: {line}"
                commands.append(Typed(re.split(r"\s{2,}#", line.removeprefix("$ "))[0].strip()))
        elif kind == "text":
            commands[-1] = Typed(commands[-1].command, commands[-1].shown + text)
    return commands


def rows(text: str) -> list[str]:
    """Return the rows of a page: a line, with those that its layout folded under it."""
    texts: list[str] = []
    for line in text.splitlines():
        if line.startswith(" " * 8) and texts:
            texts[-1] += line.strip()
        elif line.strip():
            texts.append(line)
    return [masked(row) for row in texts]


def masked(row: str) -> str:
    """Return what is equal in every run of the same commands."""
    row = re.sub(r"\d{8}T\d{6}-[0-9a-f]{4}", "RUN", row)
    row = re.sub(r"\b[0-9a-f]{64}\b", "DIGEST", row)
    row = re.sub(r"[█░▁▂▃▄▅▆▇]+", "DRAWN", row)
    row = re.sub(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", row)
    row = re.sub(r"\.drill-\w{8}", "DRILL", row)
    row = re.sub(r"/[^\s:]+/(?=(?:tutorial|demo)-run/)", "DIR/", re.sub(r"\s+", " ", row))
    row = row.removesuffix(". The traceback of rank 0 is a consequence")  # whether its peer got so far is chance
    row = re.sub(r"(?:less than )?\d+(?:\.\d+)?(?: (?:ms|s|min)\b)?", "0", row)
    return re.sub(r"\s", "", row)  # a folded path has none


def assert_shown(text: str, printed: str) -> None:
    """Fail where the page shows a row that was not printed. A printed row may continue where the page ends."""
    there = rows(printed)
    missing = [row for row in rows(text) if not any(printed_row.startswith(row) for printed_row in there)]
    assert missing == [], f"{missing} not in what was printed:\n{printed}"


class Terminal:
    """A shell: `cd`, `export` and `activate` hold for what is typed later. `output` is what all its commands printed, as on a screen."""

    def __init__(self, directory: Path, place: Path, environ: dict[str, str]) -> None:
        """Open it in `directory`; its own files are in `place`."""
        place.mkdir(parents=True, exist_ok=True)
        self.environ, self._place, self._number = environ, place, 0
        (place / "directory").write_text(str(directory))
        (place / "exported").write_text("")

    @property
    def directory(self) -> Path:
        """Where it is."""
        return Path((self._place / "directory").read_text().strip())

    def _begin(self, script: str) -> tuple[subprocess.Popen[bytes], Path]:
        self._number += 1
        output = self._place / f"output-{self._number}"
        state, directory = self._place / "exported", self._place / "directory"
        text = f'. {state}\ncd "$(cat {directory})"\n{script}\n'.replace("KEEP", f"export -p > {state}; pwd > {directory}")
        with output.open("wb") as out:
            process = subprocess.Popen(  # noqa: S603  what our pages say
                ["bash", "-c", text],  # noqa: S607  the user's shell
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        return process, output

    def start(self, command: str) -> Started:
        """Type a command that runs until it ends by itself, or is ended."""
        return Started(command, *self._begin(f"exec {command}"))

    def type(self, command: str, *, code: int = 0, deadline_s: float = _DEADLINE_S) -> str:
        """Type a command, and return what it printed; fail if it ends otherwise than with `code`."""
        process, output = self._begin(f"{command}\ncode=$?\nKEEP\nexit $code")
        returned = process.wait(deadline_s)
        text = output.read_text(errors="replace")
        assert returned == code, f"$ {command}\n{text}\nexit code {returned}"
        return text


@dataclass(frozen=True)
class Started:
    """A command that runs."""

    command: str
    process: subprocess.Popen[bytes]
    file: Path

    @property
    def printed(self) -> str:
        """What it printed so far."""
        return self.file.read_text(errors="replace")

    def wait_for(self, text: str, deadline_s: float = _DEADLINE_S) -> None:
        """Await that it printed so."""
        wait_for(lambda: text in self.printed, text, deadline_s, alive=self.alive)

    def stop(self) -> None:
        """End it, as the close of its window does."""
        self.process.terminate()
        self.process.wait(30)

    def alive(self) -> bool:
        """Return whether it runs."""
        return self.process.poll() is None

    def end(self, *, code: int = 0, deadline_s: float = _DEADLINE_S) -> str:
        """Await its end; return what it printed."""
        returned = self.process.wait(deadline_s)
        assert returned == code, f"$ {self.command}\n{self.printed}\nexit code {returned}"
        return self.printed
