"""Sets what a script may have set before it imports: variables, sys.path, warnings filters, the root logger, the working directory.

A standby sets them as the recorded rank had them, imports, and takes them back (preload.py). Once its script has set the same, it gets what
that import changed of them (gates.py).
"""

from __future__ import annotations

import os
import sys

from .imports import SETTABLE, ProcessState, changed_variables, filter_rows, warnings_filters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

#: The fields of ProcessState, as a person calls them.
WORDS = {
    "path": "sys.path",
    "filters": "the warnings filters",
    "logging": "the root logger",
    "cwd": "the working directory",
    "grad": "whether torch records gradients",
    "hooks": "the import hooks",
    "tracing": "what traces it",
    "torch": "torch's defaults",
    "signals": "signal handlers",
    "threads": "the number of threads",
    "at_exit": "the calls at exit",
    "outputs": "where its output goes",
}


def apply(state: ProcessState, before: ProcessState, fields: Collection[str] = SETTABLE) -> None:
    """Set those of the fields in which `state` differs from `before`. Raises OSError where the working directory cannot be entered."""
    changed = {*state.differing(before)} & {*fields}
    if "variables" in changed:
        for name in changed_variables(before, state):
            value = state.variables.get(name)
            if value is None:
                os.environ.pop(os.fsdecode(name), None)
            else:
                os.environ[os.fsdecode(name)] = os.fsdecode(value)
    if "path" in changed:
        sys.path[:] = state.path
    if "filters" in changed:
        _set_filters(state.filters)
    root = _root_logger()
    if "logging" in changed and root is not None:
        root.level, root.handlers[:] = state.logging[0], state.handlers
        getattr(root.manager, "_clear_cache", bool)()  # the levels that loggers have cached
    if "cwd" in changed:
        os.chdir(state.cwd)
    if "grad" in changed:  # torch.compile imports while it records none
        sys.modules["torch"].set_grad_enabled(state.grad)


def recorded(row: dict[str, Any], path0: str | None, base: ProcessState) -> ProcessState | None:
    """Return the state that the recorded rank had, with the objects of this process; None where it cannot be made here.

    row: as ProcessState.as_json returned it there. base: this process before its first import.
    """
    state = ProcessState()
    state.variables = dict(base.variables)
    for name, value in row["variables"].items():
        if value is None:
            state.variables.pop(os.fsencode(name), None)
        else:
            state.variables[os.fsencode(name)] = os.fsencode(value)
    state.path = [(path0 or "") if entry is None else entry for entry in row["path"]]
    filters = {repr(known): entry for known, entry in zip(filter_rows(state.filters), state.filters)}  # noqa: B905 - no `strict` before Python 3.10
    state.filters = [filters.get(repr(entry)) or _filter(entry) for entry in row["filters"]]
    missing = row["logging"][1] - len(state.handlers)
    is_loaded = (_root_logger() is not None or row["logging"] == state.logging) and (row["grad"] or "torch" in sys.modules)
    state.logging, state.cwd, state.grad = row["logging"], row["cwd"], row["grad"]
    if missing < 0 or not is_loaded or None in state.filters or not os.path.isdir(state.cwd):  # noqa: PTH112 - pathlib is imported where the rank imports it
        return None
    state.handlers += [StandInHandler() for _ in range(missing)]
    return state


class StandInHandler:
    """Takes the place of a handler of the script in the root logger, and shows nothing. `was_used`: a library logged something."""

    level = 0
    was_used = False

    def handle(self, _record: object) -> None:
        """Note that a library logged something. One that asks for more of a handler than this fails, and is left to the rank."""
        self.was_used = True


def was_logged() -> bool:
    """Whether a library logged what the script's own handler would have shown."""
    root = _root_logger()
    return root is not None and any(isinstance(handler, StandInHandler) and handler.was_used for handler in root.handlers)


def _root_logger() -> Any:  # noqa: ANN401 - a logger of logging, which is not imported here
    return getattr(sys.modules.get("logging"), "root", None)


def _set_filters(filters: list[Any]) -> None:
    warnings_filters()[:] = filters
    warnings: Any = sys.modules.get("warnings")
    mutated = getattr(warnings, "_filters_mutated", None)
    if mutated is not None:
        mutated()
    elif hasattr(warnings, "_filters_mutated_lock_held"):  # since Python 3.14
        with warnings._lock:  # noqa: SLF001 - as warnings itself does
            warnings._filters_mutated_lock_held()  # noqa: SLF001 - as above


def _filter(row: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the filter of a row; None where its category is not a class of a module that is loaded."""
    if isinstance(row, str):
        return None
    action, message, place, module, line = row
    name, _, path = place.partition(":")
    category: Any = sys.modules.get(name)
    for name_in_path in path.split("."):
        category = getattr(category, name_in_path, None)
    return (action, _pattern(message), category, _pattern(module), line) if isinstance(category, type) else None


def _pattern(row: Any) -> Any:  # noqa: ANN401 - JSON
    if row is None or isinstance(row, str):
        return row
    import re  # noqa: PLC0415 - the script that made the pattern has imported it

    return re.compile(row[0], row[1])
