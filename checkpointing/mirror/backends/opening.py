"""Opens the backend that a URL names."""

from __future__ import annotations

from typing import Final

from checkpointing.mirror.backends import Backend, S3Options
from checkpointing.mirror.urls import KEYS_HINT, has_keys
from checkpointing.model import CheckpointingError

_DEFAULTS: Final = S3Options()


def open_backend(url: str, options: S3Options = _DEFAULTS) -> Backend:
    """Return the backend for `s3://bucket/prefix`, `file:///path` or `/path`. Sends no request. Raises CheckpointingError."""
    scheme, separator, rest = url.partition("://")
    if has_keys(url):
        message = f"cannot mirror: {scheme}://(not shown): the address holds keys, or names no bucket"
        raise CheckpointingError(message, hint="give --mirror s3://bucket/prefix; " + KEYS_HINT)
    if separator and scheme == "s3" and rest.partition("/")[0]:
        from checkpointing.mirror.backends.s3 import S3Backend  # noqa: PLC0415 -- costs 0.4 s and 30 MiB

        return S3Backend(url, options)
    if separator and scheme == "file" and rest.startswith("/"):
        url, separator = rest, ""
    if not separator and url.startswith("/"):
        from checkpointing.mirror.backends.file import FileBackend  # noqa: PLC0415 -- beside the other one

        return FileBackend(url)
    message = f"cannot mirror: {url!r}: it is neither s3://BUCKET/PREFIX nor an absolute path"
    raise CheckpointingError(message, hint="give --mirror s3://bucket/prefix or --mirror /directory")
