"""kill -9 of the process that reads and sends checkpoints, of the supervisor, and of a whole node, at random moments.

After each kill the catalogue is whole but for a torn last line, the newest checkpoints and the one in use lie on the disk as they were
saved, and each manifest in the mirror has its files with their digests. At the end the last checkpoint comes back from the mirror, byte
for byte. A moment is drawn as progress, not as time: so many bytes more in the mirror, in the catalogue, or so many saves more.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from botocore.exceptions import ClientError

from checkpointing.manifest import digest
from tests.checkpointing.mirror import servers
from tests.checkpointing.mirror.faults import Proxy
from tests.support.supervised import processes_with
from tests.support.waiting import PATIENCE_S, wait_for, words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.supervised import Supervised

JOB = Path(__file__).parents[1] / "jobs" / "large_saves.py"
#: In the command line of the process of a node that reads and sends checkpoints.
READER = "checkpointing.reader.process"
#: What is killed.
IN_TURN = ("reader", "supervisor", "reader", "node")
KILLS = 20  # in a season
SEASONS, SEASONS_IN_S3 = 7, 3  # 200 kills in the slow tier
KEPT = 2
EVERY = 5
#: A process that dies again and again is started again later and later: the run is started anew after so many of its deaths.
MOST_DEATHS = 2
SETTINGS = """
[restart]
intensity = 1000
[checkpoints]
keep = 2
mirror_keep = 3
bandwidth_mib_s = {rate}
finish_s = 120
"""

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800), pytest.mark.usefixtures("short_intervals")]


def version_of(path: Path) -> str:
    """Return what changes when a file is written, or another takes its name."""
    status = path.stat()
    return f"{status.st_ino} {status.st_mtime_ns} {status.st_size}"


class MirrorContent(Protocol):
    """What lies in a mirror, looked at past the code under test."""

    url: str
    reach: dict[str, str]

    def sent(self) -> int:
        """Return how many bytes came so far; it grows while a file is sent."""

    def objects(self) -> dict[str, str]:
        """Return key → version of all objects: bytes that differ have another version."""

    def content(self, key: str) -> bytes:
        """Return an object's bytes."""

    def unfinished(self) -> list[str]:
        """Return the uploads that were begun and not completed."""


@dataclass
class DirectoryMirror:
    """A directory as the mirror."""

    root: Path

    def __post_init__(self) -> None:
        """Make it."""
        self.root.mkdir()
        self.url, self.reach = str(self.root), dict[str, str]()

    def sent(self) -> int:
        """Sum the files' sizes; a file that is sent grows."""
        n_bytes = 0
        for directory, _, names in os.walk(self.root):
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # renamed, or pruned
                    n_bytes += (Path(directory) / name).stat().st_size
        return n_bytes

    def objects(self) -> dict[str, str]:
        """List the files."""
        versions = {}
        for path in sorted(self.root.rglob("*")):
            with contextlib.suppress(FileNotFoundError):  # renamed, or pruned
                if path.is_file():
                    versions[str(path.relative_to(self.root))] = version_of(path)
        return versions

    def content(self, key: str) -> bytes:
        """Read a file."""
        return (self.root / key).read_bytes()

    def unfinished(self) -> list[str]:
        """A directory has none."""
        return []


class BucketMirror:
    """A bucket of a real S3 server, behind a proxy that counts."""

    def __init__(self, server: servers.Server, proxy: Proxy) -> None:
        """Make the bucket."""
        self._proxy, self._client, self._name = proxy, server.client(), f"b{uuid.uuid4().hex[:16]}"
        self._client.create_bucket(Bucket=self._name)
        self.url = f"s3://{self._name}/prefix"
        self.reach = {"AWS_ACCESS_KEY_ID": servers.KEY, "AWS_SECRET_ACCESS_KEY": servers.SECRET, "AWS_DEFAULT_REGION": "us-east-1"}
        self.reach |= {"AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{proxy.port}"}

    def sent(self) -> int:
        """Sum what came through the proxy."""
        return self._proxy.body_bytes("^PUT")

    def objects(self) -> dict[str, str]:
        """List the bucket, past the proxy."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._name)
        return {row["Key"]: row["ETag"] for page in pages for row in page.get("Contents", ())}

    def content(self, key: str) -> bytes:
        """Read an object, past the proxy."""
        return bytes(self._client.get_object(Bucket=self._name, Key=key)["Body"].read())

    def unfinished(self) -> list[str]:
        """List the uploads in parts that were never completed."""
        return [row["Key"] for row in self._client.list_multipart_uploads(Bucket=self._name).get("Uploads", ())]


def stand_in(place: Path) -> None:
    """Make a package named torch in `place`, for tests/jobs/large_saves.py: it is imported in no time."""
    (place / "torch").mkdir(parents=True)
    (place / "torch" / "__init__.py").touch()
    (place / "torch" / "serialization.py").write_text("from large_saves import write as save\n")


class Season:
    """One job that is killed again and again, and what must be there after each kill."""

    def __init__(self, start: Callable[..., Supervised], place: Path, mirror: MirrorContent, seed: str, *, mib: int, how: str) -> None:  # noqa: PLR0913 -- a season
        """Write the settings, and start the job."""
        self._start, self.place, self.mirror, self._mib, self._how = start, place, mirror, mib, how
        self.dice = random.Random(seed)  # noqa: S311  # a draw, no secret
        self.n_kills = self._n_deaths = 0
        self._digests: dict[tuple[str, str], tuple[int, str, str]] = {}
        self._began_t = 0.0
        place.mkdir()
        stand_in(place / "stand-in")
        config = place.parent / "season.toml"
        config.write_text(SETTINGS.format(rate=2 * mib))
        config.chmod(0o600)
        self._options = ["--config", str(config), "--checkpoints", "ckpt/step-*.pt", "--resume-args", "--resume {resume}"]
        self._options += ["--mirror", mirror.url]
        self.run = self._started()

    def _started(self) -> Supervised:
        self._n_deaths, self._began_t = 0, time.time()
        command = [
            sys.executable,
            str(JOB),
            f"--mib={self._mib}",
            f"--how={self._how}",
            f"--step-ms={10 * self._mib}",
            f"--save-every={EVERY}",
        ]
        return self._start(*command, options=self._options, place=self.place, **self.mirror.reach)

    # --- the kills

    def kill(self, kind: str) -> None:
        """Kill at a moment that is drawn, look at what is left, and see that the job continues."""
        self._await_moment()
        self.n_kills += 1
        if kind == "reader":
            self._kill_reader()
        else:
            family = [*processes_with(self.run.mark)] if kind == "node" else [self.run.process.pid]
            _strike(family)
            self.run.process.wait(30)
            self.run.wait_for_nothing_left(15)
            self.check()
            self.run = self._started()

    def _kill_reader(self) -> None:
        pids = wait_for(self._readers, "the process that sends checkpoints", alive=self.run.alive)
        _strike([self.dice.choice(pids)])
        self._n_deaths += 1
        self.check_mirror()
        if self._n_deaths == MOST_DEATHS:
            _strike([*processes_with(self.run.mark)])
            self.run.process.wait(30)
            self.run.wait_for_nothing_left(15)
            self.check()
            self.run = self._started()

    def _readers(self) -> list[int]:
        family = processes_with(self.run.mark).items()
        return [pid for pid, line in family if pid != self.run.process.pid and READER in line]

    def _await_moment(self) -> None:
        """Wait until so much more was sent, recorded or saved as was drawn."""
        look, most = self.dice.choice([(self.mirror.sent, self._mib << 20), (self._recorded, 1200), (lambda: len(self.done()), 2)])
        wanted = look() + self.dice.randint(1, most)
        deadline, first = time.monotonic() + PATIENCE_S, look()
        while (now := look()) < wanted:
            first = min(first, now)
            if now < first + (wanted - first) and now < wanted - most:  # a prune or a compaction made it smaller
                wanted = now + self.dice.randint(1, most)
            if not self.run.alive() or time.monotonic() > deadline:
                pytest.fail(f"no progress up to {wanted}, but {now}")
            time.sleep(0.004)

    # --- what must be there

    def check(self) -> None:
        """Fail unless all that must be there is there; nothing of the run is alive."""
        self.check_catalogue()
        self.check_disk()
        self.check_mirror()

    def check_catalogue(self) -> None:
        """Fail where a line but a torn last one is damaged."""
        for file in self.run.state.glob("*/nodes/*/checkpoints/catalogue.jsonl"):
            *whole, _torn = file.read_bytes().split(b"\n")
            rows = [json.loads(line) for line in whole]
            assert all(isinstance(row["row"], str) and isinstance(row["key"], str) for row in rows)
            assert rows, "the version is its first line"
            assert rows[0]["row"] == "catalogue"

    def check_disk(self) -> None:
        """Fail unless the newest saves and the one in use are there, and each file is as it was saved."""
        there = (self.place / "ckpt").glob("step-*.pt")
        files = {path.name: self._digest(str(path), version_of(path), path.read_bytes)[2] for path in there}
        saves = self.saves()
        for name, sha256 in files.items():
            assert sha256 in saves[name], f"{name} is not what was saved"
        newest = list(dict.fromkeys(f"step-{step:06d}.pt" for step in reversed(self.done())))[:KEPT]
        assert set(newest) <= set(files), "a checkpoint that had to stay is gone"
        assert self.in_use() <= set(files), "the checkpoint in use is gone"

    def in_use(self) -> set[str]:
        """Return the name of the checkpoint that this start of the job handed out last; nobody uses what an earlier start handed out."""
        records = [json.loads(line)["rec"] for line in self.run.journal().splitlines() if '"event":"CheckpointSelected"' in line]
        chosen = [record["body"]["data"]["chosen"] for record in records if record["t"] >= self._began_t]
        return {Path(chosen[-1]["path"]).name} if chosen and chosen[-1] else set()

    def check_mirror(self) -> int:
        """Fail where a manifest does not have its files, as they were saved. Return the greatest step that it holds."""
        saves, steps, objects = self.saves(), [0], self.mirror.objects()
        for key in objects:
            if not key.endswith("/manifest.json"):
                continue
            try:
                steps.append(self._checked(key, objects, saves))
            except (FileNotFoundError, ClientError):  # pruned meanwhile by a process that lives
                assert key not in self.mirror.objects(), f"a file of {key} is not there"
        return max(steps)

    def _digest(self, name: str, version: str, read: Callable[[], bytes]) -> tuple[int, str, str]:
        """Return size, CRC and SHA-256 of an object or a file; what was read once in this version is not read again."""
        entry = self._digests.get((name, version))
        if entry is None:
            content = read()
            entry = len(content), digest.to_hex(digest.of_bytes(content)), hashlib.sha256(content).hexdigest()
            if version:  # else it came after the objects were listed
                self._digests[name, version] = entry
        return entry

    def _checked(self, key: str, objects: dict[str, str], saves: dict[str, set[str]]) -> int:
        """Compare the files of a manifest with it, and with what was saved; return its step."""
        manifest: dict[str, Any] = json.loads(self.mirror.content(key))
        for file in manifest["files"]:
            data = f"{key.rpartition('/')[0]}/data/{file['path']}"
            n_bytes, crc, sha256 = self._digest(data, objects.get(data, ""), lambda data=data: self.mirror.content(data))
            assert (n_bytes, crc) == (file["bytes"], file["crc64nvme"]), key
            assert sha256 in saves[file["path"]], key
        return int(manifest["step"])

    def saves(self) -> dict[str, set[str]]:
        """Return name → SHA-256 of each time that it was saved: an attempt may save a step anew."""
        shas: dict[str, set[str]] = {}
        for step, sha256 in words_of(self.place / "saves"):
            shas.setdefault(f"step-{int(step):06d}.pt", set()).add(sha256)
        return shas

    def done(self) -> list[int]:
        """Return the step of each checkpoint that got its name, in the order of time."""
        return [int(line[0]) for line in words_of(self.place / "done")]

    def _recorded(self) -> int:
        return sum(file.stat().st_size for file in self.run.state.glob("*/nodes/*/checkpoints/catalogue.jsonl"))

    # --- the end

    def finish(self) -> None:
        """Let the job come to its end, and restore its last checkpoint elsewhere."""
        last = max([0, *self.done()]) + EVERY
        (self.place / "limit").write_text(str(last))
        assert self.run.exit_code(deadline_s=180) == 0, self.run.stderr[-3000:]
        self.run.wait_for_nothing_left(15)
        self.check()
        assert self.check_mirror() == max(self.done()) >= last, "the last checkpoint is not in the mirror"
        whole = {key.removesuffix("/manifest.json") for key in self.mirror.objects() if key.endswith("/manifest.json")}
        # what a killed process began and nobody wants any more goes by its age
        assert not {key.partition("/data/")[0] for key in self.mirror.unfinished()} & whole
        restored = self.place / "restored"
        words = ["supervise", "checkpoints", "restore", "--job", self.run.job, "--mirror", self.mirror.url, "--to", str(restored)]
        subprocess.run(words, cwd=self.place, env=self.run.environment, check=True)  # noqa: S603  # the program under test
        (file,) = restored.rglob("*.pt")
        assert file.name == f"step-{max(self.done()):06d}.pt"
        assert hashlib.sha256(file.read_bytes()).hexdigest() in self.saves()[file.name]


def _strike(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def bucket_mirror(for_all_workers: Path) -> Iterator[BucketMirror]:
    with servers.shared("swift", for_all_workers / "swift") as server, Proxy(server.port) as proxy:
        yield BucketMirror(server, proxy)


def test_a_kill_of_a_node_at_a_random_moment_loses_nothing(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    season = Season(supervise, tmp_path / "node", DirectoryMirror(tmp_path / "mirror"), "node 0", mib=4, how="zip")
    season.kill("node")
    season.finish()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(SEASONS))
def test_two_hundred_kills_at_random_moments_lose_nothing(supervise: Callable[..., Supervised], tmp_path: Path, number: int) -> None:
    mirror = DirectoryMirror(tmp_path / "mirror")
    season = Season(supervise, tmp_path / "node", mirror, f"directory {number}", mib=8, how="hooked")
    for kill in range(KILLS):
        season.kill(IN_TURN[kill % len(IN_TURN)])
    season.finish()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(SEASONS_IN_S3))
def test_sixty_of_them_lose_nothing_in_s3(
    supervise: Callable[..., Supervised], tmp_path: Path, bucket_mirror: BucketMirror, number: int
) -> None:
    season = Season(supervise, tmp_path / "node", bucket_mirror, f"s3 {number}", mib=33, how="hooked")  # two parts
    for kill in range(KILLS):
        season.kill(IN_TURN[kill % len(IN_TURN)])
    season.finish()
