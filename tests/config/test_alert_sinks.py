"""[[alerts.sink]]: a list of tables, each checked like every other setting, and read only where a person may be trusted."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

import pytest

from supervisor.config import loading, secret_files
from supervisor.errors import ExitCode, SuperviseError
from supervisor.run import alerting

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.config.settings import Settings

TOKEN = "CANARY-T0KEN"  # noqa: S105  a made-up one
SLACK = f"https://hooks.slack.com/services/{TOKEN}"


@pytest.fixture
def load(load: Callable[..., Settings]) -> Callable[..., Settings]:
    """Trust the file, which the user named."""
    return functools.partial(load, is_named=True)


def test_a_list_of_sinks_keeps_its_order_its_values_and_its_secrets(load: Callable[..., Settings]) -> None:
    settings = load(
        f"""
[[alerts.sink]]
kind = "slack"
url = "{SLACK}"
severity = "warning"

[[alerts.sink]]
kind = "slack"
name = "ops-2"
url = "{SLACK}-2"
detail = "lines"
runs = true
"""
    )
    first, second = settings.alerts.sinks
    assert (first.called, first.severity, first.detail, first.runs) == ("slack", "warning", "summary", False)
    assert (second.called, second.detail, second.runs) == ("ops-2", "lines", True)
    assert str(settings.origin("alerts.sink")).endswith("supervise.toml")
    shown = loading.settings_shown(settings)
    assert "alerts.sink[1].name" in shown
    assert TOKEN not in str(shown) + repr(settings)
    sinks = alerting.configured(settings, {})
    assert [sink.name for sink in sinks] == ["slack", "ops-2"]
    assert [sink.name for sink in sinks] == ["slack", "ops-2"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[[alerts.sink]]\nurl = 'https://x'\n", r"no kind: \[\[alerts.sink\]\] in .*toml:1"),
        ("[[alerts.sink]]\nkind = 'slak'\n", r"wrong value: alerts.sink.kind = 'slak' .*toml:2: expected one of webhook, slack"),
        ("[[alerts.sink]]\nkind = 'slack'\n\nurll = 'x'\n", r"unknown setting: alerts.sink.urll in .*toml:4: the nearest is url"),
        ("[[alerts.sink]]\nkind = 'slack'\n[[alerts.sink]]\nkind = 'slack'\n", r"two alert sinks are called slack: .*toml:3"),
        ("[[alerts.sink]]\nkind = 'slack'\nname = '../x'\n", r"wrong value: alerts.sink.name = '../x'"),
        ("[[alerts.sink]]\nkind = 'slack'\nurl = 'hooks.slack.com/CANARY-T0KEN'\n", r"wrong value: alerts.sink.url = \(not shown\)"),
        ("[alerts]\nsink = 3\n", r"wrong type: alerts.sink in .*: it is a list of tables"),
        ("[alerts.sink]\nkind = 'slack'\n", r"wrong type: alerts.sink in .*: it is a list of tables"),
        ("[[alerts.sink]]\nkind = 'slack'\nseverity = 3\n", r"wrong value: alerts.sink.severity = 3"),
    ],
)
def test_a_fault_is_named_with_its_line(load: Callable[..., Settings], text: str, error: str) -> None:
    with pytest.raises(SuperviseError, match=error) as caught:
        load(text)
    assert caught.value.exit_code == ExitCode.CONFIG
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("kind", ["slack", "webhook", "email"])
def test_an_address_of_another_scheme_than_the_kinds_starts_nothing(load: Callable[..., Settings], kind: str) -> None:
    settings = load(f"[[alerts.sink]]\nkind = '{kind}'\nurl = 'ftp://{TOKEN}'\nto = ['oncall@example.org']\n")
    with pytest.raises(SuperviseError, match="wrong address") as caught:
        alerting.configured(settings, {})
    assert caught.value.exit_code == ExitCode.CONFIG
    assert TOKEN not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("line", ["command = ['/bin/sh']", "url_file = '/etc/passwd'", "secret_file = '/etc/passwd'"])
def test_a_file_found_in_the_working_directory_runs_no_program_and_reads_no_file(load: Callable[..., Settings], line: str) -> None:
    with pytest.raises(SuperviseError, match="by a file found in the working directory") as caught:
        load(f"[[alerts.sink]]\nkind = 'exec'\n{line}\n", is_named=False)
    assert caught.value.hint == "Give the file with --config."
    load(f"[[alerts.sink]]\nkind = 'exec'\n{line}\n")


def test_address_and_key_come_from_files_and_from_systemd(load: Callable[..., Settings], tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"{SLACK}\n")
    settings = load("[[alerts.sink]]\nkind = 'slack'\nurl_file = 'url'\n[[alerts.sink]]\nkind = 'pagerduty'\nsecret_file = 'key'\n")
    slack, pager = settings.alerts.sinks
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert secret_files.sink_address(slack, environ) == SLACK
    with pytest.raises(SuperviseError, match=re.escape(f"cannot read the key of the alert sink pagerduty: {tmp_path}/key: No such file")):
        alerting.configured(settings, environ)
    (tmp_path / "key").write_text("k" * 32)
    assert [entry.sink.host for entry in alerting.configured(settings, environ)] == ["hooks.slack.com", "events.pagerduty.com"]
    assert secret_files.sink_key(pager, environ) == "k" * 32


def test_an_empty_key_is_an_error(load: Callable[..., Settings], tmp_path: Path) -> None:
    """Else alerts would leave without the signature that was asked for."""
    (tmp_path / "key").write_text("\n")
    sink = load(f"[[alerts.sink]]\nkind = 'webhook'\nurl = 'http://127.0.0.1'\nsecret_file = '{tmp_path}/key'\n")
    with pytest.raises(SuperviseError, match=r"cannot read the .*key.*: it is empty"):
        alerting.configured(sink, {})


def test_the_wrong_kind_is_reported_at_start(load: Callable[..., Settings]) -> None:
    with pytest.raises(SuperviseError, match=r"wrong kind of alert sink: webhook: .* looks like slack") as caught:
        alerting.configured(load(f"[[alerts.sink]]\nkind = 'webhook'\nurl = '{SLACK}'\n"), {})
    assert caught.value.hint == 'Write kind = "slack" below [[alerts.sink]], or change the address.'
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["[[alerts.sink]]\nkind = 'slack'\n", "[[alerts.sink]]\nkind = 'pagerduty'\n", "[[alerts.sink]]\nkind = 'exec'\n"]
)
def test_a_sink_without_what_it_needs_is_refused_before_anything_starts(load: Callable[..., Settings], text: str) -> None:
    with pytest.raises(SuperviseError, match=r"alerts: ") as caught:
        alerting.configured(load(text), {})
    assert caught.value.hint
