"""The package's own names, its page, and `python -m checkpointing`."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import checkpointing
from tests.support.pages import page_text

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "library-checkpointing.md"


def run(words: list[str], cwd: Path, code: int = 0) -> str:
    done = subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True, check=False)  # noqa: S603 -- ours
    assert done.returncode == code, done.stderr
    return done.stdout


def test_every_name_is_listed_before_it_is_imported_and_is_documented() -> None:
    assert set(checkpointing.__all__) <= set(dir(checkpointing))
    assert set(checkpointing.__all__) == set(checkpointing._MODULES)  # noqa: SLF001 -- the table behind the names
    missing = [name for name in checkpointing.__all__ if f"\n## {name}\n" not in page_text(PAGE.name)]
    assert not missing
    assert len(checkpointing.__all__) <= 12, "a user learns all of them"
    assert all(inspect.getdoc(getattr(checkpointing, name)) for name in checkpointing.__all__)
    with pytest.raises(AttributeError, match="nothing_such"):
        checkpointing.nothing_such  # noqa: B018 -- the access is the subject


def test_the_packages_carry_their_types() -> None:
    assert all((ROOT / package / "py.typed").is_file() for package in ("checkpointing", "health", "supervisor"))


@pytest.mark.process
def test_torch_free_modules_import_no_torch(tmp_path: Path) -> None:
    program = """
import sys
import checkpointing.verification, checkpointing.discover, checkpointing.select, checkpointing.examine, checkpointing.mirror
from checkpointing import verify, find, newest, latest, Verdict, CheckpointingError, Mirror
assert all(map(callable, (verify, find, newest, latest, Mirror)))
assert "torch" not in sys.modules and "supervisor" not in sys.modules
"""
    run(["-c", program], tmp_path)


@pytest.mark.process
@pytest.mark.slow
def test_the_page_runs_from_top_to_bottom_and_so_do_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    blocks = PAGE.read_text().split("```python\n")[1:]
    (tmp_path / "page.py").write_text("\n".join(block.partition("```")[0] for block in blocks))
    run(["page.py"], tmp_path)
    (tmp_path / "other").mkdir()
    command = ["-m", "checkpointing", "--json"]
    good = "ckpt/step-00000100.pt"
    assert json.loads(run([*command, "verify", good], tmp_path))["verdict"] == "good"
    run([*command, "verify", "ckpt"], tmp_path, code=1)
    assert json.loads(run([*command, "latest", "ckpt"], tmp_path))["path"] == str(tmp_path / good)
    assert json.loads(run([*command, "push", good, "--mirror", "other", "--job", "job"], tmp_path))["step"] == 100
    restored = json.loads(run([*command, "restore", "--mirror", "other", "--job", "job", "--to", "new"], tmp_path))
    assert (tmp_path / good).read_bytes() == Path(restored["path"]).read_bytes()
    (tmp_path / "empty").mkdir()
    run([*command, "restore", "--mirror", "empty", "--to", "new"], tmp_path, code=1)
