"""The keys of checkpoints in a mirror.

A checkpoint lies at `<job>/<run>/<step or name>-<id>/`: its files below `data/`, and `manifest.json`, written last. Without a manifest
there is no checkpoint. Job and run are percent-encoded, so that neither can leave its directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from checkpointing.manifest.documents import Manifest

MANIFEST: Final = "manifest.json"


def key_of(manifest: Manifest) -> str:
    """Return the key of a checkpoint, with "/" at its end."""
    step = manifest.name if manifest.step is None else f"step-{manifest.step}"
    return f"{prefix_of(manifest.about.job)}{_quoted(manifest.about.run)}/{_quoted(step)}-{manifest.id}/"


def prefix_of(job: str) -> str:
    """Return the prefix of all keys of a job."""
    return f"{_quoted(job)}/"


def data_key(key: str, path: str) -> str:
    """Return the key of one file of the checkpoint at `key`."""
    return f"{key}data/{path}"


def _quoted(text: str) -> str:
    return quote(text, safe="") if text not in ("", ".", "..") else {"": "%", ".": "%2E", "..": "%2E%2E"}[text]


def unquoted(text: str) -> str:
    """Return the job or the run that a part of a key stands for."""
    return "" if text == "%" else unquote(text)
