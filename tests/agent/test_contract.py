"""What we use of torch, held against stored signatures of torch 2.6 to 2.15, and against the code of those versions itself."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from supervisor.agent import dynamic_rounds, rendezvous
from supervisor.agent.messages import Go
from supervisor.agent.selfcheck import DYNAMIC, OTHERS, ROUNDS, ROWS, loaded, missing

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

STORED: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "elastic_signatures.json").read_text())["versions"]
SITE = Path(importlib.util.find_spec("torch").submodule_search_locations[0]).parent  # type: ignore[union-attr,index]  # torch is a dependency


def reader() -> ModuleType:
    spec = importlib.util.spec_from_file_location("signatures", Path(__file__).with_name("signatures.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("version", sorted(STORED))
def test_every_version_takes_and_calls_what_we_need(version: str) -> None:
    rows = [row for row in ROWS if row.module != "torch.distributed"]
    assert sorted(STORED[version]) == sorted(f"{row.module}:{row.name}" for row in rows), (
        "a row is not stored: see tests/agent/signatures.py"
    )
    lost = []
    for row in rows:
        facts = STORED[version][f"{row.module}:{row.name}"]
        takes = set(row.accepts) if facts and "**" in facts["takes"] else set(facts["takes"] if facts else ())
        lost += [f"{row.name} {name}" for name in row.accepts if name not in takes]
        lost += [f"{row.name} {name}" for name in row.calls if name not in facts["uses"]]
    assert lost == []


def test_the_installed_torch_is_as_stored() -> None:
    """Where it is one of the stored versions; the self-check covers any other when the agent starts."""
    version = importlib.metadata.version("torch").partition("+")[0]
    if version not in STORED:
        pytest.skip(f"torch {version} is not stored: add it with tests/agent/signatures.py")
    assert reader().describe(ROWS, lambda path: (SITE / path).read_text()) == STORED[version]


def test_the_rounds_fit_the_installed_torch_and_each_name_of_torchs_that_they_touch_has_a_row() -> None:
    assert missing(ROUNDS) == []
    named = {part for row in ROUNDS for name in (row.name, *row.calls, *row.accepts) for part in name.split(".")}
    source = ast.parse(Path(dynamic_rounds.__file__).read_text())
    touched = [node for node in ast.walk(source) if isinstance(node, ast.Attribute)]
    others = [node for node in touched if not (isinstance(node.value, ast.Name) and node.value.id in {"self", "ops"})]
    private = {node.attr for node in others if re.fullmatch(r"_[A-Za-z]\w*", node.attr)}
    keys = {
        node.value
        for node in ast.walk(source)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"_[A-Za-z_]+", node.value)
    }
    public = {"participants", "last_heartbeats", "wait_list", "complete", "closed", "deadline", "node", "state", "settings"}
    public |= {"min_nodes", "max_nodes", "timeout", "join", "last_call", "keep_alive_interval", "keep_alive_max_attempt"}
    assert private >= {"_Action", "_sanitize", "_settings"}
    assert (private | keys | public) - named == set()


#: Private names that are not torch's: of Python, of our own classes, and what torch's modules hold for whoever makes one.
NOT_TORCHS = frozenset(
    {"_exit", "_getframe", "_current_frames", "_data", "_xoptions", "_lock", "_filters_mutated_lock_held", "_identity", "_beat"}
    | {"_fileobj", "_file", "_initializing", "_showwarning_orig", "_showwarnmsg_impl", "_filters_mutated", "_clear_cache", "_drop_dead"}
    | {"_modules", "_buffers", "_parameters", "_torchdynamo_disable", "_C", "_utils", "_fields"}
)


def private_names(source: str) -> set[str]:
    """Return the private names that code takes from other objects: attributes, names for getattr, and imports from torch."""
    named = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(ast.Name("self" | "cls")):
                continue
            case ast.Attribute(_, name) | ast.Call(ast.Name("getattr"), [_, ast.Constant(str(name)), *_]):
                named.add(name)
            case ast.ImportFrom(str(module), names) if module.startswith("torch"):
                named |= {alias.name for alias in names}
    return {name for name in named if re.fullmatch(r"_[A-Za-z]\w*", name)}


def test_each_private_name_of_torchs_that_any_code_of_ours_touches_has_a_row() -> None:
    root = Path(__file__).parents[2]
    folders = ("supervisor/instrument", "supervisor/agent", "checkpointing/conversion", "checkpointing/training", "health/nodecheck")
    touched = {name for folder in folders for path in (root / folder).rglob("*.py") for name in private_names(path.read_text())}
    rows = (*ROWS, *ROUNDS, *OTHERS)
    named = {part for row in rows for names in (row.name, *row.calls) for name in names.split("|") for part in name.split(".")}
    assert touched >= {"_create_c10d_store", "_StorageInfo", "_world", "_wrap", "_queued_calls", "_get_default_store"}
    assert touched - named == NOT_TORCHS


def test_all_other_private_names_fit_the_installed_torch_and_each_row_says_what_is_lost_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing(OTHERS) == []
    assert [row.name for row in OTHERS if not row.without] == []
    monkeypatch.delattr("torch.cuda._queued_calls")
    monkeypatch.delattr("torch.nn.modules.batchnorm._BatchNorm")
    assert missing(loaded()) == [
        "torch.cuda:_queued_calls: there is no such name: restarts are cold: what the imports do is not known",
        "torch.nn.modules.batchnorm:_BatchNorm.__init__: there is no such name: a smaller micro-batch changes batch norms without a word",
    ]


def test_each_store_method_that_the_rendezvous_calls_has_a_row() -> None:
    source = ast.parse(Path(rendezvous.__file__).read_text())
    stores = {"store", "base", "here", "shared", "serves"}
    called = {
        node.attr
        for node in ast.walk(source)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in stores
    }
    named = {row.name.rpartition(".")[2] for row in ROWS if row.module == "torch.distributed"}
    assert called >= {"add", "get", "set", "check"}
    assert called <= named


def test_a_dynamic_rendezvous_of_another_form_is_left_to_torchs_own_rules(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = importlib.import_module(DYNAMIC)
    handler: Any = SimpleNamespace(_op_executor=object(), _state_holder=SimpleNamespace(_sanitize=lambda: None))
    kept = vars(handler).copy()
    monkeypatch.delattr(module, "_RendezvousJoinOp")
    assert dynamic_rounds.RoundOps.of(handler, MagicMock()) is None
    assert vars(handler) == kept, "nothing of torch's is replaced"
    assert "_RendezvousJoinOp.__call__: there is no such name" in caplog.text


def test_every_override_takes_whatever_torch_passes() -> None:
    """Arguments came and went between versions (is_restart, timeout): no override may name them."""
    source = (Path(__file__).parents[2] / "supervisor" / "agent" / "elastic.py").read_text()
    agent = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == "GatedAgent")
    torchs = {row.name.rpartition(".")[2] for row in ROWS}
    overrides = [n for n in agent.body if isinstance(n, ast.FunctionDef) and n.name in torchs]
    assert len(overrides) >= 6
    assert [n.name for n in overrides if not (n.args.vararg and n.args.kwarg)] == []


def ordered(version: str) -> tuple[int, ...]:
    """Return what versions are ordered by."""
    return tuple(map(int, version.split(".")))


def overlay(where: Path, version: str) -> Path:
    """Another version's elastic code, pure Python, over the installed torch's C++ core, by symbolic links."""
    done = subprocess.run(  # noqa: S603  pip, for one wheel of torch
        [
            *(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", f"--dest={where}", f"torch=={version}"),
            *("--python-version=3.11", "--implementation=cp", "--platform=macosx_11_0_arm64", "--platform=macosx_14_0_arm64"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        pytest.skip(
            f"pip cannot download the wheel of torch {version}, which needs a package index: {done.stderr.strip().splitlines()[-1:]}"
        )
    (wheel,) = where.glob("*.whl")
    unpacked, out = where / "unpacked", where / "over"
    with zipfile.ZipFile(wheel) as z:
        wanted = r"torch/(distributed/(run\.py|launch\.py|launcher/|elastic/)|numa/)"
        z.extractall(unpacked, [n for n in z.namelist() if re.match(wanted, n)])
    wheel.unlink()
    (out / "torch" / "distributed").mkdir(parents=True)
    for level in ("torch", "torch/distributed"):
        for entry in (SITE / level).iterdir():
            if (there := out / level / entry.name).name != "distributed" and entry.name != "__pycache__":
                there.symlink_to(entry)
    for name in ("run.py", "launch.py", "launcher", "elastic", "../numa"):
        old = unpacked / "torch" / "distributed" / name
        if old.exists():
            new = out / "torch" / "distributed" / name
            new.unlink()
            (shutil.copytree if old.is_dir() else shutil.copy)(old, new)
    return out


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", [min(STORED, key=ordered), max(STORED, key=ordered)])
def test_the_elastic_code_of_the_oldest_and_of_the_newest_version_runs_under_us(
    start: Callable[..., Any], tmp_path: Path, version: str
) -> None:
    """Our agent over that version's own: a rank dies once, and the job recovers with the same gloo ranks."""
    path = str(overlay(tmp_path / "wheel", version))
    agent = start("--standalone", "--nproc-per-node=2", "--log-dir=logs", script="gloo_job.py", PYTHONPATH=path)
    agent.send(Go(1))
    agent.expect("rank_exited", 1, code=42)
    agent.expect("stopped", 1, outcome="failed")
    agent.send(Go(2))
    agent.expect("stopped", 2, outcome="succeeded")
    assert agent.wait_exit() == 0
    assert f"{os.sep}over{os.sep}" in json.loads(agent_module_file(path))
    assert sorted(p.name for p in (tmp_path / "logs").glob("*/*")) == ["attempt_0", "attempt_1"]


def agent_module_file(path: str) -> str:
    """Which elastic code that PYTHONPATH gives, as JSON text: that the overlay was really in front."""
    code = "import json, torch.distributed.elastic.agent.server.api as a; print(json.dumps(a.__file__))"
    return subprocess.run(  # noqa: S603  our own interpreter
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    ).stdout
