"""Everything that is done to a sound checkpoint, one function each, and the verdicts that are right about it.

Each function damages the files of a `SoundCheckpoint`. None for a format means: it does not apply there.
"""

from __future__ import annotations

import os
import pickle
import shutil
from typing import TYPE_CHECKING, Final

import torch

from .sound import FORMATS, STEP, WITHOUT_CHECKSUMS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .sound import SoundCheckpoint

PAGE: Final = 4096


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        """Have pickle call os.system."""
        return os.system, (self.command,)


def truncate(checkpoint: SoundCheckpoint) -> None:
    os.truncate(checkpoint.victim, checkpoint.victim.stat().st_size // 2)


def truncate_one_byte(checkpoint: SoundCheckpoint) -> None:
    os.truncate(checkpoint.victim, checkpoint.victim.stat().st_size - 1)


def empty(checkpoint: SoundCheckpoint) -> None:
    os.truncate(checkpoint.victim, 0)


def all_zeros(checkpoint: SoundCheckpoint) -> None:
    checkpoint.victim.write_bytes(bytes(checkpoint.victim.stat().st_size))


def zero_page(checkpoint: SoundCheckpoint) -> None:
    """Zero two pages: one alone may begin just where a row does, and then it looks like rows that were never used."""
    size = checkpoint.victim.stat().st_size
    middle = size // 2 // PAGE * PAGE
    for offset in (middle, middle + 2 * PAGE):
        if offset == middle or offset + PAGE <= size:
            _write(checkpoint.victim, offset, bytes(min(PAGE, size - offset)))


def zero_tail(checkpoint: SoundCheckpoint) -> None:
    size = checkpoint.victim.stat().st_size
    border = (size - 3 * PAGE // 2) // PAGE * PAGE
    _write(checkpoint.victim, border, bytes(size - border))


def bit_flip(checkpoint: SoundCheckpoint) -> None:
    middle = checkpoint.victim.stat().st_size // 2
    _write(checkpoint.victim, middle, bytes((checkpoint.victim.read_bytes()[middle] ^ 0x04,)))


def junk_behind(checkpoint: SoundCheckpoint) -> None:
    with checkpoint.victim.open("ab") as file:
        file.write(b"junk" * 100)


def junk_before(checkpoint: SoundCheckpoint) -> None:
    checkpoint.victim.write_bytes(b"junk" * 100 + checkpoint.victim.read_bytes())


def other_content(checkpoint: SoundCheckpoint) -> None:
    checkpoint.victim.write_text("404 not found\n")


def not_a_number(checkpoint: SoundCheckpoint) -> None:
    """Put a NaN where the format's own checksums agree with it: that is what a training computed, and no damage."""
    value = torch.load(checkpoint.victim, weights_only=False)
    value["nan"] = torch.tensor([1.0, float("nan"), 2.0])
    torch.save(value, checkpoint.victim, _use_new_zipfile_serialization=checkpoint.victim.read_bytes()[:2] == b"PK")


def fifo(checkpoint: SoundCheckpoint) -> None:
    checkpoint.victim.unlink()
    os.mkfifo(checkpoint.victim)


def symlink_loop(checkpoint: SoundCheckpoint) -> None:
    checkpoint.victim.unlink()
    checkpoint.victim.symlink_to(checkpoint.victim.name)


def missing_shard(checkpoint: SoundCheckpoint) -> None:
    assert checkpoint.shard is not None
    checkpoint.shard.unlink()


def bomb(checkpoint: SoundCheckpoint) -> None:
    assert checkpoint.pickled is not None
    command = Bomb(f"touch {trace_of(checkpoint)}")
    if checkpoint.pickled.name == ".metadata":
        checkpoint.pickled.write_bytes(pickle.dumps(command))
    else:
        torch.save({"global_step": STEP, "evil": command}, checkpoint.pickled)


def wrong_pointer(checkpoint: SoundCheckpoint) -> None:
    assert checkpoint.pointer is not None
    checkpoint.pointer.write_text(checkpoint.pointer.read_text().replace(str(STEP), "999"))


def empty_pointer(checkpoint: SoundCheckpoint) -> None:
    assert checkpoint.pointer is not None
    checkpoint.pointer.write_text("")


def mixed_steps(checkpoint: SoundCheckpoint) -> None:
    """Put one file of another step in."""
    assert checkpoint.shard is not None
    other = checkpoint.path.parent / "other"
    other.mkdir()
    from_other = FORMATS[next(name for name in ("deepspeed", "megatron") if name in str(checkpoint.path))](other, STEP + 100)
    assert from_other.shard is not None
    shutil.copy(from_other.shard, checkpoint.shard)
    shutil.rmtree(other)


def extra_shard(checkpoint: SoundCheckpoint) -> None:
    """Put in a shard of a rank that there was not."""
    assert checkpoint.shard is not None
    if "zero_pp_rank_1" in checkpoint.shard.name:
        shutil.copy(checkpoint.shard, checkpoint.shard.with_name(checkpoint.shard.name.replace("rank_1", "rank_2")))
    else:
        shutil.copytree(checkpoint.shard.parent, checkpoint.shard.parent.with_name("mp_rank_02"))


def trace_of(checkpoint: SoundCheckpoint) -> Path:
    return checkpoint.path.parent / "ran"


def _write(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


_EVERY: Final = tuple(FORMATS)
_PROTECTED: Final = tuple(name for name in FORMATS if name not in WITHOUT_CHECKSUMS)
_PICKLED: Final = tuple(name for name in FORMATS if not name.startswith("safetensors"))
_LARGE: Final = tuple(name for name in FORMATS if name != "hf_trainer")  # whose victim has some pages
TORCH: Final = ("torch_zip", "torch_legacy", "lightning")
_RANKED: Final = ("deepspeed", "megatron")
_SHARDED: Final = ("safetensors_index", "dcp", "hf_trainer", *_RANKED)

BROKEN: Final = frozenset(("bad", "incomplete"))
#: A row: what is done, to which formats, and which verdicts are right.
ROWS: Final = (
    (truncate, _EVERY, BROKEN),
    (truncate_one_byte, _EVERY, BROKEN),
    (empty, _EVERY, BROKEN),
    (all_zeros, _EVERY, BROKEN),
    (zero_page, _EVERY, frozenset(("bad",))),
    (zero_tail, _LARGE, frozenset(("bad",))),
    (bit_flip, _PROTECTED, frozenset(("bad",))),
    (junk_behind, _EVERY, frozenset(("bad",))),
    (junk_before, _EVERY, frozenset(("bad", "unverifiable"))),
    (other_content, _EVERY, frozenset(("bad", "incomplete", "unverifiable"))),
    (fifo, _EVERY, frozenset(("bad", "incomplete", "unverifiable"))),
    (symlink_loop, _EVERY, frozenset(("bad", "incomplete", "unverifiable"))),
    (missing_shard, _SHARDED, BROKEN),
    (bomb, _PICKLED, frozenset(("dangerous",))),
    (wrong_pointer, _RANKED, BROKEN),
    (empty_pointer, _RANKED, BROKEN),
    (mixed_steps, _RANKED, frozenset(("bad",))),
    (extra_shard, _RANKED, frozenset(("bad",))),
)
CASES: Final = tuple((name, damage, right) for damage, formats, right in ROWS for name in formats)
