"""The `supervise` command's first lines, under a name that nobody else has.

A user's PYTHONPATH may lead to a package of theirs named `supervisor`; a script that imported ours by that name would get theirs, and end
in a traceback. So it imports the package that lies beside this file. If another distribution (supervisord) put a package there, that one is
ours as well: see supervisor/__init__.py.
"""

from __future__ import annotations

import gc
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path


def main() -> int:
    """Run the command. Returns its exit code."""
    gc.disable()  # while modules are imported; cli/main.py and cli/start/run.py enable it
    spec = PathFinder.find_spec("supervisor", [str(Path(__file__).resolve().parent)])
    if spec is None:
        sys.exit(f"supervise: error: not whole: {__file__}: there is no package `supervisor` beside it; install torch-supervise again")
    package = module_from_spec(spec)
    sys.modules["supervisor"] = package
    if spec.loader is not None:  # without an __init__.py: supervisord took it away with itself
        spec.loader.exec_module(package)
    from supervisor.cli.first_process import end_on_signals  # noqa: PLC0415  now it is ours

    end_on_signals()
    from supervisor.cli.main import main as command  # noqa: PLC0415  likewise

    return command()
