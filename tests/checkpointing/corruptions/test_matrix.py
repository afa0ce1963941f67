"""Every corruption of every format: none is called good, none is executed, none hangs; and what is sound is never called anything else."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest
import torch

from checkpointing import examine
from tests.support import preloaded

from .damage import CASES, TORCH, not_a_number, trace_of
from .sound import FORMATS, STEP

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from .sound import SoundCheckpoint

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, SoundCheckpoint]]:
    """One sound checkpoint of each format, with the directory that holds nothing else."""
    homes = {name: tmp_path_factory.mktemp("sound") for name in FORMATS}
    return {name: (homes[name], make(homes[name])) for name, make in FORMATS.items()}


def copy_of(name: str, originals: dict[str, tuple[Path, SoundCheckpoint]], place: Path) -> SoundCheckpoint:
    """Give a copy that may be damaged."""
    home, original = originals[name]
    root = place / name
    shutil.copytree(home, root)
    moved = {
        field: None if (path := getattr(original, field)) is None else root / path.relative_to(home)
        for field in ("path", "victim", "pickled", "shard", "pointer")
    }
    return type(original)(**moved)


def words(path: Path) -> list[str]:
    return [examine.word(verification.verdict) for verification in examine.look(str(path))]


def contents(root: Path) -> list[tuple[str, int, str]]:
    return sorted(
        (str(path), path.stat().st_ino, hashlib.sha256(path.read_bytes()).hexdigest()) for path in root.rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("name", FORMATS)
def test_a_sound_one_is_good(name: str, tmp_path: Path) -> None:
    checkpoint = FORMATS[name](tmp_path)
    before = contents(tmp_path)
    (verification,) = examine.look(str(checkpoint.path))
    assert (examine.word(verification.verdict), verification.format, verification.reasons) == ("good", name, ())
    assert verification.step == STEP
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("name", "damage", "right"), CASES, ids=[f"{damage.__name__}-{name}" for name, damage, _ in CASES])
def test_a_damaged_one_is_not(
    name: str,
    damage: Callable[[SoundCheckpoint], None],
    right: frozenset[str],
    originals: dict[str, tuple[Path, SoundCheckpoint]],
    tmp_path: Path,
) -> None:
    checkpoint = copy_of(name, originals, tmp_path)
    assert words(checkpoint.path) == ["good"]
    damage(checkpoint)
    verdicts = words(checkpoint.path)
    assert set(verdicts) <= right, list(examine.look(str(checkpoint.path)))
    assert not trace_of(checkpoint).exists()


@pytest.mark.parametrize("name", TORCH)
def test_a_checkpoint_with_nan_is_good_with_a_note(name: str, originals: dict[str, tuple[Path, SoundCheckpoint]], tmp_path: Path) -> None:
    checkpoint = copy_of(name, originals, tmp_path)
    not_a_number(checkpoint)
    (verification,) = examine.look(str(checkpoint.path))
    assert examine.word(verification.verdict) == "good"
    assert [why for why in verification.reasons if why.endswith("nan is not finite: NaN at element 1")], verification.reasons
    assert [finding.what for finding in verification.non_finite or ()] == ["NaN"]


@pytest.mark.parametrize("name", ["torch_zip", "lightning", "hf_trainer", "deepspeed", "megatron"])
def test_a_checkpoint_saved_without_crcs_is_unverifiable(name: str, tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        checkpoint = FORMATS[name](tmp_path)
    finally:
        torch.serialization.set_crc32_options(True)
    assert words(checkpoint.path) == ["unverifiable"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_stale_temporary_file_beside_is_a_row_of_its_own(name: str, tmp_path: Path) -> None:
    checkpoint = FORMATS[name](tmp_path)
    if checkpoint.path.is_dir():
        pytest.skip("not for this format: it is a directory, and its temporary files are of another form")
    checkpoint.path.with_name(checkpoint.path.name + ".tmp").write_bytes(checkpoint.path.read_bytes()[:1000])
    assert words(tmp_path) == ["good", "incomplete"]


@pytest.mark.process
def test_the_command_prints_one_object_for_each(tmp_path: Path) -> None:
    paths = []
    for name, make in FORMATS.items():
        (tmp_path / name).mkdir()
        paths.append(make(tmp_path / name).path)
    torn = tmp_path / "torn.pt"
    torn.write_bytes((tmp_path / "torch_zip" / f"step_{STEP}.pt").read_bytes()[:-100])

    def run(*arguments: object) -> subprocess.CompletedProcess[bytes]:
        return preloaded.command("checkpoints", *map(str, arguments), cwd=tmp_path, environ=dict(os.environ))

    sound = run("verify", "--json", *paths)
    assert sound.returncode == 0, sound
    rows = [json.loads(line) for line in sound.stdout.splitlines()]
    assert rows == [
        {"path": str(path), "format": name, "step": STEP, "verdict": "good", "reasons": []}
        for path, name in zip(paths, FORMATS, strict=True)
    ]
    mixed = run("verify", "--json", paths[0], torn)
    assert mixed.returncode == 1
    assert [json.loads(line)["verdict"] for line in mixed.stdout.splitlines()] == ["good", "bad"]
    assert b"torn" in run("verify", torn).stdout
    newest = tmp_path / "torch_zip" / f"step_{STEP + 1}.pt"
    newest.write_bytes(torn.read_bytes())
    latest = run("latest", "--json", tmp_path / "torch_zip")
    row = json.loads(latest.stdout)
    assert (latest.returncode, row["path"], row["step"]) == (0, str(paths[0]), STEP)
    assert [(older["path"], older["verdict"]) for older in row["passed_over"]] == [(str(newest), "bad")]
    assert run("latest", "--json", torn).returncode == 1
