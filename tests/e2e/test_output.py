"""What is shown: the bytes that the launcher alone would have shown, at once and in order, and a few words of ours beside them.

Each test runs the command with and without us where it can, and compares. `Terminal` is a real pseudo-terminal with a person at it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import select
import signal
import struct
import termios
import textwrap
import time
from typing import TYPE_CHECKING

import pytest

from tests.jobs import light
from tests.support.waiting import PATIENCE_S, patience_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.supervised import Supervised, Surroundings

    Run = Callable[..., Supervised]

TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node=2"]
ONE_RANK = ["torchrun", "--standalone", "--nproc-per-node=1"]

pytestmark = pytest.mark.process


def script(place: Path, *parts: str, name: str = "train.py") -> Path:
    """Write a job's script, made of parts that are each indented by themselves."""
    place.mkdir(parents=True, exist_ok=True)
    path = place / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(map(textwrap.dedent, parts)))
    return path


#: A line of ours at a terminal, with the time and without colour.
OURS = re.compile(r"(?m)^\d\d:\d\d:\d\d supervise: .*\r\n")


def not_ours(text: str) -> list[str]:
    """Return the lines that are not ours, of what a terminal or a file has."""
    return [line for line in OURS.sub("", text).splitlines() if not line.startswith("supervise: ")]


def log_of(run: Supervised, name: str) -> bytes:
    """Return one log of the first attempt."""
    (path,) = run.state.glob(f"*/nodes/*/attempts/0001/{name}")
    return path.read_bytes()


class Terminal:
    """A pseudo-terminal of 33 rows and 99 columns; `slave` is closed here once it was given away."""

    def __init__(self) -> None:
        """Open it."""
        self.master, self.slave = os.openpty()
        self.shown = b""
        self._looked_at = 0
        self.resize(33, 99)

    def resize(self, rows: int, columns: int) -> None:
        """Change its size, as a window manager does: the kernel tells the foreground process group."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        """Type at the keyboard."""
        os.write(self.master, text.encode())

    def await_text(self, pattern: str, deadline_s: float = 60.0) -> str:
        """Return what was shown since the last call, up to a match of `pattern`."""
        deadline = time.monotonic() + patience_s(deadline_s)
        while not (match := re.compile(pattern.encode()).search(self.shown, self._looked_at)):
            if time.monotonic() > deadline or not self._read(0.1):
                pytest.fail(f"not shown: {pattern}; but: {self.shown[self._looked_at :]!r}")
        text = self.shown[self._looked_at : match.end()].decode(errors="replace")
        self._looked_at = match.end()
        return text

    def rest(self, deadline_s: float = 60.0) -> str:
        """Return what was shown since the last look, up to the end of everybody who held the terminal."""
        deadline = time.monotonic() + patience_s(deadline_s)
        while self._read(0.1):
            assert time.monotonic() < deadline, f"the terminal is still held: {self.shown!r}"
        return self.shown[self._looked_at :].decode(errors="replace")

    def _read(self, wait_s: float) -> bool:
        if self.slave >= 0:
            os.close(self.slave)
            self.slave = -1
        if select.select([self.master], [], [], wait_s)[0]:
            try:
                self.shown += os.read(self.master, 65536)
            except OSError:  # EIO: nobody holds the slave any more
                return False
        return True

    def close(self) -> None:
        """Hang up."""
        os.close(self.master)
        if self.slave >= 0:
            os.close(self.slave)


@pytest.fixture
def terminal() -> Iterator[Callable[[], Terminal]]:
    terminals: list[Terminal] = []

    def make() -> Terminal:
        terminals.append(Terminal())
        return terminals[-1]

    yield make
    for tty in terminals:
        tty.close()


#: In a pipe: the job and its run; what it resumes from; whether that was proven; where everything lies.
OPENING_LINES = 4

# --- the same bytes

ALTERNATING = """
    import os
    for n in range(200):
        os.write(1, b"out %d\\n" % n)
        os.write(2, b"err %d\\n" % n)
"""


def test_the_same_bytes_on_each_stream_whatever_they_are(supervise: Run, surroundings: type[Surroundings], tmp_path: Path) -> None:
    job = script(
        tmp_path,
        """
        import os
        os.write(1, bytes(range(256)) * 40 + b"\\xff\\xfe half a line")
        os.write(2, b"\\xc3\\x28 not utf-8 \\x1b[31m\\r\\n\\0")
        os.write(1, b"\\rand its end, with no line feed")
        """,
    )
    run = supervise("python", job)
    alone = supervise("python", job, place=tmp_path / "alone", around=surroundings(without_us=True))
    assert run.exit_code() == alone.exit_code() == 0
    shown = (run.place / "stdout").read_bytes()
    assert len(shown) > 256 * 40
    assert shown == (alone.place / "stdout").read_bytes() == log_of(run, "rank-0.out")
    errors = (alone.place / "stderr").read_bytes()
    *opening, shown_errors = (run.place / "stderr").read_bytes().split(b"\n", OPENING_LINES)
    assert all(line.startswith(b"supervise: ") for line in opening)
    assert shown_errors == errors + b"\nsupervise: done, no incident\n"  # the line that the job left open is ended before ours
    assert errors == log_of(run, "rank-0.err")


@pytest.mark.slow
def test_a_line_of_ten_megabytes_without_an_end_arrives_whole(supervise: Run, tmp_path: Path) -> None:
    job = script(tmp_path, "import os, sys; sys.stdout.write('0123456789' * 1_000_000)")
    run = supervise("python", job)
    assert run.exit_code() == 0
    wanted = hashlib.sha256(b"0123456789" * 1_000_000).hexdigest()
    assert hashlib.sha256((run.place / "stdout").read_bytes()).hexdigest() == wanted
    assert hashlib.sha256(log_of(run, "rank-0.out")).hexdigest() == wanted


def test_stdin_is_the_jobs_and_alternating_lines_keep_their_order_where_both_streams_are_one(
    supervise: Run, surroundings: type[Surroundings], tmp_path: Path
) -> None:
    job = script(tmp_path, "print(input(), input(), flush=True)\n", ALTERNATING)
    read, write = os.pipe()
    os.write(write, b"x\ny\n")
    os.close(write)
    with (tmp_path / "both").open("wb") as both:
        run = supervise("python", job, around=surroundings(stdin=read, stdout=both.fileno(), stderr=both.fileno()))
        os.close(read)
        assert run.exit_code() == 0
    lines = not_ours((tmp_path / "both").read_text())
    assert lines == ["x y", *(f"{name} {n}" for n in range(200) for name in ("out", "err"))]


@pytest.mark.slow
def test_under_torchrun_a_print_is_seen_at_once_and_alternating_lines_keep_their_order(
    supervise: Run, surroundings: type[Surroundings], tmp_path: Path
) -> None:
    job = script(
        tmp_path,
        """
        import os, time
        for n in range(3):
            print("step", n)  # torchrun starts its ranks with -u
            while not os.path.exists(f"go-{n}"):
                time.sleep(0.01)
        """,
        ALTERNATING,
    )
    with (tmp_path / "both").open("wb") as both:
        run = supervise(*ONE_RANK, job, around=surroundings(stdout=both.fileno(), stderr=both.fileno()))
        for n in range(3):
            deadline = time.monotonic() + PATIENCE_S
            while f"step {n}\n" not in (tmp_path / "both").read_text():
                assert run.alive()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            (tmp_path / f"go-{n}").touch()
        assert run.exit_code() == 0
    lines = not_ours((tmp_path / "both").read_text())
    assert lines == [f"step {n}" for n in range(3)] + [f"{name} {n}" for n in range(200) for name in ("out", "err")]
    assert log_of(run, "rank-0.log").decode().splitlines() == lines


@pytest.mark.slow
def test_buffering_is_the_interpreters_own(supervise: Run, tmp_path: Path) -> None:
    job = script(tmp_path, "import os\nprint('printed')\nos.write(1, b'written\\n')")
    buffered = supervise("python", job, place=tmp_path / "buffered")
    unbuffered = supervise("python", "-u", job, place=tmp_path / "unbuffered")
    assert buffered.exit_code() == unbuffered.exit_code() == 0
    assert buffered.stdout == "written\nprinted\n"  # as into any pipe or file
    assert unbuffered.stdout == "printed\nwritten\n"


def test_an_unflushed_print_under_u_is_seen_at_once(supervise: Run, tmp_path: Path) -> None:
    job = script(
        tmp_path,
        """
        import os, time
        for n in range(5):
            print("step", n, end=" ")
            while not os.path.exists(f"go-{n}"):
                time.sleep(0.01)
        """,
    )
    run = supervise("python", "-u", job)
    for n in range(5):
        run.wait_for_line(f"step {n} ", deadline_s=15)
        (tmp_path / f"go-{n}").touch()
    assert run.exit_code() == 0
    assert run.stdout == "step 0 step 1 step 2 step 3 step 4 "


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--tee=3", "--local-ranks-filter=0"])
def test_torchruns_own_options_about_output_keep_their_meaning(
    supervise: Run, surroundings: type[Surroundings], tmp_path: Path, option: str
) -> None:
    job = script(
        tmp_path,
        """
        import os
        rank = os.environ["RANK"]
        for n in range(30):
            os.write(1, f"rank {rank} out {n}\\n".encode())
            os.write(2, f"rank {rank} err {n}\\n".encode())
        """,
    )
    words = [*TORCHRUN, option, *(["--log-dir=logs"] if "filter" not in option else []), job]
    run = supervise(*words, place=tmp_path / "ours")
    alone = supervise(*words, place=tmp_path / "alone", around=surroundings(without_us=True))
    assert run.exit_code() == alone.exit_code() == 0
    shown = 0
    for our_text, their_text in ((run.stdout, alone.stdout), ("\n".join(not_ours(run.stderr)), alone.stderr)):
        for rank in "01":  # the ranks' lines mix as they come; each rank's own keep their order
            mine = [line for line in our_text.splitlines() if f"rank {rank} " in line]
            assert mine == [line for line in their_text.splitlines() if f"rank {rank} " in line]
            shown += len(mine)
        assert len(our_text.splitlines()) == len(their_text.splitlines())
    assert shown == {"--tee=3": 120, "--local-ranks-filter=0": 60}[option]
    if "filter" in option:
        assert log_of(run, "rank-1.out").decode() == "".join(f"rank 1 out {n}\n" for n in range(30))
        assert log_of(run, "rank-1.err").decode() == "".join(f"rank 1 err {n}\n" for n in range(30))
    else:
        files = {path.relative_to(run.place).parts[-2:]: path.read_text() for path in (run.place / "logs").glob("*/*/*/std*.log")}
        assert files == {
            path.relative_to(alone.place).parts[-2:]: path.read_text() for path in (alone.place / "logs").glob("*/*/*/std*.log")
        }
        assert len(files) == 4


def test_a_reader_that_leaves_does_not_end_the_job(supervise: Run, surroundings: type[Surroundings], tmp_path: Path) -> None:
    job = script(tmp_path, "for n in range(50_000): print('line', n, flush=n % 100 == 0)")
    read, write = os.pipe()
    run = supervise("python", job, around=surroundings(stdout=write))
    os.close(write)
    with os.fdopen(read) as reader:
        assert reader.readline() == "line 0\n"  # and closes it, as `head -1` does
    assert run.exit_code() == 0
    assert "stdout was closed by its reader" in run.stderr
    assert log_of(run, "rank-0.out").decode().splitlines() == [f"line {n}" for n in range(50_000)]
    assert run.attempts() == 1


# --- what goes in


SHADOWS = {
    "checkpointing.py": "WHOSE = 'checkpointing of the user'",
    "supervisor.py": "WHOSE = 'supervisor of the user'",
    "health/__init__.py": "WHOSE = 'health of the user'",
}


def test_modules_of_the_users_that_bear_our_names_are_the_users(supervise: Run, tmp_path: Path) -> None:
    for name, text in SHADOWS.items():
        script(tmp_path, text, name=name)
    script(
        tmp_path,
        """
        import os, sys
        import checkpointing, health, supervisor
        print(checkpointing.WHOSE, health.WHOSE, supervisor.WHOSE, sep="\\n")
        sys.stdout.flush()
        if not os.path.exists("failed"):  # what collects evidence and restarts meets these names too
            open("failed", "w").close()
            os.kill(os.getpid(), 9)
        """,
    )
    run = supervise("python", "train.py", options=["--resumes-itself"])
    assert run.exit_code() == 0
    assert run.attempts() == 2
    assert run.stdout == 2 * "".join(f"{name} of the user\n" for name in ("checkpointing", "health", "supervisor"))


# --- on a terminal


def test_a_progress_bar_on_a_terminal_is_as_without_us(
    supervise: Run, surroundings: type[Surroundings], terminal: Callable[[], Terminal], tmp_path: Path
) -> None:
    job = script(
        tmp_path,
        """
        import os, shutil, sys
        print([os.isatty(fd) for fd in (0, 1, 2)], shutil.get_terminal_size())
        for n in range(0, 101, 10):
            sys.stderr.write(f"\\r{n:3d}%|{'#' * (n // 5):20}|")
            print(end="" if n < 100 else "\\n", flush=True)
        print("line-buffered")
        os.write(1, b"after it\\n")
        """,
    )
    shown = {}
    for without_us in (False, True):
        screen = terminal()
        run = supervise("python", job, around=surroundings(terminal=screen.slave, without_us=without_us), NO_COLOR="1")
        shown[without_us] = screen.rest()
        assert run.exit_code() == 0
    assert "[True, True, True] os.terminal_size(columns=99, lines=33)" in shown[True]
    assert OURS.sub("", shown[False]) == shown[True]
    assert re.search(r"\r\n\d\d:\d\d:\d\d supervise: done, no incident\r\n$", shown[False])


@pytest.mark.slow
def test_under_torchrun_on_a_terminal_the_rank_has_one(
    supervise: Run, surroundings: type[Surroundings], terminal: Callable[[], Terminal], tmp_path: Path
) -> None:
    job = script(tmp_path, "import os, sys\nprint(os.isatty(1), os.isatty(2), os.get_terminal_size())\nsys.stderr.write('\\r 50%|##|')")
    screen = terminal()
    run = supervise(*ONE_RANK, job, around=surroundings(terminal=screen.slave), NO_COLOR="1")
    shown = screen.rest()
    assert run.exit_code() == 0
    assert OURS.sub("", shown) == "True True os.terminal_size(columns=99, lines=33)\r\n\r 50%|##|\r\n"
    assert re.search(r"\|##\|\r\n\d\d:\d\d:\d\d supervise: done, no incident\r\n$", shown)


@pytest.mark.slow
def test_the_wait_until_the_first_step_is_filled_at_a_terminal(
    supervise: Run, surroundings: type[Surroundings], terminal: Callable[[], Terminal], tmp_path: Path
) -> None:
    job = script(tmp_path, "import torch, time\ntorch.distributed.init_process_group('gloo')\nprint('ready')\ntime.sleep(3)\n")
    screen = terminal()
    run = supervise(*ONE_RANK, job, around=surroundings(terminal=screen.slave), NO_COLOR="1")
    first = screen.await_text(r"supervise: .*\r\n")
    assert re.fullmatch(r"\d\d:\d\d:\d\d supervise: starting torchrun --standalone --nproc-per-node=1 .*train.py …\r\n", first), first
    screen.await_text(r"supervise: job ")
    screen.await_text(r"supervise: starting attempt 1: importing torch …\r\n")
    screen.await_text(r"supervise: starting attempt 1: setting up the process group, the model and the data …")
    screen.rest()
    assert run.exit_code() == 0


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "file"), [(["python"], "stderr"), (ONE_RANK, "stdout")], ids=["python", "torchrun"])
def test_with_one_stream_on_a_terminal_the_other_goes_to_its_file(  # noqa: PLR0913, PLR0917  # two cases and four tools
    supervise: Run, surroundings: type[Surroundings], terminal: Callable[[], Terminal], tmp_path: Path, launcher: list[str], file: str
) -> None:
    job = script(
        tmp_path,
        """
        import os, sys
        print("out", os.isatty(1))
        sys.stdout.flush()
        print("err", os.isatty(2), file=sys.stderr)
        """,
    )
    screen = terminal()
    with (tmp_path / "file").open("wb") as other:
        run = supervise(*launcher, job, around=surroundings(terminal=screen.slave, **{file: other.fileno()}), NO_COLOR="1")
    shown = screen.rest()
    assert run.exit_code() == 0
    lines = [not_ours((tmp_path / "file").read_text()), not_ours(shown)]
    assert lines == ([["out False"], ["err True"]] if file == "stdout" else [["err False"], ["out True"]])


def test_pdb_with_line_editing(supervise: Run, surroundings: type[Surroundings], terminal: Callable[[], Terminal], tmp_path: Path) -> None:
    job = script(tmp_path, "x = 41\nbreakpoint()\nprint('x is', x)")
    screen = terminal()
    run = supervise("python", job, around=surroundings(terminal=screen.slave), TERM="xterm", INPUTRC=os.devnull, HOME=str(tmp_path))
    screen.await_text(r"\(Pdb\) ")
    screen.type("p x\n")
    assert "\r\n41\r\n" in screen.await_text(r"\(Pdb\) ")
    screen.type("p x+2\x7f\x7f-1\n")  # two characters taken back
    assert "\r\n40\r\n" in screen.await_text(r"\(Pdb\) ")
    screen.type("\x1b[A\x1b[D9\n")  # up: the last line; left: before its last character
    assert "\r\n-50\r\n" in screen.await_text(r"\(Pdb\) ")
    screen.type("x = 7\nc\n")
    assert "x is 7\r\n" in screen.rest()
    assert run.exit_code() == 0


INTERRUPTED = """
    import sys, time
    try:
        print("ready", flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            time.sleep(0.01)
        print("saved", flush=True)
        raise
"""


#: Comes before INTERRUPTED. It may be told while the job prints: print is not to be entered twice.
RESIZED = """
    import os, signal
    signal.signal(signal.SIGWINCH, lambda *_: os.write(1, b"resized to (%d, %d)\\n" % os.get_terminal_size()))
"""


def test_the_job_learns_of_a_window_that_changes_its_size_and_once_of_an_interrupt_so_that_it_can_save(
    supervise: Run, surroundings: type[Surroundings], terminal: Callable[[], Terminal], tmp_path: Path
) -> None:
    """^C goes to the whole foreground group, the job included."""
    job = script(tmp_path, RESIZED, INTERRUPTED)
    screen = terminal()
    run = supervise("python", job, around=surroundings(terminal=screen.slave))
    screen.await_text("ready")
    screen.resize(20, 55)
    screen.await_text(r"resized to \(55, 20\)")
    screen.type("\x03")
    shown = screen.rest()
    assert run.exit_code() == 130
    assert "saved\r\n" in shown
    assert shown.count("KeyboardInterrupt") == 1
    assert '"attempt":2' not in run.journal()  # the first may be stopped before its process was seen to train
    run.wait_for_nothing_left()


@pytest.mark.slow
def test_an_interrupt_reaches_each_rank_under_torchrun_once(
    supervise: Run, surroundings: type[Surroundings], terminal: Callable[[], Terminal], tmp_path: Path
) -> None:
    job = script(tmp_path, INTERRUPTED)
    screen = terminal()
    run = supervise(*TORCHRUN, job, around=surroundings(terminal=screen.slave))
    screen.await_text(r"(?s)ready.*ready")
    screen.type("\x03")
    shown = screen.rest()
    assert run.exit_code() == 130
    # a terminal may pass on a line and its end apart, with the other rank's line between
    assert shown.count("saved") == 2
    assert shown.count("KeyboardInterrupt") == 2
    assert '"attempt":2' not in run.journal()
    run.wait_for_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("repeat", range(4))
def test_term_to_the_whole_group_reaches_the_job_once(supervise: Run, tmp_path: Path, repeat: int) -> None:
    del repeat
    job = script(
        tmp_path,
        """
        import signal, time
        heard = []
        signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
        print("ready", flush=True)
        while not heard:
            time.sleep(0.01)
        until = time.monotonic() + 0.7
        while time.monotonic() < until:
            time.sleep(0.01)
        print("heard", len(heard), flush=True)
        """,
    )
    run = supervise("python", job)
    run.wait_for_line("ready")
    os.killpg(run.process.pid, signal.SIGTERM)
    assert run.exit_code() == 143
    assert "heard 1\n" in run.stdout
    run.wait_for_nothing_left()


# --- our own words


def test_none_when_quiet(supervise: Run) -> None:
    """How few they are else, test_the_same_bytes_on_each_stream_whatever_they_are shows."""
    run = supervise("python", "-c", "print('done')", options=["--set", "terminal.verbosity=quiet"])
    assert run.exit_code() == 0
    assert run.stderr == ""
    assert run.stdout == "done\n"


@pytest.mark.slow
def test_the_end_names_the_options_that_the_run_showed_with_the_scripts_own_flag(supervise: Run, tmp_path: Path) -> None:
    job = script(
        tmp_path,
        light.IMPORT,
        """
        import argparse, os, time, torch
        parser = argparse.ArgumentParser()
        parser.add_argument("--resume_from", default=None)
        parser.parse_args()
        os.mkdir("out")
        model = torch.nn.Linear(4, 4)
        optimizer = light_sgd(torch, model.parameters())
        for step in range(1, 41):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            time.sleep(0.05)
            if step % 20 == 0:
                torch.save({"model": model.state_dict(), "step": step}, f"out/checkpoint-{step}.pt")
        """,
    )
    run = supervise("python", job)
    assert run.exit_code() == 0
    *_, options, last = run.stderr.splitlines()
    assert options == "supervise: next time: --checkpoints 'out/checkpoint-*.pt' --resume-args '--resume_from {resume}'"
    assert last.startswith("supervise: done at step 40 (counted by supervise), no incident")


def test_the_card_is_the_last_thing_after_a_failure(supervise: Run, surroundings: type[Surroundings], tmp_path: Path) -> None:
    job = script(
        tmp_path,
        """
        import sys
        print("a lot of output\\n" * 500, flush=True)
        sys.stderr.write("its last words, with no line feed")
        raise SystemExit(7)
        """,
    )
    with (tmp_path / "both").open("wb") as both:
        run = supervise("python", job, around=surroundings(stdout=both.fileno(), stderr=both.fileno()))
        assert run.exit_code() == 7
    text = (tmp_path / "both").read_text()
    before, _, card = text.rpartition("-- incident 1 of job e2e")
    assert "with no line feed\n" in text
    assert "its last words, with no line feed" in before
    assert before.count("a lot of output") == 500 * run.attempts()
    assert 4 <= len(card.splitlines()) <= 16
    assert "a lot of output" not in card
    assert "exit code 7" in card or "code 7" in card
    # what is there to be copied is never folded
    assert all(len(line) <= 100 for line in card.splitlines() if not line.startswith(("  again ", "  look ", "  files ")))
