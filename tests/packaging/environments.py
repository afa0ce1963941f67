"""Environments of their own to install packages into."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEADLINE_S = 300.0
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-q")


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command to its end; what it printed, if it succeeded."""
    done = subprocess.run(  # noqa: S603 -- the test's own commands
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@dataclass(frozen=True)
class Environment:
    """A virtual environment that sees the dependencies of the one that the tests run in, but not the editable install there."""

    root: Path

    @property
    def bin(self) -> Path:
        """Where its commands are."""
        return self.root / "bin"

    def hide_torch(self) -> None:
        """Give it what the tests' environment has, torch apart."""
        (site,) = self.root.glob("lib/python*/site-packages")
        (site / "zz-dependencies.pth").unlink()
        for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
            if not re.match(r"(_|func)?torch|supervis|.*\.pth$|__|pip", entry.name) and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)

    def install(self, *wheels: Path) -> None:
        """Install wheels, one after the other, without what they depend on."""
        for wheel in wheels:
            run(*PIP, "--python", self.bin / "python", "install", "--no-deps", "--no-index", "--force-reinstall", wheel)

    def run(self, command: str, *args: str | Path) -> str:
        """Run a command of the environment in a directory of its own."""
        cwd = self.root / "work"
        cwd.mkdir(exist_ok=True)
        kept = {key: os.environ[key] for key in ("HOME", "LANG", "TMPDIR") if key in os.environ}
        return run(self.bin / command, *args, cwd=cwd, env=kept | {"PATH": f"{self.bin}:{os.environ['PATH']}"})

    def link_torch(self) -> None:
        """Give it the torch of the tests' environment, and what that depends on: as if the job had installed it."""
        (site,) = self.root.glob("lib/python*/site-packages")
        todo, seen = ["torch"], set()
        while todo:
            name = todo.pop()
            seen.add(name)
            try:
                package = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:  # of another platform
                continue
            for top in {file.parts[0] for file in package.files or () if file.parts[0] not in {"..", "__pycache__"}}:
                if not (site / top).exists():
                    (site / top).symlink_to(package.locate_file(top))
            needed = (re.split(r"[^\w.-]", line)[0] for line in package.requires or () if "extra ==" not in line)
            todo += [each for each in needed if each not in seen]
        torchrun = self.bin / "torchrun"
        torchrun.write_text(f"#!{self.bin / 'python'}\nfrom torch.distributed.run import main\nmain()\n")
        torchrun.chmod(0o755)
