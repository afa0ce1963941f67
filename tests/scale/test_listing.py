"""What a start asks of a mirror with 300,000 objects: 293 checkpoints of 1,024 shards, or ten jobs in one bucket."""

from __future__ import annotations

import contextlib
import sys
import time
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from checkpointing.mirror import restore
from checkpointing.mirror.backends import S3Options
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.mirror.restore import OtherJob
from checkpointing.mirror.stall import RestoreProgress
from tests.e2e.conftest import supervise  # noqa: F401  a fixture
from tests.scale.object_store import MOST_KEYS, ObjectStore, mirror_keys, object_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from checkpointing.mirror.backends import Backend
    from tests.support.supervised import Supervised

CHECKPOINTS, SHARDS = 293, 1024


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture(scope="module")
def large() -> Iterator[ObjectStore]:
    """Serve the mirror of a job that runs for weeks."""
    with object_store(mirror_keys("job", CHECKPOINTS, SHARDS)) as store:
        yield store


def backend_of(store: ObjectStore) -> Backend:
    return open_backend("s3://bucket", S3Options(endpoint=store.url))


def test_the_server_pages_as_s3_does(large: ObjectStore) -> None:
    assert len(large.keys) == CHECKPOINTS * (SHARDS + 1)
    keys, prefixes, last = large.page("job/", "", "", MOST_KEYS)
    assert (len(keys), prefixes, last) == (MOST_KEYS, [], keys[-1])
    assert large.page("job/", "", last, 1)[0] == [large.keys[MOST_KEYS]]
    run = large.page("job/", "/", "", MOST_KEYS)[1]
    assert run == ["job/20261101T000000-aaaa/"]
    steps = large.page(f"{run[0]}attempt-1/", "/", "", MOST_KEYS)[1]
    assert len(steps) == CHECKPOINTS
    (checkpoint,) = large.page(steps[0], "/", "", MOST_KEYS)[1]
    keys, prefixes, last = large.page(checkpoint, "/", "", MOST_KEYS)
    assert ([key.rpartition("/")[2] for key in keys], [text.rpartition("/data/")[1] for text in prefixes]) == (
        ["manifest.json"],
        ["/data/"],
    )
    assert large.page("other/", "/", "", MOST_KEYS) == ([], [], "")


def test_a_client_of_s3_reads_every_page() -> None:
    with object_store(mirror_keys("job", 2, 600), {"job/x/y/manifest.json": b"{}"}) as store:
        keys = [stored.key for stored in backend_of(store).list("job/")]
        assert keys == store.keys
        assert b"".join(backend_of(store).read("job/x/y/manifest.json", 0, 2)) == b"{}"
        assert store.n_lists == 2


def test_a_list_of_many_pages_is_no_stall() -> None:
    """Each page came within a moment; the list of all takes longer than a mirror may be silent."""
    stall_s, checkpoints = 3.0, 60
    with object_store(mirror_keys("job", checkpoints, 4)) as store:
        backend = backend_of(store)
        list(backend.list("none/"))  # the client is made: on a busy machine that alone takes a second
        store.latency_s = 0.06
        began = time.monotonic()
        _, passed = restore.available([backend], "job", RestoreProgress(stall_s=stall_s))
        assert time.monotonic() - began > stall_s
    assert len(passed) == checkpoints, "each is looked at: none of these manifests has bytes"


@pytest.mark.parametrize("job", ["job", "another"])
def test_the_requests_of_a_start_do_not_grow_with_the_shards_of_a_checkpoint(job: str) -> None:
    pages = []
    for shards in (4, 1100):
        with object_store(mirror_keys("job", 2, shards)) as store:
            with contextlib.suppress(OtherJob):
                restore.available([backend_of(store)], job, RestoreProgress(stall_s=600.0))
            assert store.n_lists > 0, "nothing was listed"
            pages.append(store.n_lists)
    assert pages == {"job": [8, 8], "another": [7, 7]}[job]


def test_a_job_that_begins_anew_looks_only_where_its_own_name_is() -> None:
    with object_store(mirror_keys("job", 2, 600)) as store:
        assert restore.newest_of([backend_of(store)], "another", restore.NO_JOB) is None
        assert store.requests == [("list", "another/")]


def test_directories_without_a_checkpoint_are_not_searched() -> None:
    """A bucket that also holds data sets: of each directory two levels are listed, and no file is read."""
    images = (f"images/train/n{number:05d}/{image}.jpg" for number in range(300) for image in range(5))
    with object_store(images) as store:
        assert restore.newest([backend_of(store)], "job") is None
        assert store.requests == [("list", "job/"), ("list", ""), ("list", "images/"), ("list", "images/train/")]


@pytest.mark.slow
def test_a_million_objects_are_looked_through_in_bounded_memory() -> None:
    with object_store(mirror_keys("job", 200, 5000)) as store:
        backend, before = backend_of(store), store.n_lists
        list(backend.list("none/"))  # the client is made
        tracemalloc.start()
        lines: list[str] = []
        _, passed = restore.available([backend], "job", RestoreProgress(lines.append, stall_s=30.0))
        _, most_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (len(passed), store.n_lists - before) == (200, 205 + 200)
    assert most_bytes < 32 << 20


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(400)
def test_a_new_job_beside_300_000_objects_of_another_begins(large: ObjectStore, supervise: Callable[..., Supervised]) -> None:  # noqa: F811
    """With the latency of S3, and with the limits as they are."""
    large.latency_s = 0.25
    environment = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "key") | {"AWS_DEFAULT_REGION": "us-east-1"}
    options = [
        "--mirror",
        "s3://bucket",
        "--checkpoints",
        "ckpt/*.pt",
        "--resume-args",
        "--resume {resume}",
        "--set",
        "checkpoints.restore_from=none",
    ]
    run = supervise(sys.executable, "-c", "print('it began')", options=options, AWS_ENDPOINT_URL_S3=large.url, **environment)
    code = run.exit_code(300)
    large.latency_s = 0.0
    assert large.n_lists > 0, "the mirror was not asked"
    assert code == 0, run.stderr
