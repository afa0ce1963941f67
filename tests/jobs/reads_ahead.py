"""A training whose checkpoint leaves memory before it fails; a process of it needs KILL, and looks whether the checkpoint comes back.

In: the directory. Attempt 1 saves DIR/step-10.safetensors, waits for DIR/verified, drops the checkpoint's pages and fails. What it left
behind writes the share that is in memory to DIR/beside until it is killed. Attempt 2 writes to DIR/loaded what was in memory before it read
the file, and how many bytes it read from the disk for that.
"""

import json
import os
import signal
import struct
import sys
import time
from pathlib import Path

from checkpointing.io.page_cache import resident_share

N_BYTES = 48 << 20


def share(path: Path) -> float:
    """Return the share of a file that is in memory."""
    fd = os.open(path, os.O_RDWR)
    try:
        return resident_share(fd, 0, path.stat().st_size)
    finally:
        os.close(fd)


def save(path: Path) -> None:
    """Write the checkpoint, a pattern, in the format of safetensors."""
    header = json.dumps({"weight": {"dtype": "U8", "shape": [N_BYTES], "data_offsets": [0, N_BYTES]}}).encode()
    header += b" " * (-len(header) % 8)
    with path.with_suffix(".tmp").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + bytes(range(256)) * (N_BYTES // 256))
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".tmp").rename(path)


def read_bytes() -> int:
    """Return how many bytes this process caused to be read from a disk."""
    return int(Path("/proc/self/io").read_text().split("read_bytes:")[1].split()[0])


def fail(path: Path) -> None:
    """Drop the checkpoint's pages, and fail; a child that ignores TERM is left."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    (path.parent / "dropped").write_text(str(share(path)))
    if os.fork():
        os._exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        (path.parent / "beside").write_text(str(share(path)))
        time.sleep(0.02)


def main() -> None:
    """Run one attempt."""
    place = Path(sys.argv[1])
    path = place / "step-10.safetensors"
    if os.environ["SUPERVISE_JOB_ATTEMPT"] == "1":
        save(path)
        while not (place / "verified").exists():
            time.sleep(0.02)
        fail(path)
    before, in_memory = read_bytes(), share(path)
    whole = path.read_bytes()[-N_BYTES:] == bytes(range(256)) * (N_BYTES // 256)
    (place / "loaded").write_text(json.dumps({"in_memory": in_memory, "read_bytes": read_bytes() - before, "whole": whole}))


main()
