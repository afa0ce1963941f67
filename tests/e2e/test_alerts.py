"""Alerts of real jobs to a chat room, a program and a dead man's switch: one thread for a loop of restarts, its end, and no secret."""

from __future__ import annotations

import http.server
import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.config.intervals import FACTOR_VARIABLE
from tests.support.canaries import CANARY
from tests.support.supervised import clean_environment
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.supervised import Supervised

NO_TORCH = str(Path(__file__).parents[1] / "jobs" / "no_torch.py")
PLAIN = [sys.executable, NO_TORCH]
RESUMING = ["--checkpoints", "ckpt/*.pt", "--resume-args", "--resume {resume}"]
SAVING = ["--save-every=5", "--progress=progress", "--pids=pids"]
HELD = ["--hold-at=8", "--held-until=go-on"]

pytestmark = pytest.mark.process


class ChatRoom(http.server.ThreadingHTTPServer):
    """An endpoint on loopback that keeps what it gets: the bodies of its POSTs, and how many GETs there were."""

    def __init__(self, status: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.got, self.pings = status, list[tuple[str, Any]](), 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}/T0P-SECRET"

    @property
    def texts(self) -> list[str]:
        """The text of each message."""
        return [body["text"] for _, body in self.got if "attachments" in body]


class _Handler(http.server.BaseHTTPRequestHandler):
    server: ChatRoom

    def do_POST(self) -> None:
        self.server.got.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(b"no_text")

    def do_GET(self) -> None:
        self.server.pings += 1
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


@pytest.fixture
def room(request: pytest.FixtureRequest) -> Iterator[ChatRoom]:
    with ChatRoom(getattr(request, "param", 200)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def start(supervise: Callable[..., Supervised], room: ChatRoom, tmp_path: Path) -> Callable[..., Supervised]:
    """Return what starts a job whose sinks are a chat room and a program that appends what it gets to a file."""
    config = tmp_path / "alerts.toml"
    program = json.dumps(["/bin/sh", "-c", f"cat >> {tmp_path}/paged; echo >> {tmp_path}/paged"])
    config.write_text(
        f'[alerts]\nnode = "gpu-7"\nheartbeat_url = "{room.url}"\n'
        f'[[alerts.sink]]\nkind = "slack"\nurl = "{room.url}"\nruns = true\n'
        f'[[alerts.sink]]\nkind = "exec"\ncommand = {program}\nseverity = "critical"\n'
    )
    config.chmod(0o600)
    home = str(tmp_path / "home")

    def begin(*command: str, options: list[str] | None = None, factor: str = "0.02") -> Supervised:
        return supervise(
            *PLAIN, *command, options=["--config", str(config), *(options or [])], XDG_STATE_HOME=home, **{FACTOR_VARIABLE: factor}
        )

    return begin


def test_an_incident_is_one_thread_and_the_switch_is_pinged_while_the_job_is_healthy(
    start: Callable[..., Supervised], room: ChatRoom, tmp_path: Path
) -> None:
    fault = ["--fail-rank=0", "--fail-at-step=12", "--fail-how=kill", "--fail-once-file=failed"]
    run = start("--steps=20", *SAVING, *HELD, *fault, options=RESUMING)
    wait_for(lambda: room.pings, "a ping", alive=run.alive)
    (tmp_path / "go-on").touch()
    assert run.exit_code() == 0
    assert sorted(text.splitlines()[0] for text in room.texts) == [
        "INFO: e2e on gpu-7: the run ended",
        "INFO: e2e on gpu-7: the run started",
        "LOOK: e2e on gpu-7: no rank was seen to load the checkpoint that the script was given",  # nobody can see this job load
        "OVER: e2e on gpu-7: it trains again",
        "OVER: e2e on gpu-7: it was: no rank was seen to load the checkpoint that the script was given",
        "RESTARTS BY ITSELF: e2e on gpu-7: a process was killed",
    ]
    (fires,) = [text for text in room.texts if "RESTARTS BY ITSELF: e2e on gpu-7: a process was killed" in text]
    assert "supervise restarts it as attempt 2." in fires
    assert any("The training runs again after" in text and "no load of its checkpoint was seen" in text for text in room.texts)
    assert not (tmp_path / "paged").exists(), "nothing critical happened"
    (pasted,) = {
        body["attachments"][0]["blocks"][-1]["text"]["text"].strip("`") for _, body in room.got if "a process was killed" in body["text"]
    }
    assert pasted == "supervise why 1 --job e2e"
    environ = clean_environment(XDG_STATE_HOME=str(tmp_path / "home"))
    done = subprocess.run(pasted.split(), cwd="/", env=environ, capture_output=True, text=True, check=False)  # noqa: S603  as a person pastes it
    assert (done.returncode, "SIGKILL" in done.stdout) == (0, True), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("room", [503], indirect=True)
def test_the_next_supervisor_delivers_what_waited_when_the_last_one_was_killed(
    start: Callable[..., Supervised], room: ChatRoom, tmp_path: Path
) -> None:
    run = start("--steps=20", *SAVING, *HELD, options=RESUMING)
    wait_for(lambda: room.texts, "a try", alive=run.alive)
    run.signal(signal.SIGKILL)
    assert run.exit_code() == 128 + signal.SIGKILL
    assert room.texts[0].startswith("INFO: e2e on gpu-7: the run started")
    room.got.clear()
    room.status = 200
    (tmp_path / "go-on").touch()
    assert start("--steps=20", *SAVING, *HELD, options=RESUMING).exit_code() == 0
    titles = [text.splitlines()[0] for text in room.texts]
    assert titles[0] == "INFO: e2e on gpu-7: the run started"
    assert titles[-1] == "INFO: e2e on gpu-7: the run ended"
    assert len(titles) == len(set(titles)), "each once"


@pytest.mark.slow
def test_a_loop_of_kills_is_one_thread_that_becomes_critical_once(start: Callable[..., Supervised], room: ChatRoom, tmp_path: Path) -> None:
    # without the waits between restarts, what is sent about one would be part of what is sent about the next
    run = start("--steps=20", *SAVING, "--fail-rank=0", "--fail-at-step=12", "--fail-how=kill", options=RESUMING, factor="1")
    assert run.exit_code() == 65
    calls = [text.partition(": ")[0] for text in room.texts if "no rank was seen to load" not in text]
    assert calls[0] == "INFO"
    assert set(calls[1:-2]) == {"RESTARTS BY ITSELF"}
    assert len(calls) <= 6, room.texts
    assert calls.count("NEEDS YOU") == 1
    (page,) = [json.loads(line) for line in (tmp_path / "paged").read_text().splitlines()]
    assert (page["severity"], page["state"], page["event"], page["node"]) == ("critical", "firing", "given_up", "gpu-7")


@pytest.mark.slow
@pytest.mark.parametrize("room", [400], indirect=True)
def test_a_refused_alert_is_reported_at_once_and_in_status_with_its_answer(
    start: Callable[..., Supervised], room: ChatRoom, tmp_path: Path
) -> None:
    run = start("--fail-rank=0", "--fail-at-step=9", "--fail-how=exit:3", "--steps=20", *SAVING, *HELD)
    run.wait_for_line(r"alert refused by slack \(127.0.0.1\): status 400: no_text")
    assert re.search(r"slack refused 1, the last at .*: status 400: no_text", run.status()["alerts"])
    (tmp_path / "go-on").touch()
    assert run.exit_code() == 3
    assert len(room.got) == len({json.dumps(body) for _, body in room.got}), "a refused alert is not tried again"
    assert re.search(rf"{len(room.got)} alerts were not delivered to 127.0.0.1: status 400: no_text", run.stderr)


LEAKY = f"""
import os
print("api_key = {CANARY}")
raise RuntimeError("401 from https://user:{CANARY}@host/x?token={CANARY} with HF_TOKEN=" + os.environ["HF_TOKEN"])
"""


@pytest.mark.slow
def test_no_secret_of_config_environment_address_or_log_is_in_an_alert_or_in_a_file_of_ours(
    supervise: Callable[..., Supervised], room: ChatRoom, tmp_path: Path
) -> None:
    script, key, config = tmp_path / "leaky.py", tmp_path / "key", tmp_path / "alerts.toml"
    script.write_text(LEAKY)
    key.write_text(f"{CANARY}-routing")
    address = f"{room.url}/{CANARY}-path?token={CANARY}-query".replace("//", f"//user:{CANARY}-login@", 1)
    kinds = ("webhook", "slack", "discord", "teams", "alertmanager", "pagerduty")
    secret = f'secret_file = "{key}"\n'
    sinks = "".join(
        f'[[alerts.sink]]\nkind = "{kind}"\nurl = "{address}"\ndetail = "lines"\n{secret if kind in {"webhook", "pagerduty"} else ""}'
        for kind in kinds
    )
    program = json.dumps(["/bin/sh", "-c", f"cat > {tmp_path}/paged; env > {tmp_path}/environ"])
    config.write_text(
        f'[alerts]\nheartbeat_url = "{address}"\n{sinks}[[alerts.sink]]\nkind = "exec"\ncommand = {program}\ndetail = "lines"\n'
    )
    config.chmod(0o600)
    secrets = {"HF_TOKEN": f"{CANARY}-env"}
    run = supervise(sys.executable, str(script), options=["--config", str(config)], XDG_STATE_HOME=str(tmp_path / "home"), **secrets)
    assert run.exit_code() == 1
    asked = [
        run.ask("status"),
        run.ask("why", "--all"),
        run.ask("status", "-v"),
        run.ask_again("--config", str(config), "config", "show"),
    ]
    assert [answer.returncode for answer in asked] == [0] * len(asked), [answer.stderr for answer in asked]
    files = [path for path in run.state.rglob("*") if path.is_file()]
    ranks_own = [path for path in files if "attempts" in path.parts]
    printed = {line for path in ranks_own for line in path.read_text(errors="replace").splitlines()}
    shown = {"a file": [path.read_bytes() for path in files if path not in ranks_own]}
    shown["a command"] = [(answer.stdout + answer.stderr).encode() for answer in asked]
    shown["stderr"] = [line.encode() for line in run.stderr.splitlines() if line not in printed]
    shown["an alert"] = [json.dumps(body | {"routing_key": ""}).encode() for _, body in room.got]
    shown["the program"] = [(tmp_path / name).read_bytes() for name in ("paged", "environ")]
    assert len(room.got) >= len(kinds)
    for where, texts in shown.items():
        assert not [text for text in texts if CANARY.encode() in text], where
    assert b"RuntimeError" in b"".join(shown["an alert"]), "lines were asked for"
