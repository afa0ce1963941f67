"""The keys of checkpoints in a mirror.

A checkpoint lies at `<job>/<run>/attempt-<n>/<step or name>/<nonce>/`: its files below `data/`, and `manifest.json`, written last, which
alone makes it count. The nonce follows from the path, size, inode and modification time of the save: after a kill, and on another
node that sees the same file, the same save has the same key, and no other save has it. So the key is the only record of an upload, beside
what the mirror lists. Each level is percent-encoded, so that none can leave its directory.

A checkpoint of which each node sends a part lies at `<job>/nodes/parts/<step or name>/<save>/`: all nodes know the name of the save, and
none the run or the content of the others. Beside `data/` there is `parts/<node>.json`, the manifest of each part; with the last part comes
`manifest.json`.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from checkpointing.step_names import step_in

if TYPE_CHECKING:
    from checkpointing.manifest.documents import Manifest
    from checkpointing.model import Identity

MANIFEST: Final = "manifest.json"
PARTS: Final = "parts/"
#: In the place of run and attempt, where several nodes send parts.
OF_NODES: Final = "nodes/parts"
#: Directories below the mirror's prefix: job, run, attempt, step or name, nonce.
LEVELS: Final = 5
_NONCE_DIGITS: Final = 12
_NONCE: Final = re.compile(r"[0-9a-f]{12}(?:[0-9a-f]{4})?")
_WAY: Final = re.compile(r"[^/]+/(?:[^/]+/(?:(?:attempt-\d+|parts)/(?:[^/]+/(?:[0-9a-f]{12}(?:[0-9a-f]{4})?/)?)?)?)?")


def key_of(manifest: Manifest) -> str:
    """Return the key of a checkpoint, with "/" at its end."""
    about = manifest.about
    if manifest.save:
        return f"{prefix_of(about.job)}{OF_NODES}/{_step(manifest.name)}/{manifest.save}/"
    return checkpoint_key(about.job, about.run, about.attempt, manifest.path, manifest.identity)


def checkpoint_key(job: str, run: str, attempt: int | None, path: str, identity: Identity) -> str:
    """Return the key of what one node saved at a path, which is known before it is read. attempt None: not known."""
    return f"{prefix_of(job)}{_quoted(run)}/attempt-{attempt or 0}/{_step(path)}/{nonce(path, identity)}/"


def nonce(path: str, identity: Identity) -> str:
    """Return twelve hexadecimal digits for one save. Without the device's number: nodes that share storage agree on the rest."""
    text = "\0".join((path, str(identity.size), str(identity.ino), str(identity.mtime_ns)))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_NONCE_DIGITS]


def nonce_of(manifest: Manifest) -> str:
    """Return the last level of a checkpoint's key: the name of the save, where several nodes send a part."""
    return manifest.save or nonce(manifest.path, manifest.identity)


def nonce_in(key: str) -> str:
    """Return the last level of a checkpoint's key."""
    return key.split("/")[-2]


def short_name(key: str) -> str:
    """Return the step or name and the nonce of a checkpoint's key or address, for people; of another one the last part."""
    levels = key.rstrip("/").split("/")
    return "/".join(levels[-2:] if _NONCE.fullmatch(levels[-1]) else levels[-1:])


def document_name(manifest: Manifest) -> str:
    """Return the name of a manifest's own object below the checkpoint's key."""
    return MANIFEST if manifest.part is None else f"{PARTS}{manifest.part.node}.json"


def may_lead_to_checkpoints(key: str) -> bool:
    """Return whether a directory's key has the form of a level's: what else lies in the bucket is not looked into."""
    return _WAY.fullmatch(key) is not None


def holds_parts(key: str) -> bool:
    """Return whether a checkpoint's key is one to which several nodes send their parts."""
    return key.partition("/")[2].startswith(f"{OF_NODES}/")


def prefix_of(job: str) -> str:
    """Return the prefix of all keys of a job."""
    return f"{_quoted(job)}/"


def data_key(key: str, path: str) -> str:
    """Return the key of one file of the checkpoint at `key`."""
    return f"{key}data/{path}"


def _step(path: str) -> str:
    """Return the level that people read: the step if the name has one, else the name."""
    step = step_in(path)
    return _quoted(path.rstrip("/").rpartition("/")[2]) if step is None else f"step-{step.step}"


def _quoted(text: str) -> str:
    return quote(text, safe="") if text not in ("", ".", "..") else {"": "%", ".": "%2E", "..": "%2E%2E"}[text]


def unquoted(text: str) -> str:
    """Return the job or the run of a part of a key."""
    return "" if text == "%" else unquote(text)
