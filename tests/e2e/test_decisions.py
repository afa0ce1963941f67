"""What is decided after a failure, with real processes: restart, stop and with which code, hand-over of the checkpoint, fallback, alerts.

Jobs without torch where torch is not the point. How often a fault really struck is read from the job's own files: `pids` has a line per
rank and start.
"""

from __future__ import annotations

import hashlib
import hmac
import http.server
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.untouched import assert_untouched, listing, moved
from tests.support.alert_sinks import webhook
from tests.support.figures import within
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.supervised import Supervised

JOBS = Path(__file__).parents[1] / "jobs"
NO_TORCH, DDP = str(JOBS / "no_torch.py"), str(JOBS / "ddp_small.py")
PLAIN = [sys.executable, NO_TORCH]
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node=2"]
#: What makes a script of torch.distributed the only rank of its job, without a launcher.
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
RESUMING = ["--checkpoints", "ckpt/*.pt", "--resume-args", "--resume {resume}"]
SAVING = ["--save-every=5", "--progress=progress", "--pids=pids"]

pytestmark = pytest.mark.process


def starts(run: Supervised) -> int:
    """Return how many ranks were ever started, from their own records."""
    return len((run.place / "pids").read_text().splitlines())


def digest_of(run: Supervised) -> str:
    """Return what rank 0 of a finished job says it has trained."""
    return (run.place / "digest").read_text()


def state_after(steps: int) -> str:
    """Return the state that no_torch.py has after so many steps without any interruption."""
    state = "seed"
    for step in range(1, steps + 1):
        state = hashlib.sha256(f"{state} {step}".encode()).hexdigest()
    return state


def wrapper(place: Path, name: str, before: str, script: str) -> str:
    """Write a script that runs `before` and then the job `script` with the arguments as they then are."""
    place.mkdir(parents=True, exist_ok=True)
    path = place / name
    run = f"\nsys.path.insert(0, {str(JOBS)!r})\nrunpy.run_path({script!r}, run_name='__main__')\n"
    path.write_text("import os, runpy, sys\n" + before + run)
    return str(path)


# --- how a rank dies


# a torch rank that calls sys.exit with its process group open may be aborted by gloo's threads on its way out
WAYS = {
    "kill": "was killed by SIGKILL",
    "exit:42": "(exited with code 42|was killed by SIGABRT)",
    "segv": "was killed by SIGSEGV",
}


@pytest.mark.slow
def test_each_way_to_die_after_progress_costs_one_restart_from_the_newest_checkpoint(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    ways = list(WAYS)
    before = (
        f"ways, attempt = {ways!r}, int(os.environ['SUPERVISE_JOB_ATTEMPT'])\n"
        "if attempt <= len(ways):\n"
        "    sys.argv += ['--fail-rank=0', f'--fail-at-step={attempt * 10 - 2}', f'--fail-how={ways[attempt - 1]}']\n"
    )
    job = wrapper(tmp_path, "fails.py", before, DDP)
    # a checkpoint is progress once it was seen: that the failures of one family are not charged together is not left to luck
    launcher = ["torchrun", "--standalone", "--nproc-per-node=1"]
    run = supervise(*launcher, job, "--light", f"--steps={len(ways) * 10 + 5}", *SAVING, options=RESUMING, SUPERVISE_RESTART_INTENSITY="10")
    assert run.exit_code() == 0
    assert starts(run) == len(ways) + 1
    assert run.attempts() == len(ways) + 1
    resumed = [int(step) for step in re.findall(r"resumed at step (\d+) from \S*ckpt/step-0*\1\.pt", run.stderr)]
    assert resumed == [number * 10 + 5 for number in range(len(ways))]
    reports = re.findall(r"incident \d+ at step (\d+): rank (\d) (.*?)\. Restarting", run.stderr)
    assert [(int(rank), int(step)) for step, rank, _ in reports] == [(0, n * 10 - 3) for n in range(1, len(ways) + 1)]
    assert all(re.match(WAYS[way], text) for way, (_, _, text) in zip(ways, reports, strict=True)), reports
    run.wait_for_nothing_left()


def test_the_same_failure_at_the_same_step_twice_is_given_up_with_65(supervise: Callable[..., Supervised]) -> None:
    fault = ["--fail-rank=0", "--fail-at-step=13", "--fail-how=exception"]
    run = supervise(*PLAIN, "--beat", "--steps=40", *SAVING, *fault, options=RESUMING)
    assert run.exit_code() == 65
    assert starts(run) == 2
    assert "the same error came again at step 12 (attempts 1 and 2)" in " ".join(run.stderr.split())
    assert "step 12" in run.stderr
    assert "resumed at step 10 from" in run.stderr
    run.wait_for_nothing_left()


@pytest.mark.slow  # the scenarios show the cap
def test_max_restarts_given_to_torchrun_is_the_cap(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*TORCHRUN, "--max-restarts=1", NO_TORCH, "--pids=pids", "--fail-rank=1", "--fail-at-step=3", "--fail-how=kill")
    assert run.exit_code() == 128 + signal.SIGKILL
    assert run.attempts() == 2
    assert starts(run) == 4
    assert "--max-restarts=1 is used up" in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("own", [42, 137])
def test_a_ranks_own_code_under_torchrun_comes_out_up_to_63_and_else_as_1(supervise: Callable[..., Supervised], own: int) -> None:
    run = supervise(*TORCHRUN, NO_TORCH, "--pids=pids", "--fail-rank=1", f"--fail-how=exit:{own}")
    assert run.exit_code() == (own if own <= 63 else 1)
    assert f"exited with code {own}" in run.stderr
    assert run.attempts() == 2, "a code alone is not sure of its cause"


#: Neither has an optimizer, so no step of them is ever seen.
EVALUATES = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
for number in range(40):
    dist.all_reduce(torch.ones(1))
    if {when}:
        {end}
dist.destroy_process_group()
"""
PLAYS = """
import os, sys, time
for number in range(40):
    time.sleep(0.11)
    if {when}:
        {end}
"""
REFUSES = """
import argparse, torch.distributed as dist
dist.init_process_group("gloo")
parser = argparse.ArgumentParser()
parser.add_argument("--lr", required=True)
parser.parse_args()
"""
ONCE = "number == 30 and not os.path.exists('again')"


@pytest.mark.slow
def test_a_script_without_an_optimizer_gets_one_restart_and_the_same_exception_again_is_its_last(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    job = tmp_path / "train.py"
    job.write_text(EVALUATES.format(when="number == 30", end="raise ValueError('bad row')"))
    run = supervise(sys.executable, str(job), **ALONE, _SUPERVISE_TEST_INTERVALS="0.04")
    assert run.exit_code(deadline_s=120) == 65
    assert run.attempts() == 2


@pytest.mark.slow  # tests/scenarios shows it
def test_a_first_failure_without_an_optimizer_is_restarted_and_ends_well(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    job = tmp_path / "train.py"
    job.write_text(PLAYS.format(when=ONCE, end="open('again', 'w').close(); sys.exit(3)"))
    run = supervise(*TORCHRUN, str(job), _SUPERVISE_TEST_INTERVALS="0.04")
    assert run.exit_code(deadline_s=120) == 0
    assert run.attempts() == 2


@pytest.mark.slow
def test_arguments_that_a_script_refuses_end_the_run_at_once_also_after_its_process_group(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    job = tmp_path / "train.py"
    job.write_text(REFUSES)
    run = supervise(sys.executable, str(job), **ALONE)
    assert run.exit_code(deadline_s=120) == 2
    assert run.attempts() == 1


@pytest.mark.bench
def test_an_import_error_at_the_start_of_a_plain_script_is_reported_within_three_seconds(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*PLAIN, "--pids=pids", "--fail-rank=0", "--fail-how=import-error")
    wait_for((run.place / "pids").exists, "the rank's start")
    began = time.monotonic()
    assert run.exit_code() == 1
    assert within(3, since=began)
    assert starts(run) == 1
    assert "a_module_that_nobody_has" in run.stderr


# --- from scratch


@pytest.mark.slow
def test_a_script_that_never_loads_anything_is_not_started_again_after_the_limit(supervise: Callable[..., Supervised]) -> None:
    run = supervise(
        *PLAIN, "--steps=100000", "--step-ms=20", "--progress=progress", "--pids=pids", options=["--set", "restart.scratch_limit_s=1"]
    )
    run.wait_for_step(1)
    first_ns = int((run.place / "progress").read_text().split()[2])
    wait_for(lambda: time.monotonic_ns() - first_ns > 1_100_000_000, "the limit to be passed", alive=run.alive)
    os.kill(run.rank_pids()[0], signal.SIGKILL)
    assert run.exit_code() == 65
    assert starts(run) == 1
    card = " ".join(run.stderr.split())  # long lines of it are folded
    assert "--checkpoints 'DIR/*.pt' --resume-args '--resume {resume}', or --resumes-itself" in card
    assert "restarting" not in run.stderr


@pytest.mark.slow  # tests/scenarios shows it
def test_a_job_within_the_limit_is_started_from_scratch_with_a_report(supervise: Callable[..., Supervised]) -> None:
    once = ["--fail-rank=0", "--fail-at-step=3", "--fail-how=kill", "--fail-once-file=failed"]
    run = supervise(*PLAIN, "--steps=6", "--pids=pids", *once)
    assert run.exit_code() == 0
    assert starts(run) == 2
    assert run.stderr.count("STARTED FROM SCRATCH") == 1


# --- hand-over

TELLING = (
    "names = ('SUPERVISE_JOB_ATTEMPT', 'SUPERVISE_JOB_RESUME_FROM', 'SUPERVISE_JOB_RESUME_STEP')\n"
    "line = '|'.join([*(os.environ.get(name, '-') for name in names), *(a for a in sys.argv[1:] if 'resume' in a or a.endswith('.pt'))])\n"
    "os.write(os.open('told', os.O_WRONLY | os.O_CREAT | os.O_APPEND), (line + '\\n').encode())\n"
)
BY_ENVIRONMENT = "if path := os.environ.get('SUPERVISE_JOB_RESUME_FROM'):\n    sys.argv += ['--resume', path]\n"
BY_PLACEHOLDER = "sys.argv = [a for a in sys.argv if a != '--resume=']\n"


HANDED_OVER = [
    ("plain", "environment"),
    ("torchrun", "placeholder"),
]


@pytest.mark.slow  # by arguments each restart of the fast tests does it
@pytest.mark.parametrize(("launcher", "how"), HANDED_OVER)
def test_the_checkpoint_is_handed_over(supervise: Callable[..., Supervised], tmp_path: Path, launcher: str, how: str) -> None:
    before = TELLING + {"environment": BY_ENVIRONMENT, "placeholder": BY_PLACEHOLDER, "arguments": ""}[how]
    words = ["--resume={resume}"] if how == "placeholder" else []
    options = ["--checkpoints", "ckpt/*.pt", *(["--resume-args", "--resume {resume}"] if how == "arguments" else [])]
    fault = ["--fail-rank=0", "--fail-at-step=12", "--fail-how=kill", "--fail-once-file=failed"]
    job = wrapper(tmp_path, "tells.py", before, NO_TORCH)
    ranks = 1 if launcher == "plain" else 2
    run = supervise(
        *([sys.executable] if ranks == 1 else TORCHRUN), job, *words, "--steps=20", "--digest=digest", *SAVING, *fault, options=options
    )
    assert run.exit_code() == 0
    path = str(run.place / "ckpt" / "step-000010.pt")
    first, second = (run.place / "told").read_text().splitlines()[::ranks]
    assert first.split("|")[:3] == ["1", "-", "-"]
    assert second.split("|")[:3] == ["2", path, "10"]
    assert first.split("|")[3:] == (["--resume="] if how == "placeholder" else [])
    assert second.split("|")[3:] == {"environment": [], "placeholder": [f"--resume={path}"], "arguments": ["--resume", path]}[how]
    assert digest_of(run) == state_after(20)
    assert [step for rank, step in run.progress() if rank == 0].count(1) == 1  # nothing from scratch


def test_a_torn_newest_checkpoint_is_rejected_and_the_one_before_is_used(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*PLAIN, "--steps=60", "--hold-at=23", "--digest=digest", *SAVING, options=RESUMING)
    run.wait_for_step(22)
    pid = run.rank_pids()[0]
    newest, before = sorted((run.place / "ckpt").glob("*.pt"))[:-3:-1]
    os.truncate(newest, newest.stat().st_size - 7)
    torn = newest.read_bytes()
    kept = listing(run.place / "ckpt", without=[newest])  # which the second attempt writes anew
    os.kill(pid, signal.SIGKILL)  # before the second attempt may continue: the first would save once more
    (run.place / "go-on").touch()
    fenced = run.wait_for_line(r"checkpoint left where it is and not used: (\S+?):")
    assert Path(fenced[1]).name == newest.name
    assert newest.read_bytes() == torn or run.attempts() == 2  # the second attempt writes it anew
    assert run.exit_code() == 0
    assert moved(run) == []
    assert_untouched(run, kept)
    steps = [step for _, step in run.progress()]
    base = int(re.findall(r"\d+", before.name)[0])
    assert steps.count(base) == 1
    assert steps.count(base + 1) == 2
    assert digest_of(run) == state_after(60)


# --- where torchrun's agent cannot be ours

#: In a sitecustomize of the user's: only the agent's process is touched, so the stock torchrun that follows is whole.
RENAMED = """import torch.distributed.elastic.agent.server.api as m
    m.SimpleElasticAgent._begin_workers = m.SimpleElasticAgent._initialize_workers
    del m.SimpleElasticAgent._initialize_workers
"""


def recovers_by_stock_torchrun(run: Supervised) -> None:
    """Kill a rank of a job that must be running under torchrun itself, and await that it recovers."""
    run.wait_for_step(12)
    wait_for(lambda: starts(run) == 2, "the start of the other rank", alive=run.alive)
    launchers = [line for line in run.leftovers().values() if "--nproc-per-node=2" in line]
    assert launchers
    assert all("--max-restarts=0" in line and "supervisor/agent" not in line for line in launchers if "bash" not in line), launchers
    pids = [list(map(int, line.split())) for line in (run.place / "pids").read_text().splitlines()]
    os.kill(next(pid for rank, pid in pids if rank == 1), signal.SIGKILL)
    assert run.exit_code() == 0
    assert starts(run) == 4
    assert run.attempts() == 2  # what was tried first and did not fit costs none
    assert digest_of(run) == state_after(200)
    assert [step for rank, step in run.progress() if rank == 0].count(1) == 1  # nothing from scratch
    run.wait_for_nothing_left()


STEADY = ["--steps=200", "--step-ms=20", "--digest=digest", *SAVING]


@pytest.mark.slow
def test_a_torch_that_does_not_fit_is_reported_once_and_run_as_it_is(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    patch = f"import sys\nif any('supervisor/agent' in word for word in sys.orig_argv):\n    {RENAMED}"
    (tmp_path / "site" / "sitecustomize.py").write_text(patch)
    run = supervise(*TORCHRUN, NO_TORCH, *STEADY, options=RESUMING, PYTHONPATH=str(tmp_path / "site"))
    recovers_by_stock_torchrun(run)
    warnings = [line for line in run.stderr.splitlines() if "torchrun is run as a plain command" in line]
    assert len(warnings) == 1
    assert "_initialize_workers" in warnings[0]


@pytest.mark.slow
def test_ranks_that_are_forks_of_torchrun_are_left_to_torchrun(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    job = wrapper(tmp_path, "job.py", "", NO_TORCH)
    run = supervise(*TORCHRUN, "--run-path", job, *STEADY, options=RESUMING)
    recovers_by_stock_torchrun(run)
    assert "--run-path" in run.stderr


@pytest.mark.slow
def test_the_torchrun_of_another_interpreter_is_ours_all_the_same(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    import torch  # noqa: PLC0415  # only its place is wanted, and only here

    site = Path(torch.__file__).parents[1]
    bin_dir = tmp_path / "other" / "bin"
    bin_dir.mkdir(parents=True)
    python = bin_dir / "python"
    python.symlink_to(Path(sys.executable).resolve())
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = tmp_path / "other" / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (packages / "torch.pth").write_text(f"{site}\n")  # its packages, without what is installed there by .pth files: ours
    home = Path(sys.executable).resolve().parent
    (tmp_path / "other" / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    script = bin_dir / "torchrun"
    script.write_text(f"#!{python}\nfrom torch.distributed.run import main\nmain()\n")
    script.chmod(0o755)
    run = supervise(str(script), *TORCHRUN[1:], NO_TORCH, *STEADY, options=RESUMING)
    run.wait_for_step(12)
    agents = [line for line in run.leftovers().values() if "--output-fd" in line]
    assert len(agents) == 1
    assert agents[0].startswith(str(python))
    os.kill(run.rank_pids()[1], signal.SIGKILL)
    assert run.exit_code() == 0
    assert starts(run) == 4
    assert digest_of(run) == state_after(200)
    assert "plain command" not in run.stderr


# --- alerts

SECRET = "a secret of the test"  # noqa: S105  # that is what it is


class Receiver(http.server.ThreadingHTTPServer):
    """An endpoint on loopback that keeps what it gets. key_file: of the key that signs."""

    def __init__(self, key_file: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/hook"
        self.key_file = key_file
        key_file.write_text(SECRET)


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:  # http.server's name
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Receiver)
        self.server.got.append((dict(self.headers), body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    """Give a running endpoint."""
    with Receiver(tmp_path / "key") as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def is_genuine(headers: dict[str, str], body: bytes) -> bool:
    """Check a signature as docs/reference/alert-format.md tells the receiver to."""
    fields = dict(part.split("=", 1) for part in headers["X-Supervise-Signature"].split(","))
    expected = hmac.digest(SECRET.encode(), fields["t"].encode() + b"." + body, "sha256").hex()
    return hmac.compare_digest(expected, fields["v1"]) and abs(time.time() - int(fields["t"])) < 300


RECOVERS = ["--fail-rank=0", "--fail-at-step=12", "--fail-how=kill", "--fail-once-file=failed"]
HOPELESS = ["--fail-rank=0", "--fail-how=exit:3"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "code", "events"),  # no hook sees how this job loads
    [
        (RECOVERS, 0, {"firing opened", "firing resume_suspect", "resolved resolved", "resolved resume_suspect"}),
        pytest.param(HOPELESS, 3, {"firing given_up"}, marks=pytest.mark.slow),
    ],
    ids=["recovers", "hopeless"],
)
def test_the_webhook_gets_the_alerts(  # a fixture and a case
    supervise: Callable[..., Supervised], receiver: Receiver, fault: list[str], code: int, events: set[str]
) -> None:
    options = [*RESUMING, *webhook(receiver.url, receiver.key_file)]
    run = supervise(*PLAIN, "--steps=20", *SAVING, *fault, options=options)
    assert run.exit_code() == code
    alerts = [json.loads(body) for _, body in receiver.got]
    assert {f"{alert['state']} {alert['event']}" for alert in alerts} == events
    assert len(alerts) == len(events)
    assert all(is_genuine(headers, body) for headers, body in receiver.got)
    assert [headers["Idempotency-Key"] for headers, _ in receiver.got] == [alert["event_id"] for alert in alerts]
    assert {(alert["job"], alert["incident"]) for alert in alerts} == {("e2e", 1)}
    assert SECRET not in run.account()


def test_the_job_file_of_the_page_on_systemd_resumes(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "systemd.md").read_text()
    example = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0]
    config = tmp_path / "bert.toml"
    config.write_text(example)
    config.chmod(0o600)
    fault = ["--fail-rank=0", "--fail-at-step=12", "--fail-how=kill", "--fail-once-file=failed"]
    run = supervise(*PLAIN, "--steps=20", "--digest=digest", *SAVING, *fault, options=["--config", str(config)])
    assert run.exit_code() == 0
    assert digest_of(run) == state_after(20)
    assert [step for rank, step in run.progress() if rank == 0].count(1) == 1  # nothing from scratch


#: AdamW keeps its own count of steps in the checkpoint, which this script does not load whatever it is handed.
IGNORES = """
import os, pathlib, signal
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters())
pathlib.Path("ckpt").mkdir(exist_ok=True)
for step in range(1, 31):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    if step % 10 == 0:
        torch.save({"step": step, "model": model.state_dict()}, f"ckpt/step-{step}.pt")
    if step == 25 and os.environ["SUPERVISE_JOB_ATTEMPT"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_an_attempt_that_ignores_its_checkpoint_is_called_what_it_is_everywhere(
    supervise: Callable[..., Supervised], receiver: Receiver, tmp_path: Path
) -> None:
    script = tmp_path / "ignores.py"
    script.write_text(IGNORES)
    run = supervise(sys.executable, str(script), options=["--checkpoints", "ckpt/*.pt", *webhook(receiver.url)])
    assert run.exit_code() == 0
    alerts = [json.loads(body) for _, body in receiver.got]
    # on a busy machine the script saves before it is known to ignore its checkpoint, and that is an alert, too
    assert {(alert["event"], alert["severity"], alert["action"]) for alert in alerts if alert["event"] != "no_copy"} == {
        ("opened", "warning", "restart"),
        ("started_from_scratch", "critical", "started_from_scratch"),
        ("resolved", "warning", "started_from_scratch"),
    }
    card = next(run.state.glob("*/nodes/*/incidents/0001/card.txt")).read_text()
    assert re.search(r"STARTED FROM SCRATCH: its training began at step 0; it was given \S*ckpt/step-20.pt", run.stderr)
    assert "STARTED FROM SCRATCH" in card
    assert "resumed" not in run.stderr + card


@pytest.mark.slow  # tests/alerts shows it
def test_a_dead_endpoint_does_not_hold_the_job_up(supervise: Callable[..., Supervised]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/hook"
        run = supervise(*PLAIN, "--steps=20", *SAVING, *RECOVERS, options=[*RESUMING, *webhook(url)])
        assert run.exit_code() == 0
        ended = time.monotonic()
    last_step_ns = int((run.place / "progress").read_text().split()[-1])
    assert ended - last_step_ns / 1e9 < 3
    assert starts(run) == 2
    (spool,) = run.state.glob("*/nodes/*/alerts.jsonl")
    assert '"state":"waiting"' in spool.read_text()  # kept for the next start
