"""Every path that the job writes: whether it answers, what room there is, whether it can be written and how fast.

Reads ask.paths, ask.need_bytes, /proc/mounts. Yields, of `path:PATH`:

    path.state  answers; error and errno where it does not; or, of one that hangs: hung, pid, state, wchan, after
    path.space  bytes: total, free, need; inodes, inodes_free; read_only
    path.write  bytes, seconds, and of these open_s, write_s, sync_s; or error, errno
    path.mount  point, kind, source, options

Each path has a process of its own (one_path.py): a server that is gone holds up the process that asks it for ever, in state D where the
mount is hard, and the other paths are not affected. One that cannot be ended is left behind, and no other is asked for the same
path while it lives, also one of another program: it is known by its name (one_path.mark).
ask.options["disk"] = {"write_bytes": 0} writes nothing.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from health.model import Json, Reading
from health.probes import system_files
from health.probes.storage import one_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from health.model import Ask

NAME: Final = "disk"
#: Less than a checkpoint's part, and more than a disk's own cache hides for free: a few milliseconds on an NVMe disk.
WRITE_BYTES: Final = 1 << 20
#: The part of the deadline kept for reporting the paths that did not answer.
_RESERVE_S: Final = 1.0
_LEAST_S: Final = 0.2
_GONE_S: Final = 0.2
_PROGRAM: Final = Path(__file__).with_name("one_path.py")
#: SIGKILL and SIGALRM, as the kernel writes sets of signals.
_ENDING: Final = 1 << (signal.SIGKILL - 1) | 1 << (signal.SIGALRM - 1)
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


@dataclass(slots=True)
class _PathTrial:
    """One path, and the process that reads and writes it."""

    path: str
    popen: subprocess.Popen[bytes]
    rest: bytes = b""
    results: dict[str, dict[str, Json]] = field(default_factory=dict)

    def fd(self) -> int:
        assert self.popen.stdout is not None  # noqa: S101 -- a pipe was asked for
        return self.popen.stdout.fileno()

    def receive(self) -> bool:
        """Take the output that has come. False at its end."""
        got = os.read(self.fd(), 1 << 16)
        *lines, self.rest = (self.rest + got).split(b"\n")
        for line in lines:
            self.results.update(json.loads(line))
        return bool(got)


def read(ask: Ask) -> Iterator[Reading]:
    """Yield the readings of each path."""
    yield from Paths().read(ask)


def session() -> Paths:
    """Return a session for repeated reads."""
    return Paths()


class Paths:
    """Reads paths, and keeps those of its processes that hang, to collect them when they end."""

    def __init__(self) -> None:
        self._hanging: list[subprocess.Popen[bytes]] = []

    def read(self, ask: Ask) -> Iterator[Reading]:
        """Yield the readings of each path, those that answer first."""
        mounts = _mounts(ask)
        self._hanging = [process for process in self._hanging if process.poll() is None]
        deadline = time.monotonic() + max(_LEAST_S, ask.deadline_s - _RESERVE_S)
        trials: list[_PathTrial] = []
        for path in dict.fromkeys(ask.paths):
            yield _mount(path, mounts)
            if (stuck := _left_behind(ask, one_path.mark(path))) is not None:
                yield _hung(ask, path, stuck)
                continue
            try:
                trials.append(self._start(ask, path, deadline))
            except OSError as error:
                yield Reading(NAME, f"path:{path}", "path.state", None, f"no process could be started: {error.strerror}")
        yield from self._received(trials, deadline, ask)

    def close(self) -> None:
        """Let go. Those that hang end by themselves as soon as the kernel lets them: each has an alarm set."""
        self._hanging.clear()

    def _start(self, ask: Ask, path: str, deadline: float) -> _PathTrial:
        options = ask.options.get("disk")
        size = options.get("write_bytes", WRITE_BYTES) if isinstance(options, dict) else WRITE_BYTES
        left = f"{max(_LEAST_S, deadline - time.monotonic()) + _GONE_S:.3f}"
        popen = subprocess.Popen(  # noqa: S603 -- our own program
            [sys.executable, "-P", "-S", str(_PROGRAM), path, str(size), left],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        return _PathTrial(path, popen)

    def _received(self, trials: list[_PathTrial], deadline: float, ask: Ask) -> Iterator[Reading]:
        waiting = {trial.fd(): trial for trial in trials}
        with selectors.DefaultSelector() as selector:
            for fd in waiting:
                selector.register(fd, selectors.EVENT_READ)
            while waiting and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    trial = waiting[key.fd]
                    if trial.receive():
                        continue
                    selector.unregister(key.fd)
                    del waiting[key.fd]
                    _end(trial)
                    yield from _answered(trial, ask.need_bytes)
        for trial in waiting.values():
            state = _hung(
                ask, trial.path, trial.popen.pid, next(reversed(trial.results), "")
            )  # before it is killed: where it waits is the finding
            if not _end(trial):
                self._hanging.append(trial.popen)
            yield state
            yield from _answers(trial, ask.need_bytes)


def _end(trial: _PathTrial) -> bool:
    """End it. Returns whether it is gone."""
    assert trial.popen.stdout is not None  # noqa: S101 -- a pipe was asked for
    trial.popen.stdout.close()
    trial.popen.kill()
    try:
        trial.popen.wait(_GONE_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _answered(trial: _PathTrial, need: int) -> Iterator[Reading]:
    state = trial.results.get("stat")
    if state is None:
        yield Reading(NAME, f"path:{trial.path}", "path.state", None, f"its process ended ({trial.popen.returncode}) and answered nothing")
        return
    yield Reading(NAME, f"path:{trial.path}", "path.state", {"answers": "error" not in state, **state})
    yield from _answers(trial, need)


def _answers(trial: _PathTrial, need: int) -> Iterator[Reading]:
    for name in ("space", "write"):
        row = trial.results.get(name)
        if row is not None:
            yield Reading(NAME, f"path:{trial.path}", f"path.{name}", {**row, "need": need} if name == "space" else row)


def _hung(ask: Ask, path: str, pid: int, after: str = "") -> Reading:
    proc = ask.at(f"/proc/{pid}")
    state = system_files.text(f"{proc}/stat").rpartition(")")[2].split()
    row: dict[str, Json] = {"answers": False, "hung": True, "pid": pid, "state": state[0] if state else "",
                            "wchan": system_files.text(f"{proc}/wchan").strip("0"), "after": after}  # fmt: skip
    return Reading(NAME, f"path:{path}", "path.state", row)


def _left_behind(ask: Ask, mark: str) -> int | None:
    """Return a prober for this path that was ended, and that the kernel does not let go; None where there is none."""
    try:
        names = os.listdir(ask.at("/proc"))  # noqa: PTH208 -- names
    except OSError:
        return None
    for name in names:
        if not name.isdecimal():
            continue
        head, _, tail = system_files.text(ask.at(f"/proc/{name}/stat")).rpartition(")")
        if head.endswith(f"({mark}") and tail.split()[:1] == ["D"] and _is_ended(ask.at(f"/proc/{name}/status")):
            return int(name)
    return None


def _is_ended(status: str) -> bool:
    """Whether a process of our own user has a pending signal that ends it: one that merely waits for its disk has none.

    psutil knows no signal masks.
    """
    rows = dict(line.split(":", 1) for line in system_files.text(status).splitlines() if ":" in line)
    pending = [int(rows.get(name, "0"), 16) for name in ("SigPnd", "ShdPnd")]
    return rows.get("Uid", "").split()[:1] == [str(os.getuid())] and any(mask & _ENDING for mask in pending)


def _mounts(ask: Ask) -> list[tuple[str, str, str, str]]:
    """Return (point, kind, source, options) of all that is mounted, without asking any of it.

    psutil prefers /etc/mtab, which in a container may be a file of the image.
    """
    rows = [line.split() for line in system_files.text(ask.at("/proc/mounts")).splitlines()]
    return [(_plain(row[1]), row[2], _plain(row[0]), row[3]) for row in rows if len(row) > 3]  # noqa: PLR2004 -- the four first words


def _plain(word: str) -> str:
    return _ESCAPED.sub(lambda escape: chr(int(escape[1], 8)), word)


def _mount(path: str, mounts: list[tuple[str, str, str, str]]) -> Reading:
    """Return where a path is mounted, by its name alone: a link on it would have to be asked for."""
    over = [row for row in mounts if path == row[0] or path.startswith(row[0].rstrip("/") + "/")]
    subject = f"path:{path}"
    if not over:
        return Reading(NAME, subject, "path.mount", None, "no mount holds it")
    longest = max(len(row[0]) for row in over)
    point, kind, source, options = [row for row in over if len(row[0]) == longest][-1]  # the last one covers the others
    return Reading(NAME, subject, "path.mount", {"point": point, "kind": kind, "source": source, "options": options})
