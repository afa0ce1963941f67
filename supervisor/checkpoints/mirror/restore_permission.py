"""Decides where a checkpoint of a mirror may be written without being asked: a rule about names alone.

Whoever can write to a mirror can name any path in a manifest, and a job that `checkpoints.restore_from` names had another
working directory. A new
file outside of this job's directories is at best not found by its script, and at worst a program that a shell or Python runs. So these are
allowed: the working directory and the directories that the command names (--output-dir /ckpt), without hidden files in them or a program
there; the paths of --checkpoints; and the locations that were discovered on this node. Only links to these directories are read.
"""

from __future__ import annotations

import fnmatch
import os
import shlex
from typing import TYPE_CHECKING, Final

from supervisor.observe.ranks.path_patterns import escaped, matches, pattern_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_PROGRAMS: Final = (".py", ".pyc", ".pyd", ".so", ".sh")
_PACKAGES: Final = frozenset({"site-packages", "dist-packages"})  # where a .pth is not a checkpoint but is run at each start of Python


def refusal(path: str, cwd: str, declared: Iterable[str], discovered: Iterable[str], command: Iterable[str] = ()) -> tuple[str, str] | None:
    """Return why nothing may be written at `path`, and what helps; None where it may be."""
    plain = path.startswith("/") and os.path.normpath(path) == path and not path.endswith(_PROGRAMS)
    named = tuple(_named(command, cwd))
    # the root is below nobody's directory, also where a container begins there
    inside = path in named or any(_is_inside(path, top) for top in (cwd, *named) if top != "/")
    if plain and (inside or any(_matches(path, pattern, cwd) for pattern in declared)):
        return None
    if plain and any(matches(pattern, path) for pattern in discovered):
        return None
    why = "is neither in the working directory nor in a place that the command names, that is declared, or that was discovered here"
    by_hand = "supervise checkpoints restore --to DIR, and start with --checkpoints 'DIR/*'"
    if not plain:
        return why, f"bring it into a directory with: {by_hand}"
    return why, f"declare the place with --checkpoints {shlex.quote(pattern_of(path))}, or bring it elsewhere with: {by_hand}"


def _named(command: Iterable[str], cwd: str) -> Iterator[str]:
    """Yield what may be directories among the words of a command, and after the "=" in them."""
    for word in command:
        for word_part in word.split("="):
            if word_part.startswith(("/", "../")):
                yield os.path.normpath(os.path.join(cwd, word_part))  # noqa: PTH118 (strings throughout)


def _is_inside(path: str, within: str) -> bool:
    for top in {within, os.path.realpath(within)}:
        parts = path.removeprefix(top.rstrip("/") + "/").split("/")
        if path.startswith(top.rstrip("/") + "/") and not any(segment.startswith(".") or segment in _PACKAGES for segment in parts):
            return True
    return False


def _matches(path: str, pattern: str, cwd: str) -> bool:
    """Say whether checkpointing.discover.find would take the path for one of the pattern's."""
    expanded = os.path.expanduser(pattern)  # noqa: PTH111 (strings as the script gets them)
    whole = os.path.normpath(os.path.join("/" if expanded.startswith("/") else escaped(cwd), expanded))  # noqa: PTH118 (as above)
    return _leads(path.split("/")[1:], whole.split("/")[1:])


def _leads(parts: list[str], segments: list[str]) -> bool:
    if not segments:
        return len(parts) <= 1 and not any(
            segment.startswith(".") for segment in parts
        )  # itself, or directly in a directory that was matched
    first, rest = segments[0], segments[1:]
    if first == "**":
        visible = next((at for at, segment in enumerate(parts) if segment.startswith(".")), len(parts))
        return any(_leads(parts[at:], rest or ["*"]) for at in range(visible + 1))
    if not parts or not fnmatch.fnmatchcase(parts[0], first) or (parts[0].startswith(".") and not first.startswith(".")):
        return False
    return _leads(parts[1:], rest)
