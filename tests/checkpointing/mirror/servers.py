"""The real servers: installed once into an environment of their own below the repository, on loopback, shared by all workers."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import socket
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

HERE = Path(__file__).parent
CACHE = HERE.parents[2] / ".s3-servers"
PINNED = HERE / "servers.txt"
WITHOUT_CHECKSUMS = "swift==2.34.0"  # its S3 API knows no x-amz-checksum header
KEY, SECRET = "test:tester", "testing"


@dataclass(frozen=True)
class Server:
    """A running server and how to get in."""

    port: int
    log: Path

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> Any:  # noqa: ANN401 -- botocore's clients have no types
        """Give a client that looks from outside, as nobody of ours does."""
        return _client(self.endpoint)


@functools.cache  # to make one costs 0.15 CPU seconds
def _client(endpoint: str) -> Any:  # noqa: ANN401 -- as above
    import boto3.session  # noqa: PLC0415 -- the bench's own process stays small: a child's peak memory begins with its parent's
    from botocore.config import Config  # noqa: PLC0415 -- as above

    session = boto3.session.Session(aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-1")
    return session.client("s3", endpoint_url=endpoint, config=Config(s3={"addressing_style": "path"}))


def installed() -> Path:
    """Return the interpreter that has the servers; installs them where it has not, one process at a time."""
    CACHE.mkdir(exist_ok=True)
    python = CACHE / "servers" / "bin" / "python"
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = CACHE / "servers" / ".ready"
        if not ready.exists() or ready.read_text() != PINNED.read_text():
            shutil.rmtree(CACHE / "servers", ignore_errors=True)
            venv.create(CACHE / "servers", with_pip=True)
            pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "-q", "install"]
            done = subprocess.run(  # noqa: S603 -- the test's own
                [*pip, "-r", str(PINNED)], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise RuntimeError(f"the S3 servers could not be installed: {done.stderr[-2000:]}")
            ready.write_text(PINNED.read_text())
    return python


def older_swift() -> Path:
    """Return the directory of a Swift without checksums, which runs with the packages of the newer one; installs it at first use."""
    python, home = installed(), CACHE / WITHOUT_CHECKSUMS
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / ".ready").exists():
            shutil.rmtree(home, ignore_errors=True)
            pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "-q", "install", "--no-deps", "--target"]
            subprocess.run([*pip, str(home), WITHOUT_CHECKSUMS], capture_output=True, check=True)  # noqa: S603 -- the test's own
            (home / ".ready").touch()
    return home


@contextlib.contextmanager
def swift(base: Path, *, older: bool = False) -> Iterator[Server]:
    """Run Swift below `base`; with `older` one whose S3 API knows no checksums."""
    python, port = installed(), free_ports(4)
    environ = {**os.environ, **({"PYTHONPATH": str(older_swift())} if older else {})}
    log = base / ("older_swift.log" if older else "swift.log")
    with log.open("wb") as err:
        process = subprocess.Popen(  # noqa: S603 -- the test's own
            [str(python), str(HERE / "swiftly.py"), str(base), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err,
            env=environ,
        )
    try:
        if process.stdout is None or process.stdout.readline() != b"ready\n":
            logs = "\n".join(path.read_text()[-800:] for path in base.glob("*.log"))
            raise RuntimeError(f"swift did not start: {logs}")
        yield Server(port, log)
    finally:
        process.terminate()
        process.wait(30)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@contextlib.contextmanager
def moto(base: Path) -> Iterator[Server]:
    """Run moto's server."""
    python, port = installed(), free_ports(1)
    log = base / "moto.log"
    with log.open("wb") as err:
        code = "import sys; from moto.server import main; sys.exit(main())"
        process = subprocess.Popen(  # noqa: S603 -- the test's own
            [str(python), "-c", code, "-H", "127.0.0.1", "-p", str(port)], stdout=err, stderr=err
        )
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 0.2).close()
                break
            except OSError:
                if process.poll() is not None:
                    raise RuntimeError(f"moto did not start: {log.read_text()[-2000:]}") from None
        yield Server(port, log)
    finally:
        process.kill()
        process.wait(30)


KINDS = {"swift": swift, "older_swift": functools.partial(swift, older=True), "moto": moto}


@contextlib.contextmanager
def shared(kind: str, base: Path) -> Iterator[Server]:
    """Use the server of `kind` below `base` that all workers of a run share: the first starts it, and it ends once nobody uses it."""
    base.mkdir(exist_ok=True)
    with (base / "users").open("w") as users:
        with (base / "start").open("w") as start:
            fcntl.flock(start, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)  # `hold` waits until this is given back, by the end of the worker at the latest
            if not (base / "port").exists():
                _start_holder(kind, base)
        yield Server(int((base / "port").read_text()), base / f"{kind}.log")


def _start_holder(kind: str, base: Path) -> None:
    """Start a process that has the server of `kind` and is nobody's child; wait until the server answers."""
    command = [sys.executable, str(Path(__file__)), kind, str(base)]
    with (
        (base / "holder.log").open("wb") as log,
        subprocess.Popen(  # noqa: S603 -- the test's own
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        ) as starter,
    ):
        assert starter.stdout is not None
        if starter.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{kind} did not start: {(base / 'holder.log').read_text()[-2000:]}")


def hold(kind: str, base: Path) -> None:
    """Run the server of `kind` below `base` until nobody uses it."""
    with KINDS[kind](base) as server, (base / "users").open("w") as users:
        (base / "port").write_text(str(server.port))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        fcntl.flock(users, fcntl.LOCK_EX)
        (base / "port").unlink()


def free_ports(n_ports: int) -> int:
    """Return the first of so many free ports in a row."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = int(first.getsockname()[1])
            with contextlib.ExitStack() as taken:
                try:
                    for at in range(1, n_ports):
                        taken.enter_context(socket.create_server(("127.0.0.1", port + at)))
                except (OSError, OverflowError):
                    continue
            return port


if __name__ == "__main__":
    if sys.argv[1:]:
        if os.fork():
            os._exit(0)
        hold(sys.argv[1], Path(sys.argv[2]))
    else:
        sys.stdout.write(f"{installed()}\n")
