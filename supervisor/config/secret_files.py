"""Reads the secrets that stand in files of their own, when they are used: keys and addresses of the alert sinks, the token of the page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.config.alert_settings import SINKS_KEY
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisor.config.alert_settings import AlertSinkSection
    from supervisor.config.settings import Settings


def webhook_secret(settings: Settings) -> str:
    """Return the key that signs webhook requests, "" where none is configured. Raises SuperviseError if its file cannot be read."""
    webhook = settings.alerts.webhook
    if webhook.secret or not webhook.secret_file:
        return webhook.secret
    hint = "Name a readable file in alerts.webhook.secret_file, or set SUPERVISE_WEBHOOK_SECRET."
    return _text_of(Path(webhook.secret_file), "the webhook's key", hint)


def sink_address(sink: AlertSinkSection, environ: Mapping[str, str]) -> str:
    """Return the address of an alert sink, "" for none. Raises SuperviseError if its file cannot be read."""
    return sink.url or _of_file(sink.url_file, environ, f"the address of the alert sink {sink.called}", "url_file")


def sink_key(sink: AlertSinkSection, environ: Mapping[str, str]) -> str:
    """Return the key of an alert sink, "" for none. Raises SuperviseError if its file cannot be read."""
    return _of_file(sink.secret_file, environ, f"the key of the alert sink {sink.called}", "secret_file")


def ui_token(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return the token of the page, "" for none. Raises SuperviseError if its file cannot be read."""
    given, file = settings.ui.token.strip(), settings.ui.token_file
    if given or not file:
        return given
    return _text_of(_path_of(file, environ), "the token of the page", "Name a readable file in ui.token_file, or set SUPERVISE_UI_TOKEN.")


def _of_file(name: str, environ: Mapping[str, str], what: str, setting: str) -> str:
    if not name:
        return ""
    return _text_of(_path_of(name, environ), what, f"Name a readable file in {setting} below [[{SINKS_KEY}]].")


def _path_of(name: str, environ: Mapping[str, str]) -> Path:
    credentials = environ.get("CREDENTIALS_DIRECTORY", "")
    return Path(credentials, name) if credentials and "/" not in name else Path(name)


def _text_of(path: Path, what: str, hint: str) -> str:
    """Return the text of a secret's file. An empty one is an error: without a key, alerts would leave unsigned and without a word."""
    try:
        if text := path.read_text(encoding="utf-8").strip():
            return text
        cause, error = "it is empty", None
    except (OSError, ValueError) as found:
        cause, error = (found.strerror or "unknown error") if isinstance(found, OSError) else "it is not UTF-8 text", found
    raise SuperviseError(f"cannot read {what}: {path}: {cause}", hint=hint) from error
