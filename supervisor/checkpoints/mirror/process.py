"""Runs the mirror's process: starts it, feeds it, starts it again after its death, and gives it time at the end.

Nothing that it does reaches the job. After its death a checkpoint is given to it again, unless it reported that its spool on disk holds it.
The process is a session of its own, so that a terminal's Ctrl-C does not reach it, and it ends when its stdin does.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from checkpointing.manifest import documents
from checkpointing.mirror import keys
from checkpointing.mirror.messages import EVENTS
from supervisor.guardian import ownership
from supervisor.launch.environment import job_environment
from supervisor.report.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from checkpointing.manifest.documents import Manifest
    from checkpointing.mirror.messages import MirrorCheckpoint, MirrorCommand, MirrorConfiguration, MirrorEvent
    from supervisor.config.settings import Settings
    from supervisor.job.job import Job

FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 60.0
_STOP_S: Final = 5.0
_REFUSED: Final = 78
_HELD: Final = 75
_HELD_ALERTS: Final = 4  # so many starts in a row that meet another process: that of a supervisor that was killed needs some seconds to end
_LASTED_S: Final = 60.0  # a process that lived so long is not in a loop of deaths


def s3_options(settings: Settings) -> dict[str, Any]:
    """Return how S3 is reached, as checkpointing.mirror.backends.S3Options takes it."""
    return {"sse": settings.checkpoints.sse}


def mirrors(settings: Settings) -> list[str]:
    """Return the places, a directory as an absolute path: the working directory's, wherever it was written."""
    return [url if "://" in url else str(Path(settings.cwd, url)) for url in settings.checkpoints.mirror]


def _by_path(rows: Iterable[MirrorCheckpoint]) -> list[MirrorCheckpoint]:
    """Return the last row of each path: it has the newest manifest."""
    return list({row["path"]: row for row in rows}.values())


class MirrorLink:
    """One mirror process after another. `on_event` gets each row that it writes, in a thread of ours."""

    def __init__(self, job: Job, on_event: Callable[[MirrorEvent], None]) -> None:
        """Nothing runs before `start`."""
        checkpoints = job.settings.checkpoints
        self._on_event = on_event
        self._environ = job_environment(job.environ)
        self._configuration: MirrorConfiguration = {
            "cmd": "configure",
            "spool": str(job.state / "spool"),
            "mirrors": mirrors(job.settings),
            "job": job.name,
            "bandwidth_mib_s": checkpoints.bandwidth_mib_s or None,
            "keep": checkpoints.mirror_keep or None,
            "keep_every": checkpoints.keep_every or None,
            "s3": s3_options(job.settings),
        }
        self._queue: queue.SimpleQueue[MirrorCommand | None] = queue.SimpleQueue()
        self._changed = threading.Lock()
        self._pending: list[MirrorCheckpoint] = []  # what was asked and is not held yet: to one path a job may save again and again
        self._whole_saves: frozenset[str] = frozenset()  # keys, as the process reported them
        self._held: dict[str, frozenset[str]] = dict.fromkeys(self._configuration["mirrors"], frozenset())
        self._spooled = (0, 0)  # entries in its spool and their bytes, as it reported last
        self._sent: dict[str, int] = {}  # bytes of what is being sent to each mirror
        self._left: int | None = None  # entries in its spool, None while it is busy or has not reported
        self._still_since: float | None = None  # something waits, and nothing has moved since then (monotonic seconds)
        self._busy_since: float | None = None  # there has been something to upload ever since then (monotonic seconds)
        self._n_held = 0
        self._last_error_line = ""
        self._closing = threading.Event()
        self._until = 0.0  # when it is closing: how long it may send what is left (monotonic seconds)
        self._given_up = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)

    def start(self) -> None:
        """Start the process, soon."""
        self._thread.start()

    def send(self, manifest: Manifest) -> None:
        """Send a checkpoint to the mirrors; return at once."""
        row: MirrorCheckpoint = {
            "cmd": "mirror",
            "path": manifest.path,
            "step": manifest.step,
            "manifest": documents.encode(manifest).decode("ascii"),
        }
        with self._changed:
            self._pending.append(row)
            self._held = {mirror: held - {manifest.path} for mirror, held in self._held.items()}  # its new content is not there yet
            self._left = None
            self._still_since = self._still_since or time.monotonic()
            self._busy_since = self._busy_since or time.monotonic()
        self._queue.put(row)

    def is_sending(self, path: str, name: str) -> bool:
        """Return whether a checkpoint is still to be sent, by its keys.spool_name: asked for and not held, or held in the spool."""
        with self._changed:
            pending = any(row["path"] == path for row in self._pending)
        return pending or os.path.exists(f"{self._configuration['spool']}/{name}/entry.json")  # noqa: PTH110 (as the spool does)

    def held_paths(self) -> dict[str, frozenset[str]]:
        """Return the paths of the checkpoints that each mirror was seen to hold since we began."""
        with self._changed:
            return dict(self._held)

    def whole_saves(self) -> frozenset[str]:
        """Return the keys of the saves of several nodes that were seen whole in a mirror since we began."""
        with self._changed:
            return self._whole_saves

    def waits_s(self) -> float:
        """Return how long a checkpoint has waited without any upload moving, in seconds; 0 where none waits."""
        with self._changed:
            return 0.0 if self._still_since is None else time.monotonic() - self._still_since

    def behind_s(self) -> float:
        """Return for how long the mirrors have not caught up, in seconds; 0 where they hold all."""
        with self._changed:
            return 0.0 if self._busy_since is None else time.monotonic() - self._busy_since

    def backlog(self) -> tuple[int, int]:
        """Return how many checkpoints the mirrors do not all have yet, and the unsent bytes of those in the spool."""
        with self._changed:
            entries, size = self._spooled
            return entries + len(_by_path(self._pending)), max(0, size - min(self._sent.values(), default=0))

    def finish(self, deadline_s: float) -> None:
        """Let it send all, in so many seconds. Nothing new may be given to it."""
        self._until = time.monotonic() + deadline_s
        self._closing.set()
        self._queue.put({"cmd": "finish", "deadline_s": deadline_s})

    def has_finished(self) -> bool:
        """Return whether it has ended."""
        return not self._thread.is_alive()

    def close(self, deadline_s: float) -> int | None:
        """Give it so many seconds to send all, then end it. Return how many are left in the spool, None where it did not report that."""
        if not self._closing.is_set():
            self.finish(deadline_s)
        self._thread.join(deadline_s + _STOP_S)
        self._given_up.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
        with self._changed:
            return None if self._left is None and not self._pending else (self._left or 0) + len(_by_path(self._pending))

    def _run(self) -> None:
        wait_s = FIRST_WAIT_S
        while not (self._closing.is_set() and time.monotonic() >= self._until):
            began = time.monotonic()
            try:
                code = self._serve()
            except OSError as error:
                code = None
                message = f"the mirror's process could not be started: {error}"
                self._on_event({"ev": "alert", "what": "process", "mirror": "", "message": message, "hint": ""})
            closing = self._closing.is_set()
            if code == _REFUSED or (closing and code == 0):
                return  # its configuration is wrong, and would be the next time; or it sent what it could in its time
            if code not in {None, _HELD}:
                self._on_event({"ev": "died", "code": code, "wait_s": wait_s, "last_line": self._last_error_line})
            wait_s = FIRST_WAIT_S if time.monotonic() - began > _LASTED_S else min(2 * wait_s, LONGEST_WAIT_S)
            # a process that died as the run ends, or a moment before, is started again at once: its spool is still to be sent
            (self._given_up if closing else self._closing).wait(FIRST_WAIT_S if closing else wait_s)

    def _serve(self) -> int:
        """Run one process to its end; return its exit code. Raises OSError."""

        def start() -> subprocess.Popen[str]:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "checkpointing.mirror.process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environ,
                text=True,
                encoding="utf-8",
                errors="backslashreplace",
                start_new_session=True,
            )

        with ownership.started(start) as process:
            assert process.stdin is not None  # noqa: S101 (says it to the type checker)
            self._process = process
            reader = threading.Thread(target=self._listen, args=(process,), name="mirror-out", daemon=True)
            reader.start()
            self._last_error_line = ""
            errors = threading.Thread(target=self._listen_to_errors, args=(process,), name="mirror-err", daemon=True)
            errors.start()
            with self._changed:
                self._pending = _by_path(self._pending)  # a new process reads what is there now
                rows: list[MirrorCommand | None] = [self._configuration, *self._pending]
                while not self._queue.empty():
                    self._queue.get()
                if self._closing.is_set():
                    rows.append({"cmd": "finish", "deadline_s": max(0.0, self._until - time.monotonic())})
            with contextlib.suppress(BrokenPipeError):
                while rows or (rows := [self._queue.get()]):
                    row = rows.pop(0)
                    if row is None:  # its stdout ended
                        break
                    process.stdin.write(json.dumps(row) + "\n")
                    process.stdin.flush()
            with contextlib.suppress(OSError):
                process.stdin.close()
            reader.join()
            errors.join()
            return process.wait()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None  # noqa: S101 (says it to the type checker)
        for line in process.stdout:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                event: MirrorEvent = msgspec.convert(row, EVENTS[row["ev"]])
                self._note(event)
                if not self._is_passing(event):
                    self._on_event(event)
        self._queue.put(None)

    def _listen_to_errors(self, process: subprocess.Popen[str]) -> None:
        """Keep the last line: the exception of a process that ended by one."""
        assert process.stderr is not None  # noqa: S101 (says it to the type checker)
        for line in process.stderr:
            self._last_error_line = clean(line) or self._last_error_line

    def _note_sent(self, row: MirrorEvent) -> None:
        if row["ev"] == "progress":
            self._sent[row["mirror"]] = row["sent"]
        elif row["ev"] == "uploaded":
            self._sent.pop(row["mirror"], None)

    def _is_passing(self, row: MirrorEvent) -> bool:
        """Return whether a row only reports that our predecessor's process has not ended yet. That it stays is reported once."""
        if row["ev"] == "ready":
            if self._n_held >= _HELD_ALERTS:
                self._on_event({"ev": "recovered", "what": "held", "mirror": ""})
            self._n_held = 0
        if row["ev"] != "alert" or row["what"] != "held":
            return False
        self._n_held += 1
        return self._n_held != _HELD_ALERTS

    def _note(self, row: MirrorEvent) -> None:
        with self._changed:
            left, size = row.get("left"), row.get("left_bytes")
            if isinstance(left, int) and isinstance(size, int):
                self._spooled = left, size
            if row["ev"] == "spooled" or (row["ev"] == "alert" and row["what"] == "refused" and row.get("path")):
                answered = next((asked for asked in self._pending if asked["path"] == row["path"]), None)  # in the order of asking
                if answered is not None:
                    self._pending.remove(answered)
                self._left = None
            elif row["ev"] in {"idle", "stopped"}:
                self._left = row["left"]
            self._note_sent(row)
            if row["ev"] == "uploaded" and row["key"]:
                self._held[row["mirror"]] = self._held.get(row["mirror"], frozenset()) | {row["path"]}
            if row["ev"] in {"joined", "uploaded"} and row["key"] and keys.holds_parts(row["key"]):
                self._whole_saves |= {row["key"]}
            if row["ev"] in {"progress", "uploaded"} or (row["ev"] == "ready" and row["left"] and self._still_since is None):
                self._still_since = time.monotonic()
            elif row.get("left") == 0 and not self._pending and row["ev"] != "ready":
                self._still_since = self._busy_since = None
