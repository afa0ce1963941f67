"""`metrics.listen` and `metrics.textfile_dir` on a real run: what a scraper gets, and that no job fails for it."""

from __future__ import annotations

import socket
import sys
import urllib.request
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.supervised import Supervised

pytestmark = pytest.mark.process

#: Makes steps until a file tells it to end; is killed once at step 20.
TRAIN = """
import os, pathlib, signal, time
from supervisor import worker
once, end, step = pathlib.Path("once"), pathlib.Path("end"), 0
while not end.exists():
    step += 1
    worker.report(loss=2.5, step=step)
    time.sleep(0.02)
    if step == 20 and not once.exists():
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def series(text: str) -> dict[str, float]:
    """Return the samples by name and label values, without the job's."""
    values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [value for name, value in sorted(sample.labels.items()) if name != "job_name"]
            values[" ".join([sample.name.removeprefix("supervise_"), *labels])] = sample.value
    return values


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return series(answer.read().decode())


def test_a_job_that_was_restarted_shows_it_over_http_and_in_the_textfile(supervise: Callable[..., Supervised]) -> None:
    port = free_port()
    run = supervise(sys.executable, "-c", TRAIN, options=["--set", f"metrics.listen={port}", "--set", "metrics.textfile_dir=."])
    run.wait_for_line(rf"metrics: http://127.0.0.1:{port}/metrics")

    def resumed() -> dict[str, float] | None:
        values = scrape(port)
        return values if values["attempt"] == 2 and values.get("time_seconds productive", 0) and not values["incident_open"] else None

    values = wait_for(resumed, "the second attempt's steps", 60, alive=run.alive)
    assert values["restarts_total killed_unknown"] == 1
    assert values["incidents_total restart killed_unknown"] == 1
    assert (values["stage running"], values["ranks"], values["world_size"]) == (1, 1, 1)
    assert values["recovery_seconds_count"] == 1
    assert values["last_progress_timestamp_seconds"] <= values["metrics_timestamp_seconds"]
    spent = sum(value for name, value in values.items() if name.startswith("time_seconds "))
    assert spent == pytest.approx(values["metrics_timestamp_seconds"] - values["run_start_timestamp_seconds"], rel=1e-3)
    (file,) = run.place.glob("*.prom")
    assert file.name == "supervise-e2e.prom"
    assert set(series(file.read_text())) <= set(values) | set(scrape(port)) | {"step"}  # it may be younger than what was found
    (run.place / "end").touch()
    assert run.exit_code() == 0
    assert not list(run.place.glob("*.prom"))


@pytest.mark.slow
def test_a_port_in_use_is_a_warning_and_the_job_is_done(supervise: Callable[..., Supervised]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        run = supervise(
            sys.executable,
            "-c",
            "import time; time.sleep(3)",
            options=["--set", f"metrics.listen={port}", "--set", "instrument.enabled=false"],
        )
        run.wait_for_line(rf"metrics: cannot listen at {port}: another process listens there; the job continues")
        assert run.exit_code() == 0


@pytest.mark.slow
def test_a_port_that_becomes_free_is_used(supervise: Callable[..., Supervised]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        run = supervise(sys.executable, "-c", TRAIN, options=["--set", f"metrics.listen={port}"])
        run.wait_for_line("metrics: cannot listen")
    run.wait_for_line(rf"metrics: http://127.0.0.1:{port}/metrics")
    assert wait_for(lambda: scrape(port)["attempt"], "a scrape", alive=run.alive)
    (run.place / "end").touch()
    assert run.exit_code() == 0


@pytest.mark.slow
def test_counts_continue_where_another_supervise_takes_the_run_over(supervise: Callable[..., Supervised]) -> None:
    port = free_port()
    run = supervise(sys.executable, "-c", TRAIN, options=["--set", f"metrics.listen={port}"])
    wait_for(lambda: (run.place / "once").exists() and scrape(port)["attempt"] == 2, "the second attempt", alive=run.alive)
    run.process.kill()
    run.process.wait(PATIENCE_S)
    next_run = supervise(sys.executable, "-c", TRAIN, options=["--set", f"metrics.listen={port}"])
    next_run.wait_for_line(rf"metrics: http://127.0.0.1:{port}/metrics")
    values = wait_for(lambda: (page := scrape(port))["attempt"] >= 3 and page, "the third attempt", alive=next_run.alive)
    assert values["restarts_total killed_unknown"] == 1
    assert values["restarts_total takeover"] == 1
    (next_run.place / "end").touch()
    assert next_run.exit_code() == 0


def test_an_address_that_cannot_be_right_starts_nothing(supervise: Callable[..., Supervised]) -> None:
    run = supervise("touch", "began", options=["--set", "metrics.listen=9409x"])
    assert run.exit_code() == 64
    assert "no address to listen at: metrics.listen = '9409x'" in run.stderr
    run = supervise("touch", "began", SUPERVISE_METRICS="http://0.0.0.0")
    assert run.exit_code() == 78
    assert not (run.place / "began").exists()
