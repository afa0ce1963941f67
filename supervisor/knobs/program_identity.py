"""Identifies what an attempt is about to run, cheaply: so that a start that fails is not taken for a program that was changed.

Three digests: the command's words, the Python files beside the script with the script's own content, and the packages installed for the
interpreter that the command names. Of packages the names of their installations count, which have the versions in them and are equal on all
nodes, where times are not. A part that cannot be read now is left out.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.knobs import programs
from supervisor.knobs.python_command import first_line, is_interpreter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: The part of a script that counts: none is longer.
_MOST_BYTES = 1 << 20
#: The ends of the names under which an installed package lies beside its code, in site-packages.
_INSTALLED = (".dist-info", ".egg-info", ".egg-link", ".pth")


def measure(command: Sequence[str], cwd: Path, environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the digests by name: command, script, packages. Reads the disk of the job, which may take long."""
    path = environ.get("PATH")
    parts = (
        ("command", _digest(word.encode(errors="surrogateescape") for word in command)),
        ("script", _script(programs.locate(command, path), cwd)),
        ("packages", _packages(command, cwd, path)),
    )
    return tuple((name, digest) for name, digest in parts if digest)


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for content in parts:
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()[:16]


def _script(script: programs.Script, cwd: Path) -> str:
    """Return the digest of a script's content, and of the names, sizes and times of the modules next to it."""
    if script.kind != "file":
        return ""
    path = cwd / script.target
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES)
        with os.scandir(path.parent) as entries:
            beside = sorted(_entry(entry) for entry in entries if entry.name.endswith(".py") and entry.name != path.name)
    except OSError:
        return ""
    return _digest([content, *beside])


def _entry(entry: os.DirEntry[str]) -> bytes:
    st = entry.stat()
    return f"{entry.name} {st.st_size} {st.st_mtime_ns}".encode(errors="surrogateescape")


def _packages(command: Sequence[str], cwd: Path, path: str | None) -> str:
    """Return the digest of the names of all that is installed for the first word that is an interpreter, or a script of one."""
    places = next((places for word in command if (places := _site_packages(word, cwd, path))), [])
    try:
        names = sorted(entry.name for place in places for entry in place.iterdir() if entry.name.endswith(_INSTALLED))
    except OSError:
        return ""
    return _digest(name.encode(errors="surrogateescape") for name in names) if places else ""


def _site_packages(word: str, cwd: Path, path: str | None) -> list[Path]:
    """Return where the packages of an interpreter, or of a script that names one in its first line (torchrun), are installed."""
    program = str(cwd / word) if "/" in word else shutil.which(word, path=path)
    if program is None or word.startswith("-"):
        return []
    if not is_interpreter(program):
        program = next((name for name in first_line(program).split() if is_interpreter(name)), "")
    prefix = Path(program).parent.parent
    return sorted((*prefix.glob("lib*/python3*/site-packages"), *prefix.glob("lib*/python3*/dist-packages"))) if program else []
