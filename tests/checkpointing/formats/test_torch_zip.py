"""A whole file is never called bad, a damaged one never verified, and no pickle runs."""

from __future__ import annotations

import errno
import io
import os
import pickle
import struct
import time
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpointing.formats.pickles import facts
from checkpointing.manifest import check
from checkpointing.model import Verdict
from checkpointing.verification import verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FIXTURES_ARE_CONSTANT = settings(suppress_health_check=[*settings.default.suppress_health_check, HealthCheck.function_scoped_fixture])


def verdict_of(path: Path, content: bytes) -> tuple[Verdict, str]:
    path.write_bytes(content)
    verification = verify(str(path))
    return verification.verdict, verification.reason


def edit_zip(sound: bytes, change: Callable[[dict[str, bytes]], None], **options: Any) -> bytes:  # noqa: ANN401 -- ZipFile's
    """Repack a checkpoint with other records; every CRC is right."""
    with zipfile.ZipFile(io.BytesIO(sound)) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    change(records)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **options) as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return out.getvalue()


def nothing(_: dict[str, bytes]) -> None:
    pass


def test_every_object_saved_by_torch_is_verified(sound_object: object, tmp_path: Path) -> None:
    path = tmp_path / "any.pt"
    torch.save(sound_object, path)
    verification = verify(str(path))
    assert (verification.verdict, verification.reason, verification.level) == (Verdict.VERIFIED, "", "structure")


class Refuses:
    """An object that cannot be pickled, as a lock or a generator that a script put into its state."""

    def __reduce__(self) -> tuple[object, ...]:  # noqa: D105 (its class says it)
        raise RuntimeError("this cannot be pickled")


class FullDisk(io.FileIO):
    """A file on a disk that takes `left` bytes more."""

    left = 0

    def write(self, data: Any) -> int:  # noqa: ANN401, D102 -- io's
        taken = min(self.left, len(data))
        super().write(bytes(data)[:taken])
        self.left -= taken
        if taken < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return taken


@pytest.mark.parametrize("first", ["refused", "a large tensor, and then refused"])
def test_a_save_that_raised_left_a_torn_file_though_it_is_a_whole_zip(tmp_path: Path, first: str) -> None:
    state = {"w": torch.ones(100_000), "last": Refuses()} if first != "refused" else {"first": Refuses()}
    path = tmp_path / "ckpt.pt"
    with pytest.raises(RuntimeError):
        torch.save(state, path)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    verification = verify(str(path))
    assert (verification.verdict, verification.reason[:5]) == (Verdict.BAD, "torn:")
    renamed = path.rename(tmp_path / "pytorch_model.bin")
    assert verify(str(renamed)).verdict is Verdict.BAD


@pytest.mark.parametrize("left", [0, 1, 30, 70, 100, 2000, 50_000])
def test_a_save_for_which_the_disk_was_full_left_a_torn_file(tmp_path: Path, left: int) -> None:
    path = tmp_path / "ckpt.pt"
    with FullDisk(path, "w") as file:
        file.left = left
        with pytest.raises((OSError, RuntimeError)):
            torch.save({"step": 1, "w": torch.ones(100_000)}, file)
    assert verify(str(path)).verdict is Verdict.BAD


@pytest.mark.parametrize(
    ("name", "right"), [("ckpt.pt", Verdict.BAD), ("m.ckpt", Verdict.BAD), ("model.bin", Verdict.BAD), ("data.zip", Verdict.FOREIGN)]
)
def test_an_empty_zip_is_torn_where_its_name_is_a_checkpoint_s(tmp_path: Path, name: str, right: Verdict) -> None:
    with zipfile.ZipFile(tmp_path / name, "w"):
        pass
    assert verify(str(tmp_path / name)).verdict is right


def archived(**members: bytes) -> bytes:
    """Return an archive as stable-baselines3 saves one: files of torch.save, as they are, beside others."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("data", '{"policy_class": {}}')
        for name, content in members.items():
            archive.writestr(f"{name}.pth", content)
    return out.getvalue()


def saved(content: object) -> bytes:
    out = io.BytesIO()
    torch.save(content, out)
    return out.getvalue()


def test_an_archive_of_files_of_torch_is_whole_where_each_of_them_is(tmp_path: Path) -> None:
    path, part = tmp_path / "model_300_steps.zip", saved({"w": torch.ones(500)})
    sound = archived(policy=part, optimizer=saved({"state": torch.tensor([1.0, float("nan")])}))
    path.write_bytes(sound)
    verification = verify(str(path))
    assert (verification.verdict, verification.reason) == (Verdict.VERIFIED, "state is not finite: NaN at element 1")
    assert (verification.step, verification.level, len(verification.non_finite)) == (300, "structure", 1)
    flipped = bytearray(sound)
    flipped[sound.index(part) + len(part) // 2] ^= 1
    verdict, reason = verdict_of(path, bytes(flipped))
    assert (verdict, reason.partition(":")[0]) == (Verdict.BAD, "policy.pth")
    other = bytearray(sound)
    other[sound.index(b"policy_class")] ^= 1
    assert verdict_of(path, bytes(other))[0] is Verdict.BAD
    assert verdict_of(path, archived(policy=part[:-100]))[0] is Verdict.BAD
    assert verdict_of(path, archived(policy=b"no zip"))[0] is Verdict.FOREIGN
    assert verdict_of(path, archived(policy=archived(policy=part)))[0] is Verdict.FOREIGN  # one level is enough


def test_an_archive_with_a_member_that_would_run_code_is_dangerous(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, ("true",)

    verdict, reason = verdict_of(tmp_path / "model.zip", archived(policy=saved({}), optimizer=saved(Evil())))
    assert verdict is Verdict.DANGEROUS
    assert "optimizer.pth" in reason


@pytest.mark.usefixtures("without_crc")
def test_a_file_saved_without_crcs_is_unverifiable_not_bad(sound_object: object, tmp_path: Path) -> None:
    path = tmp_path / "any.pt"
    torch.save(sound_object, path)
    verification = verify(str(path))
    assert verification.verdict is Verdict.UNVERIFIABLE
    assert "without CRCs" in verification.reason


@pytest.mark.usefixtures("without_crc")
def test_a_file_without_crcs_can_still_be_torn(tmp_path: Path) -> None:
    path = tmp_path / "any.pt"
    torch.save({"step": 3}, path)
    assert verdict_of(path, path.read_bytes()[:-1])[0] is Verdict.BAD


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_step_of_each_pickle_protocol(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"epoch": 3, "step": 70000, "w": torch.ones(2)}, path, pickle_protocol=protocol)
    assert verify(str(path)).within == (3, 70000)
    torch.save({"epoch": 3, "step": 7, "global_step": 70000, "w": torch.ones(2)}, path, pickle_protocol=protocol)
    assert verify(str(path)).step == 70000


@pytest.mark.parametrize("key", facts.EPOCH_KEYS)
def test_a_checkpoint_without_a_step_has_the_epoch_that_its_script_counts(key: str, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pt"
    torch.save({"model_state": torch.ones(2), key: 4}, path)
    verification = verify(str(path))
    assert (verification.step, verification.within, verification.epoch) == (None, None, 4)
    manifest = check.build(verification)
    assert check.check(str(path), manifest).epoch == 4  # as it is known once the checkpoint was recorded
    torch.save({"model_state": torch.ones(2), key: 4, "step": 9}, path)
    verification = verify(str(path))
    assert (verification.step, verification.within, verification.epoch) == (None, (4, 9), None)


def test_every_truncation_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "t.pt"
    torch.save({"step": 120, "w": torch.ones(40), "b": torch.arange(9)}, path)
    for length in range(path.stat().st_size - 1, -1, -1):
        os.truncate(path, length)
        verification = verify(str(path))
        assert verification.verdict is Verdict.BAD, (length, verification)


@pytest.mark.parametrize("size", [1, 100, 4096])
@pytest.mark.parametrize("junk", [b"\0", b"\xff", b"PK\x05\x06"])
def test_bytes_before_or_after_are_bad(sound: bytes, tmp_path: Path, junk: bytes, size: int) -> None:
    path = tmp_path / "t.pt"
    assert verdict_of(path, sound + junk * size)[0] is Verdict.BAD
    assert verdict_of(path, junk * size + sound)[0] is Verdict.BAD


def harmless_offsets(content: bytes) -> set[int]:
    """What no reader looks at: times, versions and attributes in the headers, and the padding in front of the data."""
    offsets: set[int] = set()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for info in archive.infolist():
            at = info.header_offset
            name_len, extra_len = struct.unpack_from("<2H", content, at + 26)
            extra = range(at + 30 + name_len, at + 30 + name_len + extra_len)
            offsets |= {*range(at + 4, at + 6), *range(at + 10, at + 14), *extra}
            # where a data descriptor follows, the header's own CRC and sizes are void
            offsets |= set(range(at + 14, at + 26)) if info.flag_bits & 8 else set()
        at = archive.start_dir
        for _ in archive.infolist():
            name_len, extra_len, comment_len = struct.unpack_from("<3H", content, at + 28)
            offsets |= {*range(at + 4, at + 8), *range(at + 12, at + 16), *range(at + 36, at + 38), *range(at + 39, at + 42)}
            at += 46 + name_len + extra_len + comment_len
        end64 = content.rfind(b"PK\x06\x06")
        offsets |= set(range(end64 + 12, end64 + 16)) if end64 >= at else set()
    return offsets


@pytest.mark.slow
def test_every_flipped_byte_that_anybody_reads_is_seen(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.pt"
    harmless = harmless_offsets(sound)
    path.write_bytes(sound)
    seen = 0
    with path.open("r+b", buffering=0) as file:
        for offset in range(len(sound)):
            if offset in harmless:
                continue
            os.pwrite(file.fileno(), bytes([sound[offset] ^ 0x10]), offset)
            verification = verify(str(path))
            os.pwrite(file.fileno(), sound[offset : offset + 1], offset)
            assert verification.verdict not in (Verdict.VERIFIED, Verdict.WRITING), (offset, verification)
            seen += 1
    assert seen > len(sound) // 2


@FIXTURES_ARE_CONSTANT
@given(data=st.data())
def test_damage_of_any_kind_is_never_verified(sound: bytes, tmp_path: Path, data: st.DataObject) -> None:
    """A zeroed or overwritten stretch within the records' data, a stretch cut out, two stretches swapped."""
    with zipfile.ZipFile(io.BytesIO(sound)) as archive:
        info = data.draw(st.sampled_from([member for member in archive.infolist() if member.file_size > 8]))
    begin = info.header_offset + 30 + sum(struct.unpack_from("<2H", sound, info.header_offset + 26))
    low = data.draw(st.integers(begin, begin + info.file_size - 2))
    high = data.draw(st.integers(low + 1, begin + info.file_size))
    filler = data.draw(st.one_of(st.just(b""), st.binary(min_size=high - low, max_size=high - low), st.just(bytes(high - low))))
    damaged = sound[:low] + filler + sound[high:]
    verdict, reason = verdict_of(tmp_path / "t.pt", damaged)
    assert verdict is (Verdict.VERIFIED if damaged == sound else Verdict.BAD), reason


def equal(left: object, right: object) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, dict):
        return isinstance(right, dict) and left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return isinstance(right, (list, tuple)) and len(left) == len(right) and all(map(equal, left, right))
    return left == right


def test_a_record_that_torch_would_take_for_a_directory_is_bad(sound: bytes, tmp_path: Path) -> None:
    """One flipped bit of the attributes, no CRC touched: torch.load succeeds and gives memory that was never written."""
    with zipfile.ZipFile(io.BytesIO(sound)) as archive:
        entry = sound.index(b"PK\x01\x02", archive.start_dir + 1)
    flipped = sound[: entry + 38] + bytes([sound[entry + 38] ^ 0x10]) + sound[entry + 39 :]
    assert verdict_of(tmp_path / "t.pt", flipped) == (Verdict.BAD, "record sound/.format_version is marked as a directory")


@FIXTURES_ARE_CONSTANT
@given(data=st.data())
def test_a_file_verified_after_bit_flips_loads_as_it_was_saved(sound: bytes, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(sound)
    # half of them among the headers at the end, where a flip may be harmless
    places = st.one_of(st.integers(0, len(sound) - 1), st.integers(len(sound) - 1700, len(sound) - 1))
    for offset, bit in data.draw(st.lists(st.tuples(places, st.integers(0, 7)), min_size=1, max_size=3)):
        content[offset] ^= 1 << bit
    path = tmp_path / "t.pt"
    if verdict_of(path, bytes(content))[0] is Verdict.VERIFIED:
        assert equal(torch.load(io.BytesIO(sound)), torch.load(path))


@pytest.mark.slow
def test_each_single_bit_outside_the_data_is_seen_or_harmless_to_torch(tmp_path: Path) -> None:
    path = tmp_path / "t.pt"
    saved = {"w": torch.arange(3), "step": 7}
    torch.save(saved, path)
    content = path.read_bytes()
    harmless = 0
    for offset in range(len(content)):
        for bit in range(8):
            flipped = content[:offset] + bytes([content[offset] ^ 1 << bit]) + content[offset + 1 :]
            if verdict_of(path, flipped)[0] is Verdict.VERIFIED:
                harmless += 1
                assert equal(torch.load(path), saved), (offset, bit)
    assert harmless > 100


@FIXTURES_ARE_CONSTANT
@given(content=st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda tail: b"PK\x03\x04" + tail)))
def test_arbitrary_bytes_are_never_verified_and_never_raise(tmp_path: Path, content: bytes) -> None:
    assert verdict_of(tmp_path / "t.pt", content)[0] is not Verdict.VERIFIED


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda records: records.pop("sound/data.pkl"), "record data.pkl is missing"),
        (lambda records: records.pop("sound/version"), "record version is missing"),
        (lambda records: records.pop("sound/data/1"), "record data/1 is missing"),
        (lambda records: records.update({"sound/data/1": b"x"}), "record data/1 has 1 of 32 bytes"),
        (
            lambda records: records.update({"sound/data.pkl": records["sound/data.pkl"][:-1]}),
            "data.pkl is not a whole pickle: it has no end",
        ),
        (lambda records: records.update({"sound/data.pkl": b"\x80\x02u."}), "data.pkl is not a whole pickle"),
    ],
)
def test_an_edit_with_correct_crcs_is_still_bad(
    sound: bytes, tmp_path: Path, change: Callable[[dict[str, bytes]], None], reason: str
) -> None:
    verdict, why = verdict_of(tmp_path / "t.pt", edit_zip(sound, change))
    assert verdict is Verdict.BAD
    assert reason in why


@pytest.mark.parametrize("options", [{}, {"compression": zipfile.ZIP_DEFLATED}])
def test_a_checkpoint_that_was_repacked_is_verified(sound: bytes, tmp_path: Path, options: dict[str, int]) -> None:
    assert verdict_of(tmp_path / "t.pt", edit_zip(sound, nothing, **options)) == (Verdict.VERIFIED, "")


def test_a_flip_in_a_compressed_record_is_bad(sound: bytes, tmp_path: Path) -> None:
    content = bytearray(edit_zip(sound, nothing, compression=zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        info = max(archive.infolist(), key=lambda member: member.compress_size)
    content[info.header_offset + 30 + len(info.filename) + info.compress_size // 2] ^= 1
    assert verdict_of(tmp_path / "t.pt", bytes(content))[0] is Verdict.BAD


def test_other_compression_is_unverifiable(sound: bytes, tmp_path: Path) -> None:
    assert verdict_of(tmp_path / "t.pt", edit_zip(sound, nothing, compression=zipfile.ZIP_LZMA))[0] is Verdict.UNVERIFIABLE


def test_one_record_with_a_crc_of_zero_among_others_is_bad(sound: bytes, tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(sound)) as archive:
        crc = struct.pack("<L", archive.getinfo("sound/data/0").CRC)
    assert sound.count(crc) == 2  # the descriptor's and the directory's
    assert verdict_of(tmp_path / "t.pt", sound.replace(crc, bytes(4)))[0] is Verdict.BAD


def as_zip64(sound: bytes) -> bytes:
    """Give the end of a checkpoint the form that files beyond 4 GiB have: as torch wrote one of 4.4 GB, field by field."""
    *_, count, size, offset, _ = struct.unpack("<4s4H2LH", sound[-22:])
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 0x31E, 45, 0, 0, count, count, size, offset)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, offset + size, 1)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, size, 0xFFFFFFFF, 0)
    return sound[: offset + size] + end64 + locator + end


def as_zip32(sound: bytes) -> bytes:
    """Give the end of a checkpoint its short form: torch writes one or the other."""
    return sound[: sum(struct.unpack("<2L", sound[-10:-2]))] + sound[-22:]


def test_zip64_end_is_read_and_its_damage_seen(sound: bytes, tmp_path: Path) -> None:
    path, content = tmp_path / "t.pt", as_zip64(sound)
    assert zipfile.ZipFile(io.BytesIO(content)).testzip() is None
    assert verdict_of(path, as_zip32(sound)) == (Verdict.VERIFIED, "")
    assert verdict_of(path, content) == (Verdict.VERIFIED, "")
    harmless = harmless_offsets(content)
    for at in sorted(set(range(len(content) - 98, len(content))) - harmless):
        flipped = content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :]
        assert verdict_of(path, flipped)[0] is not Verdict.VERIFIED, at


def test_zip64_records_are_read(sound: bytes, tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(sound)) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    path = tmp_path / "t.pt"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in records.items():
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(content)
    assert verify(str(path)).verdict is Verdict.VERIFIED


@pytest.mark.parametrize(
    ("content", "suffix", "verdict"),
    [
        (pickle.dumps({"step": 3}), ".pt", Verdict.UNVERIFIABLE),
        (pickle.dumps({"step": 3}), ".pkl", Verdict.FOREIGN),
        (struct.pack("<Q", 2) + b"{}", ".safetensors", Verdict.VERIFIED),
        (b"step 3\n", ".txt", Verdict.FOREIGN),
        (b"step 3\n", ".pt", Verdict.UNVERIFIABLE),
        (b"", ".pt", Verdict.BAD),
        (b"", "", Verdict.FOREIGN),
        (bytes(100_000), ".ckpt", Verdict.BAD),
        (b"P", ".pth", Verdict.BAD),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, suffix: str, verdict: Verdict) -> None:
    assert verdict_of(tmp_path / f"x{suffix}", content)[0] is verdict


def test_other_zips_are_no_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    for names in (("a/b.txt",), ("x/data.pkl", "x/constants.pkl", "x/version", "x/code/__torch__.py")):  # the second: TorchScript
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, "x")
        assert verify(str(path)).verdict is Verdict.FOREIGN


@dataclass(frozen=True)
class Planted:
    """Runs a command when it is unpickled."""

    command: str

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        """Have pickle call os.system."""
        return os.system, (self.command,)


def test_code_planted_in_a_pickle_never_runs(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    path = tmp_path / "x.pt"
    torch.save({"step": 41, "evil": Planted(f"touch {trace}")}, path)
    verification = verify(str(path))
    assert (verification.verdict, verification.step) == (Verdict.DANGEROUS, 41)
    assert "posix.system" in verification.reason
    assert not trace.exists()
    torch.load(path, weights_only=False)
    assert trace.exists()  # the plant is alive


@pytest.mark.slow
def test_many_objects_are_scanned_in_bounded_time(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"step": 3, "list": [[] for _ in range(3_200_000)]}, path)
    begun = time.process_time()
    verification = verify(str(path))
    assert (verification.verdict, verification.step) == (Verdict.UNVERIFIABLE, None)
    assert "too many objects" in verification.reason
    assert time.process_time() - begun < 30  # about 3
