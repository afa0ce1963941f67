"""Reading, keeping and restoring checkpoints: see the table of this package."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from checkpointing.retention.ownership import not_written
from checkpointing.verification import identity_of
from supervisor.checkpoints.discovery.from_logs import Discovery
from supervisor.checkpoints.origin.provenance import Provenance
from tests.checkpoints.discovery.test_from_logs import Rank
from tests.known_defects import ONE_PASS, later, prepared

if TYPE_CHECKING:
    from pathlib import Path


@later(ONE_PASS)
def test_a_checkpoint_of_more_files_than_are_remembered_can_be_removed(tmp_path: Path) -> None:
    """Three checkpoints of 300 files each, as 300 ranks write them: the oldest is this job's too."""
    rank = Rank(tmp_path / "attempt-0001")
    known = Discovery(tmp_path / "checkpoints", "r1")
    oldest = tmp_path / "checkpoint-10"
    for step in (10, 20, 30):
        directory = tmp_path / f"checkpoint-{step}"
        directory.mkdir()
        for number in range(300):
            path = directory / f"rng_state_{number}.pth"
            path.write_bytes(b"state")
            st = path.stat()
            rank.saves(str(path), now=[st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns])
        known.absorb(rank.directory, 1)
    identity = identity_of(str(oldest))
    prepared(identity is not None, "it is not there")
    assert identity is not None
    assert not_written(str(oldest), identity, known.written_files(str(oldest), 0)) == ""


@later(ONE_PASS)
def test_what_another_put_in_the_place_of_a_checkpoint_is_not_trusted(tmp_path: Path) -> None:
    """A download, or another user of a shared directory, may put a file with a call there."""
    path, rank = tmp_path / "step-40.pt", Rank(tmp_path / "attempt-0001")
    path.write_bytes(b"what the job saved")
    st = path.stat()
    rank.saves(str(path), now=[st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns])
    known = Discovery(tmp_path / "checkpoints", "r1")
    known.absorb(rank.directory, 1)
    job: Any = SimpleNamespace(settings=SimpleNamespace(checkpoints=SimpleNamespace(trusted=False)))
    none: Any = SimpleNamespace(is_declared=lambda _: False, has=lambda *_: True, get=lambda _: None, has_saved=lambda *_: False)
    origin = Provenance(job, none, known, none, manifests=none, baseline=none, several_nodes=False)
    prepared(origin.trusts(str(path)), "the job's own is not trusted")
    other = tmp_path / "download"
    other.write_bytes(b"what somebody else wrote")
    other.replace(path)
    assert not origin.trusts(str(path))


def test_the_lines_of_a_rank_are_those_that_the_log_reader_takes(tmp_path: Path) -> None:
    """So the tests above fail for their own reason: a checkpoint of few files is found to be this job's."""
    rank = Rank(tmp_path / "attempt-0001")
    directory = tmp_path / "checkpoint-10"
    directory.mkdir()
    path = directory / "rng_state_0.pth"
    path.write_text(json.dumps("state"))
    st = path.stat()
    rank.saves(str(path), now=[st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns])
    known = Discovery(tmp_path / "checkpoints", "r1")
    known.absorb(rank.directory, 1)
    identity = identity_of(str(directory))
    assert identity is not None
    assert not_written(str(directory), identity, known.written_files(str(directory), 0)) == ""
