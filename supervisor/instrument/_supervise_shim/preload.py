"""Imports in a standby what its record names, in the rank's order, and finds what of it the script changed (docs/explanation/restarts.md).

A state that differs from the recorded one was the script's doing. From there on a module is imported in advance only if its import turns
out to be inert: it reads no variable that the script changed, changes nothing that the script changed too, prints nothing. No import may
draw random numbers, or warn the script that imports it. A module that breaks this is left to the rank.
"""
# ruff: noqa: PTH115,PTH117,PTH118,PTH119,PTH208 - pathlib is imported where the rank imports it

from __future__ import annotations

import os
import sys

from . import imports
from .process_traits import flush, printed_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Variables that Python code reads, or native code when it is first used: a script may set them before it imports native code.
_FOR_PYTHON = ("ACCELERATE_", "HF_", "HUGGINGFACE_", "TOKENIZERS_", "TRANSFORMERS_", "WANDB_")
#: Which module goes through all variables for those that begin so.
_FOR_PREFIX = {"tqdm.utils": "TQDM_"}
_OF_MAPPINGS = ("collections.abc", "_collections_abc")
_SOFT = ("variables", "filters", "signals", "threads", "logging", "at_exit")

#: Modules that are left out one by one, each at the cost of a new beginning.
MOST_LEFT_OUT = 8


class Refused(Exception):  # noqa: N818 - no error: a cold start is as good
    """Why this process cannot stand in for the rank."""


class LeftToRank(Exception):  # noqa: N818 - as above
    """A module that is left to the rank."""


class Preload:
    """The imports. `count`: modules that are loaded of those that the rank loads; `note`: why the others are not, "" if all are.

    `read`: the variables that Python code read meanwhile, "*" among them where it went through all.
    """

    def __init__(self, record: dict[str, Any], left_out: list[str]) -> None:
        self.count = 0
        self.note = ""
        self.read: set[str] = set()
        self._record = record
        self._left_out = left_out[:MOST_LEFT_OUT]
        self._end = "".join(left_out[MOST_LEFT_OUT:])  # one more that would be left out: nothing is imported from here on
        self._renewed: set[str] = set()  # variables that differ before the script: each attempt gets them anew
        self._changed: set[str] = set()  # variables that the script had changed when the rank came to the next import
        self._different: list[str] = []  # what the script had changed by then: the fields of the state
        self._why_inert = ""  # why imports must be inert from here on, "" while they need not be
        self._main = sys.modules["__main__"]
        self._set: dict[str, str] = {}  # variables that the imports set, and what they removed
        self._removed: set[str] = set()
        self._stamps: dict[str, list[int] | None] = {}  # of the files that were imported

    def run(self) -> None:
        """Import. Raises Refused, or LeftToRank."""
        record, path0 = self._record, self._record["path0"]
        if (sys.executable, sys.version) != (record["executable"], record["version"]):
            raise Refused("the interpreter is another")
        before = dict(os.environ)
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
        self._set = {name: value for name, value in os.environ.items() if before.get(name) != value}
        self._removed = before.keys() - os.environ.keys()

    def environment(self, env: dict[str, str]) -> dict[str, str]:
        """Return a rank's environment, with the changes that its libraries make while they are imported."""
        return {**{name: value for name, value in env.items() if name not in self._removed}, **self._set}

    def _import_all(self) -> None:
        modules = self._record["modules"]
        own, recorded = self._state()["variables"], self._record["base"]["variables"]
        self._renewed = {name for name in {*own, *recorded} if own.get(name) != recorded.get(name)}
        random_states = RandomStates()
        self._compare(self._record["base"])
        for name, state in self._record["imports"]:
            if state is not None and self._compare(state):
                self.note = self._why_inert
                return
            _, library = modules.get(name, ("", False))
            if name == self._end:
                self.note = f"{name} and all after it are left to the rank, as were {MOST_LEFT_OUT} modules before it"
                return
            if library and name not in sys.modules and not self._is_left_out(name):
                self._import(name)
                if random_states.moved():
                    raise LeftToRank(name)
        flush()

    def _is_left_out(self, name: str) -> bool:
        return any(name == one or name.startswith(one + ".") for one in self._left_out)

    def _import(self, name: str) -> None:
        before, size, must_be_inert = self._state(), printed_bytes(), bool(self._why_inert)
        known = set(sys.modules) if must_be_inert else set()
        read = Reads()
        variables: dict[str, Any] = {"__name__": "__main__", "name": name}  # a frame like the script's, to see whom a warning is for
        try:
            exec(compile("__import__(name)", self._record["main_file"] or "<string>", "exec"), variables)  # noqa: S102 - the line stands here
        except BaseException:  # noqa: BLE001 - whatever it raises, the rank imports it without us
            raise LeftToRank(name) from None
        finally:
            read.end()
            self.read |= read.names
        after = self._state()
        if "__warningregistry__" in variables or after["cwd"] != before["cwd"]:
            raise LeftToRank(name)
        collides = any(after[field] != before[field] for field in self._different)
        if must_be_inert and (collides or self._depends(read.names, known) or printed_bytes() != size):
            if "torch" in sys.modules.keys() - known:
                raise Refused(f"{self._why_inert} before it imports torch")  # all else needs torch
            raise LeftToRank(name)

    def _depends(self, read: set[str], known: set[str]) -> bool:
        """Whether an import may have seen a variable that the script had changed: C code reads what it likes."""
        if not self._changed:
            return False
        if "*" in read or not self._changed.isdisjoint(read) or any(name.startswith((*_FOR_PREFIX.values(),)) for name in self._changed):
            return True
        return any(not name.startswith(_FOR_PYTHON) for name in self._changed) and any(map(_is_native, sys.modules.keys() - known))

    def _state(self) -> dict[str, Any]:
        state = imports.ProcessState().as_json(self._record["path0"])
        state["variables"] = {name: value for name, value in state["variables"].items() if name not in self._renewed}
        return state

    def _compare(self, state: dict[str, Any]) -> bool:
        """Find what the script had changed when the rank came to this import. Return whether nothing can be imported from here on."""
        own = self._state()
        recorded = {**state, "variables": {name: value for name, value in state["variables"].items() if name not in self._renewed}}
        self._different = different = [field for field in own if own[field] != recorded[field]]
        hard = [field for field in different if field not in _SOFT]
        variables = {*own["variables"].items()} ^ {*recorded["variables"].items()}
        self._changed = {name for name, _ in variables}
        words = [", ".join(sorted(self._changed)) if field == "variables" else _WORDS[field] for field in hard or different]
        self._why_inert = f"the script changes {' and '.join(words)}" if words else ""
        return bool(hard)

    def check(self) -> None:
        """Raise Refused where this process is not what the rank would be."""
        known = {name: origin for name, (origin, _) in self._record["modules"].items()}
        self.count = len(known.keys() & sys.modules.keys())
        for name, module in list(sys.modules.items()):
            if module is self._main or name.partition(".")[0] in imports.OWN_PACKAGES:  # __mp_main__ is it too
                continue
            if name not in known:
                raise Refused(f"importing in advance loads {name}, which the rank never loaded")
            if imports.origin_of(module) != known[name]:
                raise Refused(f"{name} comes from {imports.origin_of(module)} in advance, from {known[name]} in the rank")
            if self._is_left_out(name):
                raise Refused(f"{name} cannot be imported in advance, and another module needs it")
        if "torch" in known and "torch" not in sys.modules:
            raise Refused(f"{self._why_inert or 'something is different'} before it imports torch")
        if imports.thread_count():
            raise Refused("importing in advance starts a thread")
        _refuse_gpu()
        self._stamps = imports.stamps(sorted({known[name] for name in known.keys() & sys.modules.keys() if _is_installed(known[name])}))

    def outdated(self) -> str:
        """Return why a cold start would import something else by now, or ""."""
        stamps = {**self._record["files"], **self._record["directories"], **self._stamps}
        for path, stamp in imports.stamps(stamps).items():
            if stamp != stamps[path]:
                return f"{path} was changed"
        return self._customized() or self._hidden()

    def _customized(self) -> str:
        """Look for a module that Python would run before the script."""
        finder: Any = sys.modules["_frozen_importlib_external"]
        for name in ("sitecustomize", "usercustomize"):
            spec = finder.PathFinder.find_spec(name) if name[0] == "s" or sys.modules["site"].ENABLE_USER_SITE else None
            if spec is not None and spec.origin:
                return f"{spec.origin} was added"
        return ""

    def _hidden(self) -> str:
        """Look for a module of the script's own that Python would take for a library that is loaded."""
        libraries = {name for name, (origin, library) in self._record["modules"].items() if library and os.path.isabs(origin)}
        path0 = self._record["path0"]
        for folder in [*([] if path0 is None else [path0]), *sys.path]:
            if folder in self._record["directories"]:
                break
            for entry in _entries(folder):
                name, dot, _ = entry.partition(".")
                if name in libraries and name in sys.modules and (dot or _entries(os.path.join(folder, entry, "__init__.py"))):
                    return f"{os.path.join(folder, entry)} has the name of a library"
        return ""


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
    "tracing": "what traces it",
    "at_exit": "what is called at exit",
    "cwd": "the working directory",
    "logging": "the root logger",
    "torch": "torch's defaults",
}


class RandomStates:
    """The states of the global random generators. One that is new has not moved."""

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}
        self.moved()

    def moved(self) -> bool:
        """Return whether one moved since the last call."""
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
                caller: Any = sys._getframe(1)  # noqa: SLF001 - as below
                if caller.f_code.co_name != "__iter__" or caller.f_globals.get("__name__") not in _OF_MAPPINGS:  # of all: see __iter__
                    names.add(key)
                return str(kind.__getitem__(self, key))

            def __iter__(self) -> Any:  # noqa: ANN401 - as os has it
                frame: Any = sys._getframe(1)  # noqa: SLF001 - there is no other way to it
                while frame is not None and frame.f_globals.get("__name__") in (*_OF_MAPPINGS, "os"):
                    frame = frame.f_back
                if frame is None or frame.f_globals.get("__name__") not in _FOR_PREFIX:
                    names.add("*")
                return kind.__iter__(self)

        os.environ.__class__ = Watched

    def end(self) -> None:
        """Take it away."""
        os.environ.__class__ = self._before


def _is_native(name: str) -> bool:
    """Whether a module is C code of other people than Python's."""
    origin = imports.origin_of(sys.modules.get(name))
    return origin.endswith(".so") and "lib-dynload" not in origin


def _is_installed(origin: str) -> bool:
    return os.path.isabs(origin) and "-packages" in origin  # nobody edits the standard library


def _entries(path: str) -> list[str]:
    """Return the names in a directory, or that of a file; none if it is not there."""
    try:
        return os.listdir(path)
    except NotADirectoryError:
        return [os.path.basename(path)]
    except OSError:
        return []


def _target(number: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return ""
