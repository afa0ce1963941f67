"""What a script can find out about a standby that became its rank: the whole list, with the reason of each.

`names`: which observations of the probes it covers, as fnmatch takes them; none where a probe has to show it by itself.
docs/explanation/restarts.md has the table.
"""

from __future__ import annotations

from typing import NamedTuple


class Difference(NamedTuple):
    """One row."""

    names: tuple[str, ...]
    subject: str
    why: str


DIFFERENCES = (
    Difference(
        ("loaded_before", "files.beats.*.over_ns"),  # the end of a script is seen in threading, if that is loaded
        "`sys.modules` holds the interpreter's own modules at the start, later all that the recorded rank had by then",
        "that is what a standby is for",
    ),
    Difference(
        ("at_exit_before",),
        "What a library does at its import comes before the script: output, files, handlers",
        "the import is over",
    ),
    Difference(("*sys.path_importer_cache*",), "`sys.path_importer_cache` has fewer entries", "Python reads a missing entry anew"),
    Difference(
        ("status.Vm*", "status.Rss*", "status.*ctxt_switches"),
        "pid, start time, processor time, memory figures, context switches",
        "the process has waited",
    ),
    Difference(("modules.logging._startTime",), "`relativeCreated` of log records counts from the import of `logging`", "it was earlier"),
    Difference(
        ("raw",),
        "stdout's buffer on a terminal has the size for a pipe",
        "the terminal came later",
    ),
    Difference(
        ("files.imports-0.json.*", "files.beats.*.imported"),
        "the record of the imports",
        "it is the one by which the standby imported",
    ),
)
