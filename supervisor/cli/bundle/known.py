"""The secrets that a bundle's maker can know by value: of the settings, of the environment, and of the job's processes that live."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from functools import partial
from typing import TYPE_CHECKING, Final

from supervisor.classify import redact, secret_forms
from supervisor.classify.redact import KnownSecrets
from supervisor.config.alert_settings import SINK_ROWS
from supervisor.config.loading import settings_shown
from supervisor.config.secret_files import sink_address, sink_key, ui_token
from supervisor.config.settings import ROWS
from supervisor.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from supervisor.config.settings import Settings

#: A part of a secret address that is a token, not a word of the service's.
_SHORTEST_PART: Final = 8


def known_secrets(settings: Settings, environ: Mapping[str, str], processes: Iterable[int]) -> KnownSecrets:
    """Return them. processes: the supervisor and its ranks, as far as they live. The path of a file is not a secret."""
    import psutil  # noqa: PLC0415  for this command only

    secrets = [*_of_settings(settings, environ), *_of_environment(environ)]
    for pid in processes:
        with contextlib.suppress(psutil.Error, OSError):  # it has ended, or is another user's
            secrets += _of_environment(psutil.Process(pid).environ())
        with contextlib.suppress(psutil.Error, OSError):
            secrets += redact.secrets_in(shlex.join(psutil.Process(pid).cmdline()))
    return KnownSecrets(value for value in secrets if not _is_path(value))


def _of_settings(settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    values = [str(settings.value(row.key)) for row in ROWS if row.secret]
    values.append(_unless_unreadable(partial(ui_token, settings, environ)))
    for sink in settings.alerts.sinks:
        values += [str(getattr(sink, row.key.rpartition(".")[2])) for row in SINK_ROWS if row.secret]
        values += [_unless_unreadable(partial(read, sink, environ)) for read in (sink_address, sink_key)]
    for value in values:
        yield value
        if "://" in value:
            parts = re.split(r"[/?&=#]", value.partition("://")[2])[1:]
            yield from (word for word in parts if len(word) >= _SHORTEST_PART and any(letter.isdigit() for letter in word))
    yield from redact.secrets_in(
        "\n".join(f"{key}  {json.dumps(row.value, ensure_ascii=False)}" for key, row in settings_shown(settings).items())
    )
    yield from redact.secrets_in(shlex.join(settings.job.command))


def _of_environment(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        if secret_forms.is_secret(name, value):
            yield value
        yield from redact.secrets_in(value)


def _unless_unreadable(read: Callable[[], str]) -> str:
    with contextlib.suppress(SuperviseError):
        return read()
    return ""


def _is_path(value: str) -> bool:
    return value.startswith("/") and os.path.lexists(value)
