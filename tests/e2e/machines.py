"""Nodes of a job in network namespaces of their own, and what must hold after a fault of any job of several nodes. Root only."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
from typing import TYPE_CHECKING, Any

from supervisor.journal.records import EventTaken, Record, scan
from tests.e2e.test_nodes import ALONE, digest_of
from tests.support.supervised import Supervised, Surroundings, processes_with
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.support.network import Network

NODES, STEPS, EVERY = 3, 400, 20
PORT = 29411
_SHARED = re.compile(r"/node-\d+/")


class Machines:
    """The nodes of one job. `place` is the storage that they share; node `host` serves torch's store, and is the coordinator.

    Its ranks wait before step `hold_at` until `go_on`, which is called at the end; 0: they do not.
    """

    def __init__(  # noqa: PLR0913  what a test varies, by name
        self,
        start: Callable[..., Supervised],
        place: Path,
        network: Network,
        *job: str,
        nnodes: str = "",
        wait_s: float = 600.0,
        steps: int = STEPS,
        host: int = 0,
        script: tuple[str, ...] = ALONE,
        hold_at: int = 2 * EVERY + 6,
    ) -> None:
        self.count = len(network.names)
        self._start, self._job, self._nnodes, self.place, self.network = start, job, nnodes or str(self.count), place, network
        self._wait_s, self._steps, self._host, self._script, self._hold_at = wait_s, steps, host, script, hold_at
        self.runs = [self.start(node) for node in range(self.count)]

    def start(self, node: int) -> Supervised:
        """Start the supervisor of a node, or start it again."""
        address = self.network.address(node)
        torchrun = ["torchrun", "--rdzv-backend=c10d", "--rdzv-id=e2e", f"--local-addr={address}", *self.rendezvous(node)]
        torchrun += [f"--nnodes={self._nnodes}", "--nproc-per-node=1"]
        files = [f"--progress={self.place}/progress", f"--ckpt-dir={self.place}/ckpt", f"--digest={self.place}/digest"]
        script = [*self._script, f"--steps={self._steps}", f"--save-every={EVERY}", "--step-ms=20", *files, *self._job]
        script += [f"--hold-at={self._hold_at}", f"--held-until={self.place}/go-on"] if self._hold_at else []
        return self._start(
            *torchrun,
            *script,
            options=["--checkpoints", f"{self.place}/ckpt/*.pt", "--resume-args", "--resume {resume}"],
            place=self.place / f"node-{node}",
            around=Surroundings(prefix=("ip", "netns", "exec", self.network.names[node])),
            SUPERVISE_NODES_WAIT_S=str(self._wait_s),
            GLOO_SOCKET_IFNAME="eth0",
        )

    def rendezvous(self, node: int) -> list[str]:
        """Return torchrun's options for where the nodes meet."""
        return [f"--rdzv-endpoint={self.network.address(self._host)}:{PORT}", f"--rdzv-conf=is_host={int(node == self._host)}"]

    def go_on(self) -> None:
        """Let the ranks make all of their steps."""
        (self.place / "go-on").touch()

    def reached(self, step: int) -> None:
        """Await that rank 0 made a step."""

        def stepped() -> bool:
            with contextlib.suppress(FileNotFoundError):
                return any(
                    int(row.split()[1]) >= step for row in (self.place / "progress").read_text().splitlines() if row.startswith("0 ")
                )
            return False

        wait_for(stepped, f"step {step}", 200)

    def lose(self, node: int) -> None:
        """Let a machine lose its power, and have its address answer again: all of its processes are gone."""
        self.vanish(node)
        self.network.mend(node)

    def vanish(self, node: int) -> None:
        """Let a machine lose its power: all of its processes at once, without a word to the network, in which nobody answers for it."""
        self.network.cut(node)
        run = self.runs[node]
        while pids := processes_with(run.mark):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    _kill_at_once(pid)
        run.process.wait(20)

    def end_well(self, *, same_world: bool = True) -> None:
        """Demand what must hold after any fault; the same model only where as many ranks as before trained all the time."""
        self.go_on()
        assert [run.exit_code(400) for run in self.runs] == [0] * self.count
        for run in self.runs:
            run.wait_for_nothing_left()
        if same_world:
            assert (self.place / "digest").read_bytes() == digest_of(self._steps, self._script, self.count)
        assert_one_job(self.runs)

    def cards(self) -> set[str]:
        """See `cards_of`."""
        return cards_of(self.runs)


def _kill_at_once(pid: int) -> None:
    """Kill a process, and await that its last thread is gone: all of its connections are closed then."""
    handle = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        assert select.select([handle], [], [], 20)[0], f"{pid} outlives KILL"
    finally:
        os.close(handle)


def events_of(run: Supervised) -> list[EventTaken]:
    """Return the events in the journals of a node, in their order."""
    events = []
    for path in sorted(run.state.glob("*/nodes/*/journal.jsonl*")):
        events += [record.body for record in scan(path) if isinstance(record, Record) and isinstance(record.body, EventTaken)]
    return events


def saw(run: Supervised, event: str) -> bool:
    """Return whether an event is in the journals of a node."""
    return any(row.event == event for row in events_of(run))


def decisions_of(run: Supervised) -> dict[int, set[str]]:
    """Return the decisions that a node acted on, by the number of the epoch."""
    decisions: dict[int, set[str]] = {}
    for event in events_of(run):
        data = event.data
        if event.event == "DecisionMade" and not data.get("elsewhere"):
            decisions.setdefault(data["attempt"], set()).add(json.dumps([data["kind"], data.get("decision")], sort_keys=True))
    return decisions


def checkpoints_of(run: Supervised) -> dict[int, set[Any]]:
    """Return the checkpoints that were selected on a node, by the number of the attempt: path and step, None for none.

    Directories of the nodes' own count as one.
    """
    checkpoints: dict[int, set[Any]] = {}
    for event in events_of(run):
        if event.event == "CheckpointSelected":
            chosen = event.data["chosen"]
            checkpoints.setdefault(event.data["attempt"], set()).add(chosen and (_SHARED.sub("/", chosen["path"]), chosen["step"]))
    return checkpoints


def assert_one_job(runs: Sequence[Supervised], *, last: str = "success") -> None:
    """Demand one decision and one checkpoint for each epoch in the journals of all nodes, and how the last one was decided."""
    decisions: dict[int, set[str]] = {}
    chosen: dict[int, set[Any]] = {}
    for run in runs:
        for attempt, of in decisions_of(run).items():
            decisions.setdefault(attempt, set()).update(of)
        for attempt, rows in checkpoints_of(run).items():
            chosen.setdefault(attempt, set()).update(rows)
    assert {attempt: len(of) for attempt, of in decisions.items()} == dict.fromkeys(decisions, 1), decisions
    assert {attempt: len(rows) for attempt, rows in chosen.items()} == dict.fromkeys(chosen, 1), chosen
    assert json.loads(next(iter(decisions[max(decisions)])))[0] == last


def cards_of(runs: Sequence[Supervised]) -> set[str]:
    """Return the first line of each node about its first incident: where the host of torch's store is gone, meetings fail after it."""
    lines = [next(line for line in run.stderr.splitlines() if "supervise: incident 1" in line) for run in runs]
    return {line.partition("incident 1")[2] for line in lines}
