"""Monitors each rank's measuring process from a second process, which cannot hang with it: forwards its reports, and reports its end.

The lowest living rank leads: it asks for second looks, and judges. If two ranks believe that they lead, the store keeps the first report.
"""

from __future__ import annotations

import json
import os
import platform
import select
import signal
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from health.model import Ask, Readings
from health.nodecheck import report, schedule
from health.nodecheck.liveness import Heartbeat, Peers
from health.nodecheck.model import Node
from health.nodecheck.trial_judge import second_look
from health.nodecheck.worker import SECOND
from health.probing.runner import OUTCOME, Runner

if TYPE_CHECKING:
    from health.model import Json, Reading
    from health.nodecheck.liveness import Options, SharedStore
    from health.nodecheck.model import Sample

REPORT: Final = "report"
_TICK_S: Final = 0.2
_BEAT_S: Final = 0.5
_BLOCK: Final = 65536
#: Compared across nodes: the probes, and the readings of theirs.
_PROBES: Final = ("environment", "ethernet")
_COMPARED: Final = ("env.versions", "env.variables", "env.code", "nic.state", OUTCOME)
#: Time after the deadline to write and read the report.
_GRACE_S: Final = 5.0
#: Time for SIGKILL to take effect.
_DIE_S: Final = 1.0


class PipeReporter:
    """The measuring process's side of the pipe. Raises BrokenPipeError where the monitor is gone."""

    def __init__(self, end: int) -> None:
        self._end = end

    def _send(self, row: dict[str, Json]) -> None:
        data = json.dumps(row).encode() + b"\n"
        while data:
            data = data[os.write(self._end, data) :]

    def step(self, text: str) -> None:
        """Report the next step."""
        self._send({"step": text})

    def sample(self, sample: Sample) -> None:
        """Report a sample."""
        self._send({"sample": sample.to_json()})

    def finished(self, phase: int) -> None:
        """Report that a phase is over."""
        self._send({"finished": phase})


class WorkerMonitor:
    """Watches over one measuring process. pid: of it. pipe: its reports. first: of its node, so that it reads the node's environment."""

    def __init__(self, rank: int, pid: int, pipe: int, store: SharedStore, options: Options, *, first: bool) -> None:  # noqa: PLR0913  all it is given
        self._rank, self._pid, self._pipe, self._store, self._options = rank, pid, pipe, store, options
        self._peers = Peers(store, options)
        self._heartbeat = Heartbeat(step="start", read=not first)
        self._found: list[Reading] = []
        # a separate thread: git on a slow disk must not delay this rank's heartbeats
        self._reader = threading.Thread(target=_read_node, args=(self._found,), name="node", daemon=True)
        self._samples: list[Json] = []
        self._rest = b""
        self._began = self._last_message_t = time.monotonic()
        self._beaten = 0.0
        self._ended = False
        os.set_blocking(pipe, False)

    def watch(self) -> dict[str, Json]:
        """Return the report. Raises TimeoutError if there is none in time."""
        if not self._heartbeat.read:
            self._reader.start()
        while not (text := self._store.get(REPORT)):
            if not self._ended:
                self._listen()
                self._look()
            else:
                time.sleep(_TICK_S)
            if not self._heartbeat.read and not self._reader.is_alive():
                self._store.put(f"node/{self._rank}", json.dumps(Node(platform.node(), Readings(self._found)).to_json()))
                self._heartbeat = replace(self._heartbeat, read=True)
                self._beat()
            if time.monotonic() - self._beaten > _BEAT_S:
                self._beat()
            self._lead()
            if self._elapsed() > self._options.deadline_s + _GRACE_S:
                raise TimeoutError(f"no report within {self._options.deadline_s + _GRACE_S:.0f} s")
        outcome: dict[str, Json] = json.loads(text)
        return outcome

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _listen(self) -> None:
        """Read the process's reports, and forward those that other ranks need."""
        if not select.select([self._pipe], [], [], _TICK_S)[0]:
            return
        *rows, self._rest = (self._rest + (os.read(self._pipe, _BLOCK))).split(b"\n")
        for row in map(json.loads, rows):
            self._last_message_t = time.monotonic()
            if "sample" in row:
                self._samples.append(row["sample"])
                self._store.put(f"samples/{self._rank}", json.dumps(self._samples))
            elif "finished" in row:
                self._heartbeat = replace(self._heartbeat, finished=row["finished"])
                self._beat()
            else:
                self._heartbeat = replace(self._heartbeat, step=row["step"])

    def _look(self) -> None:
        """Check whether the process lives and makes progress."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        silent_s = time.monotonic() - self._last_message_t
        if pid:
            self._listen()  # its last reports
            self._ended = True
            code = os.waitstatus_to_exitcode(status)
            if self._heartbeat.finished < 1:
                how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                self._gone(
                    f"its process was {how}; last: {self._heartbeat.step}"
                    if code < 0
                    else f"its process {how}; last: {self._heartbeat.step}"
                )
        elif silent_s > (self._options.silence_s if self._samples else self._options.join_s + self._options.silence_s):
            # report before the kill: a process stuck in the kernel may live until the next boot
            self._gone(f"hangs for {silent_s:.0f} s, {state_of(self._pid)}; last: {self._heartbeat.step}")
            self.kill()

    def _gone(self, why: str) -> None:
        self._heartbeat = replace(self._heartbeat, gone=why)
        self._beat()

    def _beat(self) -> None:
        self._beaten = time.monotonic()
        self._heartbeat = replace(self._heartbeat, beat=self._heartbeat.beat + 1)
        self._peers.send_heartbeat(self._rank, self._heartbeat)

    def kill(self) -> None:
        """End the process, if it exists. One that is stuck in the kernel is left to init: it dies when the kernel releases it."""
        if self._ended:
            return
        self._ended = True
        os.kill(self._pid, signal.SIGKILL)
        until = time.monotonic() + _DIE_S
        while not os.waitpid(self._pid, os.WNOHANG)[0] and time.monotonic() < until:
            time.sleep(_DIE_S / 20)

    # --- the lead -------------------------------------------------------------------------------------------------------------------

    def _lead(self) -> None:
        """Do what the lowest living rank does."""
        if any(not self._peers.gone(rank) for rank in range(self._rank)):
            return
        ranks = range(self._options.world)
        heartbeats = [self._peers.heartbeat(rank) for rank in ranks if not self._peers.gone(rank)]
        through = min((heartbeat.finished if heartbeat is not None else -1 for heartbeat in heartbeats), default=1)
        late = self._elapsed() > self._options.deadline_s
        if not self._store.has(SECOND):
            if through >= 0 or self._elapsed() > 0.8 * self._options.deadline_s:
                rounds = schedule.second_looks(*second_look(self._peers.evidence(ranks)))
                self._store.put_first(
                    SECOND, json.dumps([[[*asdict(pair_trial).values()] for pair_trial in pair_trials] for pair_trials in rounds])
                )
        elif late or (through >= 1 and all(heartbeat is not None and heartbeat.read for heartbeat in heartbeats)):
            known = self._peers.evidence(ranks)
            rows = report.results(known)
            self._store.put_first(REPORT, json.dumps({**report.to_json(known, rows, self._elapsed(), time.time()), "told_by": self._rank}))


def _read_node(readings: list[Reading]) -> None:
    readings += (reading for reading in Runner().sweep(_PROBES, Ask(environ=dict(os.environ))) if reading.name in _COMPARED)


def state_of(pid: int) -> str:
    """Return a process's state, and where in the kernel it waits if that may be read."""
    try:
        state = psutil.Process(pid).status()
        place = Path(f"/proc/{pid}/wchan").read_text("ascii")  # psutil has no wchan
    except (OSError, psutil.Error):
        return "and cannot be read"
    name = {psutil.STATUS_DISK_SLEEP: "stuck in the kernel", psutil.STATUS_SLEEPING: "waiting"}.get(state, str(state))
    return name + (f" at {place}" if place not in ("", "0") else "")
