"""The keys of checkpoints in a mirror.

A checkpoint lies at `<job>/<run>/<step or name>-<id>/`: its files below `data/`, and `manifest.json`, written last. Without a manifest
there is no checkpoint. Job and run are percent-encoded, so that neither can leave its directory.

A checkpoint of which each node sends a part lies at `<job>/nodes/<name>-<save>/`: all nodes know the name of the save, and none the content
of the others. Beside `data/` there is `parts/<node>.json`, the manifest of each part; with the last part comes `manifest.json`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from checkpointing.manifest.documents import Manifest

MANIFEST: Final = "manifest.json"
PARTS: Final = "parts/"
NODES: Final = "nodes"


def key_of(manifest: Manifest) -> str:
    """Return the key of a checkpoint, with "/" at its end."""
    if manifest.save:
        return f"{prefix_of(manifest.about.job)}{NODES}/{_quoted(manifest.name)}-{manifest.save}/"
    step = manifest.name if manifest.step is None else f"step-{manifest.step}"
    return f"{prefix_of(manifest.about.job)}{_quoted(manifest.about.run)}/{_quoted(step)}-{manifest.id}/"


def spool_name(manifest: Manifest) -> str:
    """Return the name of a checkpoint in the queue of what is to be sent (mirror/spool.py): equal content is sent once.

    But a node's part of each save: the content of one may stay the same, while other nodes' parts change.
    """
    return f"{manifest.id}-{manifest.save}" if manifest.save else manifest.id


def document_key(manifest: Manifest) -> str:
    """Return the key of a manifest itself."""
    return key_of(manifest) + (MANIFEST if manifest.part is None else f"{PARTS}{manifest.part.node}.json")


def holds_parts(key: str) -> bool:
    """Return whether a checkpoint's key is one to which several nodes send their parts."""
    return key.split("/")[1] == NODES


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
