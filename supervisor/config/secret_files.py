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


def sink_address(sink: AlertSinkSection, environ: Mapping[str, str]) -> str:
    """Return the address of an alert sink, "" for none. Raises SuperviseError if its file cannot be read."""
    return sink.url or _of_file(sink.url_file, environ, f"the address of the alert sink {sink.called}", "url_file")


def sink_key(sink: AlertSinkSection, environ: Mapping[str, str]) -> str:
    """Return the key of an alert sink, "" for none. Raises SuperviseError if its file cannot be read."""
    return _of_file(sink.secret_file, environ, f"the key of the alert sink {sink.called}", "secret_file")


def ui_token(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return the token of the page, "" for none. Raises SuperviseError if its file cannot be read."""
    file = settings.ui.token_file
    return _text_of(_path_of(file, environ), "the token of the page", "Name a readable file in ui.token_file.") if file else ""


def _of_file(name: str, environ: Mapping[str, str], subject: str, setting: str) -> str:
    if not name:
        return ""
    return _text_of(_path_of(name, environ), subject, f"Name a readable file in {setting} below [[{SINKS_KEY}]].")


def _path_of(name: str, environ: Mapping[str, str]) -> Path:
    credentials = environ.get("CREDENTIALS_DIRECTORY", "")
    return Path(credentials, name) if credentials and "/" not in name else Path(name)


def _text_of(path: Path, subject: str, hint: str) -> str:
    """Return the text of a secret's file. An empty one is an error: without a key, alerts would leave unsigned and without a word."""
    try:
        if text := path.read_text(encoding="utf-8").strip():
            return text
        cause, error = "it is empty", None
    except (OSError, ValueError) as failure:
        cause, error = (failure.strerror or "unknown error") if isinstance(failure, OSError) else "it is not UTF-8 text", failure
    raise SuperviseError(f"cannot read {subject}: {path}: {cause}", hint=hint) from error
