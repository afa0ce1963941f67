"""What a script can find out about a standby that became its rank: the whole list, with the reason of each.

`names`: which observations of the probes it covers, as fnmatch takes them; none where a probe has to show it by itself.
docs/explanation/restarts.md has the table.
"""

from __future__ import annotations

from typing import NamedTuple


class Difference(NamedTuple):
    """One row."""

    names: tuple[str, ...]
    what: str
    why: str


DIFFERENCES = (
    Difference(("loaded_before",), "`sys.modules` holds the libraries when the script begins", "that is what a standby is for"),
    Difference(
        ("at_exit_before",),
        "What a library does while it is imported is done when the script begins: what it prints comes first, a file that it opens has a"
        " lower number, and its variables, filters, handlers and functions for the exit are there",
        "the import is over by then; after the script's own imports both are alike",
    ),
    Difference(("*sys.path_importer_cache*",), "`sys.path_importer_cache` has fewer entries", "Python reads a missing entry anew"),
    Difference(
        ("status.Vm*", "status.Rss*", "status.*ctxt_switches"),
        "The pid, the start time, processor time, memory figures and counts of context switches",
        "they belong to the process, and it has waited",
    ),
    Difference(
        ("modules.logging._startTime",), "`relativeCreated` of log records counts from the import of `logging`", "the import was earlier"
    ),
    Difference(
        ("raw",),
        "On a terminal the buffer of stdout has the size that it has for a pipe",
        "Python makes it before the terminal is there; each line is written at its end in both",
    ),
    Difference(("files.imports-0.json.*",), "The record of the imports", "it is the record from which the standby was made"),
)
