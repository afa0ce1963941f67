"""A checkpoint to mirror, and the mirror process itself, spoken to as the supervisor does."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pytest

from checkpointing.manifest import digest, documents
from checkpointing.mirror import keys
from checkpointing.mirror.backends import S3Options
from checkpointing.mirror.backends.opening import open_backend
from checkpointing.mirror.source import HeldFile, held_files, pinned_files
from checkpointing.mirror.upload import CheckpointUpload
from checkpointing.model import Identity
from tests.checkpointing.mirror.faults import Proxy
from tests.support.forks import Fork, pipes
from tests.support.waiting import PATIENCE_S, patience_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checkpointing.mirror.backends import Backend
    from checkpointing.mirror.source import TransferControl

PART = 5 << 20  # the least that S3 allows for a part that is not the last
ROOT = Path(__file__).parents[3]
IMPORTS = ("tests.checkpointing.mirror.warm:warm",)
FINISH = {"cmd": "finish", "deadline_s": PATIENCE_S}  # it ends the pauses after failures, as at the end of a run


@dataclass(frozen=True)
class Directory:
    """A directory as a mirror, and one for the job."""

    root: Path
    home: Path
    s3: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The mirror as a user would write it."""
        return str(self.root)


@dataclass(frozen=True)
class Place:
    """A bucket behind a proxy, a client that goes past the proxy, and a directory for the job."""

    bucket: str
    endpoint: str
    proxy: Proxy
    client: Any
    home: Path

    @property
    def url(self) -> str:
        """The mirror as a user would write it."""
        return f"s3://{self.bucket}/pre/fix"

    @property
    def s3(self) -> dict[str, Any]:
        """The settings that go with it."""
        return {"endpoint": self.endpoint, "path_style": True, "region": "us-east-1"}

    def backend(self) -> Backend:
        """Give the backend that the process uses, in this process."""
        return open_backend(self.url, S3Options(**self.s3, read_timeout_s=30.0))

    def objects(self) -> dict[str, int]:
        """List what is in the bucket, past the proxy."""
        page = self.client.list_objects_v2(Bucket=self.bucket)
        return {row["Key"].removeprefix("pre/fix/"): row["Size"] for row in page.get("Contents", ())}

    def unfinished(self) -> list[str]:
        """List the uploads that were never completed."""
        return [row["Key"] for row in self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", ())]

    def empty(self) -> None:
        """Remove all objects, so that the next round need not read them."""
        for key in self.objects():
            self.client.delete_object(Bucket=self.bucket, Key=f"pre/fix/{key}")

    def no_manifest_lies(self) -> int:
        """Read every manifest in the bucket and all that it vouches for; return how many there are."""
        n_manifests = 0
        for key in [key for key in self.objects() if key.endswith("/manifest.json")]:
            raw = self.client.get_object(Bucket=self.bucket, Key=f"pre/fix/{key}")["Body"].read()
            vouched = documents.decode(raw)
            n_manifests += 1
            for file in vouched.files:
                data_key = "pre/fix/" + keys.data_key(keys.key_of(vouched), file.path)
                content = self.client.get_object(Bucket=self.bucket, Key=data_key)["Body"].read()
                assert digest.of_bytes(content) == file.crc64nvme, data_key
        return n_manifests


def save(path: Path, n_bytes: int = 12 << 20, step: int = 100, *, job: str = "job") -> Path:
    """Write a checkpoint of one file and the manifest of it beside the directory; return the manifest's path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(n_bytes))
    return describe(path, step, job=job)


def save_tree(path: Path, files: dict[str, int], step: int = 100, *, job: str = "job") -> Path:
    """Write a checkpoint that is a directory."""
    for name, n_bytes in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(os.urandom(n_bytes))
    return describe(path, step, job=job)


def describe(path: Path, step: int, *, job: str = "job") -> Path:
    """Write the manifest of what is at `path` now."""
    members = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path.name]
    files = []
    for name in members:
        hasher = digest.Hasher(part_bytes=PART)
        hasher.update(memoryview((path / name if path.is_dir() else path).read_bytes()))
        checksums = hasher.digest()
        files.append(documents.File(name, checksums.n_bytes, checksums.crc64nvme, checksums.parts))
    row = documents.Manifest(
        name=path.name,
        is_tree=path.is_dir(),
        layout="torch_zip",
        files=tuple(files),
        path=str(path),
        identity=Identity.of(path.stat()),
        step=step,
        about=documents.About(job, "run-1"),
        made_unix_s=step,
        part_bytes=PART,
    )
    home = path.parent.parent / "manifests"
    home.mkdir(exist_ok=True)
    written = home / f"{path.name}.json"
    written.write_bytes(documents.encode(row))
    return written


@dataclass(frozen=True)
class Waiting:
    """A checkpoint that is to be sent."""

    manifest: documents.Manifest
    raw_manifest: bytes
    held: tuple[HeldFile, ...]


def waiting(path: str, raw_manifest: bytes) -> Waiting:
    """Return the checkpoint at a path as one that is to be sent, as it is now."""
    manifest = documents.decode(raw_manifest)
    return Waiting(manifest, raw_manifest, held_files(path, manifest))


def upload(backend: Backend, entry: Waiting, control: TransferControl) -> str:
    """Send a checkpoint as the process does; return its key."""
    sender = CheckpointUpload(backend, keys.key_of(entry.manifest), control, entry.manifest.part_bytes)
    return sender.complete(entry.manifest, entry.raw_manifest, entry.held)


def _started(environ: dict[str, str], stdin: int, stdout: int) -> Fork | subprocess.Popen[bytes]:
    """Start the process: a fork, except where the test has another path of modules (a fork would have no sitecustomize of its own)."""
    if environ["PYTHONPATH"] == str(ROOT):
        descriptors = (stdin, stdout, sys.__stderr__.fileno())
        return Fork("checkpointing.reader.process:main", imports=IMPORTS, environ=environ, cwd=Path.cwd(), descriptors=descriptors)
    command = [sys.executable, "-P", "-m", "checkpointing.reader.process"]
    return subprocess.Popen(command, stdin=stdin, stdout=stdout, env=environ)  # noqa: S603  ours


class Process:
    """The mirror process. Use as a context manager: it is ended by the end of its stdin."""

    def __init__(
        self,
        place: Place | Directory,
        *,
        env: dict[str, str] | None = None,
        orders: Sequence[dict[str, Any]] = (),
        **more: Any,  # noqa: ANN401 -- a row of JSON
    ) -> None:
        """`orders`: what another process left undone."""
        self.events: list[dict[str, Any]] = []
        self._queue: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        environ = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
        with pipes() as (theirs, (write, read)):
            self.popen = _started(environ, *theirs)
        self._stdin, self._stdout = os.fdopen(write, "w", encoding="utf-8"), os.fdopen(read, encoding="utf-8")
        threading.Thread(target=self._read, daemon=True).start()
        self._n_mirrors = len(more.get("mirrors", [place.url]))
        self._pins = place.home / "state" / "pins"
        self.orders: list[dict[str, Any]] = []  # as the supervisor holds them
        self.send({"cmd": "configure", "mirrors": [place.url], "job": "job", "workers": 2, "s3": place.s3, **more})
        for order in orders:
            self.again(order)

    def __enter__(self) -> Self:
        """Give the process, which runs already."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """End it."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        try:
            self.popen.wait(60)
        finally:
            self.popen.kill()
            self.popen.wait()
        self._stdout.close()

    def send(self, row: dict[str, Any]) -> None:
        """Send a command."""
        self._stdin.write(json.dumps(row) + "\n")
        self._stdin.flush()

    def mirror(self, path: Path, described: Path) -> str:
        """Ask for a checkpoint, as the supervisor does. Return how its files are pinned."""
        raw = described.read_text(encoding="ascii")
        manifest = documents.decode(raw.encode())
        name = keys.nonce_of(manifest)
        held = next((order["held"] for order in self.orders if order["id"] == name), None)
        if held is None:
            shutil.rmtree(self._pins / name, ignore_errors=True)  # of a process before this one
            (self._pins / name).mkdir(parents=True)
            held = msgspec.to_builtins(pinned_files(str(path), manifest, str(self._pins / name)))
        at = manifest.saved_ns / 1e9
        n_bytes = manifest.n_bytes
        self.again({"cmd": "mirror", "id": name, "path": str(path), "manifest": raw, "held": held, "at": at, "n_bytes": n_bytes})
        return next((file["how"] for file in held if file["how"] != "reflink"), "reflink")

    def undone(self) -> list[dict[str, Any]]:
        """Return what it was asked for and did not report as arrived or given up, as the supervisor asks another process for it."""
        orders = []
        for order in self.orders:
            own = [row for row in self.events if row.get("id") == order["id"]]
            done = [row["mirror"] for row in own if row["ev"] == "uploaded"]
            begun = [row["mirror"] for row in own if row["ev"] == "progress" and row["sent"]]
            if len(set(done)) < self._n_mirrors and not any(row["ev"] == "alert" for row in own):
                orders.append({**order, "done": done, "begun": begun})
        return orders

    def again(self, order: dict[str, Any]) -> None:
        """Ask as another process was asked."""
        self.orders.append(order)
        self.send(order)

    def wait_for(self, ev: str, deadline_s: float = 60.0, **members: Any) -> dict[str, Any]:  # noqa: ANN401 -- as above
        """Return the first event of this name and with these members that has not been returned yet."""
        deadline_s = patience_s(deadline_s)
        end = time.monotonic() + deadline_s
        while True:
            try:
                row = self._queue.get(timeout=max(end - time.monotonic(), 0.001))
            except queue.Empty:
                pytest.fail(f"no {ev} within {deadline_s} s: {self.events}")
            if row is None:
                pytest.fail(f"the process ended before {ev}: {self.events}")
            if row["ev"] == ev and all(row.get(name) == value for name, value in members.items()):
                return row

    def kill(self) -> None:
        """End it as a machine's memory manager would."""
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait()

    def alerts(self) -> list[str]:
        """Give what was alerted so far."""
        return [row["what"] for row in self.events if row["ev"] == "alert"]

    def _read(self) -> None:
        try:
            for line in self._stdout:
                row = json.loads(line)
                self.events.append(row)
                self._queue.put(row)
        except ValueError:  # closed by the test
            pass
        self._queue.put(None)
