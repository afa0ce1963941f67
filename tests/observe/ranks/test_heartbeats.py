"""The heartbeat file, seen from the supervisor."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.core.model import Phase
from supervisor.instrument._supervise_shim import layout
from supervisor.instrument._supervise_shim.claim import TRAINS, ProcessIdentity, claim
from supervisor.instrument._supervise_shim.heartbeat import HeartbeatWriter
from supervisor.observe.ranks import heartbeats

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "attempt-0001" / "heartbeat"
    heartbeats.create(path, 3)
    return path


@pytest.fixture
def beat(path: Path, monkeypatch: pytest.MonkeyPatch) -> HeartbeatWriter:
    """A rank's own end of slot 1, in this process."""
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("LOCAL_RANK", "1")
    identity = ProcessIdentity("/nowhere", str(path.parent), "rank")
    heartbeat_writer = HeartbeatWriter(identity.pid, identity.start_ticks, identity.rank)
    assert claim(identity, heartbeat_writer, TRAINS)
    return heartbeat_writer


def test_a_new_file_is_allocated_and_has_no_beats(path: Path) -> None:
    stat = path.stat()
    assert stat.st_size == 4 * layout.SLOT_BYTES
    assert stat.st_blocks * 512 >= stat.st_size
    assert stat.st_mode & 0o077 == 0
    assert heartbeats.read(path) == ()


def test_a_ranks_slot_holds_its_identity_and_its_progress(path: Path, beat: HeartbeatWriter) -> None:
    (seen,) = heartbeats.read(path)
    assert (seen.local_rank, seen.rank, seen.pid, seen.start_ticks) == (1, 9, os.getpid(), layout.start_ticks_of(os.getpid()))
    assert (seen.phase, seen.steps, seen.step, seen.step_source, seen.last_step_ns) == (Phase.IMPORT, 0, None, None, None)
    beat.report_step(12)
    beat.flag(layout.FLAG_SAVE_ASKED)
    (seen,) = heartbeats.read(path)
    assert (seen.phase, seen.step, seen.step_source, seen.save_asked) == (Phase.TRAIN, 12, "worker", True)
    assert seen.last_step_ns is not None
    assert seen.hello_ns <= seen.phase_since_ns


def test_between_two_looks_at_the_optimizer_its_steps_are_counted_on(path: Path, beat: HeartbeatWriter) -> None:
    class Optimizer:
        state = {0: {"step": 500}}  # noqa: RUF012 - torch's shape

    for _ in range(4):
        beat.on_step(Optimizer, (), {})
    (seen,) = heartbeats.read(path)
    assert (seen.steps, seen.step, seen.step_source) == (4, 503, "optimizer")


def test_import_proves_nothing_after_a_minute_without_torch(path: Path, beat: HeartbeatWriter) -> None:
    (seen,) = heartbeats.read(path)
    late = seen.hello_ns + 61 * 10**9
    assert heartbeats.read(path, now_ns=late)[0].phase is Phase.UNKNOWN
    beat.flag(layout.FLAG_AUTOGRAD)
    assert heartbeats.read(path, now_ns=late)[0].phase is Phase.IMPORT


@pytest.mark.parametrize(
    "content",
    [b"", b"x" * 7, b"x" * 512, struct.pack("<3q", layout.MAGIC, layout.VERSION, 99), struct.pack("<3q", layout.MAGIC, 2, 1) + bytes(512)],
)
def test_a_file_that_is_none_has_no_beats(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "heartbeat"
    path.write_bytes(content)
    assert heartbeats.read(path) == ()
    assert heartbeats.read(tmp_path / "missing") == ()


WRITER = """
import supervisor.instrument._supervise_shim.heartbeat
from supervisor.instrument._supervise_shim import layout
from supervisor.instrument._supervise_shim.heartbeat import HeartbeatWriter
from supervisor.instrument._supervise_shim.claim import TRAINS, ProcessIdentity, claim
identity = ProcessIdentity('/nowhere', {directory!r}, 'rank')
beat = HeartbeatWriter(identity.pid, identity.start_ticks, 0)
assert claim(identity, beat, TRAINS)
clock = {{layout.TRAIN: 11, layout.CHECKPOINT: 22 << 50}}
for _ in range(100_000):
    for phase in clock:
        supervisor.instrument._supervise_shim.heartbeat.monotonic_ns = lambda: clock[phase]
        beat.enter(phase)
"""


@pytest.mark.process
def test_fields_written_together_are_read_together(path: Path) -> None:
    code = WRITER.format(directory=str(path.parent))
    seen = set()
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as writer:  # noqa: S603
        while writer.poll() is None:
            seen |= {(beat.phase, beat.phase_since_ns) for beat in heartbeats.read(path)}
    assert writer.returncode == 0
    pairs = {pair for pair in seen if pair[0] is not Phase.IMPORT}
    assert pairs == {(Phase.TRAIN, 11), (Phase.CHECKPOINT, 22 << 50)}


def test_a_file_that_can_be_opened_and_not_read_has_no_beats(path: Path) -> None:
    path.unlink()
    path.mkdir()  # opening it works; reading says EISDIR, where a broken disk says EIO and a server that was restarted ESTALE
    assert heartbeats.read(path) == ()


def test_a_training_that_continues_beyond_its_named_end_has_named_none(path: Path, beat: HeartbeatWriter) -> None:
    """As where it names the steps of an epoch, or where a second training follows the first."""
    seen = []
    for step in (99, 100, 101):
        beat.report_step(step)
        beat.report_total(100)
        seen += [heartbeat.total for heartbeat in heartbeats.read(path)]
    assert seen == [100, 100, None]
