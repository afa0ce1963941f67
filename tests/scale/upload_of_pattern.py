"""Uploads a patterned file of any size (patterned_disk.py), as a process that a test kills: its arguments are the file and the endpoint."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from checkpointing.manifest import documents
from checkpointing.mirror import keys, source
from checkpointing.mirror.backends import S3Options
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.mirror.source import TransferControl, held_files
from checkpointing.mirror.upload import CheckpointUpload
from tests.scale.patterned_disk import PatternedDisk, manifest_of


def main(path: str, endpoint: str) -> None:
    """Send it to the end."""
    patch = pytest.MonkeyPatch()
    disk = PatternedDisk(patch)
    disk.gives_to(patch, source)
    manifest = manifest_of(Path(path), 1)
    backend = open_backend("s3://bucket", S3Options(endpoint=endpoint, region="us-east-1", path_style=True))
    upload = CheckpointUpload(backend, keys.key_of(manifest), TransferControl())
    sys.stdout.write(upload.complete(manifest, documents.encode(manifest), held_files(path, manifest)))


if __name__ == "__main__":
    main(*sys.argv[1:])
