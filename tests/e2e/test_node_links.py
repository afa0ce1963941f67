"""Three nodes of a job in network namespaces of their own: links are cut, machines are lost and come back.

After each fault: one decision and one checkpoint per attempt in all journals, the same card everywhere, nothing left, and the model of a
run in which nothing failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.journal.records import EventTaken, Record, scan
from tests.e2e.conftest import Supervised, Surroundings, processes_with
from tests.e2e.test_nodes import DDP, digest_of
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NODES, STEPS, EVERY = 3, 400, 20
LEASE_S = 8.0
PORT = 29411

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)  # noqa: S603, S607  our own words


class Network:
    """A switch, and a namespace for each node with one link to it: node N is at 10.7.0.(N + 1)."""

    def __init__(self) -> None:
        mark = uuid.uuid4().hex[:6]
        self.switch = f"sv-{mark}-s"
        self.names = [f"sv-{mark}-{node}" for node in range(NODES)]
        for name in (self.switch, *self.names):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", self.switch, "link", "set", "br0", "up")
        for node, name in enumerate(self.names):
            _ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{node}", "netns", self.switch)
            _ip("-n", self.switch, "link", "set", f"p{node}", "master", "br0")
            _ip("-n", self.switch, "link", "set", f"p{node}", "up")
            _ip("-n", name, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")

    @staticmethod
    def address(node: int) -> str:
        """Return the address of a node."""
        return f"10.7.0.{node + 1}"

    def cut(self, node: int) -> None:
        """Let nothing through to a node or from it, without a word to either side."""
        _ip("-n", self.switch, "link", "set", f"p{node}", "down")

    def mend(self, node: int) -> None:
        """Undo it."""
        _ip("-n", self.switch, "link", "set", f"p{node}", "up")

    def close(self) -> None:
        """Remove all of it."""
        for name in (*self.names, self.switch):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", name)


@pytest.fixture
def network() -> Iterator[Network]:
    """Return a network of three nodes; skip the test where none can be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    try:
        found = Network()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr[-200:]}")
    yield found
    found.close()


class Machines:
    """The nodes of one job. `place` is the storage that they share."""

    def __init__(
        self, start: Callable[..., Supervised], place: Path, network: Network, *job: str, nnodes: str = str(NODES), lease_s: float = LEASE_S
    ) -> None:
        self._start, self._job, self._nnodes, self.place, self.network = start, job, nnodes, place, network
        self._lease_s = lease_s
        self.runs = [self.start(node) for node in range(NODES)]

    def start(self, node: int) -> Supervised:
        """Start the supervisor of a node, or start it again."""
        address = self.network.address(node)
        torchrun = ["torchrun", "--rdzv-backend=c10d", f"--rdzv-endpoint={self.network.address(0)}:{PORT}", "--rdzv-id=e2e"]
        torchrun += [f"--rdzv-conf=is_host={int(node == 0)}", f"--local-addr={address}"]
        torchrun += [f"--nnodes={self._nnodes}", "--nproc-per-node=1"]
        files = [f"--progress={self.place}/progress", f"--ckpt-dir={self.place}/ckpt", f"--digest={self.place}/digest"]
        script = [*DDP, f"--steps={STEPS}", f"--save-every={EVERY}", "--step-ms=20", *files, *self._job]
        return self._start(
            *torchrun,
            *script,
            options=["--checkpoints", f"{self.place}/ckpt/*.pt", "--resume-args", "--resume {resume}"],
            place=self.place / f"node-{node}",
            around=Surroundings(prefix=("ip", "netns", "exec", self.network.names[node])),
            SUPERVISE_NODES_LEASE_S=str(self._lease_s),
            GLOO_SOCKET_IFNAME="eth0",
        )

    def reached(self, step: int) -> None:
        """Await that rank 0 made a step."""

        def made() -> bool:
            with contextlib.suppress(FileNotFoundError):
                return any(
                    int(row.split()[1]) >= step for row in (self.place / "progress").read_text().splitlines() if row.startswith("0 ")
                )
            return False

        wait_for(made, f"step {step}", 200)

    def lose(self, node: int) -> None:
        """Let a machine lose its power: all of its processes at once, without a word to the network."""
        self.network.cut(node)
        run = self.runs[node]
        for pid in processes_with(run.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.process.wait(20)
        time.sleep(0.5)
        self.network.mend(node)

    def end_well(self, *, same_world: bool = True) -> None:
        """Demand what must hold after any fault; the same model only where as many ranks as before trained all the time."""
        assert [run.exit_code(400) for run in self.runs] == [0] * NODES
        for run in self.runs:
            run.wait_for_nothing_left()
        if same_world:
            assert (self.place / "digest").read_bytes() == digest_of(STEPS)
        decisions: dict[int, set[str]] = {}
        chosen: dict[int, set[Any]] = {}
        for node in range(NODES):
            for path in sorted((self.place / f"node-{node}" / "state").glob("*/nodes/*/journal.jsonl*")):
                for event in (one.body for one in scan(path) if isinstance(one, Record) and isinstance(one.body, EventTaken)):
                    data = event.data
                    if event.event == "DecisionMade" and not data["elsewhere"]:
                        decisions.setdefault(data["attempt"], set()).add(json.dumps([data["kind"], data["decision"]], sort_keys=True))
                    elif event.event == "CheckpointSelected":
                        row = data["chosen"] and (data["chosen"]["path"], data["chosen"]["step"])
                        chosen.setdefault(data["attempt"], set()).add(row)
        assert {attempt: len(of) for attempt, of in decisions.items()} == dict.fromkeys(decisions, 1), decisions
        assert {attempt: len(of) for attempt, of in chosen.items()} == dict.fromkeys(chosen, 1), chosen
        assert json.loads(next(iter(decisions[max(decisions)])))[0] == "success"

    def cards(self) -> set[str]:
        """Return the first line of each node about its first incident: where the host of torch's store is gone, meetings fail after it."""
        lines = [next(line for line in run.stderr.splitlines() if "incident 1:" in line) for run in self.runs]
        return {line.partition("incident 1:")[2] for line in lines}


def test_a_link_that_is_cut_for_less_than_a_lease_changes_nothing(
    supervise: Callable[..., Supervised], tmp_path: Path, network: Network
) -> None:
    nodes = Machines(supervise, tmp_path, network)
    nodes.reached(2 * EVERY)
    network.cut(2)
    time.sleep(5.0)
    network.mend(2)
    nodes.end_well()
    assert [run.attempts() for run in nodes.runs] == [1] * NODES


@pytest.mark.parametrize("node", [2, 0], ids=["a node", "the host of the store"])
def test_a_link_that_is_cut_for_longer_loses_the_node_and_all_go_on_when_it_is_back(
    supervise: Callable[..., Supervised], tmp_path: Path, network: Network, node: int
) -> None:
    nodes = Machines(supervise, tmp_path, network)
    nodes.reached(2 * EVERY)
    network.cut(node)
    time.sleep(60.0)
    network.mend(node)
    nodes.end_well()
    assert len(nodes.cards()) == 1, nodes.cards()


@pytest.mark.parametrize("node", [2, 0], ids=["a node", "the host of the store"])
def test_a_machine_that_loses_its_power_and_comes_back(
    supervise: Callable[..., Supervised], tmp_path: Path, network: Network, node: int
) -> None:
    nodes = Machines(supervise, tmp_path, network)
    nodes.reached(2 * EVERY + 5)
    nodes.lose(node)
    time.sleep(15.0)
    nodes.runs[node] = nodes.start(node)
    nodes.end_well()
    assert len(nodes.cards()) == 1, nodes.cards()
    (card,) = nodes.cards()
    assert f"node {os.uname().nodename}:{node} is lost" in card


@pytest.mark.parametrize("what", ["a rank", "an agent", "a supervisor"])
@pytest.mark.parametrize("node", [2, 0])
def test_a_process_of_a_node_is_killed(
    supervise: Callable[..., Supervised], tmp_path: Path, network: Network, what: str, node: int
) -> None:
    nodes = Machines(supervise, tmp_path, network)
    nodes.reached(2 * EVERY + 5)
    run = nodes.runs[node]
    if what == "a supervisor":
        run.process.kill()
        run.wait_for_nothing_left(20)
        nodes.runs[node] = nodes.start(node)
    elif what == "a rank":
        os.kill(next(iter(run.rank_pids().values())), signal.SIGKILL)
    else:
        (agent,) = (pid for pid, line in processes_with(run.mark).items() if "supervisor/agent/__main__.py" in line)
        os.kill(agent, signal.SIGKILL)
    nodes.end_well()
    assert len(nodes.cards()) == 1, nodes.cards()


def test_the_others_of_an_elastic_job_train_on_without_a_lost_machine_which_is_taken_in_at_a_save_when_it_is_back(
    supervise: Callable[..., Supervised], tmp_path: Path, network: Network
) -> None:
    nodes = Machines(supervise, tmp_path, network, "--ask", f"--steps={4 * STEPS}", nnodes="2:3", lease_s=6.0)
    nodes.reached(2 * EVERY + 5)
    lost_t = time.time()
    nodes.lose(2)
    others = nodes.runs[:2]
    for run in others:
        wait_for(lambda run=run: run.attempts() >= 2, "the others to go on", 60, alive=run.alive)
    print(f"ranks started again {time.time() - lost_t:.1f} s after the loss")  # noqa: T201  beside the times in the journal
    nodes.runs[2] = nodes.start(2)
    nodes.end_well(same_world=False)
    assert [run.attempts() for run in others] == [3, 3]
    for run in others:
        assert "all have saved" in run.journal()
        assert run.status()["incidents"] == 1
