"""Records what a rank imported, and what its script had changed by then: what a standby may import (docs/explanation/restarts.md).

`imports-<local rank>.json` holds the imports that no library's import began, in order, with the state of the process at the start of each.
The standby makes the same imports without the script. Where its own state differs from the recorded one, the script made the difference.
So the rank need not know who changed what, and pays one comparison of 10 to 30 µs for each such import, until its first step. Of a name
that it came to several times the last counts: before it the script only asked whether the library is there.

Of the variables the record has those that changed since the start, with their values: it lies in the job's shared memory, for the job's
user alone. Libraries are modules of the interpreter and of installed packages; all others are the script's, and are only named.
"""

from __future__ import annotations

import builtins
import os
import sys
from _signal import getsignal  # type: ignore[import-not-found]  # built in, as the one below
from _thread import _count, get_ident
from _warnings import filters  # the list that `warnings` has
from atexit import _ncallbacks

from .layout import VALUES_SIGNAL, quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .claim import ProcessIdentity

MOST_IMPORTS = 5000
#: The root logger's level where nobody has set another: logging.WARNING.
_UNSET_LEVEL = 30
#: pip's names of a directory of installed packages.
PACKAGES = ("site-packages", "dist-packages")
#: The file of an attempt that a rank leaves where its script set something else than the one that was recorded (gates.py).
UNEVEN = "uneven"
#: Packages of this project: a rank that imports one of them does so itself.
OWN_PACKAGES = ("_supervise_shim", "supervisor", "checkpointing", "health", "supervise_command")
#: A handler of crashes that the sitecustomize of Debian and Ubuntu install where it exists, and these lines of that file.
_APPORT = "apport_python_hook"
_INSTALLS_APPORT = f"try:\n    import {_APPORT}\nexcept ImportError:\n    pass\nelse:\n    {_APPORT}.install()\n".encode()
_ONLY_AST = 0x400  # ast.PyCF_ONLY_AST: nothing is imported for it
#: An address in the process that sets it, before each load of compiled code that is to read it: torch/_inductor/codecache.py.
_ADDRESS = b"_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"
_SIGNALS = [number for number in range(1, 65) if number != VALUES_SIGNAL]  # the last is the shim's


def thread_count() -> int:
    """Return how many threads Python itself has started, and run."""
    return _count()


#: State that a standby can set as the recorded rank had it (settable_state.py), and state that it cannot set and every import sees.
SETTABLE = ("variables", "path", "filters", "logging", "cwd", "grad")
SEEN = ("hooks", "tracing", "torch")
FIELDS = (*SETTABLE, *SEEN, "signals", "threads", "at_exit", "loggers", "outputs")


class ProcessState:
    """State that a script can change and an import can see; compared field by field. `handlers`: of the root logger, not compared."""

    __slots__ = (*FIELDS, "handlers")

    def __init__(self, own_threads: int = 0) -> None:
        self.variables = dict(os.environ._data)  # type: ignore[attr-defined]  # noqa: SLF001 - its bytes; decoding all costs 50 µs
        self.variables.pop(_ADDRESS, None)
        self.path = list(sys.path)
        self.hooks = [*map(id, sys.meta_path), 0, *map(id, sys.path_hooks), id(builtins.__import__)]
        self.filters = list(warnings_filters())
        self.signals = [getsignal(number) for number in _SIGNALS]
        self.threads = max(0, thread_count() - own_threads)  # one that is being started is not counted yet
        self.at_exit = _ncallbacks()
        self.tracing = _tracing()
        self.cwd = os.getcwd()  # noqa: PTH109 - pathlib costs 5 ms of start-up
        root = getattr(sys.modules.get("logging"), "root", None)
        self.handlers: list[Any] = [] if root is None else list(root.handlers)
        self.logging = [_UNSET_LEVEL if root is None else root.level, len(self.handlers)]
        self.loggers = _loggers()
        self.outputs = _outputs()
        self.torch, self.grad = _torch()

    def differing(self, other: ProcessState) -> list[str]:
        """Return the fields in which it differs from another state of this process."""
        return [field for field in FIELDS if getattr(self, field) != getattr(other, field)]

    def as_json(self, path0: str | None, base: ProcessState) -> dict[str, Any]:
        """Return the state as JSON values, equal in two processes of one state; None means `path0`: the script's entry in sys.path.

        base: an earlier state of this process; of the variables those that have changed since are returned, None for one that is gone.
        """
        changed = {name: self.variables.get(name) for name in changed_variables(base, self)}
        path = [None, *self.path[1:]] if path0 is not None and self.path[:1] == [path0] else self.path
        return {
            "variables": {os.fsdecode(name): None if value is None else os.fsdecode(value) for name, value in changed.items()},
            "path": path,
            "filters": filter_rows(self.filters),
            "logging": self.logging,
            "cwd": self.cwd,
            "grad": self.grad,
            "hooks": [getattr(hook, "__name__", type(hook).__name__) for hook in (*sys.meta_path, *sys.path_hooks)]
            + [type(builtins.__import__).__name__],
            "tracing": list(map(bool, self.tracing)),
            "torch": self.torch,
            "signals": [number for number, handler in enumerate(self.signals, 1) if callable(handler) or handler == 1],
            "threads": self.threads,
            "at_exit": self.at_exit,
            "loggers": self.loggers,
            "outputs": self.outputs,
        }


def changed_variables(before: ProcessState, after: ProcessState) -> list[bytes]:
    """Return the names of the variables that differ."""
    return [name for name in {**before.variables, **after.variables} if before.variables.get(name) != after.variables.get(name)]


class ImportRecord:
    """The record of one rank. It follows imports from `begin` until the first step, and writes the file."""

    def __init__(self, identity: ProcessIdentity) -> None:
        self.own_threads = 0  # running threads of the shim: no change of the script's
        self._identity = identity
        self._main_thread = get_ident()
        self._base: ProcessState | None = None
        self._last: ProcessState | None = None  # None: nothing is followed
        self._path0: str | None = None  # the entry that Python put in front of sys.path for the script
        self._imports: list[tuple[str, dict[str, Any] | None]] = []  # the state: where it is not the one before
        self._importing = ""
        self._by_library = False
        self._gpu_users: list[str] = []  # libraries that initialise CUDA while they are imported
        self._is_library = Libraries()
        self._refused = ""
        self._source = b""  # the record that a standby came from: it holds for its rank too

    @quiet
    def begin(self) -> None:
        """Begin, when nothing of the script ran."""
        if not self._source:
            self._refused = unusual_start()
            self._base = self._last = ProcessState()

    def repeat(self, source: bytes) -> None:
        """Write this record in place of an own one: in a standby, most imports came before the script."""
        self._source = source

    def importing(self, name: str) -> None:
        """Note that an import begins. Called for every module that is not loaded, so the usual case returns at once."""
        last = self._last
        if last is None:
            return
        try:
            outer = sys.modules.get(self._importing)
            if _is_initializing(outer):
                if not self._by_library:
                    self._by_library = self._is_library(outer)
                if self._by_library:
                    return
            self._importing, self._by_library = name, False
            if get_ident() == self._main_thread:
                self._note(name, last)
        except Exception as error:  # noqa: BLE001 - as layout.quiet, but the record must not pass for a complete one
            self._refused, self._last = f"its imports could not be followed: {type(error).__name__}: {error}", None

    def watch_cuda(self, module: Any) -> None:  # noqa: ANN401 - torch.cuda, which is not imported here
        """See that CUDA is initialised, by torch's own list of the calls that follow."""
        module._queued_calls.append((self._cuda_began, []))  # noqa: SLF001 - torch's, since 0.4

    @quiet
    def _cuda_began(self) -> None:
        """Note the import that is under way: it initialises CUDA, which takes memory of a GPU. No standby may try it."""
        if self._last is not None and _is_initializing(sys.modules.get(self._importing)):
            self._gpu_users.append(self._importing)

    def _note(self, name: str, last: ProcessState) -> None:
        if len(self._imports) == MOST_IMPORTS:
            raise OverflowError(MOST_IMPORTS)
        now = ProcessState(self.own_threads)
        base = [] if self._base is None else self._base.path
        # Python puts it there after site, so after a usercustomize
        if last.path == base and now.path[1:] == base and not getattr(sys.flags, "safe_path", False):
            self._path0 = now.path[0]
        changed = now.differing(last) or not self._imports
        self._imports.append((name, now.as_json(self._path0, self._base or now) if changed else None))
        self._last = now

    @quiet
    def write(self, *, final: bool) -> None:
        """Write the file; `final`: the rank made its first step, and no import is followed from here on."""
        process_identity = self._identity
        if not (process_identity.claimed and process_identity.enabled) or (self._base is None and not self._source):
            return
        path = os.path.join(process_identity.directory, f"imports-{process_identity.local_rank}.json")  # noqa: PTH118 - pathlib costs 5 ms of start-up
        if self._source:
            text = self._source
        else:
            import json  # noqa: PLC0415 - 3 ms at every start; torch has it by now

            text = json.dumps(self._content()).encode()
        fd = os.open(path + ".half", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:  # noqa: PTH123 - see above
            file.write(text)
        os.rename(path + ".half", path)  # noqa: PTH104 - see above
        if final:
            self._last = None

    def _content(self) -> dict[str, Any]:
        main = sys.modules["__main__"]
        path0 = self._path0
        loaded = [name for name in list(sys.modules) if name != "__main__" and name.partition(".")[0] not in OWN_PACKAGES]
        self._is_library.leave_out([path0, *(os.environ.get("PYTHONPATH") or "").split(os.pathsep)])
        modules: dict[str, list[Any]] = {}
        files = [getattr(main, "__file__", None)]
        for name in loaded:
            module = sys.modules.get(name)
            origin = origin_of(module)
            library = self._is_library(module)
            modules[name] = [origin, library]
            if not library and os.path.isabs(origin):  # noqa: PTH117 - as above
                files.append(origin)
        return {
            "v": 1,
            "refused": self._refused or customized(),
            "uneven": self._uneven(),
            "gpu_users": self._gpu_users,
            "executable": sys.executable,
            "version": sys.version,
            "path0": path0,
            "main_file": getattr(main, "__file__", None),
            "modules": modules,
            "imports": _once_each(self._imports),
            "files": stamps(files),
            "directories": stamps(self._is_library.directories),
        }

    def _uneven(self) -> list[str]:
        """Return the import before which the script did something else than in the attempt before, and what that was; [] for none."""
        path = os.path.join(self._identity.directory, f"{UNEVEN}-{self._identity.local_rank}")  # noqa: PTH118 - as above
        try:
            with open(path, encoding="utf-8") as file:  # noqa: PTH123 - as above
                return file.read().splitlines()
        except OSError:
            return []


class Libraries:
    """Recognises the modules of the interpreter's installation: the standard library, and installed packages."""

    def __init__(self) -> None:
        self.directories = library_directories()
        self._below = tuple(os.path.join(directory, "") for directory in self.directories)  # noqa: PTH118 - as above
        self._not_below: tuple[str, ...] = ()

    def leave_out(self, folders: Iterable[str | None]) -> None:
        """Take no module for a library's that lies in one of the script's folders, where that is itself in an installation."""
        script_folders = [os.path.join(os.path.realpath(folder), "") for folder in folders if folder]  # noqa: PTH118 - as above
        self._not_below = tuple(
            script_folder for script_folder in script_folders if script_folder.startswith(self._below) and script_folder not in self._below
        )

    def __call__(self, module: Any) -> bool:  # noqa: ANN401 - sys.modules may hold anything
        """Whether it is a library's module."""
        origin = origin_of(module)
        if not origin:
            return False
        if origin in ("built-in", "frozen"):
            return True
        return origin.startswith(self._below) and not (self._not_below and origin.startswith(self._not_below))


def _is_initializing(module: Any) -> bool:  # noqa: ANN401 - sys.modules may hold anything
    """Whether the import of a module is under way, by importlib's own mark."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _once_each(noted: list[tuple[str, dict[str, Any] | None]]) -> list[tuple[str, dict[str, Any] | None]]:
    """Keep of each name the last that was noted: what came before was a question whether it is there, or failed, and imported nothing."""
    last = {name: at for at, (name, _) in enumerate(noted)}
    kept: list[tuple[str, dict[str, Any] | None]] = []
    state = None
    for at, (name, own_state) in enumerate(noted):
        state = own_state or state  # that of an entry which is dropped holds for the next
        if last[name] == at:
            kept.append((name, state))
            state = None
    return kept


def warnings_filters() -> list[Any]:
    """Return the list that `warnings` goes by."""
    shown: list[Any] = getattr(sys.modules.get("warnings"), "filters", filters)
    return shown


def filter_rows(entries: list[Any]) -> list[Any]:
    """Return warnings filters as JSON values: [action, pattern, category, pattern, line]; a text where one is of another kind."""
    rows: list[Any] = []
    for entry in entries:
        try:
            action, message, category, module, line = entry
            place = f"{category.__module__}:{category.__qualname__}"
            rows.append([action, _pattern_row(message), place, _pattern_row(module), line])
        except Exception:  # noqa: BLE001 - a list that anybody may write to
            rows.append(repr(entry))
    return rows


def _pattern_row(pattern: Any) -> Any:  # noqa: ANN401 - a text, a compiled pattern or None
    return pattern if pattern is None or isinstance(pattern, str) else [pattern.pattern, pattern.flags]


def library_directories() -> list[str]:
    """Return the directories of the standard library and of the installed packages, those on PYTHONPATH too.

    Example: PYTHONPATH=/shared/env/lib/python3.11/site-packages, an environment that all nodes see.
    """
    site: Any = sys.modules.get("site")
    folders = [os.path.dirname(os.__file__)]  # noqa: PTH120 - as above
    if site is not None:
        folders += site.getsitepackages()
        if site.ENABLE_USER_SITE:
            folders.append(site.getusersitepackages())
    folders += [entry for entry in sys.path if os.path.basename(entry) in PACKAGES]  # noqa: PTH119 - as above
    spellings = [path for folder in folders for path in (folder, os.path.realpath(folder))]
    return [path for path in dict.fromkeys(spellings) if os.path.isdir(path)]  # noqa: PTH112 - as above


def origin_of(module: Any) -> str:  # noqa: ANN401 - as above
    """Return where a module came from: a path, "built-in", "frozen", or "" where that is unknown."""
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None) or getattr(module, "__file__", None)
    return origin if isinstance(origin, str) else ""


def stamps(paths: Iterable[str | None]) -> dict[str, list[int] | None]:
    """Return size, inode and modification time of files; None for an absent file."""
    stamp_of: dict[str, list[int] | None] = {}
    for path in paths:
        if path:
            try:
                stat = os.stat(path)  # noqa: PTH116 - as above
                stamp_of[path] = [stat.st_size, stat.st_ino, stat.st_mtime_ns]
            except OSError:
                stamp_of[path] = None
    return stamp_of


def unusual_start() -> str:
    """Return what makes every standby of this command too different from a rank, "" for nothing."""
    if any(_tracing()):
        return "a debugger, a coverage tool or a profiler is attached"
    if sys.flags.inspect or sys.flags.interactive or sys.flags.no_site or sys.flags.verbose or "importtime" in sys._xoptions:  # noqa: SLF001
        return "the interpreter runs with -i, -v or -X importtime"
    return ""


def customized() -> str:
    """Return which module of the user's ran before the script, in plain words; "" if none did, or did nothing."""
    for name in ("sitecustomize", "usercustomize"):
        if name in sys.modules and not does_nothing(origin_of(sys.modules[name])):  # our own leaves sys.modules
            return f"your own {name} runs before the script"
    return ""


def does_nothing(path: str) -> bool:
    """Whether a module's source has no effect: comments, constants and `pass` alone, or a hook of apport where there is no apport."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs 5 ms of start-up
            statements = [statement for statement in _statements(file.read()) if not _is_constant(statement)]
    except (OSError, SyntaxError, ValueError):  # no path; compiled code alone
        return False
    return not statements or (_shape(statements) == _shape(_statements(_INSTALLS_APPORT)) and not _has_apport())


def _statements(source: bytes) -> list[Any]:
    tree: Any = compile(source, "<string>", "exec", _ONLY_AST)
    return list(tree.body)


def _is_constant(statement: Any) -> bool:  # noqa: ANN401 - a node of ast, which is not imported for its types
    kind = type(statement).__name__
    return kind == "Pass" or (kind == "Expr" and type(statement.value).__name__ == "Constant")


def _shape(node: Any) -> Any:  # noqa: ANN401 - as above
    """Return a syntax tree without its places in the source."""
    if isinstance(node, list):
        return [_shape(each) for each in node]
    return (type(node).__name__, [_shape(getattr(node, name)) for name in node._fields]) if hasattr(node, "_fields") else node


def _has_apport() -> bool:
    finder: Any = sys.modules["_frozen_importlib_external"]
    return _APPORT in sys.modules or finder.PathFinder.find_spec(_APPORT) is not None


def _tracing() -> tuple[Any, ...]:
    """Return what sees each line, call or allocation: a debugger, coverage, a profiler. They see an import too; an absent one is false."""
    monitoring: Any = getattr(sys, "monitoring", None)  # since 3.12
    tools = () if monitoring is None else tuple(filter(None, map(monitoring.get_tool, range(6))))
    allocations: Any = sys.modules.get("_tracemalloc")
    return sys.gettrace(), sys.getprofile(), tools, allocations is not None and allocations.is_tracing()


def _loggers() -> dict[str, list[Any]]:
    """Return the setup of the loggers below the root: level, handlers, whether it hands on, whether it is off."""
    root = getattr(sys.modules.get("logging"), "root", None)
    loggers = [] if root is None else [each for each in root.manager.loggerDict.values() if hasattr(each, "level")]
    return {
        each.name: [each.level, len(each.handlers), each.propagate, each.disabled]
        for each in loggers
        if each.level or each.handlers or not each.propagate or each.disabled
    }


def _outputs() -> list[Any]:
    """Return whether prints, warnings and logs go where they went at the start."""
    warnings: Any = sys.modules.get("warnings")
    shown = getattr(warnings, "showwarning", None) is getattr(warnings, "_showwarning_orig", None)
    kept = type(getattr(warnings, "_showwarnmsg_impl", _outputs)) is type(_outputs)  # a list's method: catch_warnings(record=True)
    root = getattr(sys.modules.get("logging"), "root", None)
    off = 0 if root is None else root.manager.disable
    return [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, shown, kept, off]


def _torch() -> tuple[list[str], bool]:
    """Return torch's defaults for what an import may create, none before torch is imported, and whether it records gradients."""
    torch: Any = sys.modules.get("torch")
    if torch is None or getattr(torch.__spec__, "_initializing", False):
        return [], True
    device = getattr(sys.modules.get("torch.utils._device"), "CURRENT_DEVICE", None)
    return [str(torch.get_default_dtype()), str(device)], bool(torch.is_grad_enabled())
