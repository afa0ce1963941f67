"""A rank's saves are logged for the supervisor, under their final names; an interrupted save has no end in the log."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.instrument._supervise_shim.save_log import SaveLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Attempt

pytestmark = pytest.mark.process

HEAD = """
import io, os, pathlib, shutil, sys, tempfile, threading, traceback
import warnings; warnings.simplefilter('ignore')
import torch, torch.distributed.checkpoint as dcp
"""
#: Ways to save the file NAME.
SAVES = (
    "torch.save({}, NAME)",
    "torch.save(obj={}, f=NAME)",
    "torch.save({}, here / NAME)",
    "import safetensors.torch as s; s.save_file({'w': torch.ones(2)}, NAME)",
    "from safetensors.torch import save_file; save_file({'w': torch.ones(2)}, filename=NAME)",
)
#: Ways in which a file gets its final NAME.
RENAMES = (
    "torch.save({}, 'a.tmp'); os.replace('a.tmp', NAME)",
    "torch.save({}, 'a.tmp'); os.rename('a.tmp', NAME)",
    "torch.save({}, 'a.tmp'); (here / 'a.tmp').replace(NAME)",
    "torch.save({}, 'a.tmp'); shutil.move('a.tmp', NAME)",
    "f = open('a.tmp', 'wb'); torch.save({}, f); f.close(); os.replace('a.tmp', NAME)",
    "f = tempfile.NamedTemporaryFile(dir='.', delete=False); torch.save({}, f); f.close(); os.replace(f.name, NAME)",
    "os.mkdir('tmp'); torch.save({}, 'tmp/b.pt'); os.rename('tmp', 'step_1'); os.rename('step_1/b.pt', NAME)",
)
DCP = """
state = {'w': torch.ones(4)}
dcp.save(state, checkpoint_id='step_1')
dcp.save(state, storage_writer=dcp.FileSystemWriter('step_2'))
os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='0')
torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)
dcp.async_save(state, checkpoint_id=here / 'step_3').result()
dcp.load(state, storage_reader=dcp.FileSystemReader('step_2'))
torch.distributed.destroy_process_group()
"""
OPENED = """
import safetensors, safetensors.torch as s
s.save_file({'w': torch.ones(2)}, 'm.safetensors')
assert s.load_file('m.safetensors')['w'].sum() == 2
with safetensors.safe_open('m.safetensors', framework='pt') as opened:
    assert list(opened.keys()) == ['w']
"""
RESUME = """
from torch.distributed.checkpoint.state_dict import get_state_dict
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.Adam(model.parameters())
get_state_dict(model, optimizer)  # steps once, with a learning rate of 0, so that there is a state to load into
dcp.save({'w': torch.ones(4)}, checkpoint_id='step_1')
dcp.load({'w': torch.ones(4)}, checkpoint_id='step_1')
model(torch.ones(2)).sum().backward()
optimizer.step()
dcp.load({'w': torch.ones(4)}, checkpoint_id='step_1')
"""
MEMBERS = """
import zipfile
with open('a.zip', 'wb') as file, zipfile.ZipFile(file, 'w') as archive:
    for name in ('policy.pth', 'optimizer.pth'):
        with archive.open(name, 'w') as member:
            torch.save({'w': torch.ones(2)}, member)
with zipfile.ZipFile('a.zip') as archive, archive.open('policy.pth') as member:
    assert torch.load(member)['w'].sum() == 2
with zipfile.ZipFile(io.BytesIO(), 'w') as archive, archive.open('nameless.pth', 'w') as member:
    torch.save({}, member)
"""
#: name of a directory → what one rank does there. torch costs seconds in each process, so all of them are done by one, in this order.
PARTS = {
    "saves": "\n".join(f"NAME = '{number}.pt'; {way}" for number, way in enumerate(SAVES)),
    "members": MEMBERS,
    "renames": "\n".join(f"NAME = '{number}.pt'; {way}" for number, way in enumerate(RENAMES)),
    "other renames": "torch.save({}, 'a.pt'); open('x', 'w'); os.replace('x', 'y'); os.rename(src='y', dst='z')",
    "failed rename": "try:\n    os.replace('missing', 'x')\nexcept OSError:\n    traceback.print_exc(file=open('said', 'w'))",
    "failed save": "try:\n    torch.save({'x': lambda: 0}, 'a.pt')\nexcept Exception: pass",
    "nameless": "torch.save({}, io.BytesIO()); torch.save({}, os.fdopen(os.open('n', 65), 'wb')); torch.save({}, 'a.pt')",
    "fork": (
        "torch.save({}, 'a.pt')\n"
        "if not os.fork():\n    torch.save({}, 'b.pt'); os.replace('b.pt', 'c.pt'); os._exit(0)\n"
        "assert os.wait()[1] == 0"
    ),
    "safetensors": OPENED,
    "directories": DCP,
    "resume": RESUME,
}
#: What a second rank does: many saves, and at last one that its end cuts off.
LAST_PARTS = {
    "many": "for i in range(1200):\n    torch.save(i, 'ckpt.pt'); torch.save(i, f'{i}.pt')",
    "cut off": "class Dies:\n    def __reduce__(self):\n        os._exit(3)\ntorch.save({}, 'a.pt')\ntorch.save(Dies(), 'a.pt')",
}


@dataclass(frozen=True)
class Done:
    """What a rank did and noted."""

    place: Path
    directory: Path

    def rows(self, part: str, kind: str = "saves") -> list[dict[str, Any]]:
        """Return what was logged of the directory of that part. Of loads: their ends, not their beginnings."""
        rows: list[dict[str, Any]] = [json.loads(line) for line in (self.directory / f"{kind}-0.jsonl").read_text().splitlines()]
        return [row for row in rows if row.get("path", "").startswith(f"{self.place / part}/")]


def run(make_attempt: Callable[[Path], Attempt], place: Path, parts: dict[str, str], code: int) -> Done:
    """Run a rank to its end."""
    script = HEAD
    for name, text in parts.items():
        (place / name).mkdir()
        script += f"os.chdir({str(place / name)!r}); here = pathlib.Path.cwd()\n{text}\n"
    attempt = make_attempt(place)
    done = attempt.run_forked("-c", script)
    assert (done.returncode, done.stderr) == (code, "")
    return Done(place, attempt.directory)


@pytest.fixture(scope="module")
def done(make_attempt: Callable[[Path], Attempt], tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Have one rank do all PARTS."""
    return run(make_attempt, tmp_path_factory.mktemp("saves"), PARTS, 0)


@pytest.fixture(scope="module")
def died(make_attempt: Callable[[Path], Attempt], tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Have one rank do all LAST_PARTS."""
    return run(make_attempt, tmp_path_factory.mktemp("cut-off"), LAST_PARTS, 3)


def identity(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]


@pytest.mark.slow
def test_a_save_to_a_member_of_an_archive_is_one_of_the_archive(done: Done) -> None:
    archive = str(done.place / "members" / "a.zip")
    assert [(row["what"], row["path"], row.get("file"), row.get("goes_on")) for row in done.rows("members")] == [
        ("began", archive, True, None),
        ("ended", archive, None, None),
        ("began", archive, True, True),
        ("ended", archive, None, None),
    ]
    assert [row["path"] for row in done.rows("members", "loads")] == [archive]


def test_a_save_is_logged_with_its_path_and_the_file_at_its_end(done: Done) -> None:
    rows = done.rows("saves")
    assert len(rows) == 2 * len(SAVES)
    for number, way in enumerate(SAVES):
        began, ended = rows[2 * number : 2 * number + 2]
        saved = done.place / "saves" / f"{number}.pt"
        assert (began["what"], began["path"], began["was"], began["file"]) == ("began", str(saved), None, False), way
        assert (ended["what"], ended["path"], ended["n"], ended["well"]) == ("ended", str(saved), began["n"], True), way
        assert ended["now"] == identity(saved), way


def test_the_final_name_is_logged(done: Done) -> None:
    identities = {row["path"]: row["now"] for row in done.rows("renames") if row["what"] == "renamed"}
    for number, way in enumerate(RENAMES):
        saved = done.place / "renames" / f"{number}.pt"
        assert identities.get(str(saved)) == identity(saved), way


def test_other_renames_are_nobody_s_business(done: Done) -> None:
    assert [row["what"] for row in done.rows("other renames")] == ["began", "ended"]
    assert (done.place / "other renames" / "z").exists()


def test_a_rename_fails_as_it_would_without_us(done: Done) -> None:
    error_text = (done.place / "failed rename" / "said").read_text()
    assert error_text.endswith("FileNotFoundError: [Errno 2] No such file or directory: 'missing' -> 'x'\n")


def test_a_step_by_which_an_optimizer_s_state_is_made_is_none_of_the_training(done: Done) -> None:
    assert [row["steps"] for row in done.rows("resume", "loads")] == [0, 1]


def test_a_directory_is_logged_as_one(done: Done) -> None:
    rows, place = done.rows("directories"), done.place / "directories"
    for step in (1, 2, 3):
        mine = [row for row in rows if row["path"] == str(place / f"step_{step}")]
        assert {row["what"] for row in mine} == {"began", "ended"}, step
        assert {row["n"] for row in mine if row["what"] == "began"} == {row["n"] for row in mine if row["what"] == "ended"}, step
        assert all(row["now"][2] == -1 and row["well"] for row in mine if row["what"] == "ended")
    assert {Path(row["path"]).parent for row in rows} == {place}, "a shard was told by itself"
    assert [(Path(row["path"]).name, row["via"]) for row in done.rows("directories", "loads")] == [("step_2", "dcp")]


@pytest.mark.slow
def test_a_save_that_was_cut_off_began_and_never_ended(died: Done) -> None:
    rows = died.rows("cut off")
    first = rows[0]["n"]
    assert [(row["what"], row["n"]) for row in rows] == [("began", first), ("ended", first), ("began", first + 1)]
    assert rows[2]["was"] == rows[1]["now"]


def test_a_save_that_raised_did_not_end_well(done: Done) -> None:
    assert [row.get("well") for row in done.rows("failed save")] == [None, False]


def test_a_file_without_a_name_is_saved_but_not_logged(done: Done) -> None:
    assert {Path(row["path"]).name for row in done.rows("nameless")} == {"a.pt"}
    assert (done.place / "nameless" / "n").stat().st_size


@pytest.mark.slow
def test_the_file_stays_small_and_keeps_the_newest_of_each_path(died: Done) -> None:
    rows, place = died.rows("many"), died.place / "many"
    assert (died.directory / "saves-0.jsonl").stat().st_size <= 300 << 10
    assert [row["path"] for row in rows[-4:]] == [str(place / "ckpt.pt")] * 2 + [str(place / "1199.pt")] * 2
    assert rows[-3]["now"] == identity(place / "ckpt.pt")
    assert os.listdir(died.directory).count("saves-0.jsonl.half") == 0  # noqa: PTH208 - as short as it gets


def test_a_forked_child_logs_nothing(done: Done) -> None:
    assert {Path(row["path"]).name for row in done.rows("fork")} == {"a.pt"}
    assert (done.place / "fork" / "c.pt").exists()


def test_safetensors_that_are_opened_are_loads(done: Done) -> None:
    loads = [(Path(row["path"]).name, row["via"], row["complete"], row["steps"]) for row in done.rows("safetensors", "loads")]
    assert loads == [("m.safetensors", "safetensors", True, 0)] * 2


def test_a_handler_that_saves_while_another_save_is_noted_waits_for_nobody(tmp_path: Path) -> None:
    me: Any = SimpleNamespace(enabled=True, claimed=True, directory=str(tmp_path), local_rank=0)
    first = iter([True])

    class Beat:
        @property
        def steps(self) -> int:  # is read in the middle of each note
            if next(first, False):
                signal.raise_signal(signal.SIGUSR1)  # while the lock is held
            return 0

    beat: Any = Beat()
    written = SaveLog(me, beat)

    def preempted(_signum: int, _frame: object) -> None:
        written.ended(written.began(str(tmp_path / "last.pt"), "torch"), well=True)

    before = signal.signal(signal.SIGUSR1, preempted)
    try:
        written.ended(written.began(str(tmp_path / "a.pt"), "torch"), well=True)
    finally:
        signal.signal(signal.SIGUSR1, before)
    rows = [json.loads(line) for line in (tmp_path / "saves-0.jsonl").read_text().splitlines()]
    assert [(row["what"], Path(row["path"]).name, row["n"]) for row in rows] == [
        ("began", "a.pt", 1),
        ("began", "last.pt", 2),
        ("ended", "last.pt", 2),
        ("ended", "a.pt", 1),
    ]
