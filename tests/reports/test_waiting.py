"""A waiting rank is known by its behaviour: almost no CPU time, no bytes, the same line in two looks. The card names what it waits for."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pathologies.hanging_jobs import SOON, confirmed, taken
from tests.reports.conftest import DECLARED, OFTEN, SCRIPTS, alone, torchrun
from tests.support.ports import free_port
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.supervised import Supervised

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

#: The limits of a phase as short as those of the training: what waits before the first step is seen as soon.
EARLY = {**SOON, **OFTEN, "SUPERVISE_HANG_PHASE_S": "3"}

#: A notice with 10 s left; the script imports supervisor.worker, as one that is installed beside supervise would.
LEFT = {"SUPERVISE_STOP_LEFT_S": "10", "PYTHONPATH": str(Path(__file__).parents[2])}


# pytorch/pytorch#189245: the lock of a build that was killed


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Give the directory of a build, below the one of all builds."""
    folder = tmp_path / "cache of builds" / "fused_adam"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.slow
def test_ranks_that_wait_for_the_lock_of_a_killed_build_are_not_restarted_again_and_the_file_is_named(
    supervise: Callable[..., Supervised], cache: Path
) -> None:
    options = [*DECLARED, "--on-hang", "restart"]
    places = {"TORCH_EXTENSIONS_DIR": str(cache.parent)}
    run = supervise(*alone("pytorch_189245.py", f"--cache={cache}", "--when=init"), options=options, **EARLY, **places)
    card = wait_for(lambda: list(run.state.glob("*/nodes/*/incidents/*/card.txt")), "the card of the kill", 60, alive=run.alive)[0]
    killed = wait_for(card.read_text, "its text", alive=run.alive)
    assert "each later one waits for the file" in killed
    assert f"rm '{cache}/lock'" in killed
    assert run.exit_code(120) == 124
    assert confirmed(run)["kind"] == "lock"
    assert run.attempts() == 2
    assert (cache / "lock").exists()
    page = " ".join(run.ask("why").stdout.split())
    assert re.search(rf"build \(pytorch_189245\.py:\d+\), waiting for the file {re.escape(str(cache))}/lock", page), page
    assert "no process has it open; left by attempt 1, which is over" in page
    assert page.count(f"rm '{cache}/lock'") == 1, "the file is in the sentence of the hang, and not named again"


@pytest.mark.slow
def test_the_alert_names_the_lock_and_the_training_continues_once_it_is_gone(supervise: Callable[..., Supervised], cache: Path) -> None:
    (cache / "lock").touch()
    os.utime(cache / "lock", (1, 1))
    run = supervise(*torchrun("pytorch_189245.py", f"--cache={cache}", "--poll-s=0.001", "--steps=40"), options=DECLARED, **EARLY)
    assert confirmed(run)["left_file"] == f"{cache}/lock"
    line = run.wait_for_line(r"no progress for \d+ s: ranks 0, 1 are in build .*the job continues: a restart would wait for the same file")
    assert "no process has it open; older than this run" in run.stderr, line
    assert f"rm '{cache}/lock'" in run.stderr
    (cache / "lock").unlink()
    assert run.exit_code(60) == 0
    assert run.attempts() == 1


# marin-community/marin#8534: a slow restore


@pytest.mark.slow
def test_a_slow_restore_is_reported_and_never_restarted(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*torchrun("marin_8534.py", "--from=pipe", "--steps=20"), options=["--on-hang", "restart"], **EARLY)
    hang = confirmed(run)
    assert (hang["kind"], hang["ranks"], hang["slow"]) == ("late", [1], True), hang
    assert re.search(r"rank 1 is in restore \(marin_8534\.py:\d+\), moving [\d.]+ [KM]iB/s of \S+/part\.pipe", hang["text"]), hang
    assert run.exit_code(120) == 0
    assert run.attempts() == 1
    assert "bytes move, so it is slow and not stuck" in run.stderr


# modelscope/ms-swift#6962, huggingface/trl#3408: a server that does not answer


@pytest.fixture
def mute() -> Iterator[int]:
    """Give the port of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.slow
def test_the_server_that_a_rank_waits_for_is_on_the_card_and_in_the_alert(supervise: Callable[..., Supervised], mute: int) -> None:
    run = supervise(*torchrun("ms_swift_6962_mute.py", f"--port={mute}", "--how=child"), options=DECLARED, **EARLY)
    hang = confirmed(run)
    assert (hang["kind"], hang["ranks"], hang["busy"], hang["slow"]) == ("late", [1], False, False), hang
    waits = r"process \d+ \(python\S*\), which waits for "
    awaited = rf"rank 1 is in reward \(ms_swift_6962_mute\.py:\d+\), waiting for {waits}127\.0\.0\.1:{mute}"
    assert re.search(awaited, hang["text"]), hang["text"]
    run.wait_for_line(r"no progress for \d+ s: .*the job continues")
    assert f"127.0.0.1:{mute}" in run.stderr


# the sister: a peer that is gone


@pytest.mark.slow
def test_a_rank_that_waits_for_a_gone_one_is_restarted_however_it_waits(supervise: Callable[..., Supervised]) -> None:
    run = supervise(*torchrun("polls_for_a_peer.py", "--how=file", "--steps=60"), options=DECLARED, **EARLY)
    hang = wait_for(lambda: taken(run, "HangConfirmed"), "a confirmed hang", 60, alive=run.alive)[0]["hang"]
    assert (hang["kind"], hang["ranks"]) == ("gone", [1]), hang
    assert re.search(
        r"rank 0 is in wait_for_part \(polls_for_a_peer\.py:\d+\), waiting for .*part-of-rank-1.*; rank 1 is gone", hang["text"]
    )
    run.exit_code(120)
    assert run.attempts() >= 2


# goodfire-ai/spd#677, #741: a notice in the middle of an evaluation


@pytest.mark.slow
def test_the_last_line_names_the_rank_that_never_asked_whether_to_save_and_where_it_was(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    words = ["--save-every=1000", "--declare"]  # what was saved a moment ago might be the answer
    run = supervise(*torchrun("spd_677.py", *words), options=DECLARED, **OFTEN, **LEFT)
    wait_for((tmp_path / "evaluating").exists, "the evaluation", 60, alive=run.alive)
    run.signal(signal.SIGUSR1)
    assert run.exit_code(30) == 75
    last = run.stderr.splitlines()[-1]
    where = r"rank 0 did not ask worker\.should_save\(\) in this time \(phase eval, in evaluate \(spd_677\.py:\d+\)\)"
    assert re.search(where, last), run.stderr
    assert re.search(r"rank 1 did not ask .*waits in barrier", last), last
    assert "no checkpoint was saved before the deadline: rank 0" in run.stderr


# Lightning-AI/pytorch-lightning#20391: one of two ranks is started


@pytest.mark.slow
def test_how_many_ranks_came_is_on_the_card_and_the_start_warned(supervise: Callable[..., Supervised]) -> None:
    in_slurm = {"SLURM_NTASKS": "1", "SLURM_NTASKS_PER_NODE": "2", "SLURM_PROCID": "0", "MEET": f"tcp://127.0.0.1:{free_port()}"}
    run = supervise("python", str(SCRIPTS / "lightning_20391.py"), options=["--on-hang", "restart"], **EARLY, **in_slurm)
    hang = confirmed(run)
    assert re.search(r"rank 0 waits in init_process_group \(lightning_20391\.py:\d+\): 1 of 2 ranks came", hang["text"]), hang
    assert "Slurm runs 1 task (SLURM_NTASKS), and SLURM_NTASKS_PER_NODE says 2" in run.stderr
    run.wait_for_line(r"incident 1\b.*: rank 0 waits in init_process_group .*1 of 2 ranks came")
    run.signal(signal.SIGINT)
    run.exit_code(60)
