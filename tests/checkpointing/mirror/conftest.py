"""What tests of the mirror share: one server for all workers, a bucket per test, a proxy before it, checkpoints, and the process."""

from __future__ import annotations

import functools
import uuid
from typing import TYPE_CHECKING

import pytest
from botocore.loaders import JSONFileLoader

from checkpointing.mirror.backends.opening import open_backend
from tests.checkpointing.mirror import servers
from tests.checkpointing.mirror.faults import Proxy
from tests.checkpointing.mirror.process import Directory, Place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from checkpointing.mirror.backends import Backend


@pytest.fixture(scope="session", autouse=True)
def botocore_reads_its_models_once() -> Iterator[None]:
    """Each client of a backend would read them again: 0.1 CPU seconds."""
    with pytest.MonkeyPatch.context() as patch:
        read = functools.cache(JSONFileLoader().load_file)
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: read(path))
        yield


@pytest.fixture(scope="session")
def swift(for_all_workers: Path) -> Iterator[servers.Server]:
    with servers.shared("swift", for_all_workers / "swift") as server:
        yield server


@pytest.fixture(scope="session")
def older_swift(for_all_workers: Path) -> Iterator[servers.Server]:
    """A server that knows no checksums."""
    with servers.shared("older_swift", for_all_workers / "older-swift") as server:
        yield server


@pytest.fixture(scope="session")
def moto(for_all_workers: Path) -> Iterator[servers.Server]:
    with servers.shared("moto", for_all_workers / "moto") as server:
        yield server


@pytest.fixture
def proxy(swift: servers.Server) -> Iterator[Proxy]:
    with Proxy(swift.port) as between:
        yield between


@pytest.fixture
def place(swift: servers.Server, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Swift behind the proxy, a new bucket in it, and credentials in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", servers.KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    bucket = f"b{uuid.uuid4().hex[:16]}"
    swift.client().create_bucket(Bucket=bucket)
    return Place(bucket, f"http://127.0.0.1:{proxy.port}", proxy, swift.client(), tmp_path)


@pytest.fixture
def backend(tmp_path: Path) -> Backend:
    """A directory as the mirror, without a process before it."""
    (tmp_path / "mirror").mkdir()
    return open_backend(str(tmp_path / "mirror"))


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    """A directory as the mirror: for what has nothing to do with S3."""
    (tmp_path / "mirror").mkdir()
    return Directory(tmp_path / "mirror", tmp_path)
