"""`supervise alerts test` and `replay`, and what `status` shows of alerts, against a real endpoint."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.alerts import spool
from supervisor.alerts.sinks import SinkOptions, make
from supervisor.cli.main import main
from supervisor.job import identity
from supervisor.report import kept_alerts
from tests.alerts.conftest import OneSink, kept

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Endpoint, Log

    from supervisor.alerts.model import OutgoingAlert


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint) -> Path:
    """Return the directory of a job's files, with two sinks configured where it was started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    config = tmp_path / "supervise.toml"
    rows = ('kind = "slack"', 'kind = "discord"\nname = "ops"')
    config.write_text("".join(f'[[alerts.sink]]\n{row}\nurl = "{endpoint.url}"\n' for row in rows))
    config.chmod(0o600)
    state = tmp_path / ".supervise" / "bert" / "nodes" / identity.node_name()
    state.mkdir(parents=True)
    (state / "journal.jsonl").touch()
    return state


@pytest.fixture
def refused(job: Path, endpoint: Endpoint, alert: Callable[..., OutgoingAlert], log: Log) -> Path:
    """Return the same directory after Slack refused two alerts, took one, and another sink has one that waits."""
    endpoint.script = [(400, {}), (404, {}), (200, {})]
    sender = OneSink(job, make(SinkOptions("slack", endpoint.url)), 5, log, name="slack")
    for number in (1, 2, 3):
        sender.enqueue(alert(number))
    assert sender.close(60) == 0
    dead = OneSink(job, make(SinkOptions("discord", "http://127.0.0.1:9/x")), 5, log, name="ops")
    dead.enqueue(alert(4))
    assert dead.close(60) == 1
    endpoint.received.clear()
    return job


def test_test_prints_what_each_service_answered(job: Path, endpoint: Endpoint, capfd: pytest.CaptureFixture[str]) -> None:
    del job
    endpoint.script = [(200, {}), (400, {})]
    assert main(["alerts", "test"]) == 1
    head, *answers = (line.split(maxsplit=2) for line in capfd.readouterr().out.splitlines())
    assert head == ["sink", "service", "answer"]
    assert [(sink, host) for sink, host, _ in answers] == [("slack", "127.0.0.1"), ("ops", "127.0.0.1")]
    assert {answer for _, _, answer in answers} == {"delivered (status 200: no_service)", "REFUSED: status 400: no_service"}
    assert main(["alerts", "test", "ops"]) == 1
    assert [json.loads(request.body).keys() for request in endpoint.received[2:]] == [{"content", "embeds", "allowed_mentions"}]
    endpoint.script = [(500, {})]
    assert main(["alerts", "test", "slack"]) == 1
    assert "NOT DELIVERED: status 500: no_service; a run would try again" in capfd.readouterr().out


def test_a_missing_sink_or_a_wrong_name_is_an_error_with_a_hint(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["alerts", "test", "slakc"]) == 64
    assert "Name one of these: slack, ops." in capfd.readouterr().err
    (job.parents[3] / "supervise.toml").unlink()
    assert main(["alerts", "test"]) == 64
    assert "[[alerts.sink]]" in capfd.readouterr().err


def test_status_v_shows_what_was_sent_refused_and_waits(refused: Path, capfd: pytest.CaptureFixture[str]) -> None:
    del refused
    assert main(["status", "-v", "--job", "bert"]) == 0
    out = capfd.readouterr().out
    assert out.count("slack refused (status 40") == 2
    assert out.count("slack sent: ") == 1
    assert out.count("ops waiting: ") == 1
    assert "RESTARTS BY ITSELF: bert: native code accessed invalid memory" in " ".join(out.split())
    assert main(["status", "--verbose", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert [(row["sink"], row["state"], row["answer"]) for row in document["alert_list"]] == [
        ("slack", "refused", "status 400: no_service"),
        ("slack", "refused", "status 404: no_service"),
        ("slack", "sent", None),
        ("ops", "waiting", None),
    ]


def test_dropped_alerts_are_counted_in_the_list_and_in_status(refused: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spool.opened(refused, is_writer=True).put(spool.DROPPED, spool.DroppedAlerts("slack", 7, time.time()))
    assert main(["status", "-v", "--job", "bert"]) == 0
    assert "  7 for slack were dropped: too many waited\n" in capfd.readouterr().out
    assert main(["status", "-v", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["alerts_dropped"] == {"slack": 7}
    ago = time.strftime("%Y%m%dT%H%M%S", time.gmtime(time.time() - 600))
    assert "; 7 for slack were dropped, the last at " in kept_alerts.summary(refused, f"{ago}-abcd")


def test_without_an_alert_status_v_names_the_command_that_sends_one(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    del job
    assert main(["status", "-v", "--job", "bert"]) == 0
    assert "none so far; `supervise alerts test` sends one\n" in capfd.readouterr().out
    assert main(["status", "-v", "--all-nodes"]) == 64
    assert "leave --all-nodes out" in capfd.readouterr().err


def test_replay_sends_the_refused_ones_again_in_their_order(refused: Path, endpoint: Endpoint, capfd: pytest.CaptureFixture[str]) -> None:
    endpoint.script = [(200, {}), (410, {})]
    refused_ids = kept(refused, "refused", "slack")
    assert main(["alerts", "replay", "slack", "--job", "bert"]) == 1
    assert [request.headers["Idempotency-Key"] for request in endpoint.received] == refused_ids
    endpoint.script = [(200, {})]
    assert main(["alerts", "replay", "slack", "--job", "bert"]) == 0
    assert main(["alerts", "replay", "slack", "--job", "bert"]) == 0
    assert len(endpoint.received) == 3
    assert "no refused alert" in capfd.readouterr().out
    assert kept(refused, "refused", "slack") == []
    assert len(kept(refused, "sent", "slack")) == 3


def test_status_shows_what_was_refused_in_this_run_with_the_answer(refused: Path) -> None:
    ago = time.strftime("%Y%m%dT%H%M%S", time.gmtime(time.time() - 600))
    text = kept_alerts.summary(refused, f"{ago}-abcd")
    assert text.startswith("1 wait for ops; slack refused 2, the last at ")
    assert text.endswith(": status 404: no_service")
    later = time.strftime("%Y%m%dT%H%M%S", time.gmtime(time.time() + 600))
    assert kept_alerts.summary(refused, f"{later}-abcd") == "1 wait for ops"


@pytest.mark.parametrize("how", ["directory", "damaged"])
def test_alerts_that_cannot_be_read_are_not_called_none(refused: Path, how: str, capfd: pytest.CaptureFixture[str]) -> None:
    file = refused / spool.FILE_NAME
    file.unlink()
    if how == "directory":
        file.mkdir()
    else:
        file.write_bytes(bytes(300) + b"\n")
    assert main(["alerts", "replay", "--job", "bert"]) == 1
    printed = capfd.readouterr()
    assert "no refused alert" not in printed.out
    assert f"the file of the alerts could not be read: {file}" in printed.err
    assert "alerts that it held are not sent again" in printed.err
    assert str(file) in kept_alerts.summary(refused, "20261101T000000-abcd")
