"""Prints what a probe observed, as one JSON object. It lies beside the probes as a user's own modules do, so no standby may preload it."""

from __future__ import annotations

import ctypes  # noqa: F401 - a standby needs it, and torch has it
import json
import re
import socket  # noqa: F401 - as above
import sys
import types
from typing import Any

_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
_PLAIN = (bool, int, float, complex, str, bytes, type(None), range, slice, re.Pattern)
_MOST = 2000


def show(**facts: Any) -> None:  # noqa: ANN401 - whatever a probe saw
    """Print the facts on one line, and see that it is out."""
    recorded()
    sys.stdout.write(json.dumps(facts, sort_keys=True, default=described) + "\n")
    sys.stdout.flush()


def described(value: Any, depth: int = 3) -> Any:  # noqa: ANN401 - anything may be described
    """Return a value as JSON takes it, the same in two processes: no address, no order of a set."""
    if isinstance(value, (bool, int, str, type(None))) and type(value) in _PLAIN:
        return _ADDRESS.sub("0x", value)[:_MOST] if isinstance(value, str) else value
    if type(value) in _PLAIN:
        return f"{type(value).__name__}:{value!r}"[:_MOST]
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if depth and isinstance(value, (list, tuple)):
        return [type(value).__name__, *(described(item, depth - 1) for item in value[:_MOST])]
    if depth and isinstance(value, (set, frozenset)):
        return [type(value).__name__, *sorted(str(described(item, depth - 1)) for item in value)]
    if depth and isinstance(value, (dict, types.MappingProxyType)):
        rows = list(value.items())[:_MOST]
        return {_key(key, depth): described(item, depth - 1) for key, item in rows}
    return f"a {type(value).__module__}.{type(value).__qualname__}"


def _key(key: Any, depth: int) -> str:  # noqa: ANN401 - as above
    """Return a key of a dictionary; one that is a thread's or an object's identity is none."""
    return "identity" if type(key) is int and key > 1 << 32 else str(described(key, depth - 1))


def modules() -> dict[str, dict[str, Any]]:
    """Return everything plain that the loaded modules hold, but for the script's own."""
    mine = (sys.modules["__main__"], sys.modules["observed"])
    return {name: attributes(module) for name, module in list(sys.modules.items()) if module not in mine}


def attributes(module: Any) -> dict[str, Any]:  # noqa: ANN401 - not everything in sys.modules is a module
    """Return the plain attributes of a module, and its names."""
    held = getattr(module, "__dict__", {})
    rows = {name: described(value) for name, value in list(held.items()) if name not in {"__builtins__", "__warningregistry__"}}
    return {**rows, "(warned about)": sorted(str(key) for key in held.get("__warningregistry__", ()))}


def recorded() -> None:
    """Have the shim write what was imported, as it does at a rank's first step; nothing in a process that is no rank."""
    shim = sys.modules.get("_supervise_shim")
    if shim is not None and shim.instrument is not None:
        shim.instrument._imports.write(final=True)
