"""One night, scene by scene (docs/explanation/one-night.md): each scene is played, and what it shows is what was printed.

The scene of the killed rank is `make demo` (tests/examples/test_demo.py), those of the lost disk and of memory are in the tutorial
(test_tutorial.py). The faults of GPUs are played by a fake of NVIDIA's library (tests/health/fake_nvml).
"""

from __future__ import annotations

import http.server
import json
import re
import shlex
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.alert_sinks import webhook
from tests.support.console import Terminal, assert_shown
from tests.support.fake_nvml import FakeNvml
from tests.support.supervised import clean_environment
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SCREEN = (ROOT / "docs" / "explanation" / "one-night.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.process


def scene(word: str) -> str:
    """Return what the page shows where its text has this word."""
    (block,) = [text for text in re.findall(r"^```(?:text|json)\n(.*?)^```", SCREEN, re.MULTILINE | re.DOTALL) if word in text]
    assert isinstance(block, str)
    return block


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    place = tmp_path / "demo-run"
    place.mkdir()
    return Terminal(place, tmp_path / "terminal", clean_environment(SUPERVISE_STANDBY_MODE="off"))


@pytest.fixture
def four_gpus(fake_library: Path, tmp_path: Path) -> FakeNvml:
    fake = FakeNvml(fake_library, tmp_path / "nvml")
    fake.set(gpus=4)
    return fake


@pytest.mark.slow
def test_the_doctor_names_the_gpu_that_must_be_reset(terminal: Terminal, four_gpus: FakeNvml) -> None:
    four_gpus.set({"1.field.230": 1})
    terminal.environ.update({name: four_gpus.environ[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE")})
    assert_shown(scene("gpu_recovery"), terminal.type("supervise doctor", code=69))


@pytest.fixture
def received() -> Iterator[tuple[str, list[dict[str, object]]]]:
    """Give the address of a webhook, and what it received."""
    posted: list[dict[str, object]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook", posted
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_gpu_with_a_memory_error_goes_out_of_use_and_a_webhook_is_called(
    terminal: Terminal, four_gpus: FakeNvml, received: tuple[str, list[dict[str, object]]]
) -> None:
    address, posted = received
    terminal.environ.update({name: four_gpus.environ[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE")})
    terminal.environ.update(_SUPERVISE_TEST_INTERVALS="0.04", UNTIL_ERROR="1")
    knobs = "--knob batch_size=--batch-size --knob grad_accum:1=--accum --min-gpus 3"
    job = f"torchrun --standalone --nproc-per-node=4 {ROOT}/tests/jobs/gpu_fault.py --batch-size=6 --accum=1"
    run = terminal.start(f"supervise --job bert {knobs} {shlex.join(webhook(address))} -- {job}")
    log = terminal.directory / "log"
    wait_for(
        lambda: log.exists() and any(int(line.split()[1]) >= 5 for line in log.read_text().splitlines()), "step 5", 120, alive=run.alive
    )
    four_gpus.set({"2.ecc_unc_vol": 1, "2.ecc_unc_agg": 1, "2.remap_unc": 1, "2.remap_pending": 1})
    assert_shown(scene("is left out on this node"), run.end())
    shown = json.loads(scene('"event": "opened"'))
    (alert,) = [alert for alert in posted if (alert["state"], alert["event"]) == ("firing", "opened")]
    assert {key: alert[key] for key in shown} | {"step": 0, "text": ""} == shown | {"step": 0, "text": ""}
    assert re.sub(r"step \d+", "step 7", str(alert["text"])) == shown["text"]
