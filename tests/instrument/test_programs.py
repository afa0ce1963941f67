"""The framework is recognised by the identity of modules and classes: stand-ins of their names here, the real accelerate beside them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from torch import nn

from supervisor.instrument._supervise_shim import programs
from supervisor.observe.ranks import error_files
from tests.jobs import light
from tests.support.figures import Figures

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Attempt

pytestmark = pytest.mark.process

#: What trains, once or until it fails.
LOOP = f"""
{light.IMPORT}
import torch
def train(self, fail=False, model=None):
    model = model or torch.nn.Linear(2, 2)
    optimizer = light_sgd(torch, model.parameters())
    if fail:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    for _ in range(3):
        model(torch.ones(2, 2)).sum().backward()
        optimizer.step()
"""
ARGS = "class Args:\n    per_device_train_batch_size, gradient_accumulation_steps, dataloader_num_workers = 32, 4, 2\n"
#: framework: its module, the rest of its text, how the script begins it, and what must be seen
FRAMEWORKS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "hf_trainer": (
        "transformers.trainer",
        ARGS + "class Trainer:\n    args = Args()\n    train = train\n",
        "from transformers.trainer import Trainer\nclass Mine(Trainer): pass\nMine().train({fail})",
        {"programs": ["hf_trainer"], "values": {"batch_size": "32", "grad_accum": "4", "num_workers": "2"}},
    ),
    "a Trainer of another house": (
        "mytransformers.trainer",
        ARGS + "class Trainer:\n    args = Args()\n    train = train\n",
        "from mytransformers.trainer import Trainer\nTrainer().train({fail})",
        {"programs": [], "values": {}},
    ),
    "lightning": (
        "lightning.pytorch.trainer.trainer",
        (
            "class Loader:\n    batch_size, num_workers = 8, 0\n"
            "class Trainer:\n    accumulate_grad_batches, train_dataloader = 2, Loader()\n    fit = train\n"
        ),
        "from lightning.pytorch.trainer.trainer import Trainer\nTrainer().fit({fail})",
        {"programs": ["lightning"], "values": {"batch_size": "8", "grad_accum": "2", "num_workers": "0"}},
    ),
    "deepspeed": (
        "deepspeed.runtime.engine",
        (
            "class Config:\n    train_micro_batch_size_per_gpu, gradient_accumulation_steps = 16, 2\n"
            "class DeepSpeedEngine:\n    _config = Config()\n    step = train\n"
        ),
        "from deepspeed.runtime.engine import DeepSpeedEngine\nDeepSpeedEngine().step({fail})",
        {"programs": ["deepspeed"], "values": {"batch_size": "16", "grad_accum": "2"}},
    ),
    "torchtitan": (
        "torchtitan.train",
        (
            "class Training:\n    local_batch_size = 4\nclass Config:\n    training = Training()\n"
            "class Trainer:\n    job_config = Config()\n    train_step = train\n"
        ),
        "from torchtitan.train import Trainer\nTrainer().train_step({fail})",
        {"programs": ["torchtitan"], "values": {"batch_size": "4"}},
    ),
    "megatron": (
        "megatron.training.training",
        (
            "import sys, types\nheld = types.ModuleType('megatron.training.global_vars')\n"
            "held._GLOBAL_ARGS = types.SimpleNamespace(micro_batch_size=2, num_workers=8, global_batch_size=512)\n"
            "sys.modules[held.__name__] = held\ndef pretrain(fail): train(None, fail)\n"
        ),
        "from megatron.training.training import pretrain\npretrain({fail})",
        {"programs": ["megatron"], "values": {"batch_size": "2", "num_workers": "8"}},
    ),
}


def written(attempt: Attempt) -> dict[str, Any]:
    """The file of local rank 0, less what names the process."""
    report: dict[str, Any] = json.loads((attempt.directory / "program-0.json").read_text())
    assert report.pop("v") == 1
    report.pop("pid")
    return report


def lay_out(place: Path, module: str, text: str) -> None:
    """Make a package tree with that module in it."""
    *folders, name = module.split(".")
    folder = place
    for part in folders:
        folder = folder / part
        folder.mkdir()
        (folder / "__init__.py").touch()
    (folder / f"{name}.py").write_text(LOOP + text)


@pytest.mark.parametrize(
    ("name", "fails"),
    [
        pytest.param("hf_trainer", True, id="hf_trainer, out of memory before the first step"),
        *(pytest.param(name, False, id=name, marks=pytest.mark.slow) for name in FRAMEWORKS),
    ],
)
def test_a_framework_is_known_by_its_classes(attempt: Attempt, tmp_path: Path, name: str, *, fails: bool) -> None:
    module, text, script, wanted = FRAMEWORKS[name]
    lay_out(tmp_path, module, text)
    norm = "import torch\nnorm = torch.nn.BatchNorm1d(2)\n" if fails else ""
    done = attempt.run_forked("-c", norm + script.format(fail=fails), env=attempt.env(pythonpath=str(tmp_path)))
    assert (done.returncode != 0) == fails, done.stderr
    assert written(attempt) == {**wanted, "batchnorm": fails}
    if fails:
        assert len(attempt.errors().errors) == 1
    report = error_files.programs(attempt.directory)
    assert (report is None) == (not wanted["programs"])
    assert report is None or dict(report.values) == wanted["values"]


@pytest.mark.slow
def test_a_framework_that_fails_in_a_process_without_a_rank_is_known(attempt: Attempt, tmp_path: Path) -> None:
    lay_out(tmp_path, "transformers.trainer", ARGS + "class Trainer:\n    args = Args()\n    def train(self): raise MemoryError\n")
    script = "from transformers.trainer import Trainer\nTrainer().train()"
    assert attempt.run("-c", script, env=attempt.env("launcher", pythonpath=str(tmp_path))).returncode
    assert [error.exc_type for error in attempt.errors().unclaimed] == ["builtins.MemoryError"]
    report = error_files.programs(attempt.directory)
    assert report is not None
    assert (report.programs, dict(report.values)["batch_size"]) == (("hf_trainer",), "32")


@pytest.mark.slow
def test_an_exception_shows_the_framework_that_the_first_step_did_not(attempt: Attempt, tmp_path: Path) -> None:
    lay_out(tmp_path, "transformers.trainer", ARGS + "class Trainer:\n    args = Args()\n    def train(self): raise MemoryError\n")
    script = LOOP + "norm = torch.nn.BatchNorm1d(2)\ntrain(None)\nfrom transformers.trainer import Trainer\nTrainer().train()"
    assert attempt.run("-c", script, env=attempt.env(pythonpath=str(tmp_path))).returncode
    assert (written(attempt)["programs"], written(attempt)["batchnorm"]) == (["hf_trainer"], True)


@pytest.mark.slow
def test_the_real_accelerate_is_known_by_what_it_prepared(attempt: Attempt) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed: pip install -e .[dev]")
    body = (
        "def main(model):\n"
        "    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)\n"
        "    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "    for _ in range(8):\n"
        "        with accelerator.accumulate(model):\n"
        "            accelerator.backward(model(torch.ones(2, 2)).sum())\n"
        "            optimizer.step()\n"
        "            optimizer.zero_grad()\n"
        "main(model)\n"
    )
    done = attempt.run("-W", "ignore", "-c", "import torch\nfrom accelerate import Accelerator\nmodel = torch.nn.Linear(2, 2)\n" + body)
    assert done.returncode == 0, done.stderr
    assert written(attempt) == {"programs": ["accelerate"], "values": {"grad_accum": "4"}, "batchnorm": False}


@pytest.mark.slow
@pytest.mark.parametrize(
    "beside", [pytest.param(True, id="with its configurator"), pytest.param(False, id="of the same names", marks=pytest.mark.slow)]
)
def test_nanogpt_is_known_by_what_it_executed(attempt: Attempt, tmp_path: Path, *, beside: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        f"{LOOP}\nbatch_size, gradient_accumulation_steps = 12, 40\n"
        "config_keys = [k for k in globals() if not k.startswith('_')]\n"
        "ddp_world_size = 4\ngradient_accumulation_steps //= ddp_world_size\ntrain(None)\n"
    )
    if beside:
        (tmp_path / "configurator.py").touch()
    assert attempt.run(str(script)).returncode == 0
    nanogpt = {"programs": ["nanogpt"], "values": {"batch_size": "12", "grad_accum": "40"}}
    assert written(attempt) == {**(nanogpt if beside else {"programs": [], "values": {}}), "batchnorm": False}


@pytest.mark.parametrize(
    ("model", "depends"),
    [
        (lambda: nn.BatchNorm1d(2), True),
        (lambda: nn.BatchNorm1d(2).eval(), False),
        (lambda: nn.Sequential(nn.SyncBatchNorm(2)).train(), True),
        (lambda: nn.BatchNorm1d(2, track_running_stats=False).eval(), True),
        (lambda: nn.LayerNorm(2), False),
        (lambda: nn.InstanceNorm1d(2, affine=True), False),
    ],
)
def test_a_batch_norm_that_learns_from_the_micro_batch_is_seen(
    monkeypatch: pytest.MonkeyPatch, model: Callable[[], nn.Module], *, depends: bool
) -> None:
    base = nn.modules.batchnorm._BatchNorm  # noqa: SLF001  what is watched
    monkeypatch.setattr(base, "__init__", base.__init__)
    seen = programs.ProgramRecognition(SimpleNamespace())  # type: ignore[arg-type]
    seen.watch_norms(nn.modules.batchnorm)
    kept = model()
    assert seen._file(programs.ProgramFindings())["batchnorm"] is depends, kept  # noqa: SLF001  as it is written


@pytest.mark.slow
def test_the_step_with_which_a_trainer_ends_is_in_the_slot(attempt: Attempt, tmp_path: Path) -> None:
    state = "class State:\n    max_steps = 900\nclass Trainer:\n    args, state = Args(), State()\n    train = train\n"
    lay_out(tmp_path, "transformers.trainer", ARGS + state)
    done = attempt.run("-c", "from transformers.trainer import Trainer\nTrainer().train(False)", env=attempt.env(pythonpath=str(tmp_path)))
    assert done.returncode == 0, done.stderr
    (beat,) = attempt.beats()
    assert (beat.steps, beat.total) == (3, 900)


@pytest.mark.slow
@pytest.mark.bench
def test_the_look_is_below_a_millisecond_and_is_taken_once(attempt: Attempt, tmp_path: Path) -> None:
    lay_out(tmp_path, "transformers.trainer", FRAMEWORKS["hf_trainer"][1])
    script = (
        "import _supervise_shim, time\n"
        "from transformers.trainer import Trainer\n"
        "import torch\n"
        "kept = [torch.nn.BatchNorm1d(2) for _ in range(300)]\n"
        "beat, look, took = _supervise_shim.instrument._beat, _supervise_shim.instrument._programs.at_first_step, []\n"
        "def timed():\n    began = time.thread_time_ns(); look(); took.append(time.thread_time_ns() - began)\n"
        "beat.at_first_step = timed\n"
        "def deep(n): return Trainer().train() if n == 0 else deep(n - 1)\n"
        "deep(100)\n"
        "print(len(took), took[0])\n"
    )
    done = attempt.run("-c", script, env=attempt.env(pythonpath=str(tmp_path)))
    times, took_ns = map(int, done.stdout.split())
    assert times == 1, done.stderr
    assert took_ns < 1_000_000 or not Figures.asserted
    assert written(attempt)["programs"] == ["hf_trainer"]


@pytest.mark.slow
def test_a_trainer_that_raises_on_inspection_costs_the_training_nothing(attempt: Attempt, tmp_path: Path) -> None:
    hostile = (
        "class Args:\n    def __getattr__(self, name): raise SystemError(name)\nclass Trainer:\n    args = Args()\n    train = train\n"
    )
    lay_out(tmp_path, "transformers.trainer", hostile)
    done = attempt.run("-c", "from transformers.trainer import Trainer\nTrainer().train()", env=attempt.env(pythonpath=str(tmp_path)))
    assert done.returncode == 0, done.stderr
    assert written(attempt)["programs"] == ["hf_trainer"]
    assert written(attempt)["values"] == {}
