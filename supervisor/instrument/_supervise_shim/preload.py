"""Imports in a standby what its record names, in the rank's order, and finds what of it the script had a part in (docs/restarts.md).

A state that differs from the recorded one was the script's doing. From there on a module is imported in advance only if its import turns
out to be inert: it reads no variable that the script changed, changes nothing that is recorded, and prints nothing. And no import may
draw random numbers, or warn the script that imports it. A module that breaks this is left to the rank.
"""
# ruff: noqa: PTH115,PTH208 - pathlib is imported where the rank imports it

from __future__ import annotations

import os
import sys

from . import imports
from .process_traits import flush, printed_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SOFT = ("variables", "filters", "signals", "threads", "tracing", "logging")


class Refused(Exception):  # noqa: N818 - no error: a cold start is as good
    """Why this process cannot stand in for the rank."""


class Leave(Exception):  # noqa: N818 - as above
    """A module that is left to the rank."""


class Preload:
    """The imports. `count`: modules that are loaded of those that the rank loads; `note`: why the others are not, "" if all are."""

    def __init__(self, record: dict[str, Any], left: list[str]) -> None:
        self.count = 0
        self.note = ""
        self._record = record
        self._left = left
        self._renewed: set[str] = set()  # variables that differ before the script: each attempt gets them anew
        self._changed: set[str] = set()  # variables that the script had changed when the rank came to the next import
        self._late = ""  # why imports must be inert from here on, "" while they need not be
        self._main = sys.modules["__main__"]

    def run(self) -> None:
        """Import. Raises Refused, or Leave."""
        record, path0 = self._record, self._record["path0"]
        if (sys.executable, sys.version) != (record["executable"], record["version"]):
            raise Refused("the interpreter is another")
        self._main.__file__ = record["main_file"]  # libraries take a __main__ without a file for an interactive session
        if path0 is not None:
            sys.path.insert(0, path0)
        try:
            self._import_all()
        finally:
            if path0 is not None and sys.path[:1] == [path0]:
                del sys.path[0]
            del self._main.__file__
            self._main.__dict__.pop("__warningregistry__", None)

    def _import_all(self) -> None:
        modules = self._record["modules"]
        mine, its = self._state()["variables"], self._record["base"]["variables"]
        self._renewed = {name for name in {*mine, *its} if mine.get(name) != its.get(name)}
        draws = Draws()
        self._compare(self._record["base"])
        for name, state in self._record["imports"]:
            if state is not None and self._compare(state):
                self.note = self._late
                return
            _, library = modules.get(name, ("", False))
            if library and name not in sys.modules and not self._is_left(name):
                self._import(name)
                if draws.seen():
                    raise Leave(name)
        flush()

    def _is_left(self, name: str) -> bool:
        return any(name == one or name.startswith(one + ".") for one in self._left)

    def _import(self, name: str) -> None:
        before, size = self._state(), printed_bytes()
        read = Reads() if self._late else None
        variables: dict[str, Any] = {"__name__": "__main__", "name": name}  # a frame like the script's, to see whom a warning is for
        try:
            exec(compile("__import__(name)", self._record["main_file"] or "<string>", "exec"), variables)  # noqa: S102 - the line stands here
        except BaseException:  # noqa: BLE001 - whatever it raises, the rank imports it without us
            raise Leave(name) from None
        finally:
            if read is not None:
                read.end()
        if "__warningregistry__" in variables:
            raise Leave(name)
        if read is not None and (read.names & self._changed or self._state() != before or printed_bytes() != size):
            raise Leave(name)

    def _state(self) -> dict[str, Any]:
        state = imports.ProcessState().written(self._record["path0"])
        state["variables"] = {name: value for name, value in state["variables"].items() if name not in self._renewed}
        return state

    def _compare(self, recorded: dict[str, Any]) -> bool:
        """Find what the script had changed when the rank came to this import. Return whether nothing can be imported from here on."""
        mine = self._state()
        its = {**recorded, "variables": {name: value for name, value in recorded["variables"].items() if name not in self._renewed}}
        different = [field for field in mine if mine[field] != its[field]]
        hard = [field for field in different if field not in _SOFT]
        variables = {*mine["variables"].items()} ^ {*its["variables"].items()}
        self._changed = {name for name, _ in variables}
        words = [", ".join(sorted(self._changed)) if field == "variables" else _WORDS[field] for field in hard or different]
        self._late = f"the script changes {' and '.join(words)}" if words else ""
        return bool(hard)

    def check(self) -> None:
        """Raise Refused where this process is not what the rank would be."""
        known = {name: origin for name, (origin, _) in self._record["modules"].items()}
        self.count = len(known.keys() & sys.modules.keys())
        for name, module in list(sys.modules.items()):
            if module is self._main or name.partition(".")[0] in imports.OURS:  # __mp_main__ is it too
                continue
            if name not in known:
                raise Refused(f"importing in advance loads {name}, which the rank never loaded")
            if imports.origin_of(module) != known[name]:
                raise Refused(f"{name} comes from {imports.origin_of(module)} in advance, from {known[name]} in the rank")
            if self._is_left(name):
                raise Refused(f"{name} cannot be imported in advance, and another module needs it")
        if "torch" in known and "torch" not in sys.modules:
            raise Refused(f"{self._late or 'something is different'} before it imports torch")
        if imports.thread_count():
            raise Refused("importing in advance starts a thread")
        _refuse_gpu()


def _refuse_gpu() -> None:
    cuda: Any = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():
        raise Refused("importing in advance initialises CUDA")
    for number in os.listdir("/proc/self/fd"):
        if _target(number).startswith("/dev/nvidia"):
            raise Refused("importing in advance opens a GPU")


_WORDS = {
    "path": "sys.path",
    "hooks": "the import hooks",
    "filters": "the warnings filters",
    "signals": "signal handlers",
    "threads": "the number of threads",
    "tracing": "the trace function",
    "cwd": "the working directory",
    "logging": "the root logger",
    "torch": "torch's defaults",
}


class Draws:
    """Whether the global random states moved since the last look; a generator that is new has not."""

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}
        self.seen()

    def seen(self) -> bool:
        """Look, and return whether one moved."""
        now = self._now()
        moved = any(name in self._last and self._last[name] != state for name, state in now.items())
        self._last = now
        return moved

    def _now(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        modules: dict[str, Any] = dict(sys.modules)
        if hasattr(modules.get("random"), "getstate"):
            found["random"] = modules["random"].getstate()
        if hasattr(modules.get("numpy.random"), "get_state"):
            kind, keys, *rest = modules["numpy.random"].get_state()
            found["numpy"] = (kind, keys.tobytes(), *rest)
        if hasattr(modules.get("torch"), "default_generator"):
            found["torch"] = modules["torch"].default_generator.get_state().tolist()
        return found


class Reads:
    """The variables that Python code reads while this is in place; "*" where it goes through all of them."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        names = self.names
        self._before = kind = type(os.environ)

        class Watched(kind):  # type: ignore[valid-type, misc]
            def __getitem__(self, key: str) -> str:
                names.add(key)
                return str(kind.__getitem__(self, key))

            def __iter__(self) -> Any:  # noqa: ANN401 - as os has it
                names.update(os.fsdecode(name) for name in self._data)
                return kind.__iter__(self)

        os.environ.__class__ = Watched

    def end(self) -> None:
        """Take it away."""
        os.environ.__class__ = self._before


def _target(number: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return ""
