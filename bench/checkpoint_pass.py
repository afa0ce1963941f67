"""One checkpoint under `supervise`: the time until it is verified and uploaded, its reads, and its cost for the training.

In: --gb, the size of each kind of checkpoint (8 where the disk has 24 GB free; a smaller one is the same measurement on less), --rounds.
Out: one JSON object on stdout. Kinds: one file of --gb; 64 files of a 64th of it; files of 1 MB, 250 a GB. Each is made before, and
renamed into the directory of a small job that trains, as the end of a save does. Cold: its pages were dropped from the page cache before.

Each kind is seen twice, with a real S3 server (Swift) on this machine: behind a proxy through which no upload gets, for the time to
verified with the mirror stopped, and as it is, for the time to uploaded. Both times begin with the first byte that is read: how soon a
save is noticed does not grow with its size, and is beside them (`noticed_s`). The bounds are measured in each round: the disk's rate is
a plain read of the same files, cold, and the network's is boto3's own transfer of them to the same server. Bytes read are the growth of
`rchar` of all processes of `supervise`, CPU seconds are theirs as well, both less what they were in two idle seconds before. A disk that is
faster than the network fills the 256 MiB that may wait, and the rest is read again: so the reads are also measured while the mirror keeps
up, with the reading capped at 0.7 of the network's rate (cold only). The server
takes CPU time from all on a small machine, so the figure of the step's time is that with the mirror stopped. GB are 10^9 bytes.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import functools
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from figures import Figure, at_most
from runs import BenchError, Run, descendants, environment, family_cpu_s

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.checkpointing.mirror import servers  # noqa: E402 -- the checkout is not on the path of a script
from tests.checkpointing.mirror.faults import STALL, Fault, Proxy  # noqa: E402 -- as above

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GB: Final = 10**9
FULL_GB: Final = 8.0
#: The checkpoint, and what Swift and the plain transfer keep of it.
COPIES: Final = 3
WITHIN_S: Final = 1800.0
KEPT_UP: Final = 0.7  # of the network's rate: what a mirror takes while it keeps up
MIB: Final = 1 << 20
AT_ONCE: Final = 4  # as many files as the reader process sends at once
LOOK_S: Final = 0.02
ASK_S: Final = 0.2
IDLE_S: Final = 2.0
FIRST_BYTES: Final = 4 << 20  # bytes read beyond the idle rate once the pass has begun
JOB = """
import array, os, time, torch
torch.set_num_threads(1)
weights = torch.randn(384, 384)
with open("steps", "ab", buffering=0) as file:
    while not os.path.exists("stop"):
        for _ in range(8):
            weights @ weights
        file.write(array.array("d", [time.monotonic()]).tobytes())
"""


def one_file(path: Path, gb: float) -> Path:
    """Write a file as torch.save does."""
    path = path.with_suffix(".pt")
    each = int(gb * GB) // 4 // 32
    torch.save({"model": {f"w{number}": torch.randn(each) for number in range(32)}, "step": 1}, path)
    return path


def shards(path: Path, n_files: int, file_bytes: int) -> Path:
    """Write a directory of safetensors files with their index."""
    path.mkdir()
    index: dict[str, str] = {}
    for number in range(n_files):
        name, tensor = f"model-{number + 1:05d}-of-{n_files:05d}.safetensors", f"layers.{number}.weight"
        header = json.dumps({tensor: {"dtype": "F32", "shape": [file_bytes // 4], "data_offsets": [0, file_bytes // 4 * 4]}}).encode()
        with (path / name).open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header + torch.randn(file_bytes // 4).numpy().tobytes())
        index[tensor] = name
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return path


KINDS: Final[dict[str, Callable[[Path, float], Path]]] = {
    "one file": one_file,
    "64 files": lambda path, gb: shards(path, 64, int(gb * GB) // 64),
    "files of 1 MB": lambda path, gb: shards(path, int(gb * 250), 10**6),
}


@dataclass(frozen=True, slots=True)
class Pass:
    """One checkpoint under one run. done_s: until it is verified (mirror stopped), or uploaded. steps: the medians of step seconds."""

    noticed_s: float
    done_s: float
    bytes_read: int
    cpu_s: float
    step_before_s: float
    step_meanwhile_s: float


@dataclass(frozen=True, slots=True)
class Mirror:
    """Where checkpoints are sent. read_mib_s: the cap on the reading, 0: none."""

    url: str
    endpoint: str
    read_mib_s: float = 0.0


def files_of(path: Path) -> list[Path]:
    """Return the files of a checkpoint."""
    return sorted(path.iterdir()) if path.is_dir() else [path]


def drop(path: Path) -> None:
    """Drop the pages of a checkpoint."""
    for file in files_of(path):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_s(path: Path) -> float:
    """Return the seconds of a plain read, in order."""
    buffer, began = bytearray(4 << 20), time.monotonic()
    for file in files_of(path):
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass
    return time.monotonic() - began


def sent_s(server: servers.Server, path: Path) -> float:
    """Return the seconds of boto3's own transfer, several files at once, to a bucket that is removed again."""
    client, bucket = server.client(), "plain"
    client.create_bucket(Bucket=bucket)
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda file: client.upload_file(str(file), bucket, file.name), files_of(path)))
    took_s = time.monotonic() - began
    empty(client, bucket)
    return took_s


def empty(client: Any, bucket: str) -> None:  # noqa: ANN401 -- botocore's clients have no types
    """Remove a bucket."""
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for row in page.get("Contents", ()):
            client.delete_object(Bucket=bucket, Key=row["Key"])
    client.delete_bucket(Bucket=bucket)


def start(place: Path, mirror: Mirror) -> Run:
    """Start the job under `supervise` with a mirror."""
    (place / "ckpt").mkdir(parents=True)
    own_words = ["supervise", "--job", "bench", "--state-dir", str(place / "state"), "--checkpoints", "ckpt/*", "--resumes-itself"]
    words = [
        *own_words,
        "--mirror",
        mirror.url,
        "--set",
        f"checkpoints.read_mib_s={mirror.read_mib_s:.0f}",
        "--",
        sys.executable,
        "-c",
        JOB,
    ]
    with (place / "stdout").open("wb") as out, (place / "stderr").open("wb") as err:
        process = subprocess.Popen(  # noqa: S603 -- the measured command
            words, cwd=place, env=environment() | reach(mirror.endpoint), stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
    return Run("supervise", place, process)


class Meter:
    """What the processes of `supervise` read and spend, the job's own apart."""

    def __init__(self, run: Run) -> None:
        """Find the job's process, and measure two idle seconds."""
        self._run = run
        self._job = [pid for pid in descendants(run.process.pid) if JOB.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()][-1:]
        before, began = self._now(), time.monotonic()
        time.sleep(IDLE_S)
        after, self._at = self._now(), time.monotonic()
        self._start, took_s = after, self._at - began
        self._idle = tuple((then - first) / took_s for first, then in zip(before, after, strict=True))

    def used(self) -> tuple[float, float]:
        """Return bytes read and CPU seconds since it was made, beyond the idle rate."""
        past_s = time.monotonic() - self._at
        n_bytes, cpu_s = (then - first - rate * past_s for first, then, rate in zip(self._start, self._now(), self._idle, strict=True))
        return n_bytes, cpu_s

    def _now(self) -> tuple[float, float]:
        n_bytes, pid = 0, self._run.process.pid
        for member in descendants(pid, but=self._job):
            with contextlib.suppress(OSError):
                n_bytes += int(Path(f"/proc/{member}/io").read_text().split()[1])
        return float(n_bytes), family_cpu_s(pid, but=self._job)


def steps_of(place: Path) -> array.array[float]:
    """Return when each step ended, in monotonic seconds."""
    content = (place / "steps").read_bytes() if (place / "steps").exists() else b""
    return array.array("d", content[: len(content) // 8 * 8])


def step_s(place: Path, since: float, until: float) -> float:
    """Return the median time of a step."""
    ends = [end for end in steps_of(place) if since <= end <= until]
    return statistics.median(then - first for first, then in itertools.pairwise(ends)) if len(ends) > 2 else float("nan")  # noqa: PLR2004


def one_pass(place: Path, checkpoint: Path, mirror: Mirror, is_done: Callable[[Run], bool], look_s: float) -> Pass:
    """Give a checkpoint to a new job, and take it back afterwards."""
    run = start(place, mirror)
    target = place / "ckpt" / f"step-1{checkpoint.suffix}"
    try:
        run.wait_for(lambda: len(steps_of(place)) > 100, "steps", within_s=WITHIN_S)  # noqa: PLR2004
        time.sleep(IDLE_S)  # the first look of all is over
        meter, quiet = Meter(run), time.monotonic()
        for file in (*files_of(checkpoint), checkpoint):
            os.utime(file)  # saved now, by this run
        checkpoint.rename(target)
        placed = time.monotonic()
        run.wait_for(lambda: meter.used()[0] > FIRST_BYTES, "read", LOOK_S, within_s=WITHIN_S)
        began = time.monotonic()
        run.wait_for(lambda: is_done(run), "end", look_s, within_s=WITHIN_S)
        ended = time.monotonic()
        n_bytes, cpu_s = meter.used()
        return Pass(began - placed, ended - began, int(n_bytes), cpu_s, step_s(place, quiet - IDLE_S, quiet), step_s(place, began, ended))
    finally:
        (place / "stop").touch()
        run.stop()
        if target.exists():
            target.rename(checkpoint)
        shutil.rmtree(place)


def is_verified(run: Run) -> bool:
    """Return whether the journal says that the checkpoint is verified."""
    return any(b'"event":"CheckpointVerified"' in path.read_bytes() for path in run.place.glob("state/*/nodes/*/journal.jsonl"))


def stopped(place: Path, checkpoint: Path, server: servers.Server) -> Pass:
    """Measure until verified, with a mirror that answers questions and takes nothing."""
    client = server.client()
    client.create_bucket(Bucket="stopped")
    with Proxy(server.port) as proxy:
        proxy.faults.append(Fault(STALL, "^(PUT|POST)", times=1 << 30))
        try:
            return one_pass(place, checkpoint, Mirror("s3://stopped", f"http://127.0.0.1:{proxy.port}"), is_verified, LOOK_S)
        finally:
            empty(client, "stopped")


def reach(endpoint: str) -> dict[str, str]:
    """Return the variables with which a server is reached."""
    kept = {"AWS_ACCESS_KEY_ID": servers.KEY, "AWS_SECRET_ACCESS_KEY": servers.SECRET, "AWS_DEFAULT_REGION": "us-east-1"}
    return kept | {"AWS_ENDPOINT_URL_S3": endpoint}


def mirrored(place: Path, checkpoint: Path, server: servers.Server, read_mib_s: float = 0.0) -> Pass:
    """Measure until its manifest is in the mirror."""
    client, bucket = server.client(), "bench"
    client.create_bucket(Bucket=bucket)

    def is_there(_run: Run) -> bool:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return any(row["Key"].endswith("/manifest.json") for page in pages for row in page.get("Contents", ()))

    try:
        return one_pass(place, checkpoint, Mirror(f"s3://{bucket}", server.endpoint, read_mib_s), is_there, ASK_S)
    finally:
        empty(client, bucket)


def measured(place: Path, server: servers.Server, kind: str, gb: float, rounds: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the figures of one kind, cold and warm, the cases interleaved."""
    checkpoint = KINDS[kind](place / "made", gb)
    size = sum(file.stat().st_size for file in files_of(checkpoint))
    rows: dict[str, list[dict[str, Any]]] = {"cold": [], "warm": []}
    for number in range(rounds):
        drop(checkpoint)
        disk_s = read_s(checkpoint)
        plain_s = sent_s(server, checkpoint)
        for state in ("cold", "warm") if number % 2 == 0 else ("warm", "cold"):
            load = os.getloadavg()[0]
            passes: dict[str, Pass] = {}
            runs = {
                "stopped": functools.partial(stopped, place / "run", checkpoint, server),
                "mirrored": functools.partial(mirrored, place / "run", checkpoint, server),
            }
            if state == "cold":
                runs["keeping up"] = functools.partial(
                    mirrored, place / "run", checkpoint, server, max(1.0, KEPT_UP * size / plain_s / MIB)
                )
            for kind_of_pass, run in runs.items():
                if state == "cold":
                    drop(checkpoint)
                else:
                    read_s(checkpoint)
                passes[kind_of_pass] = run()
            verified, uploaded = passes["stopped"], passes["mirrored"]
            kept_up = passes.get("keeping up", uploaded)
            rows[state].append(
                {
                    "verified_ratio": verified.done_s / disk_s,
                    "uploaded_ratio": uploaded.done_s / max(disk_s, plain_s),
                    "read_ratio_stopped": verified.bytes_read / size,
                    "read_ratio": kept_up.bytes_read / size,
                    "read_ratio_at_full_speed": uploaded.bytes_read / size,
                    "cpu_s_per_gb_stopped": verified.cpu_s / (size / GB),
                    "cpu_s_per_gb": uploaded.cpu_s / (size / GB),
                    "step_ratio": verified.step_meanwhile_s / verified.step_before_s,
                    "step_ratio_mirrored": uploaded.step_meanwhile_s / uploaded.step_before_s,
                    "noticed_s": verified.noticed_s,
                    "verified_s": verified.done_s,
                    "uploaded_s": uploaded.done_s,
                    "disk_s": disk_s,
                    "plain_upload_s": plain_s,
                    "load": load,
                }
            )
            print(f"{kind} {state} {number}: {json.dumps(rows[state][-1])}", file=sys.stderr, flush=True)
    for state, taken in rows.items():
        yield state, {"bytes": size, **{name: round(statistics.median(row[name] for row in taken), 3) for name in taken[0]}}
    shutil.rmtree(checkpoint) if checkpoint.is_dir() else checkpoint.unlink()


def judged(name: str, row: dict[str, Any]) -> list[Figure]:
    """Return the figures that have a limit."""
    limits = {"verified_ratio": 1.3, "uploaded_ratio": 1.3, "read_ratio": 1.05, "step_ratio": 1.01}
    if name.endswith("warm"):
        del limits["read_ratio"]
    return [at_most(f"{name}: {figure}", row[figure], limit, "ratio") for figure, limit in limits.items()]


def main() -> int:
    """Measure; return 0 when everything was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gb", type=float, default=None, help="of each kind; as much as fits, and 8 at most, if left out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=sorted(KINDS), action="append", default=None)
    args = parser.parse_args()
    report: dict[str, Any] = {"cpus": os.cpu_count(), "load_before": round(os.getloadavg()[0], 2), "rounds": args.rounds, "kinds": {}}
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="supervise-bench-") as directory:
        place = Path(directory)
        gb = args.gb or min(FULL_GB, round(shutil.disk_usage(place).free / GB / (COPIES + 1), 1))
        report["gb"] = gb
        (place / "swift").mkdir()
        with servers.swift(place / "swift") as server:
            os.environ.update(reach(server.endpoint))
            for kind in args.only or KINDS:
                try:
                    for state, row in measured(place, server, kind, gb, args.rounds):
                        report["kinds"][f"{kind}, {state}"] = row
                        figures += judged(f"{kind}, {state}", row)
                except BenchError as error:
                    print(f"{kind}: {error}", file=sys.stderr)
                    return 1
    report["figures"] = [asdict(figure) for figure in figures]
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
