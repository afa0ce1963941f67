"""Several nodes on loopback, each a `supervise` with an agent of its own: all resume from the same checkpoint, or none begins."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.rejections import REJECTED
from supervisor.job import identity
from tests.support.ports import answers, free_port
from tests.support.supervised import Supervised, clean_environment
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

JOBS = Path(__file__).parents[1] / "jobs"
#: Ranks that step together over gloo, and ranks that start in a moment.
DDP, ALONE = (str(JOBS / "ddp_small.py"), "--light"), (str(JOBS / "no_torch.py"),)
NODES, STEPS, EVERY = 2, 60, 20
#: Random kills during saves, in runs of so many.
KILLS, A_RUN = int(os.environ.get("NODES_KILLS", "100")), 25
SAVE_S = 0.6

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


class Cluster:
    """The nodes of one job. `place` is what they share; node 0 serves the rendezvous.

    `checkpoints` may hold {node}; `resume`: how each node's script is told what to resume from. `words` and `environments`: further ones of
    some nodes. last_call_s: how long a round of torch waits for more nodes than it needs.
    join_s: and for those that it needs.
    """

    def __init__(  # noqa: PLR0913  what a test varies, by name
        self,
        start: Callable[..., Supervised],
        place: Path,
        *job: str,
        options: Sequence[str] = (),
        count: int = NODES,
        nnodes: str = "",
        checkpoints: str = "{place}/ckpt",
        resume: Sequence[str] = ("--resume {resume}",) * 3,
        script: Sequence[str] = DDP,
        last_call_s: int = 2,
        join_s: int = 600,
        words: Mapping[int, Sequence[str]] = MappingProxyType({}),
        environments: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
        **environment: str,
    ) -> None:
        self._words, self._environments, self._last_call_s, self._join_s = words, environments, last_call_s, join_s
        self._start, self._job, self._options, self.place = start, job, options, place
        self._checkpoints, self._resume, self._script, self._environment = checkpoints, resume, script, environment
        port = free_port()
        self._torchrun = ["torchrun", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=e2e"]
        self._torchrun += [f"--nnodes={nnodes or count}"]
        self.runs = [self.start(0)]
        wait_for(lambda: answers(port), "node 0 to serve the rendezvous", 60, alive=self.runs[0].alive)
        self.runs += [self.start(node) for node in range(1, count)]

    def start(self, node: int) -> Supervised:
        """Start a node, or start it again."""
        directory = self._checkpoints.format(place=self.place, node=node)
        files = [f"--progress={self.place}/progress", f"--ckpt-dir={directory}", f"--digest={self.place}/digest"]
        declared = ["--checkpoints", f"{directory}/*.pt", "--resume-args", self._resume[node], *self._options]
        command = [
            *self._torchrun,
            "--nproc-per-node=1",
            f"--rdzv-conf=last_call_timeout={self._last_call_s},join_timeout={self._join_s}",
            *self._script,
            f"--save-every={EVERY}",
        ]
        place = self.place / f"node-{node}"
        words = [f"--steps={STEPS}", *files, *self._job, *self._words.get(node, ())]
        return self._start(*command, *words, options=declared, place=place, **self._environment, **self._environments.get(node, {}))

    def pids(self, attempt: int = 1) -> dict[int, int]:
        """Return rank → pid over all nodes."""
        return {rank: pid for run in self.runs for rank, pid in run.rank_pids(attempt).items()}

    def reached(self, rank: int, step: int, of: Sequence[Supervised] = ()) -> None:
        """Await that a rank made a step, or a later one, while all nodes live, or those named."""
        look = lambda: self.has_reached(rank, step)  # noqa: E731
        wait_for(look, f"step {step} of rank {rank}", 120, alive=lambda: all(run.alive() for run in of or self.runs))

    def has_reached(self, rank: int, step: int) -> bool:
        """Return whether a rank made a step, or a later one."""
        with contextlib.suppress(FileNotFoundError):
            rows = [line.split() for line in (self.place / "progress").read_text().splitlines()]
            return any(row[0] == str(rank) and int(row[1]) >= step for row in rows)
        return False

    def steps(self) -> list[int]:
        """Return the steps of the checkpoints that are there, of a directory that all nodes share."""
        return sorted(int(path.stem.removeprefix("step-")) for path in (self.place / "ckpt").glob("*.pt"))

    def resumed(self) -> list[str]:
        """Return how each node reported that its last attempt began."""
        return [next((line for line in reversed(run.stderr.splitlines()) if "resumed at" in line), "") for run in self.runs]


def all_nodes(run: Supervised) -> dict[str, Any]:
    """Return what `status --all-nodes` shows on a node."""
    document: dict[str, Any] = json.loads(run.ask("status", "--all-nodes", "--json").stdout)
    return document


def selections(run: Supervised) -> list[dict[str, Any]]:
    """Return what was selected for a node's later attempts."""
    files = [file for name in ("supervise.log.1", "supervise.log") for file in run.state.glob(f"*/nodes/*/{name}")]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [row for row in rows if row["event"] == "checkpoint.selected" and row["attempt"] > 1]


@functools.cache
def digest_of(steps: int, script: tuple[str, ...] = DDP, nodes: int = NODES) -> bytes:
    """Return the digest of the model after a run in which nothing fails."""
    with tempfile.TemporaryDirectory() as place:
        return uninterrupted(Path(place), steps, script, nodes)


def uninterrupted(place: Path, steps: int, script: tuple[str, ...], nodes: int) -> bytes:
    """Run the job by plain torchrun, or by Python where its ranks do nothing together; return the model's digest."""
    launcher = [sys.executable] if script == ALONE else ["torchrun", "--standalone", f"--nproc-per-node={nodes}"]
    job = [*launcher, *script, f"--steps={steps}", f"--digest={place}/digest"]
    subprocess.run(job, env=clean_environment(), check=True, capture_output=True)  # noqa: S603  # our own job
    return (place / "digest").read_bytes()


def test_a_rank_killed_while_another_saves_leaves_one_checkpoint_that_all_resume_from(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    go_on = tmp_path / "go-on"  # at step 41: rank 0 alone saves, and no other is beyond it
    job = ["--save-ms=1500", "--ignore-term", "--step-ms=20", f"--hold-at={2 * EVERY + 1}", f"--held-until={go_on}"]
    nodes = Cluster(supervise, tmp_path, *job, script=ALONE)
    pids = nodes.pids()
    nodes.reached(0, 2 * EVERY)  # rank 0 is in the save of this step, and ends it although it is told to end
    os.kill(pids[1], signal.SIGKILL)
    wait_for(lambda: all(run.attempts() >= 2 for run in nodes.runs), "the second attempt", 60)
    go_on.touch()
    assert [run.exit_code(120) for run in nodes.runs] == [0, 0]
    chosen = [row["chosen"] for run in nodes.runs for row in selections(run)]
    assert [row["step"] for row in chosen] == [2 * EVERY] * 2
    assert all(row["path"].startswith(f"{tmp_path}/ckpt/") for row in chosen)
    assert (tmp_path / "digest").read_bytes() == digest_of(STEPS, ALONE)


def running(run: Supervised) -> dict[str, Any] | None:
    """Return what the coordinator tells of all nodes, once all run: each tells with its next beat."""
    status = all_nodes(run)  # they start for as long as their steps are not seen: a job without torch names none
    told = {(row["state"], bool(row["ranks"])) for row in status["nodes"]}
    return status if status["coordinator"] and told == {("starting", True)} else None


@pytest.mark.slow  # tests/cli/jobs/test_all_nodes.py, test_several_nodes.py and tests/report/test_reporter.py show the parts
def test_three_nodes_are_one_job_to_a_person_one_status_one_alert_and_one_story(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    go_on, sent, config = tmp_path / "go-on", tmp_path / "sent", tmp_path / "alerts.toml"
    sent.mkdir()
    sink = f'kind = "exec"\nseverity = "info"\nruns = true\ncommand = ["/bin/sh", "-c", "cat > {sent}/$SUPERVISE_ALERT_ID"]\n'
    config.write_text(f"[[alerts.sink]]\n{sink}")
    job = ["--step-ms=20", f"--hold-at={EVERY + 1}", f"--held-until={go_on}"]
    nodes = Cluster(supervise, tmp_path, *job, count=3, options=["--config", str(config)], script=ALONE)
    pids = nodes.pids()
    nodes.reached(0, EVERY)
    asked = wait_for(lambda: running(nodes.runs[2]), "the coordinator to know of three that run", 60)
    assert [(row["number"], row["state"], row["attempt"], row["ranks"]) for row in asked["nodes"]] == [
        (number, "starting", 1, f"rank {number}") for number in range(3)
    ]
    assert sorted(row["source"] for row in asked["nodes"]) == ["coordinator", "coordinator", "here"]
    os.kill(pids[1], signal.SIGKILL)
    wait_for(lambda: all(run.attempts() >= 2 for run in nodes.runs), "the second attempt", 60)
    go_on.touch()
    assert [run.exit_code(120) for run in nodes.runs] == [0] * 3
    alerts = [json.loads(path.read_text()) for path in sent.iterdir()]
    assert sorted((alert["event"], alert["state"]) for alert in alerts) == [
        ("opened", "firing"), ("resolved", "resolved"), ("resume_suspect", "firing"), ("resume_suspect", "resolved"),
        ("run_finished", "message"), ("run_started", "message"),
    ], "each once, and not once for each node"  # fmt: skip
    (opened,) = [alert for alert in alerts if alert["event"] == "opened"]
    assert (opened["rank"], opened["failed_on"]) == (1, f"{identity.node_name()}:1")
    where = [re.search(r"where +(rank 1 on \S+:1, step \w+, attempt 1)", " ".join(run.ask("why").stdout.split())) for run in nodes.runs]
    assert len({match and match[1] for match in where}) == 1, "the same on every card"
    assert where[0] is not None


@pytest.mark.slow  # tests/agent/test_nodes.py shows the rounds in seconds
def test_all_ranks_save_and_exit_0_as_the_coordinator_loses_its_supervise_and_the_job_waits_for_it_and_ends_whole(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    nodes = Cluster(supervise, tmp_path, "--step-ms=50", "--save-on-term")
    nodes.pids()
    nodes.reached(0, EVERY + 3)
    lost, *others = nodes.runs
    lost.process.kill()
    for run in others:
        wait_for(lambda run=run: '"event":"CoordinatorFellSilent"' in run.journal(), "the others to miss it", 30, alive=run.alive)
    (saved,) = (step for step in nodes.steps() if step % EVERY)
    lost.wait_for_nothing_left()
    nodes.runs[0] = nodes.start(0)
    assert [run.exit_code(120) for run in nodes.runs] == [0, 0]
    assert all(f"resumed at step {saved} from" in line for line in nodes.resumed()), nodes.resumed()
    assert (tmp_path / "digest").read_bytes() == digest_of(STEPS)


@pytest.mark.slow
def test_nodes_with_directories_of_their_own_stop_and_each_card_names_what_is_missing_where(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    nodes = Cluster(supervise, tmp_path, "--step-ms=100", checkpoints="{place}/node-{node}/ckpt", script=ALONE)
    pids = nodes.pids()
    nodes.reached(0, EVERY + 1)
    os.kill(pids[1], signal.SIGKILL)
    assert [run.exit_code(120) for run in nodes.runs] == [65] * NODES
    assert sorted(len(list((run.place / "ckpt").glob("*.pt"))) if (run.place / "ckpt").exists() else 0 for run in nodes.runs) == [0, 1]
    for run in nodes.runs:
        why = " ".join(run.ask("why").stdout.split())
        assert {why.count(f"node {node} (") > 0 for node in range(NODES)} == {True}, why
        assert why.count("): none") >= NODES - 1, why
        assert f"step {EVERY}, " in why
        assert run.attempts() == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_script_that_loads_another_step_on_one_node_is_ended_and_nothing_that_it_saved_is_resumed_from(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    old = f"--resume {{resume}} --resume {tmp_path}/ckpt/step-{EVERY:06d}.pt"  # of an option that is given twice the last counts
    resume = ["--resume {resume}", old]
    nodes = Cluster(supervise, tmp_path, "--step-ms=20", "--steps=4000", resume=resume)
    pids = nodes.pids()
    nodes.reached(0, 2 * EVERY + 5)
    os.kill(pids[0], signal.SIGKILL)
    codes = [run.exit_code(400) for run in nodes.runs]  # 80 s of steps
    handed = {row["chosen"]["step"] for run in nodes.runs for row in selections(run) if row["chosen"]}
    if not any(codes):  # its rank was rank 0, and saved over what the others had loaded: all stepped back to what it loads
        assert min(handed) == EVERY
        assert (tmp_path / "digest").read_bytes() == digest_of(4000)
        return
    assert all(codes)
    assert len(handed) == 1, "what was saved after it was not handed out"
    step = handed.pop()
    assert step > EVERY
    assert any(f"loaded step {EVERY}" in run.stderr and f"loaded step {step}" in run.stderr for run in nodes.runs)
    later = {str(path) for path in (tmp_path / "ckpt").glob("*.pt") if int(path.stem.removeprefix("step-")) > step}
    catalogues = [CheckpointCatalogue(directory) for run in nodes.runs for directory in run.state.glob("*/nodes/*/checkpoints")]
    fenced = any(later <= {row.path for row in known.all(REJECTED) if row.kind == "mixed"} for known in catalogues)
    assert fenced or not later, "and will not be by a later run; most often the attempt is ended before it saves"


@pytest.mark.slow
def test_nodes_continue_without_a_killed_one_and_it_returns_after_a_prune(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    nodes = Cluster(supervise, tmp_path, "--step-ms=50", "--steps=1000", count=3, nnodes="2:3", script=ALONE)
    nodes.pids()
    nodes.reached(0, EVERY + 5)
    *others, lost = nodes.runs
    lost.process.kill()
    wait_for(lambda: all(run.attempts() >= 2 for run in others), "the others to continue, long before they would wait no more", 60)
    known = nodes.steps()
    reached = known[-1] + 2 * EVERY + 5
    nodes.reached(0, reached, of=others)
    for step in known:  # as a script does that keeps its newest
        (tmp_path / "ckpt" / f"step-{step:06d}.pt").unlink()
    again = nodes.start(2)
    assert [run.exit_code(200) for run in (*others, again)] == [0] * 3
    chosen = [selections(run)[-1] for run in (*others, again)]
    assert [row["agreement"] for row in chosen] == [chosen[0]["agreement"]] * 3
    assert chosen[0]["agreement"] >= 3, "it was admitted"
    assert len({row["chosen"]["step"] for row in chosen}) == 1
    assert chosen[0]["chosen"]["step"] >= reached, "it was admitted before a save"
    assert "is lost: its supervise died, and its processes are ended" in " ".join(others[0].ask("why", "1").stdout.split())


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whichever_rank_is_killed_during_a_save_all_nodes_resume_from_one_checkpoint_and_the_model_is_the_uninterrupted_one(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    seed = int(os.environ.get("NODES_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    rng, struck, done = random.Random(seed), 0, 0  # noqa: S311  no secret
    expected: dict[int, bytes] = {}
    while done < KILLS:
        count = min(A_RUN, KILLS - done)
        place = tmp_path / f"run-{done}"
        place.mkdir()
        steps = EVERY * (2 * count + 2)
        job = [f"--save-ms={SAVE_S * 1e3}", "--ignore-term", "--step-ms=5", f"--steps={steps}", f"--pids={place}/pids"]
        job += [f"--in-step={place}/in-step"]
        nodes = Cluster(supervise, place, *job, script=ALONE)
        in_time = [kill_in_a_save(nodes, rng)]
        while len(in_time) < count and in_time[-1] is not None:
            in_time.append(kill_in_a_save(nodes, rng))
        killed = [kill for kill in in_time if kill is not None]
        assert killed, f"seed {seed}: the job was over before the first kill"
        assert [run.exit_code(180) for run in nodes.runs] == [0] * NODES, f"seed {seed}"
        chosen = [{row["agreement"]: row["chosen"] and row["chosen"]["step"] for row in selections(run)} for run in nodes.runs]
        assert chosen[0] == chosen[1], f"seed {seed}"
        assert len(chosen[0]) >= len(killed)
        expected[steps] = expected.get(steps) or digest_of(steps, ALONE)
        assert (place / "digest").read_bytes() == expected[steps], f"seed {seed}"
        done, struck = done + len(killed), struck + sum(killed)
    print(f"seed {seed}: {done} kills, {struck} of them while the checkpoint was being written")  # noqa: T201  what the test is worth
    assert struck * 2 >= done


def kill_in_a_save(nodes: Cluster, rng: random.Random) -> bool | None:
    """Kill a random rank at a random moment of a save, once the job got beyond its last one.

    Return whether it was before the save's end; None where the job was over first, because the machine has no time for this process.
    """
    known = max(nodes.steps(), default=0)
    over = lambda: not all(run.alive() for run in nodes.runs)  # noqa: E731
    wait_for(lambda: over() or max(nodes.steps(), default=0) > known, "another checkpoint", 120)
    step = max(nodes.steps(), default=0) + EVERY
    wait_for(lambda: over() or nodes.has_reached(0, step), f"step {step} of rank 0", 120)
    time.sleep(rng.uniform(0, SAVE_S * 0.9))
    struck = step not in nodes.steps()
    pids = dict(line.split() for line in (nodes.place / "pids").read_text().splitlines())
    try:
        os.kill(int(pids[str(rng.randrange(NODES))]), signal.SIGKILL)
    except ProcessLookupError:
        return None  # how the job ended is asserted by the caller
    return struck
