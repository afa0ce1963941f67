"""Lets a rank out of a standby have a library only where its script did before the import what the recorded rank's script had done.

A script may set variables, sys.path, warnings filters or the root logger before it imports torch, in one attempt and not in the next. The
standby imports under the values that the recorded rank had (preload.py), takes them back before the script begins, and keeps all modules of
installed packages out of sys.modules. When the script imports such a module, its own state is compared with the recorded one. Where it is
the same, the script gets the modules of that import, and its changes of that state. Where it is another one, this process starts cold:
it executes the rank's command again, and the next standby leaves that import to the rank. A process that others rely on by then does not.
"""
# ruff: noqa: PTH118, PTH123 - pathlib is imported where the rank imports it

from __future__ import annotations

import os
import sys

from . import imports
from .imports import SEEN, SETTABLE, ProcessState, changed_variables
from .layout import quiet
from .settable_state import WORDS, apply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, NoReturn


#: multiprocessing's name of the script. It comes where it came in the rank: pickle looks for the module of an object, and takes the first
#: that has it, so the keys of inductor's cache would be others.
_MAIN = "__mp_main__"


class Gate:
    """One import of the recorded rank. `modules`: those of installed packages that it loaded, by name, in their order.

    before, after: the state on both sides of it. touched: the variables of which the script, or an import, had made something else by then.
    """

    __slots__ = ("after", "before", "holders", "is_open", "modules", "name", "touched")

    def __init__(self, name: str, before: ProcessState, at_first: ProcessState) -> None:
        self.name, self.before, self.after = name, before, before
        self.touched = {*changed_variables(at_first, before)}
        self.modules: dict[str, Any] = {}
        self.holders: list[tuple[dict[str, Any], str, Any]] = []  # a package that was loaded before, and its references to `modules`
        self.is_open = False

    def end(self, after: ProcessState, known: set[str]) -> None:
        """Note the modules that the import added to `known`, and its changes."""
        self.after = after
        loaded = {name: module for name, module in sys.modules.items() if name not in known}
        if any(_is_kept(*row) for row in loaded.items()):
            self.modules = {name: module for name, module in loaded.items() if name == _MAIN or _is_kept(name, module)}

    def close(self) -> None:
        """Hide from the packages that were loaded before it what they hold of its modules."""
        for name, module in self.modules.items():
            parent, _, child = name.rpartition(".")
            holder: Any = getattr(sys.modules.get(parent), "__dict__", {}) if parent not in self.modules else {}
            if holder.get(child) is module:
                self.holders.append((holder, child, holder.pop(child)))

    def open(self) -> None:
        """Put its modules where they belong."""
        self.is_open = True
        for name, module in self.modules.items():
            sys.modules.setdefault(name, module)
        for holder, child, module in self.holders:
            holder.setdefault(child, module)


class Gates:
    """The gates of one process, in the order of its imports. `argv`, `env`, `cwd`: of the cold start."""

    def __init__(self, gates: list[Gate], argv: list[str], env: dict[str, str], cwd: str) -> None:
        self._order = gates
        self._gates = {name: gate for gate in gates for name in gate.modules}
        self._argv, self._env, self._cwd = argv, env, cwd
        self._marker = ""
        self._start = ProcessState()
        self._traits: ProcessTraits | None = None
        self._is_committed: Callable[[], bool] = bool
        self._all_open: Callable[[], object] = bool
        for gate in gates:
            gate.close()
        for name in self._gates:
            sys.modules.pop(name, None)

    def begin(self, directory: str, local_rank: int, is_committed: Callable[[], bool], all_open: Callable[[], object]) -> None:
        """Note the state in which the script begins, right before it does.

        is_committed: whether it is too late to start cold. all_open: called once the script has done all that was recorded.
        """
        self._marker = os.path.join(directory, f"{imports.UNEVEN}-{local_rank}")
        self._start, self._traits = ProcessState(), ProcessTraits()
        self._is_committed, self._all_open = is_committed, all_open
        if not self._order:
            all_open()

    def spec(self, name: str) -> ModuleSpec | None:
        """Return the import spec of a module that is kept back; None for every other module."""
        gate = self._gates.get(name)
        if gate is None:
            return None
        bootstrap: Any = sys.modules["_frozen_importlib"]  # importlib.machinery would be one more module that is loaded
        known: Any = getattr(gate.modules[name], "__spec__", None)
        spec: ModuleSpec = bootstrap.ModuleSpec(name, _KeptBack(self, gate, name), origin=getattr(known, "origin", None))
        spec.submodule_search_locations = getattr(known, "submodule_search_locations", None)
        return spec

    def open(self, gate: Gate) -> None:
        """Give the modules of an import to the script, and of those before it; start cold where the script did something else."""
        while not gate.is_open:
            each = self._order[0]
            why = self._difference(each)
            is_late = bool(why) and self._is_committed()
            if why and not is_late:
                self._start_cold(each.name, why)
            each.open()
            apply(each.after, each.before, ("variables",) if is_late else SETTABLE)  # lists that the script changed meanwhile are left
            for name in each.modules:
                self._gates.pop(name, None)
            self._order = [other for other in self._order if not other.is_open]  # two threads may be here
            if not self._order:
                self._all_open()

    def _difference(self, gate: Gate) -> str:
        """Return what the script made otherwise than the recorded one did, "" for nothing."""
        now, before, start = ProcessState(), gate.before, self._start.variables
        for name in {*now.variables, *before.variables, *start}:
            expected = before.variables.get(name) if name in gate.touched else start.get(name)
            if now.variables.get(name) != expected:
                return os.fsdecode(name)
        changed = [field for field in now.differing(before) if field in SETTABLE[1:]]
        changed += [field for field in now.differing(self._start) if field in SEEN and field != "torch"]
        return WORDS[changed[0]] if changed else ""

    def _start_cold(self, name: str, why: str) -> NoReturn:
        """Execute the rank's command in place of this process. Output in a buffer is dropped: it is printed again."""
        self._mark(name, why)
        if self._traits is not None:
            self._traits.restore()
        os.chdir(self._cwd)
        os.execve(sys.executable, self._argv, self._env)  # noqa: S606 - this very interpreter

    @quiet
    def _mark(self, name: str, why: str) -> None:
        """Leave word for the next standby. Where the attempt's directory is gone or full, it merely finds out anew."""
        with open(self._marker, "w", encoding="utf-8") as file:
            file.write(f"{name}\n{why}\n")


class ProcessTraits:
    """State that a process keeps when it executes another program, and that a script may have changed."""

    def __init__(self) -> None:
        import _signal  # type: ignore[import-not-found]  # noqa: PLC0415 - built in

        self._signal: Any = _signal
        self._ignored = self._ignored_signals()
        self._mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, [])
        self._umask = os.umask(0)
        os.umask(self._umask)
        self._processors = os.sched_getaffinity(0)
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._limits = _limits()

    def restore(self) -> None:
        """Restore the old value, as far as this process may."""
        for number in self._ignored_signals() - self._ignored:
            self._signal.signal(number, self._signal.SIG_DFL)
        for timer in (self._signal.ITIMER_REAL, self._signal.ITIMER_VIRTUAL, self._signal.ITIMER_PROF):
            self._signal.setitimer(timer, 0)
        self._signal.pthread_sigmask(self._signal.SIG_SETMASK, self._mask)
        os.umask(self._umask)
        quiet(os.sched_setaffinity)(0, self._processors)
        quiet(os.setpriority)(os.PRIO_PROCESS, 0, self._nice)
        if self._limits != _limits():
            import resource  # noqa: PLC0415 - this program ends here

            for number, limits in enumerate(self._limits):
                quiet(resource.setrlimit)(number, limits)

    def _ignored_signals(self) -> set[int]:
        return {number for number in range(1, 65) if self._signal.getsignal(number) == 1}


def _limits() -> list[tuple[int, int]]:
    """Return the limits by their number, which is their place in the kernel's table; `resource` would be one more module that is loaded."""
    with open("/proc/self/limits", "rb") as file:
        rows = [row[26:].split()[:2] for row in file.read().splitlines()[1:]]
    return [(_limit(soft), _limit(hard)) for soft, hard in rows]


def _limit(text: bytes) -> int:
    return -1 if text == b"unlimited" else int(text)


def _is_kept(name: str, module: Any) -> bool:  # noqa: ANN401 - sys.modules may hold anything
    """Whether it is neither the shim's nor the interpreter's own: those read nothing of what a script sets."""
    package = name.partition(".")[0]
    origin = imports.origin_of(module) or imports.origin_of(sys.modules.get(package))  # typing.io has none
    is_interpreters = origin in ("built-in", "frozen") or (os.path.isabs(origin) and "-packages" not in origin)  # noqa: PTH117 - as above
    return not is_interpreters and package not in imports.OWN_PACKAGES


class _KeptBack:
    """A loader that gives a module which was imported before."""

    def __init__(self, gates: Gates, gate: Gate, name: str) -> None:
        self._gates, self._gate = gates, gate
        self._module: Any = gate.modules[name]
        self._attributes = set(getattr(self._module, "__dict__", ()))
        self._spec: Any = getattr(self._module, "__spec__", None)

    def create_module(self, _spec: ModuleSpec) -> Any:  # noqa: ANN401 - as above
        self._gates.open(self._gate)
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing but take back what importlib has set by the spec of `Gates.spec`."""
        if self._spec is not None:
            quiet(setattr)(module, "__spec__", self._spec)
        for name in set(getattr(module, "__dict__", ())) - self._attributes:
            quiet(delattr)(module, name)
