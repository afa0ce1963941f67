"""What the README shows of `make demo`: plays the demo, and writes its lines, and a picture of `supervise why`, where they stand.

In: nothing. Out: the ```text block of README.md, and docs/images/why.svg. Run it on a machine that does nothing else: the times are in
what is shown. tests/examples/test_demo.py compares both with what the demo prints.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "why.svg"
COLUMNS = 100
WHY = ["supervise", "why", "--job", "demo", "--state-dir", "demo-run/state"]
#: rich's own has fonts from another server, which a page of documentation does not load.
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_BLOCK = re.compile(r"^```text\n.*?^```\n", re.DOTALL | re.MULTILINE)


def on_a_terminal(words: list[str], place: Path) -> str:
    """Return what a command prints on a terminal, with its colours."""
    our_end, terminal = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    command = subprocess.Popen(words, cwd=place, env=environment, stdin=terminal, stdout=terminal, stderr=terminal)  # noqa: S603  our own command
    os.close(terminal)
    printed = b""
    try:
        while part := os.read(our_end, 1 << 16):
            printed += part
    except OSError:  # Linux: nobody has the other end any more
        pass
    os.close(our_end)
    if command.wait() != 0:
        sys.exit(f"{' '.join(words)} ended with {command.returncode}")
    return printed.decode("utf-8").replace("\r\n", "\n")


def draw(printed: str) -> None:
    """Write the picture of what a terminal showed."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(width=COLUMNS, record=True, file=nowhere)
        console.print(Text.from_ansi(printed.rstrip()))
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(_FONT.sub("", console.export_svg(title="supervise why")).replace("Fira Code, monospace", "monospace"), "utf-8")


def shown_as(text: str, place: str) -> str:
    """Return the text as the README shows it: without this machine's own names."""
    return re.sub(rf" on {re.escape(socket.gethostname())}\b", " on node7", text.replace(place, "/mnt/job"))


def main() -> int:
    """Play the demo in a directory with a short name, so that few lines fold; return the exit code."""
    with tempfile.TemporaryDirectory(prefix="d") as name:
        place = Path(name)
        shutil.copytree(ROOT / "examples", place / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        demo = subprocess.run(
            [sys.executable, "examples/demo.py"], cwd=place, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, check=False
        )
        if demo.returncode != 0:
            sys.exit(demo.stderr)
        draw(shown_as(on_a_terminal(WHY, place), name))
        lines = shown_as(demo.stderr, name).partition("journal and logs: ")[2].splitlines()
    shown = [line for line in lines if line.startswith(("supervise: ", "[demo] from ")) and "starting attempt" not in line]
    text = README.read_text("utf-8")
    README.write_text(_BLOCK.sub(lambda _: "```text\n" + "\n".join(shown) + "\n```\n", text, count=1), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
