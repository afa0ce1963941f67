"""`python -m tests.simulation`: the same as `supervise simulate`."""

from __future__ import annotations

import sys

from supervisor.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["simulate", *sys.argv[1:]]))
