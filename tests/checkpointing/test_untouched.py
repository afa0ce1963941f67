"""Of every format: a flipped bit that no time betrays shows against the manifest, and whatever is judged stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpointing.candidates import SelectionOptions
from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.discover import find
from checkpointing.manifest import check
from checkpointing.manifest.documents import Manifests
from checkpointing.model import Verdict
from checkpointing.rejections import Rejections
from checkpointing.retention.aside import AsideRecord
from checkpointing.retention.copies import Copies
from checkpointing.select import newest
from checkpointing.verification import verify
from tests.checkpointing.corruptions.sound import FORMATS
from tests.checkpointing.untouched import everything
from tests.support.damaged_files import flip_bit


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # torch's own, where it saves
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_flip_in_any_file_shows_and_nothing_is_touched(name: str, tmp_path: Path) -> None:
    job, state = tmp_path / "job", tmp_path / "state"
    job.mkdir()
    FORMATS[name](job)
    looked_at = [verify(candidate.path) for candidate in find(["*"], str(job)).candidates]
    (verification,) = [entry for entry in looked_at if entry.verdict is Verdict.VERIFIED]  # beside it a note of which is the latest
    path = Path(verification.path)
    manifest, manifests = check.build(verification), Manifests(CheckpointCatalogue(state, is_writer=True))
    assert manifests.put(manifest)
    assert check.check(str(path), manifest).verdict is Verdict.VERIFIED
    assert Copies(CheckpointCatalogue(state, is_writer=True), 1 << 40).keep(manifest).copy is not None
    for file in manifest.files:
        at = path / file.path if manifest.is_tree else path
        if not file.n_bytes:
            continue
        flip_bit(at, bit=1)
        before = everything(job)
        assert check.check(str(path), manifest).verdict is Verdict.BAD, file.path
        listing, rejections = find([str(path)], str(job)), Rejections(CheckpointCatalogue(state / file.path, is_writer=True))
        selection = newest(
            listing, SelectionOptions(rejections=rejections, manifests=manifests, suspect=True)
        )  # as after a load that failed
        assert (selection.chosen, selection.n_found) == (None, 1), file.path
        judged = check.check(str(path), manifest)
        record = AsideRecord(CheckpointCatalogue(state, is_writer=True))
        assert not record.move(judged, 1, {}, ranks_alive=False).to  # it is not known as this job's
        assert everything(job) == before
        flip_bit(at, bit=1)
    assert check.check(str(path), manifest).verdict is Verdict.VERIFIED
