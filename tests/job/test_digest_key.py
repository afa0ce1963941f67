"""The key of a job's digests: its processes share it, only its user can read it, and it leaves the machine with nothing."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from supervisor.classify import redact
from supervisor.job import digest_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Give the process back the key that it had."""
    before = redact._key  # noqa: SLF001  what `use_key` replaces
    yield
    redact.use_key(before)


def test_digests_of_secrets_are_equal_within_a_job_and_differ_between_jobs(tmp_path: Path) -> None:
    digests = {}
    for job in ("one", "two"):
        (tmp_path / job).mkdir()
        digest_key.use(tmp_path / job, makes=True)
        digests[job] = redact.digest("hunter2")
        redact.use_key(b"of a process that just began")
        digest_key.use(tmp_path / job)
        assert redact.digest("hunter2") == digests[job]
    assert digests["one"] != digests["two"]


def test_the_key_is_the_users_alone_and_the_file_is_whole(tmp_path: Path) -> None:
    digest_key.use(tmp_path, makes=True)
    (path,) = tmp_path.iterdir()
    assert (path.name, path.stat().st_size, stat.S_IMODE(path.stat().st_mode)) == (digest_key.NAME, 32, 0o600)


def test_nodes_that_begin_at_once_have_one_key(tmp_path: Path) -> None:
    def began(_: int) -> bytes:
        digest_key.use(tmp_path, makes=True)
        return (tmp_path / digest_key.NAME).read_bytes()

    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(began, range(64)))
    assert len(set(keys)) == 1
    assert [path.name for path in tmp_path.iterdir()] == [digest_key.NAME]


def test_a_key_that_others_can_read_or_that_is_not_there_is_not_used(tmp_path: Path) -> None:
    digest_key.use(tmp_path, makes=True)
    of_job = redact.digest("hunter2")
    redact.use_key(b"own")
    own = redact.digest("hunter2")
    (tmp_path / digest_key.NAME).chmod(0o644)
    digest_key.use(tmp_path, makes=True)
    assert redact.digest("hunter2") == own != of_job
    digest_key.use(tmp_path / "nowhere", makes=True)
    assert redact.digest("hunter2") == own
