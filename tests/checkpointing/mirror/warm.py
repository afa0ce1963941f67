"""What the processes of a mirror import, and what each client of boto3 reads, for a process that others are forks of."""

from __future__ import annotations

import functools

import boto3
from botocore.loaders import JSONFileLoader

from checkpointing.mirror import restore  # noqa: F401
from checkpointing.mirror.backends import opening, s3  # noqa: F401
from checkpointing.reader import process  # noqa: F401
from supervisor.checkpoints.mirror import restore_process  # noqa: F401


def warm() -> None:
    """Read the files of boto3 once for all."""
    read = functools.cache(JSONFileLoader().load_file)
    JSONFileLoader.load_file = lambda _, path: read(path)
    boto3.session.Session("key", "secret", region_name="us-east-1").client("s3")
