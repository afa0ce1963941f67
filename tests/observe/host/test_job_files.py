"""What this run wrote on a full disk, and which damaged file of a cache it was."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from supervisor.core.model import Cause, Claim, Evidence
from supervisor.observe.host.job_files import Begun, of_caches, on_full_disk

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
FIRST, SECOND = 1_000.0, 2_000.0
BEGUN = (Begun(1, FIRST), Begun(2, SECOND))
FULL = Evidence("error_file", "disk_full.enospc", "OSError: [Errno 28] No space left on device", 0, claim=Claim(Cause.DISK_FULL, 0.97))


def write(path: Path, mib: float, t: float) -> str:
    """Make a file that was last written at `t`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * int(mib * MIB))
    os.utime(path, (t, t))
    return str(path)


def fields(place: Path, *facts: Evidence) -> dict[str, str]:
    (fact,) = on_full_disk(facts or (FULL,), [str(place)], BEGUN, str(place))
    return dict(fact.fields)


def test_the_largest_files_of_this_run_are_named_with_their_sizes(tmp_path: Path) -> None:
    write(tmp_path / "old.pt", 5, FIRST - 100)
    small, large = write(tmp_path / "a.pt", 1, FIRST + 1), write(tmp_path / "b.pt", 2, SECOND + 1)
    values = fields(tmp_path)
    assert values["job_files"] == f"{large} (2 MiB), {small} (1 MiB)"
    assert (values["path"], values["largest_bytes"]) == (str(tmp_path), str(2 * MIB))
    assert "leftovers" not in values


@pytest.mark.parametrize("name", ["stage/20/model.pt", ".tmp-20/model.pt", "step-20.pt.partial", "tmp_20.pt", "step-20-unfinished/x.pt"])
def test_an_unfinished_file_of_an_earlier_attempt_is_a_leftover(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, 2, FIRST + 1)
    write(tmp_path / "step-10.pt", 1, FIRST + 1)
    values = fields(tmp_path)
    assert values["leftover_bytes"] == str(2 * MIB)
    assert values["leftovers"].startswith(str(tmp_path / name.partition("/")[0]))


@pytest.mark.parametrize(("name", "t"), [("stage/20/model.pt", SECOND + 1), ("step-20.pt", FIRST + 1), ("template/step-20.pt", FIRST + 1)])
def test_a_file_being_written_or_finished_is_no_leftover(tmp_path: Path, name: str, t: float) -> None:
    write(tmp_path / name, 2, t)
    assert "leftovers" not in fields(tmp_path)


def test_names_that_saves_have_until_they_are_renamed_are_leftovers_whatever_they_are(tmp_path: Path) -> None:
    write(tmp_path / "writing-20.pt", 2, FIRST + 1)
    (fact,) = on_full_disk([FULL], [str(tmp_path)], BEGUN, str(tmp_path), frozenset({f"{tmp_path}/writing-[0-9]*.pt"}))
    assert dict(fact.fields)["leftovers"] == f"{tmp_path}/writing-20.pt (2 MiB)"


def test_only_a_full_disk_is_looked_through(tmp_path: Path) -> None:
    write(tmp_path / "a.pt", 1, FIRST + 1)
    other = Evidence("error_file", "io_error.eio", "OSError: [Errno 5] Input/output error", 0, claim=Claim(Cause.IO_ERROR, 0.95))
    assert on_full_disk([other], [str(tmp_path)], BEGUN, str(tmp_path)) == ()
    assert on_full_disk([FULL], [str(tmp_path / "not" / "there")], (), str(tmp_path)) == ()


def test_the_attempt_that_wrote_a_caches_damaged_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / ".cache/torch_extensions/x/x.so", 0.001, FIRST + 1)
    raised = Evidence("error_file", "exception", f"ImportError: {path}: file too short", 1)
    (fact,) = of_caches([raised], {}, BEGUN)
    assert (fact.rank, dict(fact.fields)) == (1, {"path": path, "cache_writer": "attempt 1 of this run"})
    os.utime(path, (FIRST - 100, FIRST - 100))
    assert [dict(other.fields) for other in of_caches([raised], {}, BEGUN)] == [{"path": path}], "an older run's, or a stranger's"


def test_a_caches_file_that_no_message_names_is_found_by_its_content(tmp_path: Path) -> None:
    damaged = write(tmp_path / "ab/k.best_config", 0.00001, FIRST + 1)
    (tmp_path / "ab/whole.best_config").write_text('{"XBLOCK": 64}')
    facts = [
        Evidence("error_file", "exception", "json.decoder.JSONDecodeError: Extra data: line 1 column 8 (char 7)", 1),
        Evidence("error_file", "traceback", 'File "/x/torch/_inductor/runtime/autotune_cache.py", line 7, in _read', 1),
    ]
    (fact,) = of_caches(facts, {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}, BEGUN)
    assert dict(fact.fields)["path"] == damaged
    assert of_caches(facts, {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "elsewhere")}, BEGUN) == ()
