"""Makes sure that `checkpointing` and `health` are of this project, whatever else has these names.

The user's package of such a name, in the working directory or on PYTHONPATH, stays for the ranks and is ignored here. An *installed* one
that comes before this project's is an error (78): the script's own `import checkpointing` would find it.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from supervisor.errors import SuperviseError

NAMES = ("checkpointing", "health")
_ROOT = Path(__file__).resolve().parents[2]
_INSTALLED = frozenset({"site-packages", "dist-packages"})


def pin_our_packages(root: Path = _ROOT) -> None:
    """Make our packages importable by their names, from `root`. Raises SuperviseError (78) naming an installed file that shadows one."""
    for name in NAMES:
        own_spec = PathFinder.find_spec(name, [str(root)])
        if own_spec is None or own_spec.origin is None or own_spec.loader is None:
            continue  # not part of this installation
        spec = PathFinder.find_spec(name)
        origin = Path(spec.origin).resolve() if spec is not None and spec.origin is not None else Path(own_spec.origin).resolve()
        if origin == Path(own_spec.origin).resolve():
            continue
        if _INSTALLED.intersection(origin.parts):
            raise SuperviseError(
                f"another package has the name of one of supervise's: {name}: {origin} comes before {own_spec.origin}",
                hint="Uninstall the distribution it belongs to, or install torch-supervise in an environment of its own.",
            )
        module = importlib.util.module_from_spec(own_spec)
        sys.modules[name] = module
        own_spec.loader.exec_module(module)
