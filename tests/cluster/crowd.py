"""Many nodes over real sockets, and the coordinator that they have: each a process of its own, `python -m tests.cluster.crowd ROLE …`.

A node is the real member with a real connection; one thread drives all of them, as 1,000 threads are those of 1,000 machines. Each process
prints what happened with the time of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import resource
import selectors
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

from supervisor.cluster import member as members
from supervisor.cluster import messages as protocol
from supervisor.cluster import wire
from supervisor.cluster.coordinator import new_coordinator
from supervisor.cluster.lines import LineSocket
from supervisor.cluster.model import FAILURE, RESTART, ClusterDecision, ClusterRules, NodeMemory
from supervisor.cluster.reports import decode_reports, encode_report
from supervisor.cluster.server import CoordinatorServer, listen
from supervisor.core.model import Cause, Claim, Evidence, RankExit, RankInfo
from supervisor.core.state import Attempt, NodeReport

if TYPE_CHECKING:
    from supervisor.cluster.coordinator import CoordinatorOutput

KEY = "key"
RANKS = 8
#: Characters of the text of a fact, and of all JSON of one.
_FACT, _FACT_JSON = 230, 460


def report(node: int, size: int) -> str:
    """Return a report of about `size` bytes: of RANKS ranks of which one has failed, and of what all of them showed of it."""
    first = node * RANKS
    ranks = tuple(RankInfo(first + rank, rank, 10_000 + rank, 326_000 + rank) for rank in range(RANKS))
    deaths = tuple(RankExit(first + rank, 10_000 + rank, time.monotonic_ns(), code=1) for rank in range(RANKS))
    claim = Claim(Cause.NCCL_TIMEOUT, 0.6, transient=True, consequence_of=("*",))
    facts = tuple(_fact(node, number, claim) for number in range((size - 3000) // _FACT_JSON))
    attempt = Attempt(1, began_t=1.0, started_t=2.0, ranks=ranks, world_size=RANKS, deaths=deaths, ended=True, over_t=3.0, evidence=facts)
    return encode_report(NodeReport(f"node-{node}/1", attempt), 0.001)


def _fact(node: int, number: int, claim: Claim) -> Evidence:
    rank = node * RANKS + number % RANKS
    text = f"[rank{rank}] node {node} {number} ".ljust(_FACT, "x")
    fields = (("collective", "ALLREDUCE"), ("seq", str(number)))
    return Evidence("log", "nccl.timeout", text, rank, 1.0, free_text=True, fields=fields, line=number, claim=claim)


def say(text: str) -> None:
    """Print a line with the time."""
    print(f"{text} {time.monotonic()}", flush=True)  # noqa: T201  to the test


class CrowdNode:
    """One node of the crowd, with its member, its connection and its report. taken: what it had to do, with those of all nodes."""

    def __init__(self, index: int, port: int, count: int, size: int, taken: dict[type, int]) -> None:
        self.text = report(index, size)
        self.count, self.taken = count, taken
        self.lines = LineSocket(socket.create_connection(("127.0.0.1", port)), wire.LONGEST_OF_THE_COORDINATOR)
        self.lines.put(wire.greeting(KEY))
        self.state = members.new_member(NodeMemory(f"node-{index}/1"), ClusterRules(nodes=count), time.monotonic())
        self.take(protocol.LinkOpened(time.monotonic()))
        self.take(protocol.NodesTogether(time.monotonic(), "meeting", index, count, 1))

    def take(self, given: members.MemberInput) -> None:
        """Take what happens: the last node of which an attempt begins ends it, and each reports once it has ended."""
        self.state, outputs = members.step(self.state, given)
        for output in outputs:
            if isinstance(output, protocol.SendToCoordinator):
                self.lines.put(wire.encode(output.message))
                continue
            self.taken[type(output)] = self.taken.get(type(output), 0) + 1
            is_last = self.taken[type(output)] == self.count
            if is_last:
                say(type(output).__name__)
            if isinstance(output, protocol.Ended):
                self.take(protocol.AttemptReport(time.monotonic(), self.text))
            elif isinstance(output, protocol.Began) and is_last:
                self.take(protocol.EndAttempt(time.monotonic(), FAILURE, "rank 7"))
        self.lines.flush()

    def serve(self) -> None:
        """Take what the coordinator says. Raises OSError where it has ended the connection."""
        self.lines.flush()
        for message in self.lines.messages():
            self.take(protocol.FromCoordinator(time.monotonic(), wire.to_node(message)))  # type: ignore[arg-type]  # none is refused


def crowd(port: int, count: int, size: int) -> None:
    """Let `count` nodes meet, fail, report, and act on the decision. size: bytes of a report."""
    selector, taken = selectors.DefaultSelector(), dict[type, int]()
    nodes = [CrowdNode(index, port, count, size, taken) for index in range(count)]
    for node in nodes:
        selector.register(node.lines.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, node)
    say("connected")
    beat_t, is_reported = 0.0, False
    while taken.get(protocol.ActOn, 0) < count:
        for key, _ in selector.select(0.1):
            node = key.data
            try:
                node.serve()
            except OSError:  # it has read the decision
                selector.unregister(node.lines.sock)
                node.lines.close()
            else:
                selector.modify(node.lines.sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if node.lines.has_unsent else 0), node)
        if not is_reported and taken.get(protocol.Ended, 0) == count and not any(node.lines.has_unsent for node in nodes):
            is_reported = True
            say("reported")
        if time.monotonic() - beat_t > ClusterRules().beat_s:
            beat_t = time.monotonic()
            for key in list(selector.get_map().values()):
                key.data.take(protocol.NodeTick(time.monotonic(), '{"stage":"running","attempt":1}'))


def serve(count: int) -> None:
    """Serve the coordinator of a crowd: it judges what is readable of all reports, and a restart is decided."""
    over = threading.Event()
    judged: list[NodeReport] = []

    def emit(output: CoordinatorOutput) -> None:
        if isinstance(output, protocol.JudgeReports):
            say("JudgeReports")
            reports, missing = decode_reports(output.reports, output.missing)
            judged.extend(reports)
            say(f"judged {len(reports)} {len(missing)}")
            server.give(protocol.DecisionProposed(time.monotonic(), output.number, ClusterDecision(RESTART)))
            over.set()

    state = new_coordinator("node-0/1", ClusterRules(nodes=count), time.monotonic())
    server = CoordinatorServer(listen(), KEY, state, time.monotonic, lambda _memory: None, emit, say)
    server.start()
    say(f"port {server.port}")
    over.wait(300)
    server.close(60.0)
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    say(f"peak {int(peak.split()[1]) // 1024}")


def figures(count: int, size: int) -> tuple[dict[str, float], dict[str, int]]:
    """Run a coordinator and a crowd of it; return when what happened, in seconds, and the numbers with it."""
    words = [sys.executable, "-m", "tests.cluster.crowd"]
    times, numbers = dict[str, float](), dict[str, int]()

    def read(output: IO[str], last: str) -> None:
        for line in output:
            name, *rest, t = line.split()
            times[name] = float(t)
            numbers.update({f"{name}{place}": int(number) for place, number in enumerate(rest)})
            if name == last:
                return

    root = Path(__file__).parents[2]
    with subprocess.Popen([*words, "serve", str(count)], stdout=subprocess.PIPE, text=True, cwd=root) as server:  # noqa: S603  our own
        assert server.stdout is not None
        read(server.stdout, "port")
        more = ["crowd", str(numbers["port0"]), str(count), str(size)]
        with subprocess.Popen([*words, *more], stdout=subprocess.PIPE, text=True, cwd=root) as nodes:  # noqa: S603  our own
            assert nodes.stdout is not None
            read(nodes.stdout, "end")
        read(server.stdout, "end")
    return times, numbers


if __name__ == "__main__":
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    {"crowd": crowd, "serve": serve}[sys.argv[1]](*map(int, sys.argv[2:]))
