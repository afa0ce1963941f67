"""The reader process reads what it is given; its death, the job's saves and the end of its supervisor do no harm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from checkpointing.io.reader import Interrupted
from checkpointing.manifest.documents import decode
from checkpointing.model import Verdict
from checkpointing.reader import messages
from checkpointing.reader.messages import Configure, CopyPlan, ReadCheckpoint, ReaderDied
from checkpointing.reader.one_pass import OnePass
from supervisor.checkpoints.recording.reader_link import ReaderLink, ReadFailed
from tests.support import forked_popen
from tests.support.waiting import PATIENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from checkpointing.reader.messages import CheckpointRead, ReaderEvent

pytestmark = pytest.mark.process
MIB = 1 << 20
ROOT = Path(__file__).parents[3]


class Linked:
    """A link, its events, and a read in a thread."""

    def __init__(self, read_mib_s: float = 0.0) -> None:
        self.events: list[ReaderEvent] = []
        self.failures: list[Exception] = []
        self.takes_nothing = False
        self.busy, self.stopped = threading.Event(), threading.Event()
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.link = ReaderLink(Configure("job", read_mib_s=read_mib_s), environ, self._took, self.failures.append, is_busy=self.busy.is_set)
        self.answers: list[CheckpointRead | BaseException] = []
        self._threads: list[threading.Thread] = []

    def _took(self, event: ReaderEvent) -> None:
        self.events.append(event)
        if self.takes_nothing:
            raise LookupError(f"a bug at {type(event).__name__}")

    def begin(self, path: Path, copy: CopyPlan | None = None) -> None:
        """Have a checkpoint read, in a thread."""

        def read() -> None:
            try:
                self.answers.append(self.link.read(ReadCheckpoint(0, str(path), copy=copy), self.stopped))
            except (Interrupted, ReadFailed) as error:
                self.answers.append(error)

        self._threads.append(threading.Thread(target=read))
        self._threads[-1].start()

    def n_read(self) -> int:
        """Return the bytes that the process has read so far."""
        process = self.link.process
        if process is None:
            return 0
        try:
            text = Path(f"/proc/{process.pid}/io").read_text(encoding="ascii")
        except (OSError, ProcessLookupError):
            return 0
        return int(text.split()[1])

    def kill(self) -> None:
        """End the process as a machine's memory manager would."""
        assert self.link.process is not None
        self.link.process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """End all of it."""
        self.stopped.set()
        self.link.close(0.0)
        for thread in self._threads:
            thread.join(PATIENCE_S)


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    forked_popen.use_forks(monkeypatch)


@pytest.fixture
def linked() -> Iterator[Callable[..., Linked]]:
    links: list[Linked] = []

    def make(read_mib_s: float = 0.0) -> Linked:
        links.append(Linked(read_mib_s))
        return links[-1]

    yield make
    for link in links:
        link.close()


def save(path: Path, n_mib: int = 1) -> Path:
    torch.save({"w": torch.ones(n_mib * MIB // 4), "step": 7}, path)
    return path


def verified(answer: CheckpointRead | BaseException) -> bool:
    assert isinstance(answer, messages.CheckpointRead), answer
    return answer.verification is not None and answer.verification.verdict is Verdict.VERIFIED and bool(answer.manifest)


def test_the_reader_process_answers_as_a_local_read_does(tmp_path: Path, linked: Callable[..., Linked]) -> None:
    path = save(tmp_path / "step_7.pt")
    there = linked().link.read(ReadCheckpoint(0, str(path)), threading.Event())
    here = OnePass("job").read(ReadCheckpoint(0, str(path)), threading.Event())
    assert there.verification == here.verification
    made_there, made_here = decode(there.manifest.encode()), decode(here.manifest.encode())
    assert (made_there.id, made_there.files, made_there.identity, made_there.step) == (made_here.id, made_here.files, made_here.identity, 7)


def test_a_process_that_was_killed_while_it_read_is_started_again_and_the_checkpoint_is_read_again(
    tmp_path: Path, linked: Callable[..., Linked]
) -> None:
    reader = linked(8.0)
    path = save(tmp_path / "step_7.pt", 24)
    reader.begin(path)
    wait_for(lambda: reader.n_read() > 12 * MIB, "half of it")
    reader.kill()
    reader.link.lift()
    wait_for(lambda: reader.answers, "the answer of the next process", 30.0)
    assert verified(reader.answers[0])
    assert [event.code for event in reader.events if isinstance(event, ReaderDied)] == [-signal.SIGKILL]


def plan(target: Path, n_bytes: int = MIB) -> CopyPlan:
    target.parent.mkdir(exist_ok=True)
    return CopyPlan(str(target), n_bytes, 2)


def test_a_copy_is_made_of_the_same_read_and_begun_anew_after_a_kill(tmp_path: Path, linked: Callable[..., Linked]) -> None:
    reader = linked(8.0)
    path = save(tmp_path / "last.pt", 24)
    path.chmod(0o640)
    os.utime(path, ns=(1, 2_000_000_001))
    target = tmp_path / "copies" / "last.pt"
    reader.begin(path, plan(target))
    wait_for(lambda: target.exists() and target.stat().st_size > 6 * MIB, "half of it")
    reader.kill()
    reader.link.lift()
    wait_for(lambda: reader.answers, "the answer of the next process", 30.0)
    assert verified(reader.answers[0])
    assert isinstance(reader.answers[0], messages.CheckpointRead)
    assert (reader.answers[0].copied, reader.answers[0].copy_problem) == ("copy", "")
    assert target.read_bytes() == path.read_bytes()
    assert (target.stat().st_mtime_ns, target.stat().st_mode & 0o777) == (2_000_000_001, 0o640)


def test_a_directory_is_read_once_for_its_digests_and_its_copy(tmp_path: Path, linked: Callable[..., Linked]) -> None:
    reader = linked()
    small = save(tmp_path / "step_1.pt")
    reader.link.read(ReadCheckpoint(0, str(small)), threading.Event())  # the libraries are read by now
    tree = tmp_path / "step_7"
    (tree / "inner").mkdir(parents=True)
    for name in ("model.pt", "optimizer.pt", "inner/scaler.pt"):
        save(tree / name, 16)
    (tree / "notes.txt").write_text("by hand")
    before, size = reader.n_read(), sum(file.stat().st_size for file in tree.rglob("*") if file.is_file())
    copy = tmp_path / "copies" / "step_7"
    answer = reader.link.read(ReadCheckpoint(0, str(tree), copy=plan(copy, size)), threading.Event())
    assert verified(answer), answer
    assert (answer.copied, answer.copy_problem) == ("copy", "")
    assert size <= reader.n_read() - before <= 1.05 * size
    manifest = decode(answer.manifest.encode())
    for file in manifest.files:
        assert (copy / file.path).read_bytes() == (tree / file.path).read_bytes()
    there = {str(file.relative_to(copy)) for file in copy.rglob("*") if file.is_file()}
    assert there == {file.path for file in manifest.files}


def test_a_copy_without_room_is_none_and_the_checkpoint_is_verified(tmp_path: Path, linked: Callable[..., Linked]) -> None:
    path = save(tmp_path / "last.pt")
    answer = linked().link.read(ReadCheckpoint(0, str(path), copy=plan(tmp_path / "copies" / "last.pt", 1 << 60)), threading.Event())
    assert verified(answer)
    assert (answer.copied, answer.copy_problem) == ("", "the disk would not have room for 2 more of its size")


def test_a_checkpoint_is_given_up_after_three_deaths_of_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.checkpoints.recording.reader_link.FIRST_WAIT_S", 0.01)
    monkeypatch.setattr("supervisor.checkpoints.recording.reader_link.LONGEST_WAIT_S", 0.01)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "psutil.py").write_text("raise ImportError('no such library')\n")
    events: list[ReaderEvent] = []
    failures: list[Exception] = []
    link = ReaderLink(Configure("job"), {**os.environ, "PYTHONPATH": f"{broken}{os.pathsep}{ROOT}"}, events.append, failures.append)
    try:
        with pytest.raises(ReadFailed, match="ended 3 times: ImportError: no such library"):
            link.read(ReadCheckpoint(0, str(save(tmp_path / "step_7.pt"))), threading.Event())
        assert {event.last_line for event in events if isinstance(event, ReaderDied)} == {"ImportError: no such library"}
    finally:
        link.close(0.0)


def test_a_package_that_is_missing_is_named_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "anycrc.py").write_text("raise ModuleNotFoundError(\"No module named 'anycrc'\", name='anycrc')\n")
    link = ReaderLink(Configure("job"), {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}, lambda _: None, print)
    try:
        with pytest.raises(ReadFailed, match=r"^the package anycrc is not installed: .*`pip install -e \.`$"):
            link.read(ReadCheckpoint(0, str(save(tmp_path / "step_7.pt"))), threading.Event())
    finally:
        link.close(0.0)


def test_an_exception_at_an_event_is_reported_and_the_next_event_is_taken(tmp_path: Path, linked: Callable[..., Linked]) -> None:
    reader = linked()
    reader.takes_nothing = True
    reader.begin(save(tmp_path / "step_1.pt"))
    wait_for(lambda: reader.answers, "the answer, which comes after an event")
    reader.kill()
    wait_for(lambda: len(reader.failures) > 1, "its death")
    reader.begin(save(tmp_path / "step_2.pt"))
    wait_for(lambda: len(reader.answers) > 1, "the answer of the next process")
    assert all(map(verified, reader.answers))
    assert [str(error) for error in reader.failures][:3] == ["a bug at Ready", "a bug at ReaderDied", "a bug at Ready"]


def test_the_reader_waits_while_the_job_saves(tmp_path: Path, linked: Callable[..., Linked]) -> None:
    reader = linked()
    path = save(tmp_path / "step_7.pt", 160)
    reader.busy.set()
    reader.begin(path)
    wait_for(lambda: reader.n_read() > 32 * MIB, "the first part, which no save notices")
    before = -1
    while (now := reader.n_read()) != before:  # until it stands still between two looks of the link
        before = now
        time.sleep(0.5)
    assert now < 120 * MIB
    assert not reader.answers
    reader.busy.clear()
    wait_for(lambda: reader.answers, "the rest", 30.0)
    assert verified(reader.answers[0])


def test_a_stop_ends_a_read_and_the_next_one_is_answered(tmp_path: Path, linked: Callable[..., Linked]) -> None:
    reader = linked(4.0)
    reader.begin(save(tmp_path / "step_7.pt", 64))
    wait_for(lambda: reader.n_read() > 8 * MIB, "the beginning")
    reader.stopped.set()
    wait_for(lambda: reader.answers, "the end of it")
    assert isinstance(reader.answers[0], Interrupted)
    reader.link.lift()
    answer = reader.link.read(ReadCheckpoint(0, str(save(tmp_path / "step_8.pt"))), threading.Event())
    assert verified(answer)


def test_a_checkpoint_that_is_rewritten_while_it_is_read_is_no_verified_one(tmp_path: Path, linked: Callable[..., Linked]) -> None:
    reader = linked(8.0)
    path = save(tmp_path / "last.pt", 24)
    reader.begin(path)
    wait_for(lambda: reader.n_read() > 12 * MIB, "half of it")
    with path.open("r+b") as file:
        file.seek(1 * MIB)
        file.write(b"x" * 4096)
    reader.link.lift()
    wait_for(lambda: reader.answers, "the answer")
    answer = reader.answers[0]
    assert isinstance(answer, messages.CheckpointRead)
    assert answer.verification is not None
    assert (answer.verification.verdict, answer.manifest) == (Verdict.WRITING, "")


def test_the_reader_ends_with_its_supervisor_during_a_read(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "checkpointing.reader.process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(messages.encode(Configure("job", read_mib_s=1.0)))
        process.stdin.write(messages.encode(ReadCheckpoint(1, str(save(tmp_path / "step_7.pt", 64)))))
        process.stdin.flush()
        assert '"ready"' in process.stdout.readline()
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
