"""Imports the modules of a record in a standby, in the rank's order, and finds which state the script had changed.

Where the standby's state differs from the recorded one, the script made the difference. State that can be set is set as it was in the rank,
and taken back before the script begins (settable_state.py); gates.py compares it when the script imports the same. Of what cannot be set
here (a signal handler, a thread, a function for the exit) an import may change nothing, and it may print nothing. Where every import would
see the difference (an import hook, a tracer, torch's defaults) nothing is imported from there on.

No import may draw random numbers, warn the script that imports it, or use a GPU. A module that breaks a rule, and one that imports such a
module, is left to the rank: the standby starts anew without it. torch itself cannot be left out, because the rest needs it.
"""
# ruff: noqa: PTH115,PTH117,PTH118,PTH119,PTH208 - pathlib is imported where the rank imports it

from __future__ import annotations

import os
import sys

from . import gates, imports
from .imports import SEEN, SETTABLE, ProcessState
from .process_traits import flush, printed_bytes
from .settable_state import WORDS, apply, recorded, was_logged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: A module that goes through all variables for those of its own prefix.
_FOR_PREFIX = "tqdm.utils"
_OF_MAPPINGS = ("os", "collections.abc", "_collections_abc")
#: State that an import may not change where the script has changed it: it cannot be set here.
_SOFT = ("signals", "threads", "at_exit", "outputs")
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED
INITIALIZES = "initialises CUDA"
_GPUS = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")

#: Modules that are left out one by one, each at the cost of a new beginning.
MOST_LEFT_OUT = 8


class Refused(Exception):  # noqa: N818 - no error: a cold start is as good
    """Why this process cannot stand in for the rank."""


class LeftToRank(Exception):  # noqa: N818 - as above
    """A module that is left to the rank: its name, and its side effect."""


class Preload:
    """Imports the modules of one record. `note`: why none was imported from a point on, or "".

    left_out_text: which modules are left to the rank, each with its side effect, or "". read: the variables that Python code read
    meanwhile, "*" among them where it went through all.
    """

    def __init__(self, record: dict[str, Any], left_out: dict[str, str]) -> None:
        left_out = {**dict.fromkeys(record["gpu_users"], INITIALIZES), **left_out}
        names = [f"{name} ({why})" for name, why in left_out.items()]
        self.left_out_text = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} left to the rank" if names else ""
        self.note = ""
        self.read: set[str] = set()
        self._record = record
        self._left_out = list(left_out)[:MOST_LEFT_OUT]
        self._end = "".join(list(left_out)[MOST_LEFT_OUT:])  # one more that would be left out: nothing is imported from here on
        self._different: set[str] = set()  # fields of the state that the script had changed by now, and that cannot be set here
        self._made: set[str] = set()  # fields that were set as the script had set them
        self._loggers: set[str] = set()  # those that the script had set up by then
        self._main = sys.modules["__main__"]
        self._at_first = ProcessState()
        self._gates: list[gates.Gate] = []
        self._stamps: dict[str, list[int] | None] = {}  # of the files that were imported

    def run(self) -> None:
        """Import the modules. Raises Refused where no standby is possible, LeftToRank where one module has to be left out."""
        record, path0 = self._record, self._record["path0"]
        if (sys.executable, sys.version) != (record["executable"], record["version"]):
            raise Refused("the interpreter is another")
        self._main.__file__ = record["main_file"]  # libraries take a __main__ without a file for an interactive session
        if path0 is not None:
            sys.path.insert(0, path0)
        self._at_first = ProcessState()
        try:
            self._import_all()
        finally:
            apply(self._at_first, ProcessState())
            if path0 is not None and sys.path[:1] == [path0]:
                del sys.path[0]
            del self._main.__file__
            self._main.__dict__.pop("__warningregistry__", None)

    def renew_debug_level(self) -> None:
        """Have torch read its debug level from the rank's variables, as a cold start does while it imports torch.

        What the script itself sets before that import holds, and was read in it.
        """
        for gate in self._gates:
            renew = getattr(gate.modules.get("torch.distributed"), "set_debug_level_from_env", None)  # a build may lack it
            if renew is not None and b"TORCH_DISTRIBUTED_DEBUG" not in gate.touched:
                renew()

    def gates(self, argv: list[str], env: dict[str, str], cwd: str) -> gates.Gates:
        """Keep back what the script may have only behind its gate."""
        return gates.Gates(self._gates, argv, env, cwd)

    def _import_all(self) -> None:
        modules, uneven = self._record["modules"], self._record["uneven"]
        random_states = RandomStates()
        state: dict[str, Any] = {}
        for name, changed in self._record["imports"]:
            state = changed or state  # which the script made anew where it took back what an import had changed
            _, library = modules.get(name, ("", False))
            if name == self._end:
                if "torch" in modules and "torch" not in sys.modules:
                    raise Refused(f"{name} and {MOST_LEFT_OUT} modules before it cannot be imported in advance, and torch comes after them")
                self.note = f"{name} and all after it are left to the rank, as were {MOST_LEFT_OUT} modules before it"
            else:
                self.note = self._follow(state, uneven[-1] if uneven[:1] == [name] else "")
            if self.note:
                return
            if library and name not in sys.modules and not self._is_left_out(name):
                had_torch = "torch" in sys.modules
                why = self._import(name) or ("draws random numbers" if random_states.moved() else "")
                if why and not had_torch and "torch" in sys.modules:
                    raise Refused(f"{name} {why}, and nothing can be imported in advance without torch")
                if why:
                    raise LeftToRank(name, why)
        flush()

    def _is_left_out(self, name: str) -> bool:
        return any(name == module or name.startswith(module + ".") for module in self._left_out)

    def _import(self, name: str) -> str:
        """Import a module; return the side effect that leaves it to the rank, "" for none."""
        before, size, known = ProcessState(), printed_bytes(), set(sys.modules)
        gate = gates.Gate(name, before, self._at_first)
        reads = Reads()
        variables: dict[str, Any] = {"__name__": "__main__", "name": name}  # a frame like the script's, to see whom a warning is for
        try:
            exec(compile("__import__(name)", self._record["main_file"] or "<string>", "exec"), variables)  # noqa: S102 - the line is here
        except BaseException as error:  # noqa: BLE001 - whatever it raises, the rank imports it without us
            return f"raises {type(error).__name__}"
        finally:
            reads.end()
            self.read |= reads.names
        if name not in sys.modules:
            return "removes itself"
        after, loaded = ProcessState(), sys.modules.keys() - known
        if "__warningregistry__" in variables:
            return "warns whoever imports it"
        gate.end(after, known)
        if gate.modules:
            self._gates.append(gate)
        elif {*after.differing(before)} & {*SETTABLE}:
            return "is the interpreter's own, which is not kept back, and changes what a script may set"
        return self._broken_rule(before, after, loaded, has_printed=printed_bytes() != size) or used_gpu()

    def _broken_rule(self, before: ProcessState, after: ProcessState, loaded: set[str], *, has_printed: bool) -> str:
        """Return the effect of an import on changes that the script had made before, or the left-out module that it needs; "" for none."""
        left_out = [name for name in loaded if self._is_left_out(name)]
        if left_out:
            return f"imports {min(left_out)}"
        collides = [WORDS[field] for field in after.differing(before) if field in self._different]
        if collides:
            return f"changes {' and '.join(collides)}, as the script does before it"
        logs = was_logged() or ("logging" in self._made and after.logging != before.logging)
        if logs or any(after.loggers.get(logger) != before.loggers.get(logger) for logger in self._loggers):
            return "logs, or sets up a logger that the script set up before it"
        packages = {name.partition(".")[0] for name in loaded}
        if has_printed and (self._different or any(logger.partition(".")[0] in packages for logger in self._loggers)):
            return "prints"
        return ""

    def _follow(self, state: dict[str, Any], uneven: str) -> str:
        """Set the state that the script had set when the rank came to this import; return why no more may be imported, "" where it may.

        uneven: what the script makes otherwise in each attempt before this import, "" for nothing.
        """
        path0 = self._record["path0"]
        own = ProcessState().as_json(path0, self._at_first)
        different = [field for field in own if own[field] != state[field]]
        loggers, recorded_loggers = own["loggers"], state["loggers"]
        self._loggers = {name for name in {*loggers, *recorded_loggers} if loggers.get(name) != recorded_loggers.get(name)}
        self._different = {field for field in different if field in _SOFT}
        seen = [field for field in different if field in SEEN]
        settable = [field for field in different if field in SETTABLE]
        if seen:
            return f"the script changes {' and '.join(WORDS[field] for field in seen)}"
        if uneven:
            return f"each attempt has another {uneven}"
        rebuilt = recorded(state, path0, self._at_first) if settable else None
        if rebuilt is not None:
            self._made |= {*settable}
            apply(rebuilt, ProcessState())
        elif settable:
            return f"the script changes {' and '.join(WORDS[field] for field in settable if field in WORDS)}"
        return ""

    def check(self) -> None:
        """Raise Refused where this process is not what the rank would be."""
        origins = {name: origin for name, (origin, _) in self._record["modules"].items()}
        for name, module in list(sys.modules.items()):
            if module is self._main or name.partition(".")[0] in imports.OWN_PACKAGES:  # __mp_main__ is it too
                continue
            if name not in origins:
                raise Refused(f"importing in advance loads {name}, which the rank never loaded")
            if imports.origin_of(module) != origins[name]:
                raise Refused(f"{name} comes from {imports.origin_of(module)} in advance, from {origins[name]} in the rank")
        if "torch" in origins and "torch" not in sys.modules:
            raise Refused(f"{self.note} before it imports torch" if self.note else f"{self.left_out_text}, and torch with it")
        if imports.thread_count():
            raise Refused("importing in advance starts a thread")
        self._stamps = imports.stamps(
            sorted({origins[name] for name in origins.keys() & sys.modules.keys() if _is_installed(origins[name])})
        )

    def outdated(self) -> str:
        """Return why a cold start would import something else by now, or ""."""
        stamps = {**self._record["files"], **self._record["directories"], **self._stamps}
        for path, stamp in imports.stamps(stamps).items():
            if stamp != stamps[path]:
                return f"{path} was changed"
        return self._customized() or self._hidden()

    def _customized(self) -> str:
        """Look for a module that Python would run before the script, and that does something."""
        finder: Any = sys.modules["_frozen_importlib_external"]
        for name in ("sitecustomize", "usercustomize"):
            spec = finder.PathFinder.find_spec(name) if name[0] == "s" or sys.modules["site"].ENABLE_USER_SITE else None
            if spec is not None and spec.origin and not imports.does_nothing(spec.origin):
                return f"{spec.origin} runs before the script"
        return ""

    def _hidden(self) -> str:
        """Look for a module of the script's own that Python would take for a library that is loaded."""
        libraries = {name for name, (origin, library) in self._record["modules"].items() if library and os.path.isabs(origin)}
        path0 = self._record["path0"]
        paths = [[*([] if path0 is None else [path0]), *sys.path], *(gate.before.path for gate in self._gates)]
        for folder in dict.fromkeys(folder for path in paths for folder in self._before_libraries(path)):
            for entry in _entries(folder):
                name, dot, _ = entry.partition(".")
                if name in libraries and name in sys.modules and (dot or _entries(os.path.join(folder, entry, "__init__.py"))):
                    return f"{os.path.join(folder, entry)} has the name of a library"
        return ""

    def _before_libraries(self, path: list[str]) -> list[str]:
        at = [folder in self._record["directories"] for folder in path]
        return path[: at.index(True)] if True in at else path


def used_gpu() -> str:
    """Return how this process has used a GPU, "" if it has not. That the driver is loaded is not use: a CUDA build of torch loads it."""
    import ctypes  # noqa: PLC0415 - standby.NEEDED

    cuda: Any = sys.modules.get("torch.cuda")
    is_initialized = cuda is not None and cuda.is_initialized()
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        is_initialized = is_initialized or driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _NOT_INITIALIZED
    except (OSError, AttributeError):
        pass  # it is not loaded
    devices = [target for target in map(_target, os.listdir("/proc/self/fd")) if target.startswith(_GPUS)]
    return INITIALIZES if is_initialized else f"opens {devices[0]}" if devices else ""


class RandomStates:
    """The states of the global random generators. A new generator is treated as unused."""

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}
        self.moved()

    def moved(self) -> bool:
        """Return whether a generator was used since the last call."""
        now = self._now()
        moved = any(name in self._last and self._last[name] != state for name, state in now.items())
        self._last = now
        return moved

    def _now(self) -> dict[str, Any]:
        states: dict[str, Any] = {}
        modules: dict[str, Any] = dict(sys.modules)
        if hasattr(modules.get("random"), "getstate"):
            states["random"] = modules["random"].getstate()
        if hasattr(modules.get("numpy.random"), "get_state"):
            kind, keys, *rest = modules["numpy.random"].get_state()
            states["numpy"] = (kind, keys.tobytes(), *rest)
        if hasattr(modules.get("torch"), "default_generator"):
            states["torch"] = modules["torch"].default_generator.get_state().tolist()
        return states


class Reads:
    """Notes the variables that Python code reads until `end`; "*" where it goes through all of them."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        environ: Any = os.environ
        self._before = encode, decode = environ.encodekey, environ.decodekey

        def encodekey(key: str) -> bytes:  # called for each variable that is read
            if _reader() != _FOR_PREFIX:
                self.names.add(key)
            return bytes(encode(key))

        def decodekey(key: bytes) -> str:  # for each, where all are gone through
            if _reader() != _FOR_PREFIX:
                self.names.add("*")
            return str(decode(key))

        environ.encodekey, environ.decodekey = encodekey, decodekey

    def end(self) -> None:
        """Note no more."""
        environ: Any = os.environ
        environ.encodekey, environ.decodekey = self._before


def _reader() -> str:
    """Return which module reads a variable."""
    frame: Any = sys._getframe(2)  # noqa: SLF001 - there is no other way to it
    while frame is not None and frame.f_globals.get("__name__") in _OF_MAPPINGS:
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__"))


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
