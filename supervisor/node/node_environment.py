"""The environment that this node's ranks will run in, read before the nodes meet and compared with that of the other nodes.

The comparison is a part of the nodes' agreement (checkpoints/node_agreement.py): the first row of each node has the digest of its
environment and the time at which it was sent. A second all-gather brings the time of its own sending and, where digests differ, the
readings of one node for each digest. So nodes that are alike exchange some bytes. The meaning of a difference:
health/checks/node_environments.py.

Two rows of each node bound the offset of its clock: node b sends its second row after it has node a's first one, and the other way
round. Nodes a and b send their rows at a1 and a2, b1 and b2, each by its own clock. So b's clock is ahead of a's by at least b1 - a2 and
by at most b2 - a1.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from health.checks import node_environments
from health.checks.node_environments import Weight
from health.model import HOST, Ask, Reading, Readings
from health.probing.runner import Runner
from supervisor.classify import redact
from supervisor.core.values import Struct
from supervisor.guardian import ownership
from supervisor.knobs import programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from health.checks.node_environments import NodeDifference
    from supervisor.job.job import Job

#: The probes that read an environment. Git is asked under a deadline of its own.
PROBES: Final = ("environment", "ethernet")
READ_S: Final = 6.0
#: How much longer an attempt waits for them once the nodes have met; the agent's own start took seconds by then.
WAIT_S: Final = 1.0
#: Its number among the all-gathers of an attempt; the agreement on checkpoints begins with 1.
NUMBER: Final = 0
_TABLES: Final = ("env.versions", "env.variables", "env.code", "env.script")
#: Versions that the job's own interpreter reports; packages are known of the supervisor's interpreter alone.
_OF_THE_MACHINE: Final = ("kernel", "driver")
_MOST_CHARACTERS: Final = 32_768


class PeerEnvironment(Struct, frozen=True):
    """The first row of a node: its name, the digest of its environment ("": it compares nothing), and when it was sent by its clock."""

    host: str
    digest: str
    sent_t: float


class NodeEnvironment:
    """Reads the environment once, in a thread of its own. interpreter: the ranks', None unknown."""

    def __init__(self, job: Job, interpreter: str | None) -> None:
        self._job = job
        self._same_interpreter = interpreter is None or Path(interpreter) == Path(sys.executable)
        self._readings = Readings()
        self._read = threading.Event()

    def read(self) -> None:
        """Read it. In a worker thread; takes the start of a process, and READ_S at most."""
        try:
            script = programs.locate(self._job.command, self._job.environ.get("PATH"))
            place, options = self._job.cwd, {}
            if script.kind == "file":
                path = place / script.target
                place, options = path.parent, {"script": str(path)}
            runner = Runner(environ=self._job.environ, start=ownership.started)
            try:
                ask = Ask(deadline_s=READ_S, environ=self._job.environ, options={"code": str(place), **options})
                self._readings = runner.sweep(PROBES, ask)
            finally:
                runner.close()
        finally:
            self._read.set()

    def table(self, versions: Mapping[str, str]) -> str:
        """Return it as JSON, "" where it could not be read in time. versions: those that the ranks will import (Session.versions)."""
        self._read.wait(WAIT_S)
        readings = self._readings
        if readings.one("env.versions") is None:
            return ""
        tables: dict[str, Any] = {name: readings.table(name) for name in _TABLES if readings.table(name)}
        known = tables["env.versions"]
        if not self._same_interpreter:
            known = {key: value for key, value in known.items() if key in _OF_THE_MACHINE}
        tables["env.versions"] = known | dict(versions)
        if script := tables.get("env.script"):  # a node may have it elsewhere
            script["path"] = str(script["path"]).rpartition("/")[2]
        tables.get("env.code", {}).pop("root", None)
        tables["nic.state"] = {reading.subject: readings.table("nic.state", reading.subject) for reading in readings.of("nic.state")}
        tables["env.variables"] = {key: redact.text(str(value)) for key, value in tables.get("env.variables", {}).items()}
        text = json.dumps(tables, sort_keys=True)
        return text if len(text) <= _MOST_CHARACTERS else ""


class EnvironmentComparison:
    """This node's part in the comparison for one attempt.

    text: NodeEnvironment.table. warn: gets each difference that matters, in a worker thread. clock: wall seconds.
    """

    def __init__(self, text: str, warn: Callable[[str], None], clock: Callable[[], float] = time.time) -> None:
        self._text = text
        self._warn = warn
        self._clock = clock
        self._peers: list[tuple[str, Readings]] = []  # of all nodes, where they differ: the name of each, and its readings
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""

    def now(self) -> float:
        """Return the time of this node's clock."""
        return self._clock()

    def compare(self, all_gather: Callable[[int, str], list[str]], node: int, peers: Sequence[PeerEnvironment]) -> tuple[str, ...]:
        """Warn of what differs and matters; return the differences with which the job cannot work, the same on all nodes.

        Nothing is exchanged where a node compares nothing.
        """
        if not all(peer.digest for peer in peers):
            return ()
        digests = [peer.digest for peer in peers]
        differs = len(set(digests)) > 1
        own_text = self._text if differs and digests.index(digests[node]) == node else ""
        rows = [json.loads(text) for text in all_gather(NUMBER, json.dumps({"text": own_text, "sent_t": self.now()}))]
        differences: list[NodeDifference] = []
        if differs:
            texts = {digest: str(row["text"]) for digest, row in zip(digests, rows, strict=True) if row["text"]}
            self._peers = [(peer.host, _readings(texts[peer.digest])) for peer in peers]
            differences += _differences(self._peers)
        differences += node_environments.clocks(_offsets(peers, [float(row["sent_t"]) for row in rows]))
        for node_difference in differences:
            if node_difference.weight is Weight.MATTERS:
                self._warn(f"the nodes are not alike: {node_difference}")
        return _cannot_work(differences)

    def fits(self, nodes: Iterable[int]) -> bool:
        """Whether these nodes can work together. After `compare`."""
        return not self._peers or not _cannot_work(_differences([self._peers[node] for node in nodes]))


def _differences(peers: Iterable[tuple[str, Readings]]) -> tuple[NodeDifference, ...]:
    return node_environments.differences(node_environments.merge_nodes(dict(peers)))


def _cannot_work(differences: Iterable[NodeDifference]) -> tuple[str, ...]:
    return tuple(str(node_difference) for node_difference in differences if node_difference.weight is Weight.CANNOT_WORK)


def _readings(text: str) -> Readings:
    table = json.loads(text)
    ports = table.pop("nic.state", {})
    rows = [Reading("environment", HOST, name, value) for name, value in table.items()]
    return Readings([*rows, *(Reading("ethernet", subject, "nic.state", value) for subject, value in ports.items())])


def _offsets(peers: Sequence[PeerEnvironment], second: Sequence[float]) -> dict[str, float]:
    """Return by how much each node's clock is surely ahead of the first node's (negative: behind), in seconds."""
    first_t, first_again_t = peers[0].sent_t, second[0]
    offsets = {}
    for peer, again_t in zip(peers, second, strict=True):
        least, most = peer.sent_t - first_again_t, again_t - first_t
        offsets[peer.host] = max(least, 0.0) or min(most, 0.0)
    return offsets
