"""Every attempt has a store of its own: restarts after a rank's death recover for every rendezvous, where plain torchrun's often do not.

Two ranks train with gloo. One starts a second later than the other, and twice a rank dies. After as many restarts the model must be
bit-equal to an uninterrupted run's: `pids` has a line per rank and start. bench/restart.py has plain torchrun's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import preloaded
from tests.support.ports import free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

JOBS = Path(__file__).parents[1] / "jobs"
NO_TORCH, DDP = str(JOBS / "no_torch.py"), str(JOBS / "ddp_small.py")
KINDS = [("standalone", 1), ("c10d", 1), ("static", 1), ("static", 2)]
#: Of each kind. tests/agent/test_recovery.py has twenty of each, of the agent alone.
DEATHS = 2
STEPS = 10 * DEATHS + 5

pytestmark = pytest.mark.process


def launchers(kind: str, nodes: int) -> list[list[str]]:
    """Return the torchrun of each node; two ranks in all."""
    port = free_port()
    own = {
        "standalone": ["--standalone"],
        "c10d": ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=e2e"],
        "static": ["--master-addr=127.0.0.1", f"--master-port={port}"],
    }[kind]
    several = [[f"--nnodes={nodes}", f"--node-rank={node}"] if kind == "static" else [] for node in range(nodes)]
    return [["torchrun", f"--nproc-per-node={2 // nodes}", *own, *rest] for rest in several]


#: Rank 0 is late in each other attempt, and it is the other rank that dies: 3 steps behind the next save.
DIES = """
import os, runpy, sys
died = sum(name.startswith("died-") for name in os.listdir({place!r}))
late = died % 2
sys.argv += [f"--skew-rank={{late}}", "--skew-s=1"]
if died < {deaths}:
    sys.argv += [f"--fail-rank={{1 - late}}", f"--fail-at-step={{10 * died + 13}}"]
    sys.argv += ["--fail-how=kill", f"--fail-once-file={place}/died-{{died}}"]
sys.path.insert(0, {jobs!r})
runpy.run_path({job!r}, run_name="__main__")
"""


def training(place: Path) -> list[str]:
    """Return a job all of whose files are in `place`."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "dies.py").write_text(DIES.format(place=str(place), deaths=DEATHS, jobs=str(JOBS), job=DDP))
    job = [str(place / "dies.py"), "--light", f"--steps={STEPS}", "--save-every=5", f"--ckpt-dir={place}/ckpt", f"--pids={place}/pids"]
    return [*job, f"--digest={place}/digest"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Give the digest of the model after a run in which nothing fails."""
    digest = tmp_path_factory.mktemp("uninterrupted") / "digest"
    done = preloaded.run(DDP, "--light", f"--steps={STEPS}", f"--digest={digest}", ranks=2)
    assert done.returncode == 0, done.stderr
    return digest.read_bytes()


def ranks_started(place: Path) -> list[int]:
    """Return the rank of each start that a rank wrote down."""
    return sorted(int(line.split()[0]) for line in (place / "pids").read_text().splitlines())


def deaths(place: Path) -> int:
    """Return how often a rank died."""
    return len(list(place.glob("died-*")))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("kind", "nodes"), KINDS)
def test_both_of_two_restarts_recover_for_every_rendezvous(
    supervise: Callable[..., Supervised], tmp_path: Path, uninterrupted: bytes, kind: str, nodes: int
) -> None:
    options = ["--checkpoints", f"{tmp_path}/ckpt/*.pt", "--resume-args", "--resume {resume}"]
    logs = [f"--log-dir={tmp_path}/logs", "--tee=3"] if kind == "standalone" else []
    job = training(tmp_path)
    runs = [
        supervise(*words, *logs, *job, options=options, place=tmp_path / f"node-{n}", SUPERVISE_RESTART_INTENSITY="20")
        for n, words in enumerate(launchers(kind, nodes))
    ]
    assert [run.exit_code(600) for run in runs] == [0] * nodes
    assert deaths(tmp_path) == DEATHS, "a fault did not strike"
    assert ranks_started(tmp_path) == sorted([0, 1] * (DEATHS + 1))
    assert [run.attempts() for run in runs] == [DEATHS + 1] * nodes
    shown = "".join(run.stderr for run in runs)
    assert all(f"resumed at step {10 * number} from {tmp_path}/ckpt" in shown for number in range(1, DEATHS + 1))
    assert (tmp_path / "digest").read_bytes() == uninterrupted
    if logs:  # the user's own logs of the attempts that failed are kept beside the others
        for attempt in range(DEATHS + 1):
            assert len(list((tmp_path / "logs").glob(f"*/attempt_{attempt}/[01]/std*.log"))) == 4
    for run in runs:
        run.wait_for_nothing_left()


@pytest.mark.slow
def test_a_second_node_that_joins_is_let_in_through_a_new_attempt(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    elastic = ["torchrun", "--nnodes=1:2", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
    elastic += ["--rdzv-id=e2e", "--rdzv-conf=last_call_timeout=1"]
    job = [
        NO_TORCH,
        "--steps=600",
        "--step-ms=50",
        "--hold-at=100",
        f"--held-until={tmp_path}/go-on",
        "--save-every=5",
        f"--ckpt-dir={tmp_path}/ckpt",
        f"--progress={tmp_path}/progress",
    ]
    job += [f"--pids={tmp_path}/pids", f"--digest={tmp_path}/digest"]
    options = ["--checkpoints", f"{tmp_path}/ckpt/*.pt", "--resume-args", "--resume {resume}"]
    first = supervise(*elastic, *job, options=options, place=tmp_path / "first")
    wait_for(lambda: list((tmp_path / "ckpt").glob("*095.pt")), "a checkpoint of the first node alone", alive=first.alive)
    wait_for(lambda: ranks_started(tmp_path) == [0, 1], "both of its ranks", 60, alive=first.alive)
    second = supervise(*elastic, *job, options=options, place=tmp_path / "second")
    first.wait_for_line(r"1 node\(s\) ask to join", 60)
    (tmp_path / "go-on").touch()  # a checkpoint that is verified later lets it in
    wait_for(lambda: len(ranks_started(tmp_path)) >= 6, "ranks on both nodes", 120, alive=first.alive)
    assert ranks_started(tmp_path) == [0, 0, 1, 1, 2, 3]
    assert first.exit_code() == 0
    assert second.exit_code() == 0
    assert first.attempts() == 2
    assert second.attempts() == 1
    assert "1 node(s) ask to join" in first.stderr
    assert "incident 1" not in first.stderr
    steps_of_rank_0 = [line.split()[1] for line in (tmp_path / "progress").read_text().splitlines() if line.startswith("0 ")]
    assert steps_of_rank_0.count("1") == 1  # the second attempt continued
    assert (tmp_path / "digest").exists()
    first.wait_for_nothing_left()
    second.wait_for_nothing_left()


HALF_WRITTEN = """
import os, pathlib, runpy, sys, time
from torch.distributed.elastic.multiprocessing.errors import record
sys.path.insert(0, {jobs!r})

@record
def main():
    runpy.run_path({job!r}, run_name="__main__")
    while not pathlib.Path({pids!r}).is_file() or len(pathlib.Path({pids!r}).read_text().splitlines()) < 2:
        time.sleep(0.01)  # until both ranks are there
    if os.environ["RANK"] == "1" and os.environ["SUPERVISE_JOB_ATTEMPT"] == "1":
        raise RuntimeError("written down by torch, and then torn")

try:
    main()
except RuntimeError:
    path = os.environ["TORCHELASTIC_ERROR_FILE"]
    os.truncate(path, os.path.getsize(path) // 2)
    os.link(path, "torn.json")
    os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_a_half_written_error_file_of_torch_is_survived(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(HALF_WRITTEN.format(jobs=str(JOBS), job=NO_TORCH, pids=f"{tmp_path}/pids"))
    run = supervise("torchrun", "--standalone", "--nproc-per-node=2", str(tmp_path / "job.py"), "--steps=3", f"--pids={tmp_path}/pids")
    assert run.exit_code() == 0
    assert 0 < (tmp_path / "torn.json").read_text().count("{") > (tmp_path / "torn.json").read_text().count("}")
    assert ranks_started(tmp_path) == [0, 0, 1, 1]
    assert run.attempts() == 2
    run.wait_for_nothing_left()


RECORDED = """
import os, sys, time
sys.excepthook = lambda *error: None  # the traceback is nowhere in the output
if os.environ["RANK"] == "0":
    time.sleep(600)
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    raise ImportError("no module of that name")

main()
"""


@pytest.mark.slow
def test_an_exception_that_torch_wrote_down_is_evidence_where_ours_is_missing(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(RECORDED)
    run = supervise(
        "torchrun",
        "--standalone",
        "--nproc-per-node=2",
        "--max-restarts=0",
        str(tmp_path / "job.py"),
        options=["--set", "instrument.enabled=true"],
    )
    assert run.exit_code() == 1
    assert "ImportError: no module of that name where rank 1 on " in " ".join(run.stderr.split())
    assert "dependency, 85 % sure" in run.stderr
    (kept,) = run.state.glob("*/nodes/*/incidents/0001/evidence.json")
    facts = [(fact["name"], fact["rank"]) for fact in json.loads(kept.read_text()) if fact["source"] == "error_file"]
    assert facts == [("exception", 1), ("traceback", 1)]
    run.wait_for_nothing_left()


def test_a_secret_in_an_exception_is_written_nowhere_but_into_the_ranks_own_output(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text("raise RuntimeError('login failed: api_key=hunter2hunter2')\n")
    run = supervise(sys.executable, str(tmp_path / "job.py"))
    assert run.exit_code() == 1
    (node,) = run.state.glob("*/nodes/*")
    kept = [path for path in node.rglob("*") if path.is_file() and "attempts" not in path.parts]
    assert {"evidence.json", "card.txt", "journal.jsonl", "supervise.log"} <= {path.name for path in kept}
    assert [str(path) for path in kept if b"hunter2hunter2" in path.read_bytes()] == []
    assert [str(path) for path in kept if path.stat().st_mode & 0o077] == []


@pytest.mark.slow
def test_the_first_cause_is_reported_on_every_node_and_counted_there(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    job = [NO_TORCH, "--steps=100000", "--step-ms=20", "--fail-rank=1", "--fail-at-step=20", "--fail-how=exit:3"]
    runs = [
        supervise(*launcher, *job, options=["--set", "instrument.enabled=false"], place=tmp_path / str(node))
        for node, launcher in enumerate(launchers("static", 2))
    ]
    assert len({run.exit_code() for run in runs}) == 1
    assert len({run.attempts() for run in runs}) == 1
    for run in runs:
        answer = run.ask("why").stdout
        assert "rank 1 exited with code 3" in answer, answer
        assert "user_code" in answer, answer
        assert "none, 100 % sure" not in answer
