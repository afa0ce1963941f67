"""What a script asks the file system for before it trains is noted, in every way to ask, and nothing of it changes."""
# ruff: noqa: PTH110, PTH112, PTH113, PTH115, PTH116, PTH207, PTH208, PLW0108 - how scripts ask is what it is about, and they look functions up late

from __future__ import annotations

import contextlib
import glob
import json
import os
import pickle
import shutil
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from supervisor.instrument._supervise_shim.path_probes import LISTED, MISSING, PER_FOLDER, PathProbes
from tests.jobs import light

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import Attempt

NAMES = ("stat", "lstat", "access", "listdir", "scandir")
ORIGINALS = {name: getattr(os, name) for name in NAMES}


@pytest.fixture
def looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PathProbes]:
    """The functions are wrapped, in the test's directory."""
    monkeypatch.chdir(tmp_path)
    identity: Any = SimpleNamespace(armed=True)
    made = PathProbes(identity)
    made.begin()
    yield made
    made.end()
    assert {name: getattr(os, name) for name in NAMES} == ORIGINALS


def in_a_thread(look: Callable[[], object]) -> None:
    one = threading.Thread(target=look)
    one.start()
    one.join()


def by_name(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.stat(path=path)


IN_VAIN: dict[str, Callable[[Path], object]] = {
    "exists": lambda path: os.path.exists(path),
    "isfile": lambda path: os.path.isfile(str(path)),
    "isdir": lambda path: os.path.isdir(path.name),
    "bytes": lambda path: os.path.exists(os.fsencode(path)),
    "lexists": lambda path: os.path.lexists(path),
    "by name": by_name,
    "access": lambda path: os.access(path, os.F_OK),
    "pathlib": lambda path: path.exists(),
    "pathlib is_file": lambda path: path.is_file(),
    "glob": lambda path: glob.glob(str(path)),
    "in a thread": lambda path: in_a_thread(path.exists),
    "of no directory": lambda path: (path.parent.joinpath("file").touch(), (path.parent / "file" / "x").exists(), path.exists()),
}
LISTS: dict[str, Callable[[Path], object]] = {
    "listdir": lambda path: os.listdir(path),
    "of here": lambda path: (os.chdir(path), os.listdir()),
    "scandir": lambda path: os.scandir(path).close(),
    "walk": lambda path: list(os.walk(path)),
    "glob": lambda path: glob.glob(f"{path}/*.pt"),
    "glob below": lambda path: glob.glob(f"{path.parent}/**/*.pt", recursive=True),
    "pathlib": lambda path: list(path.glob("*.pt")),
    "iterdir": lambda path: list(path.iterdir()),
    "in a thread": lambda path: in_a_thread(lambda: os.listdir(path)),
}


@pytest.mark.parametrize("ask", IN_VAIN.values(), ids=IN_VAIN)
def test_a_path_that_was_not_there_is_noted_and_one_that_was_is_not(
    looked: PathProbes, tmp_path: Path, ask: Callable[[Path], object]
) -> None:
    (tmp_path / "there.pt").touch()
    ask(tmp_path / "there.pt")
    ask(tmp_path / "ckpt.pt")
    assert looked.above(f"{tmp_path}/ckpt.pt") == {}, "it does not train yet"
    looked.end()
    assert looked.above(f"{tmp_path}/ckpt.pt")["asked"] == [f"{tmp_path}/ckpt.pt"]
    assert "asked" not in looked.above(f"{tmp_path}/there.pt")
    assert "asked" not in looked.above(f"{tmp_path}/other.pt")


@pytest.mark.parametrize("ask", LISTS.values(), ids=LISTS)
def test_a_directory_that_was_listed_is_noted(looked: PathProbes, tmp_path: Path, ask: Callable[[Path], object]) -> None:
    (tmp_path / "out").mkdir()
    ask(tmp_path / "out")
    looked.end()
    assert f"{tmp_path}/out" in looked.above(f"{tmp_path}/out/iter_10/mp_rank_00/model.pt")["listed"]
    assert looked.above(f"{tmp_path}/out").get("listed") in (None, [str(tmp_path)])


def test_nothing_of_what_they_do_changes(looked: PathProbes, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^\[Errno 2\] No such file or directory: 'missing'$") as told:
        os.stat("missing")
    assert (told.value.filename, told.value.__context__, told.value.__cause__) == ("missing", None, None)
    for wrong in (lambda: os.stat(), lambda: os.stat("a", "b"), lambda: os.listdir(3.5)):  # type: ignore[call-arg, call-overload, misc]
        with pytest.raises(TypeError):
            wrong()
    assert [pickle.loads(pickle.dumps(getattr(os, name))) is getattr(os, name) for name in NAMES] == [True] * len(NAMES)  # noqa: S301
    for able in ("supports_dir_fd", "supports_fd", "supports_follow_symlinks", "supports_effective_ids"):
        for name, original in ORIGINALS.items():
            assert (getattr(os, name) in getattr(os, able)) == (original in getattr(os, able)), (able, name)
    (tmp_path / "a").touch()
    (tmp_path / "link").symlink_to("a")
    shutil.copy2("link", "copied", follow_symlinks=False)
    assert os.readlink("copied") == "a"
    here = os.open(".", os.O_RDONLY)
    try:
        assert os.stat("a", dir_fd=here) == os.stat("a")
        with pytest.raises(FileNotFoundError):
            os.stat("b", dir_fd=here)
        assert "a" in os.listdir(here)
    finally:
        os.close(here)
    with os.scandir() as entries:
        assert {entry.name for entry in entries} == {"a", "link", "copied"}
    looked.end()
    assert looked.above(f"{tmp_path}/b") == {"listed": [str(tmp_path)]}, "what is asked of another directory is none of this one's"


def test_it_is_bounded(looked: PathProbes, tmp_path: Path) -> None:
    for number in range(PER_FOLDER + 10):
        os.path.exists(f"d/{number}")
    os.path.exists("ckpt.pt")
    for number in range(LISTED + 10):
        with pytest.raises(FileNotFoundError):
            os.listdir(f"l/{number}")
    for number in range(2 * MISSING):
        os.path.exists(f"{number}/x")
    looked.end()
    asked = [bool(looked.above(f"{tmp_path}/d/{number}")) for number in range(PER_FOLDER + 10)]
    assert asked == [True] * PER_FOLDER + [False] * 10
    assert looked.above(f"{tmp_path}/ckpt.pt")
    listed = [bool(looked.above(f"{tmp_path}/l/{number}/x")) for number in range(LISTED + 10)]
    assert listed == [False] * 10 + [True] * LISTED
    assert looked.above(f"{tmp_path}/{2 * MISSING - 1}/x") == {}


def test_a_function_that_somebody_took_by_name_or_wrapped_hands_on_and_notes_nothing_more(looked: PathProbes, tmp_path: Path) -> None:
    taken = os.stat
    inner = os.listdir

    def theirs(*args: Any) -> Any:  # noqa: ANN401  as os has it
        return inner(*args)

    os.listdir = theirs  # type: ignore[assignment]
    looked.end()
    try:
        assert os.listdir is theirs
        assert os.listdir(".") == []
    finally:
        os.listdir = ORIGINALS["listdir"]
    with pytest.raises(FileNotFoundError):
        taken("late.pt")
    assert looked.above(f"{tmp_path}/late.pt") == {}


@pytest.mark.bench("only")
def test_a_question_costs_next_to_nothing(looked: PathProbes, tmp_path: Path) -> None:  # noqa: ARG001  it wraps them
    def cost(ask: Callable[..., object], path: str) -> float:
        began = time.thread_time()
        for _ in range(5000):
            with contextlib.suppress(FileNotFoundError):
                ask(path)
        return (time.thread_time() - began) / 5000

    for path in (str(tmp_path), f"{tmp_path}/missing"):
        assert min(cost(os.stat, path) for _ in range(5)) - min(cost(ORIGINALS["stat"], path) for _ in range(5)) < 20e-6


SCRIPT = """
import os, pathlib, pickle, sys, threading
assert '_supervise_shim.path_probes' not in sys.modules and type(os.stat).__name__ == 'builtin_function_or_method'
import warnings; warnings.simplefilter('ignore')
import torch
LIGHT
wrapped = os.stat
assert '_supervise_shim.path_probes' in sys.modules and type(wrapped).__name__ == 'function'
assert not os.path.exists('ckpt.pt') and not pathlib.Path('other.pt').exists() and not os.path.exists('cache.pt')
assert not list(pathlib.Path('.').glob('step_*.pt'))
torch.save({}, 'cache.pt')
if not os.fork():
    os._exit(type(os.stat).__name__ != 'builtin_function_or_method')
assert os.wait()[1] == 0
layer = torch.nn.Linear(2, 2)
optimizer = light_sgd(torch, layer.parameters())
HOW
for name in ('stat', 'lstat', 'access', 'listdir', 'scandir'):
    assert type(getattr(os, name)).__name__ == 'builtin_function_or_method', name
assert not os.path.exists('late.pt')
os.makedirs('out/step_1')
torch.save({}, 'ckpt.pt')
torch.save({}, 'out/step_1/model.pt')
torch.save({}, 'other.tmp'); os.replace('other.tmp', 'other.pt')
torch.save({}, 'late.pt')
os.rename('out', 'moved')
torch.save({}, 'moved/step_1/more.pt')
"""
HOW = {"a step": "layer.weight.grad = torch.ones(2, 2); optimizer.step()", "a backward pass": "layer(torch.ones(2)).sum().backward()"}


@pytest.mark.process
@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_what_is_saved_after_the_first_step_tells_whether_it_was_asked_for_and_in_a_directory_of_whose_making(
    attempt: Attempt, tmp_path: Path, how: str
) -> None:
    done = attempt.run("-c", SCRIPT.replace("HOW", how).replace("LIGHT", light.IMPORT), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [json.loads(line) for line in (attempt.directory / "saves-0.jsonl").read_text().splitlines()]
    told = {(row["path"][len(str(tmp_path)) + 1 :], row["what"]): row for row in rows if row["what"] != "ended"}
    here = str(tmp_path)
    asked = {name: row.get("asked") for name, row in told.items()}
    assert asked == {
        ("cache.pt", "began"): None,  # made on the way to the training: it is data
        ("ckpt.pt", "began"): [f"{here}/ckpt.pt"],
        ("out/step_1/model.pt", "began"): None,
        ("other.tmp", "began"): None,
        ("other.pt", "renamed"): [f"{here}/other.pt"],
        ("late.pt", "began"): None,
        ("moved/step_1/model.pt", "renamed"): None,
        ("moved/step_1/more.pt", "began"): None,
    }
    assert told["ckpt.pt", "began"]["listed"] == [here]
    out, step = ((tmp_path / name).stat() for name in ("moved", "moved/step_1"))
    for name, root in ((("out/step_1/model.pt", "began"), "out"), (("moved/step_1/more.pt", "began"), "moved")):
        made = [[f"{here}/{root}", out.st_dev, out.st_ino], [f"{here}/{root}/step_1", step.st_dev, step.st_ino]]
        assert sorted(told[name]["made"]) == made
    assert "made" not in told["ckpt.pt", "began"]


@pytest.mark.process
def test_a_process_without_torch_is_not_touched(attempt: Attempt) -> None:
    done = attempt.run("-c", "import sys, os; print('_supervise_shim.path_probes' in sys.modules, type(os.stat).__name__)")
    assert done.stdout.split() == ["False", "builtin_function_or_method"]
