"""The words that give a run an alert sink on its command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def webhook(url: str, key_file: Path | None = None) -> list[str]:
    """Return the options of a run with a webhook. key_file: of the key that signs."""
    secret = f', secret_file="{key_file}"' if key_file else ""
    return ["--set", f'alerts.sink=[{{kind="webhook", url="{url}"{secret}}}]']
