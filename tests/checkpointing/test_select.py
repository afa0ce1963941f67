"""The newest whole checkpoint is chosen; the torn ones before it are rejected and stay where they are."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch

from checkpointing import candidates, select
from checkpointing.candidates import SelectionOptions
from checkpointing.catalogue import CheckpointCatalogue
from checkpointing.discover import find
from checkpointing.io.read_watch import ReadWatch
from checkpointing.model import Verdict
from checkpointing.rejections import Rejections
from checkpointing.select import Selection, newest
from checkpointing.verification import Cache, verify
from tests.checkpointing.clocks import Clock
from tests.support.damaged_files import tear

if TYPE_CHECKING:
    from pathlib import Path


def save(path: Path, step: int | None, mtime: int | None = None, key: str = "step", **more: int) -> Path:
    torch.save({"w": torch.ones(4), **more} | ({} if step is None else {key: step}), path)
    if mtime is not None:
        os.utime(path, (mtime, mtime))
    return path


def choose(directory: Path, pattern: str = "*.pt", cache: Cache | None = None, **more: Any) -> Selection:  # noqa: ANN401  newest's own
    rejections = Rejections(CheckpointCatalogue(directory / ".state", is_writer=True))
    return newest(find([pattern], str(directory)), SelectionOptions(rejections=rejections, cache=cache or Cache(), **more))


def chosen_name(selection: Selection) -> str:
    assert selection.chosen is not None
    return selection.chosen.path.rpartition("/")[2]


def test_the_highest_step_wins_not_the_latest_file(tmp_path: Path) -> None:
    save(tmp_path / "step_900.pt", 900, mtime=100)
    save(tmp_path / "step_1000.pt", 1000, mtime=50)
    selection = choose(tmp_path)
    assert selection.chosen is not None
    assert (chosen_name(selection), selection.chosen.step, selection.chosen.level) == ("step_1000.pt", 1000, "structure")
    assert (selection.n_found, selection.torn) == (2, ())


def test_torn_ones_are_rejected_and_left_untouched(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path / f"step_{step}.pt", step)
    for step in (2, 3):
        tear(tmp_path / f"step_{step}.pt")
    before = {path.name: (path.stat().st_ino, path.read_bytes()) for path in tmp_path.glob("*.pt")}
    selection = choose(tmp_path)
    assert chosen_name(selection) == "step_1.pt"
    assert [path.rpartition("/")[2] for path, _ in selection.torn] == ["step_3.pt", "step_2.pt"]
    assert all("torn" in reason for _, reason in selection.torn)
    assert selection.n_found == 3
    assert {path.name: (path.stat().st_ino, path.read_bytes()) for path in tmp_path.glob("*.pt")} == before


def test_a_rejected_file_is_not_read_again_until_it_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "step_3.pt", 3)
    tear(path)
    assert choose(tmp_path).chosen is None
    read: list[str] = []
    monkeypatch.setattr(candidates, "verify", lambda path, **more: (read.append(path), verify(path, **more))[1])
    again = choose(tmp_path)
    assert (again.chosen, again.n_found, len(again.torn), read) == (None, 1, 1, [])
    save(path, 3)
    assert chosen_name(choose(tmp_path)) == "step_3.pt"


def test_none_good_any_more_differs_from_none_there(tmp_path: Path) -> None:
    assert choose(tmp_path) == Selection(None, 0)
    path = save(tmp_path / "step_3.pt", 3)
    tear(path)
    selection = choose(tmp_path)
    assert (selection.chosen, selection.n_found) == (None, 1)


def test_content_wins_over_the_name(tmp_path: Path) -> None:
    save(tmp_path / "step_9000.pt", 90, key="global_step")
    save(tmp_path / "step_100.pt", 100)
    save(tmp_path / "step_95.pt", 95)
    assert chosen_name(choose(tmp_path)) == "step_100.pt"
    (tmp_path / "step_100.pt").unlink()
    assert chosen_name(choose(tmp_path)) == "step_95.pt"
    (tmp_path / "step_95.pt").unlink()
    selection = choose(tmp_path)
    assert selection.chosen is not None
    assert (selection.chosen.step, selection.chosen.reason) == (90, "its name says step 9000, its content 90")


@pytest.mark.parametrize(
    ("older", "newer", "step"),
    [
        ("global_step_4999.pt", "global_step_5100.pt", 5100),  # the name says it
        ("epoch_1.pt", "epoch_2.pt", None),
        ("latest-a.pt", "latest-b.pt", None),
        ("ckpt-1.pt", "ckpt-2.pt", None),
        ("epoch_1_step_4999.pt", "epoch_2_step_100.pt", None),
    ],
)
def test_a_step_that_is_the_epochs_own_does_not_make_an_older_checkpoint_the_newest(
    tmp_path: Path, older: str, newer: str, step: int | None
) -> None:
    save(tmp_path / older, 4999, epoch=1, mtime=200)
    save(tmp_path / newer, 100, epoch=2, mtime=100)
    selection = choose(tmp_path)
    assert chosen_name(selection) == newer
    assert selection.chosen is not None
    assert selection.chosen.step == step


def test_the_later_one_of_an_epoch_wins_and_a_count_of_the_whole_run_is_reported(tmp_path: Path) -> None:
    save(tmp_path / "a.pt", 20, epoch=2, mtime=100)
    save(tmp_path / "b.pt", 10, epoch=2, mtime=200)
    assert chosen_name(choose(tmp_path)) == "a.pt"
    save(tmp_path / "epoch=1-step=30.ckpt", 30, key="global_step", epoch=1)
    selection = choose(tmp_path, "*.ckpt")
    assert selection.chosen is not None
    assert selection.chosen.step == 30


def test_a_name_that_says_step_wins_over_a_key_that_may_count_the_epoch(tmp_path: Path) -> None:
    save(tmp_path / "step_300.pt", 7)
    selection = choose(tmp_path)
    assert selection.chosen is not None
    assert (selection.chosen.step, selection.chosen.reason) == (300, "its name says step 300, its content 7")


def test_an_epoch_or_an_index_in_the_name_does_not_decide(tmp_path: Path) -> None:
    save(tmp_path / "ckpt-1.pt", 5000)
    save(tmp_path / "ckpt-9.pt", 4000)
    save(tmp_path / "epoch_7.pt", 4500)
    assert chosen_name(choose(tmp_path)) == "ckpt-1.pt"


def test_files_without_a_step_come_last_newest_first(tmp_path: Path) -> None:
    save(tmp_path / "export.pt", None, mtime=300)
    save(tmp_path / "other.pt", None, mtime=200)
    save(tmp_path / "step_1.pt", 1, mtime=100)
    assert chosen_name(choose(tmp_path)) == "step_1.pt"
    (tmp_path / "step_1.pt").unlink()
    assert chosen_name(choose(tmp_path)) == "export.pt"


def test_a_file_that_is_no_checkpoint_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "config.json").write_text("{}")
    selection = choose(tmp_path, "*")
    assert (selection.chosen, selection.n_found) == (None, 0)
    assert [path.rpartition("/")[2] for path, _ in selection.foreign] == ["config.json", "notes.txt"]


@pytest.mark.usefixtures("without_crc")
def test_an_unverifiable_checkpoint_is_neither_chosen_nor_rejected(tmp_path: Path) -> None:
    save(tmp_path / "step_9.pt", 9)
    torch.serialization.set_crc32_options(True)
    save(tmp_path / "step_3.pt", 3)
    selection = choose(tmp_path)
    assert chosen_name(selection) == "step_3.pt"
    assert [path.rpartition("/")[2] for path, _ in selection.unverifiable] == ["step_9.pt"]
    assert (selection.n_found, selection.torn) == (2, ())


def test_an_unreadable_checkpoint_is_neither_rejected_nor_forgotten(tmp_path: Path) -> None:
    save(tmp_path / "step_3.pt", 3)
    listing = find(["*.pt"], str(tmp_path))
    (tmp_path / "step_3.pt").unlink()
    selection = newest(listing, SelectionOptions(rejections=Rejections(CheckpointCatalogue(tmp_path / ".state", is_writer=True))))
    assert (selection.chosen, selection.n_found, selection.torn) == (None, 1, ())
    assert selection.unknown[0][1] == "it could not be read: No such file or directory"


def test_a_known_file_is_taken_unread_and_read_again_after_a_failure_that_it_may_have_caused(tmp_path: Path) -> None:
    path = save(tmp_path / "step_3.pt", 3)
    cache = Cache()
    cache.put(verify(str(path)))
    # the disk went bad underneath: another content, and the same identity
    st = path.stat()
    content = bytearray(path.read_bytes())
    content[content.index(torch.ones(4).numpy().tobytes()) + 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))
    assert cache.get(str(path), find(["*.pt"], str(tmp_path)).candidates[0].identity) is not None
    taken = choose(tmp_path, cache=cache).chosen
    assert taken is not None
    assert taken.level == "identity"
    selection = choose(tmp_path, cache=cache, suspect=True)
    assert selection.chosen is None
    assert "CRC" in selection.torn[0][1]


def test_an_unverified_checkpoint_is_read_however_long_it_takes(tmp_path: Path) -> None:
    """The newest takes hours of the disk's time. It is no reason to refuse it, nor the older ones that were verified before."""
    cache = Cache()
    for step in (1, 2):
        cache.put(verify(str(save(tmp_path / f"step_{step}.pt", step))))
    newest_of_all = save(tmp_path / "step_3.pt", 3)
    slow = Clock()
    watch = ReadWatch(clock=lambda: 10_000 * slow())
    selection = choose(tmp_path, cache=cache, watch=watch)
    assert (chosen_name(selection), selection.older) == ("step_3.pt", tuple((str(tmp_path / f"step_{step}.pt"), step) for step in (1, 2)))
    newest_of_all.unlink()
    assert chosen_name(choose(tmp_path, cache=cache, watch=watch)) == "step_2.pt"


def test_an_interrupted_selection_reads_no_further(tmp_path: Path) -> None:
    save(tmp_path / "step_3.pt", 3)
    selection = choose(tmp_path, interrupted=lambda: True)
    assert (selection.chosen, selection.n_found) == (None, 1)
    assert selection.unknown[0][1] == "not read to the end: nobody waits for it any more"


def test_a_verdict_is_cached_by_identity(tmp_path: Path) -> None:
    path = save(tmp_path / "ckpt.pt", 3)
    cache = Cache()
    cache.put(verify(str(path)))
    cache.put(verify(str(path), bulk=False))  # says less, so it does not replace the other
    identity = find(["*.pt"], str(tmp_path)).candidates[0].identity
    known = cache.get(str(path), identity)
    assert known is not None
    assert known.level == "structure"
    save(path, 4)
    assert cache.get(str(path), find(["*.pt"], str(tmp_path)).candidates[0].identity) is None
    gone = verify(str(tmp_path / "gone.pt"))
    cache.put(gone)
    assert (gone.verdict, cache.get(gone.path, gone.identity)) == (Verdict.UNKNOWN, None)


def test_a_poisoned_one_is_passed_over_unread_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2, 3):
        save(tmp_path / f"step_{step}.pt", step)
    read: list[str] = []
    monkeypatch.setattr(candidates, "verify", lambda path, **more: (read.append(path), verify(path, **more))[1])
    avoid = [str(tmp_path / "step_3.pt"), str(tmp_path / "elsewhere.pt")]
    selection = choose(tmp_path, avoid=avoid)
    assert chosen_name(selection) == "step_2.pt"
    assert selection.rejected == ((avoid[0], select.REJECTED),)
    assert select.REJECTED.startswith("rejected: ")
    assert (selection.n_found, selection.torn) == (3, ())
    assert avoid[0] not in read


def test_where_all_are_poisoned_there_is_something_and_nothing_is_chosen(tmp_path: Path) -> None:
    path = save(tmp_path / "step_3.pt", 3)
    selection = choose(tmp_path, avoid=[str(path)])
    assert (selection.chosen, selection.n_found) == (None, 1)


def test_the_older_checkpoints_behind_the_chosen_one_are_reported(tmp_path: Path) -> None:
    for step in range(1, select.MOST_OLDER + 5):
        save(tmp_path / f"step_{step}.pt", step)
    selection = choose(tmp_path)
    assert chosen_name(selection) == f"step_{select.MOST_OLDER + 4}.pt"
    assert [step for _, step in selection.older] == list(range(4, select.MOST_OLDER + 4))
    assert selection.older[-1][0] == str(tmp_path / f"step_{select.MOST_OLDER + 3}.pt")


def weights(path: Path, step: int, *, weight: float = 1.0, bias: float = 1.0) -> Path:
    numbers = {"weight": torch.tensor([0.5, weight, 2.0]), "bias": torch.tensor([0.5, bias, 2.0])}
    torch.save({"model": numbers, "optimizer": {"exp_avg": torch.tensor([0.5, float("nan"), 2.0])}, "step": step}, path)
    return path


NAN = float("nan")


def test_a_checkpoint_with_nan_weights_gives_way_to_the_newest_finite_one(tmp_path: Path) -> None:
    for step, weight in ((100, 1.0), (150, 3.0), (200, NAN), (250, NAN)):
        weights(tmp_path / f"step_{step}.pt", step, weight=weight)
    selection = choose(tmp_path)
    assert (chosen_name(selection), selection.n_found, selection.torn) == ("step_150.pt", 4, ())
    assert [path.rpartition("/")[2] for path, _ in selection.not_finite] == ["step_250.pt", "step_200.pt"]
    assert "model.weight is not finite: NaN at element 1" in selection.not_finite[0][1]
    assert "step 150 is taken instead" in selection.not_finite[0][1]
    assert [step for _, step in selection.older] == [100]
    assert chosen_name(choose(tmp_path, prefer_finite=False)) == "step_250.pt", "who resumes by itself takes the newest"


def test_weights_that_are_nan_in_all_of_them_lead_to_the_newest(tmp_path: Path) -> None:
    for step in (100, 150, 200):
        weights(tmp_path / f"step_{step}.pt", step, bias=NAN)
    selection = choose(tmp_path)
    assert (chosen_name(selection), selection.n_found, selection.not_finite) == ("step_200.pt", 3, ())
    assert [step for _, step in selection.older] == [100, 150]
    weights(tmp_path / "step_250.pt", 250, weight=NAN, bias=NAN)
    assert chosen_name(choose(tmp_path)) == "step_200.pt", "its bias was never finite, its weight was"


def test_an_optimizer_or_a_mask_that_is_not_finite_changes_nothing(tmp_path: Path) -> None:
    weights(tmp_path / "step_100.pt", 100)
    mask = torch.tensor([1.0, 2.0, -float("inf")])
    torch.save({"model": {"alibi": mask}, "best_loss": torch.tensor(NAN), "step": 200}, tmp_path / "step_200.pt")
    selection = choose(tmp_path)
    assert (chosen_name(selection), selection.not_finite) == ("step_200.pt", ())
    assert selection.chosen is not None
    assert "model.alibi is not finite: Inf at element 2" in selection.chosen.reason


@pytest.mark.parametrize("name", ["step_5.npz", "step_5.pkl", "state.json"])
def test_a_file_of_no_known_format_counts_where_a_declared_pattern_gives_its_suffix(tmp_path: Path, name: str) -> None:
    """Else the next attempt would begin from scratch, and write over it."""
    (tmp_path / name).write_bytes(b"numbers of a format that nothing here knows")

    def counts(pattern: str, *, declared: bool) -> tuple[int, int]:
        selection = newest(find(pattern, str(tmp_path), declared=declared))
        return selection.n_found, len(selection.unverifiable)

    assert counts(f"*{os.path.splitext(name)[1]}", declared=True) == (1, 1)  # noqa: PTH122  text
    assert counts("*", declared=True) == (0, 0)  # other files may lie there
    assert counts(f"*{os.path.splitext(name)[1]}", declared=False) == (0, 0)  # noqa: PTH122  as above


@pytest.mark.usefixtures("without_crc")
def test_newer_candidates_that_may_be_whole_are_named_and_older_and_torn_ones_are_not(tmp_path: Path) -> None:
    save(tmp_path / "step_9.pt", 9)
    save(tmp_path / "step_2.pt", 2)
    save(tmp_path / "beside_step_3.pt", 3)
    torch.serialization.set_crc32_options(True)
    save(tmp_path / "step_3.pt", 3)
    os.utime(tmp_path / "beside_step_3.pt", (1, 1))
    tear(save(tmp_path / "step_7.pt", 7))
    os.symlink("step_8.pt", tmp_path / "step_8.pt")  # noqa: PTH211  a link to itself
    selection = choose(tmp_path)
    assert chosen_name(selection) == "step_3.pt"
    assert [path.rpartition("/")[2] for path, _ in selection.passed_over] == ["step_9.pt", "step_8.pt"]
    for name in ("step_3.pt", "step_8.pt"):
        (tmp_path / name).unlink()
    assert choose(tmp_path).passed_over == ()
