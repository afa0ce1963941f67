"""A `supervise ui` that runs for real, on any free port of loopback, and what a browser or curl would ask it."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import forks
from tests.support.forks import Fork
from tests.support.preloaded import COMMANDS
from tests.support.supervised import clean_environment
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Patience with a busy machine.
PATIENCE_S = 60.0
#: What the command imports once it is called.
IMPORTS = (*COMMANDS, "supervisor.cli.ui.command", "supervisor.cli.ui.app", "supervisor.cli.ui.server", "supervisor.cli.ui.watched_jobs")


@dataclass(frozen=True)
class Answer:
    """An answer: its status, its headers by their names in small letters, and its text."""

    status: int
    headers: dict[str, str]
    text: str


@dataclass
class ServedPage:
    """One `supervise ui` process. `at` is the address that it printed."""

    process: subprocess.Popen[bytes] | Fork
    error_file: Path
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def stderr(self) -> str:
        """What it printed so far."""
        return self.error_file.read_text(errors="replace")

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    @property
    def address(self) -> str:
        """The address that it printed."""
        match = wait_for(lambda: re.search(r"http://(\S+)/", self.stderr), "an address", PATIENCE_S, alive=self.is_alive)
        return match[0]

    @property
    def token(self) -> str:
        """The token in the address that it printed, "" if it was given one."""
        assert self.address, "it stands there too"
        match = re.search(r"\?token=(\S+)", self.stderr)
        return match[1] if match else ""

    @property
    def _sent(self) -> dict[str, str]:
        """The headers of each request: of who knows the token that was printed."""
        return {"authorization": f"Bearer {self.token}", **self.headers} if self.token else self.headers

    @property
    def port(self) -> int:
        """Its port."""
        return int(re.findall(r":([0-9]+)/", self.address)[-1])

    def ask(self, path: str = "/", method: str = "GET", body: str | None = None, **headers: str) -> Answer:
        """Return the answer to one request. `_` in the name of a header stands for `-`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            sent = {**self._sent, **{name.replace("_", "-"): value for name, value in headers.items()}}
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode())

    def newer(self, path: str, version: str) -> str:
        """Return the version of a page once it is another one than `version`."""

        def other() -> str:
            answer = self.ask(path, if_none_match=f'"{version}"')
            assert answer.status in {200, 304}
            return "" if answer.status == 304 else answer.headers["etag"].strip('"')

        return wait_for(other, f"a newer version of {path}", PATIENCE_S)

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(signum)
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., ServedPage]]:
    """Give a function that serves the page of a state directory; each ends with the test.

    It is a fork of a process that has imported what it needs, of a python with the words `python`, or the program with the words `words`.
    """
    pages: list[ServedPage] = []

    def start(
        state: Path,
        *options: str,
        listen: str = "0",
        token: str = "",
        words: tuple[str, ...] = (),
        python: tuple[str, ...] = ("-m", "supervisor"),
        **environment: str,
    ) -> ServedPage:
        error_file = tmp_path / f"ui-{len(pages)}"
        if token:
            (tmp_path / "ui-token").write_text(token)
            options += ("--set", f"ui.token_file={tmp_path / 'ui-token'}")
        arguments = ("ui", "--state-dir", str(state), "--listen", listen, *options)
        environ = clean_environment(**environment)
        process: subprocess.Popen[bytes] | Fork
        with error_file.open("wb") as error, open(os.devnull, "rb") as nothing:  # noqa: PTH123
            if words:
                process = subprocess.Popen(  # noqa: S603  the program under test
                    [*words, *arguments], stdin=nothing, stdout=error, stderr=error, cwd=tmp_path, env=environ
                )
            else:
                streams = (nothing.fileno(), error.fileno(), error.fileno())
                process = Fork(forks.PROGRAM, *python, *arguments, imports=IMPORTS, environ=environ, cwd=tmp_path, descriptors=streams)
        pages.append(ServedPage(process, error_file))
        return pages[-1]

    yield start
    for page in pages:
        if page.process.poll() is None:
            page.process.kill()
        page.process.wait()


@pytest.fixture
def sleeper() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Give a function that starts a process which does nothing: a supervisor as far as its job's files know."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "1000"]))  # noqa: S607
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def spent_s(pid: int) -> float:
    """Return the processor seconds of a process so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def moment_later(seconds: float = 0.3) -> None:
    """Let a short time pass in which something must *not* happen."""
    time.sleep(seconds)
