"""The tutorial, typed: a job that dies, that is rehearsed, and whose disk is gone continues to the same model, as the pages show.

The last chapter is also the proof of the whole way through a mirror: `supervise` sends to a real S3 server, the disk is wiped, and the
next start restores and continues. Only what a person sees is changed in the commands: the pauses are shorter, the port is a free one, and
the number of a process is in its place.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.checkpointing.mirror import servers
from tests.packaging.environments import Environment
from tests.support.console import Terminal, Typed, assert_shown, typed_on
from tests.support.ledgers import check_ledgers_below
from tests.support.pages import page_text
from tests.support.supervised import MARK, clean_environment, processes_with
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.console import Started

ROOT = Path(__file__).parents[2]
NIGHT = (ROOT / "docs" / "explanation" / "one-night.md").read_text("utf-8")
#: What one-night.md shows of the last chapter, and of the drill of the second.
NIGHT_SCENE, MEMORY_SCENE = (
    next(text for text in re.findall(r"^```text\n(.*?)^```", NIGHT, re.MULTILINE | re.DOTALL) if words in text)
    for words in ("supervise: restored ", "the GPU ran out of memory")
)
#: The options of a run stand before `drill`.
RUN_OPTIONS = "supervise --checkpoints 'ckpt/*.pt' --resume-args '--resume {resume}' "
BATCH = "--knob batch_size:4=--batch-size --knob grad_accum:1=--grad-accum "
DIGEST = re.compile(r"^done: step 120 model sha256 ([0-9a-f]{64})$", re.MULTILINE)

pytestmark = pytest.mark.process


class Reader:
    """Who follows the pages, in two terminals of one directory."""

    def __init__(self, checkout: Path, place: Path, environ: dict[str, str]) -> None:
        """Sit down in a checkout."""
        self.environ = environ  # that of both terminals
        self.first = Terminal(checkout, place / "first", environ)
        self.second = Terminal(checkout, place / "second", environ)
        self._left: list[Typed] = []

    def open(self, page: str) -> None:
        """Begin a page; every command of the page before was typed."""
        assert self._left == []
        self._left = typed_on(page)

    def next(self, begins: str, **values: str) -> Typed:
        """Return the next command, which begins so, with a value in the place of each name."""
        example = self._left.pop(0)
        command = example.command
        assert command.startswith(begins), f"the page says: {command}"
        for name, value in values.items():
            assert name in command
            command = command.replace(name, value)
        return Typed(command, example.shown)

    def type(self, begins: str, terminal: Terminal | None = None, **values: str) -> str:
        """Type the next command, which begins so; what the page shows of it is what it printed."""
        example = self.next(begins, **values)
        printed = (terminal or self.first).type(example.command)
        assert_shown(example.shown, printed)
        return printed

    def start(self, begins: str, step_ms: int) -> tuple[Started, Typed]:
        """Type the next command, which begins so and trains, at this pace, and continue while it runs."""
        example = self.next(begins, **{"--step-ms=500": f"--step-ms={step_ms}"})
        return self.first.start(example.command), example

    def finished(self) -> bool:
        """Return whether every command of the page was typed."""
        return self._left == []

    def running(self, word: str) -> list[int]:
        """Return the processes of this reader that have the word in their command line."""
        return [pid for pid, line in processes_with(self.environ[MARK]).items() if word in line]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Callable[[Path], Reader]]:
    """Give a function that seats a reader in a checkout. Whatever is left of what was typed is ended after the test."""
    mark = uuid.uuid4().hex
    environ = clean_environment(HOME=str(tmp_path / "home"), **{MARK: mark})
    environ = {name: value for name, value in environ.items() if not name.startswith("AWS_")} | {"OMP_NUM_THREADS": "1"}
    (tmp_path / "home").mkdir()
    environ["SUPERVISE_STANDBY_MODE"] = "off"  # they would take processor time from the ranks
    yield lambda checkout: Reader(checkout, tmp_path / "terminals", environ)
    deadline = time.monotonic() + 20
    while (left := processes_with(mark)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(pid)
                if pid in processes_with(mark):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                os.close(handle)
        time.sleep(0.05)


def in_bucket(server: servers.Server) -> list[str]:
    return [row["Key"] for row in server.client().list_objects_v2(Bucket="checkpoints").get("Contents", [])]


def last_chapter(reader: Reader, server: servers.Server) -> str:
    """Follow the chapter from its training on; return the digest of the final model."""
    reader.type("rm -rf ckpt .supervise")
    training, shown = reader.start("supervise --job night --mirror s3://checkpoints ", step_ms=600)
    asks = reader.next("supervise status")

    def mirrored() -> str:
        text = reader.second.type(asks.command)
        return text if re.search(r"^  mirrored ", text, re.MULTILINE) else ""

    # a person asks again and again; here the server is asked first, which costs less
    wait_for(lambda: [key for key in in_bucket(server) if key.endswith("manifest.json")], "a manifest", 180, alive=training.alive)
    status = wait_for(mirrored, "a mirrored checkpoint", alive=training.alive)
    assert_shown(asks.shown, status)
    (supervisor,) = re.findall(r"^  supervise +pid (\d+), alive", status, re.MULTILINE)
    ranks = dict(re.findall(r"^rank (\d) +(\d+) ", status, re.MULTILINE))
    reader.type("kill -9 RANK_0 RANK_1 SUPERVISE", RANK_0=ranks["0"], RANK_1=ranks["1"], SUPERVISE=supervisor)
    training.end(code=-signal.SIGKILL)
    assert_shown(shown.shown, training.printed)
    assert DIGEST.search(training.printed) is None, "it was not in the middle of its training"
    wait_for(lambda: not reader.running("/supervisor/guardian"), "the end of the guardian", 10)  # a person takes longer to type
    assert check_ledgers_below(reader.first.directory) > 0
    reader.type("rm -rf ckpt .supervise")
    again, shown = reader.start("supervise --job night --mirror s3://checkpoints ", step_ms=0)
    printed = again.end()
    assert_shown(shown.shown, printed)
    assert_shown(NIGHT_SCENE, printed)
    (restored,) = re.findall(r"supervise: restored \S+ of step (\d+) from s3://checkpoints: there was no checkpoint on this disk", printed)
    assert 0 < int(restored) < 120
    assert f"supervise: resumed at step {restored} from " in printed
    assert int(restored) == min(map(int, re.findall(r"^step (\d+)/120 loss", printed, re.MULTILINE))) - 10
    listed = reader.type("supervise checkpoints ls --job night --mirror s3://checkpoints")
    assert re.search(rf"(?m)^ *{restored} ", listed)
    (digest,) = DIGEST.findall(printed)
    assert isinstance(digest, str)
    return digest


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.timeout(400)
def test_a_job_with_a_wiped_disk_continues_from_s3_to_the_same_model(reader: Callable[[Path], Reader], tmp_path: Path) -> None:
    place = tmp_path / "checkout" / "tutorial-run"
    place.mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "train_ddp.py", place / "train.py")
    follows = reader(place)
    follows.open("3-the-disk-is-gone.md")
    follows.next("pip install")
    follows.next("moto_server")
    (tmp_path / "swift").mkdir()
    with servers.swift(tmp_path / "swift") as swift:  # with signatures, checksums and multipart uploads of its own
        where = {"http://127.0.0.1:9000": swift.endpoint, "_ID=tutorial": f"_ID={servers.KEY}", "_KEY=tutorial": f"_KEY={servers.SECRET}"}
        export = follows.next("export AWS_", **where).command
        follows.first.type(export)
        follows.second.type(export)
        follows.type("python -c ")
        digest = last_chapter(follows, swift)
    assert digest == undisturbed(follows.first)
    assert follows.finished()


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.timeout(3600)
def test_a_newcomer_follows_the_pages_from_a_clean_clone(reader: Callable[[Path], Reader], tmp_path: Path) -> None:
    """Up to the bucket of the last chapter; the test above has the rest. pip finds the torch of the tests, and installs all else."""
    clone = ["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(tmp_path / "checkout")]
    subprocess.run(clone, check=True)  # noqa: S603  ours
    follows = reader(tmp_path / "checkout")
    follows.environ["PIP_CONSTRAINT"] = str(ROOT / "constraints.txt")  # the versions that the tests run with
    follows.environ["PIP_NO_COMPILE"] = "1"  # python compiles what it imports; pip would compile 3,000 modules of moto
    follows.environ["PATH"] = f"{Path(sys.base_prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin"  # not what the tests run in
    first_chapter(follows)
    second_chapter(follows)
    port = servers.free_ports(1)
    follows.open("3-the-disk-is-gone.md")
    follows.type("pip install")
    serves = Terminal(follows.first.directory, tmp_path / "terminals" / "third", follows.environ)
    serves.type(f". {tmp_path / 'checkout'}/.venv/bin/activate")
    moto = serves.start(follows.next("moto_server", **{"9000": str(port)}).command)
    follows.first.type(follows.next("export AWS_", **{"9000": str(port)}).command)
    wait_for(lambda: listening(port), "moto", alive=moto.alive)
    follows.type("python -c ")
    assert servers.Server(port, tmp_path / "none").client().list_buckets()["Buckets"]
    moto.stop()


def listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def first_chapter(reader: Reader) -> None:
    reader.open("1-a-rank-dies.md")
    reader.type("python3 -m venv .venv")
    Environment(reader.first.directory / ".venv").link_torch()  # 200 MB that are none of ours
    reader.type(". .venv/bin/activate")
    reader.type(
        "pip install torch", **{" --index-url https://download.pytorch.org/whl/cpu": ""}
    )  # only the usual index can be reached here
    reader.type("pip install -e .")
    for begins in ("mkdir tutorial-run", "cd tutorial-run", "cp ../examples/train_ddp.py train.py", "export OMP_NUM_THREADS"):
        reader.type(begins)
    reader.second.type("cd tutorial-run")
    reader.second.type(". ../.venv/bin/activate")
    training, shown = reader.start("supervise --job first ", step_ms=500)
    training.wait_for("step 50/120")
    asks = reader.next("supervise status")
    status = reader.second.type(asks.command)
    assert_shown(asks.shown, status)
    kill = reader.next("kill -9 PID", PID=dict(re.findall(r"^rank (\d) +(\d+) ", status, re.MULTILINE))["1"])
    reader.second.type(kill.command)
    printed = training.end()
    assert_shown(shown.shown + kill.shown, printed)
    assert printed.count("Restarting as attempt") == 1
    reader.type("supervise why")
    reader.type("supervise report")
    assert DIGEST.findall(reader.type("torchrun ")) == DIGEST.findall(printed)
    assert reader.finished()


def second_chapter(reader: Reader) -> None:
    reader.open("2-before-the-night.md")
    doctor = reader.next("supervise doctor")
    printed = reader.first.type(f"{doctor.command} || test $? = 69")  # this machine may be unfit
    if "FAILED" not in printed:
        assert_shown(doctor.shown, printed)
    for begins in (f"{RUN_OPTIONS}plan -- ", f"{RUN_OPTIONS}drill resume -- "):
        reader.type(begins)
    assert_shown(MEMORY_SCENE, reader.type(f"{RUN_OPTIONS}{BATCH}drill oom --at-step 25 -- "))
    (toml,) = re.findall(r"^```toml\n(.*?)^```", page_text("2-before-the-night.md"), re.MULTILINE | re.DOTALL)
    (reader.first.directory / "alerts.toml").write_text(toml)
    reader.type("supervise alerts test")
    assert '"event":"test"' in (reader.first.directory / "alerts.json").read_text()
    assert reader.finished()


def undisturbed(terminal: Terminal) -> str:
    """Return the digest of the model that plain torchrun trains without a pause or a failure, as the first chapter does."""
    (command,) = [example.command for example in typed_on("1-a-rank-dies.md") if example.command.startswith("torchrun ")]
    (digest,) = DIGEST.findall(terminal.type(command))
    assert isinstance(digest, str)
    return digest
