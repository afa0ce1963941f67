"""`supervise status --probe live|ready`: the probes of a container (docs/guides/kubernetes.md).

live: the deciding loop of this job's supervise turns. Nothing else counts: not the training, not the disk. ready: and its ranks train. It
reads one small file in memory; only a run that found no room there keeps it on its disk.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from supervisor.cli import stdio
from supervisor.config.settings import ROWS
from supervisor.job import identity, loop_beat

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.cli.invocation import Invocation


def answer(invocation: Invocation, probe: str) -> int:
    """Print one line. Returns 0, and 1 where supervise is not alive or, for `ready`, its ranks do not train."""
    row = next(row for row in ROWS if row.key == "job.name")
    # no file is read for the job's name: it may lie on the disk that hangs
    job = identity.known_job_name(invocation.flags.get("job.name") or os.environ.get(row.env, ""), os.environ)
    now = time.monotonic()
    seen = loop_beat.newest(job, loop_beat.in_memory(), now, _state_root(invocation)) or loop_beat.newest(job, _on_disk(invocation), now)
    fault = f"no supervise{f' of job {job}' if job else ''} runs here" if seen is None else seen.fault(now)
    if not fault and probe == "ready" and seen is not None and not seen.ready:
        fault = f"job {seen.job}: its ranks do not train yet"
    stdio.write(sys.stdout, fault or (f"job {seen.job}: {probe}" if seen is not None else probe))
    return 1 if fault else 0


def _state_root(invocation: Invocation) -> str:
    """Return the state directory that the flag, the variable or the working directory means."""
    row = next(row for row in ROWS if row.key == "job.state_dir")
    given = invocation.flags.get("job.state_dir") or os.environ.get(row.env, "")
    return str(identity.working_directory() / str(given or row.default))


def _on_disk(invocation: Invocation) -> list[Path]:
    from supervisor.cli.jobs.job_files import places_in, state_root  # noqa: PLC0415  where nothing is in memory

    return [place.directory / "shm" for place in places_in(state_root(invocation.settings_to_read_with()))]
