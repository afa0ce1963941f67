"""Tries the nodes of a job against each other before an attempt: the node check (health/nodecheck), in the nodes' agreement.

A failure between nodes rarely shows which of them is bad. Every rank of the check meets others, two at a time, and one of them reports who
fails with several partners, is gone, or is slow. The coordinator's node is rank 0 of the check: the others know how to
reach it. A check without a verdict holds back no attempt.

Three all-gathers of the agreement belong to it: where the check meets, what came of it, and whether each node that failed is excluded.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from health.probing.process_groups import kill_group
from supervisor.core.values import Struct
from supervisor.guardian import ownership

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Their numbers among the all-gathers of an attempt, above those of the checkpoints.
MEET, RESULT, EXCLUDED = 100_000, 100_001, 100_002
#: By why it is wanted: seconds until the verdict, and rounds.
EXTENT: Final = {"start": (30.0, 3), "doubt": (60.0, 21)}
#: For torch to be imported, beside the deadline.
START_S: Final = 45.0
_POLL_S: Final = 0.5
_MOST_CHARACTERS: Final = 300
_FAILED: Final = "failed"
#: Checks whose finding is about a rank of its own.
_OF_RANKS: Final = frozenset({"node_presence", "node_failures", "node_compute", "node_links"})
#: The name for a rank of another job.
_NOT_INHERITED: Final = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")


class NodeCheckPlace(Struct, frozen=True):
    """How the check runs on this node.

    interpreter: the ranks'. environ: theirs. gpus: UUIDs of those that they may use. coordinator_host: where the coordinator is, ""
    here, None: not known. program: the check's, with its first options.
    """

    interpreter: str
    environ: Mapping[str, str]
    gpus: tuple[str, ...]
    coordinator_host: str | None
    program: tuple[str, ...] = ()


class NodeCheckResult(Struct, frozen=True):
    """The result of the check, the same on all nodes.

    unfit: the nodes that failed, by their number among the nodes of the attempt, each with the finding. not_excluded: those of them that
    could not be taken out of use. may_leave: whether they may leave alone: none of them would come back, or takes the coordinator with it.
    """

    unfit: tuple[tuple[int, str], ...] = ()
    not_excluded: tuple[int, ...] = ()
    may_leave: bool = False


class NodeCheck:
    """This node's part.

    show: prints a line of a level. exclude: takes this node out of use; returns whether it could. goes_on: whether the attempt is still to
    begin.
    """

    def __init__(
        self, place: NodeCheckPlace, show: Callable[[str, str], None], exclude: Callable[[str], bool], goes_on: Callable[[], bool]
    ) -> None:
        self._place, self._print, self._exclude, self._goes_on = place, show, exclude, goes_on

    def run(self, all_gather: Callable[[int, str], list[str]], node: int, why: str) -> NodeCheckResult:
        """Run it, and exclude this node if it fails. Raises what all_gather raises where the attempt ends first."""
        host = self._place.coordinator_host
        own = {"port": _free_port() if host == "" else 0, "reaches": host is not None, "ranks": max(1, len(self._place.gpus))}
        rows = [json.loads(text) for text in all_gather(MEET, json.dumps(own))]
        first = next((index for index, row in enumerate(rows) if row["port"]), None)
        if first is None or not all(row["reaches"] for row in rows):
            self._print("warning", "the nodes are not tried against each other: not all of them know where the coordinator is")
            return NodeCheckResult()
        ranks, began = min(int(row["ranks"]) for row in rows), time.monotonic()
        self._print_start(node, len(rows), why)
        code, report = self._tried((node - first) % len(rows), len(rows), ranks, int(rows[first]["port"]), why)
        answers = [json.loads(text) for text in all_gather(RESULT, json.dumps({"code": code, "report": report}))]
        verdict = next((row["report"] for row in answers if row["report"]), None)
        if verdict is None:
            codes = ", ".join(str(row["code"]) for row in answers)
            self._print("warning", f"the node check gave no verdict (it ended with {codes}): the attempt begins without it")
            return NodeCheckResult()
        unfit = {(rank // ranks + first) % len(rows): text for rank, text in _failed(verdict).items()}
        for text in _others(verdict):
            self._print("warning", f"node check: {text}")
        if unfit:
            return self._excluded(unfit, all_gather, node)
        if node == first:
            self._print("info", f"the node check of {len(rows)} nodes found none that fails ({time.monotonic() - began:.0f} s)")
        return NodeCheckResult()

    def _excluded(self, unfit: Mapping[int, str], all_gather: Callable[[int, str], list[str]], node: int) -> NodeCheckResult:
        """Exclude this node if it is unfit; return which nodes are unfit, and which of them are not excluded."""
        is_excluded = node in unfit and self._exclude(f"node check: {unfit[node]}")
        is_needed = self._place.coordinator_host == ""
        rows = [json.loads(text) for text in all_gather(EXCLUDED, json.dumps({"excluded": is_excluded, "needed": is_needed}))]
        unfit_ranks = tuple(sorted(unfit.items()))
        not_excluded = tuple(number for number, _ in unfit_ranks if not rows[number]["excluded"])
        return NodeCheckResult(unfit_ranks, not_excluded, not not_excluded and not any(rows[number]["needed"] for number, _ in unfit_ranks))

    def _print_start(self, node: int, nodes: int, why: str) -> None:
        if node == 0:
            because = "the last failures were between nodes" if why == "doubt" else "--check-nodes start"
            self._print("info", f"{nodes} nodes are tried against each other, for {EXTENT[why][0]:.0f} s at most: {because}")

    def _tried(self, rank: int, nodes: int, ranks: int, port: int, why: str) -> tuple[int, dict[str, Any] | None]:
        """Return the exit code of this node's part, and the report where it was printed here."""
        place, (deadline_s, rounds) = self._place, EXTENT[why]
        host = place.coordinator_host or "127.0.0.1"
        options = {
            "nnodes": nodes,
            "node-rank": rank,
            "nproc-per-node": ranks,
            "master": f"{host}:{port}",
            "deadline": deadline_s,
            "rounds": rounds,
        }
        argv = [
            *(place.program or _program(place.interpreter)),
            "--json",
            *(word for name, value in options.items() for word in (f"--{name}", str(value))),
        ]
        environ = {name: value for name, value in place.environ.items() if name not in _NOT_INHERITED}
        if place.gpus:
            environ["CUDA_VISIBLE_DEVICES"] = ",".join(place.gpus)
        try:
            process = ownership.started(
                lambda: subprocess.Popen(  # noqa: S603  our own program, by the ranks' interpreter
                    argv, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
                )
            )
        except OSError as error:
            self._print("warning", f"the node check cannot be started: {argv[0]}: {error}")
            return 127, None
        out, until = b"", time.monotonic() + deadline_s + START_S
        try:
            while self._goes_on() and time.monotonic() < until:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    out, _ = process.communicate(timeout=_POLL_S)
                    break
        finally:
            kill_group(process)
            code = process.wait()
            if process.stdout is not None:
                process.stdout.close()
        return code, _report(out)


def _program(interpreter: str) -> tuple[str, ...]:
    """Return the words that run the check by path: the ranks' interpreter need not have this package."""
    spec = find_spec("health.nodecheck.__main__")
    path = spec.origin if spec is not None and spec.origin is not None else ""
    return interpreter or sys.executable, "-P", path


def _free_port() -> int:
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])


def _report(out: bytes) -> dict[str, Any] | None:
    """Return what the rank that leads printed; None where it printed nothing whole."""
    with contextlib.suppress(ValueError, IndexError):
        report = json.loads(out.splitlines()[-1])
        if isinstance(report, dict) and isinstance(report.get("results"), list):
            return {"results": [row for row in report["results"] if isinstance(row, dict) and row.get("result") != "ok"]}
    return None


def _failed(report: Mapping[str, Any]) -> dict[int, str]:
    """Return the ranks that failed, each with its first finding."""
    failures: dict[int, str] = {}
    for row in _rows(report):
        kind, _, number = str(row.get("subject")).partition(":")
        if row.get("result") == _FAILED and kind == "rank" and number.isdecimal() and row.get("check") in _OF_RANKS:
            failures.setdefault(int(number), str(row.get("reason"))[:_MOST_CHARACTERS])
    return failures


def _others(report: Mapping[str, Any]) -> list[str]:
    """Return what else is wrong: links of which neither end is to blame."""
    rows = (row for row in _rows(report) if str(row.get("subject")).startswith("link:") and row.get("result") in {_FAILED, "degraded"})
    return [str(row.get("reason"))[:_MOST_CHARACTERS] for row in rows]


def _rows(report: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    rows: Sequence[dict[str, Any]] = report["results"]
    return rows
