"""A large file on its way to S3: after kill -9 at 90 % the parts that arrived are not sent again.

The file is patterned (patterned_disk.py), and the server keeps digests only, so that the size costs no room, but CPU: some 2 s for each
GiB on both sides together. It has 20 GiB; one of 200 GiB has ten times as many parts and nothing else (UPLOAD_GIB sets it).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from checkpointing.manifest import documents
from checkpointing.manifest.digest import PART_BYTES
from tests.scale.patterned_disk import manifest_of, save
from tests.support.digest_server import digest_server
from tests.support.waiting import wait_for

GIB = int(os.environ.get("UPLOAD_GIB", "20"))
_WORKERS = 4  # parts that are on their way at once: a kill costs these


@pytest.mark.slow  # tests/checkpointing/mirror/test_pass.py has a file of some parts
@pytest.mark.process
@pytest.mark.timeout(1800)
def test_a_kill_at_nine_tenths_costs_the_parts_that_were_on_their_way(tmp_path: Path) -> None:
    n_bytes = GIB << 30
    path = save(tmp_path / "step_1.safetensors", n_bytes, 1)
    environment = os.environ | {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    with digest_server() as server:
        argv = [sys.executable, "-m", "tests.scale.upload_of_pattern", str(path), server.url]

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(argv, env=environment, cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL)  # noqa: S603 -- ours

        first = start()
        wait_for(lambda: first.poll() is not None or server.n_received >= n_bytes * 9 // 10, "nine tenths", deadline_s=1500)
        first.kill()
        first.wait()
        assert server.n_received < n_bytes, "it was killed on its way"
        assert len(server.uploads) == 1
        assert start().wait(1500) == 0
        (document,) = (stored.content for key, stored in server.objects.items() if key.endswith("/manifest.json"))
        again = server.n_received - len(document) - n_bytes
        assert 0 <= again <= _WORKERS * PART_BYTES, f"{again >> 20} MiB were sent twice"
        (file,) = documents.decode(document).files
        stored = server.objects[next(key for key in server.objects if "/data/" in key)]
        assert (stored.n_bytes, stored.crc64nvme) == (n_bytes, manifest_of(path, 1).files[0].crc64nvme)
        assert file.n_bytes == n_bytes
        assert server.uploads == {}
