"""Entry: `python -I -S <this directory> --link-fd N …`.

The package is made importable under the name `guardian`, from the end of sys.path, so that no file beside it can shadow the
standard library and `supervisor/__init__.py` (which others may own) is never run.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    here = sys.path.pop(0)
    sys.path.append(here.rpartition("/")[0] or "/")
    import importlib

    sys.exit(importlib.import_module("guardian.loop").main(sys.argv[1:]))
