"""The parts of a bundle, the most important first, and the source of each."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
from collections import deque
from functools import partial
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from checkpointing.io import durable
from health.model import KERNEL
from supervisor.cli import stdio
from supervisor.cli.bundle import archive
from supervisor.cli.bundle.archive import AbsentError, BundleContents
from supervisor.cli.jobs import job_status, log_files
from supervisor.cli.jobs.job_files import MOST_LISTED, JobFiles, earlier_views
from supervisor.cli.start.config import settings_table
from supervisor.core.units import bytes_text
from supervisor.core.values import Struct
from supervisor.errors import ExitCode, SuperviseError
from supervisor.job import identity
from supervisor.journal.records import frames
from supervisor.launch import system_command
from supervisor.observe.processes import stack_dumps
from supervisor.report.layout import Surface
from supervisor.report.table import render_table
from supervisor.version import __version__
from supervisor.view.incidents import RecordedIncident
from supervisor.view.job_view import JobView

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from health.doctor import Diagnosis
    from supervisor.config.settings import Settings

#: Bytes of one rank's output, its streams together.
RANK_BYTES: Final = 2 << 20
_LOG_BYTES: Final = 1 << 20
_JOURNAL_BYTES: Final = 8 << 20
#: Read beyond a text's limit, so that its first line is redacted in view of those before it.
_CONTEXT_BYTES: Final = 1 << 16
#: Records of the journal from so long before an incident until so long after it.
_AROUND_S: Final = 600.0
_SMI_DEADLINE_S: Final = 20.0
_TIME: Final = re.compile(rb'\{"seq":\d+,"t":(?P<t>[0-9.eE+-]+),')
_ALWAYS: Final = (b'"kind":"header"', b'"kind":"run"')
_VIEW: Final = b'"kind":"view"'
_HEAD: Final = 120


class BundleSubject(Struct, frozen=True):
    """The subject of a bundle. journal: the file of the incident's run. run: that run where it is an earlier one, else ""."""

    place: JobFiles
    view: JobView
    journal: Path
    incident: RecordedIncident | None
    run: str

    @property
    def attempt(self) -> int:
        """The attempt whose output goes in: the last that failed in the incident, else the job's last; 0 for none."""
        if self.incident is not None and self.incident.failures:
            return self.incident.failures[-1].attempt
        return self.view.attempt or max(log_files.attempts(self.place.directory, self.run), default=0)


def find_subject(place: JobFiles, view: JobView, number: int | None) -> BundleSubject:
    """Return what a bundle is about: the incident of this number, or the last one, those of earlier runs included; without any, the job.

    Raises SuperviseError (64) where there is no incident of this number.
    """
    current = view.run.run_id if view.run is not None else ""
    there: list[int] = []
    for path, of_file in chain([(place.journal, view)], earlier_views(place)):
        for incident in reversed(of_file.incidents):
            if number in (None, incident.number):
                return BundleSubject(place, of_file, path, incident, "" if incident.run_id == current else incident.run_id)
            there.append(incident.number)
    if number is not None:
        hint = f"Name one of these: {', '.join(map(str, there[:MOST_LISTED]))}." if there else "Leave the number out."
        raise SuperviseError(f"no such incident: job {place.job}: {number}", hint=hint, exit_code=ExitCode.USAGE)
    return BundleSubject(place, view, place.journal, None, "")


def fill(
    contents: BundleContents, subject: BundleSubject, settings: Settings, diagnose: Callable[[], Diagnosis], *, asks_stacks: bool
) -> None:
    """Add every part. diagnose: examines this node. asks_stacks: signal the ranks that live to write their stacks."""
    directory, incident = subject.place.directory, subject.incident
    if incident is not None:
        kept = identity.incident_dir(directory, incident.number)
        contents.add("card.txt", str(kept / "card.txt"), partial(_end, kept / "card.txt", _LOG_BYTES))
        contents.add(
            "evidence.json", str(kept / "evidence.json"), lambda: json.loads((kept / "evidence.json").read_bytes()), archive.document
        )
    contents.add(
        "status.json", "supervise status --json", lambda: json.loads(stdio.json_text(job_status.status_of(subject.place))), archive.document
    )
    contents.add("settings.txt", "supervise config show", lambda: render_table(settings_table(settings), Surface(folds=False)))
    contents.add("versions.json", "this Python", _versions, archive.document)
    diagnosis = diagnose()
    contents.add("doctor.json", "supervise doctor --json", diagnosis.to_json, archive.document)
    contents.add("kernel-findings.json", "the kernel's log", partial(_kernel_findings, diagnosis), archive.document)
    contents.add("nvidia-smi.txt", "nvidia-smi -q", _nvidia_smi)
    contents.add("journal.jsonl", str(subject.journal), partial(_journal, subject), archive.records)
    contents.add(
        "supervise.log", str(directory / "supervise.log"), partial(_end, directory / "supervise.log", _LOG_BYTES), most_bytes=_LOG_BYTES
    )
    _add_stacks(contents, subject, asks=asks_stacks)
    _add_output(contents, subject)


def _add_stacks(contents: BundleContents, subject: BundleSubject, *, asks: bool) -> None:
    """Add the stacks files of the run that are still there, and where the ranks are asked what they answer."""
    run = subject.view.run
    if run is None or not run.scratch or subject.run:
        return
    now = identity.attempt_dir(run.scratch, subject.view.attempt)
    for rank in subject.view.ranks if asks else ():
        name = f"stacks/rank-{rank.rank}-now.txt"
        contents.add(name, f"process {rank.pid}", partial(stack_dumps.request, rank.pid, rank.start_ticks, now))
    for path in sorted(Path(run.scratch).glob("attempt-*/stacks-*.txt")):
        with contextlib.suppress(OSError):  # gone meanwhile
            if path.stat().st_size:
                name = f"stacks/{path.parent.name}-{path.name.removeprefix('stacks-')}"
                contents.add(name, str(path), partial(_end, path, _LOG_BYTES), most_bytes=_LOG_BYTES)


def _add_output(contents: BundleContents, subject: BundleSubject) -> None:
    """Add the end of each rank's output: of the rank that failed first, then of the launcher, then of the others."""
    first = subject.incident.rank if subject.incident is not None else None
    streams = log_files.streams(log_files.of_run(subject.place.directory, subject.run) / f"{subject.attempt:04d}", None)
    count: dict[int | None, int] = {}
    for current, _ in streams:
        rank = log_files.rank_of(current)
        count[rank] = count.get(rank, 0) + 1
    for current, parts in sorted(streams, key=lambda stream: log_files.rank_of(stream[0]) != first):
        most = RANK_BYTES // count[log_files.rank_of(current)]
        contents.add(f"logs/{current.name}", str(current), partial(_end_of_all, parts, most), most_bytes=most)
    if not streams:
        contents.left_out.append(
            ("logs/", f"attempt {subject.attempt} of this run wrote nothing that is kept" if subject.attempt else "no attempt")
        )


def _end(path: Path, most: int) -> bytes:
    return _end_of_all([path], most)


def _end_of_all(parts: Sequence[Path], most: int) -> bytes:
    """Return the end of a stream over its rotated parts, from the beginning of a line: half a secret is recognised by nothing.

    It has up to _CONTEXT_BYTES more than `most`, which are cut off once all of it is redacted.
    """
    left, blocks = most + _CONTEXT_BYTES, []
    is_whole = True
    for at, path in enumerate(reversed(parts)):
        with os.fdopen(durable.open_regular(str(path)), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - left))
            blocks.append(file.read(left))
        is_whole = size < left or (size == left and at + 1 == len(parts))
        left -= len(blocks[-1])
        if left <= 0:
            break
    data = b"".join(reversed(blocks))
    if is_whole:
        return data
    line_end = re.search(rb"[\r\n]", data)
    if line_end is None:
        raise AbsentError(f"its last {bytes_text(len(data))} are one line: it may hold half a secret")
    return data[line_end.end() :]


def _journal(subject: BundleSubject) -> deque[Any]:
    """Return the records around the incident, or of the last minutes, as JSON values; those that name the job and its runs always."""
    incident, view = subject.incident, subject.view
    begin = (view.last_t if incident is None else incident.opened_t) - _AROUND_S
    end = view.last_t if incident is None or incident.closed_t is None else incident.closed_t + _AROUND_S
    heads: deque[Any] = deque()
    kept: deque[tuple[int, Any]] = deque()
    size = 0
    for rec in frames(subject.journal):
        if not isinstance(rec, bytes) or _VIEW in rec[:_HEAD]:  # a view repeats what the records have, of other incidents too
            continue
        if any(kind in rec[:_HEAD] for kind in _ALWAYS):
            heads.append(json.loads(rec))
            continue
        match = _TIME.match(rec)
        if match is None or not begin <= float(match["t"]) <= end:
            continue
        kept.append((len(rec), json.loads(rec)))
        size += len(rec)
        while size > _JOURNAL_BYTES:
            size -= kept.popleft()[0]
    return deque(sorted([*heads, *(record for _, record in kept)], key=lambda record: int(record["seq"])))


def _kernel_findings(diagnosis: Diagnosis) -> Any:  # noqa: ANN401  JSON
    reading = diagnosis.readings.one("kernel.findings", KERNEL)
    if reading is None or reading.problem:
        raise AbsentError("not read" if reading is None else reading.problem)
    return reading.value


def _nvidia_smi() -> str:
    answer = system_command.run_system_command(("nvidia-smi", "-q"), _SMI_DEADLINE_S)
    if answer is None:
        raise AbsentError(f"nvidia-smi did not answer within {_SMI_DEADLINE_S:.0f} s")
    if not answer.text:
        raise AbsentError("nvidia-smi is not here")
    return answer.text


def _versions() -> dict[str, Any]:
    packages = {str(distribution.metadata["Name"]): distribution.version for distribution in metadata.distributions()}
    system = {}
    with contextlib.suppress(OSError):
        system = platform.freedesktop_os_release()
    return {
        "supervise": __version__,
        "python": platform.python_version(),
        "system": system.get("PRETTY_NAME", ""),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "packages": dict(sorted(packages.items(), key=lambda package: package[0].lower())),
    }
