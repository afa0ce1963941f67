"""The cost of proving a checkpoint, in GB per CPU-second, beside the tools that people use instead, on the same file in the page cache.

In: --mib, --rounds. Out: one JSON object on stdout; `measure` gives the same to the bench. All cases are interleaved, one after the other
in each round, and the medians are shown with the extremes: CPU seconds are those of the whole process, threads included, so that a loaded
machine adds little to them. GB are 10^9 bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from figures import Figure, at_least

from checkpointing.io.reader import FileReader
from checkpointing.manifest import check
from checkpointing.model import Verdict
from checkpointing.verification import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkpointing.manifest.documents import Manifest

AIM_GB_PER_CPU_S = 5.0
TENSORS = 32


def _saved(place: Path, mib: int) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    path = place / "step_1.pt"
    each = mib * (1 << 20) // 4 // TENSORS
    torch.save({"model": {f"w{number}": torch.randn(each) for number in range(TENSORS)}, "step": 1}, path)
    return path


def _proven(path: Path, manifest: Manifest) -> None:
    if check.check(str(path), manifest).verdict is not Verdict.VERIFIED:
        raise AssertionError(path)


def _whole(path: Path) -> None:
    if verify(str(path)).verdict is not Verdict.VERIFIED:
        raise AssertionError(path)


def _zlib(path: Path) -> None:
    crc = 0
    with FileReader(str(path)) as source:
        for piece in source.stream(0, source.size):
            crc = zlib.crc32(piece, crc)


def _sha256(path: Path) -> None:
    digest = hashlib.sha256()
    with FileReader(str(path)) as source:
        for piece in source.stream(0, source.size):
            digest.update(piece)


def cases(path: Path) -> dict[str, Callable[[], object]]:
    """Return the compared cases; each reads the whole file."""
    verification = verify(str(path))
    manifest = check.build(verification)
    return {
        "against its manifest": lambda: _proven(path, manifest),
        "manifest built": lambda: check.build(verification),
        "structure": lambda: _whole(path),
        "zlib.crc32": lambda: _zlib(path),
        "sha256": lambda: _sha256(path),
        "torch.load": lambda: torch.load(path, weights_only=True),
        "torch.load mmap": lambda: [w.sum() for w in torch.load(path, weights_only=True, mmap=True)["model"].values()],
    }


def rates(place: Path, mib: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Measure every case in every round; GB per CPU-second and per second by case."""
    path = _saved(place, mib)
    gigabytes = path.stat().st_size / 1e9
    cpu: dict[str, list[float]] = {}
    wall: dict[str, list[float]] = {}
    compared = cases(path)
    for number in range(rounds + 1):
        for name, run in compared.items():
            began_cpu, began = time.process_time(), time.perf_counter()
            run()
            if number:  # the first round warms
                cpu.setdefault(name, []).append(gigabytes / (time.process_time() - began_cpu))
                wall.setdefault(name, []).append(gigabytes / (time.perf_counter() - began))
    path.unlink()
    return {
        name: {
            "gb_per_cpu_s": round(statistics.median(cpu[name]), 2),
            "from_to": [round(min(cpu[name]), 2), round(max(cpu[name]), 2)],
            "gb_per_s": round(statistics.median(wall[name]), 2),
        }
        for name in compared
    }


def measure(place: Path, pairs: int, mib: int = 512) -> list[Figure]:
    """Judge the digest against its manifest; the others stand next to it."""
    rates_by_case = rates(place, mib, max(3, min(pairs, 9)))
    return [
        at_least(
            "verify.digest",
            rates_by_case["against its manifest"]["gb_per_cpu_s"],
            AIM_GB_PER_CPU_S,
            "GB per CPU-second",
            mib=mib,
            cases=rates_by_case,
        )
    ]


def main() -> int:
    """Run it alone; return 0 when everything was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="supervise-bench-") as place:
        (figure,) = measure(Path(place), args.rounds, args.mib)
    print(
        json.dumps(
            {"cpus": os.cpu_count(), "load_before": round(load, 2), "torch": torch.__version__, "figures": [asdict(figure)]}, indent=2
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
