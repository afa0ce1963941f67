"""`supervise checkpoints convert`: its refusals, what a kill leaves, and its messages."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

from checkpointing.conversion import work
from checkpointing.io import leftovers
from checkpointing.model import CheckpointingError
from checkpointing.verification import verify
from supervisor.cli.checkpoints import convert as command
from supervisor.errors import SuperviseError
from tests.support.few import few
from tests.support.terminal import at_once

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable)")]
SUPERVISE = str(Path(sys.executable).with_name("supervise"))
_MANY = 40
#: What a person sees who waits.
PROGRESS = re.compile(r"supervise: \w+ing the \w+: .* of ")


def start(place: Path, *words: str, **more: object) -> subprocess.Popen[str]:
    argv = [SUPERVISE, "checkpoints", "convert", *words]
    return subprocess.Popen(argv, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)  # type: ignore[call-overload,no-any-return]  # noqa: S603


def run(place: Path, *words: str, **more: object) -> tuple[int, str, str]:
    process = start(place, *words, **more)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A sound checkpoint, in a directory without anything else."""
    (tmp_path / "ckpt").mkdir()
    path = tmp_path / "ckpt" / "step_3.pt"
    torch.manual_seed(1)
    torch.save({"model": {"w": torch.randn(64, 64), "b": torch.randn(9)}, "optimizer": {"state": {}}, "step": 3}, path)
    return path


def names(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()}


def converted(order: dict[str, str], _place: object, _progress: object) -> dict[str, object]:
    """Convert here, and not in a process of its own: that takes seconds to import torch."""
    return work.Conversion(lambda _row: None).run(order["source"], order["target"], order["to"], order["dtype"])


@pytest.mark.parametrize("process", few(["this", "its own"]))
def test_a_checkpoint_is_converted_and_its_losses_are_listed(
    source: Path, process: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if process == "this":
        monkeypatch.setattr(command, "_run", converted)
        code = command.convert(str(source), str(source.parent / "out.safetensors"), "safetensors", "", as_json=False)
        out, err = capfd.readouterr()
    else:
        code, out, err = run(source.parent, "step_3.pt", "out.safetensors", "--to", "safetensors")
    assert (code, [line for line in err.splitlines() if not PROGRESS.match(line)]) == (0, []), "on a slow machine it shows how far it is"
    assert [line.rstrip("- ") for line in out.splitlines()] == [
        "-- converted to safetensors",
        f"  target    {source.parent}/out.safetensors",
        "  content   2 tensors, 16 KiB",
        "  checked   read again and equal to the source",
        "  left out  optimizer",
        "            step",
    ]
    assert names(source.parent) == {"step_3.pt", "out.safetensors"}
    assert torch.equal(load_file(source.parent / "out.safetensors")["w"], torch.load(source)["model"]["w"])


@pytest.mark.slow
def test_the_answer_is_one_object_of_json(source: Path) -> None:
    code, out, _ = run(source.parent, "--json", "--dtype", "bf16", "--to", "hf", "step_3.pt", "out")
    answer = json.loads(out)
    assert (code, answer["format"], answer["tensors"], answer["bytes"]) == (0, "hf", 2, 2 * (64 * 64 + 9))
    assert (answer["source"], answer["target"]) == (str(source), f"{source.parent}/out")
    assert answer["left_out"] == ["optimizer", "step"]


def _torn(place: Path) -> Path:
    torch.save({"w": torch.randn(400)}, place / "a.pt")
    os.truncate(place / "a.pt", 900)
    return place / "a.pt"


def _flipped(place: Path) -> Path:
    torch.save({"w": torch.full((400,), 1.5)}, place / "a.pt")
    content = bytearray((place / "a.pt").read_bytes())
    content[content.index(b"\x00\x00\xc0\x3f" * 8) + 2] ^= 1
    (place / "a.pt").write_bytes(content)
    return place / "a.pt"


def _torn_safetensors(place: Path) -> Path:
    save_file({"w": torch.randn(400)}, place / "a.safetensors")
    os.truncate(place / "a.safetensors", 900)
    return place / "a.safetensors"


def _without_a_shard(place: Path) -> Path:
    (place / "hf").mkdir()
    save_file({"w": torch.randn(4)}, place / "hf" / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"w": "model-00001-of-00002.safetensors", "v": "model-00002-of-00002.safetensors"}}
    (place / "hf" / "model.safetensors.index.json").write_text(json.dumps(index))
    return place / "hf"


def _dcp_without_its_shard(place: Path) -> Path:
    dcp.save({"w": torch.randn(4)}, checkpoint_id=place / "dcp", no_dist=True)
    (place / "dcp" / "__0_0.distcp").unlink()
    return place / "dcp"


def _dcp_flipped(place: Path) -> Path:
    dcp.save({"w": torch.full((400,), 1.5)}, checkpoint_id=place / "dcp", no_dist=True)
    shard = place / "dcp" / "__0_0.distcp"
    content = bytearray(shard.read_bytes())
    content[content.index(b"\x00\x00\xc0\x3f" * 8) + 2] ^= 1
    shard.write_bytes(content)
    return place / "dcp"


class _Evil:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("true",)


def _dangerous(place: Path) -> Path:
    torch.save({"w": torch.randn(4), "x": _Evil()}, place / "a.pt")
    return place / "a.pt"


@pytest.mark.parametrize(
    ("damaged", "word"),
    [
        (_torn, "bad"), (_flipped, "bad"), (_torn_safetensors, "bad"), (_without_a_shard, "incomplete"),
        (_dcp_without_its_shard, "incomplete"), (_dcp_flipped, "bad"), (_dangerous, "dangerous"),
        (lambda place: place / "none.pt", "unverifiable"),
    ],
)  # fmt: skip
def test_a_source_that_is_not_good_is_refused_with_the_sentence_of_verify(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], damaged: Callable[[Path], Path], word: str
) -> None:
    path = damaged(tmp_path)
    before = names(tmp_path)
    assert command.convert(str(path), str(tmp_path / "out"), "torch", "", as_json=False) == 1
    text = capfd.readouterr().err
    assert f"not converted: {path} is {word}: {verify(str(path)).reason}" in text
    assert names(tmp_path) == before


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_a_target_that_exists_is_never_touched(source: Path, kind: str) -> None:
    target = source.parent / "out"
    {"file": target.touch, "directory": target.mkdir, "link": lambda: target.symlink_to("nowhere")}[kind]()
    with pytest.raises(SuperviseError, match="the target exists") as caught:
        command.convert(str(source), str(target), "torch", "", as_json=False)
    assert caught.value.exit_code == 64
    assert target.is_symlink() == (kind == "link")


def test_places_that_cannot_be_are_named_with_what_helps(source: Path, tmp_path: Path) -> None:
    torch.save({"step": 4}, source.parent / "step_4.pt")
    for words, message, hint in (
        ((source, tmp_path / "none" / "out"), "directory does not exist", "mkdir -p"),
        ((source.parent, source.parent / "out"), "within the source", "outside"),
        ((source.parent, tmp_path / "out"), "holds 2 checkpoints", "step_4.pt"),
    ):
        with pytest.raises(SuperviseError, match=message) as caught:
            command.convert(*map(str, words), "torch", "", as_json=False)
        assert hint in caught.value.hint
        assert caught.value.exit_code == 64
    with pytest.raises(SuperviseError, match="cannot convert") as caught:
        command.convert(str(source), "/proc/out", "torch", "", as_json=False)
    assert "permissions" in caught.value.hint


def test_a_source_that_a_training_overwrites_meanwhile_gives_no_target(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def overwritten(order: dict[str, str], _place: object, _progress: object) -> dict[str, object]:
        shutil.copy(source, order["target"])
        torch.save({"step": 4}, source)
        return {"tensors": 2, "bytes": 1, "notes": [], "left_out": []}

    monkeypatch.setattr(command, "_run", overwritten)
    with pytest.raises(SuperviseError, match="the source changed while it was converted"):
        command.convert(str(source), str(source.parent / "out"), "torch", "", as_json=False)
    assert names(source.parent) == {"step_3.pt"}


def test_two_converts_do_not_write_one_target(source: Path) -> None:
    partial = source.parent / f".out.supervise-convert-{leftovers.tag()}"
    partial.mkdir()
    (partial / "out").write_text("growing")
    fd = os.open(partial, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(SuperviseError, match="another convert writes this target"):
        command.convert(str(source), str(source.parent / "out"), "torch", "", as_json=False)
    assert (partial / "out").read_text() == "growing"
    os.close(fd)


@pytest.mark.slow
def test_the_leftover_of_another_node_is_named_and_stays(source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    other = source.parent / ".out.supervise-convert-00000000"
    other.mkdir()
    assert command.convert(str(source), str(source.parent / "out"), "torch", "", as_json=False) == 0
    assert f"{other} is another node's convert" in capfd.readouterr().err
    assert other.is_dir()


@pytest.fixture
def large(source: Path) -> Path:
    """A checkpoint whose conversion takes long enough to be killed in its midst."""
    path = source.parent / "large.pt"
    torch.save({f"w{number}": torch.rand(1 << 20) for number in range(_MANY)}, path)
    return path


def _growing(place: Path, process: subprocess.Popen[str]) -> Path:
    """Wait until the target has some bytes, in its partial place."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for partial in place.glob(".out.supervise-convert-*/out"):
            if sum(path.stat().st_size for path in (partial, *partial.rglob("*")) if path.is_file()) > 4 << 20:
                return partial
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    raise AssertionError(list(place.iterdir()))


@pytest.mark.slow
@pytest.mark.parametrize("to", ["torch", "dcp"], ids=["a file", "a directory"])
def test_a_killed_convert_leaves_no_target_and_the_next_run_cleans_up(large: Path, to: str) -> None:
    process = start(large.parent, "large.pt", "out", "--to", to)
    partial = _growing(large.parent, process)
    (worker,) = psutil.Process(process.pid).children()
    process.kill()
    with contextlib.suppress(psutil.NoSuchProcess):
        worker.wait(30)  # it dies with its parent
    process.communicate()
    assert not (large.parent / "out").exists()
    assert partial.exists()
    code, out, err = run(large.parent, "large.pt", "out", "--to", to)
    assert (code, f"removed what an interrupted convert left: {partial}" in err) == (0, True), err
    assert "equal to the source" in out
    assert names(large.parent) == {"step_3.pt", "large.pt", "out"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("whom", "number"), [("worker", signal.SIGKILL), *(("command", number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))]
)
def test_a_convert_that_ends_early_removes_what_it_wrote(large: Path, whom: str, number: signal.Signals) -> None:
    process = start(large.parent, "large.pt", "out", "--to", "torch")
    _growing(large.parent, process)
    (psutil.Process(process.pid).children()[0] if whom == "worker" else process).send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert whom != "worker" or "the process that converts was killed by signal 9" in err
    assert names(large.parent) == {"step_3.pt", "large.pt"}


@pytest.mark.slow
def test_a_full_disk_is_reported_and_no_file_stays(large: Path) -> None:
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (9 << 20, 9 << 20))  # noqa: E731
    code, _, err = run(large.parent, "large.pt", "out", "--to", "torch", preexec_fn=limit)
    assert (code, "no more room while the target was written" in err) == (78, True), err
    assert names(large.parent) == {"step_3.pt", "large.pt"}


def test_too_little_room_is_reported_before_the_first_write(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(source.parent)

    class Full:
        f_bavail, f_frsize = 10, real.f_frsize

    monkeypatch.setattr(work.os, "statvfs", lambda _path: Full)
    with pytest.raises(CheckpointingError, match="not enough room for the target"):
        work.Conversion(lambda _row: None).run(str(source), str(source.parent / "out"), "torch", "")
    assert names(source.parent) == {"step_3.pt"}


@pytest.mark.slow
def test_a_missing_torch_is_reported_with_its_installation(source: Path, tmp_path: Path) -> None:
    (tmp_path / "without" / "torch").mkdir(parents=True)
    (tmp_path / "without" / "torch" / "__init__.py").write_text("raise ModuleNotFoundError('No module named torch', name='torch')")
    code, _, err = run(source.parent, "step_3.pt", "out", "--to", "hf", env={**os.environ, "PYTHONPATH": str(tmp_path / "without")})
    assert code == 78
    assert "torch is not installed" in err
    assert "pip install torch" in err


@pytest.mark.slow
def test_without_a_terminal_a_line_shows_bytes_rate_and_time_left(
    source: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    at_once(monkeypatch, line_every_s=0.0)
    assert command.convert(str(source), str(source.parent / "out"), "torch", "", as_json=False) == 0
    text = capfd.readouterr().err
    for phase in ("verifying the source", "writing the target", "verifying the target"):
        assert re.search(rf"supervise: {phase}: [\d.]+ (bytes|KiB) of 1\d KiB", text), text
    assert re.search(r" [KM]iB/s, 0 s left", text)
