"""How far a chosen checkpoint is proven: by its manifest, by its structure, or by what was found earlier; and what lies elsewhere."""

from __future__ import annotations

import io
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from checkpointing import select
from checkpointing.candidates import SelectionOptions, Spare
from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.discover import find
from checkpointing.io.reader import UNLIMITED, Throttle
from checkpointing.manifest import check
from checkpointing.manifest.documents import Manifest, Manifests
from checkpointing.model import Verdict
from checkpointing.rejections import Rejections
from checkpointing.select import Selection, newest
from checkpointing.verification import Cache, verify
from tests.checkpointing.untouched import everything

if TYPE_CHECKING:
    from pathlib import Path


class Bench:
    """A directory of checkpoints, with the state of a supervisor beside it."""

    def __init__(self, directory: Path) -> None:
        """Begin with nothing recorded."""
        self.directory = directory / "ckpt"
        self.directory.mkdir()
        self.state = directory / "state"
        self.manifests = Manifests(CheckpointCatalogue(self.state, is_writer=True))
        self.cache = Cache()

    def save(self, name: str, step: int) -> Path:
        """Save one with a hundred ones in it."""
        path = self.directory / name
        with path.open("wb") as file:  # what torch opens itself has its name within
            torch.save({"w": torch.ones(100), "step": step}, file)
        return path

    def record(self, path: Path) -> Manifest:
        """Verify it and keep its manifest, as a watcher does."""
        verification = verify(str(path))
        self.cache.put(verification)
        manifest = check.build(verification, part_bytes=512)
        assert self.manifests.put(manifest)
        return manifest

    def choose(self, *, rejections: Rejections | None = None, cache: Cache | None = None, **more: Any) -> Selection:  # noqa: ANN401  newest's own
        """Select with what is recorded."""
        known = cache if cache is not None else self.cache
        options = SelectionOptions(rejections=rejections, cache=known, manifests=self.manifests, **more)
        return newest(find(["*.pt"], str(self.directory)), options)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """An empty bench."""
    return Bench(tmp_path)


def chosen(selection: Selection) -> tuple[str, str]:
    assert selection.chosen is not None, selection
    return selection.chosen.path.rpartition("/")[2], selection.chosen.level


def rot(path: Path, *, keep_times: bool = True) -> None:
    """Change the weights so that the file is as well-formed as before: the records' CRCs are made to fit."""
    st = path.stat()
    other = io.BytesIO()
    torch.save({"w": torch.ones(100) * 2, "step": 3}, other)
    content = other.getvalue()
    path.write_bytes(content)
    if keep_times:
        os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))
    assert path.stat().st_size == st.st_size


@pytest.mark.parametrize("cached", [True, False])
def test_a_checkpoint_with_a_manifest_is_taken_without_reading_its_bulk(bench: Bench, *, cached: bool) -> None:
    bench.record(bench.save("step_3.pt", 3))
    read: list[int] = []
    selection = bench.choose(cache=bench.cache if cached else Cache(), throttle=Throttle(UNLIMITED, taken=read.append))
    assert chosen(selection) == ("step_3.pt", "identity")
    assert selection.chosen is not None
    assert selection.chosen.step == 3
    everything_read: list[int] = []
    suspected = bench.choose(suspect=True, throttle=Throttle(UNLIMITED, taken=everything_read.append))
    assert chosen(suspected) == ("step_3.pt", "digest")
    assert sum(everything_read) >= (bench.directory / "step_3.pt").stat().st_size


def test_another_number_of_the_device_is_no_other_file(bench: Bench) -> None:
    manifest = bench.record(bench.save("step_3.pt", 3))
    bench.manifests.put(replace(manifest, identity=replace(manifest.identity, dev=manifest.identity.dev + 1)))
    assert chosen(bench.choose(cache=Cache())) == ("step_3.pt", "identity")


def test_well_formed_damage_shows_and_the_one_before_is_taken(bench: Bench) -> None:
    bench.record(bench.save("step_2.pt", 2))
    path = bench.save("step_3.pt", 3)
    bench.record(path)
    rot(path)
    assert verify(str(path)).verdict is Verdict.VERIFIED  # no structure shows it
    before = everything(bench.directory)
    rejections = Rejections(CheckpointCatalogue(bench.state, is_writer=True))
    selection = bench.choose(rejections=rejections, suspect=True)
    assert chosen(selection) == ("step_2.pt", "digest")
    assert "is not as recorded" in selection.torn[0][1]
    assert everything(bench.directory) == before
    assert chosen(bench.choose(rejections=rejections))[0] == "step_2.pt"


def test_zeros_count_only_in_a_file_without_a_manifest(bench: Bench) -> None:
    """What the rows of a tensor do not explain may be what the training computed all the same: equal digests prove it."""
    path = bench.directory / "step_3.pt"
    weight = torch.cat([torch.randn(200, 100).flatten()[:-5030], torch.zeros(5030)]).view(200, 100)
    torch.save({"w": weight, "step": 3}, path, _use_new_zipfile_serialization=False)
    verification = verify(str(path))
    assert (verification.verdict, "never written" in verification.reason) == (Verdict.BAD, True)
    bench.manifests.put(check.build(replace(verification, verdict=Verdict.VERIFIED, level="layout", reason="")))
    path.write_bytes(path.read_bytes())
    assert chosen(bench.choose(cache=Cache())) == ("step_3.pt", "digest")
    with path.open("r+b") as file:
        file.seek(-30_000, os.SEEK_END)
        file.write(b"\x01" * 100)
    assert [torn for torn, _ in bench.choose(cache=Cache()).torn] == [str(path)]


def test_a_moved_checkpoint_is_proven_by_its_digest_or_bad(bench: Bench) -> None:
    path = bench.save("step_3.pt", 3)
    bench.record(path)
    os.link(path, bench.directory / "held")  # else its inode's number may come back
    aside = bench.directory / "aside"
    shutil.copy2(path, aside)
    aside.replace(path)
    assert chosen(bench.choose(cache=Cache())) == ("step_3.pt", "digest")
    rot(aside := shutil.copy2(path, aside))
    aside.replace(path)
    selection = bench.choose(cache=Cache())
    assert (selection.chosen, len(selection.torn)) == (None, 1)


def test_a_rewritten_checkpoint_is_judged_by_its_structure(bench: Bench) -> None:
    path = bench.save("step_3.pt", 3)
    bench.record(path)
    rot(path, keep_times=False)
    assert chosen(bench.choose()) == ("step_3.pt", "structure")


@pytest.mark.usefixtures("without_crc")
def test_bytes_that_fit_are_proven_where_no_structure_can(bench: Bench) -> None:
    path = bench.save("step_3.pt", 3)
    verification = replace(verify(str(path)), verdict=Verdict.VERIFIED)  # as a save of ours knows what it wrote
    bench.manifests.put(check.build(verification))
    os.utime(path, ns=(1, 1))
    assert chosen(bench.choose(cache=Cache())) == ("step_3.pt", "digest")
    bench.save("step_3.pt", 4)
    selection = bench.choose(cache=Cache())
    assert (selection.chosen, len(selection.unverifiable)) == (None, 1)
    bench.save("any.pt", 4)
    assert len(bench.choose(cache=Cache()).unverifiable) == 2


def test_a_file_that_may_have_caused_a_failure_is_read_again(bench: Bench) -> None:
    path = bench.save("step_3.pt", 3)
    bench.record(path)
    rot(path)
    assert chosen(bench.choose()) == ("step_3.pt", "identity")
    selection = bench.choose(suspect=True)
    assert (selection.chosen, len(selection.torn)) == (None, 1)


def test_without_a_manifest_suspicion_has_the_structure_read_again(bench: Bench) -> None:
    path = bench.save("step_3.pt", 3)
    bench.cache.put(verify(str(path)))
    assert chosen(bench.choose())[1] == "identity"
    assert chosen(bench.choose(suspect=True))[1] == "structure"


def spare_of(bench: Bench, path: Path, name: str) -> Spare:
    manifest = bench.record(path)
    place = bench.state / name
    shutil.copy2(path, place)
    return Spare(str(path), manifest, str(place), "copy")


def test_a_copy_is_taken_where_what_was_copied_is_torn(bench: Bench) -> None:
    path = bench.save("ckpt.pt", 200)
    spare = spare_of(bench, path, "kept")
    assert bench.choose(spares=[spare]).spare is None  # the file itself goes before its copy
    bench.save("ckpt.pt", 300)
    selection = bench.choose(spares=[spare])
    assert (selection.chosen.step if selection.chosen else None, selection.older) == (300, ((spare.copy_path, 200),))
    os.truncate(path, 700)
    selection = bench.choose(spares=[spare], rejections=Rejections(CheckpointCatalogue(bench.state, is_writer=True)))
    assert chosen(selection) == ("kept", "digest")
    assert (selection.spare, len(selection.torn), selection.n_found) == (spare, 1, 2)
    rot(bench.state / "kept")
    assert bench.choose(spares=[spare]).chosen is None


def test_a_checkpoint_only_in_a_mirror_is_taken_last_of_its_step(bench: Bench) -> None:
    path = bench.save("ckpt.pt", 200)
    kept = spare_of(bench, path, "kept")
    mirrored = replace(kept, copy_path="", source="s3://bucket/job/run/200")
    path.unlink()
    assert bench.choose(spares=[mirrored, kept]).spare == kept
    selection = bench.choose(spares=[mirrored])
    assert selection.chosen is not None
    assert (selection.chosen.path, selection.chosen.level, selection.chosen.step, selection.spare) == (str(path), "manifest", 200, mirrored)
    bench.save("ckpt.pt", 100)
    assert bench.choose(spares=[mirrored]).spare == mirrored
    bench.save("ckpt.pt", 201)
    assert bench.choose(spares=[mirrored]).spare is None


def test_a_copy_of_just_what_is_avoided_is_avoided_and_an_older_one_is_not(bench: Bench) -> None:
    path = bench.save("ckpt.pt", 200)
    older = spare_of(bench, path, "kept-200")
    bench.save("ckpt.pt", 300)
    same = spare_of(bench, path, "kept-300")
    selection = bench.choose(spares=[older, same], avoid=[str(path)])
    assert (selection.spare, selection.n_found) == (older, 3)
    assert selection.rejected == ((str(path), select.REJECTED), (same.copy_path, select.REJECTED))
    assert bench.choose(spares=[older, same], avoid=[str(path), older.copy_path]).chosen is None


def test_incomplete_and_dangerous_ones_are_rejected_as_what_they_are(bench: Bench) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(bench.directory / "executed"),)

    torch.save({"step": 9, "bomb": Bomb()}, bench.directory / "step_9.pt")
    rejections = Rejections(CheckpointCatalogue(bench.state, is_writer=True))
    before = everything(bench.directory)
    selection = bench.choose(rejections=rejections)
    assert (selection.chosen, selection.torn, len(selection.dangerous)) == (None, (), 1)
    (candidate,) = find(["*.pt"], str(bench.directory)).candidates
    rejection = rejections.get(candidate.path, candidate.identity)
    assert rejection is not None
    assert (rejection.kind, everything(bench.directory)) == ("dangerous", before)
